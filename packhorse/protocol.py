"""Requests and answers on the wire (DESIGN 12.4), the same for the server and for Lambda."""

from __future__ import annotations

from typing import Any

import msgspec

from packhorse.errors import InvalidInput, PackhorseError

REQUEST_ID = "X-Request-Id"
VERSION = "X-Packhorse-Version"
SERVER_TIMING = "Server-Timing"
TRUNCATED = "X-Packhorse-Truncated"
TIMEOUT_MS = "X-Request-Timeout-Ms"


class PredictRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a prediction; what `inputs` may be depends on the task."""

    inputs: Any
    parameters: dict[str, Any] = {}


class ErrorAnswer(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: str
    code: str


_requests = msgspec.json.Decoder(PredictRequest)


def decode_request(body: bytes) -> PredictRequest:
    """Read a prediction's body.

    Raises:
        InvalidInput: Not JSON, not an object, `inputs` missing, or an unknown key.
    """
    try:
        return _requests.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise InvalidInput(f'the body is not a request: {err}: send {{"inputs": "text"}}') from err


def query_request(query: dict[str, str]) -> PredictRequest:
    """Make a request of the query string of a GET: `seq_0`, and `seq_1` for pairs.

    Raises:
        InvalidInput: `seq_0` is missing.
    """
    if "seq_0" not in query:
        raise InvalidInput("seq_0 is missing: GET /predictions/<id>?seq_0=text")
    if "seq_1" not in query:
        return PredictRequest(query["seq_0"])
    return PredictRequest({"text": query["seq_0"], "text_pair": query["seq_1"]})


def error_answer(err: PackhorseError) -> bytes:
    """Write an error's body."""
    return msgspec.json.encode(ErrorAnswer(str(err), err.code))


def parse_timeout_ms(text: str) -> float:
    """Read a timeout in milliseconds as seconds.

    Raises:
        InvalidInput: Not a positive number.
    """
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0
    if not 0 < milliseconds < 86_400_000:
        raise InvalidInput(f"timeout {text[:40]!r} is not a positive number of milliseconds")
    return milliseconds / 1000
