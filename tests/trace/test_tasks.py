"""Every task, traced and served, against its original."""

from pathlib import Path
from typing import Any

import pytest

from packhorse_server.model import load_model
from packhorse_server.tasks.text import Text
from packhorse_server.tokenizers import Encoders
from packhorse_trace.source import read_source
from packhorse_trace.torch_model import load_eager
from tests.running import running
from tests.trace.test_pipeline import pulled, trace
from tests.trace.tiny import make_spec, save_tiny

pytestmark = pytest.mark.integration
ASKED = {
    "token-classification": Text("hello there, how are you"),
    "question-answering": Text("who is there", "it is me who is there"),
    "text-ranking": Text("who is there", "it is me"),
}


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(("task", "kind"), [*((task, "bert") for task in ASKED),
    ("token-classification", "deberta-v2"), ("question-answering", "roberta"),
    ("text-ranking", "distilbert")])  # fmt: skip
def test_every_task_answers_as_the_original(
    task: str, kind: str, precision: str, tmp_path: Path
) -> None:
    labels = {"token-classification": 4, "text-ranking": 1}.get(task, 2)
    source = save_tiny(tmp_path / "m", kind, labels, task=task)
    (result,) = trace(tmp_path / "s", make_spec(source, task=task, precision=precision))
    assert (result.status, result.reason) == ("traced", "")
    artifact, folder = pulled(tmp_path, "m", f"cpu-{precision}")
    assert (artifact.labels is None) == (task != "token-classification")
    model = load_model(artifact, folder, 1, Encoders())
    answer, cut = model.answer(ASKED[task], {})
    assert not cut
    encoded = model.encoder.encode(ASKED[task])
    eager = load_eager(read_source(make_spec(source)), task)
    wanted = model.task.decode([eager.run(encoded.arrays)], {}, encoded)
    if precision == "fp32" and task == "text-ranking":
        assert answer == pytest.approx(wanted, abs=1e-4)
    elif precision == "fp32":
        assert close(answer, wanted)
    else:
        assert type(answer) is type(wanted)
    assert artifact.equality.samples > 24


def close(answer: Any, wanted: Any) -> bool:
    """Whether two answers are the same but for the last digits of their scores."""
    rows = zip(*(x if isinstance(x, list) else [x] for x in (answer, wanted)), strict=True)
    return all(
        {**one, "score": 0} == {**other, "score": 0} and abs(one["score"] - other["score"]) < 1e-4
        for one, other in rows
    )


def test_a_ranking_model_with_two_scores_is_refused(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "m", labels=2)
    (result,) = trace(tmp_path / "s", make_spec(source, task="text-ranking"))
    assert "gives 2 scores: text-ranking needs one" in result.reason


def test_tasks_are_answered_over_http_whatever_the_length(tmp_path: Path) -> None:
    specs = []
    heads = {"token-classification": 4, "question-answering": 2, "text-ranking": 1}
    for task, labels in heads.items():
        source = save_tiny(tmp_path / task, labels=labels, task=task)
        specs.append(make_spec(source, task, task=task))
    assert [result.status for result in trace(tmp_path / "s", *specs)] == ["traced"] * 3
    long = "word " * 20_000
    with running(str(tmp_path / "s"), tmp_path / "c", [spec.id for spec in specs]) as server:
        question = {"question": "who is there", "context": "it is me who is there"}
        one = server.ask("question-answering", question)
        asked = {"seq_0": question["question"], "seq_1": question["context"]}
        got = server.http.get("/predictions/question-answering", params=asked)
        assert one.json() == got.json()
        answer = one.json()
        assert question["context"][answer["start"] : answer["end"]] == answer["answer"]
        both = server.ask("question-answering", [question, {**question, "context": long}])
        assert both.json()[0] == answer
        assert both.headers["x-packhorse-truncated"] == "1"
        cut = server.ask("question-answering", {"question": long, "context": "it is me"})
        assert cut.status_code == 200
        ranked = server.ask("text-ranking", {"query": "who", "texts": ["it is me", long, "nobody"]})
        assert sorted(row["index"] for row in ranked.json()) == [0, 1, 2]
        tokens = server.ask("token-classification", ["hello there", long]).json()
        assert len(tokens) == 2
        assert {row["word"] for row in tokens[0]} <= {*"helotr", *(f"##{c}" for c in "helotr")}
        refused = server.ask("question-answering", "who is there")
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_input")
