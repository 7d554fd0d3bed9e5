"""Which files are the project's code, and the snapshot of them that a job runs (hpctrain.runs.code)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain.errors import HpctrainError
from hpctrain.jobs import shell
from hpctrain.runs import code, code_files, code_store, layout
from hpctrain.runs.code import Snapshot, Version
from hpctrain.runs.code_files import Skipped
from hpctrain.runs.code_ignore import Patterns
from hpctrain.scheduler import git
from hpctrain.sync import rules

#: hpctrain's own, whoever knows them: what jobs write, and what says who a directory is.
_NEVER = (code_store.MANIFEST, *rules.OWN)
#: Scripts as hpctrain renders them are kept with each launch.
_RENDERED = ("/*.sbatch",)


@dataclass(frozen=True, slots=True)
class _Code:
    paths: list[str]
    version: Version
    skipped: list[Skipped]


def snapshot(project: Path, runs: Path, *, limit_bytes: int = code.LIMIT_BYTES, without: Iterable[Path] = ()) -> Snapshot:
    """Take a snapshot of a project, or find the equal one.

    In a git work tree, the files that git knows, and those that it neither knows nor ignores, as they are in the work tree. Without git,
    what `hpctrain sync` would send. In both, without what .hpctrainignore names, without `runs/`, `logs/`, environments, and files whose
    names are those of secrets.

    Args:
        project: the directory in which the jobs run.
        runs: the directory `runs`.
        limit_bytes: of all files together.
        without: files that hold secrets, whatever they are called.

    Raises:
        UsageError: the files are too large, or too many.
        HpctrainError: one of them changes all the time, or the snapshot cannot be stored.
    """
    project = project.resolve()
    found = _code(project, runs)
    secret = {path.resolve() for path in without}
    kept = [path for path in found.paths if not secret or (project / path).resolve() not in secret]
    skipped = [*found.skipped, *(Skipped(path, "holds a secret of the job") for path in found.paths if path not in set(kept))]
    try:
        return code.take(project, runs, kept, found.version, skipped=skipped, limit_bytes=limit_bytes)
    except OSError as error:
        where = runs / layout.CODE
        raise HpctrainError(
            f"cannot keep the code in {where}: {error.strerror}",
            details=(f"  {error.filename}",) if error.filename else (),
            fix=f"df -h {shell.quote(runs)}; or, without a snapshot: hpctrain submit --no-snapshot",
        ) from error


def look(project: Path, runs: Path) -> Snapshot | Version:
    """Return the version of the code, and store nothing; the digest of its files is known where they are within the limits."""
    project = project.resolve()
    found = _code(project, runs)
    try:
        return code.take(project, None, found.paths, found.version, skipped=found.skipped)
    except (HpctrainError, OSError):
        return found.version


def _code(project: Path, runs: Path) -> _Code:
    ignore = _read(project / rules.IGNORE_FILE).splitlines()
    products = [layout.RUNS, "logs"]
    if runs.resolve() != project and runs.resolve().is_relative_to(project):
        products.append(runs.resolve().relative_to(project).as_posix())
    never = [*_NEVER, *(f"/{name}/" for name in products)]
    # As in sync.rules: a secret goes along only where its name is written out.
    named = [line for line in ignore if line.startswith("!") and not set("*?[") & set(line) and rules.is_secret(line[1:])]
    last = [*rules.SECRETS, *(f"!{name}" for name in rules.NO_SECRETS), *named, *never]
    own = Patterns([*ignore, *last])
    other = Patterns([*rules.REMADE, *rules.PRODUCTS, *_RENDERED, *ignore, *last])
    said = git.look(project, rules.is_secret, products)
    if isinstance(said, git.Tree):
        tracked = [path for path in said.tracked if not own.leave_out(path)]
        untracked = [path for path in said.untracked if not other.leave_out(path)]
        paths = code_files.without_environments([*tracked, *untracked])
        known = set(untracked)
        version = replace(said.version, untracked=tuple(path for path in paths if path in known))
        return _Code(paths, version, _secrets([*said.tracked, *said.untracked], paths))
    notes = (said,) if said is not None else ()
    paths, unread = code_files.walk(project, other, most=code.LIMIT_FILES)
    return _Code(paths, Version(notes=notes), [*(Skipped(".git", reason) for reason in notes), *unread])


def _secrets(known: Iterable[str], taken: Iterable[str]) -> list[Skipped]:
    """Return the files that were left out because of their names."""
    kept = set(taken)
    return [Skipped(path, "has the name of a secret") for path in known if path not in kept and rules.is_secret(path)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
