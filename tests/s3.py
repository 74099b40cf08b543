"""A real S3 server on loopback, and a proxy before it that injects one fault after another."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError, URLError

IDENTITIES = {
    "identities": [
        {
            "name": "admin",
            "credentials": [{"accessKey": "ADMIN", "secretKey": "secret"}],
            "actions": ["Admin", "Read", "Write", "List"],
        },
        {
            "name": "stranger",
            "credentials": [{"accessKey": "STRANGER", "secretKey": "secret"}],
            "actions": ["Read:other"],
        },
        {"name": "anonymous", "actions": ["Read:public", "List:public"]},
    ]
}


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, low enough that +10000 (the server's gRPC) is one too."""
    held, ports = [], []
    for port in range(21000, 30000):
        pair = [socket.socket(), socket.socket()]
        try:
            for offset, sock in zip((0, 10000), pair, strict=True):
                sock.bind(("127.0.0.1", port + offset))
        except OSError:
            for sock in pair:
                sock.close()
            continue
        held += pair
        ports.append(port)
        if len(ports) == count:
            break
    for sock in held:
        sock.close()
    return ports


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Run the server until the block ends; yields its URL."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or "weed"
    (folder / "s3.json").write_text(json.dumps(IDENTITIES))
    master, volume, filer, s3 = free_ports(4)
    flags = [
        f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
        f"-volume.port={volume}", f"-filer.port={filer}", "-s3", f"-s3.port={s3}",
        "-s3.port.iceberg=0", "-s3.port.lance=0",
        f"-s3.config={folder / 's3.json'}", "-s3.autoCreateBucket=false",
        "-volume.max=0", "-master.volumeSizeLimitMB=256", "-master.telemetry=false",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([weed, "server", *flags], stdout=log, stderr=log, cwd=folder)
    try:
        end = time.monotonic() + 60
        while not _answers(f"http://127.0.0.1:{s3}"):
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < end, "the S3 server did not start"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{s3}"
    finally:
        process.kill()  # it holds nothing that anyone wants; asked to end, it takes 20 s
        process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except HTTPError:
        return True
    except (URLError, OSError):
        return False
    return True


Headers = list[tuple[str, str]]
Fault = Callable[[BaseHTTPRequestHandler, int, Headers, bytes], bool]
"""Given a request, its answer's status, headers and body; True where it has answered."""


class _Quiet(ThreadingHTTPServer):
    """Says nothing of clients that hang up, as killed ones do."""

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type] # as it came


@contextmanager
def fault_proxy(
    server: str,
    fault: Fault = lambda *_: False,
    times: int = 0,
    matching: str = "GET .*/blobs/",
    tls: ssl.SSLContext | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """Pass requests on; the first `times` of those that match meet the fault.

    Yields:
        Its URL, and the requests that came, such as `GET /bucket/key bytes=5-`.
    """
    left = [times]
    seen: list[str] = []
    host = server.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            there = HTTPConnection(host, timeout=30)
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                there.putheader(name, value)
            there.endheaders(body)
            answer = there.getresponse()
            data = answer.read()
            there.close()
            seen.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
            headers = [(k, v) for k, v in answer.getheaders() if k.lower() != "connection"]
            if left[0] > 0 and re.match(matching, f"{self.command} {self.path}"):
                left[0] -= 1
                if fault(self, answer.status, headers, data):
                    self.close_connection = True
                    return
            send(self, answer.status, headers, data)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = forward  # noqa: N815 # the library's names

    proxy = _Quiet(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    if tls is not None:
        proxy.socket = tls.wrap_socket(proxy.socket, server_side=True)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{proxy.server_port}", seen
    finally:
        proxy.shutdown()
        proxy.server_close()


def send(
    handler: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], data: bytes
) -> None:
    """Answer as the server did."""
    handler.send_response_only(status)
    for name, value in headers:
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
