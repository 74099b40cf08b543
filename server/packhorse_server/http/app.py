"""The application of the serving port."""

from __future__ import annotations

import re
import uuid

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from packhorse import __version__, protocol
from packhorse.errors import PackhorseError
from packhorse_server.engine import Engine
from packhorse_server.http.docs import add_docs
from packhorse_server.http.errors import on_any_error, on_http_error, on_packhorse_error
from packhorse_server.http.predictions import add_predictions
from packhorse_server.http.status import add_status

_SAFE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestId:
    """Give every answer the request's id, or one of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._name = protocol.REQUEST_ID.lower().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == self._name), b"")
        request_id = given.decode() if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[protocol.REQUEST_ID] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def serving_app(engine: Engine) -> FastAPI:
    """Make the application; the engine is started and stopped by whoever runs it."""
    app = FastAPI(
        title="packhorse",
        version=__version__,
        description="Predictions of many models from one server.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.openapi_version = "3.0.3"  # the newest that the bundled page reads
    add_docs(app)
    app.add_middleware(RequestId)
    app.add_exception_handler(PackhorseError, on_packhorse_error)
    app.add_exception_handler(404, on_http_error)
    app.add_exception_handler(405, on_http_error)
    app.add_exception_handler(Exception, on_any_error)
    add_predictions(app, engine)
    add_status(app, engine)
    return app
