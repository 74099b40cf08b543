"""The load report: its record (DESIGN 12.8), its table, and what makes a run fail."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from packhorse.errors import InvalidInput
from packhorse.units import parse_seconds
from packhorse_loadtest.job import Job
from packhorse_loadtest.loops import BUSY_SHARE
from packhorse_loadtest.recorder import Latency, Recorder, latency_of
from packhorse_loadtest.server_side import ServerSide
from packhorse_loadtest.targets import Fleet

LATE_MS = 10.0
"""A tester whose requests leave this late has measured itself."""
_CONDITION = re.compile(r"\s*(min|p50|p90|p95|p99|max|errors)\s*>\s*(\S+)\s*")


class Requests(msgspec.Struct):
    """How many requests were sent, answered well, and never answered."""

    sent: int
    ok: int
    unfinished: int


class Cold(msgspec.Struct):
    """Requests whose model had to be loaded first."""

    requests: int
    latency_ms: Latency


class Tester(msgspec.Struct):
    """How the tester itself fared.

    Attributes:
        late_ms: How long after its time a request of an open loop was sent.
        cpu_share: CPU seconds per second of the busiest worker.
        waited: Requests that found every connection busy.
        warnings: Why the figures may be the tester's own, or what else to know of them.
    """

    workers: int
    late_ms: Latency
    cpu_share: float
    waited: int
    warnings: list[str]


class Report(msgspec.Struct):
    """What a run has shown. `usd_per_million` is None where no plan says the price.

    Attributes:
        loop: "open": latency counts from when a request should have been sent. "closed": from
            when it was sent, so a server that stalls is asked less, and its stall shows once for
            each user.
        sent_rps: Requests sent a second, of `target_rps` that were asked for.
        interrupted: The user ended the run early.
    """

    loop: str
    duration_s: float
    interrupted: bool
    throughput_rps: float
    target_rps: float | None
    sent_rps: float
    requests: Requests
    errors: dict[str, int]
    latency_ms: Latency
    cold: Cold
    models: int
    models_per_instance: float
    usd_per_million: float | None
    server: ServerSide | None
    tester: Tester


def make_report(
    recorder: Recorder,
    job: Job,
    fleet: Fleet,
    workers: int,
    server: ServerSide | None = None,
    notes: tuple[str, ...] = (),
) -> Report:
    """Sum up a run."""
    sending_s = recorder.stopped_s
    if sending_s is None:
        sending_s = recorder.last_s if job.duration_s is None else job.duration_s
    seconds = max(sending_s, recorder.last_s)
    throughput = recorder.ok / seconds if seconds else 0.0
    price = None
    if fleet.usd_per_hour is not None and throughput:
        price = round(fleet.usd_per_hour / 3600 / throughput * 1e6, 6)
    late = latency_of(recorder.late)
    tester = Tester(workers, late, round(recorder.cpu_share, 3), recorder.waited, [*notes])
    is_open = job.load.loop == "open"
    report = Report(
        loop=job.load.loop,
        duration_s=round(seconds, 3),
        interrupted=recorder.stopped_s is not None,
        throughput_rps=round(throughput, 3),
        target_rps=job.load.rate_rps if is_open and job.load.rate_rps else None,
        sent_rps=round(recorder.sent / sending_s, 3) if sending_s else 0.0,
        requests=Requests(recorder.sent, recorder.ok, recorder.unfinished),
        errors=dict(sorted(recorder.errors.items())),
        latency_ms=latency_of(recorder.everything()),
        cold=Cold(recorder.cold.get_total_count(), latency_of(recorder.cold)),
        models=fleet.models,
        models_per_instance=round(fleet.models / max(1, len(fleet.servers)), 3),
        usd_per_million=price,
        server=server,
        tester=tester,
    )
    tester.warnings += _warnings(report, job)
    return report


def _warnings(report: Report, job: Job) -> list[str]:
    tester = report.tester
    found = []
    if tester.late_ms.p99 is not None and tester.late_ms.p99 > LATE_MS:
        found.append(
            f"the tester itself sent late (p99 {tester.late_ms.p99:.1f} ms), and latencies count "
            "from the intended time: lower --rate, or raise --workers"
        )
    elif tester.late_ms.max is not None and tester.late_ms.max > 10 * LATE_MS:
        found.append(f"the tester itself stood still once, for {tester.late_ms.max:.0f} ms")
    if tester.cpu_share > BUSY_SHARE:
        found.append(
            f"a worker took {tester.cpu_share:.0%} of its core: it may have measured itself; "
            "raise --workers, or give it a machine of its own"
        )
    if tester.waited and report.loop == "open":
        found.append(
            f"{tester.waited} requests waited for one of {job.transport.connections} connections "
            "to be free; their latency includes that (--connections)"
        )
    return found


@dataclass(frozen=True)
class Condition:
    """What makes a run fail, as `--fail-if` has it.

    Attributes:
        limit: Milliseconds, or a number or a share of failures.
    """

    name: str
    limit: float
    is_share: bool = False

    def fault(self, report: Report) -> str:
        """Say how it is broken; empty where it is not."""
        if self.name == "errors":
            failures = sum(report.errors.values()) + report.requests.unfinished
            if self.is_share:
                share = failures / max(1, report.requests.sent)
                broken = share > self.limit
                return f"errors are {share:.2%}, allowed are {self.limit:.2%}" if broken else ""
            broken = failures > self.limit
            return f"errors are {failures}, allowed are {self.limit:.0f}" if broken else ""
        value: float | None = getattr(report.latency_ms, self.name)
        if value is None or value > self.limit:
            found_ms = "unknown" if value is None else f"{value:.1f} ms"
            return f"{self.name} is {found_ms}, allowed are {self.limit:g} ms"
        return ""


def parse_condition(text: str) -> Condition:
    """Read 'p90>100ms', 'errors>0' or 'errors>1%'.

    Raises:
        InvalidInput: Not such a condition.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise InvalidInput(f"--fail-if {text!r}: write 'p90>100ms', 'errors>0' or 'errors>1%'")
    name, value = match[1], match[2]
    if name == "errors":
        number = value.removesuffix("%")
        is_share = number != value
        if not re.fullmatch(r"\d+(\.\d+)?" if is_share else r"\d+", number):
            raise InvalidInput(f"--fail-if {text!r}: errors are a whole number or a percentage")
        return Condition(name, float(number) / (100 if is_share else 1), is_share)
    if value[-1:].isdigit():
        raise InvalidInput(f"--fail-if {text!r}: give the unit, such as {text}ms")
    return Condition(name, parse_seconds(value) * 1000)


def table(report: Report) -> str:
    """Write a report for people."""
    requests, tester = report.requests, report.tester
    asked = f" of {report.target_rps:g} asked" if report.target_rps else ""
    how = {"open": "open loop: from the intended time", "closed": "closed loop: from sending"}
    lines = [
        f"requests     {requests.sent} sent, {requests.ok} ok, {requests.unfinished} unfinished"
        f" in {report.duration_s:.1f} s{' (interrupted)' if report.interrupted else ''}",
        f"throughput   {report.throughput_rps:.1f} ok a second, {report.sent_rps:.1f} sent{asked}",
        f"latency      {_row(report.latency_ms)} ({how[report.loop]})",
    ]
    if report.cold.requests:
        lines.append(f"  cold ({report.cold.requests})   {_row(report.cold.latency_ms)}")
    if report.server is not None:
        queue, inference = report.server.queue_ms, report.server.inference_ms
        lines.append(
            f"  server     queue {queue.mean:.1f} ms, inference {inference.mean:.1f} ms (means of "
            f"{inference.requests}); p90 within {_ms(queue.p90)} and {_ms(inference.p90)}"
        )
    if report.errors:
        lines.append(f"errors       {', '.join(f'{c}: {n}' for c, n in report.errors.items())}")
    lines.append(f"models       {report.models}, {report.models_per_instance:g} an instance")
    if report.usd_per_million is not None:
        lines.append(f"cost         ${report.usd_per_million:.2f} a million at this throughput")
    lines += [f"warning      {text}" for text in tester.warnings]
    return "\n".join(lines)


def _row(latency: Latency) -> str:
    names = ("p50", "p90", "p95", "p99", "max")
    return ", ".join(f"{name} {_ms(getattr(latency, name))}" for name in names)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
