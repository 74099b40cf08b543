"""Starts the workers of a run, follows them, and adds up what they saw."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import cast

import msgspec

from packhorse.errors import InvalidInput, PackhorseError
from packhorse_loadtest.job import Failed, Job, Said, Seen, Tick
from packhorse_loadtest.recorder import Recorder

LEAD_S = 0.05
"""Time for every worker to hear when the run starts."""
LONGEST_LINE = 2**26
GRACE_S = 5.0
"""What a worker may take beyond the time of its job."""


class WorkerLost(PackhorseError):
    """A worker ended without a result."""


def run_load(
    job: Job, workers: int, progress: Callable[[dict[int, Tick]], None] | None = None
) -> Recorder:
    """Run a job on worker processes, until it is done or the user interrupts it.

    Args:
        job: Of all workers together.
        progress: Called with the last tick of each worker.

    Raises:
        InvalidInput: The tester cannot reach the rate.
        WorkerLost: A worker died.
    """
    recorder = asyncio.run(_run(job, workers, progress or (lambda ticks: None)))
    if recorder.behind_s is not None:
        raise InvalidInput(
            f"the tester cannot send {job.load.rate_rps:g} requests a second: it fell "
            f"{recorder.behind_s:.1f} s behind after {recorder.sent} with {workers} worker(s) on "
            f"{recorder.cpu_share:.0%} of a core each; lower --rate, or raise --workers"
        )
    return recorder


async def _run(job: Job, workers: int, progress: Callable[[dict[int, Tick]], None]) -> Recorder:
    command = [sys.executable, "-m", "packhorse_loadtest.worker"]
    started = []
    try:
        for _ in range(workers):
            # In a session of its own: what a terminal sends on Ctrl-C is for this process only.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=LONGEST_LINE,
                start_new_session=True,
            )  # fmt: skip
            started.append(process)
        return await _follow(job, started, progress)
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
        for process in started:
            await process.wait()


async def _follow(
    job: Job,
    started: list[asyncio.subprocess.Process],
    progress: Callable[[dict[int, Tick]], None],
) -> Recorder:
    for number, process in enumerate(started):
        part = msgspec.structs.replace(job, worker=number, workers=len(started))
        await _tell(process, msgspec.json.encode(part))
    for process in started:
        await _line(process)
    start = time.monotonic() + LEAD_S
    for process in started:
        await _tell(process, repr(start).encode())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, _interrupt, started)
    ticks: dict[int, Tick] = {}

    async def result(number: int, process: asyncio.subprocess.Process) -> Seen:
        while True:
            said = msgspec.json.decode(await _line(process), type=Said)
            if isinstance(said, Seen):
                return said
            if isinstance(said, Failed):
                raise WorkerLost(f"a load worker failed: {said.reason}")
            ticks[number] = said
            progress(ticks)

    try:
        results = asyncio.gather(*(result(n, p) for n, p in enumerate(started)))
        longest_s = None
        if job.duration_s is not None:
            longest_s = job.warmup_s + job.duration_s + job.drain_s + LEAD_S + GRACE_S
        seen = await asyncio.wait_for(results, longest_s)
    except asyncio.TimeoutError as err:
        raise WorkerLost("a load worker did not end on time") from err
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    recorder = Recorder()
    for one in seen:
        recorder.add(one)
    return recorder


async def _tell(process: asyncio.subprocess.Process, line: bytes) -> None:
    stdin = cast(asyncio.StreamWriter, process.stdin)
    stdin.write(line + b"\n")
    await stdin.drain()


async def _line(process: asyncio.subprocess.Process) -> bytes:
    line = await cast(asyncio.StreamReader, process.stdout).readline()
    if not line:
        raise WorkerLost(f"a load worker ended early, with {await process.wait()}")
    return line


def _interrupt(started: list[asyncio.subprocess.Process]) -> None:
    for process in started:
        if process.returncode is None:
            process.terminate()
