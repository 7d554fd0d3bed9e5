"""`hpctrain lint`."""

from __future__ import annotations

import difflib
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

from hpctrain.checks.script.explain import ScriptLine, explain
from hpctrain.cli.options import json_option
from hpctrain.cli.output import COLOURS, columns, counts, has_colour, print_json, say, show_findings
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.finding import LEVELS, Finding, Level
from hpctrain.terminal import style, visible
from hpctrain.util import secrets, shell, stored
from hpctrain.util import text as words

_SUFFIXES = (".sbatch", ".slurm")


@dataclass(frozen=True, slots=True)
class _LintedScript:
    """A script: its name in findings, its file (None for stdin), and its text, line ends
    unchanged.
    """

    name: str
    path: Path | None
    text: str


@click.command("lint")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--fix", "do_fix", is_flag=True, help="Apply safe fixes, then show the remaining findings."
)
@click.option(
    "--diff",
    is_flag=True,
    help="Show what --fix would change; write nothing. Exit code 1 if there are changes.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Explain FILE line by line: directives, options of srun and the launchers, and what"
    " hpctrain itself wrote; findings are shown below their lines.",
)
@click.option("--sources", is_flag=True, help="With --explain: name the manuals.")
@click.option("--select", metavar="ID,...", help="Only these findings.")
@click.option("--ignore", metavar="ID,...", help="Ignore these findings.")
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="error",
    show_default=True,
    help="Exit with 1 for findings of this level and above.",
)
@click.option(
    "--cluster", metavar="NAME", help="Also compare the directives with this cluster's profile."
)
@json_option
def command(
    *,
    files: tuple[str, ...],
    do_fix: bool,
    diff: bool,
    explain: bool,
    sources: bool,
    select: str | None,
    ignore: str | None,
    level: Level,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Lint or explain sbatch scripts.

    The scripts are read, never run. FILE may be a directory: its *.sbatch and *.slurm files are
    read, and its *.sh files with directives; - is stdin. A comment on a line, or on one of its own
    above it, leaves findings out: # hpctrain: ignore=ID,ID

    \b
    hpctrain lint job.sbatch
    hpctrain lint --explain job.sbatch
    hpctrain lint --cluster jean_zay colleague.slurm
    hpctrain lint --fix --select dos-line-ends,pythonbuffered scripts/
    """  # noqa: D301 - \b keeps click from wrapping
    ids = _chosen(select, ignore, with_cluster=cluster is not None)
    scripts = _read_all(files)
    if explain and (do_fix or diff or len(scripts) > 1):
        raise UsageError(
            "--explain takes one file, and neither --fix nor --diff",
            fix=f"hpctrain lint --explain {shell.quote(scripts[0].name)}",
        )
    if diff:
        return _show_diff(scripts, ids)
    if do_fix:
        scripts = _fix_all(scripts, ids)
    findings = [
        one
        for script in scripts
        for one in findings_of(script.text, script.name, cluster)
        if one.id in ids
    ]
    if explain:
        if not as_json:
            show_explained(scripts[0].text, findings, sources=sources)
            return 0
        print_json(
            file=scripts[0].name,
            lines=[
                line.to_json()
                | {
                    "findings": [
                        one.to_json() for one in findings if (one.line or 1) == line.number
                    ]
                }
                for line in _explained_lines(scripts[0].text)
            ],
        )
        return 0
    if as_json:
        # `skipped` is kept for compatibility: older versions skipped parts of large scripts.
        print_json(findings=[one.to_json() for one in findings], files=len(scripts), skipped=0)
    else:
        show_findings(findings, place=True)
        more = "; more on each: hpctrain explain ID" if findings else ""
        say(f"{words.count(len(scripts), 'file')}: {counts(findings)}{more}")
    return int(any(LEVELS.index(one.level) <= LEVELS.index(level) for one in findings))


def _chosen(select: str | None, ignore: str | None, *, with_cluster: bool) -> frozenset[str]:
    selected, ignored = (
        [id_.strip() for id_ in (ids or "").split(",") if id_] for ids in (select, ignore)
    )
    if select is not None and not selected:
        raise UsageError("--select names no finding", fix="hpctrain explain --list")
    from hpctrain.checks.script import IDS

    known = IDS
    # The cluster's rules take long to import, and are rarely needed.
    if with_cluster or not {*selected, *ignored} <= set(known):
        from hpctrain.checks.job.script import IDS as IDS_OF_CLUSTERS

        known = (*known, *IDS_OF_CLUSTERS)
    unknown = [id_ for id_ in (*selected, *ignored) if id_ not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        raise UsageError(
            f"no finding of lint is called {unknown[0]!r}",
            fix="hpctrain explain --list",
            hint=f"did you mean {close[0]}?" if close else None,
        )
    return frozenset(known if select is None else selected) - frozenset(ignored)


def findings_of(text: str, name: str, cluster: str | None) -> list[Finding]:
    """Return the findings of a script, with those of a cluster's profile."""
    if cluster is None:
        from hpctrain.checks.script import lint

        return lint(text, name)
    from hpctrain.checks.job.script import check_script
    from hpctrain.clusters import load

    return check_script(text, name, load.load(cluster, os.environ))


# -- reading ---------------------------------------------------------------------------------------


def _read_all(files: tuple[str, ...]) -> list[_LintedScript]:
    scripts: list[_LintedScript] = []
    problems: list[str] = []
    for name in dict.fromkeys(files):
        try:
            scripts += _read(name)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            problems.append(f"cannot read {name}: {why.lower()}")
    if not scripts and not problems:
        problems = [f"no *{', *'.join(_SUFFIXES)}, and no *.sh with #SBATCH in {' '.join(files)}"]
    if problems:
        raise UsageError(problems[0], details=tuple(problems[1:]), fix="ls -l")
    return scripts


def _read(name: str) -> list[_LintedScript]:
    path = Path(name)
    read: list[tuple[str, Path | None, bytes]] = []
    if name == "-":
        read.append((name, None, sys.stdin.buffer.read()))
    elif not path.is_dir():
        read.append((name, path, stored.read_regular(path, pipes=True)))
    for file in sorted(path.rglob("*")) if path.is_dir() else ():
        is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.suffix in (*_SUFFIXES, ".sh") and file.is_file() and not is_hidden:
            content = stored.read_regular(file)
            if b"\n#SBATCH" in content or file.suffix != ".sh":
                read.append((str(file), file, content))
    if any(b"\0" in content for _, _, content in read):
        raise ValueError("has NUL bytes, so it is not a script")
    return [
        _LintedScript(each, file, content.decode("utf-8", "surrogateescape"))
        for each, file, content in read
    ]


# -- fixes -----------------------------------------------------------------------------------------


def _fixed(script: _LintedScript, chosen: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """Return the text after the safe fixes, and their ids; never change a script by hpctrain."""
    from hpctrain.checks.script import fix

    repair = fix(script.text, script.name, chosen)
    if not repair.ids or "# made by hpctrain " not in script.text:
        return repair.text, repair.ids
    say(
        f"note: {script.name} was written by hpctrain, so it is not edited; change config.yaml and"
        " render it again"
    )
    return script.text, ()


def _show_diff(scripts: list[_LintedScript], chosen: frozenset[str]) -> int:
    changed = False
    for script in scripts:
        # Make carriage returns visible: a fix may remove them.
        before, after = (
            text.removesuffix("\n").replace("\r", "^M").split("\n")
            for text in (script.text, _fixed(script, chosen)[0])
        )
        names = (f"a/{script.name}", f"b/{script.name}")
        for line in difflib.unified_diff(before, after, *names, lineterm=""):
            changed = True
            click.echo(line)
    return int(changed)


def _fix_all(scripts: list[_LintedScript], chosen: frozenset[str]) -> list[_LintedScript]:
    """Write the fixed texts, all or none, keeping the mode of each file.

    Raises:
        UsageError: stdin, which cannot be written.
        HpctrainError: a file cannot be written.
    """
    from hpctrain.jobs.script_files import write_whole

    texts: dict[Path, str] = {}
    result: list[_LintedScript] = []
    for script in scripts:
        if script.path is None:
            raise UsageError("--fix cannot write to stdin", hint="use --diff")
        text, ids = _fixed(script, chosen)
        result.append(replace(script, text=text))
        if ids:
            texts[script.path.resolve()] = text  # write to a symlink's target
            say(f"fixed {script.name}: {', '.join(ids)}")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in texts}
    try:
        write_whole(texts)
        for path, mode in modes.items():
            path.chmod(mode)
    except OSError as error:
        raise HpctrainError(
            f"cannot write {error.filename or 'the script'}: {error.strerror}",
            fix=f"hpctrain lint --diff {shell.join([script.name for script in scripts])}",
        ) from error
    return result


# -- an explained script ----------------------------------------------------------------------------

#: Columns before a script's text: four digits and two spaces.
_GUTTER = 6


def _explained_lines(text: str) -> list[ScriptLine]:
    lines = explain(secrets.redacted(text))
    # There is no line after the last line break.
    return lines[:-1] if lines and not lines[-1].text else lines


def show_explained(text: str, findings: list[Finding], *, sources: bool = False) -> None:
    """Print the explained lines of a script, and notes on stderr."""
    for line, colour in _page(_explained_lines(text), findings, columns(), sources=sources):
        bold = colour == "bold"
        styled = style(line, fg=None if bold else colour, bold=bold)
        click.echo(styled if has_colour() else line, color=True)
    if findings:
        say(
            f"note: {words.count(len(findings), 'finding')}; more on each: hpctrain explain"
            f" {findings[0].id}"
        )


def _page(
    lines: list[ScriptLine], findings: list[Finding], columns: int, *, sources: bool
) -> Iterator[tuple[str, str | None]]:

    def wrapped(text: str, indent: str, hanging: str = "") -> list[str]:
        text = visible(text).encode(errors="backslashreplace").decode()  # bytes that are not UTF-8
        return words.wrap(text, columns, indent=indent, hanging=hanging or indent)

    margin, section = " " * _GUTTER, None
    for line in lines:
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
        for note in line.notes:
            cited = f" [{note.source}]" if sources and note.source else ""
            for shown in wrapped(note.shown + cited, margin, margin + "  " * bool(note.what)):
                yield shown, None if note.known else "yellow"
        for finding in found:
            for shown in wrapped(f"{finding.level}: {finding.what} [{finding.id}]", margin):
                yield shown, COLOURS[finding.level]
            for shown in wrapped(f"fix: {finding.fix}", margin):
                yield shown, None
