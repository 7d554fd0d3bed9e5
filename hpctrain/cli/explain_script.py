"""`hpctrain explain-script`: say of each line of a script why it is there.

`hpctrain render --explain` shows the same of a script that is not written yet.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hpctrain.cli import explained_page
from hpctrain.errors import UsageError
from hpctrain.jobs import explain_script, secrets_in_text, shell
from hpctrain.jobs.explain_script import Line
from hpctrain.jobs.finding import Finding


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--sources", is_flag=True, help="Name the manual behind each explanation.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(file: str, sources: bool, as_json: bool) -> None:
    """Say of each line of a script why it is there.

    FILE is any sbatch script, yours or a colleague's; - reads stdin. Nothing is run. What hpctrain does not know, it says so;
    what `hpctrain lint` finds in a line is shown there.

    \b
    hpctrain explain-script sft.sbatch
    hpctrain render --to - | hpctrain explain-script -
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    text = _read(file)
    _refuse_python(text, file)
    if as_json:
        _show_json(text, file)
    else:
        show(text, file, sources=sources)


def show(text: str, name: str, *, sources: bool = False) -> None:
    """Print each line of a script with its explanation, and on stderr what is left to say."""
    lines = _lines(text)
    findings = _findings(text, name)
    for line in _page(lines, findings, sources=sources):
        click.echo(line, color=True)
    unknown = [line.number for line in lines if not line.known or any(not part.known for part in line.parts)]
    if unknown:
        what = "line holds a command or an option" if len(unknown) == 1 else "lines hold commands or options"
        click.echo(f"note: {len(unknown)} {what} that hpctrain does not know: {_listed(unknown)}", err=True)
    if findings:
        one = len(findings) == 1
        click.echo(f"note: {len(findings)} finding{'' if one else 's'}; the page of one: hpctrain docs {findings[0].id}", err=True)


def _read(file: str) -> str:
    try:
        octets = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        beside = [path.name for path in sorted(Path().glob("*.sbatch"))]
        fix = f"hpctrain explain-script {shell.quote(beside[0])}" if beside else "hpctrain render --explain"
        details = (f"here are {', '.join(beside)}",) if beside else ()
        raise UsageError(f"cannot read the script {file!r}: {error.strerror}", details=details, fix=fix) from error
    return octets.decode("utf-8", "surrogateescape")


def _refuse_python(text: str, file: str) -> None:
    """Say once that a Python program is no shell script, instead of once for each of its lines.

    Raises:
        UsageError: it is one, and has no directives: sbatch runs a Python program too, whose #SBATCH lines are worth a look.
    """
    first = text.partition("\n")[0]
    python = file.endswith(".py") or (first.startswith("#!") and "python" in first)
    if python and not any(line.startswith("#SBATCH") for line in text.splitlines()):
        name = shell.quote(file if file != "-" else "FILE")
        fix = f"hpctrain render --explain --script {name}"
        raise UsageError(f"{file!r} is a Python program, not a shell script", details=("sbatch starts it from a script",), fix=fix)


def _lines(text: str) -> list[Line]:
    # A page is shown to others, or kept in a CI log: tokens are cut as lint cuts them.
    lines = explain_script.explain(secrets_in_text.redacted(text))
    # What stands behind the last line break is no line.
    return lines[:-1] if lines and not lines[-1].text else lines


def _findings(text: str, name: str) -> list[Finding]:
    """Return what `hpctrain lint` finds."""
    from hpctrain.jobs.lint import lint

    return list(lint(text, name))


def _show_json(text: str, file: str) -> None:
    found: dict[int, list[object]] = {}
    for finding in _findings(text, file):
        found.setdefault(finding.line or 1, []).append(finding.to_json())
    lines = [{**line.to_json(), "findings": found.get(line.number, [])} for line in _lines(text)]
    click.echo(json.dumps({"schema": 1, "file": file, "lines": lines}))


def _page(lines: list[Line], findings: list[Finding], *, sources: bool) -> Iterator[str]:
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    colour = terminal and not os.environ.get("NO_COLOR")
    width = 80
    if terminal:
        import shutil

        width = max(40, min(100, shutil.get_terminal_size().columns))
    return explained_page.page(lines, findings, width=width, colour=colour, sources=sources)


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:10])
    return shown if len(numbers) <= 10 else f"{shown}, …"
