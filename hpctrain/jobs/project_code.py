"""Find the files of the project's code, and take the snapshot that a job runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hpctrain.errors import HpctrainError
from hpctrain.remote import rules
from hpctrain.runs import code, git, layout
from hpctrain.runs.code import Patterns, SkippedPath, Snapshot, Version
from hpctrain.util import shell, stored

#: hpctrain's own files, tracked or not: job output, and the file that identifies a directory.
_NEVER = (code.MANIFEST, *rules.OWN)
#: Rendered scripts are stored with each submission.
_RENDERED = ("/*.sbatch",)


def snapshot(
    project: Path, runs: Path, *, limit_bytes: int = code.LIMIT_BYTES, without: Iterable[Path] = ()
) -> Snapshot:
    """Take a snapshot of a project, or return an existing identical one.

    In a git work tree: tracked files and untracked files that are not ignored, with their current
    content. Without git: what `hpctrain sync` would send. Both exclude the patterns in
    .hpctrainignore, `runs/`, `logs/`, environments, and files whose names suggest secrets.

    Args:
        project: the directory in which the jobs run.
        runs: the directory `runs`.
        limit_bytes: limit on the total size.
        without: files with secrets, regardless of their names.

    Raises:
        UsageError: the files are too large, or too many.
        HpctrainError: the snapshot cannot be stored.
    """
    project = project.resolve()
    paths, version, skipped = _code(project, runs)
    secret = {path.resolve() for path in without}
    held = {path for path in paths if secret and (project / path).resolve() in secret}
    skipped += [SkippedPath(path, "holds a secret of the job") for path in sorted(held)]
    kept = [path for path in paths if path not in held]
    try:
        return code.take(project, runs, kept, version, skipped=skipped, limit_bytes=limit_bytes)
    except OSError as error:
        raise HpctrainError(
            f"cannot keep the code in {runs / layout.CODE}: {error.strerror}",
            details=(f"  {error.filename}",) if error.filename else (),
            fix=f"df -h {shell.quote(runs)}",
            hint="or submit without a snapshot: hpctrain submit --no-snapshot",
        ) from error


def _code(project: Path, runs: Path) -> tuple[list[str], Version, list[SkippedPath]]:
    """Return the paths of the code, its git version, and the paths skipped for their names."""
    try:
        ignore = stored.read_text(
            project / rules.IGNORE_FILE, errors="surrogateescape"
        ).splitlines()
    except OSError:
        ignore = []
    never = [*_NEVER, f"/{layout.RUNS}/", "/logs/"]
    if runs.resolve() != project and runs.resolve().is_relative_to(project):
        never.append(f"/{runs.resolve().relative_to(project).as_posix()}/")
    # As in remote.rules: a secret is included only if its exact name is listed.
    named = [
        line
        for line in ignore
        if line.startswith("!") and not set("*?[") & set(line) and rules.is_secret(line[1:])
    ]
    last = [*rules.SECRETS, *(f"!{name}" for name in rules.NO_SECRETS), *named, *never]
    own = Patterns([*ignore, *last])
    other = Patterns([*rules.REMADE, *rules.PRODUCTS, *_RENDERED, *ignore, *last])
    in_git, version = git.read_tree(project, rules.SECRETS)
    if not in_git and not version.untracked:
        skipped = [SkippedPath(".git", note) for note in version.notes]
        return _walk(project, other), version, skipped
    tracked = [path for path in in_git if not own.leave_out(path)]
    untracked = [path for path in version.untracked if not other.leave_out(path)]
    environments = {
        path[: f"{path}/".index(f"/{name}/") + 1]
        for path in untracked
        for name in code.ENVIRONMENTS
        if f"/{name}/" in f"{path}/"
    }
    untracked = [path for path in untracked if not path.startswith(tuple(environments))]
    paths = [*tracked, *untracked]
    skipped = [
        SkippedPath(path, "has the name of a secret")
        for path in (*in_git, *version.untracked)
        if rules.is_secret(path) and path not in set(paths)
    ]
    return paths, replace(version, untracked=tuple(untracked)), skipped


def _walk(project: Path, patterns: Patterns) -> list[str]:
    """Return the paths of a project without git, at most one more than the limit."""
    found: list[str] = []
    for directory, folders, names in os.walk(project):
        below = "" if directory == str(project) else f"{os.path.relpath(directory, project)}/"
        if below and any(name in code.ENVIRONMENTS for name in (*folders, *names)):
            folders.clear()
            continue
        links = [name for name in folders if Path(directory, name).is_symlink()]
        folders[:] = sorted(
            name
            for name in folders
            if name not in links and not patterns.leave_out(f"{below}{name}/")
        )
        paths = [f"{below}{name}" for name in sorted((*names, *links))]
        found += [path for path in paths if not patterns.leave_out(path)]
        if len(found) > code.LIMIT_FILES:
            break
    return found
