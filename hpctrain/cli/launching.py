"""Submitting the scripts of a launch, and keeping the record of it: the config, the code, the scripts, and each sbatch.

The name of the launch, its tag, is fixed before the first script is submitted, and goes along as the script's argument.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hpctrain import __version__
from hpctrain.cli.chosen_script import Choice, Chosen
from hpctrain.cli.launcher import Launcher, Part
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.runs import launch, launches, layout, store
from hpctrain.runs.claim import claim
from hpctrain.runs.store import Run
from hpctrain.scheduler import ledger
from hpctrain.scheduler.base import Submission
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.parse import array as arrays
from hpctrain.scheduler.slurm import SlurmScheduler

__all__ = ["Launched", "Launcher", "Orders", "Submitted", "dependency_on", "go_on", "is_array", "snapshot", "start"]


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
            None, tuple(Submitted("", scheduler.submit(one.path, resend=orders.resend), is_array(one)) for one in choice.scripts)
        )
    runs = _runs(choice.scripts[0])
    known = orders.run_id or (_interrupted(choice) if isinstance(scheduler, SlurmScheduler) else None)
    tag = known or launch.new_tag(_name(choice), time.time(), random.getrandbits(16))
    launch.launch_dir(runs, tag)  # is a name
    _refuse_part_of_another(runs, tag)
    had_runs = runs.exists()
    try:
        with claim(runs, tag):
            return _start_alone(choice, Launcher(scheduler, runs, tag, resend=orders.resend), orders, known=known is not None)
    finally:
        _leave_no_empty_runs(runs, had_runs=had_runs)


def _start_alone(choice: Choice, launcher: Launcher, orders: Orders, *, known: bool) -> Launched:
    """Submit the scripts under a tag that no other command submits at the same time."""
    runs, tag = launcher.runs, launcher.tag
    parts = [_part(one, several=len(choice.scripts) > 1) for one in choice.scripts]
    before = _Before(runs, tag)
    earlier: dict[Path, list[Submission]] = {}
    if known:
        if launcher.go_on_with_call(parts):
            earlier = {part.path: launcher.earlier(part) for part in parts}
            launcher.made += [each for jobs in earlier.values() for each in jobs]
        _refuse_running(runs, tag, [run for part in parts if not earlier.get(part.path) for run in _runs_of(runs, tag, part)], orders)
    try:
        records = _record(choice, parts, runs, tag)
        if orders.snapshot and any(len(earlier.get(part.path, ())) <= part.links for part in parts):
            snapshot(runs, tag)
        return Launched(tag, tuple(_submit_all(parts, records, launcher, earlier)))
    except KeyboardInterrupt:
        ids = ", ".join(each.job_id for each in launcher.made) or "none"
        click.echo(
            f"submitted for {tag} before the interrupt: {ids}; one more may arrive: hpctrain ps, then hpctrain resubmit {tag}", err=True
        )
        before.restore()
        raise
    except (HpctrainError, OSError):
        before.restore()
        raise


def _refuse_part_of_another(runs: Path, tag: str) -> None:
    """Refuse a name that is a run of another launch: a point of a sweep would run without its values.

    Raises:
        UsageError: it is such a one.
    """
    run = store.read_run(runs, tag)
    if run is None or run.tag == tag:
        return
    what, array = (f"point {run.index}", f" --array {run.index}") if run.index is not None else (f"stage {run.stage}", "")
    raise UsageError(f"{tag} is {what} of {run.tag}", fix=f"hpctrain resubmit {run.tag}{array}, or another --run-id")


def _leave_no_empty_runs(runs: Path, *, had_runs: bool) -> None:
    """Remove a `runs/` that this command made, where a refusal has left nothing in it but a copy of the code."""
    try:
        (runs / layout.LAUNCHES).rmdir()
        if not had_runs and {each.name for each in runs.iterdir()} <= {layout.CODE}:
            shutil.rmtree(runs)
    except OSError:
        pass  # something is there


class _Before:
    """What there was of a launch before it began: a script that is refused leaves nothing behind."""

    def __init__(self, runs: Path, tag: str) -> None:
        self.runs, self.tag = runs, tag
        self.had_launch = launch.launch_dir(runs, tag).exists()

    def restore(self) -> None:
        """Remove what was made, unless something was submitted, or may have been."""
        whole = launch.load(self.runs, self.tag)
        if self.had_launch or (whole is not None and whole.submissions):
            return
        if whole is not None:
            for run in launch.run_dirs_for(self.runs, whole):
                if run.is_dir() and [each.name for each in run.iterdir()] == ["run.json"]:
                    shutil.rmtree(run)
        shutil.rmtree(launch.launch_dir(self.runs, self.tag), ignore_errors=True)


def _runs(script: Chosen) -> Path:
    """Return `runs/` of the directory in which the script runs."""
    chdir = Path(script.values.get("chdir") or Path.cwd())
    if not chdir.is_dir():
        raise UsageError(f"the job would run in {chdir}, which is not here", fix="submit it there: sbatch, or hpctrain submit")
    return chdir / layout.RUNS


def _interrupted(choice: Choice) -> str | None:
    """Return the tag of a submission of one of these scripts that was never answered: the answer may be that it is there."""
    for script in choice.scripts:
        for entry in ledger.unanswered_of(script.text):
            if entry.arguments:
                return entry.arguments[0]
    return None


def _part(one: Chosen, *, several: bool) -> Part:
    script = one.made
    return Part(
        path=one.path, text=one.text, title=one.path.name if several else "", made=script,
        array=one.values.get("array"), is_array=is_array(one),
        offset=script.part.offset if script is not None and script.part is not None else 0,
        stage=script.spec.stage if script is not None else None,
        dependencies=tuple(script.stage.dependencies) if script is not None and script.stage is not None else (),
        links=script.spec.max_restarts if script is not None and script.spec.restart == "chain" else 0,
    )  # fmt: skip


def _name(choice: Choice) -> str:
    """Return what the launch is called: the job's name, of stages that of the whole."""
    if choice.whole is not None:
        return choice.whole.job.spec.job_name
    return choice.scripts[0].values.get("job-name") or "job"


def _runs_of(runs: Path, tag: str, part: Part) -> list[Run]:
    """Return the runs that a part covers, as far as they are known; those of an array that waits have no directory yet."""
    if part.array is None:
        indices: Sequence[int | None] = (None,)
    else:
        task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
        try:
            tasks = (int(task),) if task.isdigit() else arrays.parse(part.array).indices
        except ValueError:
            return []  # the scheduler says what is wrong with it
        indices = [part.offset + index for index in tasks]
    if launch.load(runs, tag) is None and not any(entry.arguments[:1] == (tag,) for entry in ledger.entries()):
        indices = [index for index in indices if layout.run_dir(runs, layout.run_id(tag, stage=part.stage, index=index)).exists()]
    ids = {layout.run_id(tag, stage=part.stage, index=index): index for index in indices}
    return [store.read_run(runs, run) or Run(id=run, tag=tag, stage=part.stage, index=index) for run, index in ids.items()]


def _refuse_running(runs: Path, tag: str, known: Sequence[Run], orders: Orders) -> None:
    """Refuse to submit a run that has a job already: two trainings would write to the same checkpoints.

    Raises:
        UsageError: one of them waits or runs, or nobody knows.
        SchedulerError: a submission of one of them was never answered, or Slurm does not say whether one of them runs.
    """
    from hpctrain.cli import jobs_meant, runs_jobs

    found = runs_jobs.survey(runs, known, every_job=True)
    for run, state in found.states.items():
        if state.word == "unknown" and state.live and found.silent is not None:
            raise SchedulerError(
                f"whether job {state.live[0]} of the run {run} still runs is not known",
                details=(*jobs_meant.in_words(found.silent), "two jobs of one run would write to the same checkpoints"),
                fix="sinfo, and when that answers: the same command; or another --run-id",
            )  # fmt: skip
        if state.word in ("running", "pending") or (state.word == "unknown" and state.live):
            raise UsageError(
                f"the run {run} is {state.word}: {state.reason}",
                fix=f"hpctrain cancel {state.live[0] if state.live else tag}, or another --run-id",
            )
    whole = launch.load(runs, tag)
    open_ = [each for each in whole.submissions if each.job_id is None] if whole is not None else []
    submitted = launches.read(runs, tag)
    forgotten = [run for run in known if found.states[run.id].forgotten]
    silent = [run.id for run in forgotten if None in launches.jobs_of(run, submitted)]
    if silent and open_ and not orders.resend:
        raise SchedulerError(
            f"a submission of the run {silent[0]} has not been answered, and may still arrive",
            fix="squeue --me; if it is not there, and did not run: hpctrain submit --resend with the same options",
        )
    for each in open_ if silent else ():
        launch.drop_submission(runs, tag, each.token)
    for run in found.states:
        go_on(runs, run)


def go_on(runs: Path, run: str) -> None:
    """Take away what tells the jobs of a run that it is over."""
    for name in ("over", "stop"):
        (layout.run_dir(runs, run) / name).unlink(missing_ok=True)


def _record(choice: Choice, parts: Sequence[Part], runs: Path, tag: str) -> dict[Path, launch.Part]:
    """Write the record of the launch, all of it before anything is sent, and the directories of its runs: they are found while they wait.

    Returns:
        What is recorded of each script.
    """
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
    return {part.path: _record_part(part, runs, tag) for part in parts}


def _record_part(part: Part, runs: Path, tag: str) -> launch.Part:
    script = launch.add_script(runs, tag, part.path.name, part.text)
    config = None
    if part.made is not None:
        said = part.made.job.config.model_dump(mode="json", exclude={"sweep"})
        config = launch.add_config(runs, tag, said, part.made.job.origins, stage=part.stage)
    record = launch.Part(
        script=script, config=config, array=part.array, offset=part.offset, stage=part.stage, dependencies=part.dependencies,
        links=part.links, at=time.time(),
    )  # fmt: skip
    launch.add_part(runs, tag, record)
    return record


def _make_run(runs: Path, run: str, tag: str, name: str, stage: str | None) -> None:
    from hpctrain.runs import files

    directory = layout.run_dir(runs, run)
    if directory.is_symlink():
        raise UsageError(f"{directory} is a link, and a run is a directory of its own", fix=f"ls -l {directory}, or another --run-id")
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

    kept = code.snapshot(runs.parent, runs, without=_secret_files(runs, tag))
    launch.set_code(runs, tag, kept.as_json(), kept.diff, snapshot=kept.digest)
    for skipped in kept.skipped:
        click.echo(f"note: the snapshot of the code is without {skipped[0]}: {skipped[1]}", err=True)


def _secret_files(runs: Path, tag: str) -> list[Path]:
    """Return the files that the launch's configs read secrets from: a copy of one would be one more place that leaks."""
    from hpctrain.runs import files

    found = []
    for config in launch.launch_dir(runs, tag).glob("config*.json"):
        said = (files.read_json(config) or {}).get("config") or {}
        secrets = [*((said.get("environment") or {}).get("secrets") or {}).values(), (said.get("notify") or {}).get("webhook")]
        found += [runs.parent / Path(str(file)).expanduser() for file in secrets if file not in (None, "environment")]
    return found


def _submit_all(
    parts: Sequence[Part], records: Mapping[Path, launch.Part], launcher: Launcher, earlier: Mapping[Path, Sequence[Submission]]
) -> list[Submitted]:
    """Submit what no earlier call has: the scripts, and the links of their chains.

    What goes to the scheduler is the launch's own copy of each script, which nobody writes again: beside it, other commands may render
    other scripts to the same file.
    """
    made: list[Submitted] = []
    jobs: dict[str, list[str]] = {}
    for part in parts:
        record = records[part.path]
        kept = launch.script_path(launcher.runs, launcher.tag, record.script)
        said: dict[str, Any] = {
            "script": record.script, "config": record.config, "stage": part.stage, "offset": part.offset, "shown": part.path,
        }  # fmt: skip
        submissions = list(earlier.get(part.path, ()))
        if not submissions:
            submissions.append(launcher.submit(kept, dependency=dependency_on(part.dependencies, jobs), **said))
        submissions += launcher.chain(submissions[-1], kept, part.links + 1 - len(submissions), **said)[1:]
        made += [
            Submitted(f"{part.title}{f' (link {number} of its chain)' if number else ''}".strip(), each, part.is_array)
            for number, each in enumerate(submissions)
        ]
        if part.stage is not None:
            jobs[part.stage] = [each.job_id for each in submissions]
    return made


def dependency_on(dependencies: Sequence[tuple[str, str]], jobs: Mapping[str, Sequence[str]]) -> str | None:
    """Return `afterok:12,afterany:13`; of a chain, whose last jobs may be told that nothing is left, all must have ended."""
    words = []
    for stage, kind in dependencies:
        ids = jobs.get(stage, ())
        words += [f"{kind if len(ids) == 1 else 'afterany'}:{':'.join(ids)}"] if ids else []
    return ",".join(words) or None


def is_array(one: Chosen) -> bool:
    """Whether a script is submitted as several tasks; SLURM_ARRAY_TASK_ID set by hand takes one of them."""
    return "array" in one.values and not os.environ.get("SLURM_ARRAY_TASK_ID")
