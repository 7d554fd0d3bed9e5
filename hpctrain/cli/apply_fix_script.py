"""The script of a run with some values of its config changed: made from the config that was kept with the launch, as any other script is.

Nothing is written here, and no script is edited: the changed config goes through the same schema and the same template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain import __version__, yaml12
from hpctrain.cli import remaining
from hpctrain.cli.job_options import Request, parse_request
from hpctrain.cli.remaining import Again
from hpctrain.config import layers, to_spec
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.explain.fixes_values import path_of
from hpctrain.explain.model import Change
from hpctrain.jobs import render, shell
from hpctrain.jobs.spec import JobSpec
from hpctrain.jobs.sweep import ArrayPart, Sweep
from hpctrain.jobs.sweep.words import argument_words, word
from hpctrain.runs import files, launch, layout
from hpctrain.runs.launch import Launch
from hpctrain.scheduler import batch_script
from hpctrain.scheduler.parse import array as arrays
from hpctrain.scheduler.parse import duration, memory_size

#: What Slurm is asked for, and what the processes find: of a script of one's own, only that is changed.
_RESOURCES = ("resources", "restart", "sbatch", "environment")
_SIZES = ("mem", "mem_per_cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A script that was made anew.

    Attributes:
        again: what it takes the place of.
        text: of the script; config: as resolved, as JSON values; written: the same as a config file says it.
        changes: what differs from the config that was kept; empty where it says all of that already.
    """

    again: Again
    name: str
    text: str
    config: Mapping[str, Any]
    origins: Mapping[tuple[str, ...], str]
    written: str
    written_name: str
    changes: tuple[Change, ...]
    links: int


def make(whole: Launch, again: Again, changes: Sequence[Change], *, reason: str) -> Changed:
    """Return the script that goes on with `again`, its config changed.

    Args:
        whole: the launch.
        again: a script of it, and what of it is left.
        changes: from the diagnosis.
        reason: what an origin says of a changed value.

    Raises:
        UsageError: the config was not kept, it cannot be changed so, or the project is not what it was.
    """
    before = batch_script.read(again.script)[0]
    kept, made = _kept(whole, again, before)
    request = parse_request(made.arguments)
    config: dict[str, Any] = kept["config"]
    if config.get("tune"):
        raise UsageError(f"{whole.tag} is a study, and its definition holds the config", fix="change config.yaml, then: hpctrain tune")
    _refuse_trainings_of_others(config, changes)
    data, arguments = as_written(config, before), _without(request.arguments, changes)
    done = _applied(data, changes, request.arguments)
    if again.array is not None and whole.kind != "sweep":
        data["array"] = again.array
    origins = {tuple(path.split(".")): where for path, where in (kept.get("origins") or {}).items()}
    origins |= {tuple(path_of(change.key)): reason for change in done}
    layer = layers.Layer("file", f"the config of {whole.tag}", data, origins)
    resolved = layers.resolve([layer], again=f"hpctrain resubmit {whole.tag} --apply-fix")
    spec = _spec(whole, again, resolved.config, replace(request, arguments=arguments), changes)
    written = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    name, text = _rendered(whole, again, spec, arguments)
    return Changed(
        again=again, name=f"{name}.sbatch", text=text, config=resolved.config.model_dump(mode="json", exclude={"sweep"}),
        origins=resolved.origins, written=written, written_name=_file(name, spec), changes=done,
        links=spec.max_restarts if spec.restart == "chain" else 0,
    )  # fmt: skip


def _kept(whole: Launch, again: Again, before: str) -> tuple[dict[str, Any], render.Made]:
    """Return the config that was kept with a script, and what the script's header says.

    Raises:
        UsageError: it was not kept, or the project is another one.
    """
    kept = files.read_json(whole.path / again.config) if again.config is not None else None
    made = render.read_header(before)
    if kept is None or not isinstance(kept.get("config"), dict) or made is None:
        raise UsageError(
            f"the config of {whole.tag} was not kept, because its script was submitted by hand",
            fix=f"change config.yaml, then: hpctrain submit --run-id {whole.tag}",
        )
    if Path(made.directory) != Path.cwd():
        raise UsageError(
            f"{whole.tag} was made in {made.directory}, and this is another directory", fix=f"cd {shell.quote(made.directory)}"
        )
    return kept, made


def _rendered(whole: Launch, again: Again, spec: JobSpec, arguments: tuple[str, ...]) -> tuple[str, str]:
    """Return the name of the script, without its number, and its text."""
    from hpctrain.cli import templates as files_

    name = re.sub(r"(\.\d+)?\.sbatch\Z", "", again.name)
    # The script's header tells how to make it again: from this file, which the launch keeps.
    place = f"{layout.RUNS}/{layout.LAUNCHES}/{whole.tag}/scripts/{_file(name, spec)}"
    words = ("--config", place, *(("--", *arguments) if arguments else ()))
    templates, template, own = files_.find(spec, f"hpctrain resubmit {whole.tag} --apply-fix")
    made: dict[str, Any] = {"version": __version__, "directory": str(Path.cwd()), "arguments": words, "compiled": files_.compiled()}
    return name, render.render(spec, templates, template=template, files=own, **made)


def _file(name: str, spec: JobSpec) -> str:
    return f"{name}.{spec.digest()}.config.json"


def keep(runs: Path, whole: Launch, changed: Changed, *, at: float) -> Again:
    """Write a changed script into the launch's record, and return what is left with it in its place."""
    again = changed.again
    launch.add_script(runs, whole.tag, changed.written_name, changed.written)
    script = launch.add_script(runs, whole.tag, changed.name, changed.text)
    config = launch.add_config(runs, whole.tag, changed.config, changed.origins, stage=again.stage)
    waits = next((part.dependencies for part in whole.parts if part.script == again.name and part.stage == again.stage), again.dependencies)
    part = launch.Part(
        script=script,
        config=config,
        array=again.array,
        offset=again.offset,
        stage=again.stage,
        dependencies=waits,
        links=changed.links,
        at=at,
    )
    launch.add_part(runs, whole.tag, part)
    return replace(again, script=whole.path / "scripts" / script, name=script, config=config, links=changed.links)


# -- the config --------------------------------------------------------------------------------------------------------


def as_written(config: Mapping[str, Any], script: str | None = None) -> dict[str, Any]:
    """Return a config that was kept as resolved in the words of config.yaml: `64G` for bytes, `04:00:00` for seconds.

    Args:
        config: as JSON values. It does not say whether a value of the training was quoted: within JSON, 3 and "3" differ.
        script: that was made of it; decides where that matters.
    """
    data: dict[str, Any] = json.loads(json.dumps(config))
    training = data.get("training") or {}
    for name, value in training.items():
        unquoted = _unquoted(value)
        if script is None or all(shell.quote(each) in script for each in argument_words([(name, unquoted)])):
            training[name] = unquoted
    resources = data.get("resources") or {}
    for name in _SIZES:
        if isinstance(resources.get(name), int):
            resources[name] = memory_size.format(resources[name])
    if isinstance(resources.get("time"), int):
        resources["time"] = duration.format(resources["time"])
    return data


def _unquoted(value: Any) -> Any:
    """Return a value as it is read where nobody has quoted it."""
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


def _applied(data: dict[str, Any], changes: Sequence[Change], arguments: Sequence[str]) -> tuple[Change, ...]:
    """Change the values in `data`, and return what that changes: what a value was, here or behind `--`, is looked up."""
    done = []
    for change in changes:
        path = path_of(change.key)
        holder = data
        for part in path[:-1]:
            if not isinstance(holder.get(part), dict):
                holder[part] = {}
            holder = holder[part]
        old = _typed(arguments, path[-1]) if path[0] == "training" else None
        old = holder.get(path[-1]) if old is None else old
        _set(holder, path, change.new)
        if _text(old) != _text(change.new):
            done.append(
                Change(key=change.key, old=old if old is None or isinstance(old, str | int | float | bool) else str(old), new=change.new)
            )
    return tuple(done)


def _set(holder: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    if value is None:
        holder.pop(path[-1], None)
    else:
        holder[path[-1]] = _text(value) if path[0] in ("training", "sbatch") else value
    if path == ("resources", "mem"):  # Slurm takes one of the two
        holder.pop("mem_per_cpu", None)
    if path == ("resources", "cpus_per_gpu"):
        holder.pop("cpus_per_task", None)


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _names(option: str) -> tuple[str, ...]:
    return (f"--{option}", f"--{option.replace('_', '-')}")


def _typed(arguments: Sequence[str], option: str) -> str | None:
    """Return the value of an option behind `--`, where it wins over the config; the last counts."""
    found = None
    for number, each in enumerate(arguments):
        name, equals, value = each.partition("=")
        if name in _names(option):
            follows = number + 1 < len(arguments) and not arguments[number + 1].startswith("--")
            found = value if equals else arguments[number + 1] if follows else "true"
    return found


def _without(arguments: Sequence[str], changes: Sequence[Change]) -> tuple[str, ...]:
    """Return the words behind `--` without the options that are changed: they would win over the config."""
    names = {name for change in changes if change.key.startswith("training.") for name in _names(change.key.removeprefix("training."))}
    left: list[str] = []
    dropping = False
    for each in arguments:
        if each.startswith("--"):
            dropping = each.partition("=")[0] in names
        if not dropping:
            left.append(each)
    return tuple(left)


def _refuse_trainings_of_others(config: Mapping[str, Any], changes: Sequence[Change]) -> None:
    script = config.get("script")
    wrong = [change.key for change in changes if path_of(change.key)[0] not in _RESOURCES]
    if script is not None and wrong:
        raise HpctrainError(
            f"{script} is a training of your own: what {' and '.join(wrong)} mean to it only you know", fix="change them in config.yaml"
        )


# -- the job -----------------------------------------------------------------------------------------------------------


def _spec(whole: Launch, again: Again, config: Any, request: Request, changes: Sequence[Change]) -> JobSpec:
    """Return the job of the changed config, in its place in the launch.

    Raises:
        UsageError: it is a part of a sweep that is not what it was, or of a study.
    """
    where: dict[str, Any] = {"directory": str(Path.cwd()), "home": str(Path.home()), "arguments": request.arguments}
    if whole.kind == "sweep":
        sweep, table = _sweep(whole, request, changes)
        part = ArrayPart(offset=again.offset, spec=again.array or "", count=len(arrays.parse(again.array or "").indices))
        return to_spec.of_part(config, sweep, part, table, **where)
    spec = to_spec.to_spec(config, **where)
    if again.stage is None:
        return spec
    planned = remaining.stages_of(whole)
    stage = next(each for each in planned if each.name == again.stage)
    return to_spec.of_stage(spec, stage, planned)


def _sweep(whole: Launch, request: Request, changes: Sequence[Change]) -> tuple[Sweep, str]:
    """Return the sweep as it was written, and the file name of its points' table, which has their digest in it.

    Raises:
        UsageError: it is another one now, or it varies what is to be changed.
    """
    from hpctrain.cli import sweep_plan

    planned = sweep_plan.plan(replace(request, options={path: value for path, value in request.options.items() if path != ("array",)}))
    if planned is None or planned.table().name != whole.table:
        raise UsageError(
            f"the sweep of {whole.tag} is not what config.yaml says now",
            fix=f"hpctrain resubmit {whole.tag}, or with the new sweep: hpctrain submit",
        )
    swept = {key.removeprefix("training.") for key in planned.sweep.keys}
    if twice := [change.key for change in changes if change.key in swept or change.key.removeprefix("training.") in swept]:
        raise UsageError(f"the sweep varies {' and '.join(twice)}, so each point has its own", fix="change the sweep in config.yaml")
    return planned.sweep, planned.table().name
