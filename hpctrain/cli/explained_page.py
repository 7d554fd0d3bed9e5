"""The page of an explained script: headings, each line with its number, and beneath it why it is there."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import click

from hpctrain.jobs.explain_script import Line, Part
from hpctrain.jobs.explain_script.rows import ASKED, LOGS
from hpctrain.jobs.finding import Finding

#: Where a script's text begins: four digits and two blanks.
_GUTTER = 6
_WIDEST_WHAT = 24
_COLOURS = {"error": "red", "warning": "yellow", "note": "blue"}


def page(lines: list[Line], findings: list[Finding], *, width: int, colour: bool, sources: bool) -> Iterator[str]:
    """Yield the lines of the page, none wider than `width` columns as long as words are not."""
    return _Page(width, colour, sources, findings).lines(lines)


@dataclass(slots=True)
class _Page:
    width: int
    colour: bool
    sources: bool
    findings: list[Finding]
    seen: dict[tuple[str, str | None, tuple[str, ...]], int] = field(default_factory=dict)

    def lines(self, lines: list[Line]) -> Iterator[str]:
        section, before = None, None
        for line in _in_reading_order(lines):
            if line.kind == "blank" and not line.parts and not self._found(line):
                continue
            if line.section != section:
                if section is not None:
                    yield ""
                section = line.section
                yield self._style(section, bold=True)
                yield self._style("-" * len(section), bold=True)
            yield from self._script(line)
            yield from self._why(line, before)
            for finding in self._found(line):
                yield from self._finding(finding)
            before = line

    def _found(self, line: Line) -> list[Finding]:
        return [finding for finding in self.findings if (finding.line or 1) == line.number]

    def _script(self, line: Line) -> Iterator[str]:
        """Yield the script's line, folded at blanks where it is too long; nothing in it can move the cursor."""
        text = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()
            for letter in line.text.expandtabs(4)
        )
        number = self._style(f"{line.number:>{_GUTTER - 2}}", dim=True)
        style = {"dim": True} if line.kind == "comment" else {"fg": "cyan"}
        room = self.width - _GUTTER
        indent = len(text) - len(text.lstrip()) + 4
        first, rest = _fold(text, room)
        yield f"{number}  {self._style(first, **style)}"
        while rest:
            first, rest = _fold(rest.lstrip(), max(20, room - indent))
            yield " " * (_GUTTER + indent) + self._style(first, **style)

    def _why(self, line: Line, before: Line | None) -> Iterator[str]:
        if line.kind == "continued" and not line.parts:
            return  # `done`, `)`: seen at a glance
        if line.kind == "text" and before is not None and before.why == line.why:
            return
        key = (line.text.strip(), line.why, tuple(part.why for part in line.parts))
        again = self.seen.setdefault(key, line.number)
        if again != line.number and sum(map(len, key[2]), len(line.why or "")) > 100:
            yield from self._text(f"As in line {again}.")
            return
        why, parts = line.why, line.parts
        if why is None and len(parts) == 1:
            why, parts = parts[0].why[:1].upper() + parts[0].why[1:], (replace(parts[0], why=""),)
        if why is not None:
            source = line.source or (parts[0].source if len(parts) == 1 else None)
            yield from self._text(why + self._source(source), fg=None if line.known else "yellow")
        yield from self._parts([part for part in parts if part.why])

    def _parts(self, parts: list[Part]) -> Iterator[str]:
        column = max((len(part.what) for part in parts if len(part.what) <= _WIDEST_WHAT), default=0)
        for part in parts:
            what = "".join(letter if letter.isprintable() else "?" for letter in part.what)
            why = part.why + self._source(part.source)
            indent = _GUTTER + 2
            if len(what) > column:
                yield " " * indent + self._style(what, fg="cyan")
                yield from self._wrapped(why, indent + 4, None if part.known else "yellow")
            else:
                first, *rest = self._wrapped(why, indent + column + 2, None if part.known else "yellow")
                yield " " * indent + self._style(what, fg="cyan") + " " * (column - len(what) + 2) + first.lstrip()
                yield from rest

    def _finding(self, finding: Finding) -> Iterator[str]:
        yield from self._text(f"{finding.level}: {finding.what} [{finding.id}]", fg=_COLOURS[finding.level])
        yield from self._text(f"fix: {finding.fix}")

    def _source(self, source: str | None) -> str:
        return f" [{source}]" if self.sources and source else ""

    def _text(self, text: str, fg: str | None = None) -> Iterator[str]:
        return self._wrapped(text, _GUTTER, fg)

    def _wrapped(self, text: str, indent: int, fg: str | None) -> Iterator[str]:
        room = max(20, self.width - indent)
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
        for line in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]:
            yield " " * indent + self._style(line, fg=fg)

    def _style(self, text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
        return click.style(text, fg=fg, bold=bold or None, dim=dim or None) if self.colour else text


def _fold(text: str, room: int) -> tuple[str, str]:
    """Return what fits on a line, and the rest; breaks at a blank where there is one."""
    if len(text) <= room:
        return text, ""
    start = len(text) - len(text.lstrip())
    at = text.rfind(" ", start + 1, room + 1)
    if at <= start:
        at = text.find(" ", room)
        at = len(text) if at < 0 else at
    return text[:at], text[at:]


def _in_reading_order(lines: list[Line]) -> list[Line]:
    """Return the lines, those of the directives sorted by heading: their order means nothing to sbatch."""
    end = next((at for at, line in enumerate(lines) if line.kind == "command"), len(lines))
    directives = [at for at, line in enumerate(lines[:end]) if line.kind == "directive"]
    if not directives:
        return lines
    first, last = directives[0], directives[-1] + 1
    order = {ASKED: 0, LOGS: 1}
    return [*lines[:first], *sorted(lines[first:last], key=lambda line: order.get(line.section, 0)), *lines[last:]]
