"""What a secret looks like, by its value or by its name and value. Pure; nothing here shows one."""

from __future__ import annotations

import re

#: What tokens look like, and whose they are. Sources: the providers' own documentation of their prefixes.
_TOKENS = (
    ("Hugging Face", re.compile(r"\bhf_[A-Za-z0-9]{30,}")),
    ("GitHub", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{60,})")),
    ("OpenAI", re.compile(r"\bsk-[A-Za-z0-9_-]{20,}")),
    ("AWS", re.compile(r"\bAKIA[0-9A-Z]{16}\b")),
    ("GitLab", re.compile(r"\bglpat-[\w-]{20,}")),
    ("Slack", re.compile(r"\bxox[abprs]-[\w-]{10,}")),
    ("private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
)
_NAMES = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|PASSPHRASE|_PASS|_PAT)\Z", re.IGNORECASE)
#: Names that end so and are none: TOKENIZERS_PARALLELISM does not match, these would.
_NO_SECRETS = {"PAD_TOKEN", "EOS_TOKEN", "BOS_TOKEN", "UNK_TOKEN", "MASK_TOKEN", "SEP_TOKEN", "CLS_TOKEN"}
#: A word of one run of letters and digits that is long enough to be a key: WANDB_API_KEY has 40 hex digits.
_KEY_LIKE = re.compile(r"[A-Za-z0-9_+/=.-]{16,}\Z")
#: A password inside a URL.
_URL_PASSWORD = re.compile(r"://[^/@\s:]*:[^/@\s]+@")


def looks_secret(name: str, value: str) -> bool:
    """Whether a value has the form of a token, or the name of a secret and the form of a key."""
    if _URL_PASSWORD.search(value) or any(pattern.search(value) for _, pattern in _TOKENS):
        return True
    return bool(_NAMES.search(name)) and name.upper() not in _NO_SECRETS and bool(_KEY_LIKE.match(value))


def owner_of(value: str) -> str | None:
    """Return whose token it is, as far as its form tells."""
    return next((whose for whose, pattern in _TOKENS if pattern.search(value)), None)


def named_secret(name: str) -> bool:
    """Whether a name is that of a secret, whatever the value: what is only shown, and not used, need not be shown."""
    return bool(_NAMES.search(name)) and name.upper() not in _NO_SECRETS
