"""The machine on which a model is verified and measured; both depend on it."""

from __future__ import annotations

import fcntl
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from packhorse.artifact import VerifiedOn

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "amx_bf16", "asimddp", "i8mm")
"""CPU features on which the speed and the int8 answers of ONNX Runtime depend."""


@cache
def this_machine() -> VerifiedOn:
    """Describe this CPU."""
    model, flags = platform.processor() or platform.machine(), ""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = value
    return VerifiedOn(model, [name for name in FEATURES if name in flags.split()])


@contextmanager
def machine_to_itself() -> Iterator[None]:
    """Hold a lock that every measuring process of this machine takes."""
    path = Path(tempfile.gettempdir()) / "packhorse-measure.lock"
    try:
        lock = path.open("a")
    except PermissionError:  # another user's; to lock it, reading is enough
        lock = path.open()
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
