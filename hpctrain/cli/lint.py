"""`hpctrain lint`: find problems in any sbatch script, or explain it line by line."""

from __future__ import annotations

import difflib
import os
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import click

from hpctrain.cli.findings import counts, show_findings
from hpctrain.cli.options import json_option
from hpctrain.cli.output import print_json, say
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.finding import LEVELS, Finding, Level
from hpctrain.util import shell, stored
from hpctrain.util import text as words

_SUFFIXES = (".sbatch", ".slurm")


@dataclass(frozen=True, slots=True)
class LintedScript:
    """A script: its name in findings, its file (None for stdin), and its text, line ends
    unchanged.
    """

    name: str
    path: Path | None
    text: str


@click.command()
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
    hpctrain lint --fix --select dos-line-ends,fixed-port scripts/
    """  # noqa: D301 - \b keeps click from wrapping
    if explain and (do_fix or diff or len(files) > 1):
        raise UsageError(
            "--explain takes one file, and neither --fix nor --diff",
            fix=f"hpctrain lint --explain {shell.quote(files[0])}",
        )
    chosen = _chosen(select, ignore, with_cluster=cluster is not None)
    scripts = _read_all(files)
    if diff:
        return _show_diff(scripts, chosen)
    if do_fix:
        scripts = _fix_all(scripts, chosen)
    findings = [one for script in scripts for one in _findings(script, chosen, cluster)]
    if explain:
        _explain(scripts, findings, sources=sources, as_json=as_json)
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
    """Return the ids selected by --select and --ignore."""
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
        first, *others = (f"no finding of lint is called {id_!r}" for id_ in unknown)
        raise UsageError(
            first,
            details=tuple(others),
            fix=None if close else "hpctrain explain --list",
            hint=f"use {close[0]}" if close else None,
        )
    return frozenset(known if select is None else selected) - frozenset(ignored)


def _findings(script: LintedScript, chosen: frozenset[str], cluster: str | None) -> list[Finding]:
    if cluster is None:
        from hpctrain.checks.script import lint

        found = lint(script.text, script.name)
    else:
        from hpctrain.checks.job.script import check_script
        from hpctrain.clusters import load

        found = check_script(script.text, script.name, load.load(cluster, os.environ))
    return [one for one in found if one.id in chosen]


def _explain(
    scripts: list[LintedScript], findings: list[Finding], *, sources: bool, as_json: bool
) -> None:
    """Explain each line of a script, with its findings.

    Raises:
        UsageError: a directory with several scripts, or a Python program without directives.
    """
    from hpctrain.cli.actions import explained_script

    script, *others = scripts
    if others:
        fix = f"hpctrain lint --explain {shell.quote(script.name)}"
        raise UsageError("--explain takes one file", fix=fix)
    first = script.text.partition("\n")[0]
    python = script.name.endswith(".py") or (first.startswith("#!") and "python" in first)
    if python and "#SBATCH" not in script.text:  # sbatch runs Python programs too
        raise UsageError(
            f"{script.name!r} is a Python program, not a shell script",
            hint="explain the job that runs it: hpctrain render --explain --script FILE",
        )
    if not as_json:
        explained_script.show(script.text, findings, sources=sources)
        return
    lines = [
        line.to_json()
        | {"findings": [one.to_json() for one in findings if (one.line or 1) == line.number]}
        for line in explained_script.lines_of(script.text)
    ]
    print_json(file=script.name, lines=lines)


# -- reading ---------------------------------------------------------------------------------------


def _read_all(files: tuple[str, ...]) -> list[LintedScript]:
    """Read all files.

    Raises:
        UsageError: at least one cannot be read; all problems at once.
    """
    scripts: list[LintedScript] = []
    problems: dict[str, str] = {}
    for name in dict.fromkeys(files):
        try:
            scripts += _read(name)
        except OSError as error:
            problems[name] = (error.strerror or str(error)).lower()
        except ValueError as error:
            problems[name] = str(error)
    if problems:
        first, *more = (f"cannot read {name}: {why}" for name, why in problems.items())
        parents = (*Path(next(iter(problems))).parents, Path("/"))
        fix = f"ls -l {shell.quote(next(each for each in parents if each.is_dir()))}"
        raise UsageError(first, details=tuple(more), fix=fix)
    if not scripts:
        raise UsageError(
            f"no batch script in {' '.join(files)}",
            details=(f"looked for *{', *'.join(_SUFFIXES)}, and *.sh with #SBATCH lines",),
            fix=f"ls -lR {shell.join(files)}",
        )
    return scripts


def _read(name: str) -> list[LintedScript]:
    """Read a file, stdin, or the scripts in a directory.

    Raises:
        ValueError: a file is not text.
    """
    path = Path(name)
    read: list[tuple[str, Path | None, bytes]]
    if name == "-":
        read = [(name, None, sys.stdin.buffer.read())]
    elif not path.is_dir():
        read = [(name, path, stored.read_given(path))]
    else:
        read = [
            (str(file), file, content)
            for file in sorted(path.rglob("*"))
            if file.suffix in (*_SUFFIXES, ".sh") and file.is_file()
            if not any(part.startswith(".") for part in file.relative_to(path).parts)
            if b"\n#SBATCH" in (content := stored.read_regular(file)) or file.suffix != ".sh"
        ]
    if any(b"\0" in content for _, _, content in read):
        raise ValueError("has NUL bytes, so it is not a script")
    return [
        LintedScript(each, file, content.decode("utf-8", "surrogateescape"))
        for each, file, content in read
    ]


# -- fixes -----------------------------------------------------------------------------------------


def _fixed(script: LintedScript, chosen: frozenset[str]) -> tuple[str, tuple[str, ...]]:
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


def _show_diff(scripts: list[LintedScript], chosen: frozenset[str]) -> int:
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


def _fix_all(scripts: list[LintedScript], chosen: frozenset[str]) -> list[LintedScript]:
    """Write the fixed texts, all or none, keeping the mode of each file.

    Raises:
        UsageError: stdin, which cannot be written.
        HpctrainError: a file cannot be written.
    """
    from hpctrain.jobs.script_files import write_whole

    texts: dict[Path, str] = {}
    result: list[LintedScript] = []
    for script in scripts:
        if script.path is None:
            hint = "name the file, or use --diff, which writes nothing"
            raise UsageError("--fix cannot write to stdin", hint=hint)
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
