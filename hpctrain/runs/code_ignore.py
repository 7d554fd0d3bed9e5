"""Patterns in gitignore's notation: what is left out of a snapshot of the code. Pure.

Source: gitignore(5), PATTERN FORMAT; the last pattern that matches decides, and nothing below a directory that is left out comes back.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from itertools import groupby

_SPACES = re.compile(r"(?<!\\) +$")


class Patterns:
    """Patterns, the strongest last. Paths are relative to the project, with `/` between their parts."""

    def __init__(self, lines: Iterable[str]) -> None:
        translated = [rule for line in lines if (rule := _translate(line)) is not None]
        # One expression for each stretch of patterns of the same sign; the last stretch that matches decides.
        stretches = [(sign, "|".join(body for _, body in group)) for sign, group in groupby(translated, key=lambda rule: rule[0])]
        self._stretches = [(sign, re.compile(bodies, re.DOTALL)) for sign, bodies in reversed(stretches)]
        self._directories: dict[str, bool] = {"": False}

    def matches(self, path: str, *, directory: bool) -> bool:
        """Say whether `path` itself is left out, whatever is said of the directories around it."""
        subject = f"{path}/" if directory else path
        return next((sign for sign, expression in self._stretches if expression.match(subject)), False)

    def leave_out(self, path: str) -> bool:
        """Say whether the file `path` is left out, by itself or with a directory around it."""
        return self._directory(posixpath.dirname(path)) or self.matches(path, directory=False)

    def _directory(self, path: str) -> bool:
        known = self._directories.get(path)
        if known is None:
            known = self._directory(posixpath.dirname(path)) or self.matches(path, directory=True)
            self._directories[path] = known
        return known


def _translate(line: str) -> tuple[bool, str] | None:
    """Return whether a line leaves out, and the expression of what it matches; None for a comment."""
    text = _SPACES.sub("", line.rstrip("\r\n"))
    if not text or text.startswith("#"):
        return None
    out = not text.startswith("!")
    text = text if out else text[1:]
    body = text.removesuffix("/")
    if not body:
        return None
    anchored = "/" in body
    end = r"/\Z" if text.endswith("/") else r"/?\Z"
    expression = ".+" if body == "/**" else _glob(body.removeprefix("/"))
    return out, ("" if anchored else "(?:.*/)?") + expression + end


def _glob(text: str) -> str:
    made, at = "", 0
    while at < len(text):
        character = text[at]
        if text.startswith("**/", at) and (at == 0 or text[at - 1] == "/"):
            made, at = f"{made}(?:.*/)?", at + 3
        elif text[at:] == "**" and text[at - 1 : at] == "/":
            made, at = f"{made}.+", at + 2
        elif character == "*":
            made, at = f"{made}[^/]*", at + 1
        elif character == "?":
            made, at = f"{made}[^/]", at + 1
        elif character == "[":
            expression, at = _class(text, at)
            made += expression
        else:
            at += character == "\\" and at + 1 < len(text)
            made, at = made + re.escape(text[at]), at + 1
    return made


def _class(text: str, at: int) -> tuple[str, int]:
    """Return the expression of a bracketed class, and where the text goes on; a class without an end matches nothing, as in git."""
    negated = text[at + 1 : at + 2] in ("!", "^")
    at += 1 + negated
    members: list[str] = []
    while at < len(text) and (text[at] != "]" or not members):
        at += text[at] == "\\" and at + 1 < len(text)
        low = text[at]
        if text[at + 1 : at + 2] == "-" and text[at + 2 : at + 3] not in ("", "]"):
            at += 2
            at += text[at] == "\\" and at + 1 < len(text)
            members += [f"{re.escape(low)}-{re.escape(text[at])}"] if low <= text[at] else [""]
        else:
            members.append(re.escape(low))
        at += 1
    if at >= len(text):
        return "(?!)", at
    inside = "".join(members)
    if not inside:
        return ("[^/]" if negated else "(?!)"), at + 1
    return (f"(?!/)[^{inside}]" if negated else f"(?!/)[{inside}]"), at + 1
