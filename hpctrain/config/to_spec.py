"""Convert a config to a job spec."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpctrain.config.arguments import Arguments, argument_words
from hpctrain.config.spec import (
    CLUSTER,
    EnvironmentKeys,
    JobSpec,
    LaunchSection,
    ResourceKeys,
    Secret,
    Study,
    SweepTable,
    TrainingKeys,
)
from hpctrain.config.stages import Stage, earlier
from hpctrain.config.study import STUDIES, Definition, definition
from hpctrain.config.sweep import ArrayPart, swept_arguments
from hpctrain.errors import UsageError
from hpctrain.runs import layout
from hpctrain.util.schema import Section
from hpctrain.util.secrets import looks_secret

if TYPE_CHECKING:
    from hpctrain.config.schema import Config, EnvironmentSection
    from hpctrain.config.sweep import Sweep

#: Without it, processes that find no GPU train independently of each other.
_ON_CPU = (("ACCELERATE_USE_CPU", "true"),)


def to_spec(
    config: Config, *, directory: str, home: str | None = None, arguments: Sequence[str] = ()
) -> JobSpec:
    """Return the job of `config`.

    Args:
        config: validated.
        directory: absolute working directory of the job; `chdir` is relative to it.
        home: replaces a leading `~` in values; the shell does not, because the script quotes them.
        arguments: given after `--`; they follow the config's own `training` arguments, so they
            override them if the script uses the last one.
    """
    resources, environment = config.resources, config.environment
    sets, unset = environment_variables(environment)
    sections: list[tuple[Section, type[Section]]] = [
        (resources, ResourceKeys),
        (environment, EnvironmentKeys),
        (config.launch, LaunchSection),
        (config, TrainingKeys),
    ]
    shared = {name: getattr(section, name) for section, keys in sections for name in keys.fields()}
    shared |= {
        name: _at_home(shared[name], home)
        for name in ("venv", "uv", "pixi", "accelerate_config", "script", "template")
    }
    varied = config.tune.space if config.tune is not None else ()
    fixed = [(key, value) for key, value in config.training.items() if key not in varied]
    container, notify = environment.container, config.notify
    if container is not None:
        binds = tuple(_at_home(bind, home) or "" for bind in container.binds)
        container = container.replace(image=_at_home(container.image, home), binds=binds)
    if notify is not None:
        commands = {key: _at_home(getattr(notify, key), home) for key in ("command", "webhook")}
        notify = notify.replace(mail=None, **commands) if any(commands.values()) else None
    spec = JobSpec(**shared).replace(
        job_name=config.job_name,
        chdir=posixpath.normpath(posixpath.join(directory, _at_home(config.chdir, home) or "")),
        time_s=resources.time,
        # As --mem, which all sites accept: some reject --mem-per-gpu.
        mem_bytes=(resources.mem_per_gpu or 0) * (resources.gpus_per_node or 1) or resources.mem,
        mem_per_cpu_bytes=resources.mem_per_cpu,
        sbatch=(*config.sbatch.items(), *_mails(config)),
        module_start=None if environment.module_start == "none" else environment.module_start,
        module_use=tuple(_at_home(path, home) for path in environment.module_use),
        modules=tuple(dict.fromkeys((*environment.modules_first, *environment.modules))),
        container=container,
        env=(
            *_ON_CPU[: 0 if resources.gpus_per_node else None],
            *((name, _at_home(value, home)) for name, value in sets.items()),
        ),
        unset=unset,
        secrets=tuple(
            Secret(name=name, file=None if file == "environment" else _at_home(file, home))
            for name, file in environment.secrets.items()
        ),
        before=tuple(_sourced(file, home) for file in environment.before),
        before_each_node=tuple(_sourced(file, home) for file in environment.before_each_node),
        after=tuple(_sourced(file, home) for file in environment.after),
        master_addr_suffix=config.launch.master_addr_suffix or "",
        # A custom script is not restarted by default, as it might start from scratch.
        restart=("requeue" if config.script is None else "off")
        if config.restart.mode == "auto"
        else config.restart.mode,
        max_restarts=config.restart.max,
        notify=notify,
        array=config.array if config.sweep is None else None,  # of a sweep, it selects points
        arguments=_without_secrets(
            (*(_at_home(word, home) or "" for word in argument_words(fixed)), *arguments)
        ),
    )
    spec = _with_data(spec, config, home)
    return (
        spec
        if config.tune is None
        else of_study(spec, definition(config), parallel=config.tune.parallel)
    )


def _with_data(spec: JobSpec, config: Config, home: str | None) -> JobSpec:
    local = config.data.stage == "local"
    path = _at_home(config.data.path, home)
    if path is None and local and spec.script is None:
        path = Arguments(spec).get("dataset_name")
    if path is None and local:
        raise UsageError(
            "data.stage: local needs the path of the dataset",
            hint="set it in config.yaml: data: {stage: local, path: DATASET}",
        )
    return spec.replace(
        data=path,
        data_stage=config.data.stage,
        data_directory=_at_home(config.data.directory, home),
    )


def of_study(spec: JobSpec, study: Definition, *, parallel: int) -> JobSpec:
    """Make the trials of a study the array tasks of a job; `--array` selects some of them.

    Args:
        spec: of the job.
        study: its definition, as the tasks will read it.
        parallel: maximum number of running trials, unless the array sets it.
    """
    indices = spec.array or f"0-{study.trials - 1}"
    array = indices if "%" in indices else f"{indices}%{parallel}"
    file = f"{layout.RUNS}/{STUDIES}/{study.file}"
    return spec.replace(
        array=array, study=Study(name=study.study, file=file, keys=tuple(study.space))
    )


def of_part(
    config: Config,
    sweep: Sweep,
    part: ArrayPart,
    table: str,
    *,
    directory: str,
    home: str | None = None,
    arguments: Sequence[str] = (),
) -> JobSpec:
    """Return the job of one array of a sweep.

    Args:
        config: of the points of the array.
        sweep: that the points are from.
        part: the array.
        table: file name of the points.
        directory: as in `to_spec`.
        home: as in `to_spec`.
        arguments: as in `to_spec`.
    """
    left_out = swept_arguments(sweep)
    training = {name: value for name, value in config.training.items() if name not in left_out}
    spec = to_spec(
        config.replace(training=training),
        directory=directory,
        home=home,
        arguments=arguments,
    )
    file = f"{layout.RUNS}/{layout.SWEEPS}/{table}"
    return spec.replace(
        array=part.spec,
        sweep=SweepTable(file=file, offset=part.offset, how=sweep.pass_, option=sweep.option),
    )


def of_stage(spec: JobSpec, stage: Stage, planned: Sequence[Stage]) -> JobSpec:
    """Add the stage and its predecessors to a job."""
    chained = (
        tuple(parent for parent, kind in stage.dependencies if kind == "afterok")
        if spec.restart == "chain"
        else ()
    )
    return spec.replace(
        stage=stage.name,
        parents=tuple(earlier(planned, stage.name)),
        must_have_completed=chained,
    )


#: Outcome → Slurm's mail types (sbatch(1), --mail-type; tried with 22.05). END: it completed, or
#: was cancelled. FAIL: any other end, including the time limit, for which TIME_LIMIT would send a
#: second mail; a training that stopped itself has an exit code, which is FAIL. Not REQUEUE, which
#: is not an end.
_MAILS = {"completed": ("END",), "failed": ("FAIL", "INVALID_DEPEND"), "stopped": ("END", "FAIL")}


def _mails(config: Config) -> list[tuple[str, str]]:
    """Return Slurm's mail directives; those in `sbatch:` take precedence."""
    asked = config.notify
    if asked is None or asked.mail is None:
        return []
    words = dict.fromkeys(word for outcome in asked.on for word in _MAILS[outcome])
    directives = {"mail-user": asked.mail, "mail-type": ",".join(words)}
    return [(name, value) for name, value in directives.items() if name not in config.sbatch]


def _without_secrets(words: tuple[str, ...]) -> tuple[str, ...]:
    before = ""
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if equals and looks_secret(name.removeprefix("--"), value):
            variable = name.removeprefix("--").upper()
            raise UsageError(
                f"{name or 'an argument'} of the training looks like a secret, and would be readable in"
                " the script",
                hint=(
                    "put it into a file, chmod 600, and name that in config.yaml:"
                    f" environment.secrets.{variable}: FILE"
                ),
            )
        before = word if word.startswith("--") else ""
    return words


def _sourced(file: str, home: str | None) -> str:
    """Return the path of a hook for `source`, which searches PATH for a name without a slash."""
    path = _at_home(file, home) or ""
    return path if "/" in path else f"./{path}"


def _at_home(text: str | None, home: str | None) -> str | None:
    if text is None or home is None or not (text == "~" or text.startswith("~/")):
        return text
    return home + text[1:]


#: Built-in profiles.
SHIPPED: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    # Leftovers from debugging or from another machine: these serialize kernels, disable fast paths
    # or select the wrong network. The flight recorder (TORCH_FR_BUFFER_SIZE) needs the default
    # error handling, 3 (pytorch/pytorch#121055). Names: NVIDIA's NCCL user guide (environment
    # variables), torch.distributed (ProcessGroupNCCL.hpp), CUDA programming guide.
    "large-scale": (
        {
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1800",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
            "NCCL_DEBUG": "WARN",
        },
        (
            "CUDA_VISIBLE_DEVICES",
            "CUDA_LAUNCH_BLOCKING",
            "NCCL_SOCKET_IFNAME",
            "NCCL_P2P_DISABLE",
            "NCCL_SHM_DISABLE",
            "NCCL_IB_DISABLE",
            "NCCL_P2P_LEVEL",
            "NCCL_ALGO",
            "NCCL_PROTO",
            "NCCL_BLOCKING_WAIT",
            "NCCL_ASYNC_ERROR_HANDLING",
            "NCCL_DEBUG_SUBSYS",
            "TORCH_NCCL_BLOCKING_WAIT",
            "TORCH_DISTRIBUTED_DEBUG",
            "TORCH_SHOW_CPP_STACKTRACES",
        ),
    ),
    "debug": (
        {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
            "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
            "TORCH_CPP_LOG_LEVEL": "INFO",
            "TORCH_SHOW_CPP_STACKTRACES": "1",
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        },
        (),
    ),
}


def environment_variables(
    environment: EnvironmentSection,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a job sets, and those that it unsets; no name is in both.

    Raises:
        UsageError: an unknown profile.
    """
    sets: dict[str, str] = {}
    unset: list[str] = []
    layers = [_layer(environment, CLUSTER)] if CLUSTER in environment.profiles else []
    if environment.profile is not None:
        layers.append(_layer(environment, environment.profile))
    for values, names in [*layers, (environment.env, environment.unset)]:
        for name in names:
            sets.pop(name, None)
        unset = [name for name in dict.fromkeys((*unset, *names)) if name not in values]
        sets |= values
    kept = environment.secrets  # profiles do not override secrets
    return {name: value for name, value in sets.items() if name not in kept}, tuple(
        name for name in unset if name not in kept
    )


def _layer(environment: EnvironmentSection, name: str) -> tuple[Mapping[str, str], tuple[str, ...]]:
    own = environment.profiles.get(name)
    if own is not None:
        return own.env, own.unset
    if name not in SHIPPED:
        known = sorted({*SHIPPED, *environment.profiles} - {CLUSTER})
        raise UsageError(
            f"there is no environment profile {name!r}",
            details=(f"known are {', '.join(known)}",),
            hint=f"use --env-profile {known[0]}",
        )
    return SHIPPED[name]
