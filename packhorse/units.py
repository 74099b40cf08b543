"""Bytes and seconds at the edge: what people write and read, as whole bytes and seconds inside."""

from __future__ import annotations

import re
from decimal import Decimal

from packhorse.errors import InvalidInput

KIB, MIB, GIB = 1024, 1024**2, 1024**3
MICRO = 1_000_000
"""Micro-shares in one lane of compute; packing counts in these, so that sums are exact."""

_BYTE_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "ki": KIB, "mi": MIB, "gi": GIB, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024**4,
}  # fmt: skip
_SECOND_UNITS = {
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Read '512MiB', '2GB' or a plain number as whole bytes, rounded down.

    Raises:
        InvalidInput: Not a quantity of bytes.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None or match[2].lower() not in _BYTE_UNITS:
        raise InvalidInput(f"{text!r} is not a size: write bytes, or a number with KiB, MiB, GiB")
    return int(Decimal(match[1]) * _BYTE_UNITS[match[2].lower()])


def parse_seconds(text: str | float) -> float:
    """Read '100ms', '2s' or a plain number as seconds.

    Raises:
        InvalidInput: Not a span of time.
    """
    match = _QUANTITY.fullmatch(str(text))
    unit = match[2].lower() or "s" if match else ""
    if match is None or unit not in _SECOND_UNITS:
        raise InvalidInput(
            f"{text!r} is not a time: write seconds, or a number with us, ms, s, m, h"
        )
    return float(Decimal(match[1]) * _SECOND_UNITS[unit])


def format_bytes(count: float) -> str:
    """Write bytes for people: '89.3 MiB'."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """Write a span of time for people: '3.2 ms', '1.4 s', '2 min 05 s'."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
