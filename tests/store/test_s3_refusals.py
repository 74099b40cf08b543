"""What S3 refuses is one line with the remedy."""

import ssl
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import botocore.auth
import pytest
import trustme

from packhorse.errors import StoreError
from packhorse.store.objects import open_objects
from packhorse.store.repository import Repository
from tests.onnx_models import publish
from tests.packhorse.test_cli import run
from tests.s3 import fault_proxy, send

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("signed")]


def refusal(url: str) -> str:
    with pytest.raises(StoreError) as caught:
        list(Repository.open(url).artifacts())
    said = str(caught.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("url", "environment", "says"),
    [
        ("s3://nosuch/x", {}, "bucket 'nosuch' does not exist"),
        ("s3://models/x", {"AWS_ACCESS_KEY_ID": "STRANGER"}, "access denied (403)"),
        ("s3://models/x", {"AWS_ACCESS_KEY_ID": "NOBODY"}, "access key is not known"),
        ("s3://models/x", {"AWS_SECRET_ACCESS_KEY": "no"}, "secret key does not fit"),
        ("s3://models/x", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no credentials"),
        ("s3://models/x", {"AWS_PROFILE": "gone"}, "correct AWS_PROFILE"),
        ("s3://models/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"},
         "does not answer"),
        ("s3://models/x", {"AWS_ENDPOINT_URL": "127.0.0.1:1"}, "AWS_ENDPOINT_URL as http://host"),
    ],
)  # fmt: skip
def test_a_setting_that_is_wrong_is_named(
    url: str, environment: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
        if not value:
            monkeypatch.delenv(name)
    assert says in refusal(url)


def answer(status: int, code: str, **headers: str) -> Callable[..., bool]:
    """What AWS answers, by its documentation; no server here has sessions or regions."""
    body = f"<Error><Code>{code}</Code><Message>Refused.</Message></Error>".encode()

    def refuse(handler: BaseHTTPRequestHandler, *_: object) -> bool:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        send(handler, status, [*fields.items(), ("Content-Length", str(len(body)))], body)
        return True

    return refuse


@pytest.mark.parametrize(
    ("refuse", "says"),
    [
        (answer(400, "ExpiredToken"), "the credentials have expired (ExpiredToken): log in again"),
        (answer(403, "RequestExpired"), "the credentials have expired"),
        (answer(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1"),
         "region eu-west-1: set AWS_REGION=eu-west-1"),
        (answer(400, "AuthorizationHeaderMalformed", x_amz_bucket_region="eu-west-1"),
         "set AWS_REGION=eu-west-1"),
    ],
)  # fmt: skip
def test_sessions_and_regions(
    refuse: Callable[..., bool], says: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fault_proxy(server, refuse, 10**6, matching="") as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert says in refusal("s3://models/x")


@pytest.mark.parametrize(("hours", "says"), [(2, "ahead of"), (-2, "behind")])
def test_a_clock_that_is_wrong_is_named(
    hours: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing: Callable[[], datetime] = vars(botocore.auth)["get_current_datetime"]
    shift = timedelta(hours=hours)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: signing() + shift)
    plain = time.time
    monkeypatch.setattr("time.time", lambda: plain() + shift.total_seconds())
    said = refusal("s3://models/x")
    seconds = int(said.partition("clock is ")[2].partition(" ")[0])
    assert abs(seconds - 7200) < 60
    assert f"s {says} the server's: set the clock (NTP)" in said


def test_a_private_authority_is_trusted_once_it_is_named(
    server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = publish(store, tmp_path / "m", "a")
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with fault_proxy(server, tls=tls) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        assert "not trusted: name its authority's file in AWS_CA_BUNDLE" in refusal(store)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        assert Repository.open(store).artifact("a", "v1", "cpu-fp32") == artifact


def test_a_newer_manifest_and_a_foreign_file_are_named(store: str, tmp_path: Path) -> None:
    publish(store, tmp_path / "m", "a")
    objects = open_objects(store)
    objects.write("models/b/v1/cpu-fp32/artifact.json", b'{"schema": 99}')
    objects.write("models/readme.txt", b"hello")
    objects.write("models/a/v1/artifact.json", b"not one of ours")
    done = run("models", "list", "--store", store)
    assert done.returncode == 1
    assert "has schema 99; this packhorse reads up to 1: upgrade it" in done.stderr
    assert done.stdout.startswith("a ")
    done = run("models", "verify", "--store", store)
    assert done.returncode == 1  # of the newer manifest
    assert "never read or removed: models/a/v1/artifact.json, models/readme.txt" in done.stderr
    assert "1 models, 2 blobs: 1 faults" in done.stdout
