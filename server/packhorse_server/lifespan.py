"""Running the server: ports, start, and an end in which no accepted request is lost.

On SIGTERM the server turns unready and goes on serving through the drain window, so that load
balancers stop sending first; then it closes its ports, finishes what it accepted, and exits 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import Iterator

import uvicorn

from packhorse.errors import DeployError
from packhorse.settings import Settings
from packhorse_server.engine import Engine
from packhorse_server.http.app import serving_app
from packhorse_server.http.management import management_app

log = logging.getLogger(__name__)


class Listener(uvicorn.Server):
    """A uvicorn server that leaves signals to us: there are two of them in this process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, where uvicorn would take SIGTERM as "close at once"."""
        yield


def serve(engine: Engine, settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        DeployError: A port is taken.
    """
    sockets = [bind(settings.host, settings.port, "--port")]
    management_socket = None
    if settings.management_port:
        management_socket = bind("127.0.0.1", settings.management_port, "--management-port")
    asyncio.run(_run(engine, settings, sockets, management_socket))
    # All that was accepted is answered. A pull or a load that hangs in a thread cannot be
    # interrupted, and an ordinary exit would wait for it.
    logging.shutdown()
    os._exit(0)


async def _run(
    engine: Engine,
    settings: Settings,
    sockets: list[socket.socket],
    management_socket: socket.socket | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listeners = [Listener(_config(serving_app(engine)))]
    runs = [asyncio.create_task(listeners[0].serve(sockets))]
    if management_socket is not None:
        token = settings.management_token or secrets.token_urlsafe(24)
        if not settings.management_token:
            log.info("management port=%d token=%s", settings.management_port, token)
        listeners.append(Listener(_config(management_app(engine, token))))
        runs.append(asyncio.create_task(listeners[1].serve([management_socket])))
    await engine.start()
    log.info("listening host=%s port=%d models=%d", settings.host, settings.port,
             len(engine.registry))  # fmt: skip
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([stopped, *runs], return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        engine.draining = True
        log.info("draining seconds=%g", settings.drain_seconds)
        stop.clear()
        with contextlib.suppress(asyncio.TimeoutError):  # a second signal ends the window
            await asyncio.wait_for(stop.wait(), settings.drain_seconds)
    stopped.cancel()
    for listener in listeners:
        listener.should_exit = True
    again = asyncio.create_task(stop.wait())
    end = loop.time() + settings.request_timeout_seconds  # no accepted request may take longer
    while not again.done() and not all(run.done() for run in runs) and loop.time() < end:
        await asyncio.sleep(0.02)
    for listener in listeners:
        listener.force_exit = True
    again.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    await engine.stop()
    log.info("stopped")


def _config(app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type] # uvicorn's type for it is narrower than ASGI's
        access_log=False, log_config=None, lifespan="off", server_header=False,
        timeout_keep_alive=75,
    )  # fmt: skip


def bind(host: str, port: int, flag: str) -> socket.socket:
    """Take a port before anything slow begins.

    Raises:
        DeployError: It is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because the event loop turns Nagle's algorithm off only where it is:
    # without, every answer on a kept connection came 40 ms late (measured).
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as err:
        sock.close()
        raise DeployError(
            f"cannot listen on {host}:{port}: {err.strerror}: stop what uses it (packhorse deploy "
            f"down, if it is ours), or choose another {flag}"
        ) from err
    return sock
