"""Named arrays: what a graph wants, chosen from what a tokenizer or a client gives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from packhorse.artifact import TensorSpec
from packhorse.errors import InvalidInput

Array = npt.NDArray[Any]
DATATYPES = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "int64": "INT64", "int32": "INT32",
    "int16": "INT16", "int8": "INT8", "uint64": "UINT64", "uint32": "UINT32", "uint16": "UINT16",
    "uint8": "UINT8", "bool": "BOOL", "str": "BYTES",
}  # fmt: skip
"""A tensor's dtype in records, and its name in the Open Inference Protocol."""
_SPEC = re.compile(r"(\w+)\s*\[((?:\s*-?\d+\s*,)*\s*-?\d+\s*,?|)\s*\]")
OPTIONAL_INPUTS = frozenset({"token_type_ids"})
"""Inputs that a tokenizer may leave out; zeros mean "one text" to every model that has them."""


def make_feed(inputs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Choose what a graph wants from what there is, by name and in the graph's dtypes.

    Args:
        inputs: The graph's declared inputs.
        arrays: Token arrays, each (batch, tokens), or a client's tensors.

    Raises:
        InvalidInput: The graph wants an input that nothing provides.
    """
    feed: dict[str, Array] = {}
    for spec in inputs:
        if spec.name in arrays:
            dtype = object if spec.dtype == "str" else spec.dtype
            feed[spec.name] = arrays[spec.name].astype(dtype, copy=False)
        elif spec.name in OPTIONAL_INPUTS and arrays:
            feed[spec.name] = np.zeros_like(next(iter(arrays.values())), dtype=spec.dtype)
        else:
            raise InvalidInput(
                f"the graph wants input {spec.name!r}, which is not given: given are "
                f"{', '.join(sorted(arrays))}"
            )
    return feed


def read_tensor_specs(value: object) -> tuple[TensorSpec, ...]:
    """Read what a person writes of a model's inputs: `{image: "float32 [1, 3, 299, 299]"}`.

    A list, without names, is in the order of the model's own.

    Raises:
        InvalidInput: Neither, or a text of another form.
    """
    if isinstance(value, list):
        return tuple(_read_spec("", text) for text in value)
    if isinstance(value, dict):
        return tuple(_read_spec(str(name), text) for name, text in value.items())
    raise InvalidInput('inputs must be a list or names with texts, such as x: "float32 [-1, 4]"')


def _read_spec(name: str, text: object) -> TensorSpec:
    found = _SPEC.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or found[1] not in DATATYPES:
        raise InvalidInput(
            f"input {name or text!r}: {text!r} is not a type with a shape, such as "
            f'"float32 [-1, 4]" (-1 is any size); types are {", ".join(DATATYPES)}'
        )
    sizes = [int(size) for size in found[2].split(",") if size.strip()]
    if any(size == 0 or size < -1 for size in sizes):
        raise InvalidInput(f"input {name or text!r}: sizes must be positive, or -1 for any")
    return TensorSpec(name, found[1], sizes)
