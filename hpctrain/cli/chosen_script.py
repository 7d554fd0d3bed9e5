"""Which scripts `hpctrain submit` hands over: a named one, the rendered ones as they are, or those rendered now.

Nothing is guessed: where two scripts could be meant, the user is told what to type for each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import click

from hpctrain.cli import script_file
from hpctrain.cli.job_options import Request, parse_request, spec_of, words_of
from hpctrain.cli.job_scripts import Script, Scripts, paths_of, scripts_of
from hpctrain.errors import UsageError
from hpctrain.jobs import render, shell
from hpctrain.scheduler import batch_script
from hpctrain.scheduler.parse import directives

#: What is only tried: `--dry-run` writes nothing, `--test-only` needs a file, but not the user's.
Trial = Literal["no", "dry-run", "test-only"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A script to submit.

    Attributes:
        path: what the user calls it. Another command may write another script there at any moment.
        text: what is checked, kept and submitted: as it was rendered or read, once.
        made: what it was rendered from; None for a script that is somebody's own, or was edited.
        takes_name: hpctrain rendered it once, so that it takes the name of its run as its argument.
    """

    path: Path
    text: str
    made: Script | None
    takes_name: bool

    @property
    def values(self) -> dict[str, str | None]:
        """Its options of sbatch.

        Raises:
            UsageError: it is no batch script.
        """
        return directives.last_values(batch_script.parse(self.text, self.path))


@dataclass(frozen=True, slots=True)
class Choice:
    """The scripts to submit, in order; `whole` is what they were rendered from, all of them, where that is known."""

    scripts: tuple[Chosen, ...]
    whole: Scripts | None


@contextmanager
def chosen(
    asked: Request, named: str | None, *, force: bool, trial: Trial, check: Callable[[Request], None] = lambda _: None
) -> Iterator[Choice]:
    """Yield the scripts to submit, rendered first where something was asked for.

    Args:
        asked: what was typed.
        named: the script that was named.
        force: replace what hpctrain did not write.
        trial: what is only tried.
        check: refuses a job that is rendered now, before anything of it is written.

    Raises:
        UsageError: no script, a stale one, or more than one that could be meant.
    """
    if named is not None:
        yield _as_it_is(_named(asked, named))
        return
    if asked.to == "-":
        raise UsageError("--to - writes to stdout, so there is nothing to submit", fix=f"{asked.again}, without --to")
    written = _first_path(asked)
    if asked.is_bare and written.exists():
        yield _as_they_are(written, asked.again)
        return
    if asked.is_bare:
        _refuse_others(written, asked.again)
    elif not force:
        _refuse_to_forget(written, asked)
    made = scripts_of(asked)
    from hpctrain.cli.render import what_runs

    for line in what_runs(made):
        click.echo(line, err=True)
    if trial == "test-only":
        with tempfile.TemporaryDirectory() as directory:
            copies = {Path(directory) / path.name: script for path, script in zip(paths_of(made.scripts), made.scripts, strict=True)}
            script_file.write_whole({path: script.text for path, script in copies.items()})
            yield Choice(tuple(Chosen(path, script.text, script, True) for path, script in copies.items()), made)
        return
    if trial == "dry-run":
        for path in paths_of(made.scripts):
            script_file.refuse_to_lose(path, force=force)
            click.echo(f"would write {path}")
    else:
        for path in paths_of(made.scripts):
            script_file.refuse_to_lose(path, force=force)
        check(asked)
        for note in script_file.write(made, force=force):
            click.echo(note, err=True)
    yield _all(made)


def _all(made: Scripts) -> Choice:
    both = zip(paths_of(made.scripts), made.scripts, strict=True)
    return Choice(tuple(Chosen(path, script.text, script, True) for path, script in both), made)


def _first_path(asked: Request) -> Path:
    """Return where the first script of a request lies: of stages, it has the first stage's name."""
    plain = Path(f"{spec_of(asked).job_name}.sbatch")
    return paths_of(scripts_of(asked).scripts)[0] if asked.is_bare and not plain.exists() else plain


def _as_it_is(path: Path) -> Choice:
    """Return one script that was named: what it was rendered from is known where it still says that."""
    text = batch_script.text(path)
    made = render.read_header(text)
    if made is None or not made.untouched or made.directory != str(Path.cwd()):
        return Choice((Chosen(path, text, None, made is not None),), None)
    whole = _made_again(made.arguments)
    same = next((script for script in whole.scripts if script.text == text), None) if whole is not None else None
    return Choice((Chosen(path, text, same, True),), whole if same is not None else None)


def _made_again(arguments: tuple[str, ...]) -> Scripts | None:
    try:
        return scripts_of(parse_request(arguments))
    except UsageError:
        return None  # the config has changed since, and may be wrong by now; the script is not


def _as_they_are(written: Path, again: str) -> Choice:
    """Return the rendered scripts, which must still say what config.yaml says: the user means one of the two, and only they know which.

    Raises:
        UsageError: what the script's own command would render now is something else.
    """
    text = batch_script.text(written)
    made = render.read_header(text)
    if made is None or not made.untouched or made.directory != str(Path.cwd()):
        return Choice((Chosen(written, text, None, made is not None),), None)  # somebody's own, or edited: the user's text counts
    whole = scripts_of(parse_request(made.arguments))
    for path, script in zip(paths_of(whole.scripts), whole.scripts, strict=True):
        if not path.is_file() or _read(path) != script.text:
            renew = shell.join((*again.split(), *made.arguments)) if made.arguments else f"hpctrain render && {again}"
            raise UsageError(
                f"{path} is older than what it was made from: config.yaml, a template, HPCTRAIN_* or hpctrain itself has changed since",
                fix=f"{renew}, or the script as it is: {again} {shell.quote(written)}",
            )
    script_file.write_tables(whole.tables)
    return _all(whole)


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


def _refuse_to_forget(written: Path, asked: Request) -> None:
    """Refuse options that would silently drop those that the script was rendered with: `render --nodes 4`, then `submit --time 2:00:00`.

    Raises:
        UsageError: something would be dropped.
    """
    made = render.read_header(_read(written)) if written.is_file() else None
    if made is None or made.directory != str(Path.cwd()):
        return
    before = parse_request(made.arguments)
    # The points of a sweep are no trials: how many of those there are, the study says.
    options = {path: value for path, value in before.options.items() if path != ("array",) or asked.tasks is None}
    both = replace(
        asked,
        options=options | asked.options,
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
