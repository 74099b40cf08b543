"""Counting: percentiles, merging, reports, and what makes a run fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.errors import InvalidInput
from packhorse_loadtest.job import Job, Load, Seen, Transport
from packhorse_loadtest.recorder import Recorder, latency_of
from packhorse_loadtest.report import Report, make_report, parse_condition, table
from packhorse_loadtest.server_side import difference
from packhorse_loadtest.targets import Fleet, Target

FLEET = Fleet([Target("a", "http://x"), Target("b", "http://x")], 3.6, ["http://x"])
CLOSED = Load("closed", 0)


def job(load: Load = CLOSED, duration_s: float | None = 10.0) -> Job:
    return Job(load, Transport(), [], [], 0.0, duration_s, 5.0)


def recorder(*seconds: float, cold: tuple[float, ...] = ()) -> Recorder:
    made = Recorder()
    for values, is_cold in ((seconds, False), (cold, True)):
        for value in values:
            made.sent += 1
            made.answered(value, is_cold)
    return made


def report(made: Recorder, load: Load = CLOSED, duration_s: float | None = 10.0) -> Report:
    return make_report(made, job(load, duration_s), FLEET, 1)


def test_percentiles_come_from_all_requests_and_cold_ones_stand_apart() -> None:
    made = recorder(*(n / 1000 for n in range(1, 99)), cold=(0.099, 0.1))
    made.sent += 3
    made.failed("queue_full")
    found = report(made)
    assert found.latency_ms.p50 == pytest.approx(50, rel=0.01)
    assert found.latency_ms.p90 == pytest.approx(90, rel=0.01)
    assert found.latency_ms.min == pytest.approx(1, rel=0.01)
    assert found.cold.requests == 2
    assert found.cold.latency_ms.min == pytest.approx(99, rel=0.01)
    assert (found.requests.unfinished, found.errors) == (2, {"queue_full": 1})
    assert found.throughput_rps == 10
    assert found.usd_per_million == pytest.approx(100)  # $3.6/h at 10/s
    assert found.models_per_instance == 2


@given(st.lists(st.floats(1e-6, 3000), min_size=1, max_size=50), st.integers(0, 50))
def test_percentiles_are_in_order(seconds: list[float], colds: int) -> None:
    made = recorder(*seconds[colds:], cold=tuple(seconds[:colds]))
    found = report(made).latency_ms
    values = [found.min, found.p50, found.p90, found.p95, found.p99, found.max]
    assert None not in values
    assert values == sorted(values)  # type: ignore[type-var]
    assert found.min == pytest.approx(min(seconds) * 1000, rel=0.002, abs=0.001)
    assert found.max == pytest.approx(max(seconds) * 1000, rel=0.002, abs=0.001)


@given(st.lists(st.tuples(st.floats(1e-6, 60), st.booleans(), st.booleans()), max_size=60))
def test_several_workers_see_what_one_would(rows: list[tuple[float, bool, bool]]) -> None:
    one, parts = Recorder(), [Recorder() for _ in range(3)]
    for number, (seconds, cold, well) in enumerate(rows):
        for each in (one, parts[number % 3]):
            each.sent += 1
            if well:
                each.answered(seconds, cold)
            else:
                each.failed("timeout" if cold else "internal")
    merged = Recorder()
    for part in parts:
        data = msgspec.json.encode(part.seen())  # as a worker says it
        merged.add(msgspec.json.decode(data, type=Seen))
    assert report(merged) == report(one)


@pytest.mark.parametrize("count", [1, 10])
def test_few_samples_are_themselves(count: int) -> None:
    found = report(recorder(*(0.1 * (n + 1) for n in range(count)))).latency_ms
    assert found.p50 == pytest.approx(100 if count == 1 else 500, rel=0.01)
    assert found.p99 == found.max == pytest.approx(100 * count, rel=0.01)


def test_a_run_without_answers_has_no_latency_and_no_price() -> None:
    found = report(Recorder(), duration_s=None)
    assert (found.latency_ms.p50, found.usd_per_million, found.throughput_rps) == (None, None, 0)
    assert "p50 -" in table(found)


def test_throughput_counts_until_the_last_answer() -> None:
    made = recorder(*[0.1] * 50)
    made.last_s = 12.5
    found = report(made)
    assert (found.throughput_rps, found.sent_rps, found.duration_s) == (4.0, 5.0, 12.5)


def test_a_tester_that_was_the_bottleneck_says_so() -> None:
    made = recorder(0.01)
    for _ in range(50):
        made.lagged(0.02)
    made.cpu_share, made.waited = 0.97, 7
    load = Load("open", 0, rate_rps=5.0)
    text = " ".join(report(made, load).tester.warnings)
    for part in ("sent late (p99 20.", "97% of its core", "7 requests waited for one of 1000"):
        assert part in text
    assert "warning      the tester itself" in table(report(made, load))
    quiet = recorder(0.01)
    quiet.lagged(0.0001)
    assert report(quiet, load).tester.warnings == []


def test_a_pause_of_the_tester_is_named() -> None:
    made = recorder(0.01)
    for _ in range(999):
        made.lagged(0.0001)
    made.lagged(0.5)
    assert "stood still once, for 500 ms" in report(made).tester.warnings[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("p90>100ms", ""), ("p90>89ms", "p90 is 90.0 ms, allowed are 89 ms"), ("max > 1s", ""),
        ("errors>1", "errors are 2, allowed are 1"), ("errors>2", ""), ("errors>2%", ""),
        ("errors>1.9%", "errors are 1.96%, allowed are 1.90%"),
    ],
)  # fmt: skip
def test_conditions(text: str, fault: str) -> None:
    made = recorder(*(n / 1000 for n in range(1, 101)))
    made.sent += 2
    made.failed("internal")
    assert parse_condition(text).fault(report(made)) == fault


def test_a_condition_on_latency_fails_without_an_answer() -> None:
    assert "p90 is unknown" in parse_condition("p90>1s").fault(report(Recorder()))


@pytest.mark.parametrize(
    "text", ["p90", "p90<1ms", "p42>1ms", "p90>100", "errors>x", "errors>1ms", "errors>1.5", ""]
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(InvalidInput, match="--fail-if"):
        parse_condition(text)


def test_the_servers_parts_are_differences_of_their_histograms() -> None:
    before: Any = {("queue", "count", ""): 10.0, ("queue", "sum", ""): 1.0}
    after: Any = {("queue", "count", ""): 30.0, ("queue", "sum", ""): 1.4}
    for bound, was, now in (("0.01", 4, 6), ("0.1", 9, 28), ("+Inf", 10, 30)):
        before["queue", "bucket", bound], after["queue", "bucket", bound] = was, now
    for sums in (before, after):
        sums.update({("inference", *key[1:]): value for key, value in [*sums.items()]})
    found = difference(before, after)
    assert found is not None
    spent = found.queue_ms
    assert (spent.requests, spent.p90) == (20, 100.0)
    assert spent.mean == pytest.approx(20.0)
    assert difference(after, after) is None
    assert difference(None, after) is None


def test_percentiles_of_nothing() -> None:
    assert latency_of(Recorder().late).max is None
