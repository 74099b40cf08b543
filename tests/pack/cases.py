"""Offers and items for packing tests, by their integers alone."""

from __future__ import annotations

from packhorse.plan import PlannedModel
from packhorse.prices import instance_type
from packhorse_pack.fleet import Offer
from packhorse_pack.needs import Item


def offer(memory: int, compute: int, usd_micro: int, name: str = "c5.large") -> Offer:
    kind = instance_type(name)
    return Offer(kind, kind.vcpus, memory, compute, usd_micro, speed_is_assumed=False)


def item(model_id: str, memory: int, compute: int = 0) -> Item:
    return Item(PlannedModel(model_id, "v1", "cpu-int8"), memory, compute)
