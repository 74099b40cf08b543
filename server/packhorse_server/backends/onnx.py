"""ONNX Runtime on CPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path

from packhorse.onnx_session import Array, make_feed, open_session, session_inputs


class OnnxBackend:
    """One session; `run` is thread-safe and releases the interpreter lock."""

    def __init__(self, model: Path, threads: int) -> None:
        self._session = open_session(model, threads)
        self.inputs = session_inputs(self._session)

    def run(self, arrays: Mapping[str, Array]) -> list[Array]:
        answers: list[Array] = self._session.run(None, make_feed(self.inputs, arrays))
        return answers

    def unload(self) -> None:
        del self._session
        if sys.platform == "linux":
            # Freed weights stay with the allocator until it is told to let go.
            ctypes.CDLL(None).malloc_trim(0)
