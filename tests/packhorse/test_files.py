import resource
import signal
from pathlib import Path

import pytest

from packhorse.errors import StoreError
from packhorse.files import atomic_file, write_atomically


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_half_way_leaves_the_old_content_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(RuntimeError), atomic_file(path) as file:  # noqa: PT012 — half-way is the point
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_takes_no_more_is_one_clear_error(tmp_path: Path) -> None:
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = tmp_path / "file"
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old_limit[1]))
        with pytest.raises(StoreError, match=r"cannot write .*file: .*: free space"):
            write_atomically(path, b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        signal.signal(signal.SIGXFSZ, old_handler)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write .*file/inner"):
        write_atomically(tmp_path / "file" / "inner", b"")
