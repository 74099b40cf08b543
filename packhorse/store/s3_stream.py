"""An S3 object as a stream of bytes that goes on where it broke."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from packhorse.errors import Corrupt, StoreError
from packhorse.store.s3_errors import explain, is_status

if TYPE_CHECKING:
    from packhorse.store.s3 import S3Objects

RESUMES = 5
"""How often a stream is taken up again that broke without a megabyte of progress between."""


class Stream(io.RawIOBase):
    """An object from a byte on, as long as it stays the same object.

    Raises, when it is made or read:
        StoreError: The object cannot be read.
        Corrupt: It has changed since the first byte.
    """

    def __init__(self, objects: S3Objects, key: str, start: int) -> None:
        self._objects, self._key, self._position = objects, key, start
        self._size: int | None = None
        self._etag: str | None = None
        self._body: Any = None
        self._read_into: Callable[[memoryview], int] = lambda view: 0
        self._failures, self._failed_at = 0, start
        self._connect()

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as bytes have come, and return how many; 0 is the end."""
        view = memoryview(buffer)
        while True:
            cause: Exception | None = None
            count = 0
            try:
                if self._body is None:
                    self._connect()
                count = self._read_into(view)
            except StoreError:
                raise
            except Exception as err:  # of sockets, TLS, urllib3 or botocore: the stream broke
                cause = err
            if count:
                self._position += count
                return count
            if cause is None and (self._size is None or self._position >= self._size):
                self._release()
                return 0
            self._resume_later(cause)

    def close(self) -> None:
        """Let go of the connection."""
        self._drop()
        super().close()

    def _connect(self) -> None:
        options: dict[str, Any] = self._objects.at(self._key)
        if self._position:
            options["Range"] = f"bytes={self._position}-"
        if self._etag:
            options["IfMatch"] = self._etag
        try:
            found = self._objects.client.get_object(**options)
        except Exception as err:
            if is_status(err, 416):  # nothing is left: whoever reads compares length and digest
                self._body, self._size = io.BytesIO(), self._position
                self._read_into = self._body.readinto
                return
            if is_status(err, 412):
                raise Corrupt(
                    f"{self._objects.url}/{self._key} changed while it was read: try again"
                ) from err
            raise explain(err, self._objects, self._key) from err
        self._body, self._etag = found["Body"], found.get("ETag")
        length = found.get("ContentLength")  # not said of what is sent in chunks
        self._read_into = _reader(self._body)
        if self._position and "ContentRange" not in found:  # the server sent all of it again
            self._skip(self._position)
            self._size = length
        else:
            self._size = None if length is None else self._position + length

    def _skip(self, count: int) -> None:
        buffer = memoryview(bytearray(64 * 1024))
        while count > 0:
            done = self._read_into(buffer[: min(count, len(buffer))])
            if not done:
                raise ConnectionError("the answer ended early")
            count -= done

    def _resume_later(self, cause: Exception | None) -> None:
        self._drop()
        if self._position - self._failed_at >= 1024 * 1024:
            self._failures = 0
        self._failures, self._failed_at = self._failures + 1, self._position
        if self._failures > RESUMES:
            raise StoreError(
                f"{self._objects.url}/{self._key}: the answer broke off at byte {self._position} "
                f"of {self._size}, {self._failures} times: {cause or 'connection closed'}: check "
                "the network and the server"
            ) from cause
        time.sleep(random.uniform(0, 0.1 * 2**self._failures))

    def _release(self) -> None:
        """Give a connection that was read to its end back to the pool."""
        raw = getattr(self._body, "_raw_stream", None)
        if raw is not None:
            raw.release_conn()

    def _drop(self) -> None:
        if self._body is not None:
            with suppress(Exception):
                self._body.close()
            self._body = None


def _reader(body: Any) -> Callable[[memoryview], int]:
    """Return what reads a body of the SDK into a buffer.

    Its own `readinto` makes two copies on the way. The response of the standard library below it
    makes none, which is worth a tenth of a pull's speed (benchmarks/pull.py).
    """
    below = getattr(getattr(body, "_raw_stream", None), "_fp", None)
    readinto: Callable[[memoryview], int] = getattr(below, "readinto", body.readinto)
    return readinto
