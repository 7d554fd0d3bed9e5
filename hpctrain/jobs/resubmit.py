"""Find the unfinished runs of a launch (neither completed, waiting nor running) and the scripts
that continue them, and submit these; with `--apply-fix`, apply the fixes of a diagnosis to their
config first, and render their scripts again.
"""

from __future__ import annotations

import graphlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from hpctrain.config import layers, to_spec
from hpctrain.config.arguments import word
from hpctrain.config.spec import SIZES, JobSpec
from hpctrain.config.stages import Stage, remaining
from hpctrain.config.sweep import selected
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.explain.model import Change, Diagnosis
from hpctrain.explain.values import path_of
from hpctrain.jobs import (
    explanation,
    header,
    request,
    schedulers,
    script_files,
    scripts,
    suggest,
    targets,
)
from hpctrain.jobs.request import parse_request
from hpctrain.jobs.submit import Say, StoredScript, SubmittedJobs, Submitter, reopen, snapshot
from hpctrain.runs import launch, layout, store
from hpctrain.runs.job_state import State
from hpctrain.runs.launch import Launch, Part
from hpctrain.runs.store import Run
from hpctrain.slurm import batch_script, job_ids
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations import directives, units
from hpctrain.util import files, shell, text, yaml12
from hpctrain.util.shell import options_of

#: Seconds between queries while a run has ended but the scheduler has not closed its job yet.
_ENDING_S = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
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
    messages: Sequence[str] = ()
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
    whole, never = launch.load(runs, name), list[Run]()
    if whole is not None:
        known, never = targets.launched_runs(runs, whole)
    else:
        listing = store.list_runs(runs)
        known = [run for run in listing.runs if run.tag == name]
        if not known or any(run.id == name for run in known):
            known = targets.runs_of(name, listing, started=False)
            if len({run.tag for run in known}) != 1:
                known = [targets.one_run(name, listing)]
            whole = launch.load(runs, known[0].tag)
    tag = whole.tag if whole is not None else known[0].tag
    if array is not None:
        everything = [run.index for run in (*known, *never) if run.index is not None]
        points = (whole.points if whole is not None else None) or max(everything, default=0) + 1
        indices = set(selected(array, points)[0])
        known, never = ([run for run in each if run.index in indices] for each in (known, never))
    for pause in (*_ENDING_S, None):
        found = schedulers.survey(runs, known, every_job=True)
        if pause is None or not any(_is_ending(state) for state in found.states.values()):
            break
        time.sleep(pause)
    found.require_answer(f"hpctrain resubmit {name}")
    states = found.states
    left = [run for run in known if _is_left(states[run.id])]
    if whole is not None and whole.kind == "stages" and left and len(known) > 1:
        waiting = [run for run in known if run not in left and states[run.id].word == "pending"]
        staged, blocked = _in_stages(whole, _again(runs, tag, whole, [*left, *waiting]), states)
        again = {layout.run_id(tag, stage=each.part.stage) for each in staged}
        others = [run for run in known if run.id not in again or run in left]
        # For each stage, the active jobs of a chain, else the one submitted last; reloaded, because
        # the survey may have found jobs.
        jobs: dict[str, tuple[str, ...]] = {}
        for sent in (launch.load(runs, tag) or whole).submissions:
            if sent.stage is not None and sent.job is not None:
                state = states.get(layout.run_id(tag, stage=sent.stage))
                jobs[sent.stage] = state.live if state and len(state.live) > 1 else (sent.job,)
        messages = _messages(others, states)
        return ResubmitPlan(tag, tuple(sorted(again)), tuple(staged), messages, blocked, jobs)
    messages = _messages(known, states)
    if never:
        asked = request.of_launch(whole) if whole is not None else suggest.Asked()
        indices = {run.index for run in never if run.index is not None}
        array = arrays.compress(indices)
        submit = suggest.command("submit", asked, "--run-id", tag, "--array", array)
        count = text.count(len(never), "combination")
        messages.append(f"{count} never submitted; to submit the rest: {submit}")
    return ResubmitPlan(
        tag, tuple(run.id for run in left), _again(runs, tag, whole, left), messages
    )


def _is_left(state: State) -> bool:
    """Whether a run needs to be resubmitted; one whose end stays unknown counts as failed."""
    ended = state.word in ("failed", "stopped") or (state.word == "unknown" and state.forgotten)
    return ended and not state.live


def _is_ending(state: State) -> bool:
    return state.word in ("failed", "stopped") and bool(state.live)


def _messages(known: Sequence[Run], states: Mapping[str, State]) -> list[str]:
    counts = Counter(
        "never started, or forgotten" if _is_left(state) and state.word == "unknown" else state.word
        for state in (states[run.id] for run in known)
    )
    busy = [run.id for run in known if states[run.id].word in ("pending", "running")]
    ending = [run.id for run in known if _is_ending(states[run.id])]
    lines = (
        [", ".join(f"{count} {word}" for word, count in sorted(counts.items()))] if known else []
    )
    for names, why in ((busy, "they wait or run"), (ending, "their jobs are still ending")):
        if names:
            more = " …" if len(names) > 5 else ""
            lines.append(f"left alone, because {why}: {', '.join(names[:5])}{more}")
    elsewhere = (job_ids.elsewhere(job) for run in known for job in states[run.id].live)
    return lines + list(dict.fromkeys(line for line in elsewhere if line is not None))


def _again(
    runs: Path, tag: str, whole: Launch | None, left: Sequence[Run]
) -> tuple[StoredScript, ...]:
    """Return the scripts that continue `left`: for each run, the one recorded or submitted last; a
    run submitted with `sbatch` has a copy of its script.

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
    found = []
    for part in parts:
        if whole is not None and part.script in mine:
            indices = [run.index for run in mine[part.script]]
            path = whole.path / launch.SCRIPTS / part.script
            if not path.is_file():
                array = (
                    f" --array {part.array}" if whole.kind == "sweep" and not part.offset else ""
                )
                raise UsageError(
                    f"the script of {tag} no longer exists: {path}",
                    fix=f"hpctrain submit --run-id {tag}{array}",
                )
            found.append(StoredScript(path, narrowed(replace(part, dependencies=()), indices)))
    copies: dict[str, list[Run]] = {}
    for run in mine.get("", ()):
        path = runs / run.id / "script.sbatch"
        if not path.is_file():
            raise UsageError(
                f"the script of run {run.id} no longer exists",
                hint=f"submit the script itself again: sbatch SCRIPT {tag}",
            )
        copies.setdefault(batch_script.read(path)[0], []).append(run)
    for tasks in copies.values():  # those of one array have the same script
        path = runs / tasks[0].id / "script.sbatch"
        said = directives.last_values(batch_script.read(path)[1])
        name = f"{said.get('job-name') or 'job'}.sbatch"
        part = Part(script=name, array=said.get("array"), at=0.0)
        found.append(StoredScript(path, narrowed(part, [run.index for run in tasks])))
    return tuple(found)


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
    of_stage = {
        stage.name: states.get(layout.run_id(whole.tag, stage=stage.name)) for stage in planned
    }
    for stage, state in of_stage.items():
        if state is None:  # deleted: no stage waits for it
            words[stage] = "completed"
        elif _is_ending(state):
            words[stage] = "running"
        else:
            words[stage] = None if _is_left(state) and state.word == "unknown" else state.word
    open_stages, blocked = remaining(planned, words)
    by_stage = {each.part.stage: each for each in parts}
    again = [
        StoredScript(each.path, replace(each.part, dependencies=stage.dependencies))
        for stage in open_stages
        if (each := by_stage.get(stage.name)) is not None
    ]
    waiting = [state for name in blocked if (state := of_stage[name]) is not None]
    return again, tuple(job for state in waiting for job in state.live)


def narrowed(part: Part, indices: Iterable[int | None]) -> Part:
    """Return a script's entry with only the tasks of these runs, and the same throttle."""
    if part.array is None:
        return part
    _, percent, throttle = part.array.partition("%")
    tasks = arrays.compress(index - part.offset for index in indices if index is not None)
    return replace(part, array=tasks + percent + throttle)


def submit(plan: ResubmitPlan, submitter: Submitter, *, new_code: bool, say: Say) -> SubmittedJobs:
    """Submit the plan: cancel the blocked jobs, reopen the runs, submit the scripts.

    Raises:
        HpctrainError: a scheduler refused a script; the error lists what was submitted before it.
    """
    runs = submitter.runs
    with launch.claim(runs, plan.tag):
        for each in plan.parts:
            script_files.ensure_library(batch_script.read(each.path)[0])
        for job in plan.blocked:
            schedulers.owner(job).cancel([job])
            say(f"cancelled {job}, which waited for a job that has failed")
        for run in plan.runs:
            reopen(runs, plan.tag, run)
        if new_code:
            snapshot(runs, plan.tag, say)
        return submitter.submit_all(plan.parts, plan.jobs)


def what_runs(runs: Path, tag: str, *, new_code: bool, local: bool) -> str | None:
    """Return a note that a launch continues with its own config, and its own code unless `new_code`,
    with the command that uses the current ones; None if it has no copy of the code.
    """
    whole = launch.load(runs, tag)
    if whole is None or whole.code is None:
        return None
    words = [*(["--local"] if local else []), "--run-id", tag]
    submit = suggest.command("submit", request.of_launch(whole), *words)
    what = "config of its submission" if new_code else "code and config of its submission"
    return f"note: {tag} continues with the {what}; with the current ones: {submit}"


# -- with the fix of a diagnosis --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedScript:
    """A script rendered again with a changed config.

    Attributes:
        part: the entry of the script that it replaces, for the runs that it continues.
        name: its file name; `config_name`: that of the config in the launch record.
        resolved: the config.
        written: the config in the notation of config.yaml, as JSON.
        changes: differences from the stored config; empty if there are none.
        diagnosis: the diagnosis that the changes come from.
    """

    part: Part
    name: str
    config_name: str
    text: str
    spec: JobSpec
    resolved: layers.ResolvedConfig
    written: str
    changes: tuple[Change, ...]
    runs: tuple[str, ...]
    diagnosis: Diagnosis


#: The scripts to submit, in order: unchanged ones, and those that were rendered again.
FixPlan = tuple[StoredScript | FixedScript, ...]


def plan_fix(runs: Path, left: ResubmitPlan) -> FixPlan:
    """Return the scripts with the fixes of each failed run's first diagnosis; write nothing.

    Raises:
        HpctrainError: a run has no fix that can be applied automatically; the message contains the
            manual steps.
        UsageError: the config cannot be changed this way.
    """
    whole = launch.load(runs, left.tag)
    if whole is None:
        raise UsageError(
            f"{left.tag} was not submitted by hpctrain, so its config is not known",
            fix=f"hpctrain resubmit {left.tag}",
        )
    if whole.kind == "sweep":
        tasks = arrays.compress(
            index
            for each in left.parts
            for index in each.part.run_ids(left.tag).values()
            if index is not None
        )
        raise UsageError(
            f"{left.tag} is a sweep, and --apply-fix changes the config of single jobs only",
            fix=f"hpctrain explain {left.runs[0]}",
            hint="change config.yaml as it says, then run:"
            f" hpctrain submit --run-id {left.tag} --array {tasks}",
        )
    parts: list[StoredScript | FixedScript] = []
    for again in left.parts:
        mine = again.part.run_ids(left.tag)
        started = any((one := store.read_run(runs, each)) and one.attempts for each in mine)
        if again.part.dependencies and not started:
            parts.append(again)  # its dependency failed: nothing to fix here
            continue
        failed: dict[str, Diagnosis] = {}
        for run in mine:
            found = explanation.explained([run], runs_dir=runs).explanation.diagnoses
            if not found or not found[0].fix.changes:
                raise HpctrainError(
                    f"{run} has no fix that can be applied automatically",
                    details=(
                        found[0].cause if found else "no rule knows why it failed",
                        *(
                            f"  {line}"
                            for line in (found[0].fix.text if found else "").splitlines()
                        ),
                    ),
                    fix=f"hpctrain explain {run}",
                    hint=f"do what it says, then run: hpctrain resubmit {left.tag}",
                )
            failed[run] = found[0]
        if len({each.fix.changes for each in failed.values()}) > 1:
            raise HpctrainError(
                "the failed runs need different fixes",
                details=tuple(f"{run}: {each.cause}" for run, each in failed.items())[:5],
                hint=f"one kind at a time: hpctrain resubmit {left.tag} --array INDICES --apply-fix",
            )
        parts.append(_fixed_script(whole, again, failed))
    return tuple(parts)


def _fixed_script(
    whole: Launch, again: StoredScript, failed: Mapping[str, Diagnosis]
) -> FixedScript:
    """Return the script that continues failed runs, with the config changed as their diagnoses,
    which all have the same fix, suggest.

    Raises:
        UsageError: the config was not stored, cannot be changed this way, or the project has
            changed.
        HpctrainError: the runs failed with these changes applied.
    """
    part, diagnosis, tag = again.part, next(iter(failed.values())), whole.tag
    changes = diagnosis.fix.changes
    kept = files.read_json(whole.path / part.config) if part.config is not None else None
    made = header.read_header(batch_script.read(again.path)[0])
    if kept is None or not isinstance(kept.get("config"), dict) or made is None:
        raise UsageError(
            f"the config of {tag} was not kept, because its script was submitted by hand",
            hint=f"change config.yaml, then run: hpctrain submit --run-id {tag}",
        )
    if Path(made.directory) != Path.cwd():
        raise UsageError(
            f"{tag} was rendered in {made.directory}, and this is another directory",
            fix=f"cd {shell.quote(made.directory)}",
        )
    if kept["config"].get("tune"):
        raise UsageError(
            f"{tag} is a study, and its definition holds the config",
            hint="change config.yaml, then run: hpctrain tune",
        )
    data = _as_written(kept["config"])
    typed = parse_request(made.arguments).arguments
    # An argument after `--` would override the changed config.
    changed = {change.key.removeprefix("training.") for change in changes}
    groups = shell.option_groups(typed)
    arguments = tuple(word for name, group in groups if name not in changed for word in group)
    done = _applied(data, changes, typed)
    sent = any(each.script == part.script and each.job_id is not None for each in whole.submissions)
    if not done and sent:
        raise HpctrainError(
            f"{next(iter(failed))} failed with this fix applied: {diagnosis.id}",
            details=(diagnosis.cause, *(f"  {line}" for line in diagnosis.fix.text.splitlines())),
            hint=f"to submit it unchanged: hpctrain resubmit {tag}; or change config.yaml, then run:"
            f" hpctrain submit --run-id {tag}",
        )
    if part.array is not None:
        data["array"] = part.array
    origins = {tuple(path.split(".")): where for path, where in (kept.get("origins") or {}).items()}
    reason = f"hpctrain resubmit --apply-fix ({diagnosis.id})"
    origins |= {tuple(path_of(change.key)): reason for change in done}
    layer = layers.Layer("file", f"the config of {tag}", data, origins)
    command = f"hpctrain resubmit {tag} --apply-fix"
    resolved = layers.resolve([layer], again=command)
    here = {"directory": str(Path.cwd()), "home": str(Path.home())}
    spec = to_spec.to_spec(resolved.config, **here, arguments=arguments)
    planned = stages_of(whole)
    for stage in planned:
        if stage.name == part.stage:
            spec = to_spec.of_stage(spec, stage, planned)
    stem = re.sub(r"(\.\d+)?\.sbatch\Z", "", part.script)
    # The header contains the command that renders the script from the config in the record.
    config_name = f"{stem}.{spec.digest()}.config.json"
    place = f"{layout.RUNS}/{layout.LAUNCHES}/{tag}/scripts/{config_name}"
    words = ("--config", place, *(("--", *arguments) if arguments else ()))
    return FixedScript(
        part=part,
        name=f"{stem}.sbatch",
        config_name=config_name,
        text=scripts.rendered(spec, words, command),
        spec=spec,
        resolved=resolved,
        written=files.json_text(data),
        changes=done,
        runs=tuple(failed),
        diagnosis=diagnosis,
    )


def keep_fix(runs: Path, left: ResubmitPlan, fixed: FixPlan) -> ResubmitPlan:
    """Write the rendered scripts into the launch record, and return the plan that submits them."""
    tag, at = left.tag, time.time()
    parts: list[StoredScript] = []
    with launch.claim(runs, tag):
        whole = launch.load(runs, tag)
        if whole is None:
            raise HpctrainError(f"the record of {tag} no longer exists", fix="hpctrain runs list")
        for one in fixed:
            if isinstance(one, StoredScript):
                parts.append(one)
                continue
            launch.add_script(runs, tag, one.config_name, one.written)
            script = launch.add_script(runs, tag, one.name, one.text)
            values = one.resolved.config.replace(sweep=None).to_data()
            origins, old = one.resolved.origins, one.part
            config = launch.add_config(runs, tag, values, origins, stage=old.stage)
            links = one.spec.max_restarts if one.spec.restart == "chain" else 0
            part = replace(old, script=script, config=config, links=links, at=at)
            recorded = next(each for each in whole.parts if each.script == old.script)
            launch.add_part(runs, tag, replace(part, dependencies=recorded.dependencies))
            parts.append(StoredScript(launch.launch_dir(runs, tag) / launch.SCRIPTS / script, part))
    return replace(left, parts=tuple(parts))


# -- the config ------------------------------------------------------------------------------------


def _as_written(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a resolved config to the notation of config.yaml: `64G` for bytes, `04:00:00` for
    seconds. It does not record whether a training value was quoted.
    """
    data: dict[str, Any] = json.loads(json.dumps(config))
    training, resources = data.get("training") or {}, data.get("resources") or {}
    training.update({name: _unquoted(value) for name, value in training.items()})
    for name in (*SIZES, "time"):
        if isinstance(resources.get(name), int):
            written = units.format_time if name == "time" else units.format_memory
            resources[name] = written(resources[name])
    return data


def _unquoted(value: Any, *, nested: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _unquoted(item, nested=True) for key, item in value.items()}
    if isinstance(value, list):
        return [_unquoted(item, nested=nested) for item in value]
    if not isinstance(value, str):
        return value
    return yaml12.to_json_value(yaml12.Plain(value)) if nested else word(yaml12.Plain(value))


def _applied(
    data: dict[str, Any], changes: Sequence[Change], arguments: Sequence[str]
) -> tuple[Change, ...]:
    """Change the values in `data`, and return the changes. The old value comes from `data` or from
    the arguments after `--`.
    """
    done = []
    for change in changes:
        *parents, name = path = path_of(change.key)
        holder = data
        for part in parents:
            if not isinstance(holder.get(part), dict):
                holder[part] = {}
            holder = holder[part]
        old, new = holder.pop(name, None), _text(change.new)
        if parents == ["environment", "env"] and new is None:
            # a variable goes from all layers, also from the cluster's profile
            unset = data["environment"].get("unset") or []
            if name not in unset:
                data["environment"]["unset"] = [*unset, name]
                done.append(change)
            continue
        if new is not None:
            holder[name] = new if path[0] in ("training", "sbatch") else change.new
        for rival in _RIVALS.get(name, ()) if parents == ["resources"] else ():
            holder.pop(rival, None)
        if path[0] == "training":  # arguments after `--` override the config
            old = options_of(arguments).get(name, old)
        if _text(old) != new:
            plain = old is None or isinstance(old, str | int | float | bool)
            done.append(replace(change, old=old if plain else str(old)))
    return tuple(done)


#: A job has one memory request, and one of cores.
_RIVALS = {"mem": ("mem_per_cpu", "mem_per_gpu"), "cpus_per_gpu": ("cpus_per_task",)}


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
