"""`/predictions/{id}`: the hot path. Bodies are read and written by hand, not by FastAPI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import orjson
from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from packhorse import protocol
from packhorse.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    InvalidInput,
    PackhorseError,
    UnsupportedMediaType,
)
from packhorse_server.deadline import Deadline
from packhorse_server.engine import Engine, Prediction
from packhorse_server.http.errors import JSON, error_response

T = TypeVar("T")
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "additionalProperties": False,
                    "properties": {
                        "inputs": {
                            "description": "A text, a pair, or a list of them.",
                            "oneOf": [
                                {"type": "string"},
                                {"type": "object"},
                                {"type": "array", "minItems": 1},
                            ],
                        },
                        "parameters": {"type": "object"},
                    },
                },
                "examples": {
                    "text": {"value": {"inputs": "where is my parcel?"}},
                    "list": {"value": {"inputs": ["where is my parcel?", "cancel my order"]}},
                    "question": {
                        "value": {
                            "inputs": {"question": "who is late?", "context": "The parcel is late."}
                        },
                    },
                    "ranking": {
                        "value": {"inputs": {"query": "parcels", "texts": ["a bill", "a parcel"]}},
                    },
                    "best label only": {
                        "value": {"inputs": "hello", "parameters": {"top_k": 1}},
                    },
                },
            }
        },
    }
}
_QUERY = [
    {"name": name, "in": "query", "required": name == "seq_0", "schema": {"type": "string"},
     "description": text}
    for name, text in (("seq_0", "The text, or the question."),
                       ("seq_1", "The second text of a pair, or the context."))
]  # fmt: skip
_HEADERS = [
    {"name": protocol.TIMEOUT_MS, "in": "header", "required": False,
     "schema": {"type": "number"}, "description": "Deadline, in milliseconds."},
]  # fmt: skip
_ERROR = {
    "content": {
        JSON: {
            "schema": {
                "type": "object",
                "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
            }
        }
    }
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer; a list of inputs gives a list of answers."},
    400: {"description": "invalid_input", **_ERROR},
    404: {"description": "model_not_found", **_ERROR},
    413: {"description": "body_too_large", **_ERROR},
    415: {"description": "unsupported_media_type", **_ERROR},
    429: {"description": "queue_full; see Retry-After", **_ERROR},
    503: {"description": "loading or quarantined; see Retry-After", **_ERROR},
    504: {"description": "deadline_exceeded", **_ERROR},
    507: {"description": "does_not_fit", **_ERROR},
}


def add_predictions(app: FastAPI, engine: Engine) -> None:
    """Add the routes."""

    @app.post(
        "/predictions/{model_id:path}",
        tags=["predictions"],
        summary="Ask a model",
        responses=_RESPONSES,
        openapi_extra={**_BODY, "parameters": _HEADERS},
    )
    async def post_prediction(model_id: str, request: Request) -> Response:
        async def read() -> protocol.PredictRequest:
            _require_json(request)
            return protocol.decode_request(await _read_body(request, engine))

        return await _answer(engine, model_id, request, read)

    @app.get(
        "/predictions/{model_id:path}",
        tags=["predictions"],
        summary="Ask a model from a browser or curl",
        responses=_RESPONSES,
        openapi_extra={"parameters": _QUERY + _HEADERS},
    )
    async def get_prediction(model_id: str, request: Request) -> Response:
        async def read() -> protocol.PredictRequest:
            return protocol.query_request(dict(request.query_params))

        return await _answer(engine, model_id, request, read)


async def _answer(engine: Engine, model_id: str, request: Request, read: Any) -> Response:
    start = time.perf_counter()
    model_id = model_id.removesuffix("/")
    prediction: Prediction | None = None
    try:
        deadline = Deadline(_timeout_s(request) or engine.settings.request_timeout_seconds)
        asked = await _in_time(read(), deadline)
        prediction = await engine.predict(model_id, asked, deadline)
        body = orjson.dumps(prediction.answer, option=orjson.OPT_SERIALIZE_NUMPY)
        response = Response(body, media_type=JSON)
        outcome = "ok"
    except PackhorseError as err:
        response, outcome = error_response(err), err.code
    except ClientDisconnect:
        engine.metrics.answered(model_id, "client_gone", time.perf_counter() - start, None)
        return Response(status_code=499)  # nobody reads it
    except Exception:
        engine.metrics.answered(model_id, "internal", time.perf_counter() - start, None)
        raise
    engine.metrics.answered(model_id, outcome, time.perf_counter() - start, prediction)
    _set_headers(response, prediction)
    return response


async def _in_time(reading: Coroutine[Any, Any, T], deadline: Deadline) -> T:
    """Read a request, but no longer than its deadline: a slow client must not hold us."""
    try:
        return await asyncio.wait_for(reading, deadline.remaining_s())
    except asyncio.TimeoutError as err:
        raise DeadlineExceeded(deadline.timeout_s) from err


def _set_headers(response: Response, prediction: Prediction | None) -> None:
    headers = response.headers
    if prediction is None:
        headers[protocol.VERSION] = "none"
        headers[protocol.SERVER_TIMING] = "queue;dur=0, infer;dur=0"
        return
    headers[protocol.VERSION] = prediction.version
    timing = f"queue;dur={prediction.queue_s * 1e3:.3f}, infer;dur={prediction.infer_s * 1e3:.3f}"
    if prediction.load_s is not None:
        timing += f", load;dur={prediction.load_s * 1e3:.3f}"
    headers[protocol.SERVER_TIMING] = timing
    if prediction.truncated:
        headers[protocol.TRUNCATED] = "1"


def _timeout_s(request: Request) -> float | None:
    text = request.headers.get(protocol.TIMEOUT_MS) or request.query_params.get("timeout_ms")
    return protocol.parse_timeout_ms(text) if text else None


def _require_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind and kind != JSON and not kind.endswith("+json"):
        raise UnsupportedMediaType(content_type[:80])


async def _read_body(request: Request, engine: Engine) -> bytes:
    """Read the body, holding no more than the limit of it."""
    limit = engine.settings.max_body_bytes
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit:
        raise BodyTooLarge(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        chunks.append(chunk)
    if not size:
        raise InvalidInput('the body is empty: send {"inputs": "text"}')
    return b"".join(chunks)
