import json
from pathlib import Path

import pytest

from packhorse.plan import load_plan
from tests.onnx_models import publish
from tests.packhorse.test_cli import run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        publish(str(tmp_path / "s"), tmp_path / "m", f"m{number}", private_bytes=400_000_000)
    (tmp_path / "models.yaml").write_text(
        "models: [{id: 'm{i}', source: m, task: feature-extraction, precision: fp32, repeat: 4}]"
    )
    (tmp_path / "packhorse.yaml").write_text("store: s\n")
    return tmp_path


def test_pack_writes_a_plan_a_proof_and_a_page(folder: Path) -> None:
    done = run("pack", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    plan = load_plan(folder / "plan.yaml")
    assert found["servers"] == len(plan.servers) == 1
    assert found["usd_per_hour"] == plan.fleet.usd_per_hour >= found["bound_usd_per_hour"] > 0
    assert sorted(m.id for m in plan.servers[0].models) == ["m1", "m2", "m3", "m4"]
    assert "m1" in (folder / "plan.html").read_text()
    assert run("pack", "verify", cwd=folder).stdout.startswith("verified: price $")
    before = (folder / "plan.yaml").read_bytes()
    run("pack", "plan", "models.yaml", cwd=folder)
    assert (folder / "plan.yaml").read_bytes() == before


def test_a_fleet_file_may_list_names_alone(folder: Path) -> None:
    (folder / "fleet.yaml").write_text("types: [m7i.large, m7i.xlarge]\n")
    assert run("pack", "--fleet", "fleet.yaml", cwd=folder).returncode == 0
    assert load_plan(folder / "plan.yaml").servers[0].instance_type == "m7i.large"


def test_a_plan_that_was_changed_does_not_verify(folder: Path) -> None:
    run("pack", cwd=folder)
    path = folder / "plan.yaml"
    path.write_text(path.read_text().replace("id: m4", "id: m0"))
    done = run("pack", "verify", cwd=folder)
    assert done.returncode == 1
    assert "not those of the certificate" in done.stdout


def test_a_model_that_fits_nowhere_is_exit_code_3(folder: Path) -> None:
    publish(str(folder / "s"), folder / "m", "m3", private_bytes=10**12)
    done = run("pack", "--json", cwd=folder)
    assert done.returncode == 3
    assert json.loads(done.stdout)["not_placed"] == ["m3"]
    assert "not placed: model 'm3' needs 931.3 GiB" in done.stderr
    models = [m.id for s in load_plan(folder / "plan.yaml").servers for m in s.models]
    assert sorted(models) == ["m1", "m2", "m4"]


def test_a_model_that_was_not_traced_is_named_and_the_rest_is_placed(folder: Path) -> None:
    path = folder / "models.yaml"
    path.write_text(path.read_text().replace("repeat: 4", "repeat: 6"))
    done = run("pack", "--json", cwd=folder)
    assert done.returncode == 3
    assert json.loads(done.stdout)["not_placed"] == ["m5", "m6"]
    assert "not placed: model 'm5' is not in store" in done.stderr
    assert len(load_plan(folder / "plan.yaml").servers[0].models) == 4


def test_too_much_compute_is_not_called_too_much_memory(folder: Path) -> None:
    path = folder / "models.yaml"
    path.write_text(path.read_text().replace("repeat: 4", "repeat: 4, expected_rps: 100000"))
    done = run("pack", cwd=folder)
    assert done.returncode == 3
    assert "lanes at its expected_rps" in done.stderr
    assert "raise replicas" in done.stderr


def test_a_fleet_file_chooses_types_and_overrides_prices(folder: Path) -> None:
    (folder / "fleet.yaml").write_text(
        "types:\n  m7i.large: {usd_per_hour: 0.01, relative_speed: 1.3}\n  c5.large:\nm_max: 0.5\n"
    )
    run("pack", "--fleet", "fleet.yaml", cwd=folder)
    plan = load_plan(folder / "plan.yaml")
    assert {server.instance_type for server in plan.servers} == {"m7i.large"}
    assert plan.fleet.usd_per_hour == 0.01
    assert not any("m7i.large" in text for text in plan.fleet.assumed)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("types: {x9.huge: }", "'x9.huge' is not in the catalogue"),
        ("typos: {}", "fleet.yaml:1: unknown key 'typos'"),
        ("types: {}", "fleet.yaml:1: types"),
        ("types: [inf1.xlarge]", "inf1.xlarge is an inf1 type: this version packs models for cpu"),
        ("types: {c5.large: {max: 3}}", "unknown key 'types.c5.large.max'"),
        ("types:\n  c5.large: {usd_per_hour: -1}", "fleet.yaml:2: types.c5.large.usd_per_hour"),
    ],
)
def test_a_fleet_file_that_is_wrong_is_named(text: str, says: str, folder: Path) -> None:
    (folder / "fleet.yaml").write_text(text)
    done = run("pack", "--fleet", "fleet.yaml", cwd=folder)
    assert done.returncode == 2
    assert says in done.stderr
