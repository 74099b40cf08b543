"""The server as a process: ports, signals, the end (FAULTS 15)."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from packhorse.errors import DeployError
from packhorse_server.lifespan import bind
from tests.onnx_models import publish
from tests.running import wait_until

pytestmark = pytest.mark.integration


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    store: str, cache: Path, *arguments: str
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    port, management = free_port(), free_port()
    command = [
        sys.executable, "-m", "packhorse", "serve", "--store", store, "--cache", str(cache),
        "--port", str(port), "--management-port", str(management), "--management-token", "hush",
        *arguments,
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{management}"
    finally:
        process.kill()
        process.communicate()


def answers(url: str, status: int = 200) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == status
    except httpx.TransportError:
        return False


def test_sigterm_turns_unready_serves_on_and_loses_nothing(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a")
    with serving(store, tmp_path / "c", "--all", "--drain-seconds", "1.5") as (process, url, _):
        wait_until(lambda: answers(f"{url}/readyz"))
        outcomes: list[object] = []
        stopping = threading.Event()

        def ask() -> None:
            with httpx.Client(base_url=url, timeout=10) as http:
                while not stopping.is_set():
                    outcomes.append(http.get("/predictions/a?seq_0=w1").status_code)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: answers(f"{url}/readyz", 503))
        before = len(outcomes)
        time.sleep(0.5)
        stopping.set()
        for thread in threads:
            thread.join()
        assert len(outcomes) > before  # requests sent after the signal
        assert set(outcomes) == {200}
        assert process.wait(20) == 0


def test_a_signal_during_start_up_ends_it_within_seconds(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    for number in range(20):
        publish(store, tmp_path / str(number), f"m{number}")
    with serving(store, tmp_path / "c", "--all", "--drain-seconds", "0") as (process, url, _):
        wait_until(lambda: answers(f"{url}/livez"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_the_management_port_wants_its_token(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a", broken=True)
    arguments = ("--models", "a", "--retry-seconds", "250")
    with serving(store, tmp_path / "c", *arguments) as (_, url, management):
        wait_until(lambda: answers(f"{url}/startupz"))
        load = f"{management}/v2/repository/models/a/load"
        assert httpx.post(load).status_code == 401
        assert httpx.post(load, headers={"authorization": "Bearer wrong"}).status_code == 401
        headers = {"authorization": "Bearer hush"}
        publish(store, tmp_path / "a", "a")
        assert httpx.post(load, headers=headers).status_code == 202
        wait_until(lambda: answers(f"{url}/readyz"))
        assert httpx.post(f"{url}/v2/repository/models/a/load").status_code in (404, 405)
        assert httpx.post(load.replace("/a/", "/b/"), headers=headers).status_code == 404
        assert httpx.post(f"{management}/drain", headers=headers).status_code == 200
        assert answers(f"{url}/readyz", 503)


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "packhorse", "serve", "--store", str(tmp_path / "s"),
                   "--models", "a", "--port", port]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in line


def test_a_port_in_use_raises_before_anything_starts() -> None:
    sock = bind("127.0.0.1", 0, "--port")
    try:
        with pytest.raises(DeployError, match="choose another --port"):
            bind("127.0.0.1", sock.getsockname()[1], "--port")
    finally:
        sock.close()


def test_accepted_connections_send_small_answers_at_once() -> None:
    # Without the protocol number the event loop leaves Nagle's algorithm on: 40 ms an answer.
    sock = bind("127.0.0.1", 0, "--port")
    assert sock.proto == socket.IPPROTO_TCP
    sock.close()


def test_a_client_with_half_a_body_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a")
    arguments = ("--all", "--drain-seconds", "0", "--request-timeout-seconds", "2")
    with serving(store, tmp_path / "c", *arguments) as (process, url, _):
        wait_until(lambda: answers(f"{url}/readyz"))
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /predictions/a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(8) == 0
