"""Tracing in an image, with a stand-in for docker that runs the command here."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from packhorse.cli import packhorse
from packhorse.settings import Settings
from packhorse_trace import container
from packhorse_trace.container import docker_command, missing_compilers
from tests.trace.tiny import make_spec, save_tiny

DOCKER = f"""#!{sys.executable}
import json, os, sys
open(os.environ["DOCKER_LOG"], "w").write(json.dumps(sys.argv))
at = sys.argv.index("trace")
os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "packhorse", *sys.argv[at:]])
"""


def test_the_command_mounts_all_that_is_read_and_names_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    source = tmp_path.parent / "elsewhere/m"
    source.mkdir(parents=True, exist_ok=True)
    spec = make_spec(source, "org/m", processors=("inf2",))
    settings = Settings(catalog=Path("models.yaml"), store="s3://b/p", registry="reg.example/")
    command = docker_command("inf2", [spec], settings, force=True, chosen=True)
    assert command[:3] == ["docker", "run", "--rm"]
    assert f"{os.getuid()}:{os.getgid()}" in command
    assert f"{tmp_path}:{tmp_path}" in command
    assert f"{source}:{source}:ro" in command
    assert "AWS_SECRET_ACCESS_KEY" in command
    assert not any("hush" in part for part in command)
    at = next(i for i, part in enumerate(command) if part.startswith("reg.example/packhorse-inf2:"))
    assert command[at + 1 :] == [
        "packhorse", "trace", "run", "models.yaml", "--only-processor", "inf2", "--json",
        "--store", "s3://b/p", "--processor", "cpu", "--force", "--only", "org/m",
    ]  # fmt: skip


def test_what_compilers_are_missing_is_known_without_importing_them() -> None:
    assert missing_compilers({"cpu", "gpu", "inf1", "inf2"}) == {"inf1", "inf2"}


@pytest.mark.integration
def test_models_whose_compiler_is_elsewhere_are_traced_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin/docker"
    docker.write_text(DOCKER)
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_LOG", str(tmp_path / "log"))
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "m")
    (tmp_path / "models.yaml").write_text(
        "models: [{id: m, source: ./m, task: text-classification, processors: [cpu, gpu],"
        " precision: fp32}]"
    )
    monkeypatch.setattr(container, "COMPILERS", {**container.COMPILERS, "gpu": "no_such_compiler"})
    done = CliRunner().invoke(packhorse, ["trace", "--container", "auto", "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert {(row["processor"], row["status"]) for row in found["models"]} == {
        ("cpu", "traced"), ("gpu", "traced"),
    }  # fmt: skip
    assert json.loads((tmp_path / "log").read_text())[1:3] == ["run", "--rm"]


@pytest.mark.integration
def test_without_docker_the_image_is_named_and_the_rest_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "m")
    (tmp_path / "models.yaml").write_text(
        "models: [{id: m, source: ./m, task: text-classification, processors: [inf2, cpu],"
        " precision: auto}]"
    )
    done = CliRunner().invoke(packhorse, ["trace", "--container", "auto", "--json"])
    assert done.exit_code == 1
    rows = {row["processor"]: row for row in json.loads(done.stdout)["models"]}
    assert rows["cpu"]["status"] == "traced"
    assert "torch_neuronx is not installed, and neither is docker" in rows["inf2"]["reason"]


def test_an_image_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!{sys.executable}\nimport sys\nsys.exit(125)\n")
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    spec = make_spec(tmp_path, "m", processors=("inf2",))
    (result,) = container.trace_in_image("inf2", [spec], Settings(), force=False, chosen=False)
    assert "could not trace in image packhorse-inf2" in result.reason
    assert "make build PROCESSOR=inf2 makes the image" in result.reason
