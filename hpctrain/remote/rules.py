"""Which files of a project are sent to another machine, or kept in a snapshot of its code:
hpctrain's defaults, and .hpctrainignore in gitignore syntax.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from hpctrain.util import stored

IGNORE_FILE = ".hpctrainignore"
PARTIAL_DIRECTORY = ".hpctrain-partial"

#: A directory that contains one of these is a Python or conda environment.
ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
#: hpctrain's own files, which are only valid on one machine.
OWN = (f"{PARTIAL_DIRECTORY}/", "/.hpctrain/")
#: The same, except for the functions that job scripts source: they are sent with the scripts, also
#: if `.*` is left out.
NOT_SENT = (f"{PARTIAL_DIRECTORY}/", "!/.hpctrain/", "/.hpctrain/*", "!/.hpctrain/job-*.sh")
#: What jobs write on the cluster. Anchored if a package of the project may have the same name.
PRODUCTS = (
    "/logs/",
    "/runs/",
    "/wandb/",
    "/mlruns/",
    "/lightning_logs/",
    "/outputs/",
    "/sft-output/",
    "/trainer_output/",
    "/checkpoints/",
    "checkpoint-[0-9]*/",
    "slurm-*.out",
)
#: Regenerated on the far side, or useless there: an environment contains paths and binaries of the
#: machine where it was created.
REMADE = (
    ".git",
    ".hg/",
    ".svn/",
    ".venv/",
    "venv/",
    ".pixi/",
    ".conda/",
    "__pycache__/",
    "*.py[co]",
    ".mypy_cache/",
    ".ruff_cache/",
    ".pytest_cache/",
    ".hypothesis/",
    ".ipynb_checkpoints/",
    ".tox/",
    ".nox/",
    ".cache/",
    "node_modules/",
    ".DS_Store",
)
#: Names of files that usually contain a secret; matched against the last part of a path.
SECRETS = (
    ".env",
    ".env.*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.ppk",
    "*.kdbx",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".git-credentials",
    ".pypirc",
    ".htpasswd",
    ".ssh",
    ".aws",
    ".gnupg",
    ".hf_token",
    "hf_token",
    "hf_token.txt",
    ".wandb_key",
    ".wandb_api_key",
    "kaggle.json",
    "credentials.json",
    "client_secret*.json",
    "service[-_]account*.json",
    "secrets.env",
    "secrets.json",
    "secrets.toml",
    "secrets.yaml",
    "secrets.yml",
)
#: Exceptions: templates without real values.
NO_SECRETS = (".env.example", ".env.sample", ".env.template")

_TOKEN = re.compile(r"\*\*/|/\*\*\Z|\*|\?|\[[!^]?\]?[^]]*\]|\\?.", re.DOTALL)
_WILDCARDS = {"**/": "(?:.*/)?", "/**": "/.+", "*": "[^/]*", "?": "[^/]"}


class Patterns:
    """Patterns in gitignore syntax, the highest precedence last; a directory's path ends with `/`.

    Source: gitignore(5), PATTERN FORMAT: the last matching pattern decides, and files below an
    excluded directory cannot be included again.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        rules = [rule for line in lines if (rule := _rule(line)) is not None]
        self._rules = rules[::-1]
        self._known = {"": False}

    def leave_out(self, path: str) -> bool:
        """Return whether `path`, or a directory above it, is excluded."""
        if path not in self._known:
            parent = posixpath.dirname(path.rstrip("/"))
            self._known[path] = self.leave_out(f"{parent}/" if parent else "") or next(
                (out for out, expression in self._rules if expression.match(path)), False
            )
        return self._known[path]


def _rule(line: str) -> tuple[bool, re.Pattern[str]] | None:
    """Return whether a line excludes, and its pattern; None for a comment."""
    line = re.sub(r"(?<!\\) +\Z", "", line.rstrip("\r\n"))
    pattern = line.removeprefix("!")
    body = pattern.removesuffix("/")
    if not body or line.startswith("#"):
        return None
    expression = "" if "/" in body else "(?:.*/)?"
    for token in _TOKEN.findall(body.removeprefix("/")):
        if token in _WILDCARDS:
            expression += _WILDCARDS[token]
        elif token.startswith("[") and len(token) > 2:
            inside = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
            expression += f"(?!/)[{re.sub('^[!^]', '^', inside)}]"
        else:
            expression += re.escape(token[-1])
    try:
        # A wildcard after a slash matches a name, not the directory itself.
        end = r"(?<=[^/])/\Z" if pattern.endswith("/") else r"(?<=[^/])/?\Z"
        found = re.compile(expression + end, re.DOTALL)
    except re.error:  # a class such as [z-a] matches nothing
        return None
    return line == pattern, found


def is_secret(path: str) -> bool:
    """Whether the last part of `path` is a name that suggests a secret."""
    name = path.rstrip("/").rpartition("/")[2]
    return name not in NO_SECRETS and any(fnmatch.fnmatchcase(name, pattern) for pattern in SECRETS)


def read_ignored(project: Path) -> list[str]:
    """Return the lines of .hpctrainignore, if the project has it.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return stored.read_text(project / IGNORE_FILE, errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return []


def patterns(ignore: Sequence[str], last: Iterable[str], defaults: Iterable[str] = ()) -> Patterns:
    """Return the patterns of what is left out.

    Args:
        ignore: the lines of .hpctrainignore. A secret is included only if they contain its exact
            name: `!*` does not include it.
        last: patterns that they do not override.
        defaults: patterns that they override.
    """
    named = [
        line
        for line in ignore
        if line.startswith("!") and not set("*?[") & set(line) and is_secret(line[1:].rstrip(" "))
    ]
    secrets = [*SECRETS, *(f"!{name}" for name in NO_SECRETS), *named]
    return Patterns([*defaults, *ignore, *secrets, *last])


def walk(
    project: Path, left_out: Patterns, onerror: Callable[[OSError], object] | None = None
) -> Iterator[str]:
    """Yield the files of a project, without those of environments.

    Args:
        project: its directory.
        left_out: patterns of the files to leave out.
        onerror: called with the error of a directory that cannot be read.
    """
    for directory, folders, names in os.walk(project, onerror=onerror):
        below = "" if directory == str(project) else f"{os.path.relpath(directory, project)}/"
        if below and any(name in ENVIRONMENTS for name in (*folders, *names)):
            folders.clear()
            continue
        links = [name for name in folders if Path(directory, name).is_symlink()]
        folders[:] = sorted(
            name
            for name in folders
            if name not in links and not left_out.leave_out(f"{below}{name}/")
        )
        paths = (f"{below}{name}" for name in sorted((*names, *links)))
        yield from (path for path in paths if not left_out.leave_out(path))
