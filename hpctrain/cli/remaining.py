"""What is left of a launch: the runs that have neither completed nor wait or run, and the scripts that go on with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import click

from hpctrain.cli import runs_jobs
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.jobs.stages import Stage, remaining
from hpctrain.jobs.sweep import selected
from hpctrain.runs import files, launch, launches, layout, store
from hpctrain.runs.index import read_all
from hpctrain.runs.launch import Launch
from hpctrain.runs.select import one
from hpctrain.runs.states import State
from hpctrain.runs.store import Run
from hpctrain.scheduler import batch_script
from hpctrain.scheduler.parse import array as arrays
from hpctrain.scheduler.parse import directives

#: Scripts with which a launch began are kept in its record; of one that was submitted by hand, each run has its own copy.
_SCRIPTS, _COPY = "scripts", "script.sbatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
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
        jobs: of each stage, the job that was submitted last.
    """

    tag: str
    runs: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
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
        UsageError: there is no such launch or run, or it has no script.
        SchedulerError: a scheduler does not answer, so that nobody knows what still runs.
    """
    meant, known = _meant(runs, name)
    tag = meant.tag if meant is not None else known[0].tag
    if array is not None:
        points = meant.points if meant is not None and meant.points else max((run.index or 0 for run in known), default=0) + 1
        indices = set(selected(array, points)[0])
        known = [run for run in known if run.index in indices]
    found = runs_jobs.survey(runs, known, every_job=True)
    if found.silent is not None and any(state.word == "unknown" and not state.forgotten for state in found.states.values()):
        raise SchedulerError(found.silent.what, details=found.silent.details, fix=f"{found.silent.fix}; then: hpctrain resubmit {name}")
    left = [run for run in known if _is_left(found.states[run.id])]
    if meant is not None and meant.kind == "stages" and left and len(known) > 1:
        waiting = [run for run in known if run not in left and found.states[run.id].word == "pending"]
        staged, in_vain = _in_stages(meant, _parts(runs, tag, meant, [*left, *waiting]), found.states)
        again = {layout.run_id(tag, stage=part.stage) for part in staged}
        said = tuple(_said([run for run in known if run.id not in again or run in left], found.states))
        return Left(tag=tag, runs=tuple(sorted(again)), parts=tuple(staged), said=said, in_vain=in_vain, jobs=_newest_jobs(meant))
    parts = _parts(runs, tag, meant, left) if left else ()
    return Left(tag=tag, runs=tuple(run.id for run in left), parts=parts, said=tuple(_said(known, found.states)))


def _newest_jobs(whole: Launch) -> dict[str, tuple[str, ...]]:
    """Return the job that was submitted last for each stage."""
    return {each.stage: (each.job_id,) for each in whole.submissions if each.stage is not None and each.job_id is not None}


def _is_left(state: State) -> bool:
    """Whether a run is to be submitted again; one of which nobody will ever know more counts as dead."""
    if state.word in ("failed", "stopped"):
        return True
    return state.word == "unknown" and state.forgotten and not state.live


def _said(known: Sequence[Run], states: dict[str, State]) -> list[str]:
    counts: dict[str, int] = {}
    for run in known:
        word = states[run.id].word if not _is_left(states[run.id]) or states[run.id].word != "unknown" else "never started, or forgotten"
        counts[word] = counts.get(word, 0) + 1
    lines = [", ".join(f"{count} {word}" for word, count in sorted(counts.items()))]
    busy = [run.id for run in known if states[run.id].word in ("pending", "running")]
    if busy:
        lines.append(f"left alone, because they wait or run: {', '.join(busy[:5])}{' …' if len(busy) > 5 else ''}")
    return lines


def _meant(runs: Path, name: str) -> tuple[Launch | None, list[Run]]:
    """Return the launch that is meant, where there is a record of one, and its runs, those that never started too."""
    whole = launch.load(runs, name)
    if whole is not None:
        return whole, [_run(runs, whole, run) for run in whole.run_ids] or [run for run in _all(runs) if run.tag == name]
    everything = _all(runs)
    mine = [run for run in everything if run.tag == name]
    if mine and not any(run.id == name for run in mine):
        return None, mine
    run = one(name, everything)
    return launch.load(runs, run.tag), [run]


def _all(runs: Path) -> list[Run]:
    return list(read_all(runs).runs)


def _run(runs: Path, whole: Launch, run: str) -> Run:
    """Return a run of a launch; of one that never started, what its name says."""
    found = store.read_run(runs, run)
    if found is not None:
        return found
    rest = run.removeprefix(f"{whole.tag}_")
    return Run(id=run, tag=whole.tag, stage=rest if whole.kind == "stages" else None, index=int(rest) if whole.kind == "sweep" else None)


def _parts(runs: Path, tag: str, whole: Launch | None, left: Sequence[Run]) -> tuple[Part, ...]:
    if whole is None or not whole.submissions:
        return _by_hand(runs, left)
    parts: list[Part] = []
    covered: set[str] = set()
    for each in _first_of_each(whole):
        mine = [run for run in left if run.id not in covered and _runs_it(each, run)]
        if not mine:
            continue
        covered.update(run.id for run in mine)
        config = files.read_json(whole.path / each.config) if each.config else None
        parts.append(
            Part(
                script=whole.path / _SCRIPTS / str(each.script), name=str(each.script), config=each.config, stage=each.stage,
                offset=each.offset, array=_array(each, mine), links=_links(config),
            )
        )  # fmt: skip
    if missing := [run.id for run in left if run.id not in covered]:
        raise UsageError(f"no script of {tag} runs {missing[0]}", fix=f"hpctrain submit --run-id {tag}")
    return tuple(parts)


def _first_of_each(whole: Launch) -> list[launch.Submission]:
    """Return, for each script of the launch, its first submission: the one with the widest array."""
    first: dict[tuple[str | None, int, str | None], launch.Submission] = {}
    for each in whole.submissions:
        if each.script is not None:
            first.setdefault((each.script, each.offset, each.stage), each)
    return list(first.values())


def _stages(whole: Launch) -> list[Stage]:
    """Return the stages of a launch, with the dependencies that they were first submitted with."""
    owners = {each.job_id: each.stage for each in whole.submissions if each.job_id is not None and each.stage is not None}
    found = []
    for index, each in enumerate(_first_of_each(whole)):
        waits: dict[str, str] = {}
        for word in (each.dependency or "").split(","):
            kind, _, jobs = word.partition(":")
            waits.update({owners[job]: kind for job in jobs.split(":") if job in owners and owners[job] != each.stage})
        dependencies = tuple((stage, cast("Any", kind)) for stage, kind in waits.items())
        found.append(Stage(name=each.stage or "", index=index, dependencies=dependencies))
    return found


def _in_stages(whole: Launch, parts: Sequence[Part], states: Mapping[str, State]) -> tuple[list[Part], tuple[str, ...]]:
    """Return the parts of the stages that go on, each waiting for those before it, and the jobs that would wait in vain."""
    planned = _stages(whole)
    words: dict[str, str | None] = {}
    for stage in planned:
        state = states[layout.run_id(whole.tag, stage=stage.name)]
        words[stage.name] = None if _is_left(state) and state.word == "unknown" else state.word
    plan = remaining(planned, words)
    by_stage = {part.stage: part for part in parts}
    again = [replace(by_stage[stage.name], dependencies=stage.dependencies) for stage in plan.stages if stage.name in by_stage]
    return again, tuple(job for stage in plan.cancel for job in states[layout.run_id(whole.tag, stage=stage)].live)


def _runs_it(each: launch.Submission, run: Run) -> bool:
    if run.stage is not None or each.stage is not None:
        return run.stage == each.stage
    if each.array is None or run.index is None:
        return each.array is None and run.index is None
    return run.index >= each.offset and launches.holds(each.array, run.index - each.offset)


def _array(each: launch.Submission, mine: Sequence[Run]) -> str | None:
    """Return the tasks that are left, as many at a time as before."""
    if each.array is None:
        return None
    _, percent, throttle = each.array.partition("%")
    return arrays.compress(run.index - each.offset for run in mine if run.index is not None) + percent + throttle


def _links(config: dict[str, object] | None) -> int:
    said = (config or {}).get("config")
    restart = said.get("restart") if isinstance(said, dict) else None
    return int(restart["max"]) if isinstance(restart, dict) and restart.get("mode") == "chain" else 0


def _by_hand(runs: Path, left: Sequence[Run]) -> tuple[Part, ...]:
    """Return the parts of runs that `sbatch` was typed for: each run keeps a copy of its script."""
    parts: dict[str, list[Run]] = {}
    texts: dict[str, Path] = {}
    for run in left:
        path = layout.run_dir(runs, run.id) / _COPY
        if not path.is_file():
            raise UsageError(f"the run {run.id} has no script any more", fix=f"sbatch SCRIPT {run.tag}")
        text = batch_script.read(path)[0]
        texts.setdefault(text, path)
        parts.setdefault(text, []).append(run)
    made = []
    for text, mine in parts.items():
        own = directives.last_values(batch_script.read(texts[text])[1]).get("array")
        each = launch.Submission(token="", argv=(), at=0.0, scheduler="slurm", array=own)
        name = f"{directives.last_values(batch_script.read(texts[text])[1]).get('job-name') or 'job'}.sbatch"
        made.append(Part(script=texts[text], name=name, array=_array(each, mine)))
    return tuple(made)


def say_what_changed(runs: Path, tag: str) -> None:
    """Say where the project differs from the code that the launch runs."""
    from hpctrain.cli import code as look
    from hpctrain.runs import code

    whole = launch.load(runs, tag)
    old = code.stored(runs, whole.code) if whole is not None and whole.code is not None else None
    if old is None:
        return
    now = look.look(runs.parent, runs)
    if not isinstance(now, code.Snapshot):
        return
    changes = code.differences(old, code.by_path(now.entries))
    names = [*changes.changed, *changes.added, *changes.removed]
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        click.echo(
            f"note: the code of {tag} runs, and the project has changed since: {shown}; to run it as it is now: --new-code", err=True
        )
