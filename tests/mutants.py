"""Apply every mutation of docs/testing.md to a copy of the checkout; each must fail its test.

Run by `make mutants`; prints a line for each and exits with 1 if any survives. Numbers as
arguments choose rows: `python tests/mutants.py 3 14`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGES = ("", "trace", "pack", "deploy", "server", "loadtest", "serverless")
PATIENCE_S = 120
ROW = re.compile(r"^\| `(.+?)` \| `(.+?)` \| `(.+?)` \| `(.+?)` \|$")


def rows() -> list[tuple[str, str, str, str]]:
    """The table: file, line, broken line, test."""
    lines = (ROOT / "docs/testing.md").read_text().splitlines()
    return [(m[1], m[2], m[3], m[4]) for line in lines if (m := ROW.match(line))]


def survives(copy: Path, file: str, line: str, broken: str, test: str) -> str:
    """Break one line, run its test, mend the line; return why the mutant lives, if it does."""
    path = copy / file
    text = path.read_text()
    if text.count(line) != 1:
        return f"{line!r} stands {text.count(line)} times in {file}"
    path.write_text(text.replace(line, broken))
    folders = os.pathsep.join(str(copy / stage) for stage in STAGES)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test],
            cwd=copy, env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""  # a test that never ends has not passed
    finally:
        path.write_text(text)
    if done.returncode == 1:  # some test failed; other codes say that none was run
        return ""
    return f"pytest exited with {done.returncode}: {done.stdout.strip().splitlines()[-1:]}"


def main() -> None:
    table = rows()
    chosen = {int(number) for number in sys.argv[1:]} or set(range(1, len(table) + 1))
    lived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "packhorse"
        ignored = shutil.ignore_patterns(".venv", ".git", ".packhorse", "*cache*", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=lambda *a: ignored(*a) - {"cache.py", "test_cache.py"})
        for number, (file, line, broken, test) in enumerate(table, 1):
            if number not in chosen:
                continue
            why = survives(copy, file, line, broken, test)
            lived += bool(why)
            print(
                f"{number}/{len(table)} {'LIVES ' + why if why else 'caught'}: {file}", flush=True
            )
    print(f"{len(chosen) - lived} caught, {lived} lived")
    sys.exit(1 if lived or not table else 0)


if __name__ == "__main__":
    main()
