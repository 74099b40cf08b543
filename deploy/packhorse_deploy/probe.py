"""Asking a server how it is, and waiting until it is ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from packhorse.errors import DeployError

PATIENCE_S = 600.0
"""How long a server may take to load its models before `up` gives up on it."""


@dataclass(frozen=True)
class Answer:
    """What `/readyz` said: 200 or not, and why; status 0 where nobody answered."""

    status: int
    reason: str


def ask_ready(url: str) -> Answer:
    """Ask a server whether it is ready."""
    try:
        response = httpx.get(f"{url}/readyz", timeout=2)
        return Answer(response.status_code, str(response.json().get("reason", "")))
    except (httpx.HTTPError, ValueError) as err:
        return Answer(0, f"does not answer: {type(err).__name__}")


def count_available(url: str) -> int:
    """Return how many models a starting server has loaded; 0 where it does not answer."""
    try:
        return int(httpx.get(f"{url}/startupz", timeout=2).json()["available"])
    except (httpx.HTTPError, ValueError, KeyError):
        return 0


def wait_ready(url: str, alive: Callable[[], bool], advance: Callable[[float], None]) -> None:
    """Wait until a server is ready.

    Args:
        alive: Whether its process still runs.
        advance: Called with the number of models loaded since the last call.

    Raises:
        DeployError: The process ended, every model was tried and the server is still not ready,
            or it took longer than `PATIENCE_S`.
    """
    seen = 0
    end = time.monotonic() + PATIENCE_S
    while True:
        answer = ask_ready(url)
        loaded = count_available(url)
        if loaded > seen:
            advance(loaded - seen)
            seen = loaded
        if answer.status == 200:
            return
        if not alive():
            raise DeployError("the process ended: its log says why")
        if answer.status == 503 and _tried_all(url):
            answer = ask_ready(url)  # the last model may have come between the two questions
            if answer.status == 200:
                return
            raise DeployError(answer.reason)
        if time.monotonic() > end:
            raise DeployError(f"not ready after {PATIENCE_S:.0f} s: {answer.reason}")
        time.sleep(0.1)


def _tried_all(url: str) -> bool:
    try:
        progress = httpx.get(f"{url}/startupz", timeout=2).json()
        return bool(progress["started"])
    except (httpx.HTTPError, ValueError, KeyError):
        return False
