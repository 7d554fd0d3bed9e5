"""The schema of config.yaml: what each key may be, and the sentence that says so.

Every message completes "KEY …": "must be a whole number, not 'two'".
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

# pydantic looks through every installed distribution for plugins, a tenth of the time that `render` takes. We use none.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from hpctrain.config.yaml12 import Plain
from hpctrain.jobs.directives import MODELLED, NOT_A_JOB
from hpctrain.scheduler.parse import duration, memory_size

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_SLURM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+@-]{0,127}\Z")
_FEATURES = re.compile(r"[A-Za-z0-9_\[(][A-Za-z0-9_.,:=+&|*()\[\]-]{0,255}\Z")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+@=/-]{0,255}\Z")
_OPTION = re.compile(r"[a-z][a-z0-9-]+\Z")
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")


def problem(message: str) -> PydanticCustomError:
    """Return a validation error whose text is `message`, braces and all."""
    return PydanticCustomError("hpctrain", "{message}", {"message": message})


def problems(messages: dict[str, str]) -> PydanticCustomError:
    """Return a validation error for several keys of a section at once: key → message, which completes "KEY …"."""
    text = "; ".join(f"{key} {message}" for key, message in messages.items())
    return PydanticCustomError("hpctrain", "{message}", {"message": text, "keys": messages})


def _text(value: Any) -> str:
    if isinstance(value, bool | dict | list) or value is None:
        raise problem(f"must be text, not {_kind(value)}")
    text = str(value)
    if _CONTROL.search(text):
        raise problem(f"must be one line without control characters, not {_short(text)!r}")
    if not text.strip():
        raise problem("must not be empty")
    return text


def _matching(pattern: re.Pattern[str], allowed: str) -> Any:
    def check(text: str) -> str:
        if not pattern.match(text):
            raise problem(f"must be {allowed}, not {_short(text)!r}")
        return text

    return AfterValidator(check)


def _whole(minimum: int, maximum: int) -> Any:
    def check(value: Any) -> int:
        # Quoted or not, "4" is four; True, 4.0 and 4e0 are not whole numbers as people write them.
        text = str(value).strip()
        if isinstance(value, bool | dict | list) or not re.fullmatch(r"[+-]?[0-9]+", text):
            raise problem(f"must be a whole number, not {_kind(value) if isinstance(value, dict | list) else repr(_short(text))}")
        if len(text) > 18 or not minimum <= int(text) <= maximum:
            raise problem(f"must be between {minimum} and {maximum}, not {_short(text)}")
        return int(text)

    return BeforeValidator(check)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    raise problem(f"must be true or false, not {value!r}" if isinstance(value, str) else f"must be true or false, not {_kind(value)}")


def _choice(*allowed: str) -> Any:
    def check(text: str) -> str:
        if text not in allowed:
            words = ", ".join(f"'{word}'" for word in allowed[:-1])
            raise problem(f"must be {words} or '{allowed[-1]}', not {text!r}")
        return text

    return AfterValidator(check)


def _seconds(value: Any) -> int:
    try:
        seconds = duration.parse(_text(value))
    except ValueError as error:
        raise problem(
            f"must be a time limit of Slurm's forms, such as 30 (minutes), 01:30:00 or 2-00:00:00, not {_short(str(value))!r}"
        ) from error
    if seconds is None:
        raise problem("must be a limit; leave the key out for the site's default")
    if not 0 < seconds <= duration.MAX_SECONDS:
        raise problem(f"must be more than 0 and at most 366 days, not {_short(str(value))!r}")
    return seconds


def _size(value: Any) -> int:
    try:
        size = memory_size.parse(_text(value))
    except ValueError as error:
        raise problem(f"must be a whole number with K, M, G or T, such as 64G, not {_short(str(value))!r}") from error
    if size > memory_size.MAX_BYTES:
        raise problem(f"must be at most 1024T, not {_short(str(value))!r}")
    return size


def _positive_size(value: Any) -> int:
    size = _size(value)
    if size == 0:
        raise problem("must be more than 0; all memory of a node is `mem: 0`")
    return size


def _not_an_option(text: str) -> str:
    if text.startswith("-"):
        raise problem(f"must not begin with a dash, because programs would take it for an option, not {_short(text)!r}")
    return text


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


def _kind(value: Any) -> str:
    return {"dict": "keys and values", "list": "a list", "bool": "true or false", "NoneType": "nothing"}.get(
        type(value).__name__, repr(value)
    )


Text = Annotated[str, BeforeValidator(_text)]
JobName = Annotated[Text, _matching(_NAME, "1 to 64 of the characters A-Z a-z 0-9 . _ - and start with a letter or digit")]
SlurmName = Annotated[Text, _matching(_SLURM_NAME, "letters, digits and . _ - , : + @")]
Features = Annotated[Text, _matching(_FEATURES, "feature names joined by & | , with optional brackets and counts")]
Module = Annotated[Text, _matching(_MODULE, "a module name such as cuda/12.2")]
Word = Annotated[Text, AfterValidator(_not_an_option)]
Path = Word
Boolean = Annotated[bool, BeforeValidator(_boolean)]
Seconds = Annotated[int, BeforeValidator(_seconds)]


class Section(BaseModel):
    """Keys and values, all of them known."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _is_section(cls, value: Any) -> Any:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise problem(f"must hold keys and values, not {_kind(value) if isinstance(value, list) else repr(str(value))}")
        # `partition:` with nothing behind it means what leaving it out means.
        return {key: item for key, item in value.items() if item is not None}


class Resources(Section):
    """`resources:` what is asked of Slurm."""

    nodes: Annotated[int, _whole(1, 10_000)] = 1
    gpus_per_node: Annotated[int, _whole(1, 64)] = 1
    gpu_type: Annotated[Text, _matching(_NAME, "letters, digits and . _ -")] | None = None
    gpu_directive: Annotated[Text, _choice("gres", "gpus-per-node", "gpus", "none")] = "gres"
    partition: SlurmName | None = None
    account: SlurmName | None = None
    qos: SlurmName | None = None
    time: Seconds = 3600
    mem: Annotated[int, BeforeValidator(_size)] | None = None
    mem_per_cpu: Annotated[int, BeforeValidator(_positive_size)] | None = None
    cpus_per_task: Annotated[int, _whole(1, 4096)] | None = None
    constraint: Features | None = None
    reservation: SlurmName | None = None

    @model_validator(mode="after")
    def _even_gpus(self) -> Resources:
        # Slurm gave 4 GPUs on 2 nodes out as 3 and 1 (tried on 22.05).
        if self.gpu_directive == "gpus" and self.nodes > 1:
            raise problem(
                "gpu_directive: gpus counts the whole job's GPUs, which Slurm may spread unevenly over nodes; use gres or gpus-per-node"
            )
        return self


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    raise problem("must be a list, such as [cuda/12.2, python/3.11]")


class Environment(Section):
    """`environment:` what is loaded and activated, in this order."""

    modules: Annotated[tuple[Module, ...], BeforeValidator(_as_list)] = ()
    conda: Word | None = None
    venv: Path | None = None


def _sbatch_options(value: Any) -> dict[str, str | None]:
    if not isinstance(value, dict):
        raise problem("must hold sbatch options, such as `mail-type: END`")
    checked: dict[str, str | None] = {}
    wrong: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, Plain) and item == "false":
            continue  # `requeue: false`: the flag is not given
        try:
            checked[key] = _sbatch_option(key, item)
        except PydanticCustomError as error:
            wrong[key] = error.message()
    if wrong:
        raise problems(wrong)
    return checked


def _sbatch_option(key: str, item: Any) -> str | None:
    if not _OPTION.match(key):
        raise problem("is no long option name without dashes, such as mail-type")
    # sbatch takes `--gpus-per-n` for --gpus-per-node, so the beginning of a name counts as the name.
    modelled = key if key in MODELLED else next((name for name in MODELLED if name.startswith(key)), None)
    if modelled is not None:
        meant = "that directive" if modelled == key else f"{modelled!r}, which this begins,"
        raise problem(f"must not be here: hpctrain writes {meant} itself; use {MODELLED[modelled]}")
    if key in NOT_A_JOB:
        raise problem(f"must not be here: with it, sbatch does not just submit the script; use {NOT_A_JOB[key]}")
    if isinstance(item, dict | list):
        raise problem(f"must be one value, not {_kind(item)}")
    if key == "gres" and "gpu" in str(item).lower():
        raise problem("must not ask for GPUs: a second GPU request makes Slurm refuse the job; use --gpus and --gpu-type")
    return None if item is None or (isinstance(item, Plain) and item == "true") else _text(item)


def _arguments(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise problem("must hold arguments of the training script, such as `max_steps: 1000`")
    wrong = {key: "holds a NUL character, which no command line can carry" for key, item in value.items() if _holds_nul(item)}
    wrong |= {key: "is no argument name such as learning_rate" for key in value if not _ARGUMENT.match(key)}
    if wrong:
        raise problems(wrong)
    return value


def _holds_nul(item: Any) -> bool:
    if isinstance(item, list):
        return any(_holds_nul(part) for part in item)
    return isinstance(item, str) and "\0" in item  # JSON, which mappings become, escapes it


class Config(Section):
    """config.yaml as a whole."""

    job_name: JobName = "sft"
    launcher: Annotated[Text, _choice("accelerate", "torchrun", "srun")] = "accelerate"
    script: Path | None = None
    template: Path | None = None
    chdir: Path | None = None
    accelerate_config: Path = "multi_gpu.yaml"
    offline: Boolean = True
    resources: Resources = Field(default_factory=Resources)
    environment: Environment = Field(default_factory=Environment)
    sbatch: Annotated[dict[str, str | None], BeforeValidator(_sbatch_options)] = {}
    training: Annotated[dict[str, Any], BeforeValidator(_arguments)] = {}
