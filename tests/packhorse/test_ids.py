import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.errors import InvalidInput
from packhorse.ids import (
    artifact_prefix,
    blob_key,
    check_model_id,
    check_variant,
    check_version,
    model_id_of,
    model_key,
)

segment = st.text("abcXYZ019._-", min_size=1, max_size=20).filter(
    lambda s: s not in {"versions", "infer", "ready", "config", "load", "unload", ".", ".."}
)


@given(st.lists(segment, min_size=1, max_size=5).map("/".join))
def test_an_id_and_its_key_convert_both_ways(model_id: str) -> None:
    assert "/" not in model_key(model_id)
    assert model_id_of(model_key(model_id)) == model_id


@pytest.mark.parametrize("model_id", ["org/tiny-1.0", "a.b.c", "UPPER", "a" * 200, "..."])
def test_an_allowed_id_is_returned(model_id: str) -> None:
    assert check_model_id(model_id) == model_id


@pytest.mark.parametrize(
    "model_id",
    ["", "a" * 201, "with space", "né", "a//b", "/a", "a/", "../secret", "a/../b", "a\0b", "a~b",
     "a/infer", "ready", "v2/versions/1", "a\\b"],
)  # fmt: skip
def test_an_id_that_is_not_allowed_is_refused(model_id: str) -> None:
    with pytest.raises(InvalidInput, match="model id"):
        check_model_id(model_id)


@pytest.mark.parametrize("version", ["", "A", "-a", "a" * 33, "a/b", "1_2"])
def test_a_version_that_is_not_allowed_is_refused(version: str) -> None:
    with pytest.raises(InvalidInput, match="version"):
        check_version(version)


@pytest.mark.parametrize("variant", ["", "cpu", "tpu-int8", "cpu-int8/..", "cpu--int8"])
def test_a_variant_that_is_not_allowed_is_refused(variant: str) -> None:
    with pytest.raises(InvalidInput, match="variant"):
        check_variant(variant)


def test_a_variant_with_shapes_is_allowed() -> None:
    assert check_variant("inf1-bf16-b1-s128-p1") == "inf1-bf16-b1-s128-p1"


def test_siblings_that_begin_alike_have_prefixes_of_their_own() -> None:
    one, other = (artifact_prefix(name, "v1", "cpu-int8") for name in ("bert", "bert-large"))
    assert not other.startswith(f"{one}/")
    assert not one.startswith(f"{other}/")


@pytest.mark.parametrize("digest", ["", "0" * 63, "G" * 64, "../" + "0" * 61, "A" * 64])
def test_a_digest_that_is_none_leads_nowhere(digest: str) -> None:
    with pytest.raises(InvalidInput, match="sha256"):
        blob_key(digest)
