"""The value of `--signal`: `[{R|B}:]SIGNAL[@SECONDS]`, as in sbatch(1)."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The names of signals by which their numbers are known in scripts.
NAMES = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM"}
_KNOWN = re.compile(
    "HUP|INT|QUIT|ABRT|KILL|ALRM|TERM|USR[12]|URG|CONT|STOP|TSTP|TTIN|TTOU|[0-9]|[1-5][0-9]|6[0-4]"
)
_VALUE = re.compile(r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z0-9]+)(?:@(\d+))?\Z", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class RequestedSignal:
    """A signal: its name without SIG, or its number; whether only the batch shell gets it; seconds
    before the time limit.
    """

    name: str
    to_batch: bool
    seconds: int


def parse(value: str) -> RequestedSignal | None:
    """Return the signal in the value of `--signal`; None if sbatch refuses the value."""
    match = _VALUE.match(value)
    if match is None or int(match[3] or 0) > 65535:
        return None
    name = NAMES.get(match[2], match[2].upper())
    if _KNOWN.fullmatch(name) is None:
        return None
    return RequestedSignal(name, "B" in (match[1] or "").upper(), int(match[3] or 60))
