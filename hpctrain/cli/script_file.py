"""Writing the script, and what it needs beside it, without losing anything that a person wrote."""

from __future__ import annotations

import os
from pathlib import Path

from hpctrain import data
from hpctrain.cli.job_options import Script
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import render, shell
from hpctrain.jobs.spec import JobSpec


def write(script: Script, *, force: bool) -> list[str]:
    """Write `script`, the log directory and the accelerate config; return notes for the user.

    The log directory has to be there before submission: Slurm before 23.02 ends a job without one, and without a log.

    Raises:
        UsageError: the file holds something that hpctrain did not write, and `force` is not given.
        HpctrainError: the file system refuses.
    """
    if script.path is None:
        raise ValueError("a script for stdout is not written")
    if not force:
        _refuse_to_lose(script.path)
    try:
        notes = _surroundings(script.spec)
        write_whole(script.path, script.text)
    except OSError as error:
        raise HpctrainError(
            f"cannot write {error.filename or script.path}: {error.strerror}",
            fix=f"df -h {shell.quote(script.path.parent)}, or: hpctrain render --to FILE",
        ) from error
    return notes


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` at once: a reader, or a full disk, never leaves half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _refuse_to_lose(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a directory", fix="hpctrain render --to FILE")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
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


def _surroundings(spec: JobSpec) -> list[str]:
    directory = Path(spec.chdir)
    if not directory.is_dir():
        return [f"note: {spec.chdir} does not exist on this machine; before sbatch, there: mkdir -p {shell.quote(spec.chdir + '/logs')}"]
    (directory / "logs").mkdir(exist_ok=True)
    accelerate = directory / spec.accelerate_config
    if spec.launcher == "accelerate" and not accelerate.exists():
        write_whole(accelerate, data.path("multi_gpu.yaml").read_text(encoding="utf-8"))
        return [f"wrote {spec.accelerate_config}, the accelerate config of the script"]
    return []
