"""`packhorse trace explore`: table, winners, picture."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from packhorse_trace.exploration import FASTEST, MOST, Point, winners
from tests.trace.tiny import save_tiny

pytestmark = pytest.mark.integration


def explore(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "packhorse", "trace", "explore", "org/m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "m")
    (tmp_path / "models.yaml").write_text(
        "models: [{id: org/m, source: ./m, task: text-classification}]"
    )
    return tmp_path


def test_the_table_names_both_winners_and_the_picture_is_drawn(folder: Path) -> None:
    done = explore(folder, "--lengths", "4,16", "--batches", "1,2", "--threads", "1",
                   "--precisions", "fp32,torchscript")  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "tokens", "precision", "batch", "threads", "P50", "ms", "P90", "ms", "texts/s", "a", "core",
    ]  # fmt: skip
    assert len([line for line in lines if line.split()[1] in ("fp32", "torchscript")]) == 2 * 2 * 2
    for tokens in (4, 16):
        for kind in (FASTEST, MOST):
            assert any(line.startswith(f"{tokens} tokens, {kind}: ") for line in lines)
    picture = (folder / ".packhorse/explore-org~m.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert (width, height) > (600, 400)
    assert not (folder / ".packhorse/store").exists()  # nothing is published


def test_a_refused_precision_is_named_and_int8_is_measured_as_it_is_served(folder: Path) -> None:
    done = explore(folder, "--lengths", "4", "--batches", "1,2", "--threads", "1", "--json",
                   "--precisions", "int8,fp32")  # fmt: skip
    found = json.loads(done.stdout)
    assert "rounding changes the scores" in found["refused"]["int8"]  # random weights
    assert {(p["precision"], p["batch"]) for p in found["points"]} == {("fp32", 1), ("fp32", 2)}
    assert found["winners"]["4"][FASTEST]["precision"] == "fp32"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--precisions", "fp64"), "--precisions 'fp64': cpu has int8, fp32, torchscript"),
        (("--lengths", "1,x"), "--lengths '1,x': write whole numbers"),
        (("--lengths", "65"), "--lengths 65: the model reads at most 64 tokens"),
        (("--processor", "inf2", "--lengths", "8"), "torch_neuronx is not installed"),
    ],
)
def test_what_cannot_be_explored_is_named(
    arguments: tuple[str, ...], says: str, folder: Path
) -> None:
    done = explore(folder, *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_winners_are_of_one_length() -> None:
    slow = Point("fp32", 8, 8, 1, 10, 12, 700)
    fast = Point("int8", 8, 1, 1, 1, 2, 500)
    long = Point("fp32", 64, 1, 1, 50, 60, 20)
    assert winners([slow, fast, long]) == {
        8: {FASTEST: fast, MOST: slow}, 64: {FASTEST: long, MOST: long},
    }  # fmt: skip
