"""A server whose models behave as their names say, in a process of its own.

`slow-100` answers after 100 ms; `once-100` does so the first time and at once from then on. It
lists its models, speaks both protocols, and tells what it saw at `/seen`. It speaks just enough
HTTP for a load tester, and it can be stopped in mid-run as a whole.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

ANSWER = b'[{"label":"yes","score":1.0}]'


class Stub:
    """The server's state."""

    def __init__(self, models: list[dict[str, Any]]) -> None:
        self.models = models
        self.seen: list[dict[str, Any]] = []
        self.connections = 0
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._request(number, reader, writer):
                pass
        writer.close()

    async def _request(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split()[1]
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if path == "/models":
            rows = [{"task": "text-classification", **model} for model in self.models]
            return _reply(writer, json.dumps({"models": rows}).encode())
        if path == "/seen":
            return _reply(writer, json.dumps(self.seen).encode())
        if path == "/metrics":
            return _reply(writer, self._metrics())
        if path.startswith("/v2/models/") and not path.endswith("/infer"):
            name = path.removeprefix("/v2/models/")
            inputs = next(m["inputs"] for m in self.models if m["id"] == name)
            return _reply(writer, json.dumps({"name": name, "inputs": inputs}).encode())
        name = path.removeprefix("/predictions/").removeprefix("/v2/models/").removesuffix("/infer")
        row = {"connection": number, "model": name, "path": path, "at": time.monotonic()}
        self.seen.append({**row, "headers": headers, "body": json.loads(body)})
        self.asked += 1
        keep = await self._answer(name, writer)
        return keep and headers.get("connection") != "close"

    async def _answer(self, name: str, writer: asyncio.StreamWriter) -> bool:
        kind, _, value = name.partition("-")
        if kind == "slow" or (kind == "once" and self.asked == 1):
            await asyncio.sleep(int(value) / 1000)
        elif kind == "never" or (kind == "last" and self.asked == int(value)):
            await asyncio.sleep(60)
        elif kind == "fifth" and self.asked % 5 == 0:
            return _reply(writer, b'{"error":"full","code":"queue_full"}', "429 Too Many Requests")
        elif kind == "status":
            return _reply(writer, b"<html>no JSON</html>", f"{value} Oh")
        elif kind == "reset":
            plug = writer.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        elif kind == "close":
            return False
        elif kind == "garbage":
            writer.write(b"what is this?\r\n\r\n")
            return True
        elif kind == "half":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
            return False
        elif kind == "unsized":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + ANSWER)
            return False
        elif kind == "chunked":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for chunk in (ANSWER[:5], ANSWER[5:], b""):
                writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await writer.drain()
                await asyncio.sleep(0.001)
            return True
        elif kind == "continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await asyncio.sleep(0.001)
        elif kind == "cold" and self.asked <= int(value):
            return _reply(
                writer, ANSWER, more="Server-Timing: queue;dur=1, infer;dur=2, load;dur=9"
            )
        return _reply(writer, ANSWER, more="Server-Timing: queue;dur=1, infer;dur=2")

    def _metrics(self) -> bytes:
        """Waiting takes 2 ms and inference 20 ms each time."""
        lines = []
        for part, seconds in (("queue", 0.002), ("inference", 0.02)):
            name = f"packhorse_{part}_duration_seconds"
            for bound in (0.001, 0.0025, 0.025):
                count = self.asked * (seconds <= bound)
                lines.append(f'{name}_bucket{{le="{bound}"}} {float(count)}')
            lines.append(f'{name}_bucket{{le="+Inf"}} {float(self.asked)}')
            lines.append(f"{name}_count {float(self.asked)}")
            lines.append(f"{name}_sum {self.asked * seconds}")
        return "\n".join(lines).encode() + b"\n"


def _reply(
    writer: asyncio.StreamWriter, body: bytes, status: str = "200 OK", more: str = "X-A: b"
) -> bool:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n\r\n"
    writer.write(head.encode() + body)
    return True


async def main(models: list[dict[str, Any]], certificate: str | None) -> None:
    stub = Stub(models)
    tls = None
    if certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0, ssl=tls, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, loop.stop)
    await asyncio.Event().wait()


class RunningStub:
    """A stub that runs."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url, self.process = url, process

    def seen(self) -> list[dict[str, Any]]:
        """What it was asked."""
        rows: list[dict[str, Any]] = httpx.get(f"{self.url}/seen", timeout=5, verify=False).json()
        return rows


@contextmanager
def stub(*models: str | dict[str, Any], certificate: Path | None = None) -> Iterator[RunningStub]:
    """Serve models until the block ends; a name alone is one that classifies texts."""
    rows = [model if isinstance(model, dict) else {"id": model} for model in models]
    command = [sys.executable, __file__, json.dumps(rows), str(certificate or "")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield RunningStub(f"http{'s' if certificate else ''}://127.0.0.1:{port}", process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2] or None))
