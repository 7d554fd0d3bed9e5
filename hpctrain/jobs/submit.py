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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpctrain import __version__
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.jobs import project_code, schedulers, script_files
from hpctrain.jobs.scripts import Scripts
from hpctrain.runs import launch, layout, store
from hpctrain.runs.launch import Part
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
class SubmittedJobs:
    """The submissions of a launch, in order, for each of its scripts: a follow-up job of a chain is
    a submission of its own.

    Attributes:
        tag: None if the script takes no name.
        scripts: for each, its title (empty for a single one) and the scheduler's answers.
    """

    tag: str | None
    scripts: Sequence[tuple[str, Sequence[Submission]]]

    @property
    def ids(self) -> list[str]:
        """The ids of all jobs."""
        return [job.answer for _, jobs in self.scripts for job in jobs]


def submit(wanted: Scripts, scheduler: Scheduler, options: SubmitOptions) -> SubmittedJobs:
    """Submit scripts: choose and claim a name, compare with existing runs, record, take a snapshot,
    submit, and delete the record of a refused launch.

    Raises:
        UsageError: the name is invalid, or in use for something else.
        HpctrainError: a scheduler refused a script; the error lists what was submitted before it.
    """
    runs, path = wanted.runs_dir, wanted.scripts[0].path
    if not wanted.takes_name and options.run_id is not None:
        raise UsageError(
            f"{path} was not rendered by hpctrain, and takes no --run-id",
            fix=f"hpctrain submit {shell.quote(path)}",
        )
    if not wanted.takes_name:
        return SubmittedJobs(None, [("", [scheduler.submit(path)])])
    if not runs.parent.is_dir():
        raise UsageError(
            f"the job would run in {runs.parent}, which does not exist here",
            hint="submit it there: sbatch, or hpctrain submit",
        )
    tag = options.run_id or launch.new_tag(wanted.name, time.time(), random.getrandbits(16))
    launch.launch_dir(runs, tag)  # raises if the name is invalid
    run = store.read_run(runs, tag)
    if run is not None and run.tag != tag:  # a point of a sweep would run without its values
        raise UsageError(
            f"{tag} is a run of {run.tag}",
            fix=f"hpctrain resubmit {tag}",
            hint="or use another --run-id",
        )
    had_runs = runs.exists()
    submitter = Submitter(scheduler, runs, tag, options)
    try:
        with launch.claim(runs, tag):
            if options.run_id is not None:
                _refuse_running(runs, tag, wanted)
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
        with suppress(OSError):  # not empty
            (runs / layout.LAUNCHES).rmdir()
            # a refused launch has left only a copy of the code
            if not had_runs and {each.name for each in runs.iterdir()} <= {layout.CODE}:
                shutil.rmtree(runs)


def _forget(runs: Path, tag: str) -> None:
    """Delete the record of a launch created by this call, unless a script may have been
    submitted.
    """
    whole = launch.load(runs, tag)
    if whole is not None and whole.submissions:
        return
    for run in [runs / each for each in whole.run_ids] if whole is not None else ():
        if run.is_dir() and [each.name for each in run.iterdir()] == ["run.json"]:
            shutil.rmtree(run, ignore_errors=True)
    shutil.rmtree(launch.launch_dir(runs, tag), ignore_errors=True)


def _refuse_running(runs: Path, tag: str, wanted: Scripts) -> None:
    """Refuse to submit a run that already has a job: two trainings would write to the same
    checkpoints.

    Raises:
        UsageError: a run is waiting or running, or this is unknown.
        SchedulerError: a submission may still arrive, or Slurm does not report whether a run is
            active.
    """
    whole, known = launch.load(runs, tag), []
    for part in (one.entry for one in wanted.scripts):
        for run_id, index in part.run_ids(tag).items():
            # those of a waiting array have no directory yet
            if whole is not None or (runs / run_id).exists():
                run = store.run_of_launch(runs, run_id, tag=tag, stage=part.stage, index=index)
                known.append(run)
    found = schedulers.survey(runs, known, every_job=True)
    for name, state in found.states.items():
        is_unknown = state.word == "unknown" and bool(state.live)
        if is_unknown and found.silent is not None:
            raise SchedulerError(
                f"whether job {state.live[0]} of the run {name} still runs is not known",
                details=(
                    f"  {schedulers.last_message(found.silent)}",
                    "two jobs of one run would write to the same checkpoints",
                ),
                fix="sinfo",
                hint="when that answers, run the same command again; or use another --run-id",
            )
        if is_unknown or state.word in ("running", "pending"):
            raise UsageError(
                f"the run {name} is {state.word}: {state.reason}",
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
    for name in found.states:
        reopen(runs, tag, name)


def reopen(runs: Path, tag: str, run: str) -> None:
    """Delete the files that tell a run's jobs to stop, and the record of its deletion."""
    directory = runs / run
    for path in (directory / "over", directory / "stop", launch.deletion_path(runs, tag, run)):
        path.unlink(missing_ok=True)


def _record(wanted: Scripts, runs: Path, tag: str, options: SubmitOptions) -> list[StoredScript]:
    """Write the launch record and the run directories, all before the first submission, so that
    waiting runs can be found. Return the stored scripts.
    """
    runs.mkdir(exist_ok=True)
    launch.create(
        runs,
        tag,
        kind=wanted.kind,
        name=wanted.name,
        now=time.time(),
        cwd=str(runs.parent),
        version=__version__,
        argv=options.argv,
        stages=[script.stage.name for script in wanted.scripts if script.stage is not None],
        points=len(wanted.plan.points) if wanted.plan is not None else None,
        table=wanted.plan.table.name if wanted.plan is not None else None,
    )
    found = []
    for one in wanted.scripts:
        part, config = one.entry, None
        if one.job is not None and one.part is None and not one.spec.array:
            # array tasks create their own directories
            run = layout.run_id(tag, stage=part.stage)
            path = runs / run / "run.json"
            path.parent.mkdir(exist_ok=True)
            who = {"run_id": run, "tag": tag, "name": wanted.name, "created": int(time.time())}
            if not path.exists():
                files.write_json(path, {"schema": 1, **who, "index": None, "stage": part.stage})
        script_files.ensure_library(one.text)
        script = launch.add_script(runs, tag, one.path.name, one.text)
        if one.job is not None:
            values = one.job.config.replace(sweep=None).to_data()
            config = launch.add_config(runs, tag, values, one.job.origins, stage=part.stage)
        ignored, at = options.ignored, time.time()
        part = replace(part, script=script, config=config, at=at, ignored=ignored)
        launch.add_part(runs, tag, part)
        # The script's own directive contains the array.
        path = launch.launch_dir(runs, tag) / launch.SCRIPTS / script
        found.append(StoredScript(path, replace(part, array=None), shown=one.path))
    return found


def snapshot(runs: Path, tag: str, say: Say) -> None:
    """Store a copy of the current code, without files from which the launch's configs read secrets,
    and let the jobs of the launch run it.

    Raises:
        UsageError: the project is too large; the fix names what to exclude.
    """
    secret = []
    for config in launch.launch_dir(runs, tag).glob("config*.json"):
        values = (files.read_json(config) or {}).get("config") or {}
        named = ((values.get("environment") or {}).get("secrets") or {}).values()
        for file in (*named, (values.get("notify") or {}).get("webhook")):
            if file not in (None, "environment"):
                secret.append(runs.parent / stored.expanded(str(file)))
    kept = project_code.snapshot(runs.parent, runs, without=secret)
    launch.set_code(runs, tag, kept.as_json(), kept.version.diff)
    for skipped in kept.skipped:
        say(f"note: the snapshot of the code is without {skipped[0]}: {skipped[1]}")


@dataclass(slots=True)
class Submitter:
    """Submits scripts under one tag one by one, and records each.

    Attributes:
        made: the submissions so far.
    """

    scheduler: Scheduler
    runs: Path
    tag: str
    options: SubmitOptions
    made: list[Submission] = field(default_factory=list)

    def submit_all(
        self, scripts: Sequence[StoredScript], of_stage: Mapping[str, Sequence[str]] | None = None
    ) -> SubmittedJobs:
        """Submit scripts in order, each after the stages that it depends on, and followed by the
        jobs of its chain, each after the previous one, however that ends.

        Args:
            scripts: the scripts.
            of_stage: for stages submitted before, the jobs that later stages depend on.

        Raises:
            HpctrainError: the scheduler refused a script, or did not answer; an unanswered
                submission is recorded too. The error lists what was submitted before it.
        """
        jobs_of = dict(of_stage or {})
        found: list[tuple[str, list[Submission]]] = []
        for script in scripts:
            part, name = script.part, script.shown.name if script.shown else script.part.script
            jobs: list[Submission] = []
            found.append((name if len(scripts) > 1 else "", jobs))
            # A chain always gets afterany: its last jobs may find nothing left to do.
            after = [
                f"{kind if len(ids) == 1 else 'afterany'}:{':'.join(ids)}"
                for stage, kind in part.dependencies
                if (ids := jobs_of.get(stage))
            ]
            dependency = ",".join(after) or None
            for _ in range(part.links + 1):
                sent = self._send(script, dependency)
                jobs.append(sent)
                dependency = f"afterany:{sent.answer}"
            if part.stage is not None:
                jobs_of[part.stage] = [job.answer for job in jobs]
        return SubmittedJobs(self.tag, found)

    def _send(self, script: StoredScript, dependency: str | None) -> Submission:
        part, tag = script.part, self.tag
        draft = Submission(
            script=part.script,
            config=part.config,
            offset=part.offset,
            stage=part.stage,
            command=self.options.argv[1:],
        )
        try:
            sent = self.scheduler.submit(
                script.path,
                arguments=(tag,),
                dependency=dependency,
                array=part.array,
                shown=script.shown,
                draft=draft,
                folder=launch.submissions_dir(self.runs, tag),
            )
        except HpctrainError as error:
            if self.made:
                ids = ", ".join(each.answer for each in self.made)
                before = f"submitted before that for {tag}, and still there: {ids}; the rest is not"
                error.details = (*error.details, before)
                error.hint = "; ".join(
                    filter(None, (error.hint, f"then run: hpctrain resubmit {tag}"))
                )
                if isinstance(error, RefusedError):
                    error.partial = True
            raise
        self.made.append(sent)
        return sent
