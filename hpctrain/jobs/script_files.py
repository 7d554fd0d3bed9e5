"""Write the script and the files that it needs, without overwriting the user's changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpctrain.config.spec import JobSpec
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import header, library
from hpctrain.jobs.scripts import Scripts
from hpctrain.util import builtin, files, shell, stored

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
            for path, text in library.missing(script.text).items()
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
    return {path: builtin.path("multi_gpu.yaml").read_text(encoding="utf-8")}


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
