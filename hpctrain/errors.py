"""The errors that users see; imports nothing from the package.

Only `cli` prints them. Every other package raises them, with a command or a hint for the last line
of the message.

    HpctrainError          1  the operation failed
    ├── UsageError         2  an option, a config file or a template is wrong
    └── SchedulerError     3  the scheduler is missing, unreachable or did not answer in time
"""

from __future__ import annotations

from hpctrain.terminal import visible


class HpctrainError(Exception):
    """The operation failed, for a reason that the user can act on.

    Args:
        what: the problem, with the value; one line, lower case, no full stop.
        details: further lines, in this order: where (file:line:col or the argv that was run), the
            program's output verbatim, the reason.
        fix: one command that can be pasted and works.
        hint: a sentence, if no single command is right.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        details: tuple[str, ...] = (),
        fix: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.details = details
        self.fix = fix
        self.hint = hint

    def render(self) -> str:
        r"""Return the complete message, `error:` first, `fix:` or `hint:` last; control characters
        are escaped, as \x1b.
        """
        lines = [f"error: {self.what}", *self.details]
        if self.fix is not None:
            lines.append(f"fix: {self.fix}")
        if self.hint is not None:
            lines.append(f"hint: {self.hint}")
        return visible("\n".join(lines))


class UsageError(HpctrainError):
    """An option, a config file or a template is wrong; nothing was done."""

    exit_code = 2


class SchedulerError(HpctrainError):
    """The scheduler is missing, unreachable or did not answer in time."""

    exit_code = 3
