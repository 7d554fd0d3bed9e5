"""Waiting for an event, in one way."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found], what: str = "what is waited for", timeout_s: float = 600.0
) -> Found:
    """Return what `condition` returns once that is true. Long: a busy machine, and in everybody's
    lab a job waits for those of other files.
    """
    deadline, pause = time.monotonic() + timeout_s, 0.02
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.5)
    return found
