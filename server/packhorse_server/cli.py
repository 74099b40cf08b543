"""`packhorse serve`."""

from __future__ import annotations

import logging

import click

from packhorse.errors import InvalidInput
from packhorse.settings import Settings, load_settings, setting_options

log = logging.getLogger(__name__)


@click.command("serve")
@click.option("--models", "models", default=None, metavar="ID,…", help="Serve these, plan or not.")
@click.option("--all", "everything", is_flag=True, help="Serve every model of the store.")
@setting_options(
    "plan", "server", "store", "cache", "host", "port", "management_port", "management_token",
    "memory_bytes", "cache_bytes", "readiness", "drain_seconds", "lanes",
    "threads_per_inference", "max_body_bytes", "max_inputs", "max_queue_seconds",
    "request_timeout_seconds", "refresh_seconds", "retry_seconds",
)  # fmt: skip
def serve(models: str | None, everything: bool, **flags: object) -> None:
    """Serve models over HTTP until SIGTERM.

    What to serve comes from a plan, or from --models or --all. Models are pulled from the store,
    verified and loaded in the background; /readyz answers 200 once they are available.

    \b
    Examples:
      packhorse serve --plan plan.yaml --server cpu-0
      packhorse serve --models acme/intent,embed/minilm --port 9000
      packhorse serve --all --host 0.0.0.0
    """
    settings = load_settings(flags)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if models and everything:
        raise InvalidInput("give --models or --all, not both")
    _serve(settings, models, everything)


def _serve(settings: Settings, models: str | None, everything: bool) -> None:
    from packhorse.artifact import Artifact
    from packhorse.ids import check_model_id
    from packhorse.plan import load_plan
    from packhorse.store.repository import Repository
    from packhorse_server.engine import Engine
    from packhorse_server.lifespan import serve as run
    from packhorse_server.registry import Registry

    repository = Repository.open(settings.store)
    if models:
        registry = Registry(check_model_id(name) for name in models.split(",") if name)
    elif everything:
        found = [record for _, record in repository.artifacts() if isinstance(record, Artifact)]
        registry = Registry(sorted({record.id for record in found}))
        if not found:
            log.warning("no model in store %s: check its prefix, or run packhorse trace",
                        repository.objects.url)  # fmt: skip
    else:
        registry = Registry(load_plan(settings.plan).server(settings.server).models)
    run(Engine(registry, repository, settings), settings)
