"""What must not disturb a training: done, and said once on standard error where it cannot be. Imports no library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Guard:
    """Calls a function, and lets nothing that goes wrong in it reach the training.

    Args:
        begin: what each notice begins with, such as `[memory] notice:`.
    """

    def __init__(self, begin: str) -> None:
        self._begin = begin
        self._said: set[str] = set()

    def __call__(self, do: Callable[..., Any], *arguments: Any) -> None:
        """Call `do`, whatever happens in it."""
        try:
            do(*arguments)
        except Exception as error:
            self.note(f"{type(error).__name__}: {error}")

    def note(self, text: str) -> None:
        """Say once why something is missing, in one write; never raises."""
        if text in self._said:
            return
        self._said.add(text)
        try:
            sys.stderr.write(f"{self._begin} {' '.join(text.split())}\n")
            sys.stderr.flush()
        except Exception:  # noqa: S110 - standard error is closed; there is nobody left to tell
            pass
