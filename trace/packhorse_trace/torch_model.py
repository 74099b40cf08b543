"""The eager original, wrapped so that every compiler sees plain tensors in and one out.

The only module of this stage, beside the exporters, that imports torch and transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from packhorse.errors import MissingPackage, TraceError
from packhorse.tensors import Array
from packhorse_trace.source import Source

try:
    import torch
    from torch import nn
except ImportError as err:
    raise MissingPackage("torch", "trace") from err


class Classifier(nn.Module):
    """Token ids to logits, (batch, labels)."""

    output = "logits"

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self._names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run on inputs in the order of the names."""
        named = dict(zip(self._names, inputs, strict=True))
        logits: torch.Tensor = self.model(**named, return_dict=False)[0]
        return logits


class Embedder(nn.Module):
    """Token ids to one vector per text, (batch, dimensions)."""

    output = "embedding"

    def __init__(self, model: Any, names: list[str], pooling: str, normalize: bool) -> None:
        super().__init__()
        self.model, self._names = model, names
        self._pooling, self._normalize = pooling, normalize

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run on inputs in the order of the names."""
        named = dict(zip(self._names, inputs, strict=True))
        hidden: torch.Tensor = self.model(**named, return_dict=False)[0]
        if self._pooling == "cls":
            vector = hidden[:, 0]
        else:
            mask = named["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            vector = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(vector, dim=1) if self._normalize else vector


class TokenClassifier(Classifier):
    """Token ids to logits of each token, (batch, tokens, labels)."""

    output = "token_logits"


class Answerer(nn.Module):
    """Token ids to scores of an answer's beginning and end at each token, (batch, tokens, 2)."""

    output = "spans"

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self._names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run on inputs in the order of the names."""
        named = dict(zip(self._names, inputs, strict=True))
        begin, end = self.model(**named, return_dict=False)[:2]
        return torch.stack([begin, end], dim=-1)


@dataclass(frozen=True)
class EagerModel:
    """The original: what every artifact is compared with.

    Attributes:
        module: Positional int64 tensors (batch, tokens) in, one float tensor out; its `output`
            names that.
        inputs: Their names, in order.
        vocabulary: Token ids run below this.
        max_length: Most tokens that it reads.
        parameters: How many weights its source holds.
    """

    module: Classifier | Embedder | Answerer
    inputs: list[str]
    vocabulary: int
    max_length: int
    parameters: int

    @property
    def per_token(self) -> bool:
        """Whether the output has a row for each token, those of padding included."""
        return self.module.output in ("token_logits", "spans")

    def run(self, arrays: Mapping[str, Array]) -> Array:
        """Answer as the original does."""
        with torch.inference_mode():
            answer = self.module(*(torch.from_numpy(arrays[name]) for name in self.inputs))
        return np.asarray(answer.numpy())


def load_eager(source: Source, task: str) -> EagerModel:
    """Load the original in fp32, ready to answer.

    Raises:
        TraceError: Task or architecture not supported, or weights missing.
    """
    import transformers

    classes = {
        "text-classification": transformers.AutoModelForSequenceClassification,
        "token-classification": transformers.AutoModelForTokenClassification,
        "question-answering": transformers.AutoModelForQuestionAnswering,
        "text-ranking": transformers.AutoModelForSequenceClassification,
        "feature-extraction": transformers.AutoModel,
    }
    if task not in classes:
        raise TraceError(
            f"task {task!r} is not supported by this version: use {', '.join(classes)}"
        )
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, info = classes[task].from_pretrained(
            source.folder, local_files_only=True, output_loading_info=True,
            attn_implementation="eager", use_safetensors=True,
        )  # fmt: skip
    except Exception as err:  # a dozen kinds, for a dozen ways in which a folder can be wrong
        raise TraceError(f"transformers cannot load {source.folder}: {_reason(err)}") from err
    missing = sorted(info["missing_keys"])
    if task == "feature-extraction":
        missing = [name for name in missing if not name.startswith("pooler.")]  # not used
    if missing:
        raise TraceError(
            f"{source.folder} lacks weights for task {task!r}: {', '.join(missing[:3])}"
            f"{' …' if len(missing) > 3 else ''}"
        )
    accepted = inspect.signature(model.forward).parameters
    names = ["input_ids", "attention_mask"]
    if "token_type_ids" in accepted and source.config.get("type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    module: Classifier | Embedder | Answerer
    if task == "feature-extraction":
        module = Embedder(model, names, source.pooling, source.normalize)
    elif task == "question-answering":
        module = Answerer(model, names)
    else:
        module = (TokenClassifier if task == "token-classification" else Classifier)(model, names)
    # On the wrapper too: an exporter restores the mode that it finds there, for all modules.
    module.float().eval()
    if broken := [name for name, p in module.named_parameters() if not p.isfinite().all()]:
        raise TraceError(
            f"{source.folder}: weights {broken[0].removeprefix('model.')} hold numbers that are "
            "not finite: train or save the model again"
        )
    vocabulary = int(source.config["vocab_size"])
    return EagerModel(module, names, vocabulary, source.max_length, source.parameters)


def _reason(err: Exception) -> str:
    """Say in a line why a model does not load."""
    line = (str(err).splitlines() or [""])[0][:300]
    if "ignore_mismatched_sizes" in line:  # the report that it speaks of is for a terminal
        return (
            "its weights do not have the shapes that config.json says (labels, vocab_size, "
            "max_position_embeddings, hidden_size …)"
        )
    return f"{type(err).__name__}: {line}" if isinstance(err, KeyError) or not line else line
