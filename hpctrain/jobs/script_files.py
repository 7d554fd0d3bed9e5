"""The script files of a project: which of them `hpctrain submit` submits, and writing them and what
they need, without overwriting the user's changes.

Nothing is guessed: if two scripts are possible, the error names the command for each.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpctrain.config.spec import JobSpec, short_digest
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import header
from hpctrain.jobs.request import Request, job_of, parse_request, suggested, words_of
from hpctrain.jobs.scripts import Script, Scripts, scripts_of, what_runs
from hpctrain.slurm import batch_script
from hpctrain.util import files, installed, shell, stored
from hpctrain.util.text import printable


def chosen(
    asked: Request,
    named: str | None,
    *,
    force: bool,
    dry_run: bool,
    say: Callable[[str], None],
    check: Callable[[Request], None] = lambda _: None,
) -> Scripts:
    """Return the scripts to submit: a named one, the rendered ones unchanged, or newly rendered ones
    if the request has options.

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
        return _named(asked, named)
    if asked.to == "-":
        raise UsageError(
            "--to - writes to stdout, so there is nothing to submit",
            fix=suggested(asked, asked.verb, without=["--to"]),
        )
    written = Path(f"{job_of(asked).spec.job_name}.sbatch")
    if asked.is_bare and not written.exists():  # with stages, the file has the first stage's name
        written = scripts_of(asked).scripts[0].path
    if asked.is_bare and written.exists():
        return _existing(written, asked.again, is_named=False)
    if asked.is_bare:
        others = [
            path
            for path in sorted(Path().glob("*.sbatch"))
            if header.read_header(_read(path)) is not None
        ]
        if others:  # one of them may be meant
            raise UsageError(
                f"there is no {written} here, but {', '.join(path.name for path in others)}",
                fix=f"{asked.again} {shell.quote(others[0])}",
                hint=f"or render a new {written}: hpctrain render",
            )
    elif not force and written.is_file():
        _say_what_is_left_out(written, asked, say)
    made = scripts_of(asked)
    for line in what_runs(made):
        say(line)
    for script in made.scripts:
        _refuse_to_lose(script.path, force=force)
    if not dry_run:
        check(asked)
        for note in write(made, force=force):
            say(note)
    return made


def _named(asked: Request, named: str) -> Scripts:
    if not asked.is_bare:
        raise UsageError(
            f"{named} is submitted as it is, so options for rendering do not go with it",
            fix=f"{asked.again} {shell.quote(named)}",
            hint=f"or leave {named} out to render it again",
        )
    if not Path(named).is_file():
        raise UsageError(f"there is no script {named!r}", fix="ls *.sbatch")
    return _existing(Path(named), asked.again, is_named=True)


def _existing(path: Path, again: str, *, is_named: bool) -> Scripts:
    """Return the script in a file, with its sources if they still render to its text; unless it was
    named, they must: otherwise only the user can tell which of the two is right.

    Raises:
        UsageError: rendering the script again would give a different text.
    """
    text = batch_script.text(path)
    made = header.read_header(text)
    script = Script(path, text, takes_name=made is not None)
    if made is None or not made.untouched or made.directory != str(Path.cwd()):
        return Scripts((script,))
    asked = replace(parse_request(made.arguments), standalone=made.standalone)
    try:
        whole = scripts_of(asked)
    except UsageError:
        if is_named:  # the config was changed and may be invalid now, but the script is not
            return Scripts((script,))
        raise
    if is_named:
        same = [replace(one, path=path) for one in whole.scripts if one.text == text]
        return replace(whole, scripts=tuple(same[:1])) if same else Scripts((script,))
    for one in whole.scripts:
        if not one.is_written():
            # What was redirected from stdout is now written.
            words = words_of(replace(asked, to=None)) if asked.to == "-" else made.arguments
            renew = shell.join((*again.split(), *words)) if words else f"hpctrain render && {again}"
            raise UsageError(
                f"{one.path} is older than what it was made from: config.yaml, a template,"
                " HPCTRAIN_* or hpctrain itself has changed since",
                fix=renew,
                hint=f"or submit the script as it is: {again} {shell.quote(path)}",
            )
    write_tables(whole.tables)
    return whole


def _say_what_is_left_out(written: Path, asked: Request, say: Callable[[str], None]) -> None:
    """Print a note with the options that the script was rendered with if this command omits some of
    them: `render --nodes 4`, `submit -t 5`.

    Raises:
        UsageError: it was rendered with --config, and this command would find no config at all.
    """
    made = header.read_header(_read(written))
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
        say(f"note: {written} is rendered again; its options were: {words}")


def _read(path: Path) -> str:
    return stored.read_text(path, errors="surrogateescape")


# -- writing ---------------------------------------------------------------------------------------


def write(made: Scripts, *, force: bool) -> list[str]:
    """Write the scripts, the log directory and the files that the scripts read; return notes for
    the user.

    The log directory has to exist before submission: without it, Slurm before 23.02 ends the job
    without a log.

    Raises:
        UsageError: a file was not written by hpctrain, and `force` is not given.
        HpctrainError: a file cannot be written.
    """
    wanted, configs = {script.path: script.text for script in made.scripts}, {}
    for path in wanted:
        _refuse_to_lose(path, force=force)
    directories = [
        Path(script.spec.chdir, name)
        for script in made.scripts
        for name in ("logs", header.LIBRARY_DIRECTORY)
    ]
    created = [path for path in directories if not path.exists()]
    notes: list[str] = []
    try:
        for spec in (script.spec for script in made.scripts):
            notes += [note for note in _log_directory(spec) if note not in notes]
            config = Path(spec.chdir, "multi_gpu.yaml")
            reads_it = spec.launcher == "accelerate" and spec.sharding == "ddp"
            is_missing = config.parent.is_dir() and not config.exists()
            if reads_it and is_missing and spec.accelerate_config == config.name:
                configs[config] = installed.path(config.name).read_text(encoding="utf-8")
        write_tables(made.tables)
        for script in made.scripts:
            ensure_library(script.text)
        write_whole(wanted | configs)
    except OSError as error:
        for path in created:
            if path.name == header.LIBRARY_DIRECTORY:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        first = made.scripts[0].path
        fix = f"{'df -h' if first.parent.is_dir() else 'mkdir -p'} {shell.quote(first.parent)}"
        raise HpctrainError(f"cannot write {first}: {error.strerror}", fix=fix) from error
    return notes + [f"wrote {path.name} (accelerate config)" for path in configs]


def write_tables(tables: Mapping[Path, str]) -> None:
    """Write the points of a sweep to the path that its tasks read. A table's name contains its
    digest, so an existing one is up to date.

    Raises:
        OSError: a file cannot be written.
    """
    for path, text in tables.items():
        if not path.exists() and path.parents[2].is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole({path: text})


def write_whole(wanted: Mapping[Path, str]) -> None:
    """Write each text to its path, or to the target of the symlink there, all or nothing.

    Raises:
        OSError: a file cannot be written; nothing has changed.
    """
    files.write_all(
        {
            path.resolve() if path.is_symlink() else path: text.encode("utf-8", "surrogateescape")
            for path, text in wanted.items()
        }
    )


def write_file(path: Path, text: str) -> None:
    """Write one file, as `write_whole` does.

    Raises:
        HpctrainError: it cannot be written.
    """
    try:
        write_whole({path: text})
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        command = "ls -ld" if path.parent.exists() else "mkdir -p"
        raise HpctrainError(
            f"cannot write {path}: {reason}", fix=f"{command} {shell.quote(path.parent)}"
        ) from error


def _refuse_to_lose(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="name another file with --to")
    if force or not path.exists():
        return
    try:
        made = header.read_header(_read(path))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="name another file with --to"
        ) from error
    if made is None or not made.untouched:
        why = "exists, and hpctrain did not write it"
        raise UsageError(
            f"{path} {why if made is None else 'was edited after hpctrain wrote it'}",
            hint=f"name another file with --to, or replace {path} with --force",
        )


def _log_directory(spec: JobSpec) -> list[str]:
    directory, logs = Path(spec.chdir), Path(spec.chdir) / "logs"
    if not directory.exists():
        return [
            f"note: {spec.chdir} does not exist on this machine; before sbatch, there: mkdir -p"
            f" {shell.quote(logs)}"
        ]
    if logs.exists() and not logs.is_dir():
        raise UsageError(
            f"{logs} is a file, and the job writes its logs into a directory of that name",
            fix=f"mv {shell.quote(logs)} {shell.quote(logs)}.old",
        )
    logs.mkdir(exist_ok=True)
    return []


# -- the shell library -----------------------------------------------------------------------------

# Job scripts source `.hpctrain/job-VERSION-DIGEST.sh` in the job's working directory. The name
# contains the digest of the content, and an existing file is never rewritten: queued jobs source it
# when they start.

#: The line of a script that sources its library.
_SOURCED = re.compile(
    r"^source (?P<path>.*/\.hpctrain/job-[\w.+-]+-[0-9a-f]{12}\.sh'?) \|\| ", re.MULTILINE
)


def library_path(script: str) -> Path | None:
    """Return the path of the library that a script sources; None if it sources none."""
    found = _SOURCED.search(script)
    try:
        words = shell.split(found["path"]) if found is not None else []
    except ValueError:
        return None
    return Path(words[0]) if len(words) == 1 else None


def ensure_library(script: str) -> None:
    """Write the library that a script (its text) sources, if it is missing and the project exists
    here.

    Raises:
        UsageError: the library was edited, or it is missing and belongs to another hpctrain
            version.
        OSError: the library cannot be written, or the project's own functions cannot be read.
    """
    path = library_path(script)
    if path is None or not path.parent.parent.is_dir():
        return
    if path.exists():
        with suppress(OSError, UnicodeDecodeError):
            if path.stem.endswith(short_digest(stored.read_text(path))):
                return
        raise UsageError(
            f"{path} was edited, and queued jobs rely on what hpctrain wrote",
            fix=f"mv {shell.quote(path)} {shell.quote(path)}.edited",
        )
    own = Path("templates") / header.LIBRARY
    text = stored.read_text(own) if own.is_file() else installed.templates()[header.LIBRARY]
    if not path.stem.endswith(short_digest(text)):
        raise UsageError(
            f"the script needs {path}, which is missing and of another version of hpctrain",
            fix="hpctrain render",
        )
    path.parent.mkdir(exist_ok=True)
    files.write_text(path, text)
