from pathlib import Path

import pytest

from packhorse.errors import InvalidInput
from packhorse.settings import Settings, load_settings, settings_page

ROOT = Path(__file__).parents[2]


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    (tmp_path / "packhorse.yaml").write_text("port: 1000\nhost: 0.0.0.0\nlanes: 3\n")
    environ = {"PACKHORSE_PORT": "2000", "PACKHORSE_LANES": "4"}
    settings = load_settings({"port": "3000", "host": None}, environ, tmp_path)
    assert (settings.port, settings.lanes, settings.host) == (3000, 4, "0.0.0.0")


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load_settings({}, {}, tmp_path) == Settings()


def test_sizes_are_written_with_units(tmp_path: Path) -> None:
    settings = load_settings({}, {"PACKHORSE_MEMORY_BYTES": "2GiB"}, tmp_path)
    assert settings.memory_bytes == 2 * 1024**3


def test_an_unknown_key_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "packhorse.yaml").write_text("port: 1000\nprot: 2000\n")
    with pytest.raises(InvalidInput, match=r"packhorse\.yaml:2: unknown key 'prot'.*port"):
        load_settings({}, {}, tmp_path)


@pytest.mark.parametrize(
    ("flags", "environ", "says"),
    [
        ({"port": "x"}, {}, r"--port: .*'x'"),
        ({}, {"PACKHORSE_PORT": "99999"}, r"PACKHORSE_PORT: .*65535"),
        ({}, {"PACKHORSE_MEMORY_BYTES": "much"}, r"PACKHORSE_MEMORY_BYTES.*not a size"),
        ({}, {"PACKHORSE_PORT": "tcp://10.0.0.1:80"}, "enableServiceLinks"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_origin(
    flags: dict[str, object], environ: dict[str, str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=says):
        load_settings(flags, environ, tmp_path)


def test_the_settings_page_is_the_generated_one() -> None:
    assert (ROOT / "docs/settings.md").read_text() == settings_page()
