"""Submitting the scripts of a launch, and keeping the record of it: the config, the code, the scripts, and each sbatch.

The name of the launch, its tag, is fixed before the first script is submitted, and goes along as the script's argument.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from hpctrain import __version__
from hpctrain.cli.chosen_script import Choice, Chosen
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.runs import launch, layout
from hpctrain.scheduler import batch_script, ledger
from hpctrain.scheduler.base import Submission
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.parse import directives
from hpctrain.scheduler.slurm import SlurmScheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What was asked for besides the scripts.

    Attributes:
        run_id: the name of the launch; None makes one.
        snapshot: whether the jobs run a copy of the code as it is now.
        resend: whether to submit what was sent before and never answered.
    """

    run_id: str | None = None
    snapshot: bool = True
    resend: bool = False


@dataclass(frozen=True, slots=True)
class Submitted:
    """A script that a scheduler has taken: what it is called in messages, the scheduler's word, and whether it is an array of tasks."""

    title: str
    submission: Submission
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch: its tag (None for scripts that take no name), and its jobs in the order of their submission."""

    tag: str | None
    jobs: tuple[Submitted, ...]


class Launcher:
    """Submits scripts under one tag."""

    def __init__(self, scheduler: SlurmScheduler | LocalScheduler, runs: Path, tag: str, *, resend: bool = False) -> None:
        self.scheduler, self.runs, self.tag, self.resend = scheduler, runs, tag, resend

    def submit(
        self, path: Path, *, script: str | None, config: str | None = None, stage: str | None = None,
        array: str | None = None, offset: int = 0, dependency: str | None = None,
    ) -> Submission:  # fmt: skip
        """Submit a script and record it; `array` is None where the script's own directive holds.

        Raises:
            HpctrainError: the scheduler refused it, or did not answer; what is not known is recorded too.
        """
        text, found = batch_script.read(path)
        said: dict[str, Any] = {"arguments": (self.tag,), "dependency": dependency, "array": array}
        values = directives.last_values(found)
        record = launch.Submission(
            token=uuid.uuid4().hex[:16], argv=(), at=time.time(), scheduler=self.scheduler.name, script=script, config=config,  # type: ignore[arg-type]
            array=array or values.get("array"), offset=offset, dependency=dependency, stage=stage, command=tuple(sys.argv[1:]),
        )  # fmt: skip
        try:
            submission = self.scheduler.submit(path, resend=self.resend, **said)
        except SchedulerError:
            for entry in ledger.unanswered_of(text):
                if entry.arguments == (self.tag,) and isinstance(self.scheduler, SlurmScheduler):
                    argv = tuple(self.scheduler.sbatch_argv(path, entry, values, **said))
                    launch.add_submission(self.runs, self.tag, replace(record, token=entry.token, argv=argv))
            raise
        sent = ledger.by_job_id(submission.job_id) if isinstance(self.scheduler, SlurmScheduler) else None
        if sent is not None and isinstance(self.scheduler, SlurmScheduler):
            record = replace(record, token=sent.token, argv=tuple(self.scheduler.sbatch_argv(path, sent, values, **said)))
        else:
            record = replace(record, argv=("bash", str(path), self.tag))
        launch.add_submission(self.runs, self.tag, replace(record, job_id=submission.job_id, cluster=submission.cluster))
        return submission

    def chain(self, first: Submission, path: Path, links: int, **said: Any) -> list[Submission]:
        """Submit the jobs that go on where the first one stops, each after the one before, whatever came of that."""
        made = [first]
        for _ in range(links):
            made.append(self.submit(path, dependency=f"afterany:{made[-1].job_id}", **said))
        return made


def start(choice: Choice, scheduler: SlurmScheduler | LocalScheduler, orders: Orders) -> Launched:
    """Submit the chosen scripts.

    Raises:
        UsageError: a name that cannot be, or that belongs to something else.
        HpctrainError: a scheduler refused a script; what was submitted before it is said.
    """
    if not choice.scripts[0].takes_name:
        if orders.run_id is not None:
            path = choice.scripts[0].path
            raise UsageError(f"{path} is not of hpctrain, and takes no --run-id", fix=f"hpctrain submit {path}")
        return Launched(
            None, tuple(Submitted("", scheduler.submit(one.path, resend=orders.resend), is_array(one.path)) for one in choice.scripts)
        )
    runs = _runs(choice.scripts[0])
    tag = orders.run_id or _tag(choice)
    launch.launch_dir(runs, tag)  # is a name
    if orders.run_id is not None:
        _refuse_running(runs, tag, [one for script in choice.scripts for one in _runs_of(tag, script)])
    before = _Before(runs, tag)
    try:
        _record(choice, runs, tag)
        if orders.snapshot:
            snapshot(runs, tag)
        launcher = Launcher(scheduler, runs, tag, resend=orders.resend)
        return Launched(tag, tuple(_submit_all(choice, launcher)))
    except HpctrainError:
        before.restore()
        raise


class _Before:
    """What there was of a launch before it began: a script that is refused leaves nothing behind."""

    def __init__(self, runs: Path, tag: str) -> None:
        self.runs, self.tag = runs, tag
        self.had_runs, self.had_launch = runs.exists(), launch.load(runs, tag) is not None

    def restore(self) -> None:
        """Remove what was made, unless something was submitted, or may have been."""
        whole = launch.load(self.runs, self.tag)
        if self.had_launch or (whole is not None and whole.submissions):
            return
        if not self.had_runs:
            shutil.rmtree(self.runs, ignore_errors=True)
        elif whole is not None:
            for run in launch.run_dirs_for(self.runs, whole):
                if run.is_dir() and [each.name for each in run.iterdir()] == ["run.json"]:
                    shutil.rmtree(run)
            shutil.rmtree(whole.path)


def _runs(script: Chosen) -> Path:
    """Return `runs/` of the directory in which the script runs."""
    values = directives.last_values(batch_script.read(script.path)[1])
    chdir = Path(values.get("chdir") or Path.cwd())
    if not chdir.is_dir():
        raise UsageError(f"the job would run in {chdir}, which is not here", fix="submit it there: sbatch, or hpctrain submit")
    return chdir / layout.RUNS


def _tag(choice: Choice) -> str:
    """Return a new tag, or that of a submission of the same script that was never answered: the answer may be that it is there."""
    for entry in ledger.unanswered_of(batch_script.read(choice.scripts[0].path)[0]):
        if entry.arguments:
            return entry.arguments[0]
    return launch.new_tag(_name(choice), time.time(), random.getrandbits(16))


def _name(choice: Choice) -> str:
    """Return what the launch is called: the job's name, of stages that of the whole."""
    if choice.whole is not None:
        return choice.whole.job.spec.job_name
    return directives.last_values(batch_script.read(choice.scripts[0].path)[1]).get("job-name") or "job"


def _runs_of(tag: str, script: Chosen) -> list[str]:
    """Return the run of a script; the tasks of an array are looked at by the training itself, which never takes what another one has."""
    stage = script.made.spec.stage if script.made is not None else None
    return [layout.run_id(tag, stage=stage)]


def _refuse_running(runs: Path, tag: str, ids: Sequence[str]) -> None:
    """Refuse to submit a run that has a job already: two trainings would write to the same checkpoints.

    Raises:
        UsageError: one of them waits or runs, or nobody knows.
    """
    from hpctrain.cli import runs_jobs
    from hpctrain.runs import store

    known = [run for run in (store.read_run(runs, each) for each in ids) if run is not None]
    if not known:
        return
    found = runs_jobs.survey(runs, known, every_job=True)
    for run, state in found.states.items():
        if state.word in ("running", "pending") or (state.word == "unknown" and state.live):
            raise UsageError(
                f"the run {run} is {state.word}: {state.reason}",
                fix=f"hpctrain cancel {state.live[0] if state.live else tag}, or another --run-id",
            )
        go_on(runs, run)


def go_on(runs: Path, run: str) -> None:
    """Take away what tells the jobs of a run that it is over."""
    for name in ("over", "stop"):
        (layout.run_dir(runs, run) / name).unlink(missing_ok=True)


def _record(choice: Choice, runs: Path, tag: str) -> None:
    """Write the record of the launch, and the directories of its runs, so that they are found while they wait."""
    whole = choice.whole
    first = choice.scripts[0]
    name = _name(choice)
    said: dict[str, Any] = {"kind": whole.kind if whole is not None else "run"}
    if whole is not None and whole.plan is not None:
        said |= {"points": len(whole.plan.points), "table": next(iter(whole.tables)).name}
    if whole is not None and whole.kind == "stages":
        said["stages"] = tuple(script.stage.name for script in whole.scripts if script.stage is not None)
    runs.mkdir(exist_ok=True)
    cwd = str(runs.parent)
    launch.create(runs, tag, name=name, now=time.time(), cwd=cwd, version=__version__, argv=("hpctrain", *sys.argv[1:]), **said)
    if first.made is not None and first.made.part is None and not first.made.spec.array:
        for script in choice.scripts:
            stage = script.made.spec.stage if script.made is not None else None
            _make_run(runs, layout.run_id(tag, stage=stage), tag, name, stage)


def _make_run(runs: Path, run: str, tag: str, name: str, stage: str | None) -> None:
    from hpctrain.runs import files

    directory = layout.run_dir(runs, run)
    directory.mkdir(exist_ok=True)
    if not (directory / "run.json").exists():
        files.write_json(
            directory / "run.json",
            {"schema": 1, "run_id": run, "tag": tag, "name": name, "created": int(time.time()), "index": None, "stage": stage},
        )


def snapshot(runs: Path, tag: str) -> None:
    """Keep the code as it is now, and let the jobs of the launch run that.

    Raises:
        UsageError: the project is too large; a fix line says what to leave out.
    """
    from hpctrain.cli import code

    kept = code.snapshot(runs.parent, runs)
    launch.set_code(runs, tag, kept.as_json(), kept.diff, snapshot=kept.digest)
    for skipped in kept.skipped:
        click.echo(f"note: the snapshot of the code is without {skipped[0]}: {skipped[1]}", err=True)


def _submit_all(choice: Choice, launcher: Launcher) -> list[Submitted]:
    made: list[Submitted] = []
    jobs: dict[str, list[str]] = {}
    for one in choice.scripts:
        script = one.made
        text = batch_script.read(one.path)[0]
        said: dict[str, Any] = {"script": launch.add_script(launcher.runs, launcher.tag, one.path.name, text), "config": None}
        if script is not None:
            stage = script.spec.stage
            config = script.job.config.model_dump(mode="json", exclude={"sweep"})
            said |= {"config": launch.add_config(launcher.runs, launcher.tag, config, script.job.origins, stage=stage), "stage": stage}
        if script is not None and script.part is not None:
            said |= {"offset": script.part.offset}
        title = one.path.name if len(choice.scripts) > 1 else ""
        try:
            dependency = dependency_on(script.stage.dependencies, jobs) if script is not None and script.stage is not None else None
            first = launcher.submit(one.path, dependency=dependency, **said)
            links = script.spec.max_restarts if script is not None and script.spec.restart == "chain" else 0
            submissions = launcher.chain(first, one.path, links, **said)
        except HpctrainError as error:
            raise _with_those_before(error, made, launcher.tag) from error
        made += [
            Submitted(f"{title}{f' (link {number} of its chain)' if number else ''}".strip(), each, is_array(one.path))
            for number, each in enumerate(submissions)
        ]
        if script is not None and script.spec.stage is not None:
            jobs[script.spec.stage] = [each.job_id for each in submissions]
    return made


def dependency_on(dependencies: Sequence[tuple[str, str]], jobs: Mapping[str, Sequence[str]]) -> str | None:
    """Return `afterok:12,afterany:13`; of a chain, whose last jobs may be told that nothing is left, all must have ended."""
    words = []
    for stage, kind in dependencies:
        ids = jobs.get(stage, ())
        words += [f"{kind if len(ids) == 1 else 'afterany'}:{':'.join(ids)}"] if ids else []
    return ",".join(words) or None


def is_array(path: Path) -> bool:
    """Whether a script is submitted as several tasks; SLURM_ARRAY_TASK_ID set by hand takes one of them."""
    return "array" in directives.last_values(batch_script.read(path)[1]) and not os.environ.get("SLURM_ARRAY_TASK_ID")


def _with_those_before(error: HpctrainError, made: Sequence[Submitted], tag: str) -> HpctrainError:
    if not made:
        return error
    ids = ", ".join(each.submission.job_id for each in made)
    error.details = (*error.details, f"submitted before that, and still there: {ids}; the rest is not")
    error.fix = f"{error.fix}; then: hpctrain resubmit {tag}"
    return error
