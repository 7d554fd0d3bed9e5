"""What goes along: hpctrain's defaults, and .hpctrainignore in gitignore's notation, as rsync's filter rules.

rsync takes the first rule that matches, gitignore the last: a user's lines are written in reverse. Source of both notations:
rsync(1), FILTER RULES; gitignore(5), PATTERN FORMAT.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

IGNORE_FILE = ".hpctrainignore"
MARKER = ".hpctrain-sync"
PARTIAL_DIRECTORY = ".hpctrain-partial"

#: hpctrain's own notes; they mean something on one machine only.
OWN = (f"/{MARKER}", f"{PARTIAL_DIRECTORY}/", "/.hpctrain/")
#: What jobs write on the cluster. Not sent, and never deleted there, even where .hpctrainignore sends it again.
#: Anchored where a package of the project may have the name.
PRODUCTS = (
    "/logs/", "/runs/", "/wandb/", "/mlruns/", "/lightning_logs/", "/outputs/", "/sft-output/", "/trainer_output/", "/checkpoints/",
    "checkpoint-[0-9]*/", "slurm-*.out",
)  # fmt: skip
#: Sent, but never deleted there: a script that was rendered on the cluster.
KEPT = ("/*.sbatch",)
#: What is made again on the far side, or is of no use there: an environment holds paths and programs of the machine it was made on.
REMADE = (
    ".git", ".hg/", ".svn/",
    ".venv/", "venv/", ".pixi/", ".conda/",
    "__pycache__/", "*.py[co]", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/", ".hypothesis/", ".ipynb_checkpoints/", ".tox/", ".nox/",
    ".cache/", "node_modules/", ".DS_Store",
)  # fmt: skip
#: Names of files that usually hold a secret; matched against the last part of a path.
SECRETS = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.kdbx",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk",
    ".netrc", "_netrc", ".pgpass", ".git-credentials", ".pypirc", ".htpasswd", ".ssh", ".aws", ".gnupg",
    ".hf_token", "hf_token", "hf_token.txt", ".wandb_key", ".wandb_api_key", "kaggle.json",
    "credentials.json", "client_secret*.json", "service[-_]account*.json",
    "secrets.env", "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml",
)  # fmt: skip
#: Of those, the ones that show others what to fill in.
NO_SECRETS = (".env.example", ".env.sample", ".env.template")

_WILD = re.compile(r"[*?\[]")


def is_secret(path: str) -> bool:
    """Say whether the last part of `path` is a name that usually belongs to a secret."""
    name = path.rstrip("/").rpartition("/")[2]
    return name not in NO_SECRETS and any(fnmatch.fnmatchcase(name, pattern) for pattern in SECRETS)


def filter_rules(ignore: str, environments: Iterable[str] = (), far_environments: Iterable[str] = ()) -> str:
    """Return the text of a filter file for rsync's `merge`.

    Args:
        ignore: the text of .hpctrainignore.
        environments: directories, relative to the project, that hold a Python or conda environment, whatever their name.
        far_environments: the same of the far side, which were made there and stay there.
    """
    users = [translated for line in ignore.splitlines() if (translated := _translate(line))]
    users.reverse()
    named = [rule for rules in users for rule in rules if rule.startswith("+ ") and not _WILD.search(rule) and is_secret(rule[2:])]
    return "\n".join(
        [
            *(f"- {pattern}" for pattern in OWN),
            # P: the far side's own. `***` is the directory and all below it: a protected directory does not protect what it holds.
            *(f"P {pattern}***" if pattern.endswith("/") else f"P {pattern}" for pattern in PRODUCTS),
            *(f"P {pattern}" for pattern in KEPT),
            *(f"P /{_literal(path)}/***" for path in far_environments),
            # A secret goes along only when its name is written out: `!*` is no permission.
            *named,
            *(f"+ {pattern}" for pattern in NO_SECRETS),
            *(f"- {pattern}" for pattern in SECRETS),
            *(rule for rules in users for rule in rules),
            *(f"- /{_literal(path)}/" for path in environments),
            *(f"- {pattern}" for pattern in (*PRODUCTS, *REMADE)),
            "",
        ]
    )


def _translate(line: str) -> list[str]:
    """Return one line of .hpctrainignore as rules of rsync; none for a comment."""
    text = re.sub(r"(?<!\\) +$", "", line.rstrip("\r\n"))
    if not text.strip() or text.startswith("#"):
        return []
    sign, text = ("+", text[1:]) if text.startswith("!") else ("-", text)
    text = re.sub(r"^\\(?=[#!])", "", text)
    directory = text.endswith("/")
    body = text.rstrip("/")
    if not body.strip("/"):
        return []
    if body.startswith("**/"):  # at any depth: rsync's patterns without a slash in front are that
        body = re.sub(r"^(\*\*/)+", "", body)
    elif "/" in body:  # gitignore: a slash in the beginning or in the middle ties the pattern to the top
        body = "/" + body.lstrip("/")
    # rsync knows the backslash in patterns with a wildcard alone; in others it is a character of the name.
    body = body if _WILD.search(body) else re.sub(r"\\(.)", r"\1", body)
    # `a/**/b` is also a/b for git, and is not for rsync.
    variants = [body, body.replace("/**/", "/")] if "/**/" in body else [body]
    return [f"{sign} {variant}{'/' if directory else ''}" for variant in variants]


def _literal(path: str) -> str:
    """Return a path as a pattern that matches it alone."""
    return re.sub(r"([*?\[\\])", r"\\\1", path) if _WILD.search(path) else path
