from pathlib import Path

import msgspec
import pytest

from packhorse.artifact import Artifact, Cost, Latency, LoadSeconds
from packhorse.errors import Corrupt, InvalidInput

GOLDEN = (Path(__file__).parents[1] / "contracts/artifact.json").read_bytes()


def changed(**fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(GOLDEN), **fields})


def files(*paths: str, size: int = 1) -> list[dict[str, object]]:
    return [{"path": path, "sha256": "0" * 64, "bytes": size} for path in paths]


def cost(*latency: tuple[int, int, float]) -> Cost:
    return Cost("c", "r", 1, 1, 1, [], 1, 1, LoadSeconds(1, 1),
                [Latency(b, t, s, s) for b, t, s in latency])  # fmt: skip


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a valid record"),
        (b"[]", "not a valid record"),
        (b"\xff\xfe", "not a valid record"),
        (changed(schema=2), "schema 2; this packhorse reads up to 1: upgrade"),
        (changed(id="../up"), "model id"),
        (changed(version="V"), "version 'V'"),
        (changed(variant="x"), "variant 'x'"),
        (changed(files=[{"path": "../x", "sha256": "0" * 64, "bytes": 1}]), "leads out"),
        (changed(files=[{"path": "/x", "sha256": "0" * 64, "bytes": 1}]), "leads out"),
        (changed(files=[{"path": "a\\b", "sha256": "0" * 64, "bytes": 1}]), "leads out"),
        (changed(files=[{"path": "x", "sha256": "../x", "bytes": 1}]), "sha256"),
        (changed(files=files("x", "x")), "'x' is named twice"),
        (changed(files=files("a/b", "a/b/c")), "'a/b/c' lies in 'a/b', which is a file too"),
        (changed(files=files("x", size=-1)), "Expected `int` >= 0 - at .*bytes"),
        (changed(tokenizer={"sha256": "0" * 64, "max_length": 9, "pair": True}), "not the digest"),
        (changed(tokenizer={"sha256": "0" * 64, "max_length": -3, "pair": True}), ">= 1"),
        (changed(cost={**msgspec.json.decode(GOLDEN)["cost"], "private_bytes": -1}), ">= 0"),
        (changed(labels="x"), "labels"),
    ],
)
def test_a_broken_record_is_named_and_refused(data: bytes, says: str) -> None:
    with pytest.raises(Corrupt, match=rf"here.*{says}"):
        Artifact.decode(data, "here")


def test_a_field_that_a_newer_packhorse_adds_is_ignored() -> None:
    assert Artifact.decode(changed(added_later=1), "here") == Artifact.decode(GOLDEN, "here")


def test_latency_is_that_of_the_length_measured_next_above() -> None:
    known = cost((1, 128, 0.02), (1, 12, 0.002), (8, 12, 9.0))
    assert [known.seconds_at(n) for n in (1, 12, 13, 128)] == [0.002, 0.002, 0.02, 0.02]


def test_latency_above_all_lengths_grows_in_proportion() -> None:
    assert cost((1, 128, 0.02)).seconds_at(256) == 0.04


def test_a_cost_record_without_latency_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no batch-1 latency"):
        cost().seconds_at(1)
