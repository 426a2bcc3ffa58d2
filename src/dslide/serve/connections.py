"""Connections of clients that send nothing, or a byte now and then, are closed. Uvicorn alone waits for the head of a
request as long as the client likes."""

from __future__ import annotations

import asyncio
from typing import Any

try:
    import httptools  # noqa: F401
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
except ImportError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol  # type: ignore[assignment]


def limited(seconds: float) -> type[asyncio.Protocol]:
    """The protocol with a limit on the time until the head of a request is complete."""

    class Limited(Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

        def _waits(self) -> bool:
            """Whether no request is being answered."""
            return self.cycle is None or self.cycle.response_complete

        def _watch(self) -> None:
            if not self._waits():
                if self._deadline is not None:
                    self._deadline.cancel()
                self._deadline = None
            elif self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self._end)

        def _end(self) -> None:
            self._deadline = None
            if self._waits():
                self.transport.close()

    return Limited
