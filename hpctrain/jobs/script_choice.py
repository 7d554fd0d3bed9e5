"""Which scripts `hpctrain submit` submits: a named one, the rendered ones unchanged, or newly
rendered ones.

Nothing is guessed: if two scripts are possible, the error names the command for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hpctrain.errors import UsageError
from hpctrain.jobs import header, script_files
from hpctrain.jobs.request import (
    Request,
    job_of,
    parse_request,
    suggested,
    words_of,
)
from hpctrain.jobs.scripts import JobScript, JobScripts, scripts_of, what_runs
from hpctrain.slurm import batch_script
from hpctrain.util import shell, stored
from hpctrain.util.text import printable


def chosen(
    asked: Request,
    named: str | None,
    *,
    force: bool,
    dry_run: bool,
    say: Callable[[str], None],
    check: Callable[[Request], None] = lambda _: None,
) -> JobScripts:
    """Return the scripts to submit; render them first if the request has options.

    Args:
        asked: the request.
        named: the script named on the command line.
        force: overwrite files that hpctrain did not write.
        dry_run: write nothing.
        say: receives each line for stderr.
        check: raises for a job that must not be submitted, before any of its files are written.

    Raises:
        UsageError: there is no script, a stale one, or more than one candidate.
    """
    if named is not None:
        return _as_it_is(_named(asked, named))
    if asked.to == "-":
        raise UsageError(
            "--to - writes to stdout, so there is nothing to submit",
            fix=suggested(asked, asked.verb, without=["--to"]),
        )
    written = Path(f"{job_of(asked).spec.job_name}.sbatch")
    if asked.is_bare and not written.exists():  # with stages, the file has the first stage's name
        written = scripts_of(asked).scripts[0].path
    if asked.is_bare and written.exists():
        return _as_they_are(written, asked.again)
    if asked.is_bare:
        _refuse_others(written, asked.again)
    elif not force:
        _say_what_is_left_out(written, asked, say)
    made = scripts_of(asked)
    for line in what_runs(made):
        say(line)
    for script in made.scripts:
        script_files.refuse_to_lose(script.path, force=force)
    if not dry_run:
        check(asked)
        for note in script_files.write(made, force=force):
            say(note)
    return JobScripts.of(made)


def _as_it_is(path: Path) -> JobScripts:
    """Return a named script; its sources are only known if they still render to its text."""
    text = batch_script.text(path)
    made = header.read_header(text)
    if made is None or not made.untouched or made.directory != str(Path.cwd()):
        return _own(path, text, made)
    try:
        whole = scripts_of(_request_of(made))
    except UsageError:  # the config was changed and may be invalid now, but the script is not
        return JobScripts((JobScript(path=path, text=text),))
    same = next((script for script in whole.scripts if script.text == text), None)
    one = JobScript(path=path, text=text, made=same)
    return JobScripts((one,), whole if same is not None else None)


def _own(path: Path, text: str, made: header.Made | None) -> JobScripts:
    return JobScripts((JobScript(path=path, text=text, takes_name=made is not None),))


def _request_of(made: header.Made) -> Request:
    return replace(parse_request(made.arguments), standalone=made.standalone)


def _as_they_are(written: Path, again: str) -> JobScripts:
    """Return the rendered scripts, which must still match config.yaml; otherwise only the user can
    tell which of the two is right.

    Raises:
        UsageError: rendering the script again would give a different text.
    """
    text = batch_script.text(written)
    made = header.read_header(text)
    if made is None or not made.untouched or made.directory != str(Path.cwd()):
        return _own(written, text, made)
    asked = _request_of(made)
    whole = scripts_of(asked)
    for script in whole.scripts:
        path = script.path
        if not path.is_file() or _read(path) != script.text:
            # What was redirected from stdout is now written.
            words = words_of(replace(asked, to=None)) if asked.to == "-" else made.arguments
            renew = shell.join((*again.split(), *words)) if words else f"hpctrain render && {again}"
            raise UsageError(
                f"{path} is older than what it was made from: config.yaml, a template, HPCTRAIN_*"
                " or hpctrain itself has changed since",
                fix=renew,
                hint=f"or submit the script as it is: {again} {shell.quote(written)}",
            )
    script_files.write_tables(whole.tables)
    return JobScripts.of(whole)


def _named(asked: Request, named: str) -> Path:
    again = f"{asked.again} {shell.quote(named)}"
    if not asked.is_bare:
        raise UsageError(
            f"{named} is submitted as it is, so options for rendering do not go with it",
            fix=again,
            hint=f"or leave {named} out to render it again",
        )
    if not Path(named).is_file():
        beside = [path.name for path in sorted(Path().glob("*.sbatch"))]
        fix = f"{asked.again} {shell.quote(beside[0])}" if beside else "hpctrain render"
        raise UsageError(
            f"there is no script {named!r}",
            details=(f"this directory has {', '.join(beside)}",) if beside else (),
            fix=fix,
        )
    return Path(named)


def _refuse_others(written: Path, again: str) -> None:
    """Refuse to render a default job next to other rendered scripts: one of them may be intended.

    Raises:
        UsageError: there are such scripts.
    """
    others = [
        path
        for path in sorted(Path().glob("*.sbatch"))
        if header.read_header(_read(path)) is not None
    ]
    if others:
        raise UsageError(
            f"there is no {written} here, but {', '.join(path.name for path in others)}",
            fix=f"{again} {shell.quote(others[0])}",
            hint=f"or render a new {written}: hpctrain render",
        )


def _say_what_is_left_out(written: Path, asked: Request, say: Callable[[str], None]) -> None:
    """Print a note with the options that the script was rendered with if this command omits some of
    them: `render --nodes 4`, `submit -t 5`.

    Raises:
        UsageError: it was rendered with --config, and this command would find no config at all.
    """
    made = header.read_header(_read(written)) if written.is_file() else None
    if made is None or not made.untouched:
        return
    config = parse_request(made.arguments).config
    if config is not None and asked.config is None and not Path("config.yaml").exists():
        raise UsageError(
            f"{written} was rendered with --config {config}, and there is no config.yaml here",
            fix=shell.join((*asked.again.split(), *words_of(replace(asked, config=config)))),
        )
    if not set(made.arguments) <= set(words_of(asked)):
        words = printable(shell.join(made.arguments))
        say(f"note: {written} is rendered again, without its earlier options: {words}")


def _read(path: Path) -> str:
    return stored.read_text(path, errors="surrogateescape")
