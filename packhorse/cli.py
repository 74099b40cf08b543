"""The console script. A stage's commands are loaded only when they are called."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

import click

from packhorse import __version__
from packhorse.errors import MissingPackage, PackhorseError

SUMMARIES = {
    "deploy": "Start, inspect and stop the servers of a plan.",
    "models": "List, show and verify the models in the store.",
    "pack": "Decide which models share which machine, at the least cost.",
    "serve": "Serve models over HTTP.",
    "settings": "Print the settings in force.",
    "test": "Send real load and report latency, throughput and cost.",
    "trace": "Compile models, prove them equal, measure and publish them.",
}


class LazyGroup(click.Group):
    """A group whose commands are entry points of `packhorse.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({point.name for point in _entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in _entry_points():
            if point.name == cmd_name:
                try:
                    command: click.Command = point.load()
                except ImportError as err:
                    raise MissingPackage(str(err.name), cmd_name) from err
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(n, SUMMARIES.get(n, "")) for n in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="packhorse")
def packhorse() -> None:
    """Carry thousands of models on a few machines.

    \b
    The pipeline, stage by stage:
      packhorse trace              compile the catalog's models into the store
      packhorse pack               plan the cheapest fleet
      packhorse deploy up          start it
      packhorse test seq           ask every model once

    Settings come from packhorse.yaml, PACKHORSE_* variables and flags; see
    `packhorse settings`.
    """


@click.command("settings")
@click.option("--markdown", is_flag=True, help="Print docs/settings.md instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def settings(markdown: bool, as_json: bool) -> None:
    """Print the settings in force, merged from file and environment.

    \b
    Example:
      PACKHORSE_PORT=9000 packhorse settings
    """
    from packhorse.settings import load_settings, settings_page

    if markdown:
        click.echo(settings_page(), nl=False)
        return
    values: dict[str, Any] = json.loads(load_settings().model_dump_json())
    if values["management_token"]:
        values["management_token"] = "(set)"  # noqa: S105 — shown instead of it
    if as_json:
        click.echo(json.dumps(values))
    else:
        for name, value in values.items():
            click.echo(f"{name}: {value}")


def main() -> None:
    """Run a command; an error of ours is one line, with the exit code of DESIGN 12.9."""
    try:
        packhorse.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as err:
        err.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except PackhorseError as err:
        click.echo(f"error: {err}", err=True)
        sys.exit(err.exit_code)


def _entry_points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group="packhorse.commands")
