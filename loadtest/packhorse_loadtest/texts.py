"""What models are asked: texts from a file, built in, or made to a number of tokens."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

from packhorse.errors import InvalidInput

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEXTS = (
    "Where is my parcel?",
    "I would like to return the shoes that I bought last week.",
    "The payment failed twice, what should I do?",
    "Please send me the invoice of my last order as a PDF.",
    "When do you open on Sunday?",
    "My password does not work any more and the reset mail never came.",
)
"""What is asked where no texts are given."""
MADE = 32
"""Texts that are made for a range of token counts."""
LONGEST_TOKENS = 100_000
_WORD = re.compile(r"[a-z]{3,8}")
_PLAIN = ("time", "order", "people", "water", "work", "house", "money", "place", "night", "paper")


def read_texts(path: Path | None) -> list[str]:
    """Return the texts of a file, one a line, or the built-in ones.

    Raises:
        InvalidInput: The file is missing or holds no text.
    """
    if path is None:
        return list(TEXTS)
    try:
        texts = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as err:
        raise InvalidInput(f"texts {path} cannot be read: {err}") from err
    if not texts:
        raise InvalidInput(f"texts {path} holds no text: write one a line")
    return texts


def parse_tokens(text: str) -> tuple[int, int]:
    """Read '128' or '10-40' as the least and the most tokens.

    Raises:
        InvalidInput: Not such a range.
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most <= LONGEST_TOKENS:
        raise InvalidInput(
            f"--tokens {text!r}: write a number or a range, such as 128 or 10-40, of 1 to "
            f"{LONGEST_TOKENS}"
        )
    return least, most


def make_texts(tokens: tuple[int, int], tokenizer: Tokenizer | None, seed: int) -> list[str]:
    """Make texts whose lengths are spread evenly over a range of tokens.

    Args:
        tokenizer: The model's own, whose special tokens count too; None: a token is a word.
    """
    least, most = tokens
    count = 1 if least == most else min(MADE, most - least + 1)
    lengths = [round(least + (most - least) * n / max(1, count - 1)) for n in range(count)]
    draw = random.Random(f"{seed} texts")
    if tokenizer is None:
        return [" ".join(draw.choices(_PLAIN, k=length)) for length in lengths]
    words = _single_tokens(tokenizer)
    special = len(tokenizer.encode("").ids)
    texts = []
    for length in lengths:
        text = " ".join(draw.choices(words, k=max(1, length - special)))
        while len(tokenizer.encode(text).ids) > length and " " in text:
            text = text.rpartition(" ")[0]
        texts.append(text)
    return texts


def _single_tokens(tokenizer: Tokenizer) -> list[str]:
    """Words that stay one token each in a row of words."""
    special = len(tokenizer.encode("").ids)
    found = []
    for entry in sorted(tokenizer.get_vocab()):
        word = entry.lstrip("Ġ▁").lower()
        if _WORD.fullmatch(word) and len(tokenizer.encode(f"{word} {word}").ids) == special + 2:
            found.append(word)
            if len(found) == 2000:
                break
    return found or list(_PLAIN)
