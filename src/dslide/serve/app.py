"""Routes and answers of the server: predictions, the page to try them, health, metrics, and what the model is."""

from __future__ import annotations

import asyncio
import hmac
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dslide.errors import DataError, UserError
from dslide.serve.batching import Batches
from dslide.serve.metrics import Metrics
from dslide.serve.requests import BadRequest, PredictRequest, as_bad_request, parse
from dslide.serve.served_model import ServedModel

Handler = Callable[[Request], Awaitable[Response]]
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
REASONS = {404: "there is nothing at this address", 405: "this address takes other methods"}


class Service:
    """One worker: its model, its batches, and its counts."""

    def __init__(self, served: ServedModel, metrics: Metrics, worker: int = 0) -> None:
        self.served, self.options, self.metrics, self.worker = served, served.options, metrics, worker
        self.batches = Batches(self._predict, self.options.batch_rows, self.options.waiting_rows)
        self._reloading = asyncio.Lock()

    def app(self) -> Starlette:
        """The application, for an ASGI server."""
        routes = [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/predict", self._guarded(self.predict), methods=["POST"]),
            Route("/model", self._guarded(self.about)),
            Route("/metrics", self._guarded(self.show_metrics)),
            Route("/reload", self._guarded(self.reload), methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {HTTPException: _http_error, Exception: _bug}
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    # ---- routes -------------------------------------------------------------------------------------------------

    async def predict(self, request: Request) -> Response:
        body = await self._body(request)
        start = time.perf_counter()
        answer = await self.batches.answer(parse(body, request.headers.get("content-type", ""), self.options))
        self.metrics.request(self.worker, 200, time.perf_counter() - start)
        return JSONResponse(answer)

    async def about(self, _request: Request) -> Response:
        return JSONResponse(self.served.about())

    async def health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self.served.folder.name})

    async def show_metrics(self, _request: Request) -> Response:
        model = self.served.model.saved
        gauges = [
            ("workers", "Processes that answer.", float(self.options.workers)),
            ("waiting_rows", "Rows that wait in the worker that was asked.", float(self.batches.waiting_rows)),
            ("model_labels", "Labels of the model.", float(model.labels)),
        ]
        return PlainTextResponse(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    async def reload(self, _request: Request) -> Response:
        """Opens a newer checkpoint now. Other workers find it when they look."""
        try:
            changed = await self.look_for_newer()
        except UserError as error:
            raise BadRequest(503, f"the present model stays: {error}") from None
        return JSONResponse({"reloaded": changed, "model": self.served.folder.name})

    async def page(self, _request: Request) -> Response:
        page = files("dslide.serve").joinpath("page.html").read_text("utf-8")
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})

    # ---- the model --------------------------------------------------------------------------------------------------

    def _predict(self, requests: Sequence[PredictRequest]) -> list[Any]:
        """Runs on the thread of predictions. A batch is answered by one model, also while another takes its place."""
        served, start = self.served, time.perf_counter()
        try:
            return served.predict(requests)
        except DataError as error:
            raise as_bad_request(error) from None
        finally:
            self.metrics.add(self.worker, "batches")
            self.metrics.add(self.worker, "rows", sum(len(request.rows) for request in requests))
            self.metrics.add(self.worker, "batch_seconds", time.perf_counter() - start)

    async def look_for_newer(self) -> bool:
        """Puts a newer checkpoint, if there is one, in place of the model; requests are answered meanwhile."""
        async with self._reloading:
            try:
                newer = await asyncio.to_thread(self.served.newer)
            except UserError:
                self.metrics.add(self.worker, "failed_reloads")
                raise
            if newer is None:
                return False
            self.served = newer
            self.metrics.add(self.worker, "reloads")
            return True

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(self._keep_looking()) if self.options.reload else None
        yield
        if looking is not None:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    async def _keep_looking(self) -> None:
        problem = ""
        while True:
            await asyncio.sleep(self.options.reload)
            try:
                if await self.look_for_newer():
                    say(f"now serving {self.served.folder.name}")
                problem = ""
            except UserError as error:
                if str(error) != problem:  # once, not every few seconds
                    say(f"the present model stays: {error}")
                problem = str(error)

    # ---- limits -----------------------------------------------------------------------------------------------------

    def _guarded(self, handler: Handler) -> Handler:
        """A handler for requests with the right token; its mistakes become answers."""

        async def guarded(request: Request) -> Response:
            try:
                if self.options.token is not None:
                    given = request.headers.get("authorization", "").encode()
                    if not hmac.compare_digest(given, f"Bearer {self.options.token}".encode()):
                        raise BadRequest(401, "a token is needed: Authorization: Bearer TOKEN")
                return await handler(request)
            except BadRequest as error:
                self.metrics.request(self.worker, error.status, 0)
                return JSONResponse({"error": error.message}, error.status)
            except Exception:
                self.metrics.request(self.worker, 500, 0)
                raise

        return guarded

    async def _body(self, request: Request) -> bytes:
        """The body of a request, if it is small enough and comes in time."""
        most, length = self.options.most_bytes, request.headers.get("content-length", "")
        if length.isdigit() and len(length) < 20 and int(length) > most:
            raise BadRequest(413, f"a body of {length} bytes is larger than {most}")
        try:
            return await asyncio.wait_for(_read(request, most), self.options.timeout)
        except (TimeoutError, asyncio.TimeoutError):  # one and the same from Python 3.11 on
            raise BadRequest(408, f"the body did not come within {self.options.timeout:g} s") from None
        except ClientDisconnect:
            raise BadRequest(400, "the client has gone") from None


async def _read(request: Request, most: int) -> bytes:
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise BadRequest(413, f"the body is larger than {most} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def _http_error(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return JSONResponse({"error": REASONS.get(status, "the request can't be answered")}, status)


async def _bug(_request: Request, _error: Exception) -> Response:
    return JSONResponse({"error": "an error of the server; its log says more"}, 500)


def say(message: str) -> None:
    """A line on stderr. The server goes on if it can't be written, for example to a full disk."""
    with suppress(OSError):
        print(f"dslide serve: {message}", file=sys.stderr, flush=True)
