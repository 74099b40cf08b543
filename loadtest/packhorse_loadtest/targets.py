"""Whom to ask: every model of a deployment, or of one server by its URL."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx

from packhorse.deployment import DEPLOYED_PLAN, load_deployment
from packhorse.errors import DeployError, InvalidInput
from packhorse.plan import load_plan

TEXTS = (
    "Where is my parcel?",
    "I would like to return the shoes that I bought last week.",
    "The payment failed twice, what should I do?",
    "Please send me the invoice of my last order as a PDF.",
    "When do you open on Sunday?",
    "My password does not work any more and the reset mail never came.",
)
"""What is asked where no texts are given."""


@dataclass(frozen=True)
class Target:
    """A model, the URL that answers for it, and its task, where its server says which."""

    model_id: str
    url: str
    task: str | None = None

    def inputs(self, text: str) -> object:
        """Make a request's inputs of a text, as the task takes them."""
        if self.task == "question-answering":
            return {"question": text, "context": text}
        if self.task == "text-ranking":
            return {"query": text, "texts": [text]}
        return text


@dataclass(frozen=True)
class Fleet:
    """What is tested.

    Attributes:
        instances: Servers behind the targets.
        usd_per_hour: From the plan; None where there is none.
    """

    targets: list[Target]
    instances: int
    usd_per_hour: float | None


def find_fleet(url: str | None, plan_file: Path | None) -> Fleet:
    """Find the models to ask.

    Args:
        url: A server; None for what is deployed here.
        plan_file: The plan that says what the fleet costs; None for the deployed one, and for a
            URL none.

    Raises:
        DeployError: The server does not answer.
        InvalidInput: Nothing is deployed, or no model is served.
    """
    if plan_file is None and url is None and DEPLOYED_PLAN.exists():
        plan_file = DEPLOYED_PLAN
    tasks: dict[str, str | None] = {}
    price = load_plan(plan_file).fleet.usd_per_hour if plan_file else None
    if url is not None:
        base = url.rstrip("/")
        targets = [Target(name, predict_url(base, name), task) for name, task in _served(base)]
        instances = 1
    else:
        deployment = load_deployment()
        targets = []
        for server in deployment.servers.values():
            base = deployment.router_url or server.url
            with suppress(DeployError):  # what does not answer is counted in the report
                tasks.update(_served(server.url))
            targets += [Target(n, predict_url(base, n), tasks.get(n)) for n in server.models]
        instances = len(deployment.servers)
    if not targets:
        raise InvalidInput("no model is served there: deploy a plan that has some")
    targets = [target for target in targets if target.task != "tensor"]
    if not targets:
        raise InvalidInput("all models there take tensors (task tensor): no text can be sent")
    return Fleet(targets, instances, price)


def predict_url(base: str, model_id: str) -> str:
    """Return the URL at which a model answers."""
    return f"{base}/predictions/{quote(model_id)}"


def read_texts(path: Path | None) -> list[str]:
    """Return the texts of a file, one a line, or the built-in ones.

    Raises:
        InvalidInput: The file is missing or holds no text.
    """
    if path is None:
        return list(TEXTS)
    try:
        texts = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as err:
        raise InvalidInput(f"texts {path} cannot be read: {err}") from err
    if not texts:
        raise InvalidInput(f"texts {path} holds no text: write one a line")
    return texts


def _served(base: str) -> list[tuple[str, str | None]]:
    """Return the models of a server with their tasks."""
    try:
        response = httpx.get(f"{base}/models", timeout=10)
        response.raise_for_status()
        return [(str(row["id"]), row["task"]) for row in response.json()["models"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as err:
        raise DeployError(f"{base} does not list its models: {type(err).__name__}: {err}") from err
