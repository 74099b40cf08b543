"""What runs a compiled model here: a session that gives its memory back."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from packhorse.artifact import Artifact, TensorSpec
from packhorse.sessions import Session, open_model
from packhorse.tensors import Array


class Backend(Protocol):
    """A loaded model. Calls come from lane threads, several at once."""

    inputs: list[TensorSpec]

    def run(self, arrays: Mapping[str, Array]) -> list[Array]:
        """Infer; see `packhorse.sessions.Session`."""

    def unload(self) -> None:
        """Give the memory back. No call follows."""


class SessionBackend:
    """A session of any runtime."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.inputs = session.inputs

    def run(self, arrays: Mapping[str, Array]) -> list[Array]:
        return self._session.run(arrays)

    def unload(self) -> None:
        del self._session
        if sys.platform == "linux":
            # Freed weights stay with the allocator until it is told to let go.
            ctypes.CDLL(None).malloc_trim(0)


def load_backend(artifact: Artifact, folder: Path, threads: int) -> Backend:
    """Load a pulled model.

    Raises:
        InvalidInput: Its files are not what its runtime can load.
        MissingPackage: Its runtime is not installed here.
    """
    return SessionBackend(open_model(artifact, folder, threads))
