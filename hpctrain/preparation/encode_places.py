"""Where the messages are in what a chat template makes of them: they are marked, and the marks are looked for.

A mark is a private-use character at both ends of what a message says, white space left out, since templates take that off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpctrain.preparation.forms_rows import Message

Span = tuple[int, int]

_FIRST = 0xF0000
_MARKS = re.compile("[\U000f0000-\U000ffffd]")
MOST = (0xFFFFD - _FIRST) // 2
"""Messages of a conversation that there are marks for."""


def marked(message: Message, index: int) -> Message:
    """Return the message with a private-use character at both ends of what its white space surrounds; an empty one as it is."""
    content = message.get("content")
    core = content.strip() if isinstance(content, str) else ""
    if not core or not isinstance(content, str):
        return message
    lead = leading(message)
    opened, closed = chr(_FIRST + 2 * index), chr(_FIRST + 2 * index + 1)
    return {**message, "content": f"{content[:lead]}{opened}{core}{closed}{content[lead + len(core) :]}"}


def leading(message: Message) -> int:
    """Return how many characters of white space the content begins with."""
    content = message.get("content", "")
    return len(content) - len(content.lstrip())


def trailing(message: Message) -> int:
    """Return how many characters of white space the content ends with."""
    content = message.get("content", "")
    return len(content) - len(content.rstrip())


def read_places(text: str, marked: str) -> dict[int, Span]:
    """Return where the messages are, if the text is the marked one without its marks (and so has none itself).

    A mark seen twice, or without its other, counts as none.
    """
    if _MARKS.sub("", marked) != text:
        return {}
    opened: dict[int, list[int]] = {}
    closed: dict[int, list[int]] = {}
    for count, found in enumerate(_MARKS.finditer(marked)):
        index, end = divmod(ord(found[0]) - _FIRST, 2)
        (closed if end else opened).setdefault(index, []).append(found.start() - count)
    return {
        index: (starts[0], closed[index][0])
        for index, starts in opened.items()
        if len(starts) == 1 and len(closed.get(index, ())) == 1 and starts[0] < closed[index][0]
    }


def by_gaps(text: str, contents: Sequence[str], gaps: Sequence[str] | None) -> dict[int, Span] | None:
    """Return where the contents are, if the text is made of them and of these gaps around them, to the last character."""
    if gaps is None or "".join(part for pair in zip(gaps, [*contents, ""], strict=True) for part in pair) != text:
        return None
    places: dict[int, Span] = {}
    at = 0
    for index, content in enumerate(contents):
        at += len(gaps[index])
        places[index] = at, at + len(content)
        at += len(content)
    return places
