"""PyTorch to an ONNX graph whose batch and length are free.

The TorchScript-based exporter is used: it and the dynamo-based one were found equal on
BERT-like models, and it takes 1.6 s where the other takes 15-38 s. Constants are not folded, so
that every initializer keeps its parameter's name and another fine-tune's weights can be put into
the same graph.
"""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any, cast

import numpy as np
import onnx
import torch

from packhorse.errors import TraceError
from packhorse_trace.samples import random_batch
from packhorse_trace.simplify import simplify_reshapes
from packhorse_trace.torch_model import EagerModel

OPSET = 17
PROTOBUF_LIMIT_BYTES = 2**31


def export_graph(eager: EagerModel, template: bool = False) -> onnx.ModelProto:
    """Export the original.

    Args:
        template: Export it with random weights, for `with_weights`: the exporter merges tensors
            that are equal, as the biases of a new model are.

    Raises:
        TraceError: An operator has no ONNX form, or the weights are over protobuf's 2 GiB.
    """
    weights = sum(tensor.nbytes for tensor in eager.module.state_dict().values())
    if weights >= PROTOBUF_LIMIT_BYTES:
        raise TraceError(f"{weights} bytes of weights: an ONNX file of over 2 GiB is not supported")
    module = copy.deepcopy(eager.module) if template else eager.module
    if template:
        with torch.no_grad():
            for tensor in module.parameters():
                tensor.normal_()
    # Two rows of other lengths: a sample of one row lets an exporter freeze the batch to one.
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    ids = torch.arange(18).reshape(2, 9) % eager.vocabulary
    types = torch.zeros_like(ids)
    types[:, 6:] = 1
    sample = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    axes: dict[str, dict[int, str]] = {n: {0: "batch", 1: "tokens"} for n in eager.inputs}
    axes[eager.module.output] = {0: "batch", **({1: "tokens"} if eager.per_token else {})}
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and the faster of the two (see above)
        try:
            torch.onnx.export(
                module,
                tuple(sample[name] for name in eager.inputs),
                cast(Any, buffer),  # declared as a path; this exporter takes a buffer too
                input_names=eager.inputs,
                output_names=[eager.module.output],
                dynamic_axes=axes,
                opset_version=OPSET,
                do_constant_folding=False,
                dynamo=False,
            )
        except Exception as err:  # the exporter lets errors of every layer through
            raise TraceError(
                f"cannot be exported to ONNX: {str(err).splitlines()[0][:300]}"
            ) from err
    graph = onnx.load_from_string(buffer.getvalue())
    longest = min(eager.max_length, 140)
    batches = [random_batch(*size, eager.vocabulary) for size in ((1, 5), (3, 7), (2, longest))]
    simplify_reshapes(graph, [{n: batch[n] for n in eager.inputs} for batch in batches])
    return graph


def with_weights(graph: onnx.ModelProto, eager: EagerModel) -> onnx.ModelProto | None:
    """Put another model's weights into a graph exported from one of the same shape.

    Returns:
        A new graph, or None where a weight has no place of its own in the graph.
    """
    state: dict[str, Any] = dict(eager.module.state_dict())
    own = onnx.ModelProto()
    own.CopyFrom(graph)
    for tensor in own.graph.initializer:
        if tensor.name not in state:
            return None
        array = state[tensor.name].numpy()
        if list(tensor.dims) != list(array.shape):
            return None
        tensor.raw_data = np.ascontiguousarray(array).tobytes()
    used = {tensor.name for tensor in own.graph.initializer}
    # A parameter that was folded into the graph would silently keep the first model's values.
    parameters = {name for name, _ in eager.module.named_parameters()}
    return own if parameters <= used | _unused(graph, eager) else None


def _unused(graph: onnx.ModelProto, eager: EagerModel) -> set[str]:
    """Parameters that no answer depends on: the pooler of a model whose pooler is not asked."""
    if eager.module.output != "embedding":
        return set()
    return {name for name, _ in eager.module.named_parameters() if ".pooler." in name}
