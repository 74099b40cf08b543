"""Names of models, versions and variants, and the store keys made of them (DESIGN 12.2).

A key is an id with `/` written as `~`, which no id may contain, so that the two convert both
ways and one model's folder is never inside another's.
"""

from __future__ import annotations

import re

from packhorse.errors import InvalidInput

MAX_ID_LENGTH = 200
RESERVED_SEGMENTS = frozenset({"versions", "infer", "ready", "config", "load", "unload", ".", ".."})
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_VERSION = re.compile(r"[a-z0-9][a-z0-9.-]{0,31}")
_VARIANT = re.compile(r"(cpu|gpu|inf1|inf2)-[a-z0-9]+(-[a-z0-9]+)*")


def check_model_id(model_id: str) -> str:
    """Return the id, or say why it cannot be one.

    Raises:
        InvalidInput: Empty, too long, with a character or a segment that is not allowed.
    """
    if not 1 <= len(model_id) <= MAX_ID_LENGTH:
        raise InvalidInput(
            f"model id {model_id[:60]!r} has {len(model_id)} characters: use 1 to {MAX_ID_LENGTH}"
        )
    for segment in model_id.split("/"):
        if not _SEGMENT.fullmatch(segment):
            raise InvalidInput(
                f"model id {model_id!r}: {segment!r} is not allowed between slashes: "
                "use letters, digits, '.', '_' and '-'"
            )
        if segment in RESERVED_SEGMENTS:
            raise InvalidInput(f"model id {model_id!r}: {segment!r} is reserved: rename the model")
    return model_id


def check_version(version: str) -> str:
    """Return the version, or say why it cannot be one.

    Raises:
        InvalidInput: Not lower-case letters, digits, '.' and '-', at most 32.
    """
    if not _VERSION.fullmatch(version):
        raise InvalidInput(
            f"version {version!r} is not allowed: use at most 32 of a-z, 0-9, '.' and '-', "
            "beginning with a letter or digit"
        )
    return version


def check_variant(variant: str) -> str:
    """Return the variant, or say why it cannot be one.

    Raises:
        InvalidInput: Not `<processor>-<precision>[-…]`.
    """
    if len(variant) > 64 or not _VARIANT.fullmatch(variant):
        raise InvalidInput(f"variant {variant!r} is not <processor>-<precision>, such as cpu-int8")
    return variant


def model_key(model_id: str) -> str:
    """Turn an id into the one path segment that holds the model."""
    return check_model_id(model_id).replace("/", "~")


def model_id_of(key: str) -> str:
    """Turn a path segment back into the id."""
    return check_model_id(key.replace("~", "/"))


def artifact_prefix(model_id: str, version: str, variant: str) -> str:
    """Return the key prefix of one artifact, without a final slash."""
    return f"models/{model_key(model_id)}/{check_version(version)}/{check_variant(variant)}"


def blob_key(sha256: str) -> str:
    """Return the key of a blob.

    Raises:
        InvalidInput: Not 64 hex digits; a manifest may not lead elsewhere.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise InvalidInput(f"{sha256[:80]!r} is not a sha256 digest in hexadecimal")
    return f"blobs/sha256/{sha256}"
