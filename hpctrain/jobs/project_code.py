"""Find the files of the project's code and its git state, and take the snapshot that a job runs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.remote import rules
from hpctrain.runs import code, layout
from hpctrain.runs.code import SkippedPath, Snapshot, Version
from hpctrain.util import process, secrets, shell

#: hpctrain's own files, tracked or not: job output, and the file that identifies a directory.
_NEVER = (code.MANIFEST, *rules.OWN)


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
    paths, version, skipped = _code(project)
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


def _code(project: Path) -> tuple[list[str], Version, list[SkippedPath]]:
    ignore = rules.read_ignored(project)
    never = [*_NEVER, f"/{layout.RUNS}/", "/logs/"]
    own = rules.patterns(ignore, never)
    # Rendered scripts are stored with each submission.
    other = rules.patterns(ignore, never, (*rules.REMADE, *rules.PRODUCTS, "/*.sbatch"))
    in_git, version = read_tree(project, rules.SECRETS)
    if not in_git and not version.untracked:
        skipped = [SkippedPath(".git", note) for note in version.notes]
        # One more than the limit is too many.
        walked = islice(rules.walk(project, other), code.LIMIT_FILES + 1)
        return list(walked), version, skipped
    tracked = [path for path in in_git if not own.leave_out(path)]
    untracked = [path for path in version.untracked if not other.leave_out(path)]
    environments = {
        path[: f"{path}/".index(f"/{name}/") + 1]
        for path in untracked
        for name in rules.ENVIRONMENTS
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


# -- git: read only, and without git's locks --------------------------------------------------------

#: Limit of git's output; longer output is an error.
_MOST_CHARACTERS = 16_000_000
_TIMEOUT_S = 60.0
#: Names are quoted, because their bytes need not be UTF-8. fsmonitor may start a program named in
#: the project's configuration. `git diff` writes a refreshed index regardless of GIT_OPTIONAL_LOCKS
#: (tested on 2.39).
_GIT = (
    "git",
    "--no-pager",
    *("-c", "core.quotePath=true"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "diff.autoRefreshIndex=false"),
)
#: Variables that point to another repository, as set in a git hook (git rev-parse
#: --local-env-vars).
_LOCAL = re.compile(
    r"GIT_(ALTERNATE_OBJECT_DIRECTORIES|CONFIG|CONFIG_PARAMETERS|OBJECT_DIRECTORY|DIR|WORK_TREE"
    r"|IMPLICIT_WORK_TREE|GRAFT_FILE|INDEX_FILE|NO_REPLACE_OBJECTS|REPLACE_REF_BASE|PREFIX"
    r"|SHALLOW_FILE|COMMON_DIR|NAMESPACE)\Z"
)


_HEAD = {
    "branch": ("symbolic-ref", "--quiet", "--short"),
    "commit": ("rev-parse", "--verify", "--quiet"),
}


def read_tree(project: Path, secret_patterns: Iterable[str]) -> tuple[tuple[str, ...], Version]:
    """Return the files of a project that git tracks, and its git state with the untracked ones.

    Both have no files if the project is not in a work tree or is ignored by it, or if git fails,
    which the state notes. Tracked files include those of submodules; some may be deleted.

    Args:
        project: its directory, possibly a subdirectory of the work tree.
        secret_patterns: names of files that are left out of the diff.
    """
    if not any((directory / ".git").exists() for directory in (project, *project.parents)):
        return (), Version()
    if shutil.which("git") is None:
        return (), Version(notes=("git is not on PATH",))
    try:
        tracked, untracked = _files(project, "")
        if not tracked and not untracked:  # a dotfiles repository that ignores everything else
            return (), Version()
        return tracked, _version(project, untracked, secret_patterns)
    except (SchedulerError, _RefusedError) as error:
        return (), Version(notes=(str(error),))


class _RefusedError(Exception):
    """Git failed; the message is the start of its error output."""


def _ask(directory: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not _LOCAL.match(name)}
    environment |= {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "LC_ALL": "C",
    }
    finished = process.run(
        [*_GIT, "-C", str(directory), *words], timeout=_TIMEOUT_S, environment=environment
    )
    if finished.returncode != 0 or len(finished.stdout) > _MOST_CHARACTERS:
        raise _RefusedError(f"git said: {finished.stderr.strip().partition(chr(10))[0]}")
    return finished.stdout


def _files(project: Path, below: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return tracked and untracked files of the work tree `project / below`, relative to `project`,
    without duplicates.
    """
    found: tuple[dict[str, None], dict[str, None]] = ({}, {})
    for own, words in zip(found, (["--cached"], ["--others", "--exclude-standard"]), strict=True):
        for line in _ask(project / below, "ls-files", *words).splitlines():
            path = below + _unquoted(line)
            directory = project / path
            if not path.endswith("/") and (directory.is_symlink() or not directory.is_dir()):
                own[path] = None
            elif (directory / ".git").exists():  # a submodule, or a nested repository
                tracked, untracked = _files(project, f"{path.removesuffix('/')}/")
                own.update(dict.fromkeys(tracked))
                found[1].update(dict.fromkeys(untracked))
    return tuple(found[0]), tuple(found[1])


def _unquoted(name: str) -> str:
    r"""Return a name without git's quotes: `"na\303\257ve.py"` is naïve.py."""
    if not name.startswith('"'):
        return name
    return os.fsdecode(name[1:-1].encode().decode("unicode_escape").encode("latin-1"))


def _version(project: Path, untracked: tuple[str, ...], secret_patterns: Iterable[str]) -> Version:
    known: dict[str, str | None] = {}
    for name, words in _HEAD.items():
        try:
            known[name] = _ask(project, *words, "HEAD").strip()
        except _RefusedError:
            known[name] = None
    if known["commit"] is None:
        return Version(branch=known["branch"], untracked=untracked, notes=("no commit yet",))
    hidden = [
        f":(exclude,glob)**/{pattern}{below}"
        for pattern in secret_patterns
        for below in ("", "/**")
    ]
    options = ("--no-ext-diff", "--no-textconv", "--no-color", "--submodule=diff")
    diff, notes = "", tuple[str, ...]()
    try:
        diff = _ask(project, "diff", "HEAD", *options, "--", ".", *hidden)
    except (SchedulerError, _RefusedError) as error:  # the snapshot has all files anyway
        notes = (f"the diff is incomplete: {error}",)
    return Version(**known, diff=secrets.redacted(diff) or None, untracked=untracked, notes=notes)
