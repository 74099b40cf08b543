"""Deploying to local processes, with real ones."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from packhorse.deployment import load_deployment
from packhorse.plan import Fleet, Plan, PlannedModel, Server
from tests.onnx_models import publish
from tests.packhorse.test_cli import run
from tests.server.test_lifespan import free_port

pytestmark = pytest.mark.integration


def write_plan(folder: Path, *servers: tuple[str, list[str]]) -> None:
    fleet = Fleet(
        usd_per_hour=0.085, bound_usd_per_hour=0.085, gap=0, worst_case_usd_per_hour=0.085,
        price_date="2026-07-20", certificate_sha256="0" * 64, assumed=[],
    )  # fmt: skip
    Plan(
        fleet=fleet,
        servers=[
            Server(
                name=name, family="cpu", instance_type="c5.large", lanes=2, memory_bytes=10**9,
                models=[PlannedModel(model, "v1", "cpu-fp32") for model in models],
            )
            for name, models in servers
        ],
    ).write(folder / "plan.yaml")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for name in ("a", "b", "c"):
        publish(str(tmp_path / "s"), tmp_path / name, name, broken=name == "c")
    (tmp_path / "packhorse.yaml").write_text(
        f"store: s\nport: {free_port()}\nmanagement_port: {free_port()}\ndrain_seconds: 0\n"
    )
    yield tmp_path
    run("deploy", "down", cwd=tmp_path)


def pids(folder: Path) -> dict[str, int | None]:
    deployment = load_deployment(folder / ".packhorse/deployment.json")
    return {name: server.pid for name, server in deployment.servers.items()}


def test_up_serves_status_and_logs_tell_and_down_ends_it(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a", "b"]))
    done = run("deploy", "up", cwd=folder)
    assert done.returncode == 0, done.stderr
    deployment = load_deployment(folder / ".packhorse/deployment.json")
    url = deployment.router_url
    assert url == deployment.servers["cpu-0"].url
    assert httpx.get(f"{url}/predictions/a?seq_0=w1").status_code == 200
    status = run("deploy", "status", "--json", cwd=folder)
    assert (status.returncode, json.loads(status.stdout)["servers"][0]["state"]) == (0, "ready")
    assert "available model=a" in run("deploy", "logs", "cpu-0", cwd=folder).stdout
    assert run("deploy", "logs", "cpu-9", cwd=folder).returncode == 2
    pid = pids(folder)["cpu-0"]
    assert run("deploy", "down", cwd=folder).returncode == 0
    assert not psutil.pid_exists(pid or 0)
    assert not (folder / ".packhorse/deployment.json").exists()
    assert "nothing is deployed" in run("deploy", "down", cwd=folder).stderr


def test_up_again_leaves_alone_what_fits_and_replaces_what_does_not(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a"]))
    run("deploy", "up", cwd=folder)
    first = pids(folder)
    run("deploy", "up", cwd=folder)
    assert pids(folder) == first
    write_plan(folder, ("cpu-0", ["a", "b"]))
    run("deploy", "up", cwd=folder)
    assert pids(folder) != first
    url = load_deployment(folder / ".packhorse/deployment.json").router_url
    assert httpx.get(f"{url}/predictions/b?seq_0=w1").status_code == 200


def test_a_changed_setting_replaces_the_server(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a"]))
    run("deploy", "up", cwd=folder)
    before = pids(folder)
    path = folder / "packhorse.yaml"
    path.write_text(path.read_text() + "max_body_bytes: 10\n")
    run("deploy", "up", cwd=folder)
    assert pids(folder) != before
    url = load_deployment(folder / ".packhorse/deployment.json").router_url
    assert httpx.post(f"{url}/predictions/a", json={"inputs": "w1"}).status_code == 413


def test_a_damaged_record_is_named_with_the_remedy(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a"]))
    (folder / ".packhorse").mkdir()
    (folder / ".packhorse/deployment.json").write_text("{")
    for command in ("up", "status", "down"):
        done = run("deploy", command, cwd=folder)
        assert (done.returncode, "is damaged: stop the servers" in done.stderr) == (2, True)
    (folder / ".packhorse/deployment.json").unlink()


def test_a_server_that_died_is_seen_and_started_again(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a"]))
    run("deploy", "up", cwd=folder)
    os.kill(pids(folder)["cpu-0"] or 0, signal.SIGKILL)
    time.sleep(0.3)
    status = run("deploy", "status", cwd=folder)
    assert (status.returncode, "down" in status.stdout) == (1, True)
    assert run("deploy", "up", cwd=folder).returncode == 0
    assert run("deploy", "status", cwd=folder).returncode == 0


def test_a_model_that_cannot_be_loaded_ends_up_with_the_reason(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a", "c"]))
    done = run("deploy", "up", cwd=folder)
    assert done.returncode == 1
    assert "server cpu-0 is not ready: models are not available: c" in done.stderr
    assert not (folder / ".packhorse/deployment.json").exists()


def test_a_port_in_use_is_named_and_nothing_is_started(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a"]))
    port = int((folder / "packhorse.yaml").read_text().split()[3])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        done = run("deploy", "up", cwd=folder)
    assert done.returncode == 1
    assert f"port {port} is in use" in done.stderr
    assert not (folder / ".packhorse/deployment.json").exists()


def test_a_start_that_cannot_succeed_leaves_what_runs_alone(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a"]))
    run("deploy", "up", cwd=folder)
    before = pids(folder)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("deploy", "up", "--port", str(taken.getsockname()[1]), cwd=folder)
    assert (done.returncode, "is in use" in done.stderr) == (1, True)
    assert pids(folder) == before
    assert run("deploy", "status", cwd=folder).returncode == 0


def test_the_log_with_its_token_is_its_owners_alone(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a"]))
    run("deploy", "up", cwd=folder)
    assert (folder / ".packhorse/logs/cpu-0.log").stat().st_mode & 0o077 == 0


def test_the_cost_is_that_of_the_deployed_plan(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a"]))
    run("deploy", "up", cwd=folder)
    text = (folder / "plan.yaml").read_text()
    (folder / "plan.yaml").write_text(text.replace("usd_per_hour: 0.085", "usd_per_hour: 85"))
    done = run("test", "seq", "--json", "-", cwd=folder)
    report = json.loads(done.stdout)
    deployed = 0.085 / 3600 / report["throughput_rps"] * 1e6
    assert report["usd_per_million"] == pytest.approx(deployed, rel=0.01)
    done = run("test", "seq", "--plan", "gone.yaml", cwd=folder)
    assert (done.returncode, "gone.yaml does not exist" in done.stderr) == (2, True)


def test_somebody_elses_process_is_never_stopped(folder: Path) -> None:
    write_plan(folder, ("cpu-0", ["a"]))
    run("deploy", "up", cwd=folder)
    path = folder / ".packhorse/deployment.json"
    pid = pids(folder)["cpu-0"]
    record = path.read_text()
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            path.write_text(record.replace(str(pid), str(other.pid)))
            assert run("deploy", "down", cwd=folder).returncode == 0
            assert other.poll() is None
        finally:
            other.kill()
            path.write_text(record)  # for the end of the test, which stops the real one


@pytest.mark.parametrize("runtime", ["docker", "kubernetes"])
def test_a_runtime_of_a_later_version_is_named(folder: Path, runtime: str) -> None:
    write_plan(folder, ("cpu-0", ["a"]))
    done = run("deploy", "up", "--runtime", runtime, cwd=folder)
    assert (done.returncode, f"runtime '{runtime}' is not supported" in done.stderr) == (2, True)
