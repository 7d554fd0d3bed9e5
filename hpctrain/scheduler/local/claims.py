"""Which local job holds which GPU of this machine: claims that need no lock.

A claim is a symbolic link `local/.gpus/HOST/GPU.GENERATION` whose target is its owner, made in one step that fails where it exists, on
NFS too. The highest generation counts. Nobody removes that one: a GPU is given back by a generation without an owner, and a dead
owner's GPU is taken by making the next, which only one can.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import psutil

from hpctrain.scheduler.local import job_directory
from hpctrain.scheduler.local.job_directory import JobDirectory

_NOBODY = "nobody"
_GENERATION = re.compile(r"(.+)\.([0-9]+)\Z")


def present() -> list[str]:
    """Return the NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [item.strip() for item in visible.split(",") if item.strip() not in ("", "-1")]
    found = (match[1] for entry in Path("/dev").glob("nvidia*") if (match := re.fullmatch(r"nvidia(\d+)", entry.name)))
    return sorted(found, key=int)


def held(among: Sequence[str]) -> dict[str, str]:
    """Return GPU to owner, of those that a living job holds."""
    return {gpu: owner for gpu in among if (owner := _owner(gpu)) is not None}


def take(job: JobDirectory, count: int, among: Sequence[str]) -> tuple[str, ...] | None:
    """Return `count` GPUs that are now the job's, or None where fewer are free; those that it has already count.

    The job must be known to be alive by others: its job.json and its holder are written before.
    """
    owner = _name(job)
    mine = [gpu for gpu in among if _owner(gpu) == owner][:count]
    for gpu in among:
        if len(mine) == count:
            break
        if gpu not in mine and _claim(gpu, owner):
            mine.append(gpu)
    if len(mine) == count:
        return tuple(gpu for gpu in among if gpu in mine)
    release(job, mine)
    return None


def release(job: JobDirectory, gpus: Sequence[str]) -> None:
    """Give back those of `gpus` that are the job's."""
    for gpu in gpus:
        generation, owner = _newest(gpu)
        if owner == _name(job):
            _make(gpu, generation + 1, _NOBODY)


def _claim(gpu: str, owner: str) -> bool:
    generation, known = _newest(gpu)
    if _lives(known) or not _make(gpu, generation + 1, owner):
        return False
    # Another may have seen older links, and made a generation that was long past.
    newest, really = _newest(gpu)
    if (newest, really) == (generation + 1, owner):
        _forget_older(gpu, newest)
        return True
    _link(gpu, generation + 1).unlink(missing_ok=True)
    return False


def _owner(gpu: str) -> str | None:
    owner = _newest(gpu)[1]
    return owner if _lives(owner) else None


def _lives(owner: str) -> bool:
    if owner == _NOBODY:
        return False
    job = JobDirectory(job_directory.root() / owner)
    return job.path.is_dir() and not job.record().is_final


def _newest(gpu: str) -> tuple[int, str]:
    """Return the generation that counts, and its owner; 0 and nobody where there was none."""
    name = quote(gpu, safe="")
    generations = [int(match[2]) for entry in job_directory.names(_directory()) if (match := _GENERATION.match(entry)) and match[1] == name]
    for generation in sorted(generations, reverse=True):
        try:
            return generation, str(_link(gpu, generation).readlink())
        except OSError:
            continue
    return 0, _NOBODY


def _make(gpu: str, generation: int, owner: str) -> bool:
    try:
        _link(gpu, generation).symlink_to(owner)
    except FileExistsError:
        return False
    return True


def _forget_older(gpu: str, newest: int) -> None:
    name = quote(gpu, safe="")
    for entry in job_directory.names(_directory()):
        match = _GENERATION.match(entry)
        if match and match[1] == name and int(match[2]) < newest:
            (_directory() / entry).unlink(missing_ok=True)


def _link(gpu: str, generation: int) -> Path:
    return _directory() / f"{quote(gpu, safe='')}.{generation}"


def _name(job: JobDirectory) -> str:
    return str(job.path.relative_to(job_directory.root()))


def _directory() -> Path:
    directory = job_directory.root() / ".gpus" / quote(socket.gethostname(), safe="")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def cores() -> int:
    """Return the cores that this process may use."""
    return len(psutil.Process().cpu_affinity() or [0]) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1
