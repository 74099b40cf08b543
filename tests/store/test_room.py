"""The byte limit of a cache: what goes, and what stays because somebody uses it."""

import fcntl
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from packhorse.artifact import Artifact
from packhorse.errors import StoreError
from packhorse.ids import blob_key
from packhorse.store import room
from packhorse.store.cache import Cache
from packhorse.store.repository import Repository
from tests.onnx_models import publish
from tests.running import running, wait_until

USE = """
import sys
from pathlib import Path
from packhorse.store.cache import Cache
from packhorse.store.repository import Repository
repository, cache = Repository.open(sys.argv[1]), Cache(Path(sys.argv[2]), int(sys.argv[3]) or None)
for model_id in sys.argv[4:]:
    cache.pull(repository, repository.artifact(model_id, "v1", "cpu-fp32"))
print("has them", flush=True)
sys.stdin.read()
"""


class Store:
    """A store of models of one size that share their tokenizer."""

    def __init__(self, folder: Path, names: str) -> None:
        self.url = str(folder / "s")
        self.artifacts = {
            name: publish(self.url, folder / name, name, seed=ord(name)) for name in names
        }
        self.repository = Repository.open(self.url)
        first = self.artifacts[names[0]]
        self.own = next(file.bytes for file in first.files if file.path == "model.onnx")
        self.shared = first.total_bytes - self.own

    def limit(self, models: float) -> int:
        """Bytes that hold so many models."""
        return int(models * self.own) + self.shared

    def __getitem__(self, name: str) -> Artifact:
        return self.artifacts[name]


def names(cache: Path) -> list[str]:
    return sorted(path.parts[-4] for path in cache.glob("models/*/*/*/*"))


def used(cache: Path) -> int:
    return sum(path.stat().st_size for path in (cache / "blobs/sha256").iterdir())


@contextmanager
def user(store: Store, cache: Path, *models: str, limit: int = 0) -> Iterator[None]:
    """Another process that uses models until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", USE, store.url, str(cache), str(limit), *models],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has them\n"
        try:
            yield
        finally:
            process.kill()


def test_the_model_used_longest_ago_goes_first(tmp_path: Path) -> None:
    store = Store(tmp_path, "abcd")
    cache = Cache(tmp_path / "c", store.limit(3.3))
    for age, name in enumerate("abc"):
        folder = cache.pull(store.repository, store[name])
        cache.release(folder)
        os.utime(folder, (age, age))
    folder = cache.pull(store.repository, store["a"])  # used again
    cache.release(folder)
    cache.pull(store.repository, store["d"])
    assert names(tmp_path / "c") == ["a", "c", "d"]
    assert used(tmp_path / "c") == store.limit(3)
    cache.pull(store.repository, store["b"])
    assert names(tmp_path / "c") == ["a", "b", "d"]


def test_what_is_in_use_stays_and_the_error_names_the_limit(tmp_path: Path) -> None:
    store = Store(tmp_path, "abc")
    cache = Cache(tmp_path / "c", store.limit(2.3))
    folders = [cache.pull(store.repository, store[name]) for name in "ab"]
    with pytest.raises(StoreError, match=r"model 'c': .* the cache is full: .*: raise it"):
        cache.pull(store.repository, store["c"])
    assert all((folder / "model.onnx").exists() for folder in folders)
    cache.release(folders[0])
    cache.pull(store.repository, store["c"])
    assert names(tmp_path / "c") == ["b", "c"]
    assert (folders[1] / "model.onnx").exists()


def test_what_another_process_uses_stays_until_it_dies(tmp_path: Path) -> None:
    store = Store(tmp_path, "abc")
    cache = Cache(tmp_path / "c", store.limit(2.3))
    with user(store, tmp_path / "c", "a", "b"):
        with pytest.raises(StoreError, match="the cache is full"):
            cache.pull(store.repository, store["c"])
        assert {"a", "b"} <= set(names(tmp_path / "c"))
    cache.pull(store.repository, store["c"])  # after a kill -9
    assert "c" in names(tmp_path / "c")
    assert used(tmp_path / "c") <= store.limit(2)


def test_a_shared_blob_stays_while_one_model_has_it(tmp_path: Path) -> None:
    store = Store(tmp_path, "abc")
    cache = Cache(tmp_path / "c", store.limit(2.3))
    cache.release(cache.pull(store.repository, store["a"]))
    kept = cache.pull(store.repository, store["b"])
    cache.pull(store.repository, store["c"])
    assert names(tmp_path / "c") == ["b", "c"]
    tokenizer = next(file for file in store["a"].files if file.path == "tokenizer.json")
    assert (tmp_path / "c" / blob_key(tokenizer.sha256)).samefile(kept / "tokenizer.json")


def test_unfinished_downloads_and_free_blobs_go_before_models(tmp_path: Path) -> None:
    store = Store(tmp_path, "abc")
    cache = Cache(tmp_path / "c", store.limit(3.3))
    cache.release(cache.pull(store.repository, store["a"]))
    free = tmp_path / "c" / blob_key("f" * 64)
    free.write_bytes(bytes(store.own))
    unfinished = tmp_path / "c/partial" / f"{'e' * 64}.{store.own}"
    unfinished.write_bytes(bytes(store.own // 2))
    gone = weakref.ref(cache)
    del cache
    wait_until(lambda: gone() is None)  # its download threads let go of it when they are idle
    cache = Cache(tmp_path / "c", store.limit(3.3))  # whoever comes first counts anew
    cache.pull(store.repository, store["b"])
    cache.pull(store.repository, store["c"])
    assert names(tmp_path / "c") == ["a", "b", "c"]
    assert not free.exists()
    assert not unfinished.exists()


def test_two_processes_under_one_limit_both_get_their_models(tmp_path: Path) -> None:
    store = Store(tmp_path, "abcdefgh")
    limit = store.limit(8.5)
    with (
        user(store, tmp_path / "c", *"abcd", limit=limit),
        user(store, tmp_path / "c", *"efgh", limit=limit),
    ):
        assert names(tmp_path / "c") == list("abcdefgh")
        assert used(tmp_path / "c") == store.limit(8)


def test_a_server_whose_cache_is_full_says_so_of_the_model(tmp_path: Path) -> None:
    store = Store(tmp_path, "ab")
    limit = store.limit(1.3)
    with running(store.url, tmp_path / "c", ["a", "b"], cache_bytes=limit) as server:
        answers = [server.ask(name, "w1") for name in "ab"]
        assert sorted(answer.status_code for answer in answers) == [200, 503]
        (refused,) = [answer for answer in answers if answer.status_code == 503]
        assert "cache_bytes is" in refused.text


def test_of_two_pulls_for_which_there_is_room_for_one_one_succeeds(tmp_path: Path) -> None:
    store = Store(tmp_path, "ab")
    for attempt in range(10):
        cache = Cache(tmp_path / f"c{attempt}", store.limit(1.3))
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(cache.pull, store.repository, store[name]) for name in "ab"]
            failures = [job.exception() for job in jobs]
        assert sum(failure is None for failure in failures) == 1, failures


def test_a_model_larger_than_the_limit_takes_nobodys_room(tmp_path: Path) -> None:
    store = Store(tmp_path, "ab")
    cache = Cache(tmp_path / "c", store.limit(1) - 1)
    with pytest.raises(StoreError, match=r"model 'a' has .* of files, cache_bytes is .*: raise it"):
        cache.pull(store.repository, store["a"])
    assert not (tmp_path / "c/blobs").exists()


def test_a_model_that_was_replaced_makes_room(tmp_path: Path) -> None:
    store = Store(tmp_path, "a")
    old = store["a"].digest[:12]
    limit = store.limit(2.3)
    with running(
        store.url, tmp_path / "c", ["a"], cache_bytes=limit, refresh_seconds=0.1
    ) as server:
        registry = server.engine.registry
        for seed in (1, 2, 3):
            new = publish(store.url, tmp_path / "a", "a", seed=seed)
            wait_until(lambda: registry.get("a").artifact == new)  # noqa: B023 # called here only
    assert not (tmp_path / "c/models/a/v1/cpu-fp32" / old).exists()
    assert used(tmp_path / "c") <= store.limit(2)


def test_a_download_that_ends_while_bytes_are_counted_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, blob = tmp_path / "c", tmp_path / "c" / blob_key("e" * 64)
    for folder in (cache / "partial", blob.parent):
        folder.mkdir(parents=True)
    ending = cache / "partial" / f"{'e' * 64}.1000"
    ending.write_bytes(bytes(1000))
    plain = room._entries

    def entries(folder: Path) -> list[os.DirEntry[str]]:
        found = plain(folder)
        if ending.exists():
            ending.rename(blob)  # between the first look and the second
        return found

    with ending.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        monkeypatch.setattr(room, "_entries", entries)
        room.Room(cache, None).take(1, cache / "partial/own.1")
    assert int((cache / "lock").read_text()) == 1001


def test_a_cache_that_is_removed_under_a_server_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path, "ab")
    settings = {"cache_bytes": store.limit(2.3), "memory_bytes": 1_500_000}
    with running(
        store.url, tmp_path / "c", ["a", "b"], retry_seconds=0.1, refresh_seconds=0.1,
        **settings,  # type: ignore[arg-type] # whole numbers, both
    ) as server:  # fmt: skip
        shutil.rmtree(tmp_path / "c")
        wait_until(lambda: {server.ask(name, "w1").status_code for name in "ab"} == {200})
        cache = Cache(tmp_path / "c", store.limit(2.3))
        with pytest.raises(StoreError, match="the cache is full"):  # what it uses is claimed again
            cache.pull(store.repository, publish(store.url, tmp_path / "x", "x", seed=5))


def test_claims_do_not_grow_with_every_model_that_comes_and_goes(tmp_path: Path) -> None:
    store = Store(tmp_path, "ab")
    cache = Cache(tmp_path / "c")
    kept = cache.pull(store.repository, store["a"])
    for _ in range(300):
        cache.release(cache.pull(store.repository, store["b"]))
    (file,) = (tmp_path / "c/users").iterdir()
    lines = file.read_text().splitlines()
    assert len(lines) < 100
    assert f"+{kept.relative_to(tmp_path / 'c')}" in lines
