"""`packhorse test`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packhorse.errors import InvalidInput
from packhorse.files import write_atomically
from packhorse.settings import load_settings, setting_options
from packhorse.units import parse_seconds

if TYPE_CHECKING:
    from packhorse_loadtest.measure import Options
    from packhorse_loadtest.report import Report


_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_|~-]+: [\x20-\x7e]*")


def _common(command: Any) -> Any:
    for option in reversed((
        click.option("--url", help="A server to ask, in place of what is deployed here."),
        click.option("--plan", metavar="FILE", help="What it costs. [default: what is deployed]"),
        click.option("--texts", metavar="FILE", help="What to ask, one text a line."),
        click.option("--tokens", metavar="N|A-B",
                     help="Ask texts made to this many tokens of the model's own tokenizer."),
        click.option("--protocol", type=click.Choice(["native", "oip"]), default="native",
                     show_default=True, help="Open Inference Protocol, or packhorse's own."),
        click.option("--timeout", default="30s", show_default=True, metavar="TIME",
                     help="Longest wait for an answer."),
        click.option("--reuse/--no-reuse", default=True, show_default=True,
                     help="Keep connections, or open one for each request."),
        click.option("--dns", type=click.Choice(["cached", "fresh"]), default="cached",
                     show_default=True, help="Resolve the host's name once or per connection."),
        click.option("--header", "-H", "headers", multiple=True, metavar="'NAME: VALUE'",
                     help="Send it with every request, such as a gateway's key. Repeatable."),
        click.option("--insecure", is_flag=True, help="Do not check the server's certificate."),
        click.option("--json", "json_file", metavar="FILE", help="Write the report; - is stdout."),
        click.option("--html", "html_file", metavar="FILE", help="Write a page with a picture."),
        click.option("--fail-if", multiple=True, metavar="'p90>100ms'",
                     help="Exit with 1 if this holds; also 'errors>0', 'errors>1%'. Repeatable. "
                     "[default: errors>0]"),
    )):  # fmt: skip
        command = option(command)
    return setting_options("store")(command)


def _timed(command: Any) -> Any:
    for option in reversed((
        click.option("--duration", metavar="TIME",
                     help="How long is measured. [default: 10s; of a trace: its length]"),
        click.option("--warmup", default="0s", show_default=True, metavar="TIME",
                     help="Load that is sent before and not counted."),
        click.option("--drain", default="5s", show_default=True, metavar="TIME",
                     help="How long answers may still take after that."),
        click.option("--seed", default=0, show_default=True, help="Same seed, same requests."),
        click.option("--workers", default=1, show_default=True,
                     help="Processes that send; one takes at most a core."),
        click.option("--connections", default=1000, show_default=True,
                     help="Most connections to a server at once, in an open loop."),
    )):  # fmt: skip
        command = option(command)
    return command


@click.group("test")
def test() -> None:
    """Send real load to what is deployed and report latency, throughput and cost.

    \b
    seq   every model once, one after the other
    rnd   random models at a fixed rate
    bmk   any mix, rate or number of users

    \b
    Examples:
      packhorse test seq
      packhorse test rnd --rate 50 --duration 20s --fail-if 'p90>100ms'
      packhorse test bmk --concurrency 20 --models zipf:1.0 --tokens 10-40
      packhorse test bmk --rate 500 --workers 2 --url http://127.0.0.1:8080 --json report.json
    """


@test.command("seq")
@_common
def seq(**given: Any) -> None:
    """Ask every model once, one after the other."""
    _run("seq", given)


@test.command("rnd")
@_common
@_timed
@click.option("--rate", default=20.0, show_default=True, help="Mean requests a second.")
def rnd(**given: Any) -> None:
    """Ask random models at a fixed mean rate, whether or not the fleet keeps up."""
    _run("rnd", given)


@test.command("bmk")
@_common
@_timed
@click.option(
    "--concurrency",
    type=int,
    metavar="N",
    help="A closed loop: N users, each asks, waits for the answer, and asks again.",
)
@click.option(
    "--think",
    default="0s",
    show_default=True,
    metavar="TIME",
    help="What a user waits between an answer and the next request.",
)
@click.option(
    "--rate",
    type=float,
    metavar="R",
    help="An open loop: R requests a second, whether or not the fleet keeps up.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="How requests of an open loop follow each other.",
)
@click.option("--models", default="uniform", show_default=True,
              metavar="uniform|zipf:S|weighted:FILE|trace:FILE",
              help="How often each model is asked. A trace (seconds,model) without --concurrency "
              "or --rate is replayed at its own times.")  # fmt: skip
def bmk(**given: Any) -> None:
    """Measure under a chosen load, in a closed or an open loop."""
    _run("bmk", given)


def _run(scenario: str, given: dict[str, Any]) -> None:
    from packhorse_loadtest.measure import Options, measure
    from packhorse_loadtest.page import make_page
    from packhorse_loadtest.report import parse_condition, table

    conditions = [parse_condition(text) for text in given.pop("fail_if")]
    json_file, html_file = given.pop("json_file"), given.pop("html_file")
    settings = load_settings({"store": given.pop("store")})
    measured = measure(_options(scenario, given, Options), settings)
    report = measured.report
    click.echo(table(report), err=json_file == "-")
    _write(report, json_file)
    if html_file:
        page = make_page(report, measured.points, f"packhorse test {scenario}")
        write_atomically(Path(html_file), page.encode())
    broken = [text for condition in conditions if (text := condition.fault(report))]
    for text in broken:
        click.echo(f"error: {text}", err=True)
    judged = any(condition.name == "errors" for condition in conditions)
    failed = bool(report.errors or report.requests.unfinished) and not judged
    if not report.requests.ok:
        click.echo("error: not one request was answered well", err=True)
    if broken or failed or not report.requests.ok:
        sys.exit(1)


def _options(scenario: str, given: dict[str, Any], make: Callable[..., Options]) -> Options:
    """Check the flags and turn them into seconds, paths and numbers."""
    for name in ("timeout", "duration", "warmup", "drain", "think"):
        if name in given:
            text = given.pop(name)
            given[f"{name}_s"] = None if text is None else parse_seconds(text)
    for name in ("plan", "texts"):
        given[name] = Path(given[name]) if given[name] else None
    for name, least in (("workers", 1), ("connections", 1), ("concurrency", 1)):
        if given.get(name) is not None and given[name] < least:
            raise InvalidInput(f"--{name} {given[name]} is not a number from {least} on")
    for name in ("timeout_s", "duration_s"):
        if given.get(name) == 0:
            raise InvalidInput(f"--{name.removesuffix('_s')} must be above 0")
    rate = given.get("rate")
    if rate is not None and not 0 < rate < float("inf"):
        raise InvalidInput(f"--rate {rate} is not a positive number of requests a second")
    for header in given["headers"]:
        if not _HEADER.fullmatch(header):
            raise InvalidInput(f"--header {header!r}: write 'Name: value', on one line")
    if given.get("texts") and given.get("tokens"):
        raise InvalidInput("--texts and --tokens are two ways to say what is asked: give one")
    return make(scenario=scenario, **given)


def _write(report: Report, json_file: str | None) -> None:
    import msgspec

    data = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    if json_file == "-":
        click.echo(data, nl=False)
    elif json_file:
        write_atomically(Path(json_file), data)
