"""First-fit decreasing over every type, then the cheapest type for each server.

Source of the method: first-fit decreasing for vector packing, items ordered by their largest
normalised need (Panigrahy et al., Heuristics for Vector Bin Packing, 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from packhorse_pack.fleet import Offer
from packhorse_pack.needs import Item


@dataclass
class Bin:
    """A server being filled."""

    offer: Offer
    items: list[Item] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    memory_bytes: int = 0
    compute_micro: int = 0

    def fits(self, item: Item) -> bool:
        """Whether the item can be added; an exact fit is a fit."""
        return item.id not in self.ids and fits(
            self.offer,
            self.memory_bytes + item.memory_bytes,
            self.compute_micro + item.compute_micro,
        )

    def add(self, item: Item) -> None:
        """Put an item in."""
        self.items.append(item)
        self.ids.add(item.id)
        self.memory_bytes += item.memory_bytes
        self.compute_micro += item.compute_micro


def fits(offer: Offer, memory_bytes: int, compute_micro: int) -> bool:
    """Whether a server of this kind holds so much."""
    return memory_bytes <= offer.memory_bytes and compute_micro <= offer.compute_micro


def place(items: Sequence[Item], offers: Sequence[Offer]) -> tuple[list[Bin], list[Item]]:
    """Place every item that fits some server.

    Args:
        offers: In order of price, the cheapest first.

    Returns:
        The servers of the cheapest fleet found, and the items that fit none.
    """
    placeable: list[Item] = []
    misfits: list[Item] = []
    for item in items:
        holds = any(fits(offer, item.memory_bytes, item.compute_micro) for offer in offers)
        (placeable if holds else misfits).append(item)
    fleets = [_fill(placeable, offer, offers) for offer in offers]
    best = min(fleets, key=lambda bins: (sum(b.offer.usd_micro for b in bins), len(bins)))
    return best, misfits


def _fill(items: Sequence[Item], kind: Offer, offers: Sequence[Offer]) -> list[Bin]:
    """Fill servers of one kind; an item too large for it gets the cheapest that holds it."""

    def size(item: Item) -> Fraction:
        memory = Fraction(item.memory_bytes, max(1, kind.memory_bytes))
        return max(memory, Fraction(item.compute_micro, max(1, kind.compute_micro)))

    bins: list[Bin] = []
    for item in sorted(items, key=lambda i: (-size(i), i.id)):
        home = next((b for b in bins if b.fits(item)), None)
        if home is None:
            offer = kind
            if not fits(kind, item.memory_bytes, item.compute_micro):
                offer = next(o for o in offers if fits(o, item.memory_bytes, item.compute_micro))
            home = Bin(offer)
            bins.append(home)
        home.add(item)
    for one in bins:
        one.offer = next(o for o in offers if fits(o, one.memory_bytes, one.compute_micro))
    return bins
