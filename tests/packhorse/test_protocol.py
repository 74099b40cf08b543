import pytest

from packhorse.errors import InvalidInput
from packhorse.protocol import decode_request, parse_timeout_ms, query_request


def test_a_query_becomes_a_request() -> None:
    assert query_request({"seq_0": "a"}).inputs == "a"
    assert query_request({"seq_0": "a", "seq_1": "b"}).inputs == {"text": "a", "text_pair": "b"}
    with pytest.raises(InvalidInput, match="seq_0 is missing"):
        query_request({"seq_1": "b"})


def test_a_body_becomes_a_request() -> None:
    request = decode_request(b'{"inputs": ["a"], "parameters": {"top_k": 1}}')
    assert (request.inputs, request.parameters) == (["a"], {"top_k": 1})


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"{}", b'"x"', b'{"inputs":"a","x":1}', b"\xff",
     b'{"inputs":"\\ud800"}', b'{"inputs":' + b"[" * 100_000, b'{"inputs":1,"parameters":[]}'],
)  # fmt: skip
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a request"):
        decode_request(body)


def test_a_timeout_is_read_in_seconds() -> None:
    assert parse_timeout_ms("250") == 0.25


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf", "1e12"])
def test_a_timeout_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="timeout"):
        parse_timeout_ms(text)
