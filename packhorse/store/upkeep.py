"""Keeping stores: copy models between two, take models out, collect what none names any more."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packhorse.artifact import Artifact, File
from packhorse.errors import Corrupt, InvalidInput
from packhorse.ids import blob_key, model_id_of
from packhorse.store.objects import Found
from packhorse.store.repository import CHUNK_BYTES, Repository, is_manifest

COPIES_AT_ONCE = 8
REMOVALS_AT_ONCE = 16
LEAST_AGE_S = 3600.0
"""What is younger may be of a publisher that has not written its manifest yet."""
_BLOB = re.compile(r"blobs/sha256/[0-9a-f]{64}")


def copy_models(
    source: Repository,
    target: Repository,
    artifacts: Sequence[Artifact],
    advance: Callable[[int], None] = lambda size: None,
) -> list[str]:
    """Copy models, each blob once and checked on the way, a manifest after all its blobs.

    Args:
        advance: Called with the bytes of each blob, copied or found there.

    Returns:
        What is wrong with each model that was not copied, since a blob of it is broken.

    Raises:
        StoreError: One of the stores cannot be read or written.
    """
    blobs = {file.sha256: file for artifact in artifacts for file in artifact.files}
    broken: dict[str, Corrupt] = {}
    pool = ThreadPoolExecutor(COPIES_AT_ONCE, thread_name_prefix="copy")
    try:
        jobs = {digest: pool.submit(_bring, source, target, blobs[digest]) for digest in blobs}
        for digest, job in jobs.items():
            try:
                job.result()
            except Corrupt as err:
                broken[digest] = err
            advance(blobs[digest].bytes)
        whole = [a for a in artifacts if not any(f.sha256 in broken for f in a.files)]
        list(pool.map(lambda artifact: _name(source, target, artifact), whole))
        # What lay unused in the target may have been collected before a manifest named it.
        named = {file.sha256: file for artifact in whole for file in artifact.files}
        list(pool.map(lambda file: _bring_if_gone(source, target, file), named.values()))
    finally:
        pool.shutdown(cancel_futures=True)
    return [
        f"{artifact.id} {artifact.version} {artifact.variant}: {broken[file.sha256]}"
        for artifact in artifacts
        for file in [file for file in artifact.files if file.sha256 in broken][:1]
    ]


def _bring(source: Repository, target: Repository, file: File) -> None:
    if target.is_intact(file):
        target.renew(file)
    else:
        _copy_blob(source, target, file)


def _name(source: Repository, target: Repository, artifact: Artifact) -> None:
    key, data = f"{artifact.prefix}/artifact.json", artifact.encode()
    if target.objects.read(key) != data:
        target.objects.write(key, data)
    newest = source.latest_or_none(artifact.id) or target.latest_or_none(artifact.id)
    if newest in (None, artifact.version):
        target.mark_latest(artifact.id, artifact.version)


def _bring_if_gone(source: Repository, target: Repository, file: File) -> None:
    if target.objects.find(blob_key(file.sha256)) is None:
        _copy_blob(source, target, file)


def _copy_blob(source: Repository, target: Repository, file: File) -> None:
    key = blob_key(file.sha256)
    if source.objects.find(key) is None:
        raise Corrupt(f"store {source.objects.url}: blob {file.sha256} is missing")
    for _ in range(2):  # what differs may have been damaged on the way
        with tempfile.NamedTemporaryFile(prefix="packhorse-copy-") as aside:
            digest = hashlib.sha256()
            with source.objects.open(key) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    digest.update(chunk)
                    aside.write(chunk)
            aside.flush()
            if digest.hexdigest() == file.sha256:
                target.objects.write(key, Path(aside.name))
                return
    raise Corrupt(
        f"store {source.objects.url}: blob {file.sha256} has other content: packhorse models "
        "verify names the models that use it; publish them again"
    )


def remove_artifacts(repository: Repository, prefixes: Iterable[str]) -> None:
    """Take artifacts, named by their key prefixes, out of a store; their blobs stay for `gc`.

    `latest` first moves to the newest version that is left, or goes.
    """
    chosen = set(prefixes)
    models = sorted({"/".join(prefix.split("/")[:2]) for prefix in chosen})
    for model in models:
        _settle_latest(repository, model, chosen)
    for prefix in chosen:
        repository.objects.delete(f"{prefix}/artifact.json")
    for model in models:  # a publisher may have come between
        _settle_latest(repository, model, set())


def _settle_latest(repository: Repository, model: str, leaving: set[str]) -> None:
    """Have `latest.json` name a version that is there."""
    model_id = model_id_of(model.partition("/")[2])
    left = [
        row
        for row in repository.objects.list(model)
        if is_manifest(row.key) and row.key.rpartition("/")[0] not in leaving
    ]
    if not left and not leaving:
        repository.objects.delete(f"{model}/latest.json")
        left = [row for row in repository.objects.list(model) if is_manifest(row.key)]
    versions = {row.key.split("/")[2] for row in left}
    if left and repository.latest_or_none(model_id) not in versions:
        newest = max(left, key=lambda row: row.modified)
        repository.mark_latest(model_id, newest.key.split("/")[2])


def collect_garbage(
    repository: Repository,
    age_s: float,
    dry_run: bool,
    clock: Callable[[], float] = time.time,
) -> list[Found]:
    """Remove blobs that no manifest names and what killed writers left, older than an age.

    Returns:
        What was removed, or would be. Objects that are not of a store's form are left alone.

    Raises:
        Corrupt: A manifest cannot be read, so that nobody knows what it names.
        InvalidInput: The age is so short that a running publisher could lose its blobs.
    """
    if age_s < LEAST_AGE_S:
        raise InvalidInput(f"an age of {age_s:g} s would take what is being published: use 1h")
    old = clock() - age_s
    named = _named(repository)
    found = [
        blob
        for blob in repository.objects.list("blobs")
        if _BLOB.fullmatch(blob.key) and blob.key not in named and blob.modified < old
    ]
    found += [row for row in repository.objects.leftovers() if row.modified < old]
    if dry_run:
        return found

    def remove(row: Found) -> bool:
        if _BLOB.fullmatch(row.key):
            now = repository.objects.find(row.key)
            if now is None or now.modified >= old:
                return False  # a publisher that relies on an old blob makes it young first
        repository.objects.delete(row.key)
        return True

    with ThreadPoolExecutor(REMOVALS_AT_ONCE, thread_name_prefix="remove") as pool:
        return [row for row, gone in zip(found, pool.map(remove, found), strict=True) if gone]


def _named(repository: Repository) -> set[str]:
    names: set[str] = set()
    for _, record in repository.artifacts():
        if isinstance(record, Corrupt):
            raise Corrupt(f"{record}; until then nothing is removed")
        names.update(blob_key(file.sha256) for file in record.files)
    return names
