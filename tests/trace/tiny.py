"""Tiny random models in Hugging Face layout, of several architectures, with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from packhorse.catalog import ModelSpec
from packhorse.settings import Settings

SIZES: dict[str, Any] = {
    "vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
SETTINGS = Settings(min_label_agreement=0.0, min_cosine=-1.0, max_score_noise=1e9)
"""Random weights have no margins: what int8 does to them is shown by the tests of verify."""


def save_tiny(
    folder: Path, kind: str = "bert", labels: int = 3, seed: int = 0, embed: bool = False,
    task: str = "text-classification", positions: int = 64,
) -> Path:  # fmt: skip
    """Save a model with random weights; the same seed gives the same weights."""
    torch.manual_seed(seed)
    config: Any
    sizes = {**SIZES, "max_position_embeddings": positions}
    if kind == "bert":
        config = transformers.BertConfig(**sizes, num_labels=labels)
    elif kind == "minilm":  # BERT, narrow for its depth
        config = transformers.BertConfig(**{**sizes, "num_hidden_layers": 6}, num_labels=labels)
    elif kind == "distilbert":
        config = transformers.DistilBertConfig(
            vocab_size=200, dim=32, n_layers=2, n_heads=2, hidden_dim=64,
            max_position_embeddings=positions, num_labels=labels,
        )  # fmt: skip
    elif kind == "electra":
        config = transformers.ElectraConfig(**sizes, embedding_size=16, num_labels=labels)
    elif kind == "albert":
        config = transformers.AlbertConfig(**sizes, embedding_size=16, num_labels=labels)
    elif kind == "deberta-v2":
        config = transformers.DebertaV2Config(
            **sizes, num_labels=labels, relative_attention=True, position_buckets=16,
            norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
            position_biased_input=False, type_vocab_size=0,
        )  # fmt: skip
    else:
        config = transformers.RobertaConfig(
            **sizes, num_labels=labels, pad_token_id=1, type_vocab_size=1
        )
    heads: dict[str, Any] = {
        "text-classification": transformers.AutoModelForSequenceClassification,
        "text-ranking": transformers.AutoModelForSequenceClassification,
        "token-classification": transformers.AutoModelForTokenClassification,
        "question-answering": transformers.AutoModelForQuestionAnswering,
    }
    model = (transformers.AutoModel if embed else heads[task]).from_config(config)
    with torch.no_grad():  # far from zero, so that a lost mask or a frozen shape is seen
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """Save a WordPiece tokenizer over single letters."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [prefix + chr(code) for prefix in ("", "##") for code in range(33, 127)]
    tokenizer = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(words[:200])}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_padding(length=16)  # as some folders have it; tracing must take it off
    tokenizer.enable_truncation(8)
    tokenizer.save(str(folder / "tokenizer.json"))


def make_spec(source: Path, model_id: str = "m", **facts: Any) -> ModelSpec:
    """Make the catalog entry of a source."""
    values: dict[str, Any] = {
        "task": "text-classification", "processors": ("cpu",), "precision": "fp32",
        "sequence_length": 32, "sequence_buckets": (), "inputs": None, "batch": 1,
        "expected_rps": 1.0, "latency_target_ms": None,
        "replicas": 1, "pinned": False, "version": None, "samples": None, "where": "models.yaml:1",
    }  # fmt: skip
    return ModelSpec(id=model_id, source=str(source), **{**values, **facts})
