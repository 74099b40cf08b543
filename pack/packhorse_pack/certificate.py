"""`plan.certificate.json`: all that is needed to check a plan without trusting the packer.

Checking uses the standard library alone, and none of the packer's own code.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from packhorse_pack.bounds import Bound
from packhorse_pack.fleet import Offer
from packhorse_pack.greedy import Bin
from packhorse_pack.needs import Item

SCHEMA = 1


def make_certificate(
    items: Sequence[Item], offers: Sequence[Offer], bins: Sequence[Bin], bounds: Sequence[Bound]
) -> bytes:
    """Write the integers of a plan: needs, capacities, assignment, bounds."""
    return (
        json.dumps(
            {
                "schema": SCHEMA,
                "needs": [
                    {"id": i.id, "memory_bytes": i.memory_bytes, "compute_micro": i.compute_micro}
                    for i in items
                ],
                "capacities": {
                    o.name: {
                        "memory_bytes": o.memory_bytes,
                        "compute_micro": o.compute_micro,
                        "usd_micro": o.usd_micro,
                    }
                    for o in offers
                },
                "assignment": [
                    {"type": b.offer.name, "models": [i.id for i in b.items]} for b in bins
                ],
                "bounds": [
                    {"kind": b.kind, "value": b.usd_micro, "proof": b.proof} for b in bounds
                ],
            },
            indent=1,
        )
        + "\n"
    ).encode()


def check_certificate(data: dict[str, Any]) -> tuple[list[str], int, int]:
    """Check a certificate.

    Returns:
        What is wrong, the fleet's price and the bound, both in micro-dollars per hour and both
        worked out anew from the integers.
    """
    faults: list[str] = []
    needs: dict[str, list[dict[str, int]]] = {}
    for need in data["needs"]:
        needs.setdefault(need["id"], []).append(need)
    price = 0
    placed: Counter[str] = Counter()
    for number, server in enumerate(data["assignment"]):
        offer = data["capacities"][server["type"]]
        price += offer["usd_micro"]
        if len(set(server["models"])) != len(server["models"]):
            faults.append(f"server {number} holds two replicas of one model")
        for resource in ("memory_bytes", "compute_micro"):
            used = sum(needs[name][0][resource] for name in server["models"])
            if used > offer[resource]:
                faults.append(f"server {number}: {resource} {used} is over {offer[resource]}")
        placed.update(server["models"])
    for name, replicas in needs.items():
        if placed[name] != len(replicas):
            faults.append(f"model {name!r}: {placed[name]} of {len(replicas)} replicas are placed")
    bound = 0
    for claim in data["bounds"]:
        shown = _recompute(claim, data, needs)
        if shown != claim["value"]:
            faults.append(f"bound {claim['kind']}: claimed {claim['value']}, found {shown}")
        bound = max(bound, shown)
    return faults, price, bound


def _recompute(claim: dict[str, Any], data: dict[str, Any], needs: dict[str, Any]) -> int:
    """Work out an `l1` bound over every type, whichever one the claim names."""
    resource = claim["proof"]["resource"]
    if claim["kind"] != "l1" or not data["needs"]:
        return 0
    if resource == "servers":
        total = max(len(replicas) for replicas in needs.values())
    else:
        total = sum(need[resource] for need in data["needs"])
    prices = [
        -(-total * offer["usd_micro"] // size)
        for offer in data["capacities"].values()
        if (size := 1 if resource == "servers" else offer[resource]) > 0
    ]
    return min(prices, default=0)
