"""`hpctrain notify`: tell of a run's end from here, or try whether telling works."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctrain.cli.job_options import JobCommand, job_options, request, spec_of
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.runs import layout
from hpctrain.runs.states import State

if TYPE_CHECKING:
    from hpctrain.jobs.spec import JobSpec, Notify
    from hpctrain.runs.store import Run

#: Seconds between two looks at a run whose end is waited for.
_PAUSE_S = 60.0
_COMMAND_S = 60.0
_ENDED = ("completed", "failed", "stopped")


@click.command(cls=JobCommand)
@click.argument("run", required=False)
@job_options
@click.option("--wait", is_flag=True, help="Wait until RUN has ended, whichever way. Ctrl-C leaves the job alone.")
@click.pass_context
def command(ctx: click.Context, /, run: str | None, **parameters: Any) -> int:
    """Tell somebody how a run ended; without RUN, try whether that works.

    Who is told says `notify:` in config.yaml.
    The job script tells by itself. This is for clusters whose compute nodes reach no other machine, and for jobs that were killed:
    it runs on the login node, say in tmux. Mails are Slurm's own, and sent when the job says so.
    """
    spec = spec_of(request(ctx, parameters))
    asked = spec.notify
    if asked is None:
        mails = "; Slurm mails by itself" if any(name == "mail-user" for name, _ in spec.sbatch) else ""
        raise UsageError(
            f"there is no command and no webhook to tell{mails}",
            fix="notify: {webhook: ~/.hpctrain_webhook} in config.yaml (docs/notify.md)",
        )
    if run is None:
        if parameters["wait"]:
            raise UsageError("--wait needs the run whose end it waits for", fix="hpctrain notify RUN --wait")
        _tell(spec, asked, None, State("completed"), f"hpctrain on {socket.gethostname()} can tell you how runs end: this is a try")
        return 0
    try:
        found, state = _ended(run) if parameters["wait"] else _look(run)
    except KeyboardInterrupt:
        click.echo("\nnobody was told; the job goes on", err=True)
        return 130
    if state.word not in _ENDED:
        raise UsageError(f"{found.id} is {state.word}, and has not ended", fix=f"hpctrain notify {shell.quote(found.id)} --wait")
    reason = f" ({state.reason})" if state.reason else ""
    _tell(spec, asked, found, state, f"{found.id} {state.word}{reason}")
    return 0


def _look(word: str) -> tuple[Run, State]:
    """Return a run with its state."""
    from hpctrain.cli import runs, runs_jobs
    from hpctrain.runs import select, store

    where = Path(layout.RUNS)
    listing = runs.all_runs(where)
    if listing is None:
        raise runs.no_runs(where)
    name = select.one(word, listing.runs).id
    run = store.read_run(where, name) or select.one(word, listing.runs)
    return run, runs_jobs.survey(where, [run]).states[name]


def _ended(word: str) -> tuple[Run, State]:
    """Wait until a run has ended, saying each change of its state."""
    said = ""
    while True:
        run, state = _look(word)
        if state.word in _ENDED:
            return run, state
        if state.word != said:
            said = state.word
            click.echo(f"{run.id} is {said}{f' ({state.reason})' if state.reason else ''}; waiting for its end", err=True)
        time.sleep(_PAUSE_S if not all(job.startswith("9") and len(job) == 8 for job in run.job_ids) else 1.0)


def _tell(spec: JobSpec, asked: Notify, run: Run | None, state: State, text: str) -> None:
    """Run the command and send to the webhook; both are tried before what failed is said.

    Raises:
        HpctrainError: one of them failed.
    """
    from hpctrain.runs import notify

    failed: list[HpctrainError] = []
    if asked.command is not None:
        try:
            _run(spec, asked.command, notify.sentence(run, state.word, text), run, {"OUTCOME": state.word, "REASON": state.reason or ""})
            click.echo(f"ran {asked.command}")
        except HpctrainError as error:
            failed.append(error)
    if asked.webhook is not None:
        try:
            notify.post(notify.address(asked.webhook), notify.body(run, state.word, text))
            click.echo("told the webhook")
        except HpctrainError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _run(spec: JobSpec, program: str, text: str, run: Run | None, said: Mapping[str, str]) -> None:
    from hpctrain.scheduler import process

    status = run.last.status if run is not None and run.last is not None else None
    values = {"RUN_ID": run.id if run else "", "RUN_DIR": str((Path(layout.RUNS) / run.id).absolute()) if run else "", **said}
    values["STATUS"] = "" if status is None else str(status)
    path = str(Path(spec.chdir, program)) if "/" in program else shutil.which(program)
    if path is None or not os.access(path, os.X_OK):
        raise UsageError(f"{program} is no program that can be run here", fix=f"ls -l {shell.quote(path or program)}")
    environment = {**os.environ, **{f"HPCTRAIN_{name}": value for name, value in values.items()}}
    done = process.run([path, text], timeout=_COMMAND_S, environment=environment)
    if done.returncode != 0:
        raise HpctrainError(
            f"{program} ended with exit code {done.returncode}",
            details=tuple(f"  {line}" for line in done.stderr.splitlines()[-3:]), fix=f"{shell.quote(path)} test",
        )  # fmt: skip
