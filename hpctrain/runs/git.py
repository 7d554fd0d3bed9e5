"""The git state of a project: its files, its commit, and the changes since.

Read only; takes no git locks.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from hpctrain.errors import SchedulerError
from hpctrain.runs.code import Version
from hpctrain.util import process, secrets

#: Limit of git's output; longer output is an error.
_MOST_CHARACTERS = 16_000_000
_TIMEOUT_S = 60.0
#: Characters of a diff that are kept: the snapshot has all files anyway.
DIFF_LIMIT = 2_000_000
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
    try:
        branch = _ask(project, "symbolic-ref", "--quiet", "--short", "HEAD").strip()
    except _RefusedError:
        branch = None
    try:
        commit = _ask(project, "rev-parse", "--verify", "--quiet", "HEAD").strip()
    except _RefusedError:
        return Version(branch=branch, untracked=untracked, notes=("no commit yet",))
    hidden = [
        f":(exclude,glob)**/{pattern}{below}"
        for pattern in secret_patterns
        for below in ("", "/**")
    ]
    options = ("--no-ext-diff", "--no-textconv", "--no-color", "--submodule=diff")
    notes: tuple[str, ...] = ()
    try:
        diff = _ask(project, "diff", "HEAD", *options, "--", ".", *hidden)
    except (SchedulerError, _RefusedError) as error:
        diff = ""
        notes = (f"the diff is incomplete: {error}",)
    if len(diff) > DIFF_LIMIT:
        whole_lines = diff[: diff.rfind("\n", 0, DIFF_LIMIT) + 1]
        diff = f"{whole_lines}[cut here: {len(diff) - len(whole_lines):,} more characters]\n"
    return Version(
        commit=commit,
        branch=branch,
        diff=secrets.redacted(diff) or None,
        untracked=untracked,
        notes=notes,
    )
