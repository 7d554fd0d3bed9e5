"""`hpctrain notify`: tell of a run's end from here, or try whether telling works."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

    RUN may be the tag of a sweep or of stages: that is told of once, when all of its runs have ended.
    """
    spec = spec_of(request(ctx, parameters))
    asked = spec.notify
    if asked is None:
        mails = "; Slurm mails by itself" if any(name == "mail-user" for name, _ in spec.sbatch) else ""
        raise UsageError(
            f"there is no command and no webhook to tell{mails}",
            details=("docs/notify.md says who can be told, and how",),
            fix=f"add to {ctx.params['config'] or 'config.yaml'}: notify: {{webhook: ~/.hpctrain_webhook}}",
        )
    if run is None:
        if parameters["wait"]:
            raise UsageError("--wait needs the run whose end it waits for", fix="hpctrain notify RUN --wait")
        _tell(spec, asked, None, State("completed"), f"hpctrain on {socket.gethostname()} can tell you how runs end: this is a try")
        return 0
    try:
        end = _ended(run) if parameters["wait"] else _look(run)
    except KeyboardInterrupt:
        click.echo("\nnobody was told; the job goes on", err=True)
        return 130
    if not end.is_over:
        raise UsageError(f"{end.name} is {end.state.word}, and has not ended", fix=f"hpctrain notify {shell.quote(end.name)} --wait")
    _tell(spec, asked, end.run, end.state, end.sentence, about=end.name)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How a run, or all runs of a launch, ended, or stand now; `run` is None of several."""

    name: str
    run: Run | None
    state: State
    sentence: str
    is_local: bool

    @property
    def is_over(self) -> bool:
        return self.state.word in _ENDED


def _look(word: str) -> _End:
    """Return how a run stands; of a tag, how all of its runs do."""
    from hpctrain.cli import runs, runs_jobs
    from hpctrain.runs import launch, select, store
    from hpctrain.runs.store import Run

    where = Path(layout.RUNS)
    listing = runs.all_runs(where)
    if listing is None:
        raise runs.no_runs(where)
    whole = launch.load(where, word)
    if whole is None or whole.run_ids == [word]:
        name = select.one(word, listing.runs).id
        run = store.read_run(where, name) or select.one(word, listing.runs)
        state = runs_jobs.survey(where, [run]).states[name]
        said = f"{name} {state.word}{f' ({state.reason})' if state.reason else ''}"
        return _End(name=name, run=run, state=state, sentence=said, is_local=_is_local(run.job_ids))
    index = whole.kind == "sweep"
    found = [store.read_run(where, run) or Run(id=run, tag=word, index=at if index else None) for at, run in enumerate(whole.run_ids)]
    return _together(word, runs_jobs.survey(where, found).states, [job for run in found for job in run.job_ids])


def _together(tag: str, states: Mapping[str, State], jobs: Sequence[str]) -> _End:
    """Return how the runs of a launch stand, from the state of each: they have ended when all of them have."""
    counts = Counter(state.word for state in states.values())
    open_ = Counter(state.word for state in states.values() if state.word not in _ENDED and not state.forgotten)
    failed = [run for run, state in states.items() if state.word == "failed"]
    names = f" ({', '.join(failed[:5])}{', ...' if len(failed) > 5 else ''})" if failed else ""
    said = ", ".join(f"{count} {word}{names if word == 'failed' else ''}" for word, count in counts.most_common())
    # What a scheduler has forgotten never changes any more: of what is known, the worst counts.
    worst = next((word for word in (*open_, "failed", "stopped", "completed") if counts[word]), "unknown")
    reason = f"{len(states) - open_.total()} of {len(states)} runs have ended" if open_ else None
    sentence = f"{tag}, {len(states)} runs: {said}"
    return _End(name=tag, run=None, state=State(worst, reason, forgotten=not open_), sentence=sentence, is_local=_is_local(jobs))


def _is_local(jobs: Sequence[str]) -> bool:
    """Whether all jobs are this machine's, whose states cost nothing to look at."""
    return bool(jobs) and all(job.startswith("9") and len(job.partition("_")[0]) == 8 for job in jobs)


def _ended(word: str) -> _End:
    """Wait until a run, or all runs of a launch, have ended, saying each change."""
    said = ""
    while True:
        end = _look(word)
        if end.is_over:
            return end
        if end.state.forgotten:
            raise HpctrainError(f"how {end.name} ended is not known: {end.state.reason}", fix=f"hpctrain explain {shell.quote(end.name)}")
        now = f"{end.name} is {end.state.word}{f' ({end.state.reason})' if end.state.reason else ''}"
        if now != said:
            said = now
            click.echo(f"{now}; waiting for its end", err=True)
        time.sleep(1.0 if end.is_local else _PAUSE_S)


def _tell(spec: JobSpec, asked: Notify, run: Run | None, state: State, text: str, *, about: str | None = None) -> None:
    """Run the command and send to the webhook; both are tried before what failed is said. `about` is the name of several runs.

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
            notify.post(notify.address(asked.webhook), notify.body(run, state.word, text) | ({"run": about} if run is None else {}))
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
