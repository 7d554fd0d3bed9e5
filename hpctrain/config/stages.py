"""`stages:` of config.yaml: an ordered list, each stage with a name and with what it changes of the rest of the config.

A stage is one more layer of the config, the strongest: `layer` makes it, with the places of the file it was written in.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from hpctrain.config import layers
from hpctrain.config.layers import KeyPath, Layer
from hpctrain.errors import UsageError
from hpctrain.fieldtypes import Section, Text, choice, kind, matching, problem
from hpctrain.jobs import stages
from hpctrain.jobs.stages import Asked, Stage
from hpctrain.runs import layout
from hpctrain.yaml12 import Plain, problems_in

_T = TypeVar("_T")
#: What a stage says of itself; all else is of the job.
OWN = ("name", "from", "start", "after", "needs")
#: Keys of a whole launch, which no single stage can have.
_WHOLE = ("stages", "sweep", "array")
_STARTS = ("init_from", "resume_from_checkpoint")
StageName = Annotated[Text, matching(layout.NAME, "letters, digits and . _ -, and start with a letter or digit")]


def _names(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    raise problem(f"must be a list of stages, such as [{value if isinstance(value, str) else 'train'}]")


_Names = Annotated[tuple[StageName, ...], BeforeValidator(_names)]


class StageKeys(Section):
    """What a stage says of itself."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: StageName
    from_: StageName | None = Field(default=None, alias="from")
    start: Annotated[Text, choice("weights", "state", "none")] | None = None
    after: Annotated[Text, choice("ok", "any")] = "ok"
    needs: _Names = ()


def _list_of_stages(value: Any) -> Any:
    if value is not None and not isinstance(value, list):
        raise problem(f"must be a list of stages, each beginning with `- name: …`, not {kind(value)}")
    if value == []:  # one plain job is hardly what somebody means who writes stages
        raise problem("must hold at least one stage, beginning with `- name: …`; without stages, leave the key out")
    return value


StagesField = Annotated[list[Any] | None, BeforeValidator(_list_of_stages)]
"""Of the schema: `stages: StagesField = None`. `read` looks at what is in it, and knows the places."""


def read(found: Sequence[Layer], *, again: str = "hpctrain render") -> list[Stage]:
    """Return the stages that the strongest of these layers with `stages:` asks for, in the order of submission; none without.

    Raises:
        UsageError: every problem of all stages at once, each with its place; what they change of the job is looked at by `resolve_each`.
    """
    holder = _holder(found)
    if holder is None:
        return []
    items = holder.data["stages"]
    if not isinstance(items, list):
        raise _usage_error(holder, [f"{_place(holder)}: stages must be a list of stages, not {kind(items)}"], again)
    lines = [
        f"{_place(holder)}: stages and {key} exclude each other: a launch is of one of them"
        for key in ("sweep", "array")
        if layers.written(found, (key,)) is not None
    ]
    asked: list[Asked | None] = []
    for index, item in enumerate(items):
        asked.append(_asked(index, item, found, holder, lines))
    planned, problems = stages.plan([one for one in asked if one is not None])
    if None in asked:  # who depends on whom is seen when every stage has a name
        problems = []
    lines += [f"{_place(holder, index, key)}: {key} {message}" for index, key, message in problems]
    if lines:
        raise _usage_error(holder, lines, again)
    return planned


def layer(stage: Stage, found: Sequence[Layer]) -> Layer:
    """Return the layer of a stage, to be laid over `found`, the layers that `read` has seen.

    Besides what was written, it holds what follows from it: a job name of the stage's own, what the training starts from, and, for a
    script that only this stage runs, none of the arguments that are meant for another one.
    """
    holder = _holder(found)
    if holder is None:
        raise ValueError("no layer has stages")
    prefix = ("stages", str(stage.index))
    origins = {path[2:]: where for path, where in holder.origins.items() if path[:2] == prefix and len(path) > 2 and path[2] not in OWN}
    data = {key: value for key, value in stage.overrides.items() if key not in OWN}
    if data.get("job_name") is None:
        base = str(layers.written(found, ("job_name",)) or "sft")
        data["job_name"] = Plain(f"{base[: 63 - len(stage.name)]}-{stage.name}")
        origins["job_name",] = _place(holder, stage.index, "name")
    added = _training(stage, found)
    if added:
        training = data.get("training")
        data["training"] = {**added, **(training if isinstance(training, Mapping) else {})}
        where = _place(holder, stage.index, "start" if stage.start != "none" else "script")
        origins = {**{("training", key): where for key in added}, **origins}
        origins.setdefault(("training",), where)
    return Layer("file", holder.title, data, origins)


def _training(stage: Stage, found: Sequence[Layer]) -> dict[str, Any]:
    """Return what a stage says to its training though nobody has written it; None takes an argument of the other layers away."""
    base = _keys(written for one in found if (written := one.data.get("training")) is not None)
    script = stage.overrides.get("script")
    if script is not None and script != layers.written(found, ("script",)):
        return dict.fromkeys(base)
    if stage.start == "none" or stage.parent is None:
        return {}
    key, other = _STARTS if stage.start == "weights" else _STARTS[::-1]
    return {key: f"stage:{stage.parent}", **({other: None} if other in base else {})}


def _keys(sections: Any) -> list[str]:
    return list(dict.fromkeys(key for section in sections if isinstance(section, Mapping) for key in section))


def resolve_each(planned: Sequence[Stage], found: Sequence[Layer], resolve: Callable[[list[Layer]], _T]) -> list[tuple[Stage, _T]]:
    """Return each stage with what `resolve` makes of its layers, the strongest first.

    Raises:
        UsageError: the problems of all stages at once.
    """
    done: list[tuple[Stage, _T]] = []
    errors: list[tuple[Stage, UsageError]] = []
    for stage in planned:
        try:
            done.append((stage, resolve([layer(stage, found), *found])))
        except UsageError as error:
            errors.append((stage, error))
    if not errors:
        return done
    if len(errors) == 1:
        raise errors[0][1]
    lines = [line for stage, error in errors for line in (error.details or (f"stage {stage.name}: {error.what}",))]
    lines = list(dict.fromkeys(lines))  # what is wrong with all of them is said once
    holder = _holder(found)
    title = holder.title if holder is not None else "the config"
    raise UsageError(problems_in(len(lines), title), details=tuple(lines), fix=errors[0][1].fix)


def _holder(found: Sequence[Layer]) -> Layer | None:
    return next((one for one in found if one.data.get("stages")), None)


def _asked(index: int, item: Any, found: Sequence[Layer], holder: Layer, lines: list[str]) -> Asked | None:
    """Return a stage as it was written; None where it cannot be understood, which `lines` tell."""
    if not isinstance(item, dict):
        lines.append(f"{_place(holder, index)}: stage {index + 1} must hold keys and values, such as `name: train`, not {kind(item)}")
        return None
    lines += [f"{_place(holder, index, key)}: {message}" for key in item if (message := _unknown(key)) is not None]
    try:
        keys = StageKeys.model_validate({key: value for key, value in item.items() if key in OWN})
    except ValidationError as error:
        for details in error.errors():
            key = str(details["loc"][0]) if details["loc"] else "name"
            message = "is missing: each stage has one" if details["type"] == "missing" else details["msg"]
            lines.append(f"{_place(holder, index, *map(str, details['loc']))}: {key} {message}")
        return None
    training = item.get("training")
    return Asked(
        name=str(keys.name), parent=keys.from_, start=cast("Any", keys.start), after=cast("Any", keys.after), needs=keys.needs,
        overrides={key: value for key, value in item.items() if key not in OWN},
        ours=(item.get("script") or layers.written(found, ("script",))) is None,
        starts_itself=isinstance(training, Mapping) and any(training.get(key) is not None for key in _STARTS),
    )  # fmt: skip


def _unknown(key: str) -> str | None:
    """Return what is wrong with a key of a stage."""
    from hpctrain.config.schema import Config

    if key in _WHOLE:
        return f"{key} must not be in a stage: it is of the whole config"
    known = [*OWN, *(name for name in Config.model_fields if name not in _WHOLE)]
    if key in known:
        return None
    close = next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.6)), None)
    return f"unknown key {key!r} in a stage; " + (
        f"did you mean {close!r}?" if close is not None else f"known are {', '.join(sorted(known))}"
    )


def _place(holder: Layer, index: int | None = None, *keys: str) -> str:
    """Return where a stage, or a key of it, was written."""
    path: KeyPath = ("stages", *((str(index),) if index is not None else ()), *keys)
    while path and path not in holder.origins:
        path = path[:-1]
    return holder.origins.get(path, holder.title)


def _usage_error(holder: Layer, lines: Sequence[str], again: str) -> UsageError:
    return UsageError(problems_in(len(lines), holder.title), details=tuple(lines), fix=f"edit {holder.title}, then run: {again}")
