"""Results that depend on messages of other ranks which may still be on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Future(Generic[T]):
    """A collective that has begun. A rank computes something else meanwhile, and then waits for the result."""

    def __init__(self, finish: Callable[[], T]) -> None:
        """`finish` waits for the messages and makes the result of them; it is called once."""
        self._finish: Callable[[], T] | None = finish

    @classmethod
    def done(cls, result: T) -> Future[T]:
        """A result that is there already."""
        return cls(lambda: result)

    def wait(self) -> T:
        """The result; blocks until it is there."""
        if self._finish is not None:
            self._result, self._finish = self._finish(), None
        return self._result
