"""A real server on a real port, in a thread of the test, so that its engine can be looked into."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn

from packhorse.settings import Settings
from packhorse.store.repository import Repository
from packhorse_server.engine import Engine
from packhorse_server.http.app import serving_app
from packhorse_server.lifespan import Listener, bind
from packhorse_server.registry import Registry


class Running:
    """A server that runs."""

    def __init__(self, engine: Engine, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.engine, self.url, self.loop = engine, url, loop
        self.http = httpx.Client(base_url=url, timeout=30)

    def ask(self, model_id: str, inputs: object, **parameters: object) -> httpx.Response:
        """Ask a model."""
        body = {"inputs": inputs, "parameters": parameters}
        return self.http.post(f"/predictions/{model_id}", json=body)

    def settled(self) -> bool:
        """Whether every model has been tried."""
        return bool(self.http.get("/startupz").json()["started"])


@contextmanager
def running(
    store: str, cache: Path, models: list[str], wait: bool = True, **settings: object
) -> Iterator[Running]:
    """Serve models of a store until the block ends."""
    chosen = Settings(store=store, cache=cache, **settings)
    sock = bind("127.0.0.1", 0, "--port")
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    started = threading.Event()
    held: list[tuple[Engine, Listener, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        engine = Engine(Registry(models), Repository.open(store), chosen)
        listener = Listener(
            uvicorn.Config(serving_app(engine), access_log=False, log_config=None, lifespan="off")
        )
        held.append((engine, listener, asyncio.get_running_loop()))
        await engine.start()
        started.set()
        await listener.serve([sock])
        await engine.stop()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert started.wait(10)
    engine, listener, loop = held[0]
    server = Running(engine, url, loop)
    try:
        if wait:
            wait_until(server.settled)
        yield server
    finally:
        server.http.close()
        listener.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition, and fail when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
