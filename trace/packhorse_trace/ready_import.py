"""Bring a compiled file into the store's form, and show that it still answers as it did.

An ONNX file is optimised and its tensors become files; a TorchScript file is taken as it is.
Neither says all that a server must know, so the rest is asked of the model itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packhorse.artifact import Cost, Equality, TensorSpec
from packhorse.catalog import ModelSpec
from packhorse.errors import InvalidInput, NotEqual, TraceError
from packhorse.sessions import open_model
from packhorse.settings import Settings
from packhorse.tensors import DATATYPES, Array
from packhorse_trace.measure import measure_model
from packhorse_trace.ready import ReadyFile
from packhorse_trace.samples import random_tensors
from packhorse_trace.tracer import Compiled

DRAWS = 4
"""Random inputs compared for each batch size."""
Run = Callable[[Mapping[str, Array]], Sequence[Array]]


def import_ready(
    source: ReadyFile, spec: ModelSpec, settings: Settings, folder: Path
) -> tuple[Compiled, Equality, Cost, list[str] | None]:
    """Write the artifact's files, compare them with the source, and measure them.

    Returns:
        What was made, its equality and cost, and the class labels that the file names.

    Raises:
        TraceError: It cannot be run, or needs `inputs` in the catalog.
        NotEqual: It answers otherwise than the file did.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labels = None
    reference: Run
    if source.path.suffix == ".onnx":
        from packhorse_trace.onnx_import import import_onnx

        compiled, reference, labels = import_onnx(source, spec, folder)
    else:
        compiled, reference = _import_script(source, spec, folder)
    _check_types([*compiled.inputs, *compiled.outputs], source)
    try:
        session = open_model(compiled, folder, threads=1)
    except InvalidInput as err:
        raise TraceError(f"{source.path}: {err}") from err
    equality = _compare(reference, session.run, compiled, spec, settings)
    cost = measure_model(compiled, folder, [spec.sequence_length], batches(compiled, spec))
    return compiled, equality, cost, labels


def batches(compiled: Compiled, spec: ModelSpec) -> list[int]:
    """Return the batch sizes to try: the first axis's own where it is fixed."""
    sizes = {item.shape[0] for item in compiled.inputs if item.shape}
    fixed = max(sizes, default=-1)
    return [fixed] if fixed > 0 else sorted({1, spec.batch})


def declared(found: Sequence[TensorSpec], spec: ModelSpec, source: ReadyFile) -> list[TensorSpec]:
    """Return a model's inputs with what the catalog says of them.

    Raises:
        TraceError: The catalog names inputs that the model does not have, or not all.
    """
    if spec.inputs is None:
        return list(found)
    names = [item.name for item in found]
    given = [item.name for item in spec.inputs]
    if len(given) != len(names) or (any(given) and set(given) != set(names)):
        raise TraceError(
            f"{source.path} takes {', '.join(names) or 'nothing'}; inputs ({spec.where}) gives "
            f"{', '.join(name or 'one without a name' for name in given) or 'none'}: give each"
        )
    by_name = {item.name or name: item for item, name in zip(spec.inputs, names, strict=True)}
    for item in found:
        _check_declared(item, by_name[item.name], spec)
    return [TensorSpec(name, by_name[name].dtype, by_name[name].shape) for name in names]


def _check_declared(known: TensorSpec, given: TensorSpec, spec: ModelSpec) -> None:
    """A catalog may narrow what an ONNX file says of an input, and not contradict it."""
    if not known.dtype:  # TorchScript says nothing
        return
    fits = known.dtype == given.dtype and len(known.shape) == len(given.shape)
    for size, own in zip(known.shape, given.shape, strict=False):
        fits = fits and size in (-1, own)
    if not fits:
        raise TraceError(
            f"input {known.name!r} is {known.dtype} {known.shape}; inputs ({spec.where}) says "
            f"{given.dtype} {given.shape}: correct it"
        )


def _import_script(source: ReadyFile, spec: ModelSpec, folder: Path) -> tuple[Compiled, Run]:
    import platform

    from packhorse.sessions.torchscript import FILE, flatten, import_torch, read_script, to_array

    torch = import_torch()
    try:
        module = read_script(source.path)
    except InvalidInput as err:
        raise TraceError(f"{source.path}: {err}") from err
    names = [argument.name for argument in module.forward.schema.arguments[1:]]
    if spec.inputs is None:
        raise TraceError(
            f"{source.path}: TorchScript says neither types nor shapes: give inputs in the catalog "
            f"({spec.where}), such as inputs: {{{names[0] if names else 'x'}: "
            '"float32 [-1, 3, 224, 224]"}'
        )
    inputs = declared([TensorSpec(name, "", []) for name in names], spec, source)
    if unknown := [item.name for item in inputs if item.dtype == "str"]:
        raise TraceError(f"{source.path}: input {unknown[0]!r}: torch has no tensors of texts")

    def reference(arrays: Mapping[str, Array]) -> list[Array]:
        with torch.inference_mode():
            answer = module(*(torch.from_numpy(arrays[item.name]) for item in inputs))
        return [to_array(tensor) for tensor in flatten(answer)]

    shutil.copyfile(source.path, folder / FILE)
    compiled = Compiled(
        processor="cpu",
        format="torchscript",
        precision="fp32",
        inputs=inputs,
        outputs=_outputs(reference, inputs, spec, source),
        batch_sizes=[-1],
        sequence_lengths=[-1],
        invariant=False,
        built_with={"python": platform.python_version(), "torch": str(torch.__version__)},
    )
    return compiled, reference


def _outputs(
    reference: Run, inputs: list[TensorSpec], spec: ModelSpec, source: ReadyFile
) -> list[TensorSpec]:
    """Describe the outputs by what they are for two inputs; an axis that differs is free."""
    sizes = [(1, spec.sequence_length), (3, spec.sequence_length + 1)]
    try:
        small, large = (reference(random_tensors(inputs, *size, seed=0)) for size in sizes)
    except Exception as err:  # a RuntimeError of torch, or what the module raises itself
        raise TraceError(
            f"{source.path} does not run on inputs as declared ({spec.where}): {_last_line(err)}"
        ) from err
    return [
        TensorSpec(
            f"output_{number}",
            str(one.dtype),
            [
                size if size == other else -1
                for size, other in zip(one.shape, two.shape, strict=True)
            ],
        )
        for number, (one, two) in enumerate(zip(small, large, strict=True))
    ]


def _check_types(specs: Sequence[TensorSpec], source: ReadyFile) -> None:
    for spec in specs:
        if spec.dtype not in DATATYPES:
            raise TraceError(
                f"{source.path}: {spec.name!r} is a {spec.dtype}, which cannot be sent as JSON: "
                f"cast it to a tensor of {', '.join(DATATYPES)}"
            )


def _compare(
    reference: Run, run: Run, compiled: Compiled, spec: ModelSpec, settings: Settings
) -> Equality:
    worst, count = 0.0, 0
    for batch in batches(compiled, spec):
        for draw in range(DRAWS):
            arrays = random_tensors(compiled.inputs, batch, spec.sequence_length, seed=draw)
            try:
                wanted, answers = reference(arrays), run(arrays)
            except Exception as err:  # of the runtime
                shapes = ", ".join(f"{name} {list(a.shape)}" for name, a in arrays.items())
                raise TraceError(
                    f"does not run on {shapes}: {_last_line(err)}: give inputs in the catalog "
                    f"({spec.where})"
                ) from err
            for item, answer, want in zip(compiled.outputs, answers, wanted, strict=True):
                worst = max(worst, _difference(item.name, answer, want, settings.max_abs_diff))
            count += 1
    return Equality(f"the file, run by {_runtime(compiled)}", count, worst, None)


def _runtime(compiled: Compiled) -> str:
    if compiled.format == "onnx":
        return f"onnxruntime {compiled.built_with['onnxruntime']} without optimisation"
    return f"torch {compiled.built_with['torch']}"


def _difference(name: str, answer: Array, want: Array, allowed: float) -> float:
    """Return the largest difference of two outputs' numbers.

    Raises:
        NotEqual: Over what is allowed, for outputs around one; larger ones in proportion.
    """
    if answer.shape != want.shape or answer.dtype != want.dtype:
        raise NotEqual(
            f"output {name!r} is {answer.dtype} {answer.shape}: the file gives {want.dtype} "
            f"{want.shape}"
        )
    if want.dtype.kind not in "fc":
        if not np.array_equal(answer, want):
            raise NotEqual(f"output {name!r} differs from the file's")
        return 0.0
    if not np.array_equal(np.isfinite(answer), np.isfinite(want)):
        raise NotEqual(f"output {name!r} has other numbers that are not finite than the file's")
    finite = np.isfinite(want)
    if not finite.any():
        return 0.0
    difference = float(np.abs(answer[finite] - want[finite]).max())
    if difference > allowed * max(1.0, float(np.abs(want[finite]).max())):
        raise NotEqual(
            f"output {name!r} differs from the file's by {difference:.2e} (max_abs_diff): is it in "
            "training mode, or random?"
        )
    return difference


def _last_line(err: Exception) -> str:
    lines: list[Any] = [line for line in str(err).splitlines() if line.strip()]
    return str(lines[-1])[:300] if lines else type(err).__name__
