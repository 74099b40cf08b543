"""`plan.html`: the servers as bars, coloured by model, memory and compute side by side."""

from __future__ import annotations

import html
import zlib

from packhorse.units import MICRO, format_bytes
from packhorse_pack.greedy import Bin
from packhorse_pack.planner import Packing


def render_report(packing: Packing) -> str:
    """Render one self-contained page."""
    fleet = packing.plan.fleet
    facts = (
        f"<b>${fleet.usd_per_hour:.4f}</b> an hour; no fleet costs less than "
        f"<b>${fleet.bound_usd_per_hour:.4f}</b> (gap {fleet.gap:.1%}). "
        f"Servers: {len(packing.bins)}; model replicas: {sum(len(b.items) for b in packing.bins)}. "
        f"Prices of {html.escape(fleet.price_date)}."
    )
    misfits = "".join(
        f"<li>{html.escape(item.id)}: needs {format_bytes(item.memory_bytes)} and "
        f"{item.compute_micro / MICRO:.2f} lanes</li>"
        for item in packing.misfits
    )
    servers = "".join(
        _server(server.name, one)
        for server, one in zip(packing.plan.servers, packing.bins, strict=True)
    )
    assumed = "".join(f"<li>{html.escape(text)}</li>" for text in fleet.assumed)
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>packhorse plan</title>"
        f"<style>{_STYLE}</style></head><body><h1>Plan</h1><p>{facts}</p>"
        + (f"<h2>Not placed</h2><ul>{misfits}</ul>" if misfits else "")
        + servers
        + f"<h2>Assumed</h2><ul>{assumed}</ul></body></html>"
    )


def _server(name: str, one: Bin) -> str:
    offer = one.offer
    title = (
        f"{html.escape(name)} <small>{offer.name}, ${offer.usd_micro / MICRO:.4f}/h, "
        f"{len(one.items)} models</small>"
    )
    memory = _bar(
        [(i.id, i.memory_bytes) for i in one.items],
        offer.memory_bytes,
        f"memory {format_bytes(one.memory_bytes)} of {format_bytes(offer.memory_bytes)}",
    )
    compute = _bar(
        [(i.id, i.compute_micro) for i in one.items],
        offer.compute_micro,
        f"compute {one.compute_micro / MICRO:.2f} of {offer.compute_micro / MICRO:.2f} lanes",
    )
    return f"<h2>{title}</h2><div class=pair>{memory}{compute}</div>"


def _bar(parts: list[tuple[str, int]], whole: int, caption: str) -> str:
    spans = "".join(
        f'<i style="width:{100 * size / max(1, whole):.3f}%;background:hsl({_hue(name)} 60% 60%)" '
        f'title="{html.escape(name)}"></i>'
        for name, size in sorted(parts, key=lambda part: -part[1])
    )
    return f"<figure><div class=bar>{spans}</div><figcaption>{caption}</figcaption></figure>"


def _hue(name: str) -> int:
    return zlib.crc32(name.encode()) % 360


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}
small{font-weight:400;color:#777}.pair{display:flex;gap:2rem}figure{flex:1;margin:0}
.bar{display:flex;height:2rem;background:#eee;border-radius:4px;overflow:hidden}
.bar i{border-right:1px solid #fff8}figcaption{color:#555}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}.bar{background:#333}
figcaption{color:#aaa}}
"""
