"""Tokenizing over-long texts: the right tokens, in bounded memory."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from packhorse.errors import InvalidInput
from packhorse_server.tasks.text import Text
from packhorse_server.tokenizers import Encoder, Encoders
from tests.onnx_models import make_artifact, write_graph, write_tokenizer

LENGTH = 8


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    return path


words = st.lists(
    st.one_of(st.integers(0, 99).map("w{}".format), st.text("wx", min_size=1, max_size=90)),
    min_size=1, max_size=120,
).map(" ".join)  # fmt: skip


@given(words, st.one_of(st.none(), words))
@settings(deadline=None, max_examples=400)
def test_a_text_of_any_length_gives_the_librarys_own_tokens(
    file: Path, text: str, pair: str | None
) -> None:
    whole = Tokenizer.from_file(str(file))
    whole.enable_truncation(LENGTH)
    wanted = whole.encode(text, pair)
    encoded = Encoder(file, LENGTH).encode(Text(text, pair))
    arrays = encoded.arrays
    assert encoded.cut == bool(wanted.overflowing)
    assert arrays["input_ids"].shape == (1, len(wanted.ids))
    if pair is not None and min(len(text.split()), len(pair.split())) > LENGTH:
        return  # both over-long: the odd token may be the other's
    assert arrays["input_ids"].tolist() == [wanted.ids]
    assert arrays["token_type_ids"].tolist() == [wanted.type_ids]


class Watched:
    """A tokenizer that notes how much text it is given."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner, self.longest = inner, 0

    def encode(self, text: str, pair: str | None = None) -> object:
        self.longest = max(self.longest, len(text), len(pair or ""))
        return self._inner.encode(text, pair)


@pytest.mark.parametrize("word", ["w7 ", "w7", "\u4f60"])
def test_the_library_is_never_given_much_more_than_the_model_reads(file: Path, word: str) -> None:
    encoder = Encoder(file, LENGTH)
    watched = Watched(encoder._tokenizer)
    encoder._tokenizer = watched  # type: ignore[assignment] # it stands between, and passes on
    long = word * 2_000
    for text in (Text(long), Text(long, long)):
        arrays = encoder.encode(text).arrays
        assert arrays["input_ids"].shape[1] <= LENGTH
    if word == "w7 ":
        assert watched.longest <= 32 * LENGTH


def test_models_share_an_encoder_by_content_and_length(file: Path, tmp_path: Path) -> None:
    write_graph(tmp_path / "model.onnx", 2)
    write_tokenizer(tmp_path / "tokenizer.json")
    encoders = Encoders()
    one, same = (encoders.get(make_artifact(tmp_path, name), tmp_path) for name in "ab")
    other = encoders.get(make_artifact(tmp_path, "c", max_length=9), tmp_path)
    assert one is same
    assert one is not other


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidInput, match="is not a tokenizer"):
        Encoder(tmp_path / "tokenizer.json", 8)
