"""A real S3 server for the tests of stores, and the environment to use it."""

import re
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.s3 import s3_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as url:
        client = boto3.client(
            "s3", endpoint_url=url, aws_access_key_id="ADMIN", aws_secret_access_key="secret",
            region_name="us-east-1",
        )  # fmt: skip
        for bucket in ("models", "public"):
            client.create_bucket(Bucket=bucket)
        client.close()
        yield url


@pytest.fixture
def signed(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ADMIN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    return f"s3://models/{re.sub(r'[^a-z0-9_]+', '-', request.node.name)}"


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind."""
    if request.param == "folder":
        return str(tmp_path / "s")
    request.getfixturevalue("signed")
    return f"{request.getfixturevalue('store')}/s"
