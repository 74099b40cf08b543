import pytest

from packhorse.errors import InvalidInput
from packhorse.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1024", 1024), (7, 7), ("1KiB", 1024), ("1.5GiB", 1610612736), ("2 GB", 2 * 10**9),
     ("0.1KiB", 102), ("512Mi", 536870912)],
)  # fmt: skip
def test_sizes_are_read_as_whole_bytes_rounded_down(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1 XB", "1e3", "nan", "1,5GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("100ms", 0.1), ("2", 2), ("2s", 2), ("1.5m", 90), ("250us", 0.00025)]
)
def test_times_are_read_as_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "1d", "-1s", "soon"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a time"):
        parse_seconds(text)


def test_sizes_and_times_are_written_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 1536 * 1024, 3 * 1024**3)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 MiB", "3.0 GiB",
    ]  # fmt: skip
    assert [format_seconds(n) for n in (0.0032, 1.4, 125)] == ["3.2 ms", "1.4 s", "2 min 05 s"]
