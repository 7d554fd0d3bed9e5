"""`hpctrain resubmit --apply-fix`: apply the fixes of a diagnosis to the config of failed runs, and
render their scripts again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.config import layers, to_spec
from hpctrain.config.arguments import word
from hpctrain.config.spec import SIZES, JobSpec
from hpctrain.config.sweep import ArrayPart, Sweep
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.explain.model import Change, Diagnosis
from hpctrain.explain.values import path_of
from hpctrain.jobs import explanation, header, resubmit, scripts, sweep_plan
from hpctrain.jobs.request import Request, parse_request
from hpctrain.jobs.resubmit import ResubmitPlan
from hpctrain.jobs.submit import StoredScript
from hpctrain.runs import launch, layout, store
from hpctrain.runs.launch import Launch
from hpctrain.slurm import batch_script
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations import units
from hpctrain.util import files, shell, yaml12
from hpctrain.util.shell import options_of
from hpctrain.util.text import is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedScript:
    """A script rendered again with a changed config.

    Attributes:
        again: the resubmission that it replaces.
        text: the text of the script.
        resolved: the config.
        written: the config in the notation of config.yaml, as JSON.
        changes: differences from the stored config; empty if there are none.
        runs: the runs that it continues.
        diagnosis: the diagnosis that the changes come from.
    """

    again: StoredScript
    name: str
    text: str
    spec: JobSpec
    resolved: layers.ResolvedConfig
    written: str
    changes: tuple[Change, ...]
    runs: tuple[str, ...]
    diagnosis: Diagnosis


#: The scripts to submit, in order: unchanged ones, and those that were rendered again.
FixPlan = tuple[StoredScript | FixedScript, ...]


def fixed_script(
    whole: Launch, again: StoredScript, failed: Sequence[tuple[str, Diagnosis]], *, alone: bool
) -> FixedScript:
    """Return the script that continues failed runs, with the config changed as their diagnosis
    suggests.

    Args:
        whole: the launch.
        again: its script for these runs.
        failed: the runs, with their diagnoses, which suggest the same changes.
        alone: whether these are all failed runs of the script.

    Raises:
        UsageError: the config was not stored, cannot be changed this way, or the project has
            changed.
        HpctrainError: the runs failed with these changes applied.
    """
    runs, diagnosis = tuple(run for run, _ in failed), failed[0][1]
    changes, part = diagnosis.fix.changes, again.part
    if not alone:
        indices = part.run_ids(whole.tag)
        part = resubmit.narrowed(part, [indices[run] for run in runs])
        again = replace(again, part=part)
    before = batch_script.read(again.path)[0]
    kept, made = _kept(whole, again, before)
    request = parse_request(made.arguments)
    config: dict[str, Any] = kept["config"]
    if config.get("tune"):
        raise UsageError(
            f"{whole.tag} is a study, and its definition holds the config",
            hint="change config.yaml, then run: hpctrain tune",
        )
    data, arguments = as_written(config), _without(request.arguments, changes)
    done = _applied(data, changes, request.arguments)
    sent = any(each.script == part.script and each.job_id is not None for each in whole.submissions)
    if not done and sent:
        raise HpctrainError(
            f"{runs[0]} failed with this fix applied: {diagnosis.id}",
            details=(diagnosis.cause, *(f"  {line}" for line in diagnosis.fix.text.splitlines())),
            hint=(
                f"to submit it unchanged: hpctrain resubmit {whole.tag}; or change config.yaml, then"
                f" run: hpctrain submit --run-id {whole.tag}"
            ),
        )
    if part.array is not None and whole.kind != "sweep":
        data["array"] = part.array
    origins = {tuple(path.split(".")): where for path, where in (kept.get("origins") or {}).items()}
    reason = f"hpctrain resubmit --apply-fix ({diagnosis.id})"
    origins |= {tuple(path_of(change.key)): reason for change in done}
    layer = layers.Layer("file", f"the config of {whole.tag}", data, origins)
    resolved = layers.resolve([layer], again=f"hpctrain resubmit {whole.tag} --apply-fix")
    spec = _spec(whole, again, resolved.config, replace(request, arguments=arguments), changes)
    name, text = _rendered(whole, again, spec, arguments)
    return FixedScript(
        again=again,
        name=f"{name}.sbatch",
        text=text,
        spec=spec,
        resolved=resolved,
        written=files.json_text(data),
        changes=done,
        runs=runs,
        diagnosis=diagnosis,
    )


def _kept(whole: Launch, again: StoredScript, before: str) -> tuple[dict[str, Any], header.Made]:
    """Return the config stored with a script, and the fields of the script's header.

    Raises:
        UsageError: the config was not stored, or belongs to another project.
    """
    config = again.part.config
    kept = files.read_json(whole.path / config) if config is not None else None
    made = header.read_header(before)
    if kept is None or not isinstance(kept.get("config"), dict) or made is None:
        raise UsageError(
            f"the config of {whole.tag} was not kept, because its script was submitted by hand",
            hint=f"change config.yaml, then run: hpctrain submit --run-id {whole.tag}",
        )
    if Path(made.directory) != Path.cwd():
        raise UsageError(
            f"{whole.tag} was rendered in {made.directory}, and this is another directory",
            fix=f"cd {shell.quote(made.directory)}",
        )
    return kept, made


def _rendered(
    whole: Launch, again: StoredScript, spec: JobSpec, arguments: tuple[str, ...]
) -> tuple[str, str]:
    name = re.sub(r"(\.\d+)?\.sbatch\Z", "", again.part.script)
    # The header contains the command that renders the script from the config in the record.
    place = f"{layout.RUNS}/{layout.LAUNCHES}/{whole.tag}/scripts/{_file(name, spec)}"
    words = ("--config", place, *(("--", *arguments) if arguments else ()))
    return name, scripts.rendered(spec, words, f"hpctrain resubmit {whole.tag} --apply-fix")


def _file(name: str, spec: JobSpec) -> str:
    return f"{name}.{spec.digest()}.config.json"


def _keep_script(runs: Path, whole: Launch, changed: FixedScript, *, at: float) -> StoredScript:
    old, spec, resolved = changed.again.part, changed.spec, changed.resolved
    name = _file(changed.name.removesuffix(".sbatch"), spec)
    launch.add_script(runs, whole.tag, name, changed.written)
    script = launch.add_script(runs, whole.tag, changed.name, changed.text)
    values = resolved.config.replace(sweep=None).to_data()
    config = launch.add_config(runs, whole.tag, values, resolved.origins, stage=old.stage)
    links = spec.max_restarts if spec.restart == "chain" else 0
    part = replace(old, script=script, config=config, links=links, at=at)
    recorded = next(each for each in whole.parts if each.script == old.script)
    launch.add_part(runs, whole.tag, replace(part, dependencies=recorded.dependencies))
    return StoredScript(whole.path / "scripts" / script, part)


# -- the config ------------------------------------------------------------------------------------


def as_written(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a resolved config to the notation of config.yaml: `64G` for bytes, `04:00:00` for
    seconds. It does not record whether a training value was quoted.
    """
    data: dict[str, Any] = json.loads(json.dumps(config))
    training = data.get("training") or {}
    for name, value in training.items():
        training[name] = _unquoted(value)
    resources = data.get("resources") or {}
    for name in SIZES:
        if isinstance(resources.get(name), int):
            resources[name] = units.format_memory(resources[name])
    if isinstance(resources.get("time"), int):
        resources["time"] = units.format_time(resources["time"])
    return data


def _unquoted(value: Any) -> Any:
    """Return a value as YAML reads it without quotes."""
    if isinstance(value, str):
        return word(yaml12.Plain(value))
    if isinstance(value, list):
        return [_unquoted(item) for item in value]
    return yaml12.to_json_value(_plain(value)) if isinstance(value, dict) else value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return yaml12.Plain(value) if isinstance(value, str) else value


def _applied(
    data: dict[str, Any], changes: Sequence[Change], arguments: Sequence[str]
) -> tuple[Change, ...]:
    """Change the values in `data`, and return the changes. The old value comes from `data` or from
    the arguments after `--`.
    """
    done = []
    for change in changes:
        path = path_of(change.key)
        if path[:2] == ("environment", "env") and change.new is None:
            done += _unset(data, path[-1], change)
            continue
        holder = data
        for part in path[:-1]:
            if not isinstance(holder.get(part), dict):
                holder[part] = {}
            holder = holder[part]
        old = holder.get(path[-1])
        if path[0] == "training":  # arguments after `--` override the config
            old = options_of(arguments).get(path[-1], old)
        _set(holder, path, change.new)
        if _text(old) != _text(change.new):
            plain = old is None or isinstance(old, str | int | float | bool)
            done.append(replace(change, old=old if plain else str(old)))
    return tuple(done)


def _unset(data: dict[str, Any], name: str, change: Change) -> list[Change]:
    """Remove a variable from all layers, including the cluster's profile; return the changes."""
    environment = data.setdefault("environment", {})
    unset = environment.get("unset") or []
    (environment.get("env") or {}).pop(name, None)
    environment["unset"] = [*unset, *([] if name in unset else [name])]
    return [] if name in unset else [change]


def _set(holder: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    if value is None:
        holder.pop(path[-1], None)
    else:
        holder[path[-1]] = _text(value) if path[0] in ("training", "sbatch") else value
    if path == ("resources", "mem"):  # a job has one memory request
        holder.pop("mem_per_cpu", None)
        holder.pop("mem_per_gpu", None)
    if path == ("resources", "cpus_per_gpu"):
        holder.pop("cpus_per_task", None)


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _without(arguments: Sequence[str], changes: Sequence[Change]) -> tuple[str, ...]:
    """Return the arguments after `--` without changed options, which would override the config."""
    names = {change.key.removeprefix("training.") for change in changes}
    groups = shell.option_groups(arguments)
    return tuple(word for name, group in groups if name not in names for word in group)


# -- the job ---------------------------------------------------------------------------------------


def _spec(
    whole: Launch, again: StoredScript, config: Any, request: Request, changes: Sequence[Change]
) -> JobSpec:
    """Return the job of the changed config, in its place in the launch.

    Raises:
        UsageError: it belongs to a sweep that has changed, or to a study.
    """
    where: dict[str, Any] = {
        "directory": str(Path.cwd()),
        "home": str(Path.home()),
        "arguments": request.arguments,
    }
    if whole.kind == "sweep":
        sweep, table = _sweep(whole, request, changes)
        tasks = again.part.array or ""
        part = ArrayPart(
            offset=again.part.offset, spec=tasks, count=len(arrays.parse(tasks).indices)
        )
        return to_spec.of_part(config, sweep, part, table, **where)
    spec = to_spec.to_spec(config, **where)
    if again.part.stage is None:
        return spec
    planned = resubmit.stages_of(whole)
    stage = next(each for each in planned if each.name == again.part.stage)
    return to_spec.of_stage(spec, stage, planned)


def _sweep(whole: Launch, request: Request, changes: Sequence[Change]) -> tuple[Sweep, str]:
    """Return the sweep in the notation of config.yaml, and the file name of its points table, which
    contains the table's digest.

    Raises:
        UsageError: the sweep has changed, or varies a value that the fix changes.
    """
    planned = sweep_plan.plan(
        replace(
            request,
            options={path: value for path, value in request.options.items() if path != ("array",)},
        )
    )
    if planned is None or planned.table().name != whole.table:
        raise UsageError(
            f"the sweep of {whole.tag} is not what config.yaml says now",
            fix=f"hpctrain resubmit {whole.tag}",
            hint="or submit the new sweep: hpctrain submit",
        )
    swept = {key.removeprefix("training.") for key in planned.sweep.keys}
    if twice := [
        change.key
        for change in changes
        if change.key in swept or change.key.removeprefix("training.") in swept
    ]:
        raise UsageError(
            f"the sweep varies {' and '.join(twice)}, so each combination has its own",
            hint="change the sweep in config.yaml",
        )
    return planned.sweep, planned.table().name


def plan(runs: Path, left: ResubmitPlan) -> FixPlan:
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
    parts: list[StoredScript | FixedScript] = []
    unfixed: list[tuple[str, Diagnosis | None]] = []
    fixable: list[str] = []
    for again in left.parts:
        groups: dict[tuple[Any, ...], list[tuple[str, Diagnosis]]] = {}
        mine = again.part.run_ids(left.tag)
        started = any((one := store.read_run(runs, each)) and one.attempts for each in mine)
        if again.part.dependencies and not started:
            parts.append(again)  # its dependency failed: nothing to fix here
            continue
        for run in mine:
            found = explanation.explained([run], runs_dir=runs).explanation.diagnoses
            first = found[0] if found else None
            if first is None or not first.fix.changes:
                unfixed.append((run, first))
            else:
                groups.setdefault(first.fix.changes, []).append((run, first))
                fixable.append(run)
        parts += [
            fixed_script(whole, again, each, alone=len(groups) == 1) for each in groups.values()
        ]
    if unfixed:
        raise _by_hand(left.tag, unfixed, fixable)
    return tuple(parts)


def _by_hand(
    tag: str, unfixed: Sequence[tuple[str, Diagnosis | None]], fixable: Sequence[str]
) -> HpctrainError:
    run, first = unfixed[0]
    details = [
        f"{other}: {one.cause if one is not None else 'no rule knows why it failed'}"
        for other, one in unfixed[:5]
    ]
    details += [f"and {len(unfixed) - 5} more"] if len(unfixed) > 5 else []
    if first is not None:
        details[1:1] = [f"  {line}" for line in first.fix.text.splitlines()]
    ends = [each.rpartition("_")[2] for each in fixable if each.startswith(f"{tag}_")]
    if indices := [int(end) for end in ends if is_number(end)]:
        fix = f"hpctrain resubmit {tag} --array {arrays.compress(indices)} --apply-fix"
        hint = "that is for those that have one"
    else:
        fix = f"hpctrain explain {run}"
        hint = f"do what it says, then run: hpctrain resubmit {tag}"
    return HpctrainError(
        "there is no fix that can be applied automatically",
        details=tuple(details),
        fix=fix,
        hint=hint,
    )


def keep(runs: Path, left: ResubmitPlan, fixed: FixPlan) -> ResubmitPlan:
    """Write the rendered scripts into the launch record, and return the plan that submits them."""
    whole = launch.load(runs, left.tag)
    if whole is None:
        raise HpctrainError(
            f"the record of {left.tag} no longer exists", fix=f"ls {runs / layout.LAUNCHES}"
        )
    now = time.time()
    with launch.claim(runs, left.tag):
        parts = [
            _keep_script(runs, whole, part, at=now) if isinstance(part, FixedScript) else part
            for part in fixed
        ]
    return replace(left, parts=tuple(parts))
