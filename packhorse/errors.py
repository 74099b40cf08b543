"""Every error that packhorse raises on purpose.

    PackhorseError                    base; `code` names it on the wire, `exit_code` in a shell
    ├── InvalidInput                  what a person or a client wrote is wrong: correct it
    │   ├── BodyTooLarge              the request is over the size limit: send less
    │   └── UnsupportedMediaType      the body is not JSON: say so in Content-Type
    ├── ModelNotFound                 no such model here: ask another server, or deploy it
    ├── NotReady
    │   ├── Loading                   try again in a few seconds
    │   └── Quarantined               the model is broken; its neighbours are not: repair it
    ├── QueueFull                     overload: back off, or add replicas
    ├── DeadlineExceeded              the caller's time ran out before the model ran
    ├── DoesNotFit                    larger than the memory there is: raise it, or split
    ├── StoreError                    the store cannot be read or written
    │   └── Corrupt                   bytes are not what their manifest says: publish again
    ├── TraceError                    a model cannot be compiled
    │   └── NotEqual                  it compiled, but answers otherwise than the original
    ├── MissingPackage                an optional package is absent: install the extra named
    └── DeployError                   a server could not be started or stopped

A class exists for each thing a caller does differently. The message names the offending value
and the remedy. HTTP status codes live in the HTTP layer only.
"""

from __future__ import annotations


class PackhorseError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        code: Name on the wire (DESIGN 12.4).
        exit_code: What a command exits with (DESIGN 12.9).
        retry_after_s: Seconds after which trying again can help; None where it cannot.
    """

    code = "internal"
    exit_code = 2
    retry_after_s: int | None = None


class InvalidInput(PackhorseError, ValueError):
    """What a person or a client wrote is wrong.

    A ValueError too, so that a validator of a settings or catalog field may raise it.
    """

    code = "invalid_input"


class BodyTooLarge(InvalidInput):
    """The request body is over the limit."""

    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"the body is larger than {limit_bytes} bytes: send fewer or shorter inputs"
        )


class UnsupportedMediaType(InvalidInput):
    """The body is of a type that no endpoint reads."""

    code = "unsupported_media_type"

    def __init__(self, content_type: str) -> None:
        super().__init__(f"content type {content_type!r} is not supported: send application/json")


class ModelNotFound(PackhorseError):
    """The model is not served here."""

    code = "model_not_found"

    def __init__(self, model_id: str) -> None:
        super().__init__(f"model {model_id[:200]!r} is not served here: GET /models lists what is")


class NotReady(PackhorseError):
    """The model is known and cannot answer now."""


class Loading(NotReady):
    """The model is still being pulled or loaded."""

    code = "loading"
    retry_after_s = 2

    def __init__(self, model_id: str) -> None:
        super().__init__(f"model {model_id!r} is loading: try again in a few seconds")


class Quarantined(NotReady):
    """The model failed to load; it is retried in the background."""

    code = "quarantined"
    retry_after_s = 30

    def __init__(self, model_id: str, reason: str) -> None:
        super().__init__(f"model {model_id!r} is quarantined: {reason}")


class QueueFull(PackhorseError):
    """More work is waiting than can be answered in time."""

    code = "queue_full"

    def __init__(self, model_id: str, waiting_s: float) -> None:
        super().__init__(
            f"model {model_id!r} has {waiting_s:.1f} s of work waiting: slow down or add replicas"
        )
        self.retry_after_s = max(1, round(waiting_s))


class DeadlineExceeded(PackhorseError):
    """The caller's time ran out before the answer was made."""

    code = "deadline_exceeded"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"no answer within {timeout_s * 1000:.0f} ms: allow more time or send less load"
        )


class DoesNotFit(PackhorseError):
    """A model is larger than the memory that may hold it."""

    code = "does_not_fit"
    exit_code = 3

    def __init__(self, model_id: str, need_bytes: int, limit_bytes: int, where: str) -> None:
        from packhorse.units import format_bytes

        super().__init__(
            f"model {model_id!r} needs {format_bytes(need_bytes)}; {where} offers "
            f"{format_bytes(limit_bytes)}: allow a larger type, or compile it smaller (int8)"
        )


class StoreError(PackhorseError):
    """The store cannot be read or written."""

    code = "store_error"


class Corrupt(StoreError):
    """Bytes are not what their manifest says."""


class TraceError(PackhorseError):
    """A model cannot be compiled."""

    code = "trace_error"
    exit_code = 1


class NotEqual(TraceError):
    """A compiled model answers otherwise than its original."""


class MissingPackage(PackhorseError):
    """An optional package is absent."""

    def __init__(self, package: str, extra: str, image: bool = False) -> None:
        remedy = (
            f"run in the image packhorse-{extra} (make trace PROCESSOR={extra} does)"
            if image
            else f"pip install 'packhorse[{extra}]'"
        )
        super().__init__(f"{package} is not installed: {remedy}")


class DeployError(PackhorseError):
    """A server could not be started, reached or stopped."""

    exit_code = 1
