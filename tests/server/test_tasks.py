from typing import Any

import numpy as np
import pytest

from packhorse.errors import InvalidInput
from packhorse_server.tasks import Task, parse_inputs, task_for
from packhorse_server.tasks.text import Text
from packhorse_server.tokenizers import Encoded, Encoder
from tests.onnx_models import write_tokenizer

CLASSES = task_for("text-classification", ["a", "b"])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    return Encoder(path, 16)


@pytest.fixture
def encoded(encoder: Encoder) -> Encoded:
    return encoder.encode(Text("w1 w2"))


def test_a_text_a_pair_and_lists_of_them_are_read() -> None:
    assert parse_inputs("a", CLASSES, 9) == ([[Text("a")]], False)
    assert parse_inputs(["a"], CLASSES, 9) == ([[Text("a")]], True)
    pair = {"text": "a", "text_pair": "b"}
    assert parse_inputs(["x", pair], CLASSES, 9) == ([[Text("x")], [Text("a", "b")]], True)


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
        parse_inputs(inputs, CLASSES, 9)


def test_a_task_without_pairs_refuses_them() -> None:
    with pytest.raises(InvalidInput, match="expected a text$"):
        parse_inputs({"text": "a", "text_pair": "b"}, task_for("feature-extraction", None), 9)


def test_classification_gives_every_label_best_first_with_shares_of_one(encoded: Encoded) -> None:
    task = task_for("text-classification", ["a", "b", "c"])
    answer = task.decode([np.array([[0.0, np.log(2), np.log(5)]], dtype=np.float32)], {}, encoded)
    assert [row["label"] for row in answer] == ["c", "b", "a"]
    assert [row["score"] for row in answer] == pytest.approx([5 / 8, 2 / 8, 1 / 8])
    assert task.decode([np.array([[0.0, 9.0, 1.0]])], {"top_k": 1}, encoded)[0]["label"] == "b"


def test_huge_logits_do_not_overflow(encoded: Encoded) -> None:
    task = task_for("text-classification", ["a", "b"])
    answer = task.decode([np.array([[1e4, -1e4]], dtype=np.float32)], {}, encoded)
    assert answer[0] == {"label": "a", "score": 1.0}


def test_a_single_label_has_a_probability_of_its_own(encoded: Encoded) -> None:
    task = task_for("text-classification", ["spam"])
    assert task.decode([np.array([[0.0]])], {}, encoded) == [{"label": "spam", "score": 0.5}]


@pytest.mark.parametrize("parameters", [{"top_k": 0}, {"top_k": "1"}, {"top_k": True}, {"x": 1}])
def test_parameters_that_are_not_known_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        task_for("text-classification", ["a"]).check(parameters)
    with pytest.raises(InvalidInput):
        task_for("feature-extraction", None).check(parameters)


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(InvalidInput, match="'juggling'"):
        task_for("juggling", None)


def test_tokens_are_named_with_their_places_and_nothing_is_left_out_but_nothing(
    encoder: Encoder,
) -> None:
    task = task_for("token-classification", ["O", "B", "I"])
    encoded = encoder.encode(Text("w5  w6 w7"))
    logits = np.zeros((1, 5, 3))  # with a special token at either end
    logits[0, :, 1] = [9, np.log(8), 0, np.log(2), 9]
    logits[0, 2, 0] = 5
    rows = task.decode([logits], {}, encoded)
    assert [(r["entity"], r["index"], r["word"], r["start"], r["end"]) for r in rows] == [
        ("B", 1, "w5", 0, 2), ("B", 3, "w7", 7, 9),
    ]  # fmt: skip
    assert [row["score"] for row in rows] == pytest.approx([8 / 10, 2 / 4])
    assert task.combine([rows]) == rows


def spans(encoded: Encoded, **scores: float) -> np.ndarray:
    """Scores (1, tokens, 2): `begin_I` and `end_I` for the token I of the context."""
    found = np.full((1, encoded.arrays["input_ids"].shape[1], 2), -20.0)
    for name, value in scores.items():
        side, _, number = name.partition("_")
        token = encoded.places(1)[int(number)][0] if number else 0
        found[0, token, ["begin", "end"].index(side)] = value
    return found


def test_an_answer_is_the_likeliest_span_of_the_context(encoder: Encoder) -> None:
    task = task_for("question-answering", None)
    encoded = encoder.encode(Text("w1 w2", "w3 w4 w5"))
    outputs = spans(encoded, begin_1=0.0, end_2=0.0, begin_2=0.0, end_1=0.0)
    outputs[0, 1] = 9  # of the question, which is no answer
    answer = task.decode([outputs], {}, encoded)
    assert (answer["answer"], answer["start"], answer["end"]) == ("w4", 3, 5)
    assert answer["score"] == pytest.approx(1 / 4)
    outputs = spans(encoded, begin_0=1.0, end_2=1.0, begin_2=0.0)
    assert task.decode([outputs], {}, encoded)["answer"] == "w3 w4 w5"
    assert task.decode([outputs], {"max_answer_length": 2}, encoded)["answer"] == "w5"
    none = spans(encoded, begin=5.0, end=5.0, begin_0=0.0, end_0=0.0)
    assert task.decode([none], {}, encoded)["score"] < 0.01  # the first token says so


def test_a_question_that_leaves_no_context_is_refused(encoder: Encoder) -> None:
    task = task_for("question-answering", None)
    encoded = encoder.encode(Text("w1 w2"))
    with pytest.raises(InvalidInput, match="shorten the question"):
        task.decode([np.zeros((1, 4, 2))], {}, encoded)


def test_texts_are_ranked_by_their_scores(encoded: Encoded) -> None:
    task = task_for("text-ranking", None)
    question = {"query": "q", "texts": ["a", "b", "c"]}
    groups, many = parse_inputs([question, question], task, 9)
    assert (groups, many) == ([[Text("q", "a"), Text("q", "b"), Text("q", "c")]] * 2, True)
    parts = [task.decode([np.array([[x]])], {}, encoded) for x in (0.0, np.log(3), -1e3)]
    rows = task.combine(parts)
    assert [row["index"] for row in rows] == [1, 0, 2]
    assert [row["score"] for row in rows] == pytest.approx([3 / 4, 1 / 2, 0])


@pytest.mark.parametrize(
    ("name", "inputs", "says"),
    [
        ("question-answering", "a", 'inputs is str: expected {"question", "context"}'),
        ("question-answering", {"question": "a"}, "inputs is an object with"),
        ("question-answering", {"question": "a", "context": ""}, "inputs.context is empty"),
        ("token-classification", {"text": "a"}, "expected a text$"),
        ("text-ranking", "a", 'expected {"query", "texts"}'),
        ("text-ranking", {"query": "a", "texts": []}, "inputs.texts is not a list with texts"),
        ("text-ranking", {"query": "a", "texts": ["b", 1]}, r"inputs.texts\[1\] is int"),
        ("text-ranking", {"query": "a", "texts": ["b"] * 10}, "10 texts, at most 9"),
        ("text-ranking", [{"query": "a", "texts": ["b"] * 5}] * 2, "10 texts, at most 9"),
    ],
)
def test_what_a_task_does_not_take_is_named(name: str, inputs: Any, says: str) -> None:
    task: Task = task_for(name, ["O"])
    with pytest.raises(InvalidInput, match=says):
        parse_inputs(inputs, task, 9)
