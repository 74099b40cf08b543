"""The shape of the repository (DESIGN section 1, STYLE sections 3 and 4)."""

import itertools
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ("build", "trace", "pack", "deploy", "server", "loadtest", "serverless")
TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT, capture_output=True, text=True, check=True,
).stdout.split()  # fmt: skip


def test_no_stage_folder_is_a_package_itself() -> None:
    # trace/__init__.py would shadow the standard library's trace.
    assert [stage for stage in STAGES if (ROOT / stage / "__init__.py").exists()] == []


def test_build_is_not_ignored() -> None:
    done = subprocess.run(["git", "check-ignore", "-q", "build/Dockerfile.cpu"], cwd=ROOT)
    assert done.returncode == 1


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "CHANGELOG.md", "Makefile", ".ci/run"])
def test_what_every_project_has_is_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 0


def test_no_python_file_is_over_350_lines() -> None:
    long = {
        name: lines
        for name in TRACKED
        if name.endswith(".py") and (lines := len((ROOT / name).read_text().splitlines())) > 350
    }
    assert long == {}


@pytest.mark.parametrize("word", ["utils", "helpers", "common", "manager", "base"])
def test_no_file_is_named_for_nothing(word: str) -> None:
    assert [name for name in TRACKED if Path(name).stem == word] == []


def test_the_readme_names_only_make_targets_that_exist() -> None:
    targets = {
        line.partition(":")[0]
        for line in (ROOT / "Makefile").read_text().splitlines()
        if ":" in line and line[:1].isalpha()
    }
    words = (ROOT / "README.md").read_text().replace("`", " ").split()
    named = {after for word, after in itertools.pairwise(words) if word == "make"}
    assert {name.strip(".,;:)") for name in named} - {""} <= targets
