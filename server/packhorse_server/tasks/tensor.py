"""tensor: named arrays in and out, in the Open Inference Protocol's JSON.

https://github.com/open-inference/open-inference-protocol, "Inference".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from packhorse.artifact import Artifact, TensorSpec
from packhorse.errors import InvalidInput
from packhorse.tensors import DATATYPES, Array
from packhorse_server.tasks import refuse_unknown

_DTYPES = {name: dtype for dtype, name in DATATYPES.items()}
_KEYS = {"name", "shape", "datatype", "data"}


@dataclass(frozen=True)
class Question:
    """Tensors as a client wrote them, whose names and shapes are right; data by input name."""

    shapes: dict[str, list[int]]
    data: dict[str, Any]


@dataclass(frozen=True)
class Tensors:
    """Arrays by input name; nothing is ever cut off them."""

    arrays: dict[str, Array]
    cut: bool = False


class TensorEncoder:
    """Lists of numbers to arrays. Thread-safe."""

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        self._inputs = inputs

    def encode(self, question: Question) -> Tensors:
        """Make arrays.

        Raises:
            InvalidInput: Data that are not of the input's type, or not as many as its shape says.
        """
        return Tensors({spec.name: _array(spec, question) for spec in self._inputs})


class TensorTask:
    """Arrays to `{model_name, model_version, outputs: [{name, datatype, shape, data}]}`."""

    axes: tuple[str, ...] | None = None
    width: int | None = None
    whole = True

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._inputs = {spec.name: spec for spec in artifact.inputs}
        self.sample: Question | None = None

    def parse(self, item: Any, where: str) -> list[Any]:
        if not isinstance(item, list) or not all(isinstance(row, dict) for row in item):
            raise InvalidInput(f"{where} is no list of tensors: send {self._form()}")
        shapes: dict[str, list[int]] = {}
        data: dict[str, Any] = {}
        for number, row in enumerate(item):
            name = self._check(row, f"{where}[{number}]")
            if name in shapes:
                raise InvalidInput(f"{where}[{number}]: input {name[:80]!r} is given twice")
            shapes[name], data[name] = row["shape"], row["data"]
        if missing := self._inputs.keys() - shapes.keys():
            raise InvalidInput(f"{where} lacks input {min(missing)!r}: send {self._form()}")
        return [Question(shapes, data)]

    def check(self, parameters: dict[str, Any]) -> None:
        refuse_unknown(parameters, "tensor")

    def decode(
        self, outputs: list[Array], parameters: dict[str, Any], encoded: Tensors
    ) -> dict[str, Any]:
        rows = [
            {
                "name": spec.name,
                "datatype": DATATYPES[spec.dtype],
                "shape": list(output.shape),
                "data": output.ravel().tolist()
                if output.dtype.kind in "OU"
                else np.ascontiguousarray(output).ravel(),
            }
            for spec, output in zip(self._artifact.outputs, outputs, strict=True)
        ]
        return {
            "model_name": self._artifact.id,
            "model_version": self._artifact.version,
            "outputs": rows,
        }

    def combine(self, parts: list[Any]) -> Any:
        return parts[0]

    def _check(self, row: dict[str, Any], where: str) -> str:
        if row.keys() - {"parameters"} != _KEYS:
            raise InvalidInput(
                f"{where} has {', '.join(sorted(map(str, row)))[:100] or 'nothing'}: expected "
                "name, shape, datatype and data"
            )
        name, shape, datatype = row["name"], row["shape"], row["datatype"]
        spec = self._inputs.get(name) if isinstance(name, str) else None
        if spec is None:
            raise InvalidInput(f"{where}: there is no input {name!r:.80}: send {self._form()}")
        dtype = _DTYPES.get(datatype) if isinstance(datatype, str) else None
        if dtype is None or not _may_stand_for(dtype, spec.dtype):
            raise InvalidInput(
                f"{where}: datatype {datatype!r:.40} of {name!r}: send {DATATYPES[spec.dtype]}"
            )
        fits = isinstance(shape, list) and len(shape) == len(spec.shape)
        for size, wanted in zip(shape if fits else [], spec.shape, strict=False):
            whole = isinstance(size, int) and not isinstance(size, bool) and size > 0
            fits = fits and whole and wanted in (-1, size)
        if not fits:
            raise InvalidInput(
                f"{where}: shape {shape!r:.80} of {name!r}: send {spec.shape} (-1 is any size)"
            )
        return str(name)

    def _form(self) -> str:
        return ", ".join(
            f"{spec.name} {DATATYPES[spec.dtype]} {spec.shape}" for spec in self._inputs.values()
        )


def _may_stand_for(sent: str, wanted: str) -> bool:
    """Whole numbers may be sent as of any size, and to an input of fractions, as JSON has it."""
    if "str" in (sent, wanted) or "bool" in (sent, wanted):
        return sent == wanted
    return np.dtype(sent).kind in "iu" or np.dtype(wanted).kind == "f"


def _array(spec: TensorSpec, question: Question) -> Array:
    data, shape = question.data[spec.name], question.shapes[spec.name]
    what = f"data of {spec.name!r}"
    if not isinstance(data, list):
        raise InvalidInput(f"{what} is {type(data).__name__}: send a list of {prod(shape)} values")
    try:
        array = np.array(data, dtype=object if spec.dtype == "str" else None)
    except ValueError as err:
        raise InvalidInput(f"{what} is nested unevenly: send {prod(shape)} values") from err
    if array.size != prod(shape):
        raise InvalidInput(f"{what} has {array.size} values: shape {shape} needs {prod(shape)}")
    if spec.dtype == "str":
        if not all(isinstance(value, str) for value in array.flat):
            raise InvalidInput(f"{what} holds something that is no text: send texts")
        return array.reshape(shape)
    kinds = {"b": "b", "f": "iuf"}.get(np.dtype(spec.dtype).kind, "iu")
    if array.dtype.kind not in kinds:
        raise InvalidInput(f"{what} is of kind {array.dtype}: send {DATATYPES[spec.dtype]}")
    with np.errstate(over="ignore"):
        made = array.astype(spec.dtype)
    lost = made != array if made.dtype.kind in "iu" else np.isfinite(array) & ~np.isfinite(made)
    if np.any(lost):
        raise InvalidInput(f"{what} holds numbers that are too large for {DATATYPES[spec.dtype]}")
    return made.reshape(shape)
