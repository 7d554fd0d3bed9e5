"""Which files to send: hpctrain's defaults, and .hpctrainignore in gitignore syntax, as rsync
filter rules.

The first matching rule decides in rsync, the last one in gitignore: a user's lines are written in
reverse. Sources: rsync(1), FILTER RULES; gitignore(5), PATTERN FORMAT.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

IGNORE_FILE = ".hpctrainignore"
PARTIAL_DIRECTORY = ".hpctrain-partial"

#: hpctrain's own files, which are only valid on one machine.
OWN = (f"{PARTIAL_DIRECTORY}/", "/.hpctrain/")
#: Except for the functions that job scripts source: they are sent with the scripts.
LIBRARIES = "/.hpctrain/job-*.sh"
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

_WILD = re.compile(r"[*?\[]")


def is_secret(path: str) -> bool:
    """Whether the last part of `path` is a name that suggests a secret."""
    name = path.rstrip("/").rpartition("/")[2]
    return name not in NO_SECRETS and any(fnmatch.fnmatchcase(name, pattern) for pattern in SECRETS)


def filter_rules(ignore: str, environments: Iterable[str] = ()) -> str:
    """Return the text of a filter file for rsync's `merge`.

    Args:
        ignore: the text of .hpctrainignore.
        environments: directories, relative to the project, with a Python or conda environment,
            regardless of their names.
    """
    users = [translated for line in ignore.splitlines() if (translated := _translate(line))]
    users.reverse()
    named = [
        rule
        for rules in users
        for rule in rules
        if rule.startswith("+ ") and not _WILD.search(rule) and is_secret(rule[2:])
    ]
    return "\n".join(
        [
            "+ /.hpctrain/",
            f"+ {LIBRARIES}",
            "- /.hpctrain/*",
            *(f"- {pattern}" for pattern in OWN),
            # A secret is only sent if its exact name is listed: `!*` does not include it.
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
    text = re.sub(r"(?<!\\) +$", "", line.rstrip("\r\n"))
    if not text.strip() or text.startswith("#"):
        return []
    sign, text = ("+", text[1:]) if text.startswith("!") else ("-", text)
    text = re.sub(r"^\\(?=[#!])", "", text)
    directory = text.endswith("/")
    body = text.rstrip("/")
    if not body.strip("/"):
        return []
    if body.startswith("**/"):  # at any depth, like rsync's patterns without a slash
        body = re.sub(r"^(\*\*/)+", "", body)
    elif "/" in body:  # gitignore: a slash at the start or in the middle anchors the pattern
        body = "/" + body.lstrip("/")
    # In rsync, a backslash is part of the name unless the pattern has a wildcard.
    body = body if _WILD.search(body) else re.sub(r"\\(.)", r"\1", body)
    # `a/**/b` also matches a/b in git, but not in rsync.
    variants = [body, body.replace("/**/", "/")] if "/**/" in body else [body]
    return [f"{sign} {variant}{'/' if directory else ''}" for variant in variants]


def _literal(path: str) -> str:
    """Return a pattern that matches only this path."""
    return re.sub(r"([*?\[\\])", r"\\\1", path) if _WILD.search(path) else path
