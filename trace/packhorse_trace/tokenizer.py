"""The tokenizer as the server will use it: one canonical file, the same for all that share it."""

from __future__ import annotations

from pathlib import Path

from packhorse.errors import TraceError
from packhorse_trace.source import Source


def write_tokenizer(source: Source, path: Path) -> None:
    """Write the source's tokenizer, without padding or truncation of its own.

    Raises:
        TraceError: The source has no tokenizer that can be read.
    """
    from tokenizers import Tokenizer

    try:
        if (source.folder / "tokenizer.json").is_file():
            tokenizer = Tokenizer.from_file(str(source.folder / "tokenizer.json"))
        else:
            from transformers import AutoTokenizer

            fast = AutoTokenizer.from_pretrained(source.folder, local_files_only=True)
            tokenizer = Tokenizer.from_str(fast.backend_tokenizer.to_str())
    except Exception as err:  # both libraries raise bare Exception for a broken file
        raise TraceError(
            f"{source.folder} has no tokenizer that can be read: {str(err).splitlines()[0][:200]}"
        ) from err
    known = int(source.config.get("vocab_size", 0))
    if known and tokenizer.get_vocab_size() > known:
        raise TraceError(
            f"{source.folder}: the tokenizer has {tokenizer.get_vocab_size()} tokens, the model "
            f"knows {known} (vocab_size): resize the model's embeddings to its tokenizer"
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    path.write_text(tokenizer.to_str(), encoding="utf-8")
