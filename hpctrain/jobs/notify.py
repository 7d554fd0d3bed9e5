"""Send notifications from this process instead of the job: a test message, and the end of a run."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hpctrain.config.spec import JobSpec, Notify
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import schedulers, targets
from hpctrain.jobs.request import Request, job_of
from hpctrain.runs import layout, notify, store
from hpctrain.runs.job_state import State
from hpctrain.runs.store import Run
from hpctrain.util import process, shell

#: Seconds between two queries of an unfinished run.
_PAUSE_S = 60.0
_COMMAND_S = 60.0
_ENDED = ("failed", "stopped", "completed")
#: The combined state of several runs is the first of these that any run has.
_WORST = ("running", "pending", "unknown", *_ENDED)


def test(asked: Request, say: Callable[[str], None]) -> None:
    """Send a test message to the targets in a job's `notify:` section.

    Raises:
        HpctrainError: no target is configured, or one of them failed.
    """
    spec, target = _target(asked)
    host = socket.gethostname()
    _tell(spec, target, None, State("completed"), f"test message of hpctrain on {host}", say=say)


def when_ended(asked: Request, word: str, runs_dir: Path, say: Callable[[str], None]) -> None:
    """Wait until a run, or all runs of a submission, have ended, and notify once.

    For clusters whose compute nodes cannot connect to other machines, and for jobs that are killed.

    Raises:
        HpctrainError: no target is configured, one of them failed, or the end stays unknown.
    """
    spec, target = _target(asked)
    told = ""
    while True:
        listing = store.list_runs(runs_dir)
        runs = targets.runs_of(word, listing, started=False) or [targets.one_run(word, listing)]
        states = schedulers.survey(runs_dir, runs).states
        run = runs[0] if len(runs) == 1 else None
        name = run.id if run is not None else word
        # The state of a run that the scheduler has forgotten never changes again.
        open_ = [each for each in states.values() if each.word not in _ENDED and not each.forgotten]
        over = [each for each in states.values() if each.word in _ENDED]
        worst = min(open_ or over or states.values(), key=lambda each: _WORST.index(each.word))
        reason = f" ({worst.reason})" if worst.reason else ""
        if worst.word in _ENDED:
            break
        if not open_:
            raise HpctrainError(
                f"how {name} ended is unknown: {worst.reason}",
                fix=f"hpctrain explain {shell.quote(name)}",
            )
        now = f"{name} is {worst.word}{reason}"
        if run is None:
            ended = len(states) - len(open_)
            now = f"{name} is {worst.word} ({ended} of {len(states)} runs have ended)"
        if now != told:
            told = now
            say(f"{now}; waiting for its end")
        jobs = [job for each in runs for job in each.job_ids]
        local = bool(jobs) and all(schedulers.owner(job).name == "local" for job in jobs)
        time.sleep(1.0 if local else _PAUSE_S)
    text = f"{name} {worst.word}{reason}"
    if run is None:
        failed = [each for each, state in states.items() if state.word == "failed"]
        names = f" ({', '.join(failed[:5])}{', ...' * (len(failed) > 5)})" if failed else ""
        counts = Counter(state.word for state in states.values()).most_common()
        parts = [f"{count} {each}{names * (each == 'failed')}" for each, count in counts]
        text = f"{name}, {len(states)} runs: {', '.join(parts)}"
    _tell(spec, target, run, worst, text, say=say, about=name)


def _target(asked: Request) -> tuple[JobSpec, Notify]:
    spec = job_of(asked).spec
    if spec.notify is None:
        mails = (
            "; Slurm sends mail itself"
            if any(name == "mail-user" for name, _ in spec.sbatch)
            else ""
        )
        raise UsageError(
            f"no notification target configured{mails}",
            details=("docs/notify.md describes them",),
            hint=f"add to {asked.config or 'config.yaml'}: notify: {{webhook: ~/.hpctrain_webhook}}",
        )
    return spec, spec.notify


def _tell(
    spec: JobSpec,
    asked: Notify,
    run: Run | None,
    state: State,
    text: str,
    *,
    say: Callable[[str], None],
    about: str | None = None,
) -> None:
    """Run the command and post to the webhook; try both before raising an error.

    `about` is the name of a group of runs.

    Raises:
        HpctrainError: one of them failed.
    """
    failed: list[HpctrainError] = []
    if asked.command is not None:
        try:
            _run(spec, asked.command, notify.sentence(run, state.word, text), run, state)
            say(f"ran {asked.command}")
        except HpctrainError as error:
            failed.append(error)
    if asked.webhook is not None:
        body = notify.body(run, state.word, text)
        try:
            notify.post(
                notify.address(asked.webhook), body if run is not None else {**body, "run": about}
            )
            say("notified the webhook")
        except HpctrainError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _run(spec: JobSpec, program: str, text: str, run: Run | None, state: State) -> None:
    status = run.last.status if run is not None and run.last is not None else None
    values = {
        "RUN_ID": run.id if run else "",
        "RUN_DIR": str((Path(layout.RUNS) / run.id).absolute()) if run else "",
        "OUTCOME": state.word,
        "REASON": state.reason or "",
        "STATUS": "" if status is None else str(status),
    }
    path = str(Path(spec.chdir, program)) if "/" in program else shutil.which(program)
    if path is None or not os.access(path, os.X_OK):
        raise UsageError(
            f"{program} is not an executable program",
            fix=f"ls -l {shell.quote(path or program)}",
        )
    environment = {**os.environ, **{f"HPCTRAIN_{name}": value for name, value in values.items()}}
    done = process.run([path, text], timeout=_COMMAND_S, environment=environment)
    if done.returncode != 0:
        raise HpctrainError(
            f"{program} ended with exit code {done.returncode}",
            details=tuple(f"  {line}" for line in done.stderr.splitlines()[-3:]),
            fix=f"{shell.quote(path)} test",
        )
