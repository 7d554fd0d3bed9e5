"""Detect secrets by their value, or by name and value. Pure; nothing here prints one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Token patterns and their providers. Sources: the providers' documentation of their prefixes.
_TOKENS = (
    ("Hugging Face", re.compile(r"\bhf_[A-Za-z0-9]{30,}")),
    ("GitHub", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{60,})")),
    ("OpenAI", re.compile(r"\bsk-[A-Za-z0-9_-]{20,}")),
    ("AWS", re.compile(r"\bAKIA[0-9A-Z]{16}\b")),
    ("GitLab", re.compile(r"\bglpat-[\w-]{20,}")),
    ("Slack", re.compile(r"\bxox[abprs]-[\w-]{10,}")),
    ("private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
)
_NAMES = re.compile(
    r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|PASSPHRASE|_PASS|_PAT)\Z", re.IGNORECASE
)
#: Names that end like a secret's but are not: TOKENIZERS_PARALLELISM does not match, these would.
_NO_SECRETS = {
    "PAD_TOKEN",
    "EOS_TOKEN",
    "BOS_TOKEN",
    "UNK_TOKEN",
    "MASK_TOKEN",
    "SEP_TOKEN",
    "CLS_TOKEN",
}
#: A run of letters and digits that is long enough to be a key: WANDB_API_KEY has 40 hex digits.
_KEY_LIKE = re.compile(r"[A-Za-z0-9_+/=.-]{16,}\Z")
#: A password inside a URL.
_URL_PASSWORD = re.compile(r"://[^/@\s:]*:[^/@\s]+@")


def looks_secret(name: str, value: str) -> bool:
    """Whether a value has the form of a token, or the name of a secret and the form of a key."""
    if _URL_PASSWORD.search(value) or any(pattern.search(value) for _, pattern in _TOKENS):
        return True
    return (
        bool(_NAMES.search(name))
        and name.upper() not in _NO_SECRETS
        and bool(_KEY_LIKE.match(value))
    )


def owner_of(value: str) -> str | None:
    """Return the provider of a token, as far as its form shows."""
    return next((whose for whose, pattern in _TOKENS if pattern.search(value)), None)


def named_secret(name: str) -> bool:
    """Whether a name is that of a secret, for any value: for values that are only displayed, and
    may be hidden.
    """
    return bool(_NAMES.search(name)) and name.upper() not in _NO_SECRETS


_SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|sk-(?:ant-|proj-)?(?=[\w-]*[0-9])(?=[\w-]*[A-Z])[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{18,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[\w-]{20,}|(?:(?<=WANDB_API_KEY=)|(?<=WANDB_API_KEY=[\"'$]))[0-9a-f]{40}\b|(?<=wandb"
    r" login )[0-9a-f]{40}\b)",
    re.ASCII,
)
_PLACEHOLDER = re.compile(r"x{4,}|your|example|changeme|placeholder|(.)\1{7,}", re.IGNORECASE)
#: Characters of a token that remain visible: enough to recognize the provider.
_SHOWN = 3


def spans(text: str) -> Iterator[re.Match[str]]:
    """Yield likely tokens, without placeholders."""
    return (match for match in _SECRET.finditer(text) if not _PLACEHOLDER.search(match[0]))


def redacted(text: str) -> str:
    """Truncate each token in `text` to its first three characters and an ellipsis; the number of
    lines does not change.
    """
    for match in reversed(list(spans(text))):
        text = f"{text[: match.start() + _SHOWN]}…{text[match.end() :]}"
    return text


# -- what is shown to others: reports, and the values of a config ----------------------------------

HIDDEN = "(hidden)"
#: Words end at characters that shells, YAML or JSON treat as separators.
_A_WORD = re.compile(r"[^\s\"'`,;(){}\[\]<>]+")
#: A name that looks like a secret's, and its value: `--password VALUE`, `"password": "VALUE"`.
_NAMED = re.compile(
    r"([A-Za-z0-9_.-]*(?:key|token|secret|passw(?:or)?d|credentials?|passphrase|_pass|_pat))"
    r"([\"'`]?\s*[=:]?\s*[\"']?)(?<=[\s=:\"'])([^\s\"'`,;(){}\[\]<>]+)",
    re.IGNORECASE,
)
#: The credentials of an HTTP request.
_HEADER = re.compile(
    r"(\bauthorization[\"']?\s*[=:]\s*[\"']?(?:(?:bearer|basic|token)\s+)?|\bbearer\s+(?=\S{16}))[^\s\"'`,;(){}\[\]<>]{6,}",
    re.IGNORECASE,
)
_SHORTEST_VALUE = 6


def hidden(text: str) -> str:
    """Mask words that look like a token, and values of names that look like a secret's."""
    return "\n".join(map(_hidden_in_line, text.split("\n")))


def _hidden_in_line(line: str) -> str:
    def named(found: re.Match[str]) -> str:
        name, between, value = found.groups()
        plain = name.strip("-").replace("-", "_")
        # An assigned password may be shorter than a key.
        is_assigned = "=" in between or ":" in between
        is_value = len(value) >= _SHORTEST_VALUE and not value.replace(".", "").isdigit()
        hide = named_secret(plain) and ((is_assigned and is_value) or looks_secret(plain, value))
        return f"{name}{between}{HIDDEN}" if hide else found[0]

    line = _HEADER.sub(lambda found: f"{found[1]}{HIDDEN}", _NAMED.sub(named, line))
    return _A_WORD.sub(lambda found: HIDDEN if looks_secret("", found[0]) else found[0], line)


def hidden_in(name: str, item: Any) -> Any:
    """Mask probable secrets in a value of a config or an environment, at any depth."""
    if isinstance(item, Mapping):
        return {str(key): hidden_in(str(key), inner) for key, inner in item.items()}
    if isinstance(item, Sequence) and not isinstance(item, str):
        return [hidden_in(name, inner) for inner in item]
    if isinstance(item, str):
        if (
            named_secret(name) and item and not item.startswith(("/", "~", "$", "."))
        ):  # the path of a secret's file may be shown
            return HIDDEN
        return hidden(item)
    return item
