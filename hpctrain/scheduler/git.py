"""What git says of a project: its files, its commit, and what differs from that. Changes nothing, and takes no lock of git's.

The names of files are asked for in git's quotes, because the bytes of a name need not be UTF-8.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hpctrain.errors import SchedulerError
from hpctrain.jobs import secrets_in_text
from hpctrain.runs.code import Version
from hpctrain.scheduler import process

_TIMEOUT_S = 60.0
#: Of a diff, in characters: the snapshot holds everything anyway.
DIFF_LIMIT = 2_000_000
#: fsmonitor may start a program that the project's own configuration names. `git diff` writes the index, whatever GIT_OPTIONAL_LOCKS says
#: (tried on 2.39), where it may refresh it.
_GIT = ("git", "--no-pager", "-c", "core.quotePath=true", "-c", "core.fsmonitor=false", "-c", "diff.autoRefreshIndex=false")
#: What leads to another repository, as a hook of git has it (git rev-parse --local-env-vars).
_LOCAL = re.compile(
    r"GIT_(ALTERNATE_OBJECT_DIRECTORIES|CONFIG|CONFIG_PARAMETERS|OBJECT_DIRECTORY|DIR|WORK_TREE|IMPLICIT_WORK_TREE|GRAFT_FILE|INDEX_FILE"
    r"|NO_REPLACE_OBJECTS|REPLACE_REF_BASE|PREFIX|SHALLOW_FILE|COMMON_DIR|NAMESPACE)\Z"
)
_ESCAPE = re.compile(rb"\\([abfnrtv\"\\]|[0-7]{3})")
_LETTERS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b'"': b'"', b"\\": b"\\"}
_SECTION = re.compile(r"^diff --git (?P<names>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Tree:
    """A project in a git work tree.

    Attributes:
        tracked: files that git knows, in submodules too, relative to the project; some may be deleted in the work tree.
        untracked: files that it neither knows nor ignores, those of nested repositories among them.
        version: its commit, and what differs from that.
    """

    tracked: tuple[str, ...]
    untracked: tuple[str, ...]
    version: Version


def look(project: Path, is_secret: Callable[[str], bool], unseen: Sequence[str] = ()) -> Tree | str | None:
    """Return what git says of a project; None where it is in no work tree; why git cannot say, where it is in one.

    Args:
        project: its directory, which may be one below the work tree's top.
        is_secret: says whether a file's name is that of a secret, so that the diff does not show it.
        unseen: directories, relative to the project, in which no untracked file is looked for: there may be millions.
    """
    if not any((directory / ".git").exists() for directory in (project, *project.parents)):
        return None
    if shutil.which("git") is None:
        return "git is not on PATH"
    try:
        inside, answer, said = _ask(project, "rev-parse", "--is-inside-work-tree", "--show-prefix")
        if not inside:
            return f"git said: {said.strip().partition(chr(10))[0]}"
        is_inside, _, prefix = answer.partition("\n")
        if is_inside != "true":
            return None
        tracked, untracked = _files(project, "", tuple(f"--exclude=/{_literal(prefix.rstrip(chr(10)) + name)}/" for name in unseen))
        # Of two names for one project: a repository of dotfiles that ignores all else has nothing to say about it.
        return Tree(tracked, untracked, _version(project, untracked, is_secret)) if tracked or untracked else None
    except (SchedulerError, _RefusedError) as error:
        return str(error)


class _RefusedError(Exception):
    """Git ended with an error; its first words say why."""


def _ask(directory: Path, *words: str) -> tuple[bool, str, str]:
    """Return whether git succeeded, and its words on stdout and stderr."""
    environment = {name: value for name, value in os.environ.items() if not _LOCAL.match(name)}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    finished = process.run([*_GIT, "-C", str(directory), *words], timeout=_TIMEOUT_S, environment=environment)
    return finished.returncode == 0 and not finished.cut, finished.stdout, finished.stderr


def _names(directory: Path, *words: str) -> list[str]:
    done, answer, said = _ask(directory, "ls-files", *words)
    if not done:
        raise _RefusedError(f"git said: {said.strip().partition(chr(10))[0]}")
    return [unquoted(line) for line in answer.splitlines()]


def _literal(path: str) -> str:
    return re.sub(r"([*?\[\\])", r"\\\1", path)


def _files(project: Path, below: str, excluded: tuple[str, ...] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return tracked and untracked files of the work tree `project / below`, as paths below `project`, without duplicates."""
    directory = project / below
    found: tuple[list[str], list[str]] = ([], [])
    for kind, words in enumerate((("--cached",), ("--others", "--exclude-standard", *excluded))):
        for name in dict.fromkeys(_names(directory, *words)):
            path = directory / name
            if not name.endswith("/") and not (path.is_dir() and not path.is_symlink()):
                found[kind].append(below + name)
            elif (path / ".git").exists():  # a submodule, or a repository that git does not know; else a submodule without files
                inner = _files(project, f"{below}{name.removesuffix('/')}/")
                found[0].extend(inner[0] if kind == 0 else ())
                found[1].extend(inner[1] if kind == 0 else (*inner[0], *inner[1]))
    return tuple(dict.fromkeys(found[0])), tuple(dict.fromkeys(found[1]))


def _version(project: Path, untracked: tuple[str, ...], is_secret: Callable[[str], bool]) -> Version:
    has_commit, commit, _ = _ask(project, "rev-parse", "--verify", "--quiet", "HEAD")
    on_branch, branch, _ = _ask(project, "symbolic-ref", "--quiet", "--short", "HEAD")
    name = branch.strip() if on_branch else None
    if not has_commit:
        return Version(branch=name, untracked=untracked, notes=("there is no commit yet",))
    words = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=diff", "--", ".")
    try:
        done, diff, said = _ask(project, *words)
    except SchedulerError as error:
        done, diff, said = False, "", str(error)
    notes = () if done else (f"there is no whole diff: {said.strip().rpartition(chr(10))[2]}",)
    return Version(commit=commit.strip(), branch=name, diff=shown(diff, is_secret) or None, untracked=untracked, notes=notes)


def shown(diff: str, is_secret: Callable[[str], bool], limit: int = DIFF_LIMIT) -> str:
    """Return a diff as it is kept: without files whose name is that of a secret, without tokens, and cut after a whole line."""
    starts = [match.start() for match in _SECTION.finditer(diff)]
    text = "".join(_section(diff[start:end], is_secret) for start, end in pairwise([0, *starts, len(diff)]))
    if len(text) > limit:
        cut = text[: text.rfind("\n", 0, limit) + 1]
        text = f"{cut}[cut here: {len(text) - len(cut):,} more characters]\n"
    return secrets_in_text.redacted(text)


def _section(section: str, is_secret: Callable[[str], bool]) -> str:
    head = _SECTION.match(section)
    if head is None:
        return section
    # `a/X b/X`, each in quotes where the name has odd characters.
    words = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', head["names"])
    return f"{head[0]}\n[not shown: the name is that of a secret]\n" if any(is_secret(unquoted(word)) for word in words) else section


def unquoted(name: str) -> str:
    r"""Return a name without git's quotes: `"na\303\257ve.py"` is naïve.py."""
    if not (len(name) > 1 and name.startswith('"') and name.endswith('"')):
        return name
    raw = _ESCAPE.sub(lambda found: _LETTERS.get(found[1]) or bytes([int(found[1], 8) & 0xFF]), name[1:-1].encode("utf-8"))
    return os.fsdecode(raw)
