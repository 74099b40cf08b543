from pathlib import Path

import pytest

from packhorse.catalog import load_catalog
from packhorse.errors import InvalidInput


def catalog(folder: Path, text: str) -> Path:
    path = folder / "models.yaml"
    path.write_text(text)
    return path


def test_an_entry_takes_the_defaults_that_it_does_not_set(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    path = catalog(
        tmp_path,
        "defaults: {task: feature-extraction, expected_rps: 5, replicas: 2}\n"
        "models:\n- {id: a, source: m}\n- {id: b, source: ./m, expected_rps: 7, pinned: true}\n",
    )
    one, other = load_catalog(path)
    assert (one.task, one.expected_rps, one.replicas) == ("feature-extraction", 5, 2)
    assert (other.expected_rps, other.replicas, other.pinned) == (7, 2, True)
    assert one.source == other.source == str(tmp_path / "m")
    assert (one.sequence_length, one.precision, one.processors) == (128, "auto", ("cpu",))


def test_the_processor_of_the_settings_holds_where_the_catalog_names_none(tmp_path: Path) -> None:
    text = (
        "models: [{id: a, source: s, task: tensor},"
        " {id: b, source: s, task: tensor, processors: [cpu, inf1]}]"
    )
    one, other = load_catalog(catalog(tmp_path, text), "gpu")
    assert (one.processors, other.processors) == (("gpu",), ("cpu", "inf1"))


def test_repeat_makes_as_many_models(tmp_path: Path) -> None:
    path = catalog(
        tmp_path,
        "models: [{id: 'm-{i:04}', source: './s/{i}', task: feature-extraction, repeat: 3000}]\n",
    )
    specs = load_catalog(path)
    assert [specs[0].id, specs[-1].id, len(specs)] == ["m-0001", "m-3000", 3000]
    assert specs[-1].source == str(tmp_path / "s/3000")


def test_a_glob_makes_a_model_of_every_match(tmp_path: Path) -> None:
    for name in ("b", "a.x", "{odd}"):
        (tmp_path / "models" / name).mkdir(parents=True)
    text = (
        "models: [{id: 'm/{i}', source: 'models/*', task: feature-extraction, "
        "samples: '{name}.txt'}]"
    )
    specs = load_catalog(catalog(tmp_path, text))
    assert [Path(spec.source).name for spec in specs] == ["a.x", "b", "{odd}"]
    assert [spec.samples.name for spec in specs if spec.samples] == [
        "a.x.txt",
        "b.txt",
        "{odd}.txt",
    ]


def test_what_is_no_path_stays_as_it_is_written(tmp_path: Path) -> None:
    path = catalog(tmp_path, "models: [{id: a, source: org/model, task: feature-extraction}]")
    assert load_catalog(path)[0].source == "org/model"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("models:\n- {id: a, source: s, task: feature-extraction}\n- {id: b, source: s, taks: x}",
         3, "unknown key 'taks'.*task"),
        ("models:\n- {id: a, source: s, task: feature-extraction}\n"
         "- {id: a, source: s, task: feature-extraction}", 3, "given twice.*:2"),
        ("models:\n- {id: a, source: s, task: feature-extraction}\n"
         "- {id: A, source: s, task: feature-extraction}", 3, "'A' clashes with 'a'.*ignores case"),
        ("models:\n- {id: a/infer, source: s, task: feature-extraction}", 2, "'infer' is reserved"),
        ("models:\n- {id: a b, source: s, task: feature-extraction}", 2, "not allowed"),
        ("models:\n- {id: a, source: s}", 2, "no task"),
        ("models:\n- {id: a, task: feature-extraction}", 2, "'source' is missing"),
        ("models:\n- id: a\n  source: s\n  task: guess", 4, "task = 'guess'"),
        ("models:\n- id: a\n  source: s\n  task: feature-extraction\n  expected_rps: .nan", 5,
         "expected_rps"),
        ("models:\n- id: a\n  id: b", 3, "'id' is given twice"),
        ("models:\n- {id: 'm', source: s, task: feature-extraction, repeat: 2}", 2, "given twice"),
        ("models:\n- {id: '{x}', source: s, task: feature-extraction}", 2, "only {name}.*{i}"),
        ("models:\n- {id: 'a', source: 'none/*', task: feature-extraction}", 2, "no file.*matches"),
        ("defaults:\n  batsch: 2\nmodels: []", 2, "unknown key 'batsch'"),
        ("schema: 2\nmodels: []", 1, "schema"),
        ("models:\n- {id: a, source: s, task: feature-extraction, version: A}", 2, "version 'A'"),
        ("models: [", 1, "not YAML"),
        ("models:\n- {id: 'a{i.x}', source: s, task: tensor}", 2, "only {name}"),
        ("models:\n- {id: 'a{i:>99999999999}', source: s, task: tensor}", 2, "only {name}"),
        ("models:\n- ? [a, b]\n  : c", 2, "a key is no word"),
        ("- a", 1, "expected a mapping"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(
    text: str, line: int, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=rf"models\.yaml:{line}: .*{says}"):
        load_catalog(catalog(tmp_path, text))


def test_a_missing_catalog_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nothing\.yaml does not exist"):
        load_catalog(tmp_path / "nothing.yaml")


@pytest.mark.parametrize("text", ["models: &a [*a]", "models: [{version: 2024-13-45}]"])
def test_yaml_that_cannot_be_read_is_one_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="models.yaml"):
        load_catalog(catalog(tmp_path, text))


def test_aliases_that_stand_for_billions_of_nodes_are_read_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    with pytest.raises(InvalidInput, match="unknown key"):
        load_catalog(catalog(tmp_path, "\n".join([*lines, "models: []"])))


def test_a_source_of_any_length_is_kept_as_it_is_written(tmp_path: Path) -> None:
    path = catalog(tmp_path, f"models: [{{id: a, source: {'s' * 5000}, task: tensor}}]")
    assert load_catalog(path)[0].source == "s" * 5000
