"""A timer for an event loop that is exact to some microseconds.

asyncio's and uvloop's own timers go by whole milliseconds, which is as long as a small model's
inference: requests sent that late would be counted as slow answers. Linux has timers that are file
descriptors; elsewhere the loop's own are used.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

CLOCK_MONOTONIC = 1
TFD_NONBLOCK, TFD_CLOEXEC, TFD_TIMER_ABSTIME = 0o4000, 0o2000000, 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Setting(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class Timer:
    """Calls back at a time of `time.monotonic`; setting it again replaces the time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop, self._callback = loop, callback
        self._handle: asyncio.TimerHandle | None = None
        self._file = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._file = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self._file >= 0:
            loop.add_reader(self._file, self._fire)

    def set(self, when: float) -> None:
        """Call back at that time, or at once if it has passed."""
        if self._file < 0:
            if self._handle is not None:
                self._handle.cancel()
            delay_s = max(0.0, when - time.monotonic())
            self._handle = self._loop.call_later(delay_s, self._callback)
            return
        whole = int(when)
        setting = _Setting()
        setting.value = _Timespec(whole, max(1, int((when - whole) * 1e9)))  # all 0 disarms it
        self._libc.timerfd_settime(self._file, TFD_TIMER_ABSTIME, ctypes.byref(setting), None)

    def close(self) -> None:
        """Never call back again."""
        if self._handle is not None:
            self._handle.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _fire(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set anew in the meantime
            return
        self._callback()
