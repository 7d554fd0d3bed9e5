"""Types of user input, for the schemas of config.yaml and of cluster profiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from hpctrain.slurm.notations import units
from hpctrain.util.schema import Problem, as_text, kind_of, short

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_SLURM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+@-]{0,127}\Z")
_FEATURES = re.compile(r"[A-Za-z0-9_\[(][A-Za-z0-9_.,:=+&|*()\[\]-]{0,255}\Z")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+@=/-]{0,255}\Z")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
#: Variables set by Slurm, the launchers and the script itself. The exceptions are inputs of srun
#: that do not change the layout of the job.
_OURS = re.compile(
    r"(?!SLURM_(MPI_TYPE|CPU_BIND|MEM_BIND|NETWORK|DEBUG)\Z)(HPCTRAIN|SLURM|SLURMD|SBATCH|PET|BASH)_"
    r"|(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\Z"
    # Variables of bash: some are read-only, and the content of others is executed.
    r"|(PATH|IFS|PS4|PS0|PROMPT_COMMAND|ENV|UID|EUID|PPID|PWD|OLDPWD|HOME|SHELLOPTS|BASHOPTS|RANDOM|SECONDS|LINENO)\Z"
    # Variables of the script: templates/*.j2 use these names.
    r"|(activation|attempt|cache|code|command|container|end|gpus|host|hosts|index|job|launch|line|link|mode|now|over|pause|pixi|reason|restart|run|srun"
    r"|status|said|outcome|stream|tag|threads|training)\Z"
)


def matching(pattern: re.Pattern[str], allowed: str) -> Callable[[str], str]:
    """Return a validator for text that starts with `pattern`; `allowed` describes it."""

    def check(text: str) -> str:
        if not pattern.match(text):
            raise Problem(f"must be {allowed}, not {short(text)!r}")
        return text

    return check


def whole(minimum: int, maximum: int) -> Callable[[Any], int]:
    """Return a validator for whole numbers, both bounds included."""

    def check(value: Any) -> int:
        # Quoted or not, "4" is four; True, 4.0 and 4e0 are not accepted as whole numbers.
        text = str(value).strip()
        if isinstance(value, bool | dict | list) or not re.fullmatch(r"[+-]?[0-9]+", text):
            raise Problem(
                "must be a whole number, not"
                f" {kind_of(value) if isinstance(value, dict | list) else repr(short(text))}"
            )
        if len(text) > 18 or not minimum <= int(text) <= maximum:
            raise Problem(f"must be between {minimum} and {maximum}, not {short(text)}")
        return int(text)

    return check


def _seconds(value: Any) -> int:
    try:
        seconds = units.parse_time(as_text(value))
    except ValueError as error:
        raise Problem(
            "must be a time limit in one of Slurm's forms, such as 30 (minutes), 01:30:00 or 2-00:00:00,"
            f" not {short(str(value))!r}"
        ) from error
    if seconds is None:
        raise Problem("must be a limit; leave the key out for the site's default")
    if not 0 < seconds <= units.MAX_SECONDS:
        raise Problem(f"must be more than 0 and at most 366 days, not {short(str(value))!r}")
    return seconds


def _size(value: Any) -> int:
    try:
        size = units.parse_memory(as_text(value))
    except ValueError as error:
        raise Problem(
            f"must be a whole number with K, M, G or T, such as 64G, not {short(str(value))!r}"
        ) from error
    if size > units.MAX_MEMORY:
        raise Problem(f"must be at most 1024T, not {short(str(value))!r}")
    return size


def _positive_size(value: Any) -> int:
    size = _size(value)
    if size == 0:
        raise Problem("must be more than 0; all memory of a node is `mem: 0`")
    return size


def _not_an_option(text: str) -> str:
    if text.startswith("-"):
        raise Problem(
            "must not start with a dash, because programs would take it for an option, not"
            f" {short(text)!r}"
        )
    return text


def variable_problem(name: str) -> str | None:
    """Return the problem with the name of an environment variable, if any."""
    if _OURS.match(name):
        return (
            "is set by Slurm, the launcher or the script itself, and another value would break"
            " the job"
        )
    if not _VARIABLE.match(name):
        return f"is not a name of an environment variable such as NCCL_DEBUG: {short(name)!r}"
    return None


def _variable_name(text: str) -> str:
    message = variable_problem(text)
    if message is not None:
        raise Problem(message)
    return text


Text = Annotated[str, as_text]
Name = Annotated[Text, matching(_NAME, "letters, digits and . _ -")]
JobName = Annotated[
    Text,
    matching(_NAME, "1 to 64 of the characters A-Z a-z 0-9 . _ - and start with a letter or digit"),
]
SlurmName = Annotated[Text, matching(_SLURM_NAME, "letters, digits and . _ - , : + @")]
Features = Annotated[
    Text, matching(_FEATURES, "feature names joined by & | , with optional brackets and counts")
]
Module = Annotated[Text, matching(_MODULE, "a module name such as cuda/12.2")]
Word = Annotated[Text, _not_an_option]
Path = Word
#: No options but -l: with -x or -v bash would log secrets, with -n it would run nothing.
Shebang = Annotated[
    Text,
    matching(
        re.compile(r"#!/[A-Za-z0-9._/-]*bash( -l| --login)?\Z"),
        "a first line such as #!/bin/bash -l",
    ),
]
HostSuffix = Annotated[
    Text, matching(re.compile(r"[A-Za-z0-9.-]{1,64}\Z"), "letters, digits, . or -")
]
VariableName = Annotated[Text, _variable_name]
#: Indices of a job array; the site sets the maximum (MaxArraySize).
Indices = Annotated[
    Text,
    matching(
        re.compile(
            r"\d{1,9}(-\d{1,9}(:\d{1,9})?)?(,\d{1,9}(-\d{1,9}(:\d{1,9})?)?)*(%\d{1,9})?\Z", re.ASCII
        ),
        "indices such as 0-9, 1,5,7-9 or 0-99%4",
    ),
]
CpuBind = Annotated[
    Text,
    matching(
        re.compile(r"[A-Za-z0-9_,:.-]{1,2048}\Z"),
        "a value of srun's --cpu-bind, such as none or cores",
    ),
]
Seconds = Annotated[int, _seconds]
Size = Annotated[int, _size]
PositiveSize = Annotated[int, _positive_size]
