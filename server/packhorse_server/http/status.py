"""What a cluster, a monitor and a person ask of a server: probes, metrics, models, a page."""

from __future__ import annotations

import dataclasses
import html
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse, JSONResponse, Response

from packhorse import __version__
from packhorse.units import format_bytes
from packhorse_server.engine import Engine
from packhorse_server.registry import Entry
from packhorse_server.startup import start_progress


def add_status(app: FastAPI, engine: Engine) -> None:
    """Add the routes."""

    @app.get("/livez", tags=["status"], summary="Whether the process answers at all")
    async def livez() -> JSONResponse:
        return JSONResponse({"alive": True})

    @app.get("/readyz", tags=["status"], summary="Whether new requests should be sent here")
    async def readyz() -> JSONResponse:
        readiness = engine.readiness()
        return JSONResponse(
            {"ready": readiness.ready, "reason": readiness.reason}, 200 if readiness.ready else 503
        )

    @app.get("/ping", tags=["status"], summary="TorchServe's health check")
    async def ping() -> JSONResponse:
        if engine.readiness().ready:
            return JSONResponse({"status": "Healthy"})
        return JSONResponse({"status": "Unhealthy"}, 503)

    @app.get("/startupz", tags=["status"], summary="How far loading has come")
    async def startupz() -> JSONResponse:
        progress = start_progress(engine)
        return JSONResponse(dataclasses.asdict(progress), 200 if progress.started else 503)

    @app.get("/metrics", tags=["status"], summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(engine.metrics.render(), media_type="text/plain; version=0.0.4")

    @app.get("/models", tags=["status"], summary="The models of this server")
    async def models() -> JSONResponse:
        return JSONResponse({"models": [model_row(entry) for entry in engine.registry]})

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(status_page(engine))


def model_row(entry: Entry) -> dict[str, Any]:
    """Describe a model (DESIGN 12.4)."""
    artifact = entry.artifact
    return {
        "id": entry.id,
        "version": artifact.version if artifact else entry.version,
        "variant": artifact.variant if artifact else entry.variant,
        "task": artifact.task if artifact else None,
        "state": entry.state.value,
        "reason": entry.reason,
        "resident_bytes": resident_bytes(entry),
    }


def resident_bytes(entry: Entry) -> int:
    """Bytes that a loaded model uses, those that it shares included."""
    if entry.model is None:
        return 0
    cost = entry.model.artifact.cost
    return cost.private_bytes + cost.file_bytes


def status_page(engine: Engine) -> str:
    """Render the page at `/`; it refreshes itself."""
    readiness = engine.readiness()
    rows = []
    for entry in sorted(engine.registry, key=lambda e: e.id):
        row = model_row(entry)
        mean = f"{entry.request_seconds / entry.requests * 1e3:.1f} ms" if entry.requests else "-"
        cells = (
            entry.id, row["version"] or "", row["variant"] or "", row["task"] or "",
            row["state"], format_bytes(row["resident_bytes"]), f"{entry.requests}", mean,
            row["reason"],
        )  # fmt: skip
        tds = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
        rows.append(f'<tr class="{row["state"]}">{tds}</tr>')
    heads = "".join(
        f"<th>{name}</th>"
        for name in ("model", "version", "variant", "task", "state", "bytes", "requests",
                     "mean latency", "reason")
    )  # fmt: skip
    progress = start_progress(engine)
    start = "" if progress.started else f"<p>starting: {html.escape(str(progress))}</p>"
    memory = (
        f"{format_bytes(engine.residency.resident_bytes)} of "
        f"{format_bytes(engine.residency.budget_bytes)} held"
    )
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<meta http-equiv=refresh content=2><title>packhorse</title><style>{_STYLE}</style></head>"
        f"<body><h1>packhorse <small>{__version__}</small></h1>"
        f"<p class={'ready' if readiness.ready else 'unready'}>"
        f"{'ready' if readiness.ready else 'not ready'}: {html.escape(readiness.reason)}</p>"
        f"{start}<p>{memory}; {engine.scheduler.lanes} lanes; "
        f"{sum(e.in_flight for e in engine.registry)} "
        'requests in flight. <a href="/docs">API</a> · <a href="/metrics">metrics</a></p>'
        f"<div><table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        "</body></html>"
    )


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem}
h1 small{font-weight:400;color:#777}.ready{color:#176f2c}.unready{color:#a40}
div{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.3rem .7rem;border-bottom:1px solid #ddd;white-space:nowrap}
td:last-child{white-space:normal}tr.quarantined td{color:#a40}
tr.loading td,tr.pending td{color:#777}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}th,td{border-color:#333}
a{color:#8ab4f8}.ready{color:#6fcf8a}.unready,tr.quarantined td{color:#ffa366}}
"""
