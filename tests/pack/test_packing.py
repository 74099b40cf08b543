"""Greedy, bound, certificate and plan together (FAULTS 24)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse_pack.bounds import volume_bound
from packhorse_pack.certificate import check_certificate
from packhorse_pack.greedy import place
from packhorse_pack.planner import make_plan
from tests.pack.cases import item, offer

OFFERS = [offer(100, 100, 1000), offer(210, 190, 1900, "c5.xlarge"),
          offer(450, 500, 4000, "c5.2xlarge")]  # fmt: skip
items_of_any_kind = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 470), st.integers(0, 520)), max_size=25
).map(lambda rows: [item(f"m{name}", memory, compute) for name, memory, compute in
                    {row[0]: row for row in rows}.values()])  # fmt: skip
replicated = st.lists(
    st.tuples(st.integers(1, 470), st.integers(0, 500), st.integers(1, 4)), max_size=8
).map(lambda rows: [item(f"m{i}", memory, compute) for i, (memory, compute, copies) in
                    enumerate(rows) for _ in range(copies)])  # fmt: skip


@given(st.one_of(items_of_any_kind, replicated))
def test_every_item_is_placed_once_or_named_and_no_server_is_over_its_capacity(
    items: list[Any],
) -> None:
    bins, misfits = place(items, OFFERS)
    placed = [one for each in bins for one in each.items]
    assert sorted(i.id for i in placed + misfits) == sorted(i.id for i in items)
    for each in bins:
        assert sum(i.memory_bytes for i in each.items) <= each.offer.memory_bytes
        assert sum(i.compute_micro for i in each.items) <= each.offer.compute_micro
        assert len({i.id for i in each.items}) == len(each.items)
    for one in misfits:
        assert one.memory_bytes > 450 or one.compute_micro > 500


@given(st.one_of(items_of_any_kind, replicated))
def test_no_plan_is_cheaper_than_the_bound_and_the_certificate_says_the_same(
    items: list[Any],
) -> None:
    packing = make_plan(items, OFFERS)
    fleet = packing.plan.fleet
    assert fleet.usd_per_hour >= fleet.bound_usd_per_hour
    assert 0 <= fleet.gap <= 1
    faults, price, bound = check_certificate(json.loads(packing.certificate))
    assert faults == []
    assert price == round(fleet.usd_per_hour * 1_000_000)
    assert bound == round(fleet.bound_usd_per_hour * 1_000_000)


def test_the_same_input_gives_the_same_plan() -> None:
    items = [item(f"m{i}", 7 + i * 13 % 90, i * 31 % 80) for i in range(60)]
    assert make_plan(items, OFFERS).plan == make_plan(list(items), OFFERS).plan


def test_an_exact_fit_uses_one_server() -> None:
    bins, _ = place([item("a", 60, 40), item("b", 40, 60)], OFFERS[:1])
    assert len(bins) == 1
    bins, _ = place([item("a", 60, 40), item("b", 41, 60)], OFFERS[:1])
    assert len(bins) == 2


def test_a_server_takes_the_cheapest_type_that_holds_its_models() -> None:
    bins, _ = place([item("a", 205), item("b", 60)], OFFERS)
    assert sorted(each.offer.usd_micro for each in bins) == [1000, 1900]


def test_replicas_are_on_different_servers() -> None:
    bins, _ = place([item("a", 1)] * 3, OFFERS)
    assert len(bins) == 3
    assert volume_bound([item("a", 1)] * 3, OFFERS).usd_micro == 3000


def test_a_model_larger_than_every_server_is_named_and_the_rest_is_placed() -> None:
    packing = make_plan([item("huge", 900), item("a", 20), item("b", 30)], OFFERS)
    assert [one.id for one in packing.misfits] == ["huge"]
    assert [model.id for model in packing.plan.servers[0].models] == ["a", "b"]


def test_nothing_to_pack_costs_nothing() -> None:
    packing = make_plan([], OFFERS)
    assert packing.plan.servers == []
    assert packing.plan.fleet.usd_per_hour == packing.plan.fleet.gap == 0


def test_the_bound_rests_on_the_scarcest_resource() -> None:
    memory = volume_bound([item("a", 300), item("b", 300)], OFFERS)
    assert (memory.usd_micro, memory.proof["resource"]) == (5334, "memory_bytes")  # 600·4000/450
    compute = volume_bound([item("a", 1, 400), item("b", 1, 400)], OFFERS)
    assert (compute.usd_micro, compute.proof["resource"]) == (6400, "compute_micro")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["assignment"][0]["models"].append("b"), "memory_bytes 110 is over 100"),
        (lambda d: d["assignment"].pop(), "'b': 0 of 1 replicas"),
        (lambda d: d["bounds"][0].update(value=9999), "claimed 9999"),
        (lambda d: d["assignment"][0].update(models=["a", "a"]), "two replicas"),
    ],
)
def test_a_certificate_that_lies_is_found_out(change: Any, says: str) -> None:
    packing = make_plan([item("a", 60), item("b", 50)], OFFERS[:1])
    data = json.loads(packing.certificate)
    change(data)
    assert any(says in fault for fault in check_certificate(data)[0])
