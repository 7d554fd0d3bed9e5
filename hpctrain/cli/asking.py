"""A question to a scheduler, put in another thread: a controller that is silent for a minute stops nobody from showing a log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Question(Generic[T]):
    """A call that runs beside the caller. Whoever goes away leaves it alone: it ends with the process, and so does what it has started.

    Args:
        ask: the call.
    """

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer.append(self._ask())
        except BaseException as error:  # whoever asks for the answer gets it
            self._error = error
        self._done.set()

    def wait(self, seconds: float | None) -> bool:
        """Wait for the answer so long, or as long as it takes; return whether it is there."""
        return self._done.wait(seconds)

    def answer(self) -> T:
        """Return the answer, which is there, or raise what kept it from coming."""
        if self._error is not None:
            raise self._error
        return self._answer[0]
