"""Micro-batches: while one is computed requests gather, and then they are predicted together. No request waits for
others to come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dslide.serve.requests import BadRequest, PredictRequest

Predict = Callable[[Sequence[PredictRequest]], list[Any]]  # of requests with the same options: an answer to each


class Batches:
    """Requests that wait, and the thread that predicts them."""

    def __init__(self, predict: Predict, batch_rows: int, waiting_rows: int) -> None:
        self._predict, self._batch_rows, self._most_waiting = predict, batch_rows, waiting_rows
        self._waiting: deque[tuple[PredictRequest, asyncio.Future[Any]]] = deque()
        self._thread = ThreadPoolExecutor(1, "predict")
        self._task: asyncio.Task[None] | None = None
        self.waiting_rows = 0

    async def answer(self, request: PredictRequest) -> Any:
        """The answer to a request; BadRequest 503 if too many wait."""
        rows = max(1, len(request.rows))
        if self.waiting_rows and self.waiting_rows + rows > self._most_waiting:
            raise BadRequest(503, f"{self.waiting_rows} rows wait already; try again later")
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        self.waiting_rows += rows
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._work())
            return await future
        finally:
            self.waiting_rows -= rows

    async def _work(self) -> None:
        """Predicts batches until none waits."""
        try:
            while self._waiting:
                batch = self._take()
                try:
                    loop = asyncio.get_running_loop()
                    answers = await loop.run_in_executor(self._thread, self._predict, [request for request, _ in batch])
                except Exception as error:
                    await self._one_by_one(batch, error)
                else:
                    for (_, future), answer in zip(batch, answers, strict=True):
                        _settle(future, answer)
        finally:
            self._task = None

    def _take(self) -> list[tuple[PredictRequest, asyncio.Future[Any]]]:
        """The next requests with the same options, as many rows as fit; those whose client has gone are dropped."""
        batch: list[tuple[PredictRequest, asyncio.Future[Any]]] = []
        rows, passed = 0, []
        while self._waiting and rows < self._batch_rows:
            request, future = self._waiting.popleft()
            if future.done():
                continue
            if batch and request.options != batch[0][0].options:
                passed.append((request, future))
                continue
            batch.append((request, future))
            rows += len(request.rows)
        self._waiting.extendleft(reversed(passed))
        return batch

    async def _one_by_one(self, batch: list[tuple[PredictRequest, asyncio.Future[Any]]], error: Exception) -> None:
        """After an error of a batch, so that one request's mistake is not the others'."""
        if len(batch) == 1:
            _settle(batch[0][1], error)
            return
        loop = asyncio.get_running_loop()
        for request, future in batch:
            try:
                _settle(future, (await loop.run_in_executor(self._thread, self._predict, [request]))[0])
            except Exception as own:
                _settle(future, own)


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
