"""What the parent hands to its workers, and what they hand back: lines of JSON.

A job holds every fact of a run, so that a worker needs neither settings, nor a store, nor a plan.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Asked(msgspec.Struct, frozen=True):
    """A model as a worker sees it.

    Attributes:
        url: Where it answers.
        bodies: The number of the job's body set that its requests are taken from.
    """

    url: str
    bodies: int


class Load(msgspec.Struct, frozen=True):
    """Which requests are sent, and when.

    Attributes:
        loop: "open": at set times, whether or not answers come; "closed": each of `concurrency`
            users asks, waits for the answer, thinks, and asks again.
        arrivals: Of an open loop; "trace" takes `times`.
        rate_rps: Mean requests a second, of all workers together.
        think_s: Seconds between an answer and the same user's next request.
        weights: How often each model is asked, as shares of their sum; none: all models in turn.
        order: Model by model, from a trace; none: drawn by weight.
        times: Seconds from the start, one for each of `order`.
        count: Most requests; None is no limit.
    """

    loop: Literal["open", "closed"]
    seed: int
    arrivals: Literal["poisson", "constant", "trace"] = "poisson"
    rate_rps: float = 0.0
    concurrency: int = 1
    think_s: float = 0.0
    weights: list[float] | None = None
    order: list[int] | None = None
    times: list[float] | None = None
    count: int | None = None


class Transport(msgspec.Struct, frozen=True):
    """How requests travel.

    Attributes:
        connections: Most of them open at once to one address, of all workers together.
        fresh_names: Resolve the host's name for every connection.
        insecure: Do not check certificates.
        headers: Further ones, as "Name: value".
    """

    timeout_s: float = 30.0
    connections: int = 1000
    reuse: bool = True
    fresh_names: bool = False
    insecure: bool = False
    headers: list[str] = []


class Job(msgspec.Struct, frozen=True):
    """One worker's part of a run.

    Attributes:
        bodies: Sets of request bodies (JSON); a model draws from the set that fits its task.
        warmup_s: Seconds of load that is sent first and not recorded.
        duration_s: Seconds of load that is recorded; None: until `load.count` are answered.
        drain_s: Seconds that answers may still take once nothing is sent any more.
    """

    load: Load
    transport: Transport
    asked: list[Asked]
    bodies: list[list[str]]
    warmup_s: float
    duration_s: float | None
    drain_s: float
    worker: int = 0
    workers: int = 1


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """What a worker has seen so far, said twice a second."""

    sent: int
    ok: int
    failed: int
    p90_ms: float | None


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """What a worker has seen.

    Attributes:
        warm: Latencies as an encoded HDR histogram; so are `cold` and `late`.
        late: How long after its time the tester got to sending each request.
        waited: Requests that found every connection busy.
        last_s: When the last answer came, in seconds from the start of what is recorded.
        cpu_share: CPU seconds of the worker per second.
        stopped_s: When it was told to stop, if it was.
        behind_s: How far behind its schedule it was when it gave up; None if it did not.
    """

    sent: int
    ok: int
    errors: dict[str, int]
    warm: str
    cold: str
    late: str
    waited: int
    last_s: float
    cpu_share: float
    stopped_s: float | None
    behind_s: float | None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why a worker cannot do its job."""

    reason: str


Said = Tick | Seen | Failed
