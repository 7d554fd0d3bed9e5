"""An explained script: each line with its number, and its purpose below."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hpctrain.checks.script.explain import ScriptLine, explain
from hpctrain.checks.script.explanations import ASKED, LOGS
from hpctrain.cli.findings import COLOURS
from hpctrain.cli.output import columns, has_colour, say
from hpctrain.finding import Finding
from hpctrain.terminal import style, visible
from hpctrain.util import secrets
from hpctrain.util import text as words

#: Columns before a script's text: four digits and two spaces.
_GUTTER = 6


def lines_of(text: str) -> list[ScriptLine]:
    """Return the explained lines of a script, with secrets redacted."""
    lines = explain(secrets.redacted(text))
    # There is no line after the last line break.
    return lines[:-1] if lines and not lines[-1].text else lines


def show(text: str, findings: list[Finding], *, sources: bool = False) -> None:
    """Print the explained lines of a script, and notes on stderr."""
    lines = lines_of(text)
    for line, colour in _page(lines, findings, columns(), sources=sources):
        bold = colour == "bold"
        styled = style(line, fg=None if bold else colour, bold=bold)
        click.echo(styled if has_colour() else line, color=True)
    unknown = [
        str(line.number)
        for line in lines
        if not line.known or any(not part.known for part in line.parts)
    ]
    if unknown:
        more = ", …" if len(unknown) > 10 else ""
        say(
            "note: options that hpctrain does not know:"
            f" {words.count(len(unknown), 'line')}: {', '.join(unknown[:10])}{more}"
        )
    if findings:
        say(
            f"note: {words.count(len(findings), 'finding')}; the page of one: hpctrain explain"
            f" {findings[0].id}"
        )


def _page(
    lines: list[ScriptLine], findings: list[Finding], columns: int, *, sources: bool
) -> Iterator[tuple[str, str | None]]:
    """Yield the lines of the page, each with its color, or `bold`."""

    def wrapped(text: str, indent: str, hanging: str = "") -> list[str]:
        text = visible(text).encode(errors="backslashreplace").decode()  # bytes that are not UTF-8
        return words.wrap(text, columns, indent=indent, hanging=hanging or indent)

    margin, section = " " * _GUTTER, None
    for line in _in_reading_order(lines):
        found = [one for one in findings if (one.line or 1) == line.number]
        if line.kind == "blank" and not found:
            continue
        if line.section != section:
            if section is not None:
                yield "", None
            section = line.section
            yield section, "bold"
            yield "-" * len(section), "bold"
        number, text = f"{line.number:>{_GUTTER - 2}}  ", line.text.expandtabs(4)
        hanging = margin + " " * (len(text) - len(text.lstrip()) + 4)
        for shown in wrapped(text, number, hanging) or [number.rstrip()]:
            yield shown, None if line.kind == "comment" else "cyan"
        notes = [(line.why, line.source, line.known)] if line.why else []
        notes += [(f"{part.what}: {part.why}", part.source, part.known) for part in line.parts]
        for why, source, known in notes:
            cited = f" [{source}]" if sources and source else ""
            for shown in wrapped(why + cited, margin, margin + "  " * (why != line.why)):
                yield shown, None if known else "yellow"
        for finding in found:
            for shown in wrapped(f"{finding.level}: {finding.what} [{finding.id}]", margin):
                yield shown, COLOURS[finding.level]
            for shown in wrapped(f"fix: {finding.fix}", margin):
                yield shown, None


def _in_reading_order(lines: list[ScriptLine]) -> list[ScriptLine]:
    """Return the lines with the directives sorted by heading: sbatch ignores their order."""
    directives = [at for at, line in enumerate(lines) if line.kind == "directive"]
    if not directives:
        return lines
    first, last = directives[0], directives[-1] + 1
    order = {ASKED: 0, LOGS: 1}
    block = sorted(lines[first:last], key=lambda line: order.get(line.section, 0))
    return [*lines[:first], *block, *lines[last:]]
