"""The time that a caller allows, from the request's arrival to its answer."""

from __future__ import annotations

import time

from packhorse.errors import DeadlineExceeded


class Deadline:
    """The moment after which nobody waits for the answer any more."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Return the seconds left, negative when it has passed."""
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raise DeadlineExceeded when it has passed."""
        if self.remaining_s() <= 0:
            raise DeadlineExceeded(self.timeout_s)
