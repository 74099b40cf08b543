import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "packhorse", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def test_help_loads_no_stage() -> None:
    code = (
        "import sys; sys.argv = ['packhorse', '--help']\n"
        "from packhorse.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'fastapi', 'onnxruntime', 'pydantic', 'httpx', 'yaml'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("deploy", "models", "pack", "serve", "settings", "test", "trace"):
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize(
    "command",
    ["trace", "pack", "pack verify", "serve", "models", "models verify", "deploy", "deploy up",
     "test", "test rnd", "settings"],
)  # fmt: skip
def test_every_command_explains_itself(command: str) -> None:
    done = run(*command.split(), "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["models", "list", "--store", "nowhere"], "nowhere does not exist: run packhorse trace"),
        (["models", "list", "--store", "ftp://x"], "scheme 'ftp' is not supported"),
        (["trace"], "models.yaml does not exist"),
        (["serve", "--port", "x"], "--port"),
        (["serve"], "plan.yaml does not exist"),
        (["pack"], "models.yaml does not exist"),
        (["deploy", "up"], "plan.yaml does not exist"),
        (["deploy", "status"], "nothing is deployed"),
        (["test", "seq"], "nothing is deployed"),
        (["test", "rnd", "--fail-if", "p42>1"], "write 'p90>100ms'"),
        (["test", "rnd", "--fail-if", "p90>1"], "give the unit, such as p90>1ms"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_settings_are_printed_as_one_object_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "packhorse.yaml").write_text("management_token: hush\nport: 8123\n")
    done = run("settings", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (found["port"], found["management_token"]) == (8123, "(set)")
