from typing import Any

import numpy as np
import pytest

from packhorse.errors import InvalidInput
from packhorse_server.tasks import Text, parse_inputs, task_for


def test_a_text_a_pair_and_lists_of_them_are_read() -> None:
    assert parse_inputs("a", True, 9) == ([Text("a")], False)
    assert parse_inputs(["a"], True, 9) == ([Text("a")], True)
    pair = {"text": "a", "text_pair": "b"}
    assert parse_inputs(["x", pair], True, 9) == ([Text("x"), Text("a", "b")], True)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (None, "inputs is NoneType"),
        (1, "inputs is int"),
        ("", "inputs is empty"),
        (" \n", "inputs is empty"),
        ([], "empty list"),
        (["a"] * 10, "10 texts, at most 9"),
        (["a", ["b"]], r"inputs\[1\] is list"),
        ([{"text": "a"}], r"inputs\[0\] is an object with \['text'\]"),
        ({"text": "a", "text_pair": 1}, r"inputs.text_pair is int"),
        ({"text": "", "text_pair": "b"}, r"inputs.text is empty"),
        ({"text": "a", "text_pair": "b", "x": "c"}, "an object with"),
    ],
)
def test_what_cannot_be_an_input_is_named_with_its_place(inputs: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        parse_inputs(inputs, True, 9)


def test_a_task_without_pairs_refuses_them() -> None:
    with pytest.raises(InvalidInput, match="expected a text$"):
        parse_inputs({"text": "a", "text_pair": "b"}, False, 9)


def test_classification_gives_every_label_best_first_with_shares_of_one() -> None:
    task = task_for("text-classification", ["a", "b", "c"])
    answer = task.decode([np.array([[0.0, np.log(2), np.log(5)]], dtype=np.float32)], {})
    assert [row["label"] for row in answer] == ["c", "b", "a"]
    assert [row["score"] for row in answer] == pytest.approx([5 / 8, 2 / 8, 1 / 8])
    assert task.decode([np.array([[0.0, 9.0, 1.0]])], {"top_k": 1})[0]["label"] == "b"


def test_huge_logits_do_not_overflow() -> None:
    task = task_for("text-classification", ["a", "b"])
    answer = task.decode([np.array([[1e4, -1e4]], dtype=np.float32)], {})
    assert answer[0] == {"label": "a", "score": 1.0}


def test_a_single_label_has_a_probability_of_its_own() -> None:
    task = task_for("text-classification", ["spam"])
    assert task.decode([np.array([[0.0]])], {}) == [{"label": "spam", "score": 0.5}]


@pytest.mark.parametrize("parameters", [{"top_k": 0}, {"top_k": "1"}, {"top_k": True}, {"x": 1}])
def test_parameters_that_are_not_known_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        task_for("text-classification", ["a"]).check(parameters)
    with pytest.raises(InvalidInput):
        task_for("feature-extraction", None).check(parameters)


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(InvalidInput, match="'juggling'"):
        task_for("juggling", None)
