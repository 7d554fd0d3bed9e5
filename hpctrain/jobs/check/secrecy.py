"""Secrets where others can read them, and variables of the shell that would change the job. No finding shows a secret."""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.jobs import shell
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.finding import Finding
from hpctrain.jobs.secret_forms import looks_secret, owner_of

#: The variable, or the file, that holds the address of the webhook (hpctrain/runs/notify.py).
WEBHOOK = "HPCTRAIN_WEBHOOK"


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
        owner = owner_of(value)
        variable = path[-1] if path[0] == "environment" else "HF_TOKEN"
        file = f"~/.{variable.lower()}"
        yield case.finding(
            "secret-in-config", "error", f"{path[-1]} holds what looks like a secret{f' ({owner})' if owner else ''}",
            evidence=case.said(*path, value=f"{value[:3]}… ({len(value)} characters)"),
            reason="it would be written into the script, where everybody who can read the directory, and Slurm's accounting, sees it",
            fix=f"umask 077; read -rs word && echo \"$word\" > {file}, then under environment.secrets in config.yaml: {variable}: {file}",
        )  # fmt: skip


def _files(case: Case) -> Iterator[Finding]:
    for secret in case.around.secrets:
        value = secret.file.said if secret.file else "environment"
        webhook = secret.name == WEBHOOK
        said = case.said("notify", "webhook", value=value) if webhook else case.said("environment", "secrets", secret.name, value=value)
        then = "tells nobody of the end" if webhook else "stops"
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
                reason=f"the job reads the secret from it, and {then}", fix=f"umask 077; read -rs word && echo \"$word\" > {path}",
            )  # fmt: skip
        elif secret.file.mode not in (0o400, 0o600):
            yield case.finding(
                "secret-file-open", "error", f"the file of {secret.name} has the mode {secret.file.mode or 0:04o}, and must have 0600",
                evidence=f"{said}; {secret.file.path}",
                reason=f"others may read it, so the job refuses it and {then}", fix=f"chmod 600 {path}",
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
