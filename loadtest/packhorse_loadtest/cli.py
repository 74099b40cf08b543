"""`packhorse test`."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packhorse.errors import InvalidInput
from packhorse.units import parse_seconds

if TYPE_CHECKING:
    from packhorse_loadtest.recorder import Latency, Report

LATE_S = 0.1
"""A tester that sends later than this has measured itself."""
_CONDITION = re.compile(r"\s*(min|p50|p90|p95|p99|max|errors)\s*>\s*(\S+)\s*")


def _common(command: Any) -> Any:
    for option in (
        click.option("--fail-if", multiple=True, metavar="'p90>100ms'",
                     help="Exit with 1 if this holds; also 'errors>0'. Repeatable."),
        click.option("--json", "json_file", metavar="FILE", help="Write the report; - is stdout."),
        click.option("--timeout", default="30s", show_default=True, metavar="TIME",
                     help="Longest wait for an answer."),
        click.option("--texts", metavar="FILE", help="What to ask, one text a line."),
        click.option("--url", help="A server to ask, in place of what is deployed here."),
        click.option("--plan", metavar="FILE", help="What it costs. [default: what is deployed]"),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group("test")
def test() -> None:
    """Send real load to what is deployed and report latency, throughput and cost.

    \b
    Examples:
      packhorse test seq
      packhorse test rnd --rate 50 --duration 20s --fail-if 'p90>100ms'
      packhorse test seq --url http://127.0.0.1:8080 --json report.json
    """


@test.command("seq")
@_common
def seq(
    url: str | None, texts: str | None, timeout: str, json_file: str | None,
    plan: str | None, fail_if: tuple[str, ...],
) -> None:  # fmt: skip
    """Ask every model once, one after the other."""
    from packhorse.progress import show_progress
    from packhorse_loadtest.scenarios import run_seq
    from packhorse_loadtest.targets import find_fleet, read_texts

    conditions = [_parse_condition(text) for text in fail_if]
    fleet = find_fleet(url, Path(plan) if plan else None)
    asked = read_texts(Path(texts) if texts else None)
    with show_progress("test seq", len(fleet.targets)) as bar:
        recorder, seconds = asyncio.run(run_seq(fleet, asked, parse_seconds(timeout), bar.advance))
    _finish(recorder.report(fleet, seconds, None), json_file, conditions)


@test.command("rnd")
@_common
@click.option("--rate", default=20.0, show_default=True, help="Mean requests a second.")
@click.option("--duration", default="10s", show_default=True, metavar="TIME", help="How long.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same requests.")
def rnd(
    url: str | None, texts: str | None, timeout: str, json_file: str | None,
    plan: str | None, fail_if: tuple[str, ...], rate: float, duration: str, seed: int,
) -> None:  # fmt: skip
    """Ask random models at a fixed mean rate, whether or not the fleet keeps up."""
    from packhorse.progress import show_progress
    from packhorse_loadtest.scenarios import run_rnd
    from packhorse_loadtest.targets import find_fleet, read_texts

    if not 0 < rate < 1e6:
        raise InvalidInput(f"--rate {rate} is not a positive number of requests a second")
    conditions = [_parse_condition(text) for text in fail_if]
    fleet = find_fleet(url, Path(plan) if plan else None)
    asked = read_texts(Path(texts) if texts else None)
    duration_s = parse_seconds(duration)
    with show_progress("test rnd", duration_s) as bar:
        recorder, seconds = asyncio.run(
            run_rnd(fleet, asked, parse_seconds(timeout), rate, duration_s, seed, bar.advance)
        )
    if recorder.late_s > LATE_S:
        click.echo(
            f"warning: the tester itself fell {recorder.late_s:.1f} s behind: latencies count from "
            "the intended time, so they are its own; lower --rate",
            err=True,
        )
    _finish(recorder.report(fleet, seconds, rate), json_file, conditions)


def _finish(report: Report, json_file: str | None, conditions: list[tuple[str, float]]) -> None:
    import msgspec

    from packhorse.files import write_atomically

    click.echo(_table(report), err=json_file == "-")
    data = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    if json_file == "-":
        click.echo(data, nl=False)
    elif json_file:
        write_atomically(Path(json_file), data)
    broken = [text for name, limit in conditions if (text := _broken(report, name, limit))]
    for text in broken:
        click.echo(f"error: {text}", err=True)
    if broken or report.errors or not report.requests.ok:
        sys.exit(1)


def _parse_condition(text: str) -> tuple[str, float]:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise InvalidInput(f"--fail-if {text!r}: write 'p90>100ms' or 'errors>0'")
    if match[1] == "errors":
        if not match[2].isdigit():
            raise InvalidInput(f"--fail-if {text!r}: errors are a whole number")
        return match[1], float(match[2])
    if match[2][-1:].isdigit():
        raise InvalidInput(f"--fail-if {text!r}: give the unit, such as {text}ms")
    return match[1], parse_seconds(match[2]) * 1000


def _broken(report: Report, name: str, limit: float) -> str:
    """Say how a condition is broken; empty where it is not."""
    if name == "errors":
        total = float(sum(report.errors.values()) + report.requests.unfinished)
        return f"errors are {total:.0f}, allowed are {limit:.0f}" if total > limit else ""
    value: float | None = getattr(report.latency_ms, name)
    if value is None or value > limit:
        found_ms = "unknown" if value is None else f"{value:.1f} ms"
        return f"{name} is {found_ms}, allowed are {limit:g} ms"
    return ""


def _table(report: Report) -> str:
    requests = report.requests
    target = f" of {report.target_rps:g} asked" if report.target_rps else ""
    lines = [
        f"requests     {requests.sent} sent, {requests.ok} ok, {requests.unfinished} unfinished",
        f"throughput   {report.throughput_rps:.1f} a second{target}",
        f"latency      {_row(report.latency_ms)}",
    ]
    if report.cold.requests:
        lines.append(f"  cold ({report.cold.requests})   {_row(report.cold.latency_ms)}")
    if report.errors:
        lines.append(f"errors       {', '.join(f'{c}: {n}' for c, n in report.errors.items())}")
    lines.append(f"models       {report.models}, {report.models_per_instance:g} an instance")
    if report.usd_per_million is not None:
        lines.append(f"cost         ${report.usd_per_million:.2f} a million at this throughput")
    return "\n".join(lines)


def _row(latency: Latency) -> str:
    names = ("p50", "p90", "p95", "p99", "max")
    values = ((name, getattr(latency, name)) for name in names)
    return ", ".join(f"{name} {'-' if v is None else f'{v:.1f} ms'}" for name, v in values)
