"""`packhorse pack`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packhorse.errors import DoesNotFit, InvalidInput
from packhorse.files import write_atomically
from packhorse.settings import load_settings, setting_options
from packhorse.units import MICRO, format_bytes

if TYPE_CHECKING:
    from packhorse_pack.fleet import Offer
    from packhorse_pack.needs import Item


class DefaultGroup(click.Group):
    """A group in which `pack CATALOG` means `pack plan CATALOG`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["plan", *args]
        return super().parse_args(ctx, args)


@click.group("pack", cls=DefaultGroup)
def pack() -> None:
    """Decide which models share which machine, at the least cost."""


@pack.command("plan")
@click.argument("catalog", required=False)
@click.option("--out", default=None, metavar="FILE", help="Where the plan goes. [setting: plan]")
@click.option("--report", default=None, metavar="FILE", help="The page; default: beside the plan.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@setting_options("store", "fleet")
def plan(
    catalog: str | None, out: str | None, report: str | None, as_json: bool, **flags: object
) -> None:
    """Plan the cheapest fleet for the catalog, with the proven least beside it.

    Writes the plan, its certificate and a page that shows the servers. A model that fits no
    server, or is not in the store, is named and the rest is placed: the exit code is then 3.
    `packhorse pack CATALOG` is short for `packhorse pack plan CATALOG`; the other command of
    this group is `verify`.

    \b
    Examples:
      packhorse pack
      packhorse pack models.yaml --fleet fleet.yaml --out plan.yaml
      packhorse pack verify plan.yaml
    """
    from packhorse.catalog import load_catalog
    from packhorse.store.repository import Repository
    from packhorse_pack.fleet import load_offers
    from packhorse_pack.needs import read_needs
    from packhorse_pack.planner import make_plan
    from packhorse_pack.report import render_report

    settings = load_settings({**flags, "catalog": catalog, "plan": out})
    specs = load_catalog(settings.catalog, settings.processor)
    if not specs:
        raise InvalidInput(f"{settings.catalog} lists no models: add one")
    offers = load_offers(settings.fleet)
    items, missing = read_needs(specs, Repository.open(settings.store))
    packing = make_plan(items, offers)
    page = Path(report) if report else settings.plan.with_suffix(".html")
    # The certificate first: a plan never stands beside another plan's proof.
    write_atomically(certificate_path(settings.plan), packing.certificate)
    packing.plan.write(settings.plan)
    write_atomically(page, render_report(packing).encode())
    fleet = packing.plan.fleet
    if as_json:
        click.echo(
            json.dumps(
                {
                    "plan": str(settings.plan),
                    "servers": len(packing.bins),
                    "usd_per_hour": fleet.usd_per_hour,
                    "bound_usd_per_hour": fleet.bound_usd_per_hour,
                    "gap": fleet.gap,
                    "not_placed": sorted({*missing, *(item.id for item in packing.misfits)}),
                }
            )
        )
    for server, one in zip(packing.plan.servers, packing.bins, strict=True):
        click.echo(
            f"{server.name:<10} {server.instance_type:<12} {len(server.models):>5} models  "
            f"memory {format_bytes(one.memory_bytes)} of {format_bytes(one.offer.memory_bytes)}, "
            f"compute {one.compute_micro / MICRO:.2f} of {one.offer.compute_micro / MICRO:.2f}",
            err=True,
        )
    click.echo(
        f"${fleet.usd_per_hour:.4f} an hour, proven least ${fleet.bound_usd_per_hour:.4f} "
        f"(gap {fleet.gap:.1%}); wrote {settings.plan}, {certificate_path(settings.plan)}, {page}",
        err=True,
    )
    for reason in (*missing.values(), *(_misfit(item, offers) for item in packing.misfits)):
        click.echo(f"error: not placed: {reason}", err=True)
    if missing or packing.misfits:
        sys.exit(DoesNotFit.exit_code)


def _misfit(item: Item, offers: Sequence[Offer]) -> str:
    """Say which resource no type has enough of."""
    memory = max(offers, key=lambda offer: offer.memory_bytes)
    if item.memory_bytes > memory.memory_bytes:
        where = f"the largest type, {memory.name},"
        return str(DoesNotFit(item.id, item.memory_bytes, memory.memory_bytes, where))
    compute = max(offers, key=lambda offer: offer.compute_micro)
    return (
        f"model {item.id!r} needs {item.compute_micro / MICRO:.2f} lanes at its expected_rps; the "
        f"type with most, {compute.name}, offers {compute.compute_micro / MICRO:.2f}: "
        "raise replicas, or allow a larger type"
    )


@pack.command("verify")
@click.argument("plan_file", metavar="[PLAN]", required=False)
def verify(plan_file: str | None) -> None:
    """Check a plan against its certificate, without the packer's own code.

    \b
    Example:
      packhorse pack verify plan.yaml
    """
    from packhorse.plan import load_plan
    from packhorse_pack.certificate import check_certificate

    settings = load_settings({"plan": plan_file})
    path = certificate_path(settings.plan)
    claimed_plan = load_plan(settings.plan)
    fleet = claimed_plan.fleet
    try:
        text = path.read_bytes()
        certificate = json.loads(text)
        faults, price, bound = check_certificate(certificate)
        proven = [(row["type"], sorted(row["models"])) for row in certificate["assignment"]]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise InvalidInput(f"{path} is not a readable certificate: {err!r}: pack again") from err
    if hashlib.sha256(text).hexdigest() != fleet.certificate_sha256:
        faults.append("the certificate is not the one that the plan names")
    if proven != [(s.instance_type, sorted(m.id for m in s.models)) for s in claimed_plan.servers]:
        faults.append("the plan's servers are not those of the certificate")
    for claimed, shown in ((fleet.usd_per_hour, price), (fleet.bound_usd_per_hour, bound)):
        if round(claimed * MICRO) != shown:
            faults.append(f"the plan says ${claimed}, the certificate ${shown / MICRO}")
    for fault in faults:
        click.echo(f"fault: {fault}")
    click.echo(
        f"verified: price ${price / MICRO:.6f}, bound ${bound / MICRO:.6f} an hour; claimed: price "
        f"${fleet.usd_per_hour:.6f}, bound ${fleet.bound_usd_per_hour:.6f}"
    )
    if faults:
        sys.exit(1)


def certificate_path(plan: Path) -> Path:
    """The certificate lies beside its plan: plan.yaml, plan.certificate.json."""
    return plan.with_name(f"{plan.stem}.certificate.json")
