"""What S3 says, in one line with the remedy."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from packhorse.errors import StoreError

if TYPE_CHECKING:
    from packhorse.store.s3 import S3Objects

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken",
            "RequestExpired"}  # fmt: skip
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "301", "MovedPermanently",
           "IllegalLocationConstraintException"}  # fmt: skip
_REMEDIES = {
    "NoSuchBucket": "bucket {bucket!r} does not exist: create it, or correct --store",
    "InvalidBucketName": "bucket {bucket!r} does not exist: create it, or correct --store",
    "InvalidAccessKeyId": "the access key is not known to the server: check AWS_ACCESS_KEY_ID and "
    "AWS_PROFILE, and AWS_ENDPOINT_URL where the server is not AWS's",
    "SignatureDoesNotMatch": "the secret key does not fit the access key: check "
    "AWS_SECRET_ACCESS_KEY",
    "NoSuchKey": "{key} is not there: publish the model again",
    "BadDigest": "{key}: what arrived is not what was sent: try again",
    "SlowDown": "the server asks for fewer requests (SlowDown) and did so at every try: try "
    "again later",
    "NoCredentialsError": "no credentials were found: set AWS_PROFILE or AWS_ACCESS_KEY_ID",
    "PartialCredentialsError": "the credentials are incomplete: set both AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY",
    "ProfileNotFound": "{detail}: correct AWS_PROFILE",
    "SSLError": "the server's certificate is not trusted: name its authority's file in "
    "AWS_CA_BUNDLE ({detail})",
}  # fmt: skip
_UNREACHABLE = ("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError",
                "ReadTimeoutError", "ProxyConnectionError", "HTTPClientError")  # fmt: skip


def explain(err: Exception, objects: S3Objects, key: str = "") -> StoreError:
    """Turn an error of the SDK into ours; an error of ours is returned as it is."""
    if isinstance(err, StoreError):
        return err
    return StoreError(f"store {objects.url}: {_reason(err, objects, key)}")


def is_missing(err: BaseException | None) -> bool:
    """Tell whether a request failed since the object is not there (and the bucket is)."""
    return _code(err) == "NoSuchKey"


def is_status(err: BaseException | None, status: int) -> bool:
    """Tell whether the server answered with an HTTP status."""
    found = _response(err).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return bool(found == status)


def _reason(err: Exception, objects: S3Objects, key: str) -> str:
    code = _code(err)
    detail = " ".join(str(err).split())[:300]
    if code in _EXPIRED:
        return f"the credentials have expired ({code}): log in again, or renew the token"
    if code in _REGION:
        where = _headers(err).get("x-amz-bucket-region") or _response(err).get("Error", {}).get(
            "Region"
        )
        return (
            f"the bucket lies in region {where or 'of another name'}: set AWS_REGION"
            f"{'=' + where if where else ''}"
        )
    if code == "RequestTimeTooSkewed":
        return f"this machine's clock is {_skew(err)} the server's: set the clock (NTP)"
    if code in ("AccessDenied", "403", "AllAccessDisabled", "Forbidden"):
        return _denied(objects, key)
    if "Invalid endpoint" in detail:
        return f"{detail}: write AWS_ENDPOINT_URL as http://host:port or https://host"
    if code in _REMEDIES:
        return _REMEDIES[code].format(bucket=objects.bucket, key=key, detail=detail)
    if code in _UNREACHABLE:
        return f"the server does not answer: check AWS_ENDPOINT_URL and the network ({detail})"
    return f"{key + ': ' if key else ''}{detail}"


def _denied(objects: S3Objects, key: str) -> str:
    if not getattr(objects, "signed", True):
        return (
            "access denied (403), and no credentials were found: set AWS_PROFILE or "
            "AWS_ACCESS_KEY_ID, or give the pod a role"
        )
    what = f" to {key}" if key else ""
    return (
        f"access denied (403){what}: grant what docs/store.md lists; without s3:ListBucket, S3 "
        "says the same of an object that is not there"
    )


def _skew(err: Exception) -> str:
    try:
        there = parsedate_to_datetime(_headers(err)["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return "far from"
    seconds = round(time.time() - there)
    return f"{abs(seconds)} s {'ahead of' if seconds > 0 else 'behind'}"


def _response(err: BaseException | None) -> dict[str, Any]:
    found = getattr(err, "response", None)
    return found if isinstance(found, dict) else {}


def _headers(err: BaseException | None) -> dict[str, str]:
    headers: dict[str, str] = _response(err).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers


def _code(err: BaseException | None) -> str:
    return str(_response(err).get("Error", {}).get("Code", "") or type(err).__name__)
