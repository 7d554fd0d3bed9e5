"""`stages:` of config.yaml: an ordered list, each stage with a name and its changes to the rest of
the config, and their dependencies on earlier ones.

All are submitted at once, as Slurm's dependencies require: Slurm forgets a job minutes after its
end, and a failed dependency stays failed even if the job is requeued (slurm.conf(5), MinJobAge;
sbatch(1), --dependency).

A stage is the highest layer of the config, created by `layer`, with the places in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from hpctrain.clusters.fieldtypes import Text, matching
from hpctrain.config import layers
from hpctrain.errors import UsageError
from hpctrain.runs import layout
from hpctrain.util.schema import MISSING, NO_KEYS, KeyPath, Problem, Section, kind_of, unknown_key
from hpctrain.util.yaml12 import Plain, position, problems_in

#: Keys of a complete launch, which a single stage cannot have.
_WHOLE = ("stages", "sweep", "array")
_STARTS = ("init_from", "resume_from_checkpoint")


def _list_of_stages(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise Problem("must be a list of stages, each starting with `- name: …`")
    return value


StagesField = Annotated[list[Any] | None, _list_of_stages]
"""In the schema: `stages: StagesField = None`.

`read` checks the content, and has the places for messages.
"""


def read(found: Sequence[layers.Layer], *, again: str = "hpctrain render") -> list[Stage]:
    """Return the stages of the highest layer with `stages:`, in the order of submission; empty
    without one.

    Raises:
        UsageError: every problem of all stages at once, each with its place; their changes to the
            job are checked where their layers are resolved.
    """
    holder = next((one for one in found if one.data.get("stages")), None)
    if holder is None:
        return []
    lines = [
        f"{layers.place(holder, ('stages',))}: stages and {key} are mutually exclusive"
        for key in ("sweep", "array")
        if layers.written(found, (key,)) is not None
    ]
    items = holder.data["stages"]
    asked: list[StageRequest] = []
    for index, item in enumerate(items):
        try:
            asked.append(_asked(item, found))
        except Problem as problem:
            for path, message in problem.found:
                where = layers.place(holder, ("stages", str(index), *path))
                needed = ": each stage has one" if message == MISSING else ""
                is_whole = not path or message.startswith("unknown key")
                name = f"stage {index + 1}" if not path else path[0]
                words = message if is_whole and path else f"{name} {message}"
                lines.append(f"{where}: {words}{needed}")
    planned, problems = plan(asked)
    if len(asked) == len(items):  # dependencies can be checked only if every stage has a name
        for index, key, message in problems:
            lines.append(f"{layers.place(holder, ('stages', str(index), key))}: {key} {message}")
    if lines:
        raise UsageError(
            problems_in(len(lines), holder.title),
            details=tuple(sorted(lines, key=position)),
            hint=f"edit {holder.title}, then run: {again}",
        )
    return planned


def layer(stage: Stage, found: Sequence[layers.Layer]) -> layers.Layer:
    """Return the layer of a stage, with the highest precedence over `found`, the layers that `read`
    was given.

    It also contains derived values: a separate job name, what the training starts from, and, if the
    stage has its own script, null for arguments of other scripts.
    """
    holder = next(one for one in found if one.data.get("stages"))
    prefix = ("stages", str(stage.index))
    origins = {
        path[2:]: where
        for path, where in holder.origins.items()
        if path[:2] == prefix and len(path) > 2 and path[2] not in OWN
    }
    data = {key: value for key, value in stage.overrides.items() if key not in OWN}
    if data.get("job_name") is None:
        base = str(layers.written(found, ("job_name",)) or "sft")
        data["job_name"] = Plain(f"{base[: 63 - len(stage.name)]}-{stage.name}")
        origins["job_name",] = layers.place(holder, (*prefix, "name"))
    added = _training(stage, found)
    if added:
        training = data.get("training")
        data["training"] = {**added, **(training if isinstance(training, Mapping) else {})}
        where = layers.place(holder, (*prefix, "start" if stage.start != "none" else "script"))
        origins = {**{("training", key): where for key in added}, **origins}
        origins.setdefault(("training",), where)
    return layers.Layer("file", holder.title, data, origins)


def _training(stage: Stage, found: Sequence[layers.Layer]) -> dict[str, Any]:
    """Return a stage's derived training arguments; None removes an argument of the other layers."""
    sections = [one.data.get("training") for one in found]
    base = [key for section in sections if isinstance(section, Mapping) for key in section]
    script = stage.overrides.get("script")
    if script is not None and script != layers.written(found, ("script",)):
        return dict.fromkeys(base)
    if stage.start == "none" or stage.parent is None:
        return {}
    key, other = _STARTS if stage.start == "weights" else _STARTS[::-1]
    return {key: f"stage:{stage.parent}", **({other: None} if other in base else {})}


def _asked(item: Any, found: Sequence[layers.Layer]) -> StageRequest:
    from hpctrain.config.schema import Config

    if not isinstance(item, dict):
        raise Problem(f"must hold keys and values, such as `name: train`, not {kind_of(item)}")
    known = sorted([*OWN, *(name for name in Config.fields() if name not in _WHOLE)])
    wrong: list[tuple[KeyPath, str]] = []
    for key in item:
        if key in _WHOLE:
            wrong.append(((key,), "must not be in a stage: it is of the whole config"))
        elif key not in known:
            message = unknown_key(("a stage", key), {("a stage",): known})
            wrong.append(((key,), message))
    try:
        asked = StageRequest.read({key: value for key, value in item.items() if key in OWN})
    except Problem as problem:
        raise Problem(below=[*wrong, *problem.found]) from problem
    if wrong:
        raise Problem(below=wrong)
    training = item.get("training")
    return asked.replace(
        overrides={key: value for key, value in item.items() if key not in OWN},
        ours=(item.get("script") or layers.written(found, ("script",))) is None,
        starts_itself=isinstance(training, Mapping)
        and any(training.get(key) is not None for key in _STARTS),
    )


# -- dependencies and order -------------------------------------------------------------------------

Start = Literal["weights", "state", "none"]
Kind = Literal["afterok", "afterany"]
StageProblem = tuple[int, str, str]
"""The index of a stage in the file, from 0, the key with the problem, and a sentence that completes
"KEY …".
"""

NOTHING = "none"
#: The 120 characters of a run id, less 64 for the job name, 19 for date, time and random suffix,
#: and the `_`.
LONGEST_NAME = 36


StageName = Annotated[
    Text, matching(layout.NAME, "letters, digits and . _ -, and start with a letter or digit")
]
#: Keys of the stage itself; all others are of its job.
OWN = ("name", "from", "start", "after", "needs")


class StageRequest(Section):
    """A stage as written.

    Attributes:
        from_: None is the previous stage, NOTHING is no stage.
        start: None is the default: weights, if there is a parent and the training is hpctrain's
            own.
        after: whether its parents must have succeeded, or only have ended.
        needs: further stages that come before it.
        overrides: its changes to the config, nested like config.yaml.
        ours: whether hpctrain's own training runs, which supports starting from a parent.
        starts_itself: whether the training's arguments already set what to start from.
    """

    name: StageName
    from_: StageName | None = None
    start: Start | None = None
    after: Literal["ok", "any"] = "ok"
    needs: tuple[StageName, ...] = ()
    overrides: Mapping[str, Any] = NO_KEYS
    ours: bool = True
    starts_itself: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage in its launch.

    Attributes:
        index: in the file, from 0.
        overrides: its changes to the config.
        parent: the stage that it starts from; None if there is none.
        start: what it takes from the parent: only the weights, the complete state of the training,
            or nothing.
        dependencies: its direct predecessors, and Slurm's dependency type; the parent first.
    """

    name: str
    index: int
    overrides: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    start: Start = "none"
    dependencies: tuple[tuple[str, Kind], ...] = ()


def variable(name: str) -> str:
    """Return the environment variable with the run directory of stage `name`:
    `HPCTRAIN_STAGE_PRETRAIN`.
    """
    return "HPCTRAIN_STAGE_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def plan(asked: Sequence[StageRequest]) -> tuple[list[Stage], list[StageProblem]]:
    """Return the stages, in the order of the file, which is that of submission; and all problems.

    If there are problems, the stages must not be used.
    """
    problems: list[StageProblem] = []
    known: set[str] = set()
    planned = []
    for index, one in enumerate(asked):
        if one.name == NOTHING or len(one.name) > LONGEST_NAME:
            words = f"must have at most {LONGEST_NAME} characters, and not be {NOTHING!r}"
            problems.append((index, "name", words))
        if variable(one.name) in known:
            words = f"must be another one: {variable(one.name)} is the variable of an earlier stage"
            problems.append((index, "name", words))
        known.add(variable(one.name))
        names = [other.name for other in asked[:index]]
        parent = names[-1] if names else None
        if one.from_ is not None:
            parent = None if one.from_ == NOTHING else one.from_
        for key, name in [("from", parent), *(("needs", name) for name in one.needs)]:
            if name is not None and name not in names:
                words = f"must name an earlier stage of the list, not {name!r}"
                problems.append((index, key, words))
        may_start = parent is not None and one.ours and not one.starts_itself
        if one.start not in (None, "none") and not may_start:
            words = f"must be left out, not {one.start!r}: it needs hpctrain's own training, an"
            words += " earlier stage, and no training argument that says what to start from"
            problems.append((index, "start", words))
        waits = dict.fromkeys(name for name in (parent, *one.needs) if name is not None)
        kind: Kind = "afterany" if one.after == "any" else "afterok"
        planned.append(
            Stage(
                name=one.name,
                index=index,
                overrides=one.overrides,
                parent=parent,
                start=one.start or ("weights" if may_start else "none"),
                dependencies=tuple((name, kind) for name in waits),
            )
        )
    return planned, problems


def earlier(stages: Iterable[Stage], name: str) -> list[str]:
    """Return all direct and indirect predecessors of `name`, in the order of `stages`; its script
    gets their directories.
    """
    found = {name}
    known = list(stages)
    for stage in reversed(known):  # dependencies are on earlier stages
        if stage.name in found:
            found |= {parent for parent, _ in stage.dependencies}
    return [stage.name for stage in known if stage.name in found - {name}]


def remaining(
    stages: Sequence[Stage], states: Mapping[str, str | None]
) -> tuple[list[Stage], list[str]]:
    """Return the stages to submit again, and those of them whose pending job must be cancelled
    first, as its dependency can no longer be satisfied.

    Submitted again are failed, stopped and missing stages, and pending ones that depend on them;
    not completed stages, running ones, and those in an unknown state. Their dependencies on
    completed stages are removed; those on stages outside the list refer to pending or running jobs.

    Args:
        stages: of the launch, as `plan` orders them.
        states: stage name → state of its run: pending, running, completed, failed, stopped,
            unknown; None if there is no run.
    """
    again: dict[str, Stage] = {}
    cancel: list[str] = []
    for stage in stages:
        state = states.get(stage.name)
        waits_in_vain = state == "pending" and any(name in again for name, _ in stage.dependencies)
        if state in ("failed", "stopped", None) or waits_in_vain:
            cancel += [stage.name] if waits_in_vain else []
            open_ = tuple(
                (name, kind)
                for name, kind in stage.dependencies
                if name in again or states.get(name) != "completed"
            )
            again[stage.name] = replace(stage, dependencies=open_)
    return list(again.values()), cancel
