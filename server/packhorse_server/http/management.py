"""The management port: what changes a server. On loopback, and behind a token."""

from __future__ import annotations

import secrets

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from packhorse import __version__
from packhorse.errors import PackhorseError
from packhorse_server.engine import Engine
from packhorse_server.http.errors import (
    on_any_error,
    on_http_error,
    on_packhorse_error,
    plain_error,
)
from packhorse_server.http.status import model_row


class RequireToken:
    """Refuse what does not carry the bearer token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Request(scope).headers.get("authorization", "").encode()
            if not secrets.compare_digest(given, b"Bearer " + self._token):
                refusal = plain_error(401, "unauthorized", "send the management token as bearer")
                refusal.headers["WWW-Authenticate"] = "Bearer"
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def management_app(engine: Engine, token: str) -> FastAPI:
    """Make the application of the management port."""
    app = FastAPI(
        title="packhorse management", version=__version__, redirect_slashes=False,
        docs_url=None, redoc_url=None,  # they would load scripts from elsewhere
    )  # fmt: skip
    app.add_middleware(RequireToken, token=token)
    app.add_exception_handler(PackhorseError, on_packhorse_error)
    app.add_exception_handler(404, on_http_error)
    app.add_exception_handler(405, on_http_error)
    app.add_exception_handler(Exception, on_any_error)

    @app.post("/v2/repository/models/{model_id:path}/load", summary="Look into the store now")
    async def load(model_id: str) -> Response:
        return JSONResponse(model_row(engine.retry(model_id)), 202)

    @app.post("/drain", summary="Turn unready; requests are still answered")
    async def drain() -> Response:
        engine.draining = True
        return JSONResponse({"draining": True})

    return app
