"""A test message to the targets of a job's `notify:` section, from this process."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from hpctrain.config.spec import JobSpec
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs.request import Request, job_of
from hpctrain.runs import notify
from hpctrain.util import process, shell

_COMMAND_S = 60.0


def test(asked: Request, say: Callable[[str], None]) -> None:
    """Run the command and post to the webhook; try both before raising an error.

    Raises:
        HpctrainError: no target is configured, or one of them failed.
    """
    spec = job_of(asked).spec
    if spec.notify is None:
        mails = any(name == "mail-user" for name, _ in spec.sbatch)
        raise UsageError(
            "no notification target configured" + ("; Slurm sends mail itself" if mails else ""),
            details=("docs/notify.md describes them",),
            hint=f"add to {asked.config or 'config.yaml'}: notify: {{webhook: ~/.hpctrain_webhook}}",
        )
    text = f"test message of hpctrain on {socket.gethostname()}"
    failed: list[HpctrainError] = []
    if spec.notify.command is not None:
        try:
            _run(spec, spec.notify.command, text)
            say(f"ran {spec.notify.command}")
        except HpctrainError as error:
            failed.append(error)
    if spec.notify.webhook is not None:
        try:
            address = notify.address(spec.notify.webhook)
            notify.post(address, notify.body(None, "completed", text))
            say("notified the webhook")
        except HpctrainError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _run(spec: JobSpec, program: str, text: str) -> None:
    path = str(Path(spec.chdir, program)) if "/" in program else shutil.which(program)
    if path is None or not os.access(path, os.X_OK):
        raise UsageError(
            f"{program} is not an executable program",
            fix=f"ls -l {shell.quote(path or program)}",
        )
    values = {"RUN_ID": "", "RUN_DIR": "", "OUTCOME": "completed", "REASON": "", "STATUS": "0"}
    environment = {**os.environ, **{f"HPCTRAIN_{name}": value for name, value in values.items()}}
    done = process.run([path, text], timeout=_COMMAND_S, environment=environment)
    if done.returncode != 0:
        raise HpctrainError(
            f"{program} ended with exit code {done.returncode}",
            details=tuple(f"  {line}" for line in done.stderr.splitlines()[-3:]),
            fix=f"{shell.quote(path)} test",
        )
