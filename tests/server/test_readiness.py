import pytest

from packhorse.errors import InvalidInput
from packhorse_server.readiness import Policy, parse_policy
from packhorse_server.registry import Entry, State


def entries(available: int, total: int) -> list[Entry]:
    return [
        Entry(f"m{i}", state=State.AVAILABLE if i < available else State.LOADING)
        for i in range(total)
    ]


def test_an_empty_set_is_never_ready() -> None:
    for policy in ("all", "quorum:0.01", "required:a"):
        assert not parse_policy(policy).judge([]).ready


def test_all_means_every_model() -> None:
    assert not Policy().judge(entries(2, 3)).ready
    assert Policy().judge(entries(3, 3)).ready


def test_a_quorum_is_rounded_up() -> None:
    policy = parse_policy("quorum:0.95")
    assert not policy.judge(entries(18, 20)).ready
    assert policy.judge(entries(19, 20)).ready
    assert not policy.judge(entries(2, 3)).ready


def test_required_models_alone_decide() -> None:
    policy = parse_policy("required: m0, m1")
    assert policy.judge(entries(2, 9)).ready
    judged = policy.judge(entries(1, 9))
    assert (judged.ready, "m1" in judged.reason) == (False, True)
    assert not parse_policy("required:other").judge(entries(9, 9)).ready


def test_the_reason_names_models_and_stays_short() -> None:
    reason = Policy().judge(entries(0, 100)).reason
    assert "m0 (loading)" in reason
    assert "and 95 more" in reason


@pytest.mark.parametrize("text", ["", "some", "quorum:0", "quorum:1.1", "quorum:x", "required:"])
def test_a_policy_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="readiness"):
        parse_policy(text)
