"""The hot path over a real socket (FAULTS 6, 9, 10, 11, 12, 13)."""

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import psutil
import pytest
from onnx import TensorProto

from tests.onnx_models import SPECIAL, publish, vectors
from tests.running import Running, running, wait_until

LABELS = ["a", "b", "c"]
IDS = ["org/tiny-1.0", "a.b.c", "UPPER", "x" * 200]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("predictions")
    store = str(folder / "s")
    publish(store, folder / "classify", "classify", labels=LABELS)
    publish(store, folder / "embed", "embed")
    publish(store, folder / "two", "two", inputs=("input_ids", "attention_mask"))
    publish(store, folder / "order", "order",
            inputs=("attention_mask", "token_type_ids", "input_ids"))  # fmt: skip
    publish(store, folder / "int32", "int32", dtype=TensorProto.INT32)
    for number, model_id in enumerate(IDS):
        publish(store, folder / str(number), model_id)
    names = ["classify", "embed", "two", "order", "int32", *IDS]
    with running(store, folder / "c", names) as started:
        yield started


def wanted(text: str, outputs: int = 4) -> np.ndarray:
    """The right answer, worked out by hand."""
    rows = vectors(outputs)[[len(SPECIAL) + int(word[1:]) for word in text.split()]]
    return np.asarray(rows.sum(0) / (len(rows) + 2))


def test_an_answer_is_the_right_one(server: Running) -> None:
    assert server.ask("embed", "w1 w2 w3").json() == pytest.approx(wanted("w1 w2 w3"), abs=1e-6)


def test_a_list_gives_a_list_in_its_order(server: Running) -> None:
    texts = ["w1", "w2 w3", "w4 w5 w6"]
    for answer, text in zip(server.ask("embed", texts).json(), texts, strict=True):
        assert answer == pytest.approx(wanted(text), abs=1e-6)
    assert np.shape(server.ask("embed", ["w1"]).json()) == (1, 4)


def test_a_pair_reaches_the_graph_with_its_types(server: Running) -> None:
    one = {row["label"]: row["score"] for row in server.ask("classify", "w1 w2").json()}
    pair = {"text": "w1", "text_pair": "w2"}
    both = {row["label"]: row["score"] for row in server.ask("classify", pair).json()}
    assert set(one) == set(both) == set(LABELS)
    assert one != both
    query = server.http.get("/predictions/classify", params={"seq_0": "w1", "seq_1": "w2"})
    assert {row["label"]: row["score"] for row in query.json()} == both


@pytest.mark.parametrize("model_id", ["two", "order", "int32"])
def test_graphs_are_fed_by_name_and_in_their_dtype(server: Running, model_id: str) -> None:
    assert server.ask(model_id, "w5 w6").json() == pytest.approx(wanted("w5 w6"), abs=1e-6)


def test_every_caller_gets_its_own_answer(server: Running) -> None:
    def ask(number: int) -> None:
        draw = np.random.default_rng(number)
        with httpx.Client(base_url=server.url, timeout=30) as http:
            for _ in range(25):
                texts = [
                    " ".join(f"w{w}" for w in draw.integers(0, 100, draw.integers(1, 12)))
                    for _ in range(draw.integers(1, 4))
                ]
                inputs = texts if len(texts) > 1 else texts[0]
                response = http.post("/predictions/embed", json={"inputs": inputs})
                answers = response.json() if len(texts) > 1 else [response.json()]
                for answer, text in zip(answers, texts, strict=True):
                    assert answer == pytest.approx(wanted(text), abs=1e-6)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(16)))


@pytest.mark.parametrize("model_id", IDS)
@pytest.mark.parametrize("slash", ["", "/"])
def test_every_listed_id_works_plain_and_encoded(
    server: Running, model_id: str, slash: str
) -> None:
    listed = [row["id"] for row in server.http.get("/models").json()["models"]]
    assert model_id in listed
    for written in (model_id, quote(model_id, safe="")):
        url = f"{server.url}/predictions/{written}{slash}"
        assert server.http.get(f"{url}?seq_0=w1").status_code == 200
        assert server.http.post(url, json={"inputs": "w1"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["none", "with%20space", "n%C3%A9", "..%2f..%2fetc%2fpasswd", "%2e%2e/", "a/../../b", "a%00b",
     "embed/infer", "x" * 5000, "/etc/passwd"],
)  # fmt: skip
def test_an_unknown_id_is_404_and_says_nothing_of_files(server: Running, path: str) -> None:
    response = server.http.send(
        httpx.Request("POST", f"{server.url}/predictions/{path}", json={"inputs": "w1"})
    )
    assert response.status_code == 404
    assert response.json()["code"] in ("model_not_found", "not_found")
    assert len(response.content) < 500


BAD_BODIES: list[tuple[Any, int]] = [
    (b'{"x": "unclosed', 400), (b"", 400), (b"[]", 400), (b"null", 400), (b"{}", 400),
    (b'{"inputs": 123}', 400), (b'{"inputs": null}', 400), (b'{"inputs": ""}', 400),
    (b'{"inputs": []}', 400), (b'{"inputs": ["w1", null]}', 400), (b"\xff\xfe\x00", 400),
    (b'{"inputs": "w1", "extra": 1}', 400), (b'{"inputs": "\\ud800"}', 400),
    (b'{"inputs": [' + b'"w1",' * 9_999 + b'"w1"]}', 400),
    (b'{"inputs": "' + b"w" * 300_000 + b'"}', 413),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status"), BAD_BODIES)
def test_a_clients_mistake_is_answered_as_one_and_harms_nobody(
    server: Running, body: bytes, status: int
) -> None:
    server.engine.settings.__dict__["max_body_bytes"] = 200_000
    loads = server.engine.residency.resident_bytes
    response = server.http.post(
        "/predictions/embed", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == status
    assert set(response.json()) == {"error", "code"}
    assert "Traceback" not in response.text
    assert "/" not in response.json()["error"].replace("application/json", "")
    assert server.engine.residency.resident_bytes == loads
    assert server.ask("embed", "w1").status_code == 200


def test_a_chunked_body_without_a_length_is_cut_off_at_the_limit(server: Running) -> None:
    server.engine.settings.__dict__["max_body_bytes"] = 200_000
    process = psutil.Process()
    before = process.memory_info().rss
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield b'{"inputs": "'
        while sent < 200_000_000:
            sent += 65536
            yield b"w" * 65536

    try:
        response = server.http.post("/predictions/embed", content=endless())
        assert response.status_code == 413
    except httpx.TransportError:
        pass  # closed while it was being written to: as good an answer to such a client
    assert sent < 50_000_000
    assert process.memory_info().rss - before < 50_000_000
    assert server.ask("embed", "w1").status_code == 200


def test_a_body_of_another_type_is_415(server: Running) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = server.http.post("/predictions/embed", content=b"a=1", headers=headers)
    assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")
    for allowed in ("application/json; charset=utf-8", "application/vnd.x+json"):
        response = server.http.post(
            "/predictions/embed", content=b'{"inputs":"w1"}', headers={"content-type": allowed}
        )
        assert response.status_code == 200


def test_a_wrong_method_is_405_and_names_the_right_ones(server: Running) -> None:
    response = server.http.put("/predictions/embed", json={"inputs": "w1"})
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, POST"


LONG = " ".join(["w7"] * 100_000)


@pytest.mark.parametrize(
    ("model_id", "inputs"),
    [
        ("embed", LONG),
        ("embed", [LONG]),
        ("embed", ["w1", LONG]),
        ("classify", {"text": "w1", "text_pair": LONG}),
        ("classify", {"text": LONG, "text_pair": LONG}),
    ],
)
def test_an_over_long_text_is_cut_and_says_so(server: Running, model_id: str, inputs: Any) -> None:
    server.engine.settings.__dict__["max_body_bytes"] = 2_000_000
    response = server.ask(model_id, inputs)
    assert response.status_code == 200
    assert response.headers["x-packhorse-truncated"] == "1"
    if inputs == ["w1", LONG]:
        assert response.json()[0] == pytest.approx(wanted("w1"), abs=1e-6)
        assert response.json()[1] == pytest.approx(wanted(" ".join(["w7"] * 14)), abs=1e-6)
    assert "x-packhorse-truncated" not in server.ask(model_id, "w1").headers


def test_a_deadline_that_cannot_be_kept_is_504(server: Running) -> None:
    response = server.http.post(
        "/predictions/embed",
        json={"inputs": ["w1"] * 256},
        headers={"x-request-timeout-ms": "0.001"},
    )
    assert (response.status_code, response.json()["code"]) == (504, "deadline_exceeded")
    assert server.http.get("/predictions/embed?seq_0=w1&timeout_ms=x").status_code == 400
    assert server.http.get("/predictions/embed?seq_0=w1&timeout_ms=5000").status_code == 200


def test_a_request_id_is_given_back_if_it_is_safe(server: Running) -> None:
    given = server.http.get("/livez", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    for unsafe in ("a" * 300, "a b"):
        made = server.http.get("/livez", headers={"x-request-id": unsafe})
        assert made.headers["x-request-id"] != unsafe
    assert len(server.http.get("/nope").headers["x-request-id"]) == 32


def test_metrics_do_not_grow_with_what_clients_invent(server: Running) -> None:
    def series() -> int:
        text = server.http.get("/metrics").text
        return len([line for line in text.splitlines() if not line.startswith("#")])

    server.ask("no-such-model", "w1")
    before = series()
    for number in range(200):
        server.ask(f"random-{number}", "w1")
        server.http.get(f"/path-{number}")
    assert series() == before
    assert 'model="unknown",outcome="model_not_found"' in server.http.get("/metrics").text


def test_metrics_count_what_was_answered(server: Running) -> None:
    def count() -> float:
        line = 'packhorse_requests_total{model="two",outcome="ok"}'
        for row in server.http.get("/metrics").text.splitlines():
            if row.startswith(line):
                return float(row.split()[-1])
        return 0.0

    before = count()
    for _ in range(7):
        server.ask("two", "w1")
    assert count() == before + 7


def test_the_documented_api_has_the_hot_path(server: Running) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]
    post = paths["/predictions/{model_id}"]["post"]
    assert "inputs" in str(post["requestBody"])
    assert set(post["responses"]) >= {"200", "400", "404", "413", "415", "429", "503", "504", "507"}
    assert "seq_0" in str(paths["/predictions/{model_id}"]["get"]["parameters"])
    page = server.http.get("/docs").text
    assets = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(assets) >= 3
    for asset in assets:  # all from this server: a cluster may have no internet
        assert server.http.get(f"/{asset}").status_code == 200


def test_the_page_lists_every_model_and_escapes_what_it_shows(server: Running) -> None:
    page = server.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for model_id in IDS:
        assert model_id in page.text
    assert "http-equiv=refresh" in page.text


def test_a_body_that_does_not_come_is_answered_at_the_deadline(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(
            b"POST /predictions/embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"X-Request-Timeout-Ms: 200\r\nContent-Length: 100\r\n\r\n{"
        )
        answer = client.recv(4096)
    assert b"504 Gateway Timeout" in answer
    assert b"connection: close" in answer.lower()


def test_a_client_that_hangs_up_is_no_fault_of_the_server(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(
                b"POST /predictions/embed HTTP/1.1\r\nHost: x\r\n"
                b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
    wait_until(lambda: 'outcome="client_gone"} 3' in server.http.get("/metrics").text)
    assert 'outcome="internal"' not in server.http.get("/metrics").text
