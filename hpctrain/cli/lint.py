"""`hpctrain lint`: find what is wrong in any sbatch script, line by line."""

from __future__ import annotations

import difflib
import gc
import json
import os
import stat
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from hpctrain import __version__
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.jobs.finding import LEVELS, Finding, Level

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
_WIDTH = 80
_SUFFIXES = (".sbatch", ".slurm")


@dataclass(slots=True)
class _Script:
    """A script: as it is called in findings, where it lies (None for stdin), and its text with the line ends that it has."""

    name: str
    path: Path | None
    text: str


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--fix", "do_fix", is_flag=True, help="Rewrite what is safe to rewrite, then show what is left.")
@click.option("--diff", is_flag=True, help="Show what --fix would change; writes nothing. Exit code 1 if there is something.")
@click.option("--select", metavar="ID,...", help="Only these findings.")
@click.option("--ignore", metavar="ID,...", help="All but these findings.")
@click.option("--level", type=click.Choice(LEVELS), default="error", show_default=True, help="Exit with 1 from findings of this level on.")
@click.option("--cluster", metavar="NAME", help="Hold the directives against this cluster's profile, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--sarif", is_flag=True, help="SARIF 2.1.0, for code hosts.")
def command(
    *, files: tuple[str, ...], do_fix: bool, diff: bool, select: str | None, ignore: str | None, level: Level, cluster: str | None,
    as_json: bool, sarif: bool,
) -> int:  # fmt: skip
    """Find what is wrong in any sbatch script, line by line.

    The scripts are read, never run. FILE may be a directory: its *.sbatch and *.slurm files are read, and its *.sh files with
    directives; - is stdin. A comment on a line, or on one of its own above it, leaves findings out: # hpctrain: ignore=ID,ID

    \b
    hpctrain lint job.sbatch
    hpctrain lint --cluster jean_zay colleague.slurm
    hpctrain lint --fix --select dos-line-ends,nodelist-unquoted scripts/
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    from hpctrain.jobs.lint import examine

    if as_json and sarif:
        raise UsageError("--json and --sarif are two outputs", fix="hpctrain lint --sarif FILE")
    chosen = _chosen(select, ignore, with_cluster=cluster is not None)
    scripts = _read_all(files)
    if diff:
        return _show_diff(scripts, chosen)
    if do_fix:
        _fix_all(scripts, chosen)
    collects = gc.isenabled()
    gc.disable()  # what is read stays until the end; looking for garbage in it costs a tenth of the time
    try:
        examined = {script.name: examine(script.text, script.name) for script in scripts}
    finally:
        if collects:
            gc.enable()
    found = {name: [one for one in each.findings if one.id in chosen] for name, each in examined.items()}
    skipped = sum(each.skipped for each in examined.values())
    if cluster is not None:
        _hold_against(cluster, scripts, chosen, found)
    findings = [finding for group in found.values() for finding in group]
    if sarif:
        _print_sarif(findings)
    elif as_json:
        click.echo(json.dumps({"schema": 1, "findings": [one.to_json() for one in findings], "files": len(scripts), "skipped": skipped}))
    else:
        _print(found)
    if skipped:
        click.echo(f"note: {skipped} blocks like others were not read again", err=True)
    return 1 if any(LEVELS.index(finding.level) <= LEVELS.index(level) for finding in findings) else 0


def _chosen(select: str | None, ignore: str | None, *, with_cluster: bool) -> frozenset[str]:
    """Return the ids that are asked for."""
    from hpctrain.jobs.lint import IDS as OF_THE_TEXT

    known = OF_THE_TEXT
    named = [id_.strip() for text in (select, ignore) if text is not None for id_ in text.split(",")]
    if with_cluster or not set(named) <= set(known):  # a heavy import, which most calls do without
        from hpctrain.jobs.check.script import IDS as OF_THE_SITE

        known = (*known, *OF_THE_SITE)
    unknown = [id_ for id_ in named if id_ not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        details = tuple(f"no finding of lint is called {id_!r}" for id_ in unknown[1:])
        fix = f"write: {close[0]}" if close else "hpctrain docs"
        raise UsageError(f"no finding of lint is called {unknown[0]!r}", details=details, fix=fix)
    selected = frozenset(known if select is None else (id_.strip() for id_ in select.split(",")))
    return selected - frozenset(id_.strip() for id_ in (ignore or "").split(","))


def _hold_against(name: str, scripts: list[_Script], chosen: frozenset[str], found: dict[str, list[Finding]]) -> None:
    """Add what the directives of each script say against the profile of a cluster."""
    from hpctrain.clusters import load
    from hpctrain.jobs.check.script import check_script

    cluster = load.load(name, os.environ)
    for script in scripts:
        found[script.name] += [one for one in check_script(script.text, script.name, cluster) if one.id in chosen]


def _read_all(files: tuple[str, ...]) -> list[_Script]:
    """Read every file, or say of all that cannot be read why.

    Raises:
        UsageError: at least one cannot be read.
    """
    scripts: list[_Script] = []
    problems: list[str] = []
    for name in dict.fromkeys(files):
        try:
            scripts += _read(name)
        except OSError as error:
            problems.append(f"{name}: {(error.strerror or str(error)).lower()}")
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if len(problems) == 1:
        name, _, why = problems[0].rpartition(": ")
        raise UsageError(f"cannot read {name}: {why}", details=tuple(_beside(Path(name))), fix=f"ls -l {shell.quote(_folder(Path(name)))}")
    if problems:
        count = f"{len(problems)} files"
        unread = shell.join([line.rpartition(": ")[0] for line in problems])
        raise UsageError(f"cannot read {count}", details=tuple(problems), fix=f"ls -l {unread}")
    if not scripts:
        looked = f"looked for *{', *'.join(_SUFFIXES)}, and *.sh with #SBATCH lines"
        raise UsageError(f"no batch script in {' '.join(files)}", details=(looked,), fix=f"ls -lR {shell.join(files)}")
    return scripts


def _folder(path: Path) -> str:
    """Return the nearest directory above `path` that is there."""
    return str(next(folder for folder in (path.parent, *path.parent.parents, Path("/")) if folder.is_dir()))


def _beside(path: Path) -> Iterator[str]:
    """Yield a line about the batch scripts that lie where `path` should; none where it is there."""
    if path.exists():
        return
    names = sorted(file.name for file in Path(_folder(path)).iterdir() if file.suffix in (*_SUFFIXES, ".sh"))
    shown = ", ".join((difflib.get_close_matches(path.name, names, n=5, cutoff=0.0) or names)[:5])
    yield f"scripts in {_folder(path)}: {shown or 'none'}"


def _read(name: str) -> list[_Script]:
    if name == "-":
        return [_Script("-", None, _decode(sys.stdin.buffer.read()))]
    path = Path(name)
    if not path.is_dir():
        return [_Script(name, path, _decode(path.read_bytes()))]
    found: list[_Script] = []
    for file in sorted(path.rglob("*")):
        inside = file.relative_to(path).parts
        wanted = file.suffix in (*_SUFFIXES, ".sh") and file.is_file() and not any(part.startswith(".") for part in inside)
        if wanted and (file.suffix in _SUFFIXES or b"\n#SBATCH" in file.read_bytes()):
            found.append(_Script(str(file), file, _decode(file.read_bytes())))
    return found


def _decode(content: bytes) -> str:
    """Return the text of a script, bytes that are no UTF-8 kept as surrogates.

    Raises:
        ValueError: it is no text.
    """
    if b"\0" in content:
        raise ValueError("holds NUL bytes, so it is no script")
    return content.decode("utf-8", "surrogateescape")


def _show_diff(scripts: list[_Script], chosen: frozenset[str]) -> int:
    from hpctrain.jobs.lint import fix

    changed = False
    for script in scripts:
        new = fix(script.text, script.name, chosen).text if not _is_ours(script) else script.text
        lines = difflib.unified_diff(_lines(script.text), _lines(new), f"a/{script.name}", f"b/{script.name}", lineterm="")
        for line in lines:
            changed = True
            click.echo(line)
    return int(changed)


def _lines(text: str) -> list[str]:
    # The carriage return is what may change, so it is shown.
    return [line.replace("\r", "^M") for line in text.removesuffix("\n").split("\n")]


def _is_ours(script: _Script) -> bool:
    """Whether hpctrain wrote the script; then it is made again, not edited."""
    if "# made by hpctrain " not in script.text:
        return False
    from hpctrain.jobs import render

    made = render.read_header(script.text)
    if made is None:
        return False
    again = shell.join(["hpctrain", "render", *made.arguments])
    click.echo(f"note: {script.name} was written by hpctrain, so it is not edited; change config.yaml, then: {again}", err=True)
    return True


def _fix_all(scripts: list[_Script], chosen: frozenset[str]) -> None:
    """Write the repaired texts, all or none, each with the mode that its file has.

    Raises:
        UsageError: stdin, which cannot be written.
        HpctrainError: the file system refuses.
    """
    from hpctrain.cli.script_file import write_whole
    from hpctrain.jobs.lint import fix

    if any(script.path is None for script in scripts):
        raise UsageError("--fix cannot write to stdin", fix="hpctrain lint --diff - < FILE")
    wanted: dict[Path, str] = {}
    for script in scripts:
        fixed = fix(script.text, script.name, chosen)
        if fixed.text == script.text or script.path is None or _is_ours(script):
            continue
        wanted[script.path.resolve()] = fixed.text  # behind a link, not in its place
        script.text = fixed.text
        click.echo(f"fixed {script.name}: {', '.join(fixed.ids)}", err=True)
        links = script.path.stat().st_nlink
        if links > 1:  # the new text is a new file, which takes this name alone
            click.echo(f"note: {script.name} had {links} hard links; the others keep the old text", err=True)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in wanted}
    try:
        write_whole(wanted)
        for path, mode in modes.items():
            path.chmod(mode)
    except OSError as error:
        raise HpctrainError(f"cannot write {error.filename or 'the script'}: {error.strerror}", fix="hpctrain lint --diff FILE") from error


def _print_sarif(findings: list[Finding]) -> None:
    from hpctrain import data
    from hpctrain.jobs.lint import RULES, sarif

    click.echo(json.dumps(sarif.document(findings, RULES, data.findings(), __version__), indent=1))


def _print(found: dict[str, list[Finding]]) -> None:
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for findings in found.values():
        for finding in findings:
            for line in _block(finding, colour=colour):
                click.echo(line, color=colour)
            click.echo()
    every = [finding for group in found.values() for finding in group]
    files = f"{len(found)} file{'' if len(found) == 1 else 's'}"
    if not every:
        click.echo(f"{files}: nothing found", err=True)
        return
    counts = [(sum(finding.level == level for finding in every), level) for level in LEVELS]
    said = ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for count, level in counts if count)
    click.echo(f"{files}: {said}; more on each: hpctrain docs ID", err=True)


def _block(finding: Finding, *, colour: bool) -> Iterator[str]:
    level = click.style(finding.level, fg=_COLOURS[finding.level], bold=True) if colour else finding.level
    place = f"{finding.file}:{finding.line}:{finding.column}:"
    head = _wrap(f"{place} {finding.level} {finding.id}: {finding.what}", "", "    ")
    yield head[0].replace(f"{place} {finding.level} ", f"{place} {level} ", 1)
    yield from head[1:]
    for title, text in (("seen", finding.evidence), ("why", finding.reason), ("fix", finding.fix)):
        yield from _wrap(text, f"    {title + ':':6}", " " * 10)


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False) or [
        first.rstrip()
    ]
