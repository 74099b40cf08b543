import json
from pathlib import Path

import pytest

from packhorse.errors import TraceError
from packhorse_trace.source import read_source
from tests.trace.tiny import make_spec, save_tiny

pytestmark = pytest.mark.integration


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def test_the_version_follows_the_weights_and_the_options(tmp_path: Path) -> None:
    one = make_spec(save_tiny(tmp_path / "a"))
    same = make_spec(save_tiny(tmp_path / "b"))
    other = make_spec(save_tiny(tmp_path / "c", seed=1))
    options: dict[str, object] = {"reduce_range": True}
    version = read_source(one).version(one, options)
    assert len(version) == 12
    assert read_source(same).version(same, options) == version
    assert read_source(other).version(other, options) != version
    assert read_source(one).version(one, {"reduce_range": False}) != version
    named = make_spec(tmp_path / "a", version="v7")
    assert read_source(named).version(named, options) == "v7"


def test_models_of_one_shape_differ_in_weights_and_label_names_only(tmp_path: Path) -> None:
    one = make_spec(save_tiny(tmp_path / "a"))
    twin = make_spec(save_tiny(tmp_path / "b", seed=1))
    config = json.loads((tmp_path / "b/config.json").read_text())
    names = ("x", "y", "z")
    config["id2label"] = {str(i): name for i, name in enumerate(names)}
    write_json(tmp_path / "b/config.json", config)
    wider = make_spec(save_tiny(tmp_path / "c", labels=4))
    assert read_source(one).shape(one) == read_source(twin).shape(twin)
    assert read_source(one).shape(one) != read_source(wider).shape(wider)
    assert read_source(twin).labels == ["x", "y", "z"]


def test_labels_are_in_the_order_of_the_outputs(tmp_path: Path) -> None:
    spec = make_spec(save_tiny(tmp_path, labels=12))
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = {str(i): f"l{i}" for i in reversed(range(12))}
    write_json(tmp_path / "config.json", config)
    assert read_source(spec).labels == [f"l{i}" for i in range(12)]


def test_the_length_is_the_least_of_all_limits(tmp_path: Path) -> None:
    spec = make_spec(save_tiny(tmp_path))
    assert read_source(spec).max_length == 64
    write_json(tmp_path / "tokenizer_config.json", {"model_max_length": 10**30})
    assert read_source(spec).max_length == 64
    write_json(tmp_path / "tokenizer_config.json", {"model_max_length": 48})
    assert read_source(spec).max_length == 48
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 24})
    assert read_source(spec).max_length == 24


def test_roberta_reads_fewer_tokens_than_it_has_positions(tmp_path: Path) -> None:
    spec = make_spec(save_tiny(tmp_path, "roberta"))
    assert read_source(spec).max_length == 62  # padding id 1: positions are counted from 2


def test_pooling_is_read_from_sentence_transformers_files(tmp_path: Path) -> None:
    spec = make_spec(save_tiny(tmp_path, embed=True))
    assert (read_source(spec).pooling, read_source(spec).normalize) == ("mean", False)
    write_json(tmp_path / "1_Pooling/config.json", {"pooling_mode_cls_token": True})
    write_json(tmp_path / "modules.json", [{"type": "sentence_transformers.models.Normalize"}])
    assert (read_source(spec).pooling, read_source(spec).normalize) == ("cls", True)
    write_json(tmp_path / "1_Pooling/config.json", {"pooling_mode_max_tokens": True})
    with pytest.raises(TraceError, match="pooling_mode_max_tokens.*not supported"):
        _ = read_source(spec).pooling


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no .*safetensors weights"),
        (None, "does not exist"),
    ],
)
def test_what_a_source_lacks_is_named(missing: str | None, says: str, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "m")
    if missing:
        (folder / missing).unlink()
    spec = make_spec(folder if missing else tmp_path / "none")
    with pytest.raises(TraceError, match=says):
        read_source(spec)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(TraceError, match="pickled weights are never read"):
        read_source(make_spec(folder))


def test_a_hub_id_without_the_hub_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    spec = make_spec(Path("nobody/nothing"))
    with pytest.raises(TraceError, match="'nobody/nothing'.*neither a folder here nor"):
        read_source(spec)
