"""Ask what the demo has deployed: intents, similarities, and what sharing saved."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from packhorse.artifact import Artifact
from packhorse.deployment import load_deployment
from packhorse.settings import load_settings
from packhorse.store.repository import Repository
from packhorse.units import format_bytes

HERE = Path(__file__).parent
QUESTIONS = {
    "acme-shop/intent": "where is my parcel?",
    "alpine-gear/intent": "these boots are too small, I want to send them back",
    "cobalt-cables/intent": "your site refuses my credit card",
    "ember-coffee/intent": "are you open on Sunday morning?",
    "indigo-games/intent": "I forgot my password",
    "nimbus-cloud/intent": "please erase everything you store about me",
    "quartz-watches/intent": "I need an invoice for the tax office",
}
PAIRS = (
    ("where is my parcel?", "my package has not arrived yet"),
    ("where is my parcel?", "when do you open on Sunday?"),
)


def main() -> None:
    base = load_deployment().router_url
    with httpx.Client(base_url=f"{base}/predictions", timeout=30) as client:
        print("\nIntents (int8; the best label and its probability)")
        for model, text in QUESTIONS.items():
            best = ask(client, model, text, top_k=1)[0]
            print(f"  {model:<24} {text:<54} {best['label']} {best['score']:.2f}")
        print("\nSimilarities (cosine of embeddings)")
        for precision in ("fp32", "int8"):
            for left, right in PAIRS:
                vectors = ask(client, f"embed/minilm-{precision}", [left, right])
                cosine = sum(a * b for a, b in zip(*vectors, strict=True))
                print(f"  {precision}  {cosine:5.2f}  {left!r} and {right!r}")
        show_accuracy(client)
    show_savings()
    print(f"\nA server is at {base} (its page: {base}/). `make stop` ends it.")


def ask(client: httpx.Client, model: str, inputs: object, **parameters: object) -> Any:
    response = client.post(f"/{model}", json={"inputs": inputs, "parameters": parameters})
    if response.status_code != 200:
        sys.exit(f"error: {model} answered {response.status_code}: {response.text}")
    return response.json()


def show_accuracy(client: httpx.Client) -> None:
    sentences = yaml.safe_load((HERE / "sentences.yaml").read_text("utf-8"))
    tenants = yaml.safe_load((HERE / "tenants.yaml").read_text("utf-8"))
    shares = {}
    for tenant, names in tenants.items():
        right = total = 0
        for intent, label in names.items():
            answers = ask(client, f"{tenant}/intent", sentences[intent]["held_out"], top_k=1)
            right += sum(answer[0]["label"] == label for answer in answers)
            total += len(answers)
        shares[tenant] = right / total
    worst = min(shares, key=lambda tenant: shares[tenant])
    mean = sum(shares.values()) / len(shares)
    print(
        f"\nHeld-out sentences: {mean:.1%} right over {len(shares)} tenants; "
        f"least {shares[worst]:.1%} ({worst})"
    )


def show_savings() -> None:
    store = Repository.open(load_settings().store)
    found = [record for _, record in store.artifacts() if isinstance(record, Artifact)]
    apart = sum(artifact.total_bytes for artifact in found)
    blobs = {file.sha256: file.bytes for artifact in found for file in artifact.files}
    held = sum(blobs.values())
    saved = f"{1 - held / apart:.0%}"
    print(
        f"\nThe store holds {len(found)} model versions in {format_bytes(held)}; each with files "
        f"of its own, they would take {format_bytes(apart)}. Saved: {saved}, and as much in the "
        "server's cache."
    )


if __name__ == "__main__":
    main()
