"""Runs of plain lines that no rule asks about, skipped at the speed of one regular expression.

A script of 4 MiB may have a million lines. Reading each takes a microsecond or two; most say nothing that a rule could ask about. A
line is boring when it holds only plain words, simple quotes and simple expansions, begins with no keyword, and none of its words is
among those that matter.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

_PLAIN = r"[\w./:,+@%^=~*?-]"
_WORD = rf"""(?:{_PLAIN}|"[^"`\\$\n]*+"|'[^'\n]*+'|\$[A-Za-z_]\w*+|\$\{{\w++\}})"""
_KEYWORDS = "if|then|elif|else|fi|while|until|for|select|do|done|case|esac|function|time|coproc"
_REST = rf"""(?:[ \t]++{_WORD}++|[ \t]*+[0-9]?>>?[ \t]*+{_WORD}++|[ \t]*+2>&1)*+"""
_LINE = rf"""(?!(?:{_KEYWORDS})[ \t\n;]){_WORD}++{_REST}[ \t]*+(?:;?\n|;(?![;&]))"""
_RUN = re.compile(rf"(?:[ \t]*+(?:{_LINE}|\n++|#(?![ \t]*+[sS][bBlL])[^\n]*+\n)){{1,3000}}+", re.ASCII)
_NOTHING = re.compile(r"(?:[ \t]*+(?:\n++|#(?![ \t]*+[sS][bBlL])[^\n]*+\n))++")
_SEPARATORS = re.compile(r"[^\w]+", re.ASCII)


_ASSIGNED = re.compile(r"^[ \t]*+([A-Za-z_]\w*+)\+?=", re.ASCII | re.MULTILINE)


class BoringLines:
    """Finds the end of a run of boring lines in `text`.

    Args:
        text: the whole text.
        interesting: words (of letters, digits and underscores) that make a line worth reading.
        expanded: variables whose assignments are worth reading.
    """

    def __init__(self, text: str, interesting: AbstractSet[str], expanded: AbstractSet[str]) -> None:
        self._text, self._interesting, self._expanded = text, interesting, expanded
        self._read_until = 0

    def skip(self, start: int, end: int) -> int:
        """Return where the run of boring lines that begins at the line start `start` ends; `start` itself where there is none."""
        if start < self._read_until:
            nothing = _NOTHING.match(self._text, start, end)
            return nothing.end() if nothing else start
        while start >= self._read_until:
            run = _RUN.match(self._text, start, end)
            if run is None:
                return start
            if self._matters(run[0]):
                # Somewhere in it is a word that matters: this run is read line by line, and not looked at again.
                self._read_until = run.end()
                return start
            start = run.end()
        return start

    def _matters(self, run: str) -> bool:
        if not self._interesting.isdisjoint(_SEPARATORS.split(run)):
            return True
        return "=" in run and not self._expanded.isdisjoint(_ASSIGNED.findall(run))
