"""Secrets where others can read them, and variables of the shell that would change the job. No finding shows a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.jobs import shell
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.finding import Finding

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
_NAMES = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)\Z", re.IGNORECASE)
#: Names that end so and are none: TOKENIZERS_PARALLELISM does not match, these would.
_NO_SECRETS = {"PAD_TOKEN", "EOS_TOKEN", "BOS_TOKEN", "UNK_TOKEN", "MASK_TOKEN", "SEP_TOKEN", "CLS_TOKEN"}
#: A word of one run of letters and digits that is long enough to be a key: WANDB_API_KEY has 40 hex digits.
_KEY_LIKE = re.compile(r"[A-Za-z0-9_+/=.-]{16,}\Z")


def rules(case: Case) -> Iterator[Finding]:
    """Return where secrets lie open, and what the shell would slip into the job."""
    yield from _in_config(case)
    yield from _files(case)
    yield from _leaks(case)


def _in_config(case: Case) -> Iterator[Finding]:
    spec = case.spec
    values: list[tuple[tuple[str, ...], str]] = [(("environment", "env", name), value) for name, value in spec.env]
    values += [(("sbatch", name), value or "") for name, value in spec.sbatch]
    previous = ""
    for word in spec.arguments:
        name, equals, value = word.partition("=") if word.startswith("--") else (previous, "=", word)
        values += [(("training", name.removeprefix("--")), value)] if equals and name else []
        previous = word if word.startswith("--") else ""
    for path, value in values:
        if not looks_secret(path[-1], value):
            continue
        owner = next((whose for whose, pattern in _TOKENS if pattern.search(value)), None)
        variable = path[-1] if path[0] == "environment" else "HF_TOKEN"
        file = f"~/.{variable.lower()}"
        yield case.finding(
            "secret-in-config", "error", f"{path[-1]} holds what looks like a secret{f' ({owner})' if owner else ''}",
            evidence=case.said(*path, value=f"{value[:3]}… ({len(value)} characters)"),
            reason="it would be written into the script, where everybody who can read the directory, and Slurm's accounting, sees it",
            fix=f"umask 077; read -rs word && echo \"$word\" > {file}, then under environment.secrets in config.yaml: {variable}: {file}",
        )  # fmt: skip


def looks_secret(name: str, value: str) -> bool:
    """Whether a value has the form of a token, or the name of a secret and the form of a key."""
    if any(pattern.search(value) for _, pattern in _TOKENS):
        return True
    return bool(_NAMES.search(name)) and name.upper() not in _NO_SECRETS and bool(_KEY_LIKE.match(value))


def _files(case: Case) -> Iterator[Finding]:
    for secret in case.around.secrets:
        said = case.said("environment", "secrets", secret.name, value=secret.file.said if secret.file else "environment")
        if secret.file is None:
            if not secret.in_shell:
                yield case.finding(
                    "secret-missing", "error", f"the variable {secret.name} is not set in this shell", evidence=said,
                    reason="the job takes it from the shell that submits, and there is none",
                    fix=f"read -rs {secret.name} && export {secret.name}",
                )  # fmt: skip
            continue
        path = shell.quote(secret.file.path)
        if not secret.file.exists or secret.file.is_dir:
            yield case.finding(
                "secret-missing", "error", f"there is no file {secret.file.said!r} for {secret.name}", evidence=said,
                reason="the job reads the secret from it, and stops", fix=f"umask 077; read -rs word && echo \"$word\" > {path}",
            )  # fmt: skip
        elif secret.file.mode not in (0o400, 0o600):
            yield case.finding(
                "secret-file-open", "error", f"the file of {secret.name} has the mode {secret.file.mode or 0:04o}, and must have 0600",
                evidence=f"{said}; {secret.file.path}",
                reason="others may read it, so the job refuses it and stops", fix=f"chmod 600 {path}",
            )  # fmt: skip
        elif secret.file.size == 0:
            yield case.finding(
                "secret-missing", "error", f"the file of {secret.name} is empty", evidence=f"{said}; {secret.file.path}",
                reason="the job would run with an empty secret", fix=f"read -rs word && echo \"$word\" > {path}",
            )  # fmt: skip


def _leaks(case: Case) -> Iterator[Finding]:
    leaks = case.around.leaks
    if not leaks:
        return
    orders = [name for name in leaks if name.startswith(("SBATCH_", "PET_", "SRUN_"))]
    inside = "SLURM_JOB_ID" in leaks
    shown = ", ".join(leaks[:4]) + (f" and {len(leaks) - 4} more" if len(leaks) > 4 else "")
    yield case.finding(
        "shell-leaks", "warning" if orders else "note",
        f"this shell {'is inside a job, and has' if inside else 'has'} variables that Slurm takes for options: {shown}",
        evidence="the environment of this shell",
        reason="hpctrain keeps them from the job; a plain sbatch or srun would let them win over the script",
        fix=f"unset {' '.join(leaks[:8])}{' …' if len(leaks) > 8 else ''}",
    )  # fmt: skip
