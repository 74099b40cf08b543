"""The one table from errors to HTTP status codes (DESIGN 12.4)."""

from __future__ import annotations

import logging

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from packhorse.errors import PackhorseError
from packhorse.protocol import ErrorAnswer, error_answer

log = logging.getLogger(__name__)
STATUS = {
    "invalid_input": 400,
    "model_not_found": 404,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "queue_full": 429,
    "loading": 503,
    "quarantined": 503,
    "deadline_exceeded": 504,
    "does_not_fit": 507,
}
BODY_UNREAD = frozenset({"body_too_large", "unsupported_media_type", "deadline_exceeded"})
"""Found before the body's end: the connection is closed, or the client would go on sending."""
JSON = "application/json"


def error_response(err: PackhorseError) -> Response:
    """Answer with an error of ours; one that the table does not know is a fault of the server."""
    status = STATUS.get(err.code)
    if status is None:
        log.error("unexpected error in a request", exc_info=err)
        return plain_error(500, "internal", "the server failed: its log says why")
    headers = {"Retry-After": str(err.retry_after_s)} if err.retry_after_s else {}
    if err.code in BODY_UNREAD:
        headers["Connection"] = "close"
    return Response(error_answer(err), status, headers, JSON)


def plain_error(status: int, code: str, message: str) -> Response:
    """Answer with an error that is HTTP's own."""
    return Response(msgspec.json.encode(ErrorAnswer(message, code)), status, media_type=JSON)


async def on_packhorse_error(request: Request, err: Exception) -> Response:
    """Handle errors of ours wherever they are raised."""
    if not isinstance(err, PackhorseError):
        raise err
    return error_response(err)


async def on_http_error(request: Request, err: Exception) -> Response:
    """Handle the framework's 404 and 405."""
    if not isinstance(err, HTTPException):
        raise err
    if err.status_code == 404:
        return plain_error(404, "not_found", "no such path: GET /docs lists what there is")
    if err.status_code == 405:
        response = plain_error(405, "method_not_allowed", f"{request.method} is not allowed here")
        response.headers["Allow"] = ", ".join(_methods(request))
        return response
    return plain_error(err.status_code, "invalid_input", str(err.detail))


async def on_any_error(request: Request, err: Exception) -> Response:
    """Handle what nobody expected: the log gets the trace, the client does not."""
    log.error("unexpected error in a request path=%s", request.url.path, exc_info=err)
    return plain_error(500, "internal", "the server failed: its log says why")


def _methods(request: Request) -> list[str]:
    """Methods of every route at this path; the framework names those of the first one only."""
    methods: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return sorted(methods)
