"""Many requests at once over a pool of connections, each with a time limit and one outcome."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from packhorse_loadtest.connection import CLOSED, Answer, Connection
from packhorse_loadtest.job import Transport


class Request:
    """One request on its way.

    Attributes:
        since: When its latency began, on the clock of `time.monotonic`.
        done: Called with the request and its answer, once.
    """

    __slots__ = ("connection", "data", "deadline", "done", "since", "task")

    def __init__(self, data: bytes, since: float, done: Callable[[Request, Answer], None]) -> None:
        self.data, self.since, self.done = data, since, done
        self.deadline = 0.0
        self.connection: Connection | None = None
        self.task: asyncio.Task[None] | None = None


class Address:
    """A server, with the heads of its requests."""

    def __init__(self, url: str, transport: Transport) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self.secure = parts.scheme == "https"
        self.port = parts.port or (443 if self.secure else 80)
        name = parts.netloc.rpartition("@")[2]
        lines = [f" HTTP/1.1\r\nHost: {name}", "User-Agent: packhorse-loadtest"]
        lines += [*transport.headers, "Content-Type: application/json"]
        lines += [] if transport.reuse else ["Connection: close"]
        self._rest = "\r\n".join(lines)

    def head(self, url: str) -> bytes:
        """Return a request's bytes up to its length."""
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return f"POST {path}{self._rest}\r\nContent-Length: ".encode()


class Client:
    """Connections to one address.

    Args:
        connections: Most of them at once; further requests wait.
        resolve: Looks up a host and a port, as `loop.getaddrinfo` does.
    """

    def __init__(
        self,
        address: Address,
        transport: Transport,
        connections: int,
        resolve: Callable[[str, int], Any] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._address, self._transport, self._most = address, transport, connections
        self._resolve = resolve or self._lookup
        self._known: list[Any] = []
        self._tls = _tls(transport.insecure) if address.secure else None
        self._idle: list[Connection] = []
        self._open = 0
        self._waiting: deque[Request] = deque()
        self._running: deque[Request] = deque()
        self._busy: dict[Connection, Request] = {}
        self._sweep_s = min(0.02, transport.timeout_s / 20)
        self._sweeper = self._loop.call_later(self._sweep_s, self._sweep)
        self.waited = 0
        """Requests that found every connection busy."""

    def submit(self, request: Request) -> None:
        """Send a request as soon as a connection is free."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                self._start(request, connection)
                return
        if self._open < self._most:
            self._open += 1
            self._limit(request)
            request.task = self._loop.create_task(self._connect(request))
        else:
            self.waited += 1
            self._waiting.append(request)

    def close(self) -> None:
        """Drop every connection; what is outstanding has no outcome."""
        self._sweeper.cancel()
        for request in [*self._running, *self._waiting]:
            request.done = _ignore
            if request.task is not None:
                request.task.cancel()
        self._waiting.clear()
        for connection in [*self._idle, *self._busy]:
            connection.abort()

    def _limit(self, request: Request) -> None:
        request.deadline = time.monotonic() + self._transport.timeout_s
        self._running.append(request)

    def _start(self, request: Request, connection: Connection) -> None:
        if not request.deadline:
            self._limit(request)
        request.connection = connection
        self._busy[connection] = request
        connection.send(request.data, self._answered)

    def _answered(self, connection: Connection, answer: Answer) -> None:
        request = self._busy.pop(connection)
        if connection.usable:
            if self._waiting:
                self._start(self._waiting.popleft(), connection)
            else:
                self._idle.append(connection)
        self._end(request, answer)

    def _lost(self, connection: Connection) -> None:
        """Let a waiting request have the place of a connection that is gone."""
        self._busy.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)
        self._freed()

    def _freed(self) -> None:
        self._open -= 1
        if self._waiting:
            self._open += 1
            request = self._waiting.popleft()
            self._limit(request)
            request.task = self._loop.create_task(self._connect(request))

    def _end(self, request: Request, answer: Answer) -> None:
        request.deadline = -1.0
        request.connection = request.task = None
        request.data = b""
        request.done(request, answer)

    async def _connect(self, request: Request) -> None:
        try:
            connection = await self._opened()
        except OSError as err:  # a name that is not resolved and TLS that fails are ones too
            self._freed()
            if request.deadline > 0:
                self._end(request, Answer(_kind(err)))
        except asyncio.CancelledError:
            self._freed()
            raise
        else:
            request.task = None
            if connection.usable:
                self._start(request, connection)
            else:  # closed as soon as it was open
                self._end(request, CLOSED)

    async def _opened(self) -> Connection:
        if not self._known or self._transport.fresh_names:
            found = await self._resolve(self._address.host, self._address.port)
            self._known = list(found)
        error: OSError = OSError("the name has no address")
        for place, known in enumerate(self._known):
            try:
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self._lost, self._transport.reuse), known[4][0],
                    self._address.port, ssl=self._tls,
                    server_hostname=self._address.host if self._tls else None,
                )  # fmt: skip
            except OSError as err:
                error = err
            else:
                self._known.insert(0, self._known.pop(place))
                return connection
        raise error

    async def _lookup(self, host: str, port: int) -> Any:
        return await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    def _sweep(self) -> None:
        """Fail what is over its time: requests end in the order in which they began."""
        now = time.monotonic()
        running = self._running
        while running and running[0].deadline <= now:
            request = running.popleft()
            if request.deadline < 0:  # it has an answer
                continue
            connection, task = request.connection, request.task
            self._end(request, Answer("timeout"))
            if connection is not None:
                self._busy.pop(connection, None)
                connection.abort()
            elif task is not None:
                task.cancel()
        self._sweeper = self._loop.call_later(self._sweep_s, self._sweep)


def _kind(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "name_not_resolved"
    if isinstance(error, ssl.SSLError):
        return "tls"
    if isinstance(error, ConnectionRefusedError):
        return "connection_refused"
    if isinstance(error, ConnectionResetError):
        return "connection_reset"
    return "cannot_connect"


def _tls(insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _ignore(request: Request, answer: Answer) -> None:
    """Take no outcome."""
