"""Writing the script, and what it needs beside it, without losing anything that a person wrote."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from hpctrain import data
from hpctrain.cli.job_scripts import Scripts, paths_of
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import render, shell
from hpctrain.jobs.spec import JobSpec


def write(made: Scripts, *, force: bool) -> list[str]:
    """Write the scripts, the log directory and what the scripts read; return notes for the user.

    The log directory has to be there before submission: Slurm before 23.02 ends a job without one, and without a log.

    Raises:
        UsageError: a file holds something that hpctrain did not write, and `force` is not given.
        HpctrainError: the file system refuses.
    """
    paths = paths_of(made.scripts)
    for path in paths:
        refuse_to_lose(path, force=force)
    wanted = {path: script.text for path, script in zip(paths, made.scripts, strict=True)}
    configs = {path: text for script in made.scripts for path, text in _accelerate_config(script.spec).items()}
    specs = {script.spec.chdir: script.spec for script in made.scripts}
    had_logs = {chdir for chdir in specs if (Path(chdir) / "logs").exists()}
    try:
        notes = [note for spec in specs.values() for note in _log_directory(spec)]
        write_tables(made.tables)
        write_whole(wanted | configs)
    except OSError as error:
        for logs in (Path(chdir) / "logs" for chdir in specs if chdir not in had_logs):
            if logs.is_dir():
                logs.rmdir()
        parent = paths[0].parent
        fix = f"df -h {shell.quote(parent)}, or: hpctrain render --to FILE" if parent.is_dir() else f"mkdir -p {shell.quote(parent)}"
        raise HpctrainError(f"cannot write {paths[0]}: {error.strerror}", fix=fix) from error
    return notes + [f"wrote {path.name}, the accelerate config of the script" for path in configs]


def write_tables(tables: Mapping[Path, str]) -> None:
    """Write the points of a sweep where its tasks look for them; a table's name says what is in it, so that one that is there is right.

    Raises:
        OSError: the file system refuses.
    """
    for path, text in tables.items():
        if not path.exists() and path.parents[2].is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole({path: text})


def _accelerate_config(spec: JobSpec) -> dict[Path, str]:
    """Return the accelerate config that the script needs beside it, where there is none."""
    path = Path(spec.chdir) / spec.accelerate_config
    if spec.launcher != "accelerate" or spec.sharding != "ddp" or not path.parent.is_dir() or path.exists():
        return {}
    return {path: data.path("multi_gpu.yaml").read_text(encoding="utf-8")}


def write_whole(wanted: Mapping[Path, str]) -> None:
    """Write each text to its path, all or nothing: a reader, or a full disk, never leaves half a file, or half of the files.

    Raises:
        OSError: the file system refuses; nothing has changed then.
    """
    wanted = {path.resolve() if path.is_symlink() else path: text for path, text in wanted.items()}  # behind a link, not in its place
    # Host names and process ids repeat among the machines that share a file system; this name does not.
    temporaries = {path: path.with_name(f".{path.name}.{uuid.uuid4().hex}") for path in wanted}
    try:
        for path, temporary in temporaries.items():
            with temporary.open("x", encoding="utf-8", errors="surrogateescape") as stream:
                stream.write(wanted[path])
                stream.flush()
                os.fsync(stream.fileno())
        for path, temporary in temporaries.items():
            temporary.replace(path)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)


def refuse_to_lose(path: Path, *, force: bool) -> None:
    """Refuse to replace what hpctrain did not write, or what somebody has edited.

    Raises:
        UsageError: the file is such a one, and `force` is not given.
    """
    if force and not path.is_dir():
        return
    if path.is_dir():
        raise UsageError(f"{path} is a directory", fix="hpctrain render --to FILE")
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="hpctrain render --to FILE") from error
    made = render.read_header(text)
    if made is None:
        raise UsageError(
            f"{path} exists, and hpctrain did not write it",
            fix=f"hpctrain render --to OTHER_FILE, or --force to replace {path}",
        )
    if not made.untouched:
        raise UsageError(
            f"{path} was edited after hpctrain wrote it",
            fix=f"hpctrain render --to OTHER_FILE, or --force to replace {path}",
        )


def _log_directory(spec: JobSpec) -> list[str]:
    directory, logs = Path(spec.chdir), Path(spec.chdir) / "logs"
    if not directory.exists():
        return [f"note: {spec.chdir} does not exist on this machine; before sbatch, there: mkdir -p {shell.quote(logs)}"]
    if logs.exists() and not logs.is_dir():
        raise UsageError(
            f"{logs} is a file, and the job writes its logs into a directory of that name",
            fix=f"mv {shell.quote(logs)} {shell.quote(logs)}.old",
        )
    logs.mkdir(exist_ok=True)
    return []
