"""When which model is asked for what: a function of the seed, and of nothing that happens.

Requests are numbered. Every worker draws them all and sends those whose number falls to it, so any
number of workers together send what one would.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from packhorse_loadtest.job import Job, Load


class Planned(NamedTuple):
    """A request to come.

    Attributes:
        due_s: Seconds from the start; 0 in a closed loop.
        asked: The number of its model.
        body: A share (0 to 1) of the way through the set of bodies.
    """

    due_s: float
    asked: int
    body: float


def planned_requests(job: Job) -> Iterator[Planned]:
    """Yield the requests that fall to a worker."""
    load = job.load
    choose = random.Random(f"{load.seed} choices")
    cumulative = list(accumulate(load.weights)) if load.weights else []
    for number, due_s in enumerate(_arrivals(load)):
        if number == load.count:
            return
        share, body = choose.random(), choose.random()
        if number % job.workers == job.worker:
            if load.order is not None:
                asked = load.order[number % len(load.order)]
            elif cumulative:
                asked = bisect_right(cumulative, share * cumulative[-1])
                asked = min(asked, len(cumulative) - 1)
            else:
                asked = number % len(job.asked)
            yield Planned(due_s, asked, body)


def _arrivals(load: Load) -> Iterator[float]:
    if load.loop == "closed":
        while True:
            yield 0.0
    if load.arrivals == "trace":
        yield from load.times or ()
        return
    if load.arrivals == "constant":
        for number in itertools.count():
            yield number / load.rate_rps
    draw = random.Random(f"{load.seed} arrivals")
    due_s = 0.0
    while True:
        due_s += draw.expovariate(load.rate_rps)
        yield due_s
