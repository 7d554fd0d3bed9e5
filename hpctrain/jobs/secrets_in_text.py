"""Tokens that stand in a text, found by their form, and the text without them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|sk-(?:ant-|proj-)?(?=[\w-]*[0-9])(?=[\w-]*[A-Z])[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{18,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[\w-]{20,}|(?:(?<=WANDB_API_KEY=)|(?<=WANDB_API_KEY=[\"']))[0-9a-f]{40}\b|(?<=wandb login )[0-9a-f]{40}\b)",
    re.ASCII,
)
_PLACEHOLDER = re.compile(r"x{4,}|your|example|changeme|placeholder|(.)\1{7,}", re.IGNORECASE)
#: What is left of a token: enough to say whose it is.
_SHOWN = 3


def spans(text: str) -> Iterator[re.Match[str]]:
    """Yield what looks like a real token; a placeholder does not."""
    return (match for match in _SECRET.finditer(text) if not _PLACEHOLDER.search(match[0]))


def redacted(text: str) -> str:
    """Return `text` with the first three characters of each token and an ellipsis in its place; the lines stay as many as they are."""
    for match in reversed(list(spans(text))):
        text = f"{text[: match.start() + _SHOWN]}…{text[match.end() :]}"
    return text
