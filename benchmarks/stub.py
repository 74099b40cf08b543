"""A server that answers everything after a set time: `python -m benchmarks.stub PORT SECONDS`."""

from __future__ import annotations

import asyncio
import sys

import httptools
import uvloop

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n[{"label":"yes","score":1.0}]'


class Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._loop.call_later(self._seconds, self._transport.write, ANSWER)


async def main(port: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answering(seconds), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2])))
