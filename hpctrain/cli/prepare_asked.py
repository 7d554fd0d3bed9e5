"""The options of `hpctrain prepare` as a request: defaults from the job config, names on the hub as folders. Says what it took."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.cli import prepare_hub
from hpctrain.errors import UsageError
from hpctrain.fit.asked import rows_unasked
from hpctrain.jobs import shell
from hpctrain.preparation.request import Request

if TYPE_CHECKING:
    from hpctrain.config.layers import Layer
    from hpctrain.preparation.manifest import Manifest

DEFAULT_LENGTH = 4096
"""Tokens of a row where neither the options nor the config say: no more than this, and no more than the model's positions."""


def request(data: Sequence[str], options: Mapping[str, Any], *, say: Callable[[str], None], show: bool = False) -> Request:
    """Return the request.

    Args:
        data: the words of DATA.
        options: of the command, by the names of its parameters.
        say: called with each sentence about a default that was taken.
        show: nothing will be written, so that no target is needed.

    Raises:
        UsageError: all that is missing or contradicts itself, at once.
    """
    found = _Defaults(options["config"])
    problems: list[tuple[str, str]] = []
    if not data:
        problems.append(("no DATA was given: files, folders, or a name on the hub", "hpctrain prepare FILE.jsonl"))
    model = options["model"] or found.take("model_name_or_path")
    if model is None:
        problems.append(("no model was given, whose tokenizer is used", "--model FOLDER"))
    target = options["to"] or (None if show else found.take("dataset_name"))
    if target is None and not show:
        problems.append(("no folder to make was given", "--to data/my_dataset"))
    columns = _pairs(options["columns"], "--column", "ROLE=NAME", problems)
    variables = _pairs(options["template_options"], "--template-option", "NAME=VALUE", problems)
    validation = _validation(options["validation"], problems)
    if problems:
        raise _together(problems)
    tokenizer = prepare_hub.model_folder(str(model), say=say)
    length = options["max_length"] or _number(found.take("max_length"))
    if length is None:
        length = min(DEFAULT_LENGTH, _positions(tokenizer))
        say(f"examples of at most {length} tokens (--max-length N)")
    pack = options["pack"] if options["pack"] is not None else _flag(found.take("packing"))
    if pack is None:
        pack = True
    for sentence in found.said:
        say(sentence)
    if not show:
        say(f"packed into rows of {length} tokens (or: --no-pack)" if pack else "one example in a row, not packed (or: --pack)")
    return Request(
        paths=prepare_hub.data_paths(data, say=say),
        target=Path(target) if target is not None else Path("unused"),
        tokenizer=tokenizer,
        tokenizer_name=str(model),
        form=options["form"],
        columns=columns,
        unit=options["text_unit"],
        loss_on=options["loss_on"],
        max_length=length,
        truncation=options["truncation"],
        template=Path(options["template"]) if options["template"] else None,
        template_options={name: _value(text) for name, text in variables.items()},
        eos=not options["no_eos"],
        system=options["system"],
        as_chat=options["as_chat"],
        trust_remote_code=options["trust_remote_code"],
        pack=pack,
        validation=validation,
        seed=options["seed"],
        dedupe=options["dedupe"],
        workers=options["workers"],
        force=options["force"],
    )


def rows_per_step(config: str | None, made: Manifest) -> int | None:
    """Return the rows of one optimizer step: as the job config says, and where it says nothing what the training takes, on one GPU.

    None where the config cannot be read: the work is done by now, and `check` says what is wrong with it.
    """
    found = _Defaults(config)
    try:
        rows = found.number("training", "per_device_train_batch_size") or rows_unasked(made)
        for section, name in (("training", "gradient_accumulation_steps"), ("resources", "nodes"), ("resources", "gpus_per_node")):
            rows *= found.number(section, name) or 1
    except (UsageError, ValueError):
        return None
    return rows


@dataclass(slots=True)
class _Defaults:
    """What the job config says of the training; notes are kept, in the order in which they were taken."""

    config: str | None
    said: list[str] = field(default_factory=list)
    _layers: list[Layer] | None = None

    def take(self, name: str) -> Any:
        """Return the config's value of a training argument; None where it has none."""
        value, gathered = self._written("training", name)
        if value is not None:
            where = next((origin for layer in gathered if (origin := layer.origins.get(("training", name)))), "the config")
            self.said.append(f"{name} {value}, from {where}")
        return value

    def number(self, section: str, name: str) -> int | None:
        """Return the config's positive number of that name; None where it has none."""
        value, _ = self._written(section, name)
        return int(str(value)) if str(value).isdecimal() and int(str(value)) > 0 else None

    def _written(self, section: str, name: str) -> tuple[Any, list[Layer]]:
        from hpctrain.config import files, layers

        if self._layers is None:
            self._layers = files.gather(options={}, sbatch=(), config=self.config, directory=Path.cwd(), environment=os.environ)
        return layers.written(self._layers, (section, name)), self._layers


def _together(problems: Sequence[tuple[str, str]]) -> UsageError:
    fix = "hpctrain prepare DATA --model FOLDER --to data/my_dataset" if len(problems) > 1 else problems[0][1]
    if len(problems) == 1:
        return UsageError(problems[0][0], fix=fix)
    return UsageError(f"{len(problems)} problems", details=tuple(f"  {what}" for what, _ in problems), fix=fix)


def _pairs(words: Sequence[str], option: str, form: str, problems: list[tuple[str, str]]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            problems.append((f"{option} {shell.quote(word)} is not {form}", f"{option} {form}"))
        elif name in pairs:
            problems.append((f"{option} names {name} twice", f"{option} {form}, once for each"))
        pairs[name] = value
    return pairs


def _validation(text: str | None, problems: list[tuple[str, str]]) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not (0 <= value < 1 or (value.is_integer() and 1 <= value < 1e15 and not text.endswith("%"))):
        problems.append(
            (f"--validation {shell.quote(text)} is neither a number of examples nor a share of them", "--validation 0.05, or 500")
        )
        return None
    return value


def _positions(folder: Path) -> int:
    """Return how many positions the model has, as its config.json says; more than anything where it says nothing."""
    from hpctrain.clusters.load import read_regular

    try:
        config = json.loads(read_regular(folder / "config.json", 10_000_000).decode())
        config = config.get("text_config") or config
        positions = next(value for name in ("max_position_embeddings", "n_positions") if isinstance(value := config.get(name), int))
    except (OSError, ValueError, AttributeError, StopIteration, RecursionError):
        return 1 << 40
    return max(2, positions)


def _number(value: Any) -> int | None:
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if number >= 2 else None


def _flag(value: Any) -> bool | None:
    return {"true": True, "yes": True, "false": False, "no": False}.get(str(value).lower())


def _value(text: str) -> Any:
    """Return a template's variable as JSON understands it: true, 3, "text"; any other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
