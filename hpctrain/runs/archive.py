"""Runs and checkpoints as one file, to take to another machine: a tar archive of plain files.

Its first member, HEAD, says what is inside (names and sizes), so that an import can refuse before it unpacks; its last one, DIGESTS, has
the SHA-256 of all that came between, so that one pass over the data is enough. See runs/unpack.py for the way back.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import checkpoints, manifest, tar_stream
from hpctrain.runs.layout import CHECKPOINT_MANIFEST

SCHEMA = 1
HEAD, DIGESTS = "hpctrain-archive.json", "hpctrain-digests.json"
COMPRESSED = (".gz", ".tgz")
CODE = "code"
#: What `files.write_text` leaves when it is killed, and the names of what is on its way in or out.
_UNFINISHED = re.compile(r"\..*\.[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote.

    Attributes:
        path: the archive.
        runs: the ids of the runs in it.
        files: how many files.
        bytes: their size.
        left_out: names that are not in it, and why.
    """

    path: Path
    runs: tuple[str, ...]
    files: int
    bytes: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    path: Path
    status: os.stat_result
    sha256: str | None = None


@dataclass(slots=True)
class _Plan:
    files: list[_File] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def export_runs(
    runs: Sequence[Path],
    out: Path,
    *,
    code: bool = True,
    incomplete: bool = False,
    replace: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Exported:
    """Write runs, whole, into one archive.

    Args:
        runs: directories of runs.
        out: the archive; compressed where it ends in .gz or .tgz.
        code: take the snapshot of the code along.
        incomplete: take checkpoints along as they are, complete or not.
        replace: `out` may exist.
        progress: told the number of bytes read since its last call.

    Raises:
        UsageError: `out` exists, is no plain file or lies in one of the runs, or its directory does not exist.
        HpctrainError: a checkpoint is not complete, or a file of one is not what was saved.
        OSError: the disk is full, or refuses; there is no `out` then, or the old one.
    """
    target = _target(out, runs, replace=replace)
    plan = _Plan()
    try:
        for run in runs:
            _add_run(plan, run, code=code)
    except FileNotFoundError as error:
        raise tar_stream.went_away(error) from error
    if plan.damaged and not incomplete:
        raise HpctrainError(
            "1 checkpoint is not complete" if len(plan.damaged) == 1 else f"{len(plan.damaged)} checkpoints are not complete",
            details=tuple(f"  {one}" for one in plan.damaged),
            fix="the same command with --incomplete, or first: hpctrain checkpoints drop --damaged " + shlex.join(run.name for run in runs),
        )
    if incomplete:
        plan.files = [_File(file.name, file.path, file.status) for file in plan.files]
    return _write(out, target, "runs", [run.name for run in runs], plan, progress=progress)


def export_checkpoint(
    run: Path, folder: Path, out: Path, *, replace: bool = False, progress: Callable[[int], None] | None = None
) -> Exported:
    """Write one checkpoint, or the final weights, into an archive; the arguments and errors are those of `export_runs`."""
    target = _target(out, [run], replace=replace)
    wrong = manifest.problems(folder, digests=False, extra=False)
    if wrong:
        raise HpctrainError(
            f"{folder.name} is not complete", details=tuple(f"  {one}" for one in wrong), fix=f"hpctrain checkpoints list {run.name}"
        )
    plan = _Plan()
    inside = f"{run.name}/{folder.name}" if folder.parent == run else f"{run.name}/{folder.parent.name}/{folder.name}"
    _add_checkpoint(plan, folder, f"{inside}/")
    for name in ("run.json", "config.json"):
        if (run / name).is_file():
            plan.files.append(_File(f"{run.name}/{name}", run / name, (run / name).stat()))
    return _write(out, target, "checkpoint", [run.name], plan, progress=progress)


def _add_run(plan: _Plan, run: Path, *, code: bool) -> None:
    for entry in sorted(run.iterdir()):
        name = f"{run.name}/{entry.name}"
        if entry.name == CODE and entry.is_dir():
            if code:
                _add_tree(plan, entry, f"{name}/")
            else:
                plan.left_out.append(f"{name}: the snapshot of the code")
        elif entry.name == checkpoints.CHECKPOINTS and entry.is_dir():
            for one in sorted(entry.iterdir()):
                _add_entry(plan, one, f"{name}/{one.name}")
        else:
            _add_entry(plan, entry, name)


def _add_entry(plan: _Plan, entry: Path, name: str) -> None:
    """Add what lies in a run's directory or among its checkpoints. Checkpoints may be links, because people move large things away."""
    if entry.name.startswith((checkpoints.SAVING, checkpoints.REMOVING, checkpoints.REPLACED)):
        plan.left_out.append(f"{name}: unfinished")
    elif entry.is_dir() and (manifest.CHECKPOINT.match(entry.name) or entry.name == checkpoints.MODEL):
        wrong = manifest.problems(entry, digests=False, extra=False)
        if wrong:
            plan.damaged.append(f"{name}: {'; '.join(wrong)}")
        _add_checkpoint(plan, entry, f"{name}/")
    elif entry.is_dir() and not entry.is_symlink():
        _add_tree(plan, entry, f"{name}/")
    else:
        _add_file(plan, entry, name)


def _add_checkpoint(plan: _Plan, folder: Path, prefix: str) -> None:
    said = manifest.read_manifest(folder)
    known = said.files if said else {}
    for name, path in manifest.walk(folder):
        if path.is_file() and (name in known or name == CHECKPOINT_MANIFEST):
            plan.files.append(_File(prefix + name, path, path.stat(), known[name].sha256 if name in known else None))
        else:
            _add_file(plan, path, prefix + name)


def _add_tree(plan: _Plan, folder: Path, prefix: str) -> None:
    for name, path in manifest.walk(folder):
        _add_file(plan, path, prefix + name)


def _add_file(plan: _Plan, path: Path, name: str) -> None:
    if path.is_symlink():
        # A link may lead anywhere, and what it leads to there is not on the other machine.
        plan.left_out.append(f"{name}: a link")
    elif not path.is_file():
        plan.left_out.append(f"{name}: no plain file")
    elif not _UNFINISHED.match(path.name):
        plan.files.append(_File(name, path, path.stat()))


def _target(out: Path, runs: Sequence[Path], *, replace: bool) -> Path:
    """Return the file that `out` means; links are followed, because the rename at the end would replace the link itself.

    Raises:
        UsageError: it exists, is no plain file or lies in one of the runs, or its directory does not exist.
    """
    file = f"{runs[0].name}.tar"
    if str(out) == "-":
        raise UsageError("an archive cannot be written to stdout", fix=f"-o {shlex.quote(file)}")
    try:
        mode = out.stat().st_mode  # of what a link leads to: /dev/stdout leads to a pipe that has no name
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise UsageError(
            f"{str(out)!r} cannot be written: {(error.strerror or str(error)).lower()}", fix=f"-o {shlex.quote(file)}"
        ) from error
    if mode is not None and stat.S_ISDIR(mode):
        raise UsageError(f"{str(out)!r} is a directory", fix=f"-o {shlex.quote(str(out / file))}")
    if mode is not None and not stat.S_ISREG(mode):
        raise UsageError(f"{str(out)!r} is no plain file, and an archive becomes one", fix=f"-o {shlex.quote(file)}")
    target = Path(os.path.realpath(out))
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {str(target.parent)!r}", fix=f"mkdir -p {shlex.quote(str(target.parent))}")
    # As typed, too: a run's code and checkpoints may be links to other places.
    typed = Path(os.path.abspath(out))  # noqa: PTH100 - of a path with .., what is meant
    inside = next((run for run in runs if target.is_relative_to(os.path.realpath(run)) or typed.is_relative_to(run.absolute())), None)
    if inside is not None:
        raise UsageError(f"{str(out)!r} lies in {inside.name}, which is exported", fix=f"-o {shlex.quote(file)}")
    if mode is not None and not replace:
        raise UsageError(f"{str(out)!r} exists", fix="the same command with --force, or another name behind -o")
    return target


def _part(target: Path) -> Path:
    """Return the name that an archive has while this process writes it; what killed ones left of the same archive is removed."""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    pattern = re.compile(re.escape(f"{target.name}.{host}-") + r"([0-9]{1,9})\.part\Z")
    for entry in target.parent.iterdir():
        named = pattern.match(entry.name)
        if named and _is_gone(int(named[1])):
            entry.unlink(missing_ok=True)
    return target.with_name(f"{target.name}.{host}-{os.getpid()}.part")


def _is_gone(process: int) -> bool:
    if process == os.getpid():  # the number was somebody else's before
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _write(out: Path, target: Path, kind: str, runs: list[str], plan: _Plan, *, progress: Callable[[int], None] | None) -> Exported:
    part = _part(target)
    try:
        with tar_stream.open_for_writing(part, compress=out.suffix in COMPRESSED) as stream:
            _write_members(stream, kind, runs, plan.files, progress)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    manifest.sync_directory(target.parent)
    size = sum(file.status.st_size for file in plan.files)
    return Exported(out, tuple(runs), len(plan.files), size, tuple(plan.left_out))


def _write_members(stream: IO[bytes], kind: str, runs: list[str], planned: list[_File], progress: Callable[[int], None] | None) -> None:
    head = {"schema": SCHEMA, "kind": kind, "created": int(time.time()), "runs": runs}
    head["files"] = [[file.name, file.status.st_size] for file in planned]
    _write_json(stream, HEAD, head)
    digests = []
    for file in planned:
        digest = hashlib.sha256()

        def seen(chunk: bytes, digest: Any = digest) -> None:
            digest.update(chunk)
            if progress is not None:
                progress(len(chunk))

        size = file.status.st_size
        member = tar_stream.Member(file.name, size, file.status.st_mode & 0o777, int(file.status.st_mtime))
        tar_stream.write_member(stream, member, tar_stream.read_file(file.path, size, seen))
        if file.sha256 not in (None, digest.hexdigest()):
            raise HpctrainError(
                f"{file.name} has changed since it was saved (SHA-256)", fix=f"hpctrain checkpoints verify {file.name.partition('/')[0]}"
            )
        digests.append([file.name, size, digest.hexdigest()])
    _write_json(stream, DIGESTS, {"schema": SCHEMA, "files": digests})
    tar_stream.write_end(stream)


def _write_json(stream: IO[bytes], name: str, value: dict[str, Any]) -> None:
    data = json.dumps(value, indent=1).encode()
    tar_stream.write_member(stream, tar_stream.Member(name, len(data), 0o644, int(time.time())), _once(data))


def _once(data: bytes) -> Iterator[bytes]:
    yield data
