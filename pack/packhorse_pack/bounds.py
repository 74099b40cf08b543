"""A price that no fleet can be below, with what proves it.

`l1`: every byte (or micro-share, or replica) must be bought from some type, and none sells it
for less than the type with the best ratio of price to capacity. In exact arithmetic, rounded up
to whole micro-dollars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from packhorse_pack.fleet import Offer
from packhorse_pack.needs import Item


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on micro-dollars per hour.

    Attributes:
        proof: The resource and the type on which the bound rests.
    """

    kind: str
    usd_micro: int
    proof: dict[str, str]


def volume_bound(items: Sequence[Item], offers: Sequence[Offer]) -> Bound:
    """Return the best bound of the `l1` kind; 0 where there is nothing to place."""
    if not items or not offers:
        return Bound("l1", 0, {"resource": "servers", "type": ""})
    # Replicas of a model are on different servers, so there are at least as many servers.
    copies = max(Counter(item.id for item in items).values())
    totals = {
        "servers": (copies, {o.name: 1 for o in offers}),
        "memory_bytes": (
            sum(i.memory_bytes for i in items), {o.name: o.memory_bytes for o in offers}
        ),
        "compute_micro": (
            sum(i.compute_micro for i in items), {o.name: o.compute_micro for o in offers}
        ),
    }  # fmt: skip
    best = Bound("l1", 0, {"resource": "servers", "type": offers[0].name})
    for resource, (total, capacity) in totals.items():
        selling = [offer for offer in offers if capacity[offer.name] > 0]
        if not selling:
            continue
        cheapest = min(selling, key=lambda o: (Fraction(o.usd_micro, capacity[o.name]), o.name))
        price = -(-total * cheapest.usd_micro // capacity[cheapest.name])
        if price > best.usd_micro:
            best = Bound("l1", price, {"resource": resource, "type": cheapest.name})
    return best
