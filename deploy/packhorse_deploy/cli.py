"""`packhorse deploy`."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from packhorse.settings import load_settings, setting_options


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Keep two commands from starting and stopping servers under each other's hands."""
    from packhorse.deployment import DEPLOYMENT_FILE

    DEPLOYMENT_FILE.parent.mkdir(parents=True, exist_ok=True)
    with (DEPLOYMENT_FILE.parent / "deploy.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@click.group("deploy")
def deploy() -> None:
    """Start, inspect and stop the servers of a plan.

    \b
    Examples:
      packhorse deploy up
      packhorse deploy status
      packhorse deploy logs cpu-0 --follow
      packhorse deploy down
    """


@deploy.command("up")
@setting_options("plan", "runtime", "store", "cache", "host", "port", "management_port")
def up(**flags: object) -> None:
    """Start the plan's servers and wait until they are ready.

    Servers that run already as the plan wants them are left alone, the others are replaced.
    """
    from packhorse.plan import load_plan
    from packhorse_deploy.runtime import runtime_for

    settings = load_settings(flags)
    plan = load_plan(settings.plan)
    with one_at_a_time():
        deployment = runtime_for(settings.runtime).up(plan, settings)
    for name, server in deployment.servers.items():
        click.echo(f"{name} ready at {server.url} with {len(server.models)} models", err=True)


@deploy.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(as_json: bool) -> None:
    """Say how every server is; exit code 1 if any is not ready."""
    from packhorse.deployment import load_deployment
    from packhorse_deploy.runtime import runtime_for

    deployment = load_deployment()
    rows = runtime_for(deployment.runtime).status(deployment)
    if as_json:
        click.echo(json.dumps({"servers": [dataclasses.asdict(row) for row in rows]}))
    else:
        for row in rows:
            click.echo(f"{row.name:<10} {row.state:<9} {row.url:<24} {row.detail}")
    if any(row.state != "ready" for row in rows):
        sys.exit(1)


@deploy.command("logs")
@click.argument("server")
@click.option("--follow", "-f", is_flag=True, help="Go on as the log grows.")
def logs(server: str, follow: bool) -> None:
    """Print a server's log."""
    from packhorse_deploy.runtime import runtime_for

    for line in runtime_for(load_settings().runtime).logs(server, follow):
        click.echo(line)


@deploy.command("down")
def down() -> None:
    """Stop what `up` started; requests under way are finished."""
    from packhorse.deployment import DEPLOYMENT_FILE, load_deployment
    from packhorse_deploy.runtime import runtime_for

    if not DEPLOYMENT_FILE.exists():
        click.echo("nothing is deployed", err=True)
        return
    with one_at_a_time():
        deployment = load_deployment()
        runtime_for(deployment.runtime).down(deployment)
    click.echo(f"stopped {', '.join(deployment.servers)}", err=True)
