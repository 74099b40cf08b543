"""Models in a store: publish them whole, find them, prove them intact (DESIGN 12.2)."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader, RawIOBase
from pathlib import Path

import msgspec

from packhorse.artifact import Artifact, File, decode_record
from packhorse.errors import Corrupt, InvalidInput, StoreError
from packhorse.ids import artifact_prefix, blob_key, model_key
from packhorse.store.objects import Found, Objects, open_objects

CHUNK_BYTES = 512 * 1024
"""What is read, hashed and written at once: small enough to stay in a core's cache."""
READS_AT_ONCE = 16
WRITES_AT_ONCE = 8
VERIFIES_AT_ONCE = 8
LIST_FROM = 200
"""From so many keys on, listing all of the store costs less than asking for each."""
REFRESH_S = 1800.0
"""A blob older than this is made young again by who is about to name it."""

_MANIFEST = re.compile(r"models/[^/]+/[^/]+/[^/]+/artifact\.json")
_OURS = re.compile(rf"{_MANIFEST.pattern}|models/[^/]+/latest\.json|blobs/sha256/[0-9a-f]{{64}}")


class Latest(msgspec.Struct, frozen=True):
    """`latest.json`: the version that a plan takes when the catalog names none."""

    version: str
    schema: int = 1


class Repository:
    """The models of one store."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    @classmethod
    def open(cls, url: str) -> Repository:
        """Open the repository at a store URL."""
        return cls(open_objects(url))

    def publish(self, artifact: Artifact, folder: Path) -> int:
        """Put a model into the store: blobs, then the manifest, then `latest`.

        A kill at any point leaves either no manifest or one whose blobs are all there.

        Args:
            artifact: Its `files` lie below `folder`.

        Returns:
            Bytes that were not in the store before.

        Raises:
            StoreError: The store cannot be written.
        """
        key = f"{artifact.prefix}/artifact.json"
        published = self.objects.read(key) if self.objects.find(key) else None
        data = artifact.encode()
        added = self._write_blobs(artifact, folder, new=published != data)
        written = published == data or self.objects.write(key, data, create=published is None)
        # Where another publisher of the same version came first, its measurement is as good.
        if not written and self._files(artifact) != artifact.files:
            raise StoreError(
                f"model {artifact.id!r}: another publisher has just written other content as "
                f"version {artifact.version}: run again to replace it, or name another version"
            )
        if published != data:
            # What lay unused before the manifest named it may have been collected meanwhile.
            added += self._write_blobs(artifact, folder)
        self.mark_latest(artifact.id, artifact.version)
        return added

    def _write_blobs(self, artifact: Artifact, folder: Path, new: bool = False) -> int:
        def write(file: File) -> int:
            if not self.is_intact(file):
                self.objects.write(blob_key(file.sha256), folder / file.path)
                return file.bytes
            if new:
                self.renew(file)
            return 0

        blobs = {file.sha256: file for file in artifact.files}
        with ThreadPoolExecutor(WRITES_AT_ONCE, thread_name_prefix="write") as pool:
            return sum(pool.map(write, blobs.values()))

    def renew(self, file: File) -> None:
        """Make a blob young that is about to be named, or it could be collected before it is."""
        found = self.objects.find(blob_key(file.sha256))
        if found is not None and found.modified < time.time() - REFRESH_S:
            self.objects.touch(found.key)

    def _files(self, artifact: Artifact) -> list[File]:
        return self.artifact(artifact.id, artifact.version, artifact.variant).files

    def is_intact(self, file: File) -> bool:
        """Tell whether a blob is there and whole, so that publishing again mends what is not.

        It is read, unless the store keeps a digest that it has compared itself, as S3 does of what
        was written with one.
        """
        found = self.objects.find(blob_key(file.sha256))
        if found is None or found.bytes != file.bytes:
            return False
        if found.sha256 is not None:
            return found.sha256 == file.sha256
        return self._blob_fault(file.sha256, file.bytes) is None

    def mark_latest(
        self, model_id: str, version: str, listed: Mapping[str, Found] | None = None
    ) -> None:
        """Make a published version the one that is taken where none is named.

        Args:
            listed: What `listed()` gave, for whoever marks many.
        """
        key = f"models/{model_key(model_id)}/latest.json"
        data = msgspec.json.encode(Latest(version))
        found = listed.get(key) if listed is not None else None
        # S3 tags a small object with its MD5, unless it encrypts with a key of one's own.
        if found and found.tag == f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"':
            return
        if self.objects.read(key) != data:
            self.objects.write(key, data)

    def latest(self, model_id: str) -> str:
        """Return the newest version of a model.

        Raises:
            InvalidInput: The model is not in the store.
        """
        key = f"models/{model_key(model_id)}/latest.json"
        data = self.objects.read(key)
        if data is None:
            raise InvalidInput(
                f"model {model_id!r} is not in store {self.objects.url}: run packhorse trace"
            )
        return decode_record(data, Latest, key, 1).version

    def latest_or_none(self, model_id: str) -> str | None:
        """Return the newest version of a model, where a readable record says which it is."""
        try:
            return self.latest(model_id)
        except (InvalidInput, Corrupt):
            return None

    def artifact(self, model_id: str, version: str, variant: str) -> Artifact:
        """Return a model's record.

        Raises:
            InvalidInput: Not in the store.
            Corrupt: The record is broken.
        """
        prefix = artifact_prefix(model_id, version, variant)
        data = self.objects.read(f"{prefix}/artifact.json")
        if data is None:
            raise InvalidInput(
                f"model {model_id!r} version {version} variant {variant} is not in store "
                f"{self.objects.url}: run packhorse trace"
            )
        return _same(Artifact.decode(data, f"{prefix}/artifact.json"), prefix)

    def published(
        self, model_id: str, version: str, variant: str, listed: Mapping[str, Found] | None = None
    ) -> Artifact | None:
        """Return a model's record if it has been published, blobs and all.

        Args:
            listed: What `listed()` gave, for whoever asks for many.
        """
        key = f"{artifact_prefix(model_id, version, variant)}/artifact.json"
        if listed is not None and key not in listed:
            return None
        try:
            artifact = self.artifact(model_id, version, variant)
        except (InvalidInput, Corrupt):
            return None

        def is_there(file: File) -> bool:
            blob = blob_key(file.sha256)
            found = self.objects.find(blob) if listed is None else listed.get(blob)
            return found is not None and found.bytes == file.bytes

        return artifact if all(is_there(file) for file in artifact.files) else None

    def withdraw(self, model_id: str, version: str, variant: str) -> None:
        """Take a variant back that has been refused since; its blobs stay for `gc`."""
        self.objects.delete(f"{artifact_prefix(model_id, version, variant)}/artifact.json")

    def listed(self) -> dict[str, Found]:
        """List all of the store, by key."""
        return {
            found.key: found for root in ("models", "blobs") for found in self.objects.list(root)
        }

    def tags(self, keys: Sequence[str]) -> dict[str, str]:
        """Return what changes when an object is written anew, for those keys that are there."""
        if len(keys) >= LIST_FROM:
            wanted = set(keys)
            return {row.key: row.tag for row in self.objects.list("models") if row.key in wanted}
        with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="read") as pool:
            found = pool.map(self.objects.find, keys)
            return {row.key: row.tag for row in found if row is not None}

    def variants(self, model_id: str, version: str) -> list[str]:
        """Return the variants published of a model version, in order."""
        prefix = f"models/{model_key(model_id)}/{version}"
        keys = [found.key for found in self.objects.list(prefix)]
        return [key.split("/")[-2] for key in keys if is_manifest(key)]

    def artifacts(self) -> Iterator[tuple[str, Artifact | Corrupt]]:
        """Yield every published model's key prefix with its record, or with what is wrong."""
        keys = [found.key for found in self.objects.list("models")]
        manifests = [key for key in keys if is_manifest(key)]
        with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="read") as pool:
            for key, data in zip(manifests, pool.map(self.objects.read, manifests), strict=True):
                if data is None:
                    continue  # removed since it was listed
                prefix = key.rpartition("/")[0]
                try:
                    yield prefix, _same(Artifact.decode(data, key), prefix)
                except Corrupt as err:
                    yield prefix, err

    def foreign(self) -> list[str]:
        """Return the keys below `models/` and `blobs/` that are not of a store's form."""
        found = [row.key for top in ("models", "blobs") for row in self.objects.list(top)]
        return [key for key in found if not _OURS.fullmatch(key)]

    def faults(
        self, artifacts: Sequence[Artifact], advance: Callable[[int], None] = lambda size: None
    ) -> list[tuple[Artifact, str]]:
        """Read every blob of models, each once, and say what is wrong with which model's file.

        Args:
            advance: Called with the bytes of each blob that was read.
        """
        blobs = {file.sha256: file.bytes for artifact in artifacts for file in artifact.files}
        faults: dict[str, str | None] = {}
        with ThreadPoolExecutor(VERIFIES_AT_ONCE, thread_name_prefix="verify") as pool:
            found = pool.map(self._blob_fault, blobs, blobs.values())
            for (digest, size), fault in zip(blobs.items(), found, strict=True):
                faults[digest] = fault
                advance(size)
        return [
            (artifact, f"{file.path}: blob {file.sha256}: {faults[file.sha256]}")
            for artifact in artifacts
            for file in artifact.files
            if faults[file.sha256]
        ]

    def _blob_fault(self, sha256: str, size: int) -> str | None:
        key = blob_key(sha256)
        found = self.objects.find(key)
        if found is None:
            return "missing"
        if found.bytes != size:
            return f"has {found.bytes} bytes, expected {size}"
        try:
            for _ in range(2):  # what differs may have been damaged on the way
                with self.objects.open(key) as stream:
                    if hash_stream(stream) == sha256:
                        return None
        except StoreError as err:
            return str(err)
        return "content does not match digest"


def is_manifest(key: str) -> bool:
    """Tell whether a key is that of an artifact's record."""
    return _MANIFEST.fullmatch(key) is not None


def hash_stream(stream: RawIOBase | BufferedReader) -> str:
    """Return the sha256 of what is left of a stream."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
    while count := stream.readinto(buffer):
        digest.update(buffer[:count])
    return digest.hexdigest()


def _same(artifact: Artifact, prefix: str) -> Artifact:
    """Refuse a record that lies under another model's key."""
    if artifact.prefix != prefix:
        raise Corrupt(f"{prefix}/artifact.json describes {artifact.id!r}: publish it again")
    return artifact
