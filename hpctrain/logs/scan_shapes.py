"""Lines that repeat but for their numbers, looked at a few times instead of a million times.

A shape is a line in lower case with a 0 for each digit. A regex that treats all digits alike matches all lines of a shape, or none: of a
shape that is known, the last line of each piece is looked at, of errors the first one too, and stands for those before it. A regex that
tells digits apart (`exit code 137`) looks at each line that holds its words with their digits, and at a part of them where these are many.
A log that repeats itself then costs little more than its splitting into lines.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from hpctrain.explain.scan_table import Signature, Table
from hpctrain.logs import scan_words, text
from hpctrain.logs.scan_trouble import LINES

#: A digit is a 0, and a state of a bar a line.
_BLANK = bytes.maketrans(b"123456789\r", b"000000000\n")
#: So many lines of a shape are all looked at.
_FIRST = 4
#: So many more are all looked at by regexes that tell digits apart; then each 32nd, and in the end each 512th.
_EXACT, _SAMPLED, _MANY, _SELDOM = 128, 32, 4096, 512
#: A longer line is looked at in parts, as if there were no shapes.
_LONG = 1500
#: Shapes that are remembered; then all are forgotten, and learnt again.
_MOST = 16384
_HEAD = b"traceback (most recent call last)"
_WORD = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_")

_DIGITS = tuple(b"0123456789")

Found = list[tuple[int, int, int]]
Clauses = tuple[tuple[bytes, ...], ...]


@dataclass(slots=True)
class _Shape:
    """What is known of lines of one shape that holds a word.

    Attributes:
        words: (index of the word, start, end) in the line; exact: those of them with a regex that tells digits apart.
        each: all lines are looked at, because they say who wrote them, or that the job begins or ends.
        error: it may be of an error; head: of a traceback.
        seen: lines of it that were looked at; skipped: since the last one that was; others: of `exact` alone.
        last: its last line in the piece; piece: the number of that piece, once its first line was looked at.
    """

    words: Found
    exact: Found
    each: bool
    error: bool
    head: bool
    seen: int = 0
    skipped: int = 0
    others: int = 0
    last: int = 0
    piece: int = -1

    def sampled(self) -> int | None:
        """Return for how many lines another one stands, less than 0, of what tells digits apart; 0: for itself; None: it is left out."""
        self.others += 1
        if self.others < _EXACT:
            return 0
        step = _SAMPLED if self.others < _MANY else _SELDOM
        return None if self.others % step else -step


class Shapes:
    """The shapes of one file.

    Args:
        table: of all signatures.
        ranked: the file is of one rank: a line does not say who wrote it.
    """

    def __init__(self, table: Table, *, ranked: bool) -> None:
        self._table, self._ranked = table, ranked
        self._known: dict[bytes, _Shape | None] = {}
        self._blanked: dict[int, list[Clauses]] = {}
        self._piece = 0

    def find(self, low: bytes) -> tuple[Found, dict[int, int]]:
        """Return the words that are to be looked at, in their order; and, of some lines, for how many each one stands.

        Args:
            low: a piece in lower case.

        Returns:
            The words as a Finder does; and, by the beginnings of lines in the piece: n: the line stands for n. 0: it stands for none:
            only what tells digits apart is to be looked at; -n: only that, and it stands for n. A line that is not in there stands for
            itself.
        """
        self._piece += 1
        lines = low.translate(_BLANK).split(b"\n")
        last = dict(zip(lines, range(len(lines)), strict=True))
        if len(self._known) > _MOST:
            self._known.clear()
        known = self._known
        new = [shape for shape in last if shape not in known]
        begins = [0, *accumulate([len(line) + 1 for line in lines])]
        if new:
            self._learn(new, low, last, begins)
        wanted: dict[bytes, _Shape] = {}
        for shape, at in last.items():
            if (one := known[shape]) is not None:
                wanted[shape] = one
                one.last = at
        if not wanted:
            return [], {}
        return self._words(self._chosen(lines, wanted), low, begins)

    def _chosen(self, lines: list[bytes], wanted: dict[bytes, _Shape]) -> list[tuple[int, _Shape, int | None]]:
        """Return (line, its shape, for how many it stands) of the lines to look at; None: for itself."""
        chosen: dict[int, tuple[int, _Shape, int | None]] = {}
        heads: list[tuple[int, _Shape]] = []
        errors: list[int] = []
        piece = self._piece
        for at, one in enumerate(map(wanted.get, lines)):
            if one is None:
                continue
            if one.head:
                heads.append((at, one))
            if one.each:
                chosen[at] = at, one, None
            elif one.last == at or one.seen < _FIRST or (one.error and one.piece != piece):
                chosen[at] = at, one, one.skipped + 1
                one.seen, one.skipped, one.piece = one.seen + 1, 0, piece
            else:
                one.skipped += 1
                if one.exact:
                    chosen[at] = at, one, 0
                continue
            if one.error:
                errors.append(at)
        # An error begins with its traceback's head, though that was not to be looked at.
        places = [at for at, _ in heads]
        for at in errors if places else ():
            before = bisect_right(places, at) - 1
            if before >= 0 and at - places[before] <= LINES:
                head, one = heads[before]
                chosen.setdefault(head, (head, one, 1))
        return [chosen[at] for at in sorted(chosen)]

    def _words(self, chosen: list[tuple[int, _Shape, int | None]], low: bytes, begins: list[int]) -> tuple[Found, dict[int, int]]:
        words = self._table.words
        found: Found = []
        stands: dict[int, int] = {}
        for at, one, stands_for in chosen:
            count = stands_for
            begin = begins[at]
            if count == 0:
                if not any(low.startswith(words[index].text, begin + start) for index, start, _ in one.exact):
                    continue
                if (count := one.sampled()) is None:
                    continue
            for index, start, end in one.words if count is None or count > 0 else one.exact:
                if low.startswith(words[index].text, begin + start):
                    found.append((index, begin + start, begin + end))
                    if count is not None:
                        stands[begin] = count
        return found, stands

    def _learn(self, new: list[bytes], low: bytes, last: dict[bytes, int], begins: list[int]) -> None:
        """Find out which words shapes hold, and what those may be of."""
        finder, indices = _blank(self._table)
        self._known.update(dict.fromkeys(new))
        number, end = -1, -1
        held: dict[int, Found] = {}
        begin = 0
        for index, at, until in finder(b"\n".join(new)):
            while at >= end:
                number += 1
                begin = end + 1
                end = begin + len(new[number])
            held.setdefault(number, []).extend((each, at - begin, until - begin) for each in indices[index])
        for number, found in held.items():
            shape = new[number]
            where = last[shape]
            self._known[shape] = self._shape(shape, found, low[begins[where] : begins[where] + len(shape)])

    def _shape(self, shape: bytes, found: Found, line: bytes) -> _Shape | None:
        """Return what is known of a shape by the words that it holds; None where they are of nothing.

        Args:
            shape: of the line.
            found: its words.
            line: one that has this shape.
        """
        words = self._table.words
        kept: Found = []
        exact: Found = []
        each = error = False
        done: set[int] = set()
        for place in found:
            if place[0] in done:  # a line is looked at once for each word
                continue
            word = words[place[0]]
            if word.ends and place[2] < len(shape) and shape[place[2]] in _WORD:
                continue
            signatures = [one for one, others in zip(word.signatures, self._others(place[0]), strict=True) if holds(others, shape)]
            if not signatures:
                continue
            kept.append(place)
            if len(shape) <= _LONG and not any(digit in word.text for digit in _DIGITS):
                done.add(place[0])
            if any(one.tells_digits for one in signatures):
                exact.append(place)
            each = each or any(map(self._is_of_each, signatures))
            error = error or any(one.role == "error" for one in signatures)
        if not kept:
            return None
        each = each or len(shape) > _LONG or (not self._ranked and text.label(text.clean(line))[1:] != (None, None, None))
        return _Shape(kept, exact, each, error, _HEAD in shape)

    def _others(self, index: int) -> list[Clauses]:
        """Return what else lines with a word hold, of each of its signatures, as it stands in shapes."""
        if (found := self._blanked.get(index)) is None:
            word = self._table.words[index]
            found = [tuple(tuple(text.translate(_BLANK) for text in clause) for clause in others) for others in word.others]
            self._blanked[index] = found
        return found

    def _is_of_each(self, signature: Signature) -> bool:
        if signature.role not in ("line", "unless", "error"):
            return True
        return not self._ranked and ("(?P<rank>" in signature.pattern or "(?P<node>" in signature.pattern)


def holds(others: Clauses, shape: bytes) -> bool:
    """Whether a line, or a shape, holds a word of each clause."""
    for clause in others:  # no generators: this is asked of each word of each shape
        for word in clause:
            if word in shape:
                break
        else:
            return False
    return True


@lru_cache(maxsize=2)
def _blank(table: Table) -> tuple[scan_words.Finder, list[list[int]]]:
    """Return what finds the table's words in shapes, and which words each one stands for."""
    by_text: dict[bytes, list[int]] = {}
    for index, word in enumerate(table.words):
        by_text.setdefault(word.text.translate(_BLANK), []).append(index)
    return scan_words.finder(list(by_text)), list(by_text.values())
