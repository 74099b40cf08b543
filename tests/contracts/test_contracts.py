"""The contracts of DESIGN section 12, each held by a golden file in this folder.

A golden file changes only together with the design: two parts of the product, or two versions
of it, rely on it.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from packhorse.artifact import Artifact
from packhorse.deployment import load_deployment
from packhorse.errors import InvalidInput
from packhorse.ids import RESERVED_SEGMENTS, artifact_prefix, blob_key, check_model_id, model_key
from packhorse.plan import PlannedModel, load_plan
from packhorse.prices import instance_type
from packhorse.settings import Settings
from packhorse_loadtest.cli import bmk
from packhorse_loadtest.job import Job, Load, Transport
from packhorse_loadtest.recorder import Recorder
from packhorse_loadtest.report import make_report
from packhorse_loadtest.targets import Fleet, Target
from packhorse_pack.bounds import volume_bound
from packhorse_pack.certificate import check_certificate, make_certificate
from packhorse_pack.fleet import Offer
from packhorse_pack.greedy import place
from packhorse_pack.needs import Item
from packhorse_server.cli import serve
from packhorse_server.http.errors import STATUS
from tests.onnx_models import publish
from tests.packhorse.test_cli import run
from tests.running import running

HERE = Path(__file__).parent


def golden(name: str) -> Any:
    return json.loads((HERE / name).read_text())


def test_12_8_the_load_report_has_its_names_and_the_test_its_flags() -> None:
    wanted = golden("load_report.json")
    fleet = Fleet([Target("a", "http://x")], 3.6, ["http://x"])
    job = Job(Load("open", 0, rate_rps=50), Transport(), [], [], 0, 10, 5)
    seen = Recorder()
    for seconds, cold in ((0.01, False), (0.02, True)):
        seen.sent += 1
        seen.answered(seconds, cold)
    seen.sent += 2
    seen.failed("queue_full")
    record = msgspec.to_builtins(make_report(seen, job, fleet, 1))
    assert {name: record[name] for name in wanted["record"]} == wanted["record"]
    flags = {flag for option in bmk.params for flag in option.opts}
    assert set(wanted["flags"]) <= flags


def test_12_1_the_start_command_has_its_flags_and_variables() -> None:
    wanted = golden("server_start.json")
    text = CliRunner().invoke(serve, ["--help"]).output
    assert [flag for flag in wanted["flags"] if f"{flag} " not in text] == []
    names = {f"PACKHORSE_{name.upper()}" for name in Settings.model_fields}
    assert set(wanted["environment"]) <= names


def test_12_2_store_keys() -> None:
    keys = golden("store_keys.json")
    for model_id, version, variant, key in keys["artifact"]:
        assert f"{artifact_prefix(model_id, version, variant)}/artifact.json" == key
    for model_id, key in keys["latest"]:
        assert f"models/{model_key(model_id)}/latest.json" == key
    for digest, key in keys["blob"]:
        assert blob_key(digest) == key
    assert set(keys["refused_segments"]) == RESERVED_SEGMENTS
    for segment in keys["refused_segments"]:
        with pytest.raises(InvalidInput):
            check_model_id(f"org/{segment}")


def test_12_2_a_published_model_lies_under_these_keys(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "org/tiny-1.0")
    found = {
        p.relative_to(tmp_path / "s").as_posix() for p in (tmp_path / "s").rglob("*") if p.is_file()
    }
    assert found == {
        "models/org~tiny-1.0/v1/cpu-fp32/artifact.json",
        "models/org~tiny-1.0/latest.json",
        *(f"blobs/sha256/{file.sha256}" for file in artifact.files),
    }


def test_12_3_artifact() -> None:
    data = (HERE / "artifact.json").read_bytes()
    assert Artifact.decode(data, "golden").encode() == data


def test_12_4_requests_and_answers(tmp_path: Path) -> None:
    wanted = golden("requests.json")
    for number, (model_id, facts) in enumerate(wanted["models"].items()):
        publish(str(tmp_path / "s"), tmp_path / str(number), model_id, labels=facts["labels"])
    with running(str(tmp_path / "s"), tmp_path / "c", list(wanted["models"])) as server:
        for exchange in wanted["exchanges"]:
            if "post" in exchange:
                url = f"/predictions/{exchange['post']}"
                response = server.http.post(url, json=exchange["body"])
            else:
                response = server.http.get(f"/predictions/{exchange['get']}")
            assert response.status_code == exchange["status"], exchange
            if "answer" in exchange:
                assert shape(response.json()) == exchange["answer"]
            else:
                assert response.json()["code"] == exchange["code"]
                assert set(response.json()) == {"error", "code"}
            for name in wanted["headers"]:
                assert response.headers[name]
            assert re.match(
                r"queue;dur=[\d.]+, infer;dur=[\d.]+$", response.headers["server-timing"]
            )
        rows = server.http.get("/models").json()["models"]
        assert [list(row) for row in rows] == [wanted["model_row"]] * 2


def test_12_4_status_codes() -> None:
    assert golden("requests.json")["statuses"] == STATUS


def test_12_5_plan(tmp_path: Path) -> None:
    plan = load_plan(HERE / "plan.yaml")
    plan.write(tmp_path / "plan.yaml")
    assert (tmp_path / "plan.yaml").read_text() == (HERE / "plan.yaml").read_text()


def test_12_5_certificate() -> None:
    text = (HERE / "plan.certificate.json").read_bytes()
    data = json.loads(text)
    assert check_certificate(data) == ([], 170_000, 93_500)
    sizes = data["capacities"]["c5.large"]
    offer = Offer(instance_type("c5.large"), 2, speed_is_assumed=True, **sizes)
    items = [Item(PlannedModel(need.pop("id"), "v1", "cpu-fp32"), **need) for need in data["needs"]]
    bins, _ = place(items, [offer])
    assert make_certificate(items, [offer], bins, [volume_bound(items, [offer])]) == text


def test_12_6_deployment(tmp_path: Path) -> None:
    deployment = load_deployment(HERE / "deployment.json")
    deployment.write(tmp_path / "deployment.json")
    written = (tmp_path / "deployment.json").read_bytes()
    assert written == (HERE / "deployment.json").read_bytes()


def test_12_9_models_list(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a/b", labels=["x", "y"])
    wanted = golden("models_list.json")
    wanted["models"][0]["bytes"] = artifact.total_bytes
    done = run("models", "list", "--json", "--store", str(tmp_path / "s"))
    assert json.loads(done.stdout) == wanted
    assert list(json.loads(done.stdout)["models"][0]) == list(wanted["models"][0])


def shape(answer: Any) -> Any:
    """The answer with every value's type in its place."""
    if isinstance(answer, list):
        return [shape(item) for item in answer]
    if isinstance(answer, dict):
        return {key: shape(value) for key, value in answer.items()}
    return type(answer).__name__
