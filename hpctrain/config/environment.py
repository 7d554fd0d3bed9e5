"""The sections of config.yaml that say what a job finds when it starts: environment, container, variables, secrets, launch."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hpctrain.fieldtypes import (
    Boolean,
    CpuBind,
    HostSuffix,
    Module,
    Name,
    Path,
    Section,
    Shebang,
    Text,
    Word,
    as_list,
    choice,
    kind,
    matching,
    problem,
    problems,
    short,
)
from hpctrain.jobs.secret_forms import looks_secret

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
#: What Slurm, the launchers and the script itself set. The exceptions are srun's own inputs that leave the layout of the job alone.
_OURS = re.compile(
    r"(?!SLURM_(MPI_TYPE|CPU_BIND|MEM_BIND|NETWORK|DEBUG)\Z)(HPCTRAIN|SLURM|SLURMD|SBATCH|PET|BASH)_"
    r"|(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\Z"
    # Of bash itself: it keeps some of them read-only, and runs what is in others.
    r"|(PATH|IFS|PS4|PS0|PROMPT_COMMAND|ENV|UID|EUID|PPID|PWD|OLDPWD|HOME|SHELLOPTS|BASHOPTS|RANDOM|SECONDS|LINENO)\Z"
    # Of the script: templates/*.j2 use these names.
    r"|(activation|attempt|cache|code|command|container|end|gpus|host|hosts|index|job|launch|line|link|mode|now|over|pause|pixi|reason|restart|run|srun"
    r"|status|said|outcome|stream|tag|threads|training)\Z"
)
#: A file is written as one, so that a pasted key with a slash in it is not taken for a path.
_FILE = re.compile(r"(~|\.{1,2})?/.")
_BIND = re.compile(r"[A-Za-z0-9_,:.-]{1,2048}\Z")
_BIND = re.compile(r"[^,]+\Z")


def _environment_variables(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise problem("must hold names and values, such as `NCCL_DEBUG: WARN`")
    wrong: dict[str, str] = {}
    checked: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, bool | dict | list):
            wrong[name] = f"must be text, not {kind(item)}"
        elif _holds_control(str(item)):
            wrong[name] = "must be one line without control characters"
        elif not _VARIABLE.match(name) or _OURS.match(name):
            wrong[name] = _variable_problem(name)
        elif looks_secret(name, str(item)):
            wrong[name] = "looks like a secret, and would stand in the script; put it into a file, chmod 600, and name that under secrets"
        else:
            checked[name] = str(item)
    if wrong:
        raise problems(wrong)
    return checked


def _variable_name(text: str) -> str:
    if not _VARIABLE.match(text) or _OURS.match(text):
        raise problem(_variable_problem(text))
    return text


def _variable_problem(name: str) -> str:
    if _OURS.match(name):
        return "is set by Slurm, the launcher or the script itself, and another value would break the job"
    return f"is no name of an environment variable such as NCCL_DEBUG, but {short(name)!r}"


def _secrets(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise problem("must hold names and files, such as `HF_TOKEN: ~/.hf_token`, or `HF_TOKEN: environment`")
    wrong = {name: _variable_problem(name) for name in value if not _VARIABLE.match(name) or _OURS.match(name)}
    # What looks like the secret itself is not shown again.
    wrong |= {
        name: "must be the file that holds the secret, such as ~/.hf_token or ./token, or the word environment; "
        "the secret itself does not belong here"
        for name, item in value.items()
        if name not in wrong and (not isinstance(item, str) or not (item == "environment" or _FILE.match(item)))
    }
    wrong |= {name: "must be one line without control characters" for name, item in value.items() if _holds_control(str(item))}
    if wrong:
        raise problems(wrong)
    return {name: str(item) for name, item in value.items()}


def _holds_control(text: str) -> bool:
    return any(ord(character) < 32 or ord(character) == 127 for character in text)


EnvironmentVariables = Annotated[dict[str, str], BeforeValidator(_environment_variables)]
VariableNames = Annotated[tuple[Annotated[Text, AfterValidator(_variable_name)], ...], BeforeValidator(as_list)]
Secrets = Annotated[dict[str, str], BeforeValidator(_secrets)]
Bind = Annotated[Word, matching(_BIND, "HOST, HOST:CONTAINER or HOST:CONTAINER:OPTIONS without commas")]


class Container(Section):
    """`container:` the image that the training runs in."""

    image: Path | None = None
    engine: Annotated[Text, choice("apptainer", "singularity", "pyxis", "ce")] = "apptainer"
    binds: Annotated[tuple[Bind, ...], BeforeValidator(as_list)] = ()
    gpu_libraries: Annotated[Text, choice("nv", "rocm", "none")] = "nv"

    @model_validator(mode="after")
    def _has_an_image(self) -> Container:
        if self.image is None:
            raise problem("needs an image, such as `image: images/training.sif`")
        return self


class Variables(Section):
    """One of `profiles:`, a named set of variables; `extends` names the one that it is laid over."""

    extends: Name | None = None
    env: EnvironmentVariables = Field(default_factory=dict)
    unset: VariableNames = ()


class Environment(Section):
    """`environment:` what is loaded and activated, in this order."""

    module_start: Annotated[Text, choice("purge", "reset", "none")] = "none"
    module_use: Annotated[tuple[Path, ...], BeforeValidator(as_list)] = ()
    modules_first: Annotated[tuple[Module, ...], BeforeValidator(as_list)] = ()
    modules: Annotated[tuple[Module, ...], BeforeValidator(as_list)] = ()
    conda: Word | None = None
    venv: Path | None = None
    uv: Path | None = None
    pixi: Path | None = None
    container: Container | None = None
    profile: Name | None = None
    profiles: dict[str, Variables] = Field(default_factory=dict)
    env: EnvironmentVariables = Field(default_factory=dict)
    unset: VariableNames = ()
    secrets: Secrets = Field(default_factory=dict)
    before: Annotated[tuple[Path, ...], BeforeValidator(as_list)] = ()
    after: Annotated[tuple[Path, ...], BeforeValidator(as_list)] = ()

    @model_validator(mode="after")
    def _secrets_stay(self) -> Environment:
        for section in ("env", "unset"):
            if twice := sorted(set(self.secrets) & set(getattr(self, section))):
                raise problem(f"has {', '.join(twice)} in secrets and in {section}; leave it out of {section}")
        return self

    @model_validator(mode="after")
    def _one_python(self) -> Environment:
        outside = next((name for name in ("conda", "venv", "uv", "pixi") if getattr(self, name) is not None), None)
        if self.container is not None and outside is not None:
            raise problem(f"has a container and {outside}: the training would see the Python of the container only; leave {outside} out")
        return self


class Launch(Section):
    """`launch:` how the processes start; the cluster's profile knows."""

    shebang: Shebang = "#!/bin/bash"
    master_addr_suffix: HostSuffix | None = None
    cpu_bind: CpuBind | None = None
    gpus_on_srun: Boolean = False
