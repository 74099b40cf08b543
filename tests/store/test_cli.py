import json
from pathlib import Path

from packhorse.ids import blob_key
from tests.onnx_models import publish
from tests.packhorse.test_cli import run


def test_list_is_one_json_object(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a/b", labels=["x", "y"])
    done = run("models", "list", "--json", "--store", str(tmp_path / "s"))
    assert json.loads(done.stdout) == {
        "models": [
            {"id": "a/b", "version": "v1", "variant": "cpu-fp32", "task": "text-classification",
             "precision": "fp32", "bytes": artifact.total_bytes}
        ]
    }  # fmt: skip


def test_show_prints_the_record(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    done = run("models", "show", "a", "--json", "--store", str(tmp_path / "s"))
    assert done.stdout.encode() == artifact.encode()
    done = run("models", "show", "a", "--store", str(tmp_path / "s"))
    assert "a  version v1, cpu-fp32, feature-extraction" in done.stdout
    assert "P50 1.0 ms" in done.stdout


def test_verify_names_the_models_and_the_blob(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    artifact = publish(store, tmp_path / "a", "a")
    publish(store, tmp_path / "b", "b", seed=1)
    assert run("models", "verify", "--store", store).returncode == 0
    digest = next(f.sha256 for f in artifact.files if f.path == "model.onnx")
    path = tmp_path / "s" / blob_key(digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    done = run("models", "verify", "--store", store)
    assert done.returncode == 1
    assert f"a: model.onnx: blob {digest}" in done.stdout
    assert "b:" not in done.stdout
    assert run("models", "verify", "b", "--store", store).returncode == 0
    assert run("models", "verify", "c", "--store", store).returncode == 2


def test_a_broken_record_does_not_hide_the_others(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a")
    publish(store, tmp_path / "b", "b")
    (tmp_path / "s/models/a/v1/cpu-fp32/artifact.json").write_text("{")
    done = run("models", "list", "--store", store)
    assert done.returncode == 1
    assert "b " in done.stdout
    assert "models/a/v1/cpu-fp32/artifact.json is not a valid record" in done.stderr
