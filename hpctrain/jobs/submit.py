"""Submit the scripts of a launch, and record it under `runs/.launches/TAG/`: the config, the code,
the scripts, and each sbatch call.

The name of the launch, its tag, is fixed before the first script is submitted, and is passed to the
script as an argument.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain import __version__
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.jobs import project_code, schedulers, script_files
from hpctrain.jobs.scripts import JobScript, JobScripts
from hpctrain.runs import launch, layout, store
from hpctrain.runs.launch import Part
from hpctrain.runs.store import Run
from hpctrain.slurm import job_ids, ledger
from hpctrain.slurm.base import RefusedError, Scheduler
from hpctrain.slurm.client import may_arrive
from hpctrain.slurm.ledger import Submission
from hpctrain.util import files, shell, stored

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """Options of a submission.

    Attributes:
        run_id: the name of the launch; None generates one.
        snapshot: whether the jobs run a copy of the current code.
        ignored: ids of findings that the user accepted.
        argv: the hpctrain command line.
        say: receives progress messages, one line at a time.
    """

    run_id: str | None = None
    snapshot: bool = True
    ignored: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    say: Say = lambda _: None


@dataclass(frozen=True, slots=True)
class StoredScript:
    """A script to submit for a launch.

    Attributes:
        path: the copy in the launch's record, which is never rewritten: other commands may render
            other scripts to the user's file; for runs submitted with sbatch, the copy in a run.
        part: the runs that it covers; an array overrides the script's own directive.
        shown: the path to show to the user, if not `path`.
    """

    path: Path
    part: Part
    shown: Path | None = None


@dataclass(frozen=True, slots=True)
class SubmittedScript:
    """A script that a scheduler has accepted.

    Attributes:
        title: its name in messages; empty for a single script.
        jobs: the scheduler's answers: one, plus one for each follow-up job of a chain.
    """

    title: str
    jobs: tuple[Submission, ...]

    @property
    def is_array(self) -> bool:
        """Whether it runs as several tasks."""
        return self.jobs[0].array is not None


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """The scripts of a launch in the order of submission; `tag` is None if they take no name."""

    tag: str | None
    scripts: tuple[SubmittedScript, ...]

    @property
    def ids(self) -> list[str]:
        """The ids of all jobs, in the order of submission."""
        return [job.answer for script in self.scripts for job in script.jobs]


def submit(wanted: JobScripts, scheduler: Scheduler, options: SubmitOptions) -> SubmittedJobs:
    """Submit scripts: choose and claim a name, compare with existing runs, record, take a snapshot,
    submit, and delete the record of a refused launch.

    Raises:
        UsageError: the name is invalid, or in use for something else.
        HpctrainError: a scheduler refused a script; the error lists what was submitted before it.
    """
    if not wanted.takes_name:
        return _submit_unnamed(wanted, scheduler, options)
    runs = wanted.runs_dir
    if not runs.parent.is_dir():
        raise UsageError(
            f"the job would run in {runs.parent}, which does not exist here",
            hint="submit it there: sbatch, or hpctrain submit",
        )
    tag = options.run_id or launch.new_tag(wanted.name, time.time(), random.getrandbits(16))
    launch.launch_dir(runs, tag)  # raises if the name is invalid
    _refuse_part_of_another(runs, tag)
    had_runs = runs.exists()
    submitter = Submitter(scheduler, runs, tag, options)
    try:
        with launch.claim(runs, tag):
            if options.run_id is not None:
                known = [run for one in wanted.scripts for run in _runs_of(runs, tag, one.part)]
                _refuse_running(runs, tag, known)
            had_launch = launch.launch_dir(runs, tag).exists()
            try:
                for one in wanted.scripts:  # before the first of several is sent
                    scheduler.refuse_unanswered(one.text)
                stored_scripts = _record(wanted, runs, tag, options)
                if options.snapshot:
                    snapshot(runs, tag, options.say)
                return submitter.submit_all(stored_scripts)
            except (HpctrainError, OSError, KeyboardInterrupt) as error:
                if isinstance(error, KeyboardInterrupt):
                    ids = ", ".join(each.answer for each in submitter.made) or "none"
                    options.say(
                        f"submitted for {tag} before the interrupt: {ids}; one more may arrive:"
                        f" hpctrain ps, then hpctrain resubmit {tag}"
                    )
                if not had_launch:
                    _forget(runs, tag)
                raise
    finally:
        _remove_empty_runs(runs, had_runs=had_runs)


def _submit_unnamed(
    wanted: JobScripts, scheduler: Scheduler, options: SubmitOptions
) -> SubmittedJobs:
    if options.run_id is not None:
        path = wanted.scripts[0].path
        raise UsageError(
            f"{path} was not rendered by hpctrain, and takes no --run-id",
            fix=f"hpctrain submit {shell.quote(path)}",
        )
    return SubmittedJobs(
        None,
        tuple(SubmittedScript("", (scheduler.submit(one.path),)) for one in wanted.scripts),
    )


def _refuse_part_of_another(runs: Path, tag: str) -> None:
    """Refuse a run of another launch as a name: a point of a sweep would run without its values."""
    run = store.read_run(runs, tag)
    if run is None or run.tag == tag:
        return
    what, array = (
        (f"combination {run.index}", f" --array {run.index}")
        if run.index is not None
        else (f"stage {run.stage}", "")
    )
    raise UsageError(
        f"{tag} is {what} of {run.tag}",
        fix=f"hpctrain resubmit {run.tag}{array}",
        hint="or use another --run-id",
    )


def _forget(runs: Path, tag: str) -> None:
    """Delete the record of a launch created by this call, unless a script may have been
    submitted.
    """
    whole = launch.load(runs, tag)
    if whole is not None and whole.submissions:
        return
    for run in launch.run_dirs_for(runs, whole) if whole is not None else ():
        if run.is_dir() and [each.name for each in run.iterdir()] == ["run.json"]:
            shutil.rmtree(run)
    shutil.rmtree(launch.launch_dir(runs, tag), ignore_errors=True)


def _remove_empty_runs(runs: Path, *, had_runs: bool) -> None:
    """Delete a `runs/` created by this call, if a refused launch has left only a copy of the code
    in it.
    """
    try:
        (runs / layout.LAUNCHES).rmdir()
        if not had_runs and {each.name for each in runs.iterdir()} <= {layout.CODE}:
            shutil.rmtree(runs)
    except OSError:
        pass  # not empty


def _runs_of(runs: Path, tag: str, part: Part) -> list[Run]:
    """Return the known runs of a part; those of a waiting array have no directory yet."""
    ids = part.run_ids(tag)
    if launch.load(runs, tag) is None:
        ids = {run: index for run, index in ids.items() if (runs / run).exists()}
    return [
        store.run_of_launch(runs, run, tag=tag, stage=part.stage, index=index)
        for run, index in ids.items()
    ]


def _refuse_running(runs: Path, tag: str, known: Sequence[Run]) -> None:
    """Refuse to submit a run that already has a job: two trainings would write to the same
    checkpoints.

    Raises:
        UsageError: a run is waiting or running, or this is unknown.
        SchedulerError: a submission may still arrive, or Slurm does not report whether a run is
            active.
    """
    found = schedulers.survey(runs, known, every_job=True)
    for run, state in found.states.items():
        is_unknown = state.word == "unknown" and bool(state.live)
        if is_unknown and found.silent is not None:
            raise SchedulerError(
                f"whether job {state.live[0]} of the run {run} still runs is not known",
                details=(
                    f"  {schedulers.last_message(found.silent)}",
                    "two jobs of one run would write to the same checkpoints",
                ),
                fix="sinfo",
                hint="when that answers, run the same command again; or use another --run-id",
            )
        if is_unknown or state.word in ("running", "pending"):
            raise UsageError(
                f"the run {run} is {state.word}: {state.reason}",
                fix=job_ids.cancel_command(state.live[:1] or [tag]),
                hint="or use another --run-id",
            )
    whole = launch.load(runs, tag)
    for each in whole.submissions if whole is not None else ():
        if each.job_id is None:  # the survey has looked for its job
            if time.time() - each.at < ledger.ARRIVES_S:
                raise may_arrive(f"the run {tag}", each.at)
            ledger.forget(each.token)
            (launch.submissions_dir(runs, tag) / f"{each.token}.json").unlink(missing_ok=True)
    for run in found.states:
        reopen(runs, tag, run)


def reopen(runs: Path, tag: str, run: str) -> None:
    """Delete the files that tell a run's jobs to stop, and the record of its deletion."""
    directory = runs / run
    for path in (directory / "over", directory / "stop", launch.deletion_path(runs, tag, run)):
        path.unlink(missing_ok=True)


def _record(wanted: JobScripts, runs: Path, tag: str, options: SubmitOptions) -> list[StoredScript]:
    """Write the launch record and the run directories, all before the first submission, so that
    waiting runs can be found. Return the stored scripts.
    """
    runs.mkdir(exist_ok=True)
    made = wanted.whole
    stages = (script.stage for script in made.scripts) if made is not None else ()
    launch.create(
        runs,
        tag,
        kind=made.kind if made is not None else "run",
        name=wanted.name,
        now=time.time(),
        cwd=str(runs.parent),
        version=__version__,
        argv=options.argv,
        stages=[stage.name for stage in stages if stage is not None],
        points=len(made.plan.points) if made is not None and made.plan is not None else None,
        table=next(iter(made.tables)).name if made is not None and made.plan is not None else None,
    )
    for one in wanted.scripts:
        if one.has_run:
            _make_run(runs, tag, wanted.name, one.part.stage)
    return [_record_script(one, runs, tag, options.ignored) for one in wanted.scripts]


def _record_script(one: JobScript, runs: Path, tag: str, ignored: tuple[str, ...]) -> StoredScript:
    script_files.ensure_library(one.text)
    functions = script_files.library_path(one.text)
    if functions is not None and functions.is_file():
        launch.add_library(runs, tag, functions.name, stored.read_text(functions))
    script = launch.add_script(runs, tag, one.path.name, one.text)
    config = None
    if one.made is not None:
        values = one.made.job.config.replace(sweep=None).to_data()
        stage = one.made.spec.stage
        config = launch.add_config(runs, tag, values, one.made.job.origins, stage=stage)
    part = replace(one.part, script=script, config=config, at=time.time(), ignored=ignored)
    launch.add_part(runs, tag, part)
    # The script's own directive contains the array.
    path = launch.script_path(runs, tag, script)
    return StoredScript(path, replace(part, array=None), shown=one.path)


def _make_run(runs: Path, tag: str, name: str, stage: str | None) -> None:
    run = layout.run_id(tag, stage=stage)
    directory = runs / run
    if directory.is_symlink():
        raise UsageError(
            f"{directory} is a link, and a run is a directory of its own",
            fix=f"ls -l {shell.quote(directory)}",
            hint="or use another --run-id",
        )
    directory.mkdir(exist_ok=True)
    if not (directory / "run.json").exists():
        who = {"run_id": run, "tag": tag, "name": name, "created": int(time.time())}
        files.write_json(
            directory / "run.json", {"schema": 1, **who, "index": None, "stage": stage}
        )


def snapshot(runs: Path, tag: str, say: Say) -> None:
    """Store a copy of the current code, and let the jobs of the launch run it.

    Raises:
        UsageError: the project is too large; the fix names what to exclude.
    """
    kept = project_code.snapshot(runs.parent, runs, without=_secret_files(runs, tag))
    launch.set_code(runs, tag, kept.as_json(), kept.version.diff, snapshot=kept.digest)
    for skipped in kept.skipped:
        say(f"note: the snapshot of the code is without {skipped[0]}: {skipped[1]}")


def _secret_files(runs: Path, tag: str) -> list[Path]:
    """Return the files from which the launch's configs read secrets: copies of them could leak."""
    found = []
    for config in launch.launch_dir(runs, tag).glob("config*.json"):
        values = (files.read_json(config) or {}).get("config") or {}
        secrets = [
            *((values.get("environment") or {}).get("secrets") or {}).values(),
            (values.get("notify") or {}).get("webhook"),
        ]
        found += [
            runs.parent / stored.expanded(str(file))
            for file in secrets
            if file not in (None, "environment")
        ]
    return found


def dependency_on(
    dependencies: Sequence[tuple[str, str]], jobs: Mapping[str, Sequence[str]]
) -> str | None:
    """Return `afterok:12,afterany:13`. A chain always gets afterany: its last jobs may find nothing
    left to do.
    """
    words = []
    for stage, kind in dependencies:
        ids = jobs.get(stage, ())
        words += [f"{kind if len(ids) == 1 else 'afterany'}:{':'.join(ids)}"] if ids else []
    return ",".join(words) or None


class Submitter:
    """Submits scripts under one tag one by one, and records each.

    Attributes:
        made: the submissions so far.
    """

    def __init__(self, scheduler: Scheduler, runs: Path, tag: str, options: SubmitOptions) -> None:
        self.scheduler, self.runs, self.tag, self.options = scheduler, runs, tag, options
        self.made: list[Submission] = []

    def submit_all(
        self, scripts: Sequence[StoredScript], of_stage: Mapping[str, Sequence[str]] | None = None
    ) -> SubmittedJobs:
        """Submit scripts in order, each after the stages that it depends on.

        Args:
            scripts: the scripts.
            of_stage: for stages submitted before, the jobs that later stages depend on.

        Raises:
            HpctrainError: as `submit_script`.
        """
        jobs_of = dict(of_stage or {})
        found = []
        for each in scripts:
            part, name = each.part, each.shown.name if each.shown else each.part.script
            jobs = self.submit_script(each, after=dependency_on(part.dependencies, jobs_of))
            found.append(SubmittedScript(name if len(scripts) > 1 else "", jobs))
            if part.stage is not None:
                jobs_of[part.stage] = [job.answer for job in jobs]
        return SubmittedJobs(self.tag, tuple(found))

    def submit_script(
        self, script: StoredScript, *, after: str | None = None
    ) -> tuple[Submission, ...]:
        """Submit a script and the follow-up jobs of its chain, each after the previous one, however
        that ends. `after` is the dependency of the first job.

        Raises:
            HpctrainError: the scheduler refused the script, or did not answer; an unanswered
                submission is recorded too.
        """
        part = script.part
        draft = Submission(
            script=part.script,
            config=part.config,
            offset=part.offset,
            stage=part.stage,
            command=self.options.argv[1:],
        )
        jobs: list[Submission] = []
        while len(jobs) <= part.links:
            try:
                sent = self.scheduler.submit(
                    script.path,
                    arguments=(self.tag,),
                    dependency=f"afterany:{jobs[-1].answer}" if jobs else after,
                    array=part.array,
                    shown=script.shown,
                    draft=draft,
                    folder=launch.submissions_dir(self.runs, self.tag),
                )
            except HpctrainError as error:
                _name_those_before(error, self.made, self.tag)
                raise
            jobs.append(sent)
            self.made.append(sent)
        return tuple(jobs)


def _name_those_before(error: HpctrainError, made: Sequence[Submission], tag: str) -> None:
    """Add to an error the jobs submitted before it, and the command that submits the rest."""
    if not made:
        return
    ids = ", ".join(each.answer for each in made)
    error.details = (
        *error.details,
        f"submitted before that for {tag}, and still there: {ids}; the rest is not",
    )
    error.hint = "; ".join(filter(None, (error.hint, f"then run: hpctrain resubmit {tag}")))
    if isinstance(error, RefusedError):
        error.partial = True
