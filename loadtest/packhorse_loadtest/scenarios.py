"""The ways to ask: every model in turn, or random models at a fixed rate."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

import httpx

from packhorse_loadtest.recorder import Recorder
from packhorse_loadtest.targets import Fleet, Target

CONNECTIONS = 256


class Client:
    """Asks models over kept connections and records what came of it."""

    def __init__(self, recorder: Recorder, timeout_s: float) -> None:
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        self._http = httpx.AsyncClient(timeout=timeout_s, limits=limits)
        self._recorder = recorder

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def ask(self, target: Target, text: str, intended: float | None = None) -> None:
        """Send one request.

        Args:
            intended: When it should have been sent, on the clock of `time.perf_counter`; latency
                counts from then, so that a stall is not taken for silence.
        """
        start = time.perf_counter() if intended is None else intended
        self._recorder.sent += 1
        self._recorder.late_s = max(self._recorder.late_s, time.perf_counter() - start)
        try:
            response = await self._http.post(target.url, json={"inputs": target.inputs(text)})
        except httpx.TimeoutException:
            self._recorder.failed("timeout")
        except httpx.HTTPError as err:
            self._recorder.failed(f"connection_{type(err).__name__}")
        else:
            seconds = time.perf_counter() - start
            if response.status_code == 200:
                self._recorder.answered(
                    seconds, "load;" in response.headers.get("server-timing", "")
                )
            else:
                self._recorder.failed(_code(response))


async def run_seq(
    fleet: Fleet, texts: Sequence[str], timeout_s: float, advance: Callable[[float], None]
) -> tuple[Recorder, float]:
    """Ask every model once, one after the other.

    Returns:
        What was seen, and the seconds that it took.
    """
    recorder = Recorder()
    start = time.perf_counter()
    async with Client(recorder, timeout_s) as client:
        for number, target in enumerate(fleet.targets):
            await client.ask(target, texts[number % len(texts)])
            advance(1)
    return recorder, time.perf_counter() - start


async def run_rnd(
    fleet: Fleet,
    texts: Sequence[str],
    timeout_s: float,
    rate_rps: float,
    duration_s: float,
    seed: int,
    advance: Callable[[float], None],
) -> tuple[Recorder, float]:
    """Ask random models at a fixed mean rate, whether or not answers come back in time.

    Returns:
        What was seen, and the seconds until the last answer.
    """
    recorder = Recorder()
    draw = random.Random(seed)
    tasks: set[asyncio.Task[None]] = set()
    start = time.perf_counter()
    due = start + draw.expovariate(rate_rps)
    async with Client(recorder, timeout_s) as client:
        while due < start + duration_s:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            ask = client.ask(draw.choice(fleet.targets), draw.choice(texts), intended=due)
            task = asyncio.create_task(ask)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            gap = draw.expovariate(rate_rps)
            advance(min(gap, start + duration_s - due))
            due += gap
        if tasks:
            await asyncio.wait(tasks)
    return recorder, max(duration_s, time.perf_counter() - start)


def _code(response: httpx.Response) -> str:
    try:
        return str(response.json()["code"])
    except (ValueError, KeyError, TypeError):
        return f"http_{response.status_code}"
