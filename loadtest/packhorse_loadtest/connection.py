"""HTTP/1.1 over one connection, a request at a time, with nothing between socket and parser."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import httptools
import msgspec

LONGEST_ERROR = 4096
"""Bytes of a failure's body that are kept to find its code in."""


class Answer:
    """What came back: a status, or the kind of failure that came instead of one."""

    __slots__ = ("cold", "error")

    def __init__(self, error: str | None, cold: bool = False) -> None:
        self.error, self.cold = error, cold


OK, COLD = Answer(None), Answer(None, cold=True)
BAD_RESPONSE, CLOSED, RESET = (
    Answer("bad_response"), Answer("connection_closed"), Answer("connection_reset"),
)  # fmt: skip


class Connection(asyncio.Protocol):
    """Sends bytes, and calls back with an answer once.

    Attributes:
        usable: Another request can be sent.

    Args:
        lost: Called once, when the connection is gone.
        reuse: Keep it for further requests, if the server does.
    """

    def __init__(self, lost: Callable[[Connection], None], reuse: bool = True) -> None:
        self.usable = True
        self._reuse = reuse
        self._lost = lost
        self._transport: asyncio.Transport
        self._answered: Callable[[Connection, Answer], None] | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._reset()

    def send(self, data: bytes, answered: Callable[[Connection, Answer], None]) -> None:
        """Send a request; the connection must be usable and idle."""
        self._answered = answered
        self._transport.write(data)

    def abort(self) -> None:
        """Close at once, without calling back."""
        self._answered = None
        self.usable = False
        self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._finish(BAD_RESPONSE, keep=False)
            return
        if self._complete:
            self._finish(self._judge(), self._keep and self._reuse)
        elif self._answered is None:  # bytes that nobody asked for
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if self._answered is not None:
            if self._until_end and exc is None:
                self._finish(self._judge(), keep=False)
            else:
                self._finish(CLOSED if exc is None else RESET, keep=False)
        self._lost(self)

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"server-timing":
            self._cold = any(part.strip().startswith(b"load") for part in value.split(b","))
        elif name in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._until_end = not self._sized and self._status >= 200

    def on_body(self, body: bytes) -> None:
        if self._status >= 300 and len(self._body) < LONGEST_ERROR:
            self._body += body

    def on_message_complete(self) -> None:
        if self._status >= 200:
            self._complete = True
            self._keep = bool(self._parser.should_keep_alive())  # known only here
        else:
            self._reset()  # "100 Continue" and its like: the answer is still to come

    def _reset(self) -> None:
        self._status = 0
        self._body = b""
        self._cold = self._sized = self._complete = self._keep = self._until_end = False

    def _judge(self) -> Answer:
        if 200 <= self._status < 300:
            return COLD if self._cold else OK
        code = None
        with contextlib.suppress(msgspec.DecodeError, AttributeError):
            code = msgspec.json.decode(self._body).get("code")
        return Answer(code if isinstance(code, str) and code else f"http_{self._status}")

    def _finish(self, answer: Answer, keep: bool) -> None:
        answered, self._answered = self._answered, None
        self._reset()
        if not keep:
            self.usable = False
            self._transport.abort()
        if answered is not None:
            answered(self, answer)
