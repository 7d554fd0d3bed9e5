"""Probes of folders: what file system they are on, how large they are, what is free, and what the quota programs say."""

from __future__ import annotations

import getpass
import os
import shutil
import time
from pathlib import Path

from hpctrain.doctor import start
from hpctrain.doctor.facts import Case, FolderFacts, Quota, QuotaFacts
from hpctrain.doctor.quota_text import parse_lfs_quota, parse_quota
from hpctrain.errors import SchedulerError
from hpctrain.jobs.arguments import Arguments

LIMIT_S = 30.0
#: A walk over a cache of a million files on a parallel file system takes minutes; what it has seen by then is a lower bound.
WALK_S = 3.0
#: Caches: name, the variables that move it (the strongest first, with what is appended), and where it is without them.
_CACHES: tuple[tuple[str, tuple[tuple[str, str], ...], str], ...] = (
    ("Hugging Face", (("HF_HOME", ""), ("XDG_CACHE_HOME", "huggingface")), "~/.cache/huggingface"),
    ("torch hub", (("TORCH_HOME", ""), ("XDG_CACHE_HOME", "torch")), "~/.cache/torch"),
    ("Triton", (("TRITON_CACHE_DIR", ""), ("TRITON_HOME", ".triton")), "~/.triton"),
    ("pip", (("PIP_CACHE_DIR", ""), ("XDG_CACHE_HOME", "pip")), "~/.cache/pip"),
    ("temporary files", (("TMPDIR", ""),), "/tmp"),  # noqa: S108 - a place to look at
)


def inputs(case: Case) -> tuple[FolderFacts, ...]:
    """Return model and dataset, where the job's arguments name folders."""
    found = []
    arguments = Arguments(case.spec)
    for name, option in (("model", "model_name_or_path"), ("dataset", "dataset_name")):
        value = arguments.get(option)
        if value:
            found.append(folder(name, Path(case.spec.chdir) / value, set_by=f"--{option}"))
    return tuple(found)


def caches(case: Case) -> tuple[FolderFacts, ...]:
    """Return the caches of the libraries, with what the job's own `env:` says of them."""
    variables = {**os.environ, **dict(case.spec.env)}
    found = []
    for name, ways, default in _CACHES:
        path, set_by = Path(default).expanduser(), None
        for variable, below in ways:
            if variables.get(variable):
                path, set_by = Path(variables[variable]).expanduser() / below, variable
                break
        # What others keep in /tmp says nothing; what is free there does.
        found.append(folder(name, path, set_by=set_by, walk=name != "temporary files"))
    return tuple(found)


def quotas(case: Case) -> QuotaFacts:
    """Return what `quota` and `lfs quota` say of this user, and what is free where the job writes."""
    places = {"the job's directory": Path(case.spec.chdir), "home": Path.home()}
    folders = tuple(folder(name, path, walk=False) for name, path in places.items())
    asked: list[str] = []
    silent: list[str] = []
    found: list[Quota] = []
    if shutil.which("quota"):
        asked.append("quota")
        found += _ask(["quota", "-wp"], parse_quota, silent)
    if shutil.which("lfs"):
        asked.append("lfs quota")
        for place in folders:
            if place.file_system == "lustre":
                found += _ask(["lfs", "quota", "-q", "-u", getpass.getuser(), place.path], parse_lfs_quota, silent)
    return QuotaFacts(asked=tuple(asked), quotas=tuple(dict.fromkeys(found)), silent=tuple(silent), folders=folders)


def folder(name: str, path: Path, *, set_by: str | None = None, walk: bool = True) -> FolderFacts:
    """Return what is known about one folder; what is free is said of the nearest folder above it that exists."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    status = os.statvfs(there)
    size, files, whole = _walk(path) if walk and path.is_dir() else (None, None, True)
    return FolderFacts(
        name=name,
        path=str(path),
        exists=path.exists(),
        set_by=set_by,
        file_system=file_system(str(there)),
        size=size,
        files=files,
        whole=whole,
        free=status.f_bavail * status.f_frsize,
        free_inodes=status.f_favail if status.f_files else None,
        inodes=status.f_files or None,
        writable=os.access(there, os.W_OK),
    )


def file_system(path: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the type of the file system that holds `path`, such as `lustre`; None where /proc does not say."""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        real = os.path.realpath(path)
    except OSError:
        return None
    best, kind = "", None
    for line in lines:
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = fields[4].replace("\\040", " ")
        # A later line of the same place hides the earlier one.
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, right.split(" ")[0]
    return kind


def _walk(top: Path) -> tuple[int, int, bool]:
    """Return bytes on disk, number of files, and whether the walk came to its end within `WALK_S`."""
    end = time.monotonic() + WALK_S
    size, files = 0, 0
    waiting = [str(top)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    files += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if time.monotonic() > end:
                        return size, files, False
        except OSError:  # a folder of somebody else's, or one that has just gone
            continue
    return size, files, True


def _ask(argv: list[str], parse: object, silent: list[str]) -> list[Quota]:
    try:
        done = start.run(argv, timeout=10)
    except (start.TooLateError, SchedulerError) as error:
        silent.append(error.what)
        return []
    # `quota` ends with 1 where a limit is exceeded: its text counts.
    return list(parse(done.stdout))  # type: ignore[operator]
