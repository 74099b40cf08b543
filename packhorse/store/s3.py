"""A store in an S3 bucket, or in a server that speaks S3.

The AWS SDK finds credentials, region, endpoint and certificates as it always does; where it finds
no credentials, requests go unsigned, which is how public buckets are read.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packhorse import __version__
from packhorse.errors import MissingPackage, StoreError
from packhorse.store.objects import Found
from packhorse.store.s3_errors import explain, is_missing, is_status
from packhorse.store.s3_stream import Stream

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECTIONS = 48
"""As many as blobs are fetched and manifests read at once, with room for more."""
READ_TIMEOUT_S = 30.0
SINGLE_PUT_BYTES = 64 * 1024**2
_BLOBS = "blobs/sha256/"


class S3Objects:
    """Objects below a prefix of a bucket."""

    remote = True

    def __init__(self, bucket: str, prefix: str) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self.bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        try:
            self.client, self.signed = _client()
        except StoreError:
            raise
        except Exception as err:  # a profile or a setting of the SDK that cannot be
            raise explain(err, self) from err

    def prepare(self) -> None:
        try:
            self.client.list_objects_v2(Bucket=self.bucket, Prefix=self._prefix, MaxKeys=1)
        except Exception as err:
            raise explain(err, self) from err

    def read(self, key: str) -> bytes | None:
        try:
            with self.open(key) as stream:
                return stream.read()
        except StoreError as err:
            if is_missing(err.__cause__):
                return None
            raise

    def open(self, key: str, start: int = 0) -> Stream:
        return Stream(self, key, start)

    def find(self, key: str) -> Found | None:
        try:
            head = self.client.head_object(**self.at(key), ChecksumMode="ENABLED")
        except Exception as err:
            if is_status(err, 404):
                return None
            raise explain(err, self, key) from err
        digest = head.get("ChecksumSHA256", "")
        known = base64.b64decode(digest).hex() if digest and "-" not in digest else None
        modified = head["LastModified"].timestamp()
        return Found(key, head["ContentLength"], modified, head["ETag"], known)

    def write(self, key: str, data: bytes | Path, create: bool = False) -> bool:
        options: dict[str, Any] = dict(self.at(key))
        if create:
            options["IfNoneMatch"] = "*"
        if key.startswith(_BLOBS):  # the server refuses what is not what its name says
            digest = bytes.fromhex(key[len(_BLOBS) :])
            options["ChecksumSHA256"] = base64.b64encode(digest).decode()
        try:
            if isinstance(data, bytes):
                self.client.put_object(Body=data, **options)
            elif data.stat().st_size <= SINGLE_PUT_BYTES:
                with data.open("rb") as body:
                    self.client.put_object(Body=body, **options)
            else:
                self._write_in_parts(key, data)
        except Exception as err:
            if create and is_status(err, 412):
                return False
            raise explain(err, self, key) from err
        return True

    def touch(self, key: str) -> None:
        at = self.at(key)
        try:
            self.client.copy_object(**at, CopySource=at, MetadataDirective="REPLACE")
        except Exception as err:
            raise explain(err, self, key) from err

    def delete(self, key: str) -> None:
        key, _, upload = key.partition("?upload=")
        try:
            if upload:
                self.client.abort_multipart_upload(**self.at(key), UploadId=upload)
            else:
                self.client.delete_object(**self.at(key))
        except Exception as err:
            raise explain(err, self, key) from err

    def list(self, prefix: str) -> Iterator[Found]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{self._prefix}{prefix}/"
        )
        try:
            for page in pages:
                for row in page.get("Contents", []):
                    key = row["Key"][len(self._prefix) :]
                    modified = row["LastModified"].timestamp()
                    yield Found(key, row["Size"], modified, row["ETag"])
        except Exception as err:
            raise explain(err, self) from err

    def leftovers(self) -> Iterator[Found]:
        """Yield uploads in parts that were never completed, which are billed until aborted."""
        pages = self.client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self.bucket, Prefix=self._prefix + _BLOBS
        )
        try:
            for page in pages:
                for row in page.get("Uploads", []):
                    key = f"{row['Key'][len(self._prefix) :]}?upload={row['UploadId']}"
                    yield Found(key, 0, row["Initiated"].timestamp())
        except Exception as err:
            raise explain(err, self) from err

    def at(self, key: str) -> Any:
        """Return where a key is, as the SDK's arguments."""
        return {"Bucket": self.bucket, "Key": self._prefix + key}

    def _write_in_parts(self, key: str, path: Path) -> None:
        from boto3.s3.transfer import TransferConfig

        # The SDK's other transfer client ignores an endpoint that is not AWS's.
        config = TransferConfig(
            preferred_transfer_client="classic", multipart_threshold=SINGLE_PUT_BYTES,
            multipart_chunksize=SINGLE_PUT_BYTES // 4, max_concurrency=4,
        )  # fmt: skip
        self.client.upload_file(str(path), self.bucket, self._prefix + key, Config=config)


def _client() -> tuple[S3Client, bool]:
    """Make a client, and tell whether its requests are signed."""
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError as err:
        raise MissingPackage("boto3", "s3") from err

    session = boto3.Session()
    signed = session.get_credentials() is not None
    config = Config(
        # Our own digests cover whole blobs, which the SDK's checksums do not where a range is
        # read, and servers that merely speak S3 refuse the checksums that it adds to uploads.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=CONNECTIONS,
        connect_timeout=5,
        read_timeout=READ_TIMEOUT_S,
        user_agent_extra=f"packhorse/{__version__}",
        signature_version=None if signed else UNSIGNED,
    )
    if "AWS_MAX_ATTEMPTS" not in os.environ:
        config = config.merge(Config(retries={"mode": "standard", "total_max_attempts": 5}))
    return session.client("s3", config=config), signed
