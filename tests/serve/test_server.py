"""A server, its model and its clients: what is answered, what is refused, and what it survives."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.serving import Client, serving, train_text_model

import dslide
from dslide import SlideClassifier
from dslide.errors import ConfigError
from dslide.serve.options import ServeOptions
from dslide.serve.requests import SOURCES
from dslide.serve.served_model import ServedModel

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_text_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def client(run: Path):
    with serving(run, most_rows=20, most_bytes=20_000, timeout=1.0) as (made, _):
        yield made


def test_one_text_gets_the_labels_that_predict_gives(client: Client, run: Path) -> None:
    status, answer = client.post(text="word3 the", k=4, why=2)
    assert status == 200
    expected = next(iter(dslide.predict(run, ["word3 the"], k=4, probabilities=True, why=2)))
    results = answer["results"]
    assert [each["label"] for each in results] == expected.names
    assert results[0]["label"] == "label 3"
    assert [each["score"] for each in results] == pytest.approx(expected.probabilities, rel=1e-4)
    assert results[0]["why"][0]["feature"] == "word3"
    assert answer["milliseconds"] > 0


def test_many_texts_get_an_answer_each_in_their_order(client: Client) -> None:
    status, answer = client.post(texts=["word5", "word1 the", "word7"], limit=1)
    assert status == 200
    assert [row["results"][0]["label"] for row in answer["rows"]] == ["label 5", "label 1", "label 7"]


def test_a_form_is_answered_as_annif_expects(run: Path) -> None:
    with serving(run, uri_prefix="http://example.org/") as (client, _):
        status, answer = client.form(text="word3", project="any", limit=2)
        assert status == 200
        assert len(answer["results"]) == 2
        best = answer["results"][0]
        assert (best["uri"], best["label"]) == ("http://example.org/label 3", "label 3")
        assert all(0 <= each["score"] <= 1 for each in answer["results"])


def test_rows_of_features_by_name(client: Client) -> None:
    status, answer = client.post(row={"word3": 1.0, "the": 0.1}, k=1)
    assert (status, answer["results"][0]["label"]) == (200, "label 3")
    assert client.post(row={"nothing": 1.0}) == (422, {"error": "there is no feature 'nothing'"})


def test_rows_of_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y, means = rng.integers(0, 6, 300), rng.standard_normal((6, 20))
    x = (means[y] + 0.1 * rng.standard_normal((300, 20))).astype(np.float32)
    SlideClassifier(epochs=3, threads=1).fit(x, y).save(tmp_path / "model")
    with serving(tmp_path / "model") as (client, _):
        status, answer = client.post(rows=x[:5].tolist(), k=1)
        assert status == 200
        assert [row["results"][0]["label"] for row in answer["rows"]] == list(map(str, y[:5]))
        assert client.post(row=[1.0] * 19) == (422, {"error": "expected a row of 20 numbers, not of 19"})
        refused = {"error": "feature '1': expected a number, not 'x'"}
        assert client.post(row=[1.0, "x"]) == (400, refused)


def test_a_text_without_a_known_word_is_answered_without_reasons(client: Client) -> None:
    status, answer = client.post(texts=["", "unheard"], why=3)
    assert status == 200
    assert [each["why"] for row in answer["rows"] for each in row["results"]] == [[]] * 10


def test_a_threshold_leaves_labels_out(client: Client) -> None:
    every = client.post(text="word3", k=5)[1]["results"]
    likely = client.post(text="word3", k=5, threshold=every[1]["score"])[1]["results"]
    assert [each["label"] for each in likely] == [each["label"] for each in every[:2]]


@pytest.mark.parametrize(("values", "status", "says"), [
    ({}, 400, "expected one of text"),
    ({"text": "a", "texts": ["b"]}, 400, "found text and texts"),
    ({"text": 5}, 400, "expected a text, not 5"),
    ({"texts": "a"}, 400, "expected a list"),
    ({"text": "a", "k": 0}, 400, "k: expected a whole number, 1 to 100"),
    ({"text": "a", "k": 10**400}, 400, "a very large number"),
    ({"text": "a", "k": True}, 400, "not True"),
    ({"text": "a", "threshold": 1.5}, 400, "threshold: expected a number, 0 to 1"),
    ({"text": "a", "threshold": float("nan")}, 400, "not nan"),
    ({"text": "a", "kk": 1}, 400, "unknown key 'kk'"),
    ({"text": "\ud800"}, 400, "surrogate"),
    ({"texts": ["a"] * 21}, 413, "more than the 20"),
    ({"row": {"the": 1e39}}, 400, "expected a number"),
    ({"items": ["a"]}, 422, "not trained on items"),
    ({"text": "a" * 30_000}, 413, "larger than 20000"),
])  # fmt: skip
def test_bad_requests_get_one_sentence(client: Client, values: dict, status: int, says: str) -> None:
    got, answer = client.post(**values)
    assert got == status
    assert says in answer["error"]
    assert "\n" not in answer["error"]


def test_other_addresses_and_methods(client: Client) -> None:
    assert client.get("/nowhere")[0] == 404
    assert client.get("/predict")[0] == 405
    assert client.send("POST", "/predict", b"{", content_type="application/json")[0] == 400
    assert client.send("POST", "/predict", b"[" * 10_000, content_type="application/json")[0] == 400
    assert client.get("/health") == (200, {"status": "ok", "model": client.get("/model")[1]["name"]})
    about = client.get("/model")[1]
    assert (about["input"], about["labels"], about["probabilities"]) == ("text", 12, True)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12,
)  # fmt: skip
BODIES = st.binary(max_size=200) | ANYTHING.map(lambda value: json.dumps(value).encode()) | st.dictionaries(
    st.sampled_from([*SOURCES, "k", "limit", "threshold", "why"]), ANYTHING, max_size=3
).map(lambda value: json.dumps(value).encode())  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES, kind=st.sampled_from(["application/json", "application/x-www-form-urlencoded", "text/plain", ""]))
def test_whatever_comes_gets_an_answer(client: Client, body: bytes, kind: str) -> None:
    status, answer = client.send("POST", "/predict", body, content_type=kind)
    assert status in (200, 400, 413, 422)
    assert ("error" in json.loads(answer)) == (status != 200)


def test_slow_and_silent_clients_are_dropped_and_others_answered(client: Client) -> None:
    starts = [b"", b"POST /pre", b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"]
    slow = [socket.create_connection(("127.0.0.1", client.port), timeout=20) for _ in starts]
    for connection, start in zip(slow, starts, strict=True):
        connection.sendall(start)
    assert client.post(text="word3")[0] == 200
    received = []
    for connection in slow:
        with connection:
            received.append(b"".join(iter(lambda each=connection: each.recv(1000), b"")))  # until the server closes it
    assert received[:2] == [b"", b""]
    assert received[2].startswith(b"HTTP/1.1 408")


def test_a_half_open_connection_does_no_harm(client: Client) -> None:
    body = json.dumps({"text": "word3"}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
        connection.sendall(head + body)
        connection.shutdown(socket.SHUT_WR)
    assert client.post(text="word3")[0] == 200


def test_many_clients_at_once_get_their_own_answers(client: Client) -> None:
    wrong: list[object] = []

    def ask(number: int) -> None:
        for _ in range(10):
            answer = client.post(text=f"word{number}", k=1 + number % 3)
            if answer[0] != 200 or answer[1]["results"][0]["label"] != f"label {number}":
                wrong.append(answer)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_metrics_count_requests_rows_and_errors(run: Path) -> None:
    with serving(run) as (client, _):
        client.post(texts=["word1", "word2"])
        client.post(text=1)
        lines = client.send("GET", "/metrics")[1].decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert values['dslide_requests_total{status="2xx"}'] == "1"
        assert values['dslide_requests_total{status="4xx"}'] == "1"
        assert values["dslide_rows_total"] == "2"
        assert values['dslide_request_seconds_bucket{le="+Inf"}'] == values["dslide_request_seconds_count"] == "1"


def test_a_token_is_asked_for_where_one_is_set(run: Path) -> None:
    with serving(run, token=TOKEN) as (client, _):
        assert client.post(text="word3")[0] == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            stranger = Client(client.port)
            stranger.headers = headers
            assert stranger.post(text="word3")[0] == 401
            assert stranger.get("/model")[0] == stranger.get("/metrics")[0] == 401
            assert stranger.get("/health")[0] == 200
    with pytest.raises(ConfigError, match="give a token"):
        ServeOptions(str(run), host="0.0.0.0")
    with pytest.raises(ConfigError, match="16 printable"):
        ServeOptions(str(run), token="short")


def test_a_newer_checkpoint_takes_its_place_and_no_request_is_lost(tmp_path: Path) -> None:
    run = train_text_model(tmp_path, epochs=2)
    with serving(run, reload=0.1) as (client, _):
        before = client.get("/health")[1]["model"]
        stop, statuses = threading.Event(), []

        def ask() -> None:
            while not stop.is_set():
                statuses.append(client.post(text="word3")[0])

        asking = threading.Thread(target=ask)
        asking.start()
        dslide.resume(run, tmp_path / "train.tsv", epochs=4, threads=1)
        newest = max(path.name for path in (run / "checkpoints").iterdir() if path.is_dir())
        while client.get("/health")[1]["model"] == before:
            pass
        stop.set()
        asking.join()
        assert client.get("/health")[1]["model"] == newest
        assert set(statuses) == {200}
        assert client.post("/reload") == (200, {"reloaded": False, "model": newest})


def test_a_folder_that_vanishes_is_not_missed(tmp_path: Path) -> None:
    run = train_text_model(tmp_path)
    with serving(run) as (client, _):
        expected = client.post(text="word3")[1]["results"]
        shutil.rmtree(run)
        status, answer = client.post("/reload")
        assert status == 503
        assert "the present model stays" in answer["error"]
        assert client.post(text="word3")[1]["results"] == expected


def test_few_labels_are_looked_up_beside_a_label_prior(run: Path, tmp_path: Path) -> None:
    def approximate(model: Path, k: int, given: bool | None = None) -> bool:
        return ServedModel.open(ServeOptions(str(model), approximate=given)).approximate(k)

    assert [approximate(run, k) for k in (1, 10, 11)] == [True, True, False]
    assert approximate(run, 11, True)
    assert not approximate(run, 1, False)
    (tmp_path / "rows.txt").write_text("".join(f"{n % 3} {n % 5}:1 {5 + n % 3}:1\n" for n in range(40)))
    dslide.train(tmp_path / "rows.txt", out=tmp_path / "without", hidden=(4,), epochs=1, prior_labels=0, threads=1)
    assert not approximate(tmp_path / "without", 1)


def test_too_many_rows_that_wait_are_refused(run: Path) -> None:
    with serving(run, waiting_rows=3) as (client, service):
        service.batches.waiting_rows = 3  # as if others waited
        assert client.post(text="word3")[0] == 503
        service.batches.waiting_rows = 0
        assert client.post(text="word3")[0] == 200


def test_users_and_their_items(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{user} " + " ".join(map(str, sorted({*rng.integers(0, 30, 6).tolist()}))) for user in range(80)]
    (tmp_path / "items.txt").write_text("\n".join(lines) + "\n")
    run = dslide.train(
        tmp_path / "items.txt", format="interactions", out=tmp_path / "run", hidden=(8,), epochs=2, threads=1
    )
    with serving(run.folder) as (client, _):
        status, answer = client.post(users=[["3", "5"], []], k=3)
        assert status == 200
        assert not {"3", "5"} & {each["label"] for each in answer["rows"][0]["results"]}
        assert answer["rows"][0]["results"][0]["score"] == 1  # relative to the best
        assert client.post(items=["99"])[0] == 422
        assert client.post(text="a")[0] == 422
        assert client.post(items=["3"], threshold=0.5)[0] == 422


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_disk_that_is_full_of_messages_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train_text_model(tmp_path)
    with open("/dev/full", "w") as full, serving(run, reload=0.05) as (client, service):
        monkeypatch.setattr("sys.stderr", full)
        run.rename(tmp_path / "gone")
        end = time.monotonic() + 20
        while service.metrics.total("failed_reloads") < 3 and time.monotonic() < end:
            time.sleep(0.02)
        assert service.metrics.total("failed_reloads") >= 3  # it still looks for newer models
        assert client.post(text="word3")[0] == 200
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
