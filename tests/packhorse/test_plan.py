from pathlib import Path

import pytest

from packhorse.errors import InvalidInput
from packhorse.plan import load_plan

GOLDEN = (Path(__file__).parents[1] / "contracts/plan.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("gap:", "gaps:", "gap"),
        ("schema: 1", "schema: 9", "schema 9"),
        ("name: cpu-1", "name: cpu-0", "given twice"),
        ("id: embed/minilm\n", "id: acme/intent\n", "twice on"),
        ("id: embed/minilm\n", "id: ../x\n", "not allowed|reserved"),
        ("version: v2", "version: V2", "version 'V2'"),
        ("lanes: 2", "lanes: many", "int"),
        ("name: cpu-0", "name: ../../evil", "server name '../../evil'"),
        ("name: cpu-0", "name: --help", "server name '--help'"),
        ("name: cpu-0", "name: ''", "server name ''"),
        ("memory_bytes: 2126013005", "memory_bytes: 0", "no memory_bytes"),
        ("lanes: 2", "lanes: 0", "no lanes"),
        ("instanceType:", "instance_type:", "instance_type"),
    ],
)
def test_what_is_wrong_in_a_plan_is_named(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in GOLDEN
    path = tmp_path / "plan.yaml"
    path.write_text(GOLDEN.replace(old, new))
    with pytest.raises(InvalidInput, match=says):
        load_plan(path)


def test_a_server_is_found_by_name_or_by_being_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(GOLDEN)
    plan = load_plan(path)
    assert plan.server("cpu-1").name == "cpu-1"
    for name in ("", "cpu-9"):
        with pytest.raises(InvalidInput, match="cpu-0, cpu-1"):
            plan.server(name)
