"""The errors that hpctrain shows to a person; a leaf that imports nothing of the package.

Only `cli` prints them. Every other room raises them and says, in the fields, what the last line of the message needs:
something that can be typed.

    HpctrainError          1  the operation failed
    ├── UsageError         2  an option, a config file or a template is wrong
    └── SchedulerError     3  the scheduler is missing, unreachable or did not answer in time
"""

from __future__ import annotations

import re

#: What a terminal takes as an order (ECMA-48: C0 and C1 but tab and newline) or what turns the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class HpctrainError(Exception):
    """The operation failed, for a reason that a person can act on.

    Args:
        what: the problem, with the value; one line, lower case, no full stop.
        details: further lines, in this order: where (file:line:col or the argv that was run), the program's own words, the reason.
        fix: what to type next.
    """

    exit_code = 1

    def __init__(self, what: str, *, details: tuple[str, ...] = (), fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.details = details
        self.fix = fix

    def render(self) -> str:
        r"""Return the whole message, `error:` first and `fix:` last; control characters are shown, as \x1b, and not sent."""
        lines = [f"error: {self.what}", *self.details]
        if self.fix is not None:
            lines.append(f"fix: {self.fix}")
        return visible("\n".join(lines))


def visible(text: str) -> str:
    r"""Return a text with its control characters, but for ends of lines, written out: \x1b."""
    return _CONTROL.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class UsageError(HpctrainError):
    """An option, a config file or a template is wrong; nothing was done."""

    exit_code = 2


class SchedulerError(HpctrainError):
    """The scheduler is missing, unreachable or did not answer in time."""

    exit_code = 3
