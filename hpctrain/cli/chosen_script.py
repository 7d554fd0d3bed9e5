"""Which script `hpctrain submit` hands over: a named one, the rendered one as it is, or one rendered now.

Nothing is guessed: where two scripts could be meant, the user is told what to type for each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click

from hpctrain.cli import script_file
from hpctrain.cli.job_options import Request, parse_request, script_of, spec_of, words_of
from hpctrain.errors import UsageError
from hpctrain.jobs import render, shell

#: What is only tried: `--dry-run` writes nothing, `--test-only` needs a file, but not the user's.
Trial = Literal["no", "dry-run", "test-only"]


@contextmanager
def chosen(asked: Request, named: str | None, *, force: bool, trial: Trial) -> Iterator[Path]:
    """Yield the script to submit, rendered first where something was asked for.

    Raises:
        UsageError: no script, a stale one, or more than one that could be meant.
    """
    if named is not None:
        yield _named(asked, named)
        return
    if asked.to == "-":
        raise UsageError("--to - writes to stdout, so there is nothing to submit", fix=f"{asked.again}, without --to")
    written = Path(f"{spec_of(asked).job_name}.sbatch")
    if asked.is_bare and written.exists():
        _refuse_stale(written, asked.again)
        yield written
        return
    if asked.is_bare:
        _refuse_others(written, asked.again)
    elif not force:
        _refuse_to_forget(written, asked)
    made = script_of(asked)
    if made.path is None:
        raise ValueError("a script for stdout was refused above")
    click.echo(made.spec.layout, err=True)
    if trial == "test-only":
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory) / made.path.name
            script_file.write_whole({copy: made.text})
            yield copy
        return
    if trial == "dry-run":
        script_file.refuse_to_lose(made.path, force=force)
        click.echo(f"would write {made.path}")
    else:
        for note in script_file.write(made, force=force):
            click.echo(note, err=True)
    yield made.path


def _named(asked: Request, named: str) -> Path:
    again = f"{asked.again} {shell.quote(named)}"
    if not asked.is_bare:
        raise UsageError(
            f"{named} is submitted as it is, so options for rendering do not go with it",
            fix=f"{again}, or leave {named} out to render it anew",
        )
    if not Path(named).is_file():
        beside = [path.name for path in sorted(Path().glob("*.sbatch"))]
        fix = f"{asked.again} {shell.quote(beside[0])}" if beside else "hpctrain render"
        raise UsageError(f"there is no script {named!r}", details=(f"here are {', '.join(beside)}",) if beside else (), fix=fix)
    return Path(named)


def _refuse_others(written: Path, again: str) -> None:
    """Refuse to render a default job where other scripts of hpctrain lie: one of them is meant.

    Raises:
        UsageError: there are such scripts.
    """
    others = [path for path in sorted(Path().glob("*.sbatch")) if render.read_header(_read(path)) is not None]
    if others:
        raise UsageError(
            f"there is no {written} here, but {', '.join(path.name for path in others)}",
            fix=f"{again} {shell.quote(others[0])}, or hpctrain render for a new {written}",
        )


def _refuse_stale(written: Path, again: str) -> None:
    """Refuse a script that no longer says what config.yaml says: the user means one of the two, and only they know which.

    Raises:
        UsageError: what the script's own command would render now is something else.
    """
    text = _read(written)
    made = render.read_header(text)
    if made is None or not made.untouched or made.directory != str(Path.cwd()):
        return  # somebody's own script, or edited: the user's text is what counts
    if script_of(parse_request(made.arguments)).text != text:
        renew = shell.join((*again.split(), *made.arguments)) if made.arguments else f"hpctrain render && {again}"
        raise UsageError(
            f"{written} is older than what it was made from: config.yaml, a template, HPCTRAIN_* or hpctrain itself has changed since",
            fix=f"{renew}, or the script as it is: {again} {shell.quote(written)}",
        )


def _refuse_to_forget(written: Path, asked: Request) -> None:
    """Refuse options that would silently drop those that the script was rendered with: `render --nodes 4`, then `submit --time 2:00:00`.

    Raises:
        UsageError: something would be dropped.
    """
    made = render.read_header(_read(written)) if written.is_file() else None
    if made is None or made.directory != str(Path.cwd()):
        return
    before = parse_request(made.arguments)
    both = replace(
        asked,
        options=before.options | asked.options,
        sbatch=tuple(dict.fromkeys((*before.sbatch, *asked.sbatch))),
        arguments=asked.arguments or before.arguments,
        config=asked.config or before.config,
    )
    if both != asked:
        raise UsageError(
            f"{written} was rendered with {shell.join(made.arguments)}, and this command does not say all of that",
            fix=f"{shell.join((*asked.again.split(), *words_of(both)))}, or --force to leave out the rest",
        )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")
