"""What lies around a job, gathered for the checks: paths and their file systems, quotas, the shell, secrets' modes.

Reads files, the environment and the file systems' counters; starts only the quota programs. Judges nothing: `jobs.check` does.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from hpctrain import installed
from hpctrain.cli import surroundings_files
from hpctrain.clusters.load import is_dir
from hpctrain.clusters.slurm_text import printable
from hpctrain.errors import SchedulerError
from hpctrain.jobs.arguments import Arguments
from hpctrain.jobs.check import secrecy
from hpctrain.jobs.check.surroundings import FileSystem, PathFacts, SecretFacts, Surroundings
from hpctrain.jobs.spec import Container, JobSpec
from hpctrain.scheduler import process

#: Seconds for `quota` and `lfs quota`: a file server that does not answer keeps nobody waiting for long.
QUOTA_TIMEOUT_S = 5.0
_OCTAL = re.compile(r"\\([0-7]{3})")
#: Where quotas are kept by user; local and memory file systems have none that matter.
_QUOTA_KINDS = frozenset({"nfs", "nfs4", "xfs", "ext4", "gpfs", "lustre", "beegfs", "ceph"})


_Part = TypeVar("_Part")


class _Parts:
    """Runs the readers; one that fails leaves its part unknown and a note, so that a bug in it blocks no submission."""

    def __init__(self, not_checked: list[str]) -> None:
        self.not_checked = not_checked

    def of(self, what: str, read: Callable[[], _Part]) -> _Part | None:
        try:
            return read()
        except Exception as error:
            words = printable(" ".join(str(error).split()))[:200]
            self.not_checked.append(f"{what}: {type(error).__name__}: {words}".removesuffix(": "))
            return None


def gather(spec: JobSpec, *, quotas: bool = True, not_checked: list[str] | None = None) -> Surroundings:
    """Return what lies around `spec`; what cannot be read is None.

    Args:
        spec: the job.
        quotas: ask the quota programs about the file system of the output.
        not_checked: gets a line for each part whose reader failed, with the reason.
    """
    parts = _Parts(not_checked if not_checked is not None else [])
    look, arguments = _from(spec.chdir), Arguments(spec)
    chdir = parts.of("the job's directory", lambda: path_facts(spec.chdir, "/"))
    here = chdir is not None and chdir.is_dir
    output = quoted = parts.of("the output directory", lambda: look(arguments.get("output_dir") or "runs"))
    if quotas and output is not None:
        quoted = parts.of("the quota", partial(_with_quota, output)) or output
    python = parts.of("the Python environment", lambda: surroundings_files.python_facts(spec, look))
    return Surroundings(
        machine=os.uname().machine or None,
        user=_user(),
        variables=_variables(),
        leaks=tuple(process.leaks(os.environ)),
        chdir=chdir,
        output=quoted,
        model=parts.of("the model", lambda: surroundings_files.model_facts(spec, arguments, look)) if here else None,
        dataset=parts.of("the dataset", lambda: surroundings_files.dataset_facts(spec, arguments, look)) if here else None,
        script=parts.of("the script", lambda: surroundings_files.script_facts(spec, python, look)) if here else None,
        python=python,
        accelerate=parts.of("the accelerate config", lambda: surroundings_files.accelerate_facts(spec, look)) if here else None,
        image=parts.of("the container image", lambda: _image(spec.container, spec.chdir)),
        binds=parts.of("the container's binds", lambda: tuple(_binds(spec.container, spec.chdir))) or (),
        hooks=(parts.of("the hooks", lambda: tuple(look(hook) for hook in _hooks(spec))) or ()) if here else (),
        secrets=parts.of("the secrets", lambda: tuple(_secrets(spec))) or (),
        measured=(parts.of("the project's runs", lambda: surroundings_files.measured(spec.chdir)) or ()) if here else (),
        requirement=installed.requirement("train"),
        launcher_on_path=shutil.which("python" if spec.launcher == "srun" else spec.launcher),
    )


def path_facts(said: str, base: str) -> PathFacts:
    """Return what is known of a path that counts from `base`."""
    path = Path(base, surroundings_files.expanded(said))
    real = Path(os.path.realpath(path))
    try:
        status = path.stat()
    except (OSError, ValueError):
        status = None
    directory = status is not None and stat.S_ISDIR(status.st_mode)
    parent = next((each for each in (real, *real.parents) if is_dir(each)), Path("/"))
    writable = os.access(path if status is not None else parent, os.W_OK | (os.X_OK if status is None or directory else 0))
    return PathFacts(
        said=said, path=str(path), real=str(real), exists=status is not None, is_dir=directory,
        size=status.st_size if status is not None else None,
        writable=writable,
        readable=os.access(path, os.R_OK) if status is not None else None,
        mode=status.st_mode & 0o7777 if status is not None else None,
        own=status.st_uid == os.getuid() if status is not None else None,
        parent=str(parent), filesystem=file_system(parent),
    )  # fmt: skip


def _from(base: str) -> surroundings_files.Look:
    return lambda said: path_facts(said, base)


def file_system(path: Path) -> FileSystem | None:
    """Return the file system under an existing path, and what statvfs says is free; None where that cannot be read."""
    try:
        counted = os.statvfs(path)
    except OSError:
        return None
    mount, kind = max(
        ((mount, kind) for mount, kind in _mounts() if path == mount or mount in path.parents),
        key=lambda each: len(each[0].parts), default=(Path("/"), "unknown"),
    )  # fmt: skip
    # Some file systems do not count their files, and say 0 of 0.
    free_files = counted.f_favail if counted.f_files else None
    return FileSystem(mount=str(mount), kind=kind, free=counted.f_bavail * counted.f_frsize, free_files=free_files)


@cache
def _mounts() -> tuple[tuple[Path, str], ...]:
    """Return mount point and type of every file system, the last mounted last; nothing where the system has no /proc."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        fields, _, rest = line.partition(" - ")
        mount = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields.split()[4])
        found.append((Path(mount), rest.split()[0]))
    return tuple(found)


def _with_quota(where: PathFacts) -> PathFacts:
    """Return `where` with the user's quota, where it leaves less than the file system does."""
    system = where.filesystem
    if system is None or system.kind not in _QUOTA_KINDS:
        return where
    found = _quota(system)
    if found is None:
        return where
    said, free, free_files = found
    tighter = free is not None and (system.free is None or free < system.free)
    return replace(
        where,
        filesystem=replace(
            system,
            free=free if tighter else system.free,
            free_files=free_files if free_files is not None else system.free_files,
            limit=said if tighter or free_files is not None else system.limit,
        ),
    )


def _quota(system: FileSystem) -> tuple[str, int | None, int | None] | None:
    """Return the command that was asked, and the bytes and files that the quota leaves; None where there is none."""
    user = _user()
    by_lfs = system.kind == "lustre" and shutil.which("lfs") is not None and user is not None
    if not by_lfs and shutil.which("quota") is None:
        return None
    from hpctrain.doctor import quota_text

    argv = ["lfs", "quota", "-q", "-u", user or "", system.mount] if by_lfs else ["quota", "-wp"]
    parse = quota_text.parse_lfs_quota if by_lfs else quota_text.parse_quota
    try:
        said = process.run(argv, timeout=QUOTA_TIMEOUT_S).stdout
    except SchedulerError:
        return None
    device = _device(system.mount)
    for quota in parse(said):
        if quota.file_system in (system.mount, device):
            free = max(0, quota.limit - quota.used) if quota.limit is not None else None
            files = max(0, quota.files_limit - quota.files) if quota.files_limit is not None and quota.files is not None else None
            return "lfs quota" if by_lfs else "quota", free, files
    return None


def _device(mount: str) -> str | None:
    """Return what is mounted there, as `quota` calls it: /dev/sda1, server:/export."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    return next((line.split()[0] for line in reversed(lines) if line.split()[1] == mount), None)


def _user() -> str | None:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None


def _variables() -> dict[str, str]:
    """Return the variables that storage paths are made of, the word on the CPU, and that there is a proxy (its address may be secret)."""
    paths = {name: value for name, value in os.environ.items() if value.startswith("/") and ":" not in value}
    paths |= {name: os.environ[name] for name in ("ACCELERATE_USE_CPU",) if name in os.environ}
    return paths | {name: "set" for name in os.environ if name.lower() in ("http_proxy", "https_proxy")}


def _image(container: Container | None, base: str) -> PathFacts | None:
    if container is None or "://" in container.image:
        return None
    looks_like_a_file = container.image.startswith(("/", "./", "../", "~")) or container.image.endswith((".sif", ".img", ".sqsh", ".toml"))
    if container.engine in ("pyxis", "ce") and not looks_like_a_file:
        return None  # a name in a registry, or of an environment file that the site knows
    return path_facts(container.image, base)


def _binds(container: Container | None, base: str) -> Iterator[PathFacts]:
    for bind in container.binds if container is not None else ():
        host = bind.partition(":")[0]
        if "$" not in host:
            yield path_facts(host, base)


def _hooks(spec: JobSpec) -> tuple[str, ...]:
    """Return the files of the user that the job script reads or runs, apart from the training."""
    program = spec.notify.command if spec.notify is not None else None
    return (*spec.before, *spec.after, *([program] if program is not None and "/" in program else []))


def _secrets(spec: JobSpec) -> Iterator[SecretFacts]:
    if spec.notify is not None and spec.notify.webhook is not None:
        webhook = None if spec.notify.webhook == "environment" else path_facts(spec.notify.webhook, spec.chdir)
        yield SecretFacts(name=secrecy.WEBHOOK, file=webhook, in_shell=bool(os.environ.get(secrecy.WEBHOOK)))
    for secret in spec.secrets:
        file = path_facts(secret.file, spec.chdir) if secret.file is not None else None
        yield SecretFacts(name=secret.name, file=file, in_shell=bool(os.environ.get(secret.name)))
