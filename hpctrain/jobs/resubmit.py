"""Find the unfinished runs of a launch (neither completed, waiting nor running) and the scripts
that continue them, and submit these.
"""

from __future__ import annotations

import graphlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from hpctrain.config.stages import Stage, remaining
from hpctrain.config.sweep import selected
from hpctrain.errors import UsageError
from hpctrain.jobs import header, schedulers, script_files, suggest, targets
from hpctrain.jobs import requested as request
from hpctrain.jobs.submit import Say, StoredScript, SubmittedJobs, Submitter, reopen, snapshot
from hpctrain.runs import launch, layout, store
from hpctrain.runs.job_state import State
from hpctrain.runs.launch import Launch, Part
from hpctrain.runs.store import Run
from hpctrain.slurm import batch_script, job_ids
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations import directives

#: Seconds between queries while a run has ended but the scheduler has not closed its job yet.
_ENDING_S = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResubmitPlan:
    """The unfinished runs of a launch: its tag, the runs, the scripts, and messages for the user.

    Attributes:
        blocked: jobs of stages that wait for a job which cannot end as their dependency requires;
            they are canceled first.
        jobs: for each stage, the jobs that later stages depend on.
    """

    tag: str
    runs: tuple[str, ...] = ()
    parts: tuple[StoredScript, ...] = ()
    messages: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def find(runs: Path, name: str, array: str | None) -> ResubmitPlan:
    """Return what is unfinished in the launch or run called `name`.

    Args:
        runs: the directory of all runs.
        name: a tag, a run, or the prefix of a run's id.
        array: for a sweep, the points to consider.

    Raises:
        UsageError: there is no such launch or run, or its script no longer exists.
        SchedulerError: a scheduler does not answer, so it is unknown which runs have ended.
    """
    whole, known, never = _target(runs, name)
    tag = whole.tag if whole is not None else known[0].tag
    if array is not None:
        everything = [run.index for run in known if run.index is not None] + never
        points = (whole.points if whole is not None else None) or max(everything, default=0) + 1
        indices = set(selected(array, points)[0])
        known = [run for run in known if run.index in indices]
        never = [index for index in never if index in indices]
    states = _states(runs, known, name)
    left = [run for run in known if _is_left(states[run.id])]
    if whole is not None and whole.kind == "stages" and left and len(known) > 1:
        waiting = [run for run in known if run not in left and states[run.id].word == "pending"]
        staged, blocked = _in_stages(whole, _again(runs, tag, whole, [*left, *waiting]), states)
        again = {layout.run_id(tag, stage=each.part.stage) for each in staged}
        return ResubmitPlan(
            tag=tag,
            runs=tuple(sorted(again)),
            parts=tuple(staged),
            messages=tuple(
                _messages([run for run in known if run.id not in again or run in left], states)
            ),
            blocked=blocked,
            # reloaded: the survey may have found jobs
            jobs=_newest_jobs(launch.load(runs, tag) or whole, states),
        )
    return ResubmitPlan(
        tag=tag,
        runs=tuple(run.id for run in left),
        parts=_again(runs, tag, whole, left),
        messages=(*_messages(known, states), *_never_submitted(tag, whole, never)),
    )


def _target(runs: Path, name: str) -> tuple[Launch | None, list[Run], list[int]]:
    """Return the launch of this name, if it has a record, its runs, started or not, and the points
    that were never submitted.
    """
    whole = launch.load(runs, name)
    if whole is not None:
        known, never = targets.launched_runs(runs, whole)
        return whole, known, [run.index for run in never if run.index is not None]
    listing = store.list_runs(runs)
    mine = [run for run in listing.runs if run.tag == name]
    if mine and not any(run.id == name for run in mine):
        return None, mine, []
    named = targets.runs_of_one_launch(name, listing)
    return launch.load(runs, named[0].tag), named, []


def _states(runs: Path, known: Sequence[Run], name: str) -> dict[str, State]:
    """Return the states of runs; wait a few seconds for a job that is just ending.

    Raises:
        SchedulerError: a scheduler does not answer, and a state is unknown because of it.
    """
    for pause in (*_ENDING_S, None):
        found = schedulers.survey(runs, known, every_job=True)
        if pause is None or not any(_is_ending(state) for state in found.states.values()):
            break
        time.sleep(pause)
    found.require_answer(f"hpctrain resubmit {name}")
    return found.states


def _newest_jobs(whole: Launch, states: Mapping[str, State]) -> dict[str, tuple[str, ...]]:
    """Return the jobs of each stage: the active ones of a chain, else the one submitted last."""
    jobs: dict[str, tuple[str, ...]] = {
        each.stage: (each.job,)
        for each in whole.submissions
        if each.stage is not None and each.job is not None
    }
    for stage in jobs:
        state = states.get(layout.run_id(whole.tag, stage=stage))
        if state is not None and len(state.live) > 1:
            jobs[stage] = state.live
    return jobs


def _is_left(state: State) -> bool:
    """Whether a run needs to be resubmitted; one whose end stays unknown counts as failed."""
    if state.live:
        return False
    return state.word in ("failed", "stopped") or (state.word == "unknown" and state.forgotten)


def _is_ending(state: State) -> bool:
    return state.word in ("failed", "stopped") and bool(state.live)


def _messages(known: Sequence[Run], states: Mapping[str, State]) -> list[str]:
    counts = Counter(
        "never started, or forgotten" if _is_left(state) and state.word == "unknown" else state.word
        for state in (states[run.id] for run in known)
    )
    lines = [", ".join(f"{count} {word}" for word, count in sorted(counts.items()))]
    busy = [run.id for run in known if states[run.id].word in ("pending", "running")]
    if busy:
        lines.append(f"left alone, because they wait or run: {_some(busy)}")
    elsewhere = (job_ids.elsewhere(job) for run in known for job in states[run.id].live)
    lines += dict.fromkeys(line for line in elsewhere if line is not None)
    ending = [
        f"{run.id} (job {states[run.id].live[0]})" for run in known if _is_ending(states[run.id])
    ]
    if ending:
        lines.append(
            f"left alone, because their jobs are still ending: {_some(ending)}; once they have"
            f" ended: hpctrain resubmit {known[0].tag}"
        )
    return lines if known else []


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _never_submitted(tag: str, whole: Launch | None, never: Collection[int]) -> list[str]:
    if not never:
        return []
    were, them = (
        ("1 combination was", "it")
        if len(never) == 1
        else (f"{len(never)} combinations were", "them")
    )
    asked = request.of_launch(whole) if whole is not None else suggest.Asked()
    submit = suggest.command("submit", asked, "--run-id", tag, "--array", arrays.compress(never))
    return [f"{were} never submitted; to submit {them}: {submit}"]


def _again(
    runs: Path, tag: str, whole: Launch | None, left: Sequence[Run]
) -> tuple[StoredScript, ...]:
    """Return the scripts that continue `left`: for each run, the one recorded or submitted last.

    Raises:
        UsageError: a script no longer exists.
    """
    parts = whole.parts if whole is not None else ()
    submissions = whole.submissions if whole is not None else ()
    mine: dict[str, list[Run]] = {}
    for run in left:
        last = {
            part.script: max(
                part.at,
                *(
                    each.at
                    for each in submissions
                    if (each.script, each.offset or 0) == (part.script, part.offset)
                    and each.covers(run.index)
                ),
                0.0,
            )
            for part in reversed(parts)
            if targets.is_for(part, run)
        }
        mine.setdefault(max(last, key=last.__getitem__, default=""), []).append(run)
    by_hand = mine.pop("", [])
    found = []
    for part in parts:
        if whole is not None and part.script in mine:
            indices = [run.index for run in mine[part.script]]
            left_of = narrowed(replace(part, dependencies=()), indices)
            found.append(StoredScript(_stored(whole, part), left_of))
    fix = f"hpctrain submit --run-id {tag}" if whole is not None else None
    return (*found, *_by_hand(runs, by_hand, fix))


def _stored(whole: Launch, part: Part) -> Path:
    """Return the path of the launch's copy of a script.

    Raises:
        UsageError: the script no longer exists, or was edited.
    """
    path = launch.script_path(whole.path.parents[1], whole.tag, part.script)
    array = f" --array {part.array}" if whole.kind == "sweep" and not part.offset else ""
    fix = f"hpctrain submit --run-id {whole.tag}{array}"
    try:
        made = header.read_header(batch_script.read(path)[0])
    except (OSError, UsageError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"the script of {whole.tag} cannot be read: {path}: {reason}", fix=fix
        ) from error
    if made is None:
        raise UsageError(
            f"the script of {whole.tag} is damaged: {path}: its header is missing", fix=fix
        )
    return path


def stages_of(whole: Launch) -> list[Stage]:
    """Return the stages of a launch as last submitted, each after its dependencies."""
    newest = {part.stage: part for part in whole.parts if part.stage is not None}
    waits = {name: [stage for stage, _ in part.dependencies] for name, part in newest.items()}
    ordered = [name for name in graphlib.TopologicalSorter(waits).static_order() if name in newest]
    return [
        Stage(name=name, index=index, dependencies=cast("Any", newest[name].dependencies))
        for index, name in enumerate(ordered)
    ]


def _in_stages(
    whole: Launch, parts: Sequence[StoredScript], states: Mapping[str, State]
) -> tuple[list[StoredScript], tuple[str, ...]]:
    """Return the parts of the stages that continue, each with its dependencies, and the jobs that
    would wait forever.
    """
    planned = stages_of(whole)
    words: dict[str, str | None] = {}
    for stage in planned:
        state = states.get(layout.run_id(whole.tag, stage=stage.name))
        if state is None:  # deleted: no stage waits for it
            words[stage.name] = "completed"
            continue
        unknown = _is_left(state) and state.word == "unknown"
        words[stage.name] = "running" if _is_ending(state) else None if unknown else state.word
    open_stages, blocked = remaining(planned, words)
    by_stage = {each.part.stage: each for each in parts}
    again = [
        StoredScript(each.path, replace(each.part, dependencies=stage.dependencies))
        for stage in open_stages
        if (each := by_stage.get(stage.name)) is not None
    ]
    return again, tuple(
        job for stage in blocked for job in states[layout.run_id(whole.tag, stage=stage)].live
    )


def narrowed(part: Part, indices: Iterable[int | None]) -> Part:
    """Return a script's entry with only the tasks of these runs, and the same throttle."""
    if part.array is None:
        return part
    _, percent, throttle = part.array.partition("%")
    tasks = arrays.compress(index - part.offset for index in indices if index is not None)
    return replace(part, array=tasks + percent + throttle)


def _by_hand(runs: Path, left: Sequence[Run], fix: str | None) -> tuple[StoredScript, ...]:
    """Return the parts of runs submitted with `sbatch`, which have copies of their scripts."""
    parts: dict[str, list[Run]] = {}
    texts: dict[str, Path] = {}
    for run in left:
        path = runs / run.id / "script.sbatch"
        if not path.is_file():
            raise UsageError(
                f"the script of run {run.id} no longer exists",
                fix=fix,
                hint=None if fix else f"submit the script itself again: sbatch SCRIPT {run.tag}",
            )
        text = batch_script.read(path)[0]
        texts.setdefault(text, path)
        parts.setdefault(text, []).append(run)
    made = []
    for text, mine in parts.items():
        said = directives.last_values(batch_script.read(texts[text])[1])
        name = f"{said.get('job-name') or 'job'}.sbatch"
        part = Part(script=name, array=said.get("array"), at=0.0)
        made.append(StoredScript(texts[text], narrowed(part, [run.index for run in mine])))
    return tuple(made)


def submit(plan: ResubmitPlan, submitter: Submitter, *, new_code: bool, say: Say) -> SubmittedJobs:
    """Submit the plan: cancel the blocked jobs, reopen the runs, submit the scripts.

    Raises:
        HpctrainError: a scheduler refused a script; the error lists what was submitted before it.
    """
    runs = submitter.runs
    with launch.claim(runs, plan.tag):
        kept = [launch.launch_dir(runs, plan.tag)]
        kept += [runs / run for run in plan.runs]
        for each in plan.parts:
            script_files.ensure_library(batch_script.read(each.path)[0], copies=kept)
        for job in plan.blocked:
            schedulers.owner(job).cancel([job])
            say(f"cancelled {job}, which waited for a job that has failed")
        for run in plan.runs:
            reopen(runs, plan.tag, run)
        if new_code:
            snapshot(runs, plan.tag, say)
        return submitter.submit_all(plan.parts, plan.jobs)


def what_runs(runs: Path, tag: str, *, new_code: bool, local: bool) -> str | None:
    """Return a note that a launch continues with its own code and config, with the command that
    uses the current ones; None if it has no copy of the code.

    Args:
        runs: the directory of all runs.
        tag: the tag of the launch.
        new_code: the current code is used, but the script, and with it the config, is not new.
        local: the launch continues locally.
    """
    whole = launch.load(runs, tag)
    if whole is None or whole.code is None:
        return None
    asked = request.of_launch(whole)
    submit = suggest.command("submit", asked, *(["--local"] * local), "--run-id", tag)
    if not asked.words:  # a bare submit refuses a script that is older than config.yaml
        submit = suggest.Command(f"{suggest.command('render', asked)} && {submit}")
    what, current = ("config", "") if new_code else ("code and config", "--new-code for the code, ")
    return (
        f"note: {tag} continues with the {what} of its submission; to run it as it is now:"
        f" {current}for the config: {submit}"
    )
