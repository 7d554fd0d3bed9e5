"""What is left of a launch: the runs that have neither completed nor wait or run, and the scripts that go on with them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from hpctrain.cli import runs_jobs
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.jobs import render
from hpctrain.jobs.stages import Stage, remaining
from hpctrain.jobs.sweep import selected
from hpctrain.runs import files, launch, layout, store
from hpctrain.runs.index import read_all
from hpctrain.runs.launch import Launch, Part
from hpctrain.runs.select import one
from hpctrain.runs.states import State
from hpctrain.runs.store import Run
from hpctrain.scheduler import batch_script
from hpctrain.scheduler.parse import array as arrays
from hpctrain.scheduler.parse import directives

#: Scripts with which a launch began are kept in its record; of one that was submitted by hand, each run has its own copy.
_SCRIPTS, _COPY = "scripts", "script.sbatch"
#: Seconds between questions, where a run has said its last word and the scheduler still has to close its job.
_ENDING_S = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """One sbatch that goes on with something.

    Attributes:
        script: the file, kept since the first submission.
        name: of it, in the record.
        config: of it, in the record.
        array: of a sweep, the tasks that are left, in Slurm's form.
        offset: what is added to these to count points.
        stage: that it runs.
        dependencies: stages that come before it and are left too, and how they must end.
        links: of a chain, how many jobs follow the first.
    """

    script: Path
    name: str
    config: str | None = None
    array: str | None = None
    offset: int = 0
    stage: str | None = None
    dependencies: tuple[tuple[str, str], ...] = ()
    links: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is left of a launch: its tag, the runs, the scripts, and what to say of it.

    Attributes:
        in_vain: jobs of stages that wait for a job that will not end as they wait for; they go first.
        jobs: of each stage, the jobs that one that comes after it has to wait for.
    """

    tag: str
    runs: tuple[str, ...] = ()
    parts: tuple[Again, ...] = ()
    said: tuple[str, ...] = ()
    in_vain: tuple[str, ...] = ()
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def find(runs: Path, name: str, array: str | None) -> Left:
    """Return what is left of the launch or run called `name`.

    Args:
        runs: the directory of all runs.
        name: a tag, a run, or the beginning of one.
        array: of a sweep, the points to look at.

    Raises:
        UsageError: there is no such launch or run, or its script is gone.
        SchedulerError: a scheduler does not answer, so that nobody knows what still runs.
    """
    meant, known, never = _meant(runs, name)
    tag = meant.tag if meant is not None else known[0].tag
    if array is not None:
        everything = [run.index for run in known if run.index is not None] + never
        points = meant.points if meant is not None and meant.points else max(everything, default=0) + 1
        indices = set(selected(array, points)[0])
        known, never = [run for run in known if run.index in indices], [index for index in never if index in indices]
    states = _states(runs, known, name)
    left = [run for run in known if _is_left(states[run.id])]
    said = [*_said(known, states), *_never_submitted(tag, never)]
    if meant is not None and meant.kind == "stages" and left and len(known) > 1:
        waiting = [run for run in known if run not in left and states[run.id].word == "pending"]
        staged, in_vain = _in_stages(meant, _again(runs, tag, meant, [*left, *waiting]), states)
        again = {layout.run_id(tag, stage=part.stage) for part in staged}
        said = _said([run for run in known if run.id not in again or run in left], states)
        jobs = _newest_jobs(meant, states)
        return Left(tag=tag, runs=tuple(sorted(again)), parts=tuple(staged), said=tuple(said), in_vain=in_vain, jobs=jobs)
    parts = _again(runs, tag, meant, left) if left else ()
    return Left(tag=tag, runs=tuple(run.id for run in left), parts=parts, said=tuple(said))


def _states(runs: Path, known: Sequence[Run], name: str) -> dict[str, State]:
    """Return the states of runs; a job that is just ending gets a few seconds for it.

    Raises:
        SchedulerError: a scheduler does not answer, and that matters.
    """
    for pause in (*_ENDING_S, None):
        found = runs_jobs.survey(runs, known, every_job=True)
        if pause is None or not any(_is_ending(state) for state in found.states.values()):
            break
        time.sleep(pause)
    if found.silent is not None and any(state.word == "unknown" and not state.forgotten for state in found.states.values()):
        raise SchedulerError(found.silent.what, details=found.silent.details, fix=f"{found.silent.fix}; then: hpctrain resubmit {name}")
    return found.states


def _newest_jobs(whole: Launch, states: Mapping[str, State]) -> dict[str, tuple[str, ...]]:
    """Return, for each stage, its jobs that wait or run where it is a chain of them, else the one that was submitted last."""
    jobs: dict[str, tuple[str, ...]] = {
        each.stage: (each.job_id,) for each in whole.submissions if each.stage is not None and each.job_id is not None
    }
    for stage in jobs:
        state = states.get(layout.run_id(whole.tag, stage=stage))
        if state is not None and len(state.live) > 1:
            jobs[stage] = state.live
    return jobs


def _is_left(state: State) -> bool:
    """Whether a run is to be submitted again; one of which nobody will ever know more counts as dead."""
    if state.live:
        return False
    return state.word in ("failed", "stopped") or (state.word == "unknown" and state.forgotten)


def _is_ending(state: State) -> bool:
    """Whether the run has said its last word, and its job is still there."""
    return state.word in ("failed", "stopped") and bool(state.live)


def _said(known: Sequence[Run], states: Mapping[str, State]) -> list[str]:
    counts: dict[str, int] = {}
    for run in known:
        word = states[run.id].word if not _is_left(states[run.id]) or states[run.id].word != "unknown" else "never started, or forgotten"
        counts[word] = counts.get(word, 0) + 1
    lines = [", ".join(f"{count} {word}" for word, count in sorted(counts.items()))] if counts else []
    busy = [run.id for run in known if states[run.id].word in ("pending", "running")]
    if busy:
        lines.append(f"left alone, because they wait or run: {_some(busy)}")
    ending = [f"{run.id} (job {states[run.id].live[0]})" for run in known if _is_ending(states[run.id])]
    if ending:
        lines.append(
            f"left alone, because their jobs are still ending: {_some(ending)}; once they have ended: hpctrain resubmit {known[0].tag}"
        )
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _never_submitted(tag: str, never: Collection[int]) -> list[str]:
    """Return what to say of points that no script was submitted for: they are not left of anything."""
    if not never:
        return []
    were, them = ("1 point was", "it") if len(never) == 1 else (f"{len(never)} points were", "them")
    return [f"{were} never submitted; to submit {them}: hpctrain submit --run-id {tag} --array {arrays.compress(never)}"]


def _meant(runs: Path, name: str) -> tuple[Launch | None, list[Run], list[int]]:
    """Return the launch that is meant, where there is a record of one, its runs, those that never started too, and points of no script."""
    whole = launch.load(runs, name)
    if whole is not None:
        known, never = runs_of(runs, whole)
        return whole, known or ([] if never else [run for run in _all(runs) if run.tag == name]), never
    everything = _all(runs)
    mine = [run for run in everything if run.tag == name]
    if mine and not any(run.id == name for run in mine):
        return None, mine, []
    run = one(name, everything)
    return launch.load(runs, run.tag), [run], []


def runs_of(runs: Path, whole: Launch) -> tuple[list[Run], list[int]]:
    """Return the runs of a launch, and the points of a sweep that were never submitted."""
    scripts = [_Script(whole, part) for part in _parts_of(whole)]
    tasks = sorted({index for script in scripts for index in script.indices or ()})
    if whole.kind == "run" and tasks:  # `array:` without a sweep
        single = [_run(runs, whole, whole.tag, None)] if any(script.part.array is None for script in scripts) else []
        return [*single, *(_run(runs, whole, layout.run_id(whole.tag, index=index), index) for index in tasks)], []
    found: list[Run] = []
    never: list[int] = []
    for number, name in enumerate(whole.run_ids):
        run = _run(runs, whole, name, number if whole.kind == "sweep" else None)
        if whole.kind == "sweep" and not run.attempts and not any(script.runs(run) for script in scripts):
            never.append(number)
        else:
            found.append(run)
    return found, never


def _all(runs: Path) -> list[Run]:
    return list(read_all(runs).runs)


def _run(runs: Path, whole: Launch, run: str, index: int | None) -> Run:
    """Return a run of a launch; of one that never started, what its name says."""
    stage = run.removeprefix(f"{whole.tag}_") if whole.kind == "stages" else None
    return store.read_run(runs, run) or Run(id=run, tag=whole.tag, stage=stage, index=index)


class _Script:
    """A script of a launch: which runs it is for, and when it was last meant to run them."""

    def __init__(self, whole: Launch, part: Part) -> None:
        self.part = part
        self.indices = _indices(part.array, part.offset)
        self._sent = [
            (each.at, _indices(each.array, each.offset))
            for each in whole.submissions if (each.script, each.stage, each.offset) == (part.script, part.stage, part.offset)
        ]  # fmt: skip

    def runs(self, run: Run) -> bool:
        if run.stage is not None or self.part.stage is not None:
            return run.stage == self.part.stage
        if self.part.array is None or run.index is None:
            return self.part.array is None and run.index is None
        return self.indices is None or run.index in self.indices

    def last_meant(self, run: Run) -> float:
        """Return when it was last recorded, or submitted, for this run: the same script again is no new part."""
        return max([self.part.at, *(at for at, indices in self._sent if indices is None or run.index in indices)])


def _indices(array: str | None, offset: int) -> frozenset[int] | None:
    """Return the points of an array; None for none, and for one that cannot be read, which may have any."""
    try:
        return frozenset(index + offset for index in arrays.parse(array).indices) if array is not None else None
    except ValueError:
        return None


def _again(runs: Path, tag: str, whole: Launch | None, left: Sequence[Run]) -> tuple[Again, ...]:
    """Return the scripts that go on with `left`: for each run, the one that was last meant to run it.

    Raises:
        UsageError: such a script is gone.
    """
    scripts = [_Script(whole, part) for part in _parts_of(whole)] if whole is not None else []
    mine: dict[int, list[Run]] = {}
    by_hand: list[Run] = []
    for run in left:
        fitting = [number for number, script in enumerate(scripts) if script.runs(run)]
        if fitting:
            mine.setdefault(max(fitting, key=lambda number: (scripts[number].last_meant(run), number)), []).append(run)
        else:
            by_hand.append(run)
    parts = [_of_part(whole, scripts[number].part, mine[number]) for number in sorted(mine)] if whole is not None else []
    return (*parts, *_by_hand(runs, by_hand, f"hpctrain submit --run-id {tag}" if whole is not None else f"sbatch SCRIPT {tag}"))


def _of_part(whole: Launch, part: Part, mine: Sequence[Run]) -> Again:
    return Again(
        script=_stored(whole, part), name=part.script, config=part.config, stage=part.stage, offset=part.offset,
        array=_array(part.array, part.offset, mine), links=part.links,
    )  # fmt: skip


def _stored(whole: Launch, part: Part) -> Path:
    """Return where a script of the launch is kept.

    Raises:
        UsageError: it is gone, or no script of hpctrain any more.
    """
    path = whole.path / _SCRIPTS / part.script
    fix = f"hpctrain submit --run-id {whole.tag}{f' --array {part.array}' if whole.kind == 'sweep' and not part.offset else ''}"
    try:
        text = batch_script.read(path)[0]
    except OSError as error:
        raise UsageError(f"the script of {whole.tag} cannot be read: {path}: {error.strerror or error}", fix=fix) from error
    except UsageError as error:
        raise UsageError(f"the script of {whole.tag} is damaged: {path}", details=error.details, fix=fix) from error
    if render.read_header(text) is None:
        raise UsageError(f"the script of {whole.tag} is damaged: {path}: it does not say what it was rendered from", fix=fix)
    return path


def _parts_of(whole: Launch) -> list[Part]:
    """Return the parts of a launch, the oldest first; of scripts that an older hpctrain submitted, what their submissions say."""
    recorded = {part.script for part in whole.parts}
    first: dict[tuple[str, int, str | None], Part] = {}
    for each in whole.submissions:
        if each.script is not None and each.script not in recorded:
            config = files.read_json(whole.path / each.config) if each.config else None
            part = Part(
                script=each.script, config=each.config, array=each.array, offset=each.offset, stage=each.stage,
                dependencies=_waits_for(whole, each), links=_links(config), at=each.at,
            )  # fmt: skip
            first.setdefault((each.script, each.offset, each.stage), part)  # the first has the widest array
    return sorted([*first.values(), *whole.parts], key=lambda part: part.at)


def _waits_for(whole: Launch, submission: launch.Submission) -> tuple[tuple[str, str], ...]:
    """Return the stages that a submission waited for, and how they had to end."""
    owners = {each.job_id: each.stage for each in whole.submissions if each.job_id is not None and each.stage is not None}
    waits: dict[str, str] = {}
    for word in (submission.dependency or "").split(","):
        kind, _, jobs = word.partition(":")
        waits.update({owners[job]: kind for job in jobs.split(":") if job in owners and owners[job] != submission.stage})
    return tuple(waits.items())


def stages_of(whole: Launch) -> list[Stage]:
    """Return the stages of a launch as they were submitted last, each after those that it waits for."""
    newest = {part.stage: part for part in _parts_of(whole) if part.stage is not None}
    waiting = [stage for stage in (*whole.stages, *(stage for stage in newest if stage not in whole.stages)) if stage in newest]
    ordered: list[Stage] = []
    while waiting:
        name = next((each for each in waiting if not any(stage in waiting for stage, _ in newest[each].dependencies)), waiting[0])
        waiting.remove(name)
        ordered.append(Stage(name=name, index=len(ordered), dependencies=cast("Any", newest[name].dependencies)))
    return ordered


def _in_stages(whole: Launch, parts: Sequence[Again], states: Mapping[str, State]) -> tuple[list[Again], tuple[str, ...]]:
    """Return the parts of the stages that go on, each waiting for those before it, and the jobs that would wait in vain."""
    planned = stages_of(whole)
    words: dict[str, str | None] = {}
    for stage in planned:
        state = states[layout.run_id(whole.tag, stage=stage.name)]
        words[stage.name] = "running" if _is_ending(state) else None if _is_left(state) and state.word == "unknown" else state.word
    plan = remaining(planned, words)
    by_stage = {part.stage: part for part in parts}
    again = [replace(by_stage[stage.name], dependencies=stage.dependencies) for stage in plan.stages if stage.name in by_stage]
    return again, tuple(job for stage in plan.cancel for job in states[layout.run_id(whole.tag, stage=stage)].live)


def _array(array: str | None, offset: int, mine: Iterable[Run]) -> str | None:
    """Return the tasks that are left, as many at a time as before."""
    if array is None:
        return None
    _, percent, throttle = array.partition("%")
    return arrays.compress(run.index - offset for run in mine if run.index is not None) + percent + throttle


def _links(config: dict[str, object] | None) -> int:
    """Return how many jobs followed the first, in a record that does not say it."""
    said = (config or {}).get("config")
    restart = said.get("restart") if isinstance(said, dict) else None
    return int(restart["max"]) if isinstance(restart, dict) and restart.get("mode") == "chain" else 0


def _by_hand(runs: Path, left: Sequence[Run], fix: str) -> tuple[Again, ...]:
    """Return the parts of runs that `sbatch` was typed for: each run keeps a copy of its script."""
    parts: dict[str, list[Run]] = {}
    texts: dict[str, Path] = {}
    for run in left:
        path = layout.run_dir(runs, run.id) / _COPY
        if not path.is_file():
            raise UsageError(f"the run {run.id} has no script any more", fix=fix)
        text = batch_script.read(path)[0]
        texts.setdefault(text, path)
        parts.setdefault(text, []).append(run)
    made = []
    for text, mine in parts.items():
        said = directives.last_values(batch_script.read(texts[text])[1])
        made.append(Again(script=texts[text], name=f"{said.get('job-name') or 'job'}.sbatch", array=_array(said.get("array"), 0, mine)))
    return tuple(made)
