"""A trained model of text, and a server that answers with it, in a thread of the test's process."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from starlette.routing import Route

import dslide
from dslide.serve.app import Service
from dslide.serve.metrics import Metrics
from dslide.serve.options import ServeOptions
from dslide.serve.served_model import ServedModel
from dslide.serve.workers import listen, make_server

LABELS = 12


def train_text_model(folder: Path, epochs: int = 6, run: str = "run") -> Path:
    """A run that gives a text with the word `wordN` the label `label N`."""
    rng = np.random.default_rng(0)
    lines = [f"label {n}\tword{n} other{rng.integers(30)} the" for n in rng.integers(LABELS, size=300).tolist()]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    return dslide.train(
        folder / "train.tsv", out=folder / run, format="tsv", label_separator=";", label_column=1, text_column=2,
        min_df=1, hidden=(8,), epochs=epochs, batch_size=32, threads=1,
    ).folder  # fmt: skip


class Client:
    """Requests to a server on this machine."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, self.headers | named)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, Any]:
        status, body = self.send("GET", path)
        return status, json.loads(body)

    def post(self, path: str = "/predict", **values: Any) -> tuple[int, Any]:
        status, body = self.send("POST", path, json.dumps(values).encode(), content_type="application/json")
        return status, json.loads(body)

    def form(self, **values: Any) -> tuple[int, Any]:
        kind = "application/x-www-form-urlencoded"
        status, body = self.send("POST", "/predict", urlencode(values).encode(), content_type=kind)
        return status, json.loads(body)


@contextmanager
def serving(model: Path, routes: Sequence[Route] = (), **settings: Any) -> Iterator[tuple[Client, Service]]:
    """A server on a free port, with further routes; it has ended when the block ends."""
    options = ServeOptions(str(model), **{"port": 0, "threads": 1, "reload": 0} | settings)
    (listening,) = listen(options)
    service = Service(ServedModel.open(options), Metrics(1))
    server = make_server(service)
    server.config.app.routes.extend(routes)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    port = listening.getsockname()[1]
    wait_for_port(port)
    try:
        yield Client(port, settings.get("token")), service
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
        assert not thread.is_alive()


def wait_for_port(port: int, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            Client(port).get("/health")
            return
        except (OSError, http.client.HTTPException):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
