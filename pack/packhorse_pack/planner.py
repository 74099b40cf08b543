"""From needs and offers to a plan with its certificate."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from packhorse.plan import Fleet, Plan, PlannedModel, Replicas, Server
from packhorse.units import MICRO
from packhorse_pack.bounds import volume_bound
from packhorse_pack.certificate import make_certificate
from packhorse_pack.fleet import Offer
from packhorse_pack.greedy import Bin, place
from packhorse_pack.needs import Item


@dataclass(frozen=True)
class Packing:
    """A plan, the bins behind it, and what could not be placed."""

    plan: Plan
    certificate: bytes
    bins: list[Bin]
    misfits: list[Item]


def make_plan(items: Sequence[Item], offers: Sequence[Offer]) -> Packing:
    """Pack items; the same items and offers give the same plan."""
    bins, misfits = place(items, offers)
    placed = [item for one in bins for item in one.items]
    bound = volume_bound(placed, offers)
    certificate = make_certificate(placed, offers, bins, [bound])
    price = sum(one.offer.usd_micro for one in bins)
    fleet = Fleet(
        usd_per_hour=price / MICRO,
        bound_usd_per_hour=bound.usd_micro / MICRO,
        gap=round((price - bound.usd_micro) / price, 4) if price else 0.0,
        worst_case_usd_per_hour=price / MICRO,
        price_date=max((offer.type.price_date for offer in offers), default=""),
        certificate_sha256=hashlib.sha256(certificate).hexdigest(),
        assumed=_assumptions(bins),
    )
    names = _names(bins)
    servers = [_server(name, one) for name, one in zip(names, bins, strict=True)]
    return Packing(Plan(fleet=fleet, servers=servers), certificate, bins, misfits)


def _names(bins: Sequence[Bin]) -> list[str]:
    counts: dict[str, int] = {}
    names = []
    for one in bins:
        family = one.offer.type.family
        names.append(f"{family}-{counts.setdefault(family, 0)}")
        counts[family] += 1
    return names


def _server(name: str, one: Bin) -> Server:
    models: list[PlannedModel] = sorted((item.model for item in one.items), key=lambda m: m.id)
    return Server(
        name=name,
        family=one.offer.type.family,
        instance_type=one.offer.name,
        replicas=Replicas(1, 1),
        lanes=one.offer.lanes,
        memory_bytes=one.offer.memory_bytes,
        models=models,
    )


def _assumptions(bins: Sequence[Bin]) -> list[str]:
    kinds = sorted({one.offer.name for one in bins if one.offer.speed_is_assumed})
    assumed = [f"a lane of {kind} is as fast as the machine that measured" for kind in kinds]
    if bins:
        assumed.append("7.5 % of nominal memory is the hypervisor's")
    return assumed
