"""Write the script and the files that it needs, without overwriting the user's changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpctrain.config.spec import JobSpec, short_digest
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import header
from hpctrain.jobs.scripts import Scripts
from hpctrain.util import files, installed, shell, stored

#: Directories that rendering creates in a project.
_DIRECTORIES = ("logs", header.LIBRARY_DIRECTORY)


def write(made: Scripts, *, force: bool) -> list[str]:
    """Write the scripts, the log directory and the files that the scripts read; return notes for
    the user.

    The log directory has to exist before submission: without it, Slurm before 23.02 ends the job
    without a log.

    Raises:
        UsageError: a file was not written by hpctrain, and `force` is not given.
        HpctrainError: a file cannot be written.
    """
    wanted = {script.path: script.text for script in made.scripts}
    for path in wanted:
        refuse_to_lose(path, force=force)
    configs = {
        path: text
        for script in made.scripts
        for path, text in _accelerate_config(script.spec).items()
    }
    specs = {script.spec.chdir: script.spec for script in made.scripts}
    directories = [Path(chdir) / name for chdir in specs for name in _DIRECTORIES]
    had = {path for path in directories if path.exists()}
    try:
        notes = [note for spec in specs.values() for note in _log_directory(spec)]
        write_tables(made.tables)
        libraries = {
            path: text
            for script in made.scripts
            for path, text in missing_library(script.text).items()
        }
        write_whole(wanted | configs | libraries)
    except OSError as error:
        for path in directories:
            if path not in had and path.is_dir() and not any(path.iterdir()):
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


def _accelerate_config(spec: JobSpec) -> dict[Path, str]:
    """Return the accelerate config that the script needs, if it is missing."""
    path = Path(spec.chdir) / spec.accelerate_config
    if (
        spec.launcher != "accelerate"
        or spec.sharding != "ddp"
        or not path.parent.is_dir()
        or path.exists()
    ):
        return {}
    return {path: installed.path("multi_gpu.yaml").read_text(encoding="utf-8")}


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


def write_file(path: Path, text: str, *, fix: str) -> None:
    """Write one file, as `write_whole` does.

    Raises:
        HpctrainError: it cannot be written; `fix` is the command to suggest.
    """
    try:
        write_whole({path: text})
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise HpctrainError(f"cannot write {path}: {reason}", fix=fix) from error


def refuse_to_lose(path: Path, *, force: bool) -> None:
    """Refuse to overwrite an edited file or one that hpctrain did not write.

    Raises:
        UsageError: the file is one of these, and `force` is not given.
    """
    if force and not path.is_dir():
        return
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="name another file with --to")
    try:
        text = stored.read_text(path, errors="surrogateescape")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="name another file with --to"
        ) from error
    made = header.read_header(text)
    if made is None:
        raise UsageError(
            f"{path} exists, and hpctrain did not write it",
            hint=f"name another file with --to, or replace {path} with --force",
        )
    if not made.untouched:
        raise UsageError(
            f"{path} was edited after hpctrain wrote it",
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
    if found is None:
        return None
    try:
        words = shell.split(found["path"])
    except ValueError:
        return None
    return Path(words[0]) if len(words) == 1 else None


def ensure_library(script: str, copies: Iterable[Path] = ()) -> None:
    """Write the library that a script sources, as `missing_library` returns it.

    Raises:
        UsageError: as `missing_library`.
        OSError: the library cannot be written, or the project's own functions cannot be read.
    """
    for path, text in missing_library(script, copies).items():
        files.write_text(path, text)


def missing_library(script: str, copies: Iterable[Path] = ()) -> dict[Path, str]:
    """Return the path and text of the library that a script sources, if it is missing and the
    project exists here; create its directory.

    Args:
        script: the text of the script.
        copies: directories that may contain the library of an older hpctrain.

    Raises:
        UsageError: the library was edited, or it is missing and belongs to another hpctrain
            version.
        OSError: its directory cannot be created, or the project's own functions cannot be read.
    """
    path = library_path(script)
    if path is None or not path.parent.parent.is_dir():
        return {}
    if path.exists():
        if not _is_whole(path):
            raise UsageError(
                f"{path} was edited, and queued jobs rely on what hpctrain wrote",
                fix=f"mv {shell.quote(path)} {shell.quote(path)}.edited",
            )
        return {}
    own = Path("templates") / header.LIBRARY
    text = stored.read_text(own) if own.is_file() else installed.templates()[header.LIBRARY]
    if not path.stem.endswith(short_digest(text)):
        kept = next((each / path.name for each in copies if _is_whole(each / path.name)), None)
        if kept is None:
            raise UsageError(
                f"the script needs {path}, which is missing and of another version of hpctrain",
                fix="hpctrain render",
            )
        text = stored.read_text(kept)
    path.parent.mkdir(exist_ok=True)
    return {path: text}


def _is_whole(path: Path) -> bool:
    """Whether the content of the file matches the digest in its name."""
    try:
        return path.stem.endswith(short_digest(stored.read_text(path)))
    except (OSError, UnicodeDecodeError):
        return False
