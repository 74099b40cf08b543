"""What is sent when: distributions, seeds, workers, and the files that say it."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scipy import stats

from packhorse.errors import InvalidInput
from packhorse_loadtest.job import Asked, Job, Load, Transport
from packhorse_loadtest.measure import Options, plan_load
from packhorse_loadtest.models import choose_models, zipf_shares
from packhorse_loadtest.schedule import Planned, planned_requests
from packhorse_loadtest.targets import Fleet, Target

NAMES = [f"m{number}" for number in range(3000)]


def planned(load: Load, count: int, worker: int = 0, workers: int = 1) -> list[Planned]:
    asked = [Asked("http://x/", 0)] * len(NAMES)
    job = Job(load, Transport(), asked, [["{}"]], 0, 10, 5, worker, workers)
    return list(islice(planned_requests(job), count))


def open_load(**more: Any) -> Load:
    weights = choose_models("zipf:1.0", NAMES, seed=3).weights
    return Load("open", 3, rate_rps=100, weights=weights, **more)


def p_value(exponent: float) -> float:
    """How well the models asked fit a Zipf distribution of that exponent."""
    rows = planned(open_load(), 300_000)
    counts = Counter(NAMES[row.asked] for row in rows)
    shares = zipf_shares(exponent, sorted(NAMES), seed=3)
    total = sum(shares.values())
    seen = [counts[name] for name in shares]
    return float(stats.chisquare(seen, [len(rows) * s / total for s in shares.values()]).pvalue)


def test_models_are_asked_by_zipfs_law() -> None:
    assert p_value(1.0) > 0.01
    assert p_value(1.02) < 1e-6


def test_the_kth_model_has_a_kth_of_the_firsts_weight() -> None:
    assert sorted(zipf_shares(1.0, NAMES[:4], 0).values()) == [1 / 4, 1 / 3, 1 / 2, 1]
    assert sorted(zipf_shares(2.0, NAMES[:3], 0).values()) == [1 / 9, 1 / 4, 1]


def test_which_model_is_asked_most_depends_on_the_seed_and_not_on_its_name() -> None:
    first = [max(NAMES, key=zipf_shares(1.0, NAMES, seed).__getitem__) for seed in range(5)]
    assert len({*first}) == 5


def test_arrivals_are_a_poisson_process() -> None:
    due = [row.due_s for row in planned(open_load(), 5000)]
    gaps = [after - before for before, after in zip([0.0, *due], due, strict=False)]
    assert stats.kstest(gaps, stats.expon(scale=0.01).cdf).pvalue > 0.01
    assert stats.kstest(gaps, stats.expon(scale=0.0106).cdf).pvalue < 0.01
    # What is asked and when do not hang together.
    assert abs(stats.spearmanr(gaps, [row.asked for row in planned(open_load(), 5000)])[0]) < 0.05


def test_a_seed_reproduces_everything_and_another_one_nothing() -> None:
    assert planned(open_load(), 1000) == planned(open_load(), 1000)
    other = planned(msgspec.structs.replace(open_load(), seed=4), 1000)
    assert not {row.due_s for row in planned(open_load(), 1000)} & {row.due_s for row in other}


@pytest.mark.parametrize("workers", [2, 3])
def test_several_workers_together_send_what_one_would(workers: int) -> None:
    parts = [planned(open_load(), 300, worker, workers) for worker in range(workers)]
    assert sorted(row for part in parts for row in part) == planned(open_load(), 300 * workers)


def test_a_constant_rate_is_constant() -> None:
    assert [r.due_s for r in planned(open_load(arrivals="constant"), 4)] == [0, 0.01, 0.02, 0.03]


def test_without_weights_models_take_turns_as_often_as_asked() -> None:
    assert [row.asked for row in planned(Load("closed", 0, count=3), 9)] == [0, 1, 2]


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "weights.csv"
    file.write_text("model,weight\na,3\nb,0\n\n c , 1\n")
    # `a` has two replicas, which share its weight; `d` is not in the file.
    assert choose_models(f"weighted:{file}", ["a", "b", "c", "d", "a"], 0).weights == [
        1.5, 0, 1, 0, 1.5,
    ]  # fmt: skip


def test_a_trace_is_replayed_model_by_model_at_its_times(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("seconds,model\n5,b\n5.5,a\n7,b\n7,b\n")
    choice = choose_models(f"trace:{file}", ["a", "b", "b"], 0)
    assert choice.order == [1, 0, 1, 2]
    assert choice.times == [0, 0.5, 2, 2]
    fleet = Fleet([Target("a", "http://x"), Target("b", "http://x")], None)
    load, duration_s = plan_load(Options("bmk", models=f"trace:{file}"), fleet)
    assert (load.loop, load.arrivals, load.rate_rps) == ("open", "trace", 1.999)
    assert duration_s == pytest.approx(2.001)
    assert [(r.due_s, r.asked) for r in planned(load, 9)] == [(0, 1), (0.5, 0), (2, 1), (2, 1)]
    # With users or a rate, only its order counts.
    load, duration_s = plan_load(Options("bmk", models=f"trace:{file}", concurrency=2), fleet)
    assert (load.loop, duration_s, load.order) == ("closed", 10, [1, 0, 1, 1])


@pytest.mark.parametrize(
    ("form", "content", "reason"),
    [
        ("zipf:x", "", "'x' is not a number"),
        ("zipf:", "", "'' is not a number"),
        ("pareto", "", "write uniform, zipf:1.0"),
        ("weighted:FILE", None, "cannot be read"),
        ("weighted:FILE", "\n", "has no rows: write model,weight"),
        ("weighted:FILE", "a\n", "FILE:1: write model,weight"),
        ("weighted:FILE", "a,1\nz,1\n", "FILE:2: no model 'z' is served there"),
        ("weighted:FILE", "a,-1\n", "FILE:1: '-1' is not a number from 0 on"),
        ("weighted:FILE", "a,0\n", "no weight is above 0"),
        ("trace:FILE", "1,a\n0.5,a\n", "FILE:2: 0.5 s is before the line above it"),
        ("trace:FILE", "1,z\n", "FILE:1: no model 'z'"),
        ("trace:FILE", "x,a\n", "FILE:1: 'x' is not a number"),
    ],
)  # fmt: skip
def test_what_is_no_choice_of_models(
    form: str, content: str | None, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "f.csv"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        choose_models(form.replace("FILE", str(file)), ["a", "b"], 0)
    assert reason in str(caught.value).replace(str(file), "FILE")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rate": 5.0, "concurrency": 2}, "give one"),
        ({"rate": 5.0, "think_s": 1.0}, "--think is for users"),
        ({"rate": 1e6}, "no tester with 1 worker(s) sends more than 100000 a second"),
        ({"rate": 250_000.0, "workers": 2}, "no tester with 2 worker(s) sends more than 200000"),
    ],
)
def test_loads_that_cannot_be(options: dict[str, Any], reason: str) -> None:
    fleet = Fleet([Target("a", "http://x")], None)
    with pytest.raises(InvalidInput) as caught:
        plan_load(Options("bmk", **options), fleet)
    assert reason in str(caught.value)
