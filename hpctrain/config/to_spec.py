"""Config → job spec."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from hpctrain.config import variables
from hpctrain.config.tune import definition
from hpctrain.errors import UsageError
from hpctrain.jobs.secret_forms import looks_secret
from hpctrain.jobs.spec import Container, GpuDirective, JobSpec, Launcher, Notify, Restart, Secret, Sharding, Study, SweepTable, Task
from hpctrain.jobs.stages import Stage, earlier
from hpctrain.jobs.sweep import ArrayPart, Sweep, swept_arguments
from hpctrain.jobs.sweep.words import argument_words
from hpctrain.jobs.tune import STUDIES, Definition
from hpctrain.runs import layout

if TYPE_CHECKING:
    from hpctrain.config.environment import Environment
    from hpctrain.config.schema import Config


def to_spec(config: Config, *, directory: str, home: str | None = None, arguments: Sequence[str] = ()) -> JobSpec:
    """Return the job of `config`.

    Args:
        config: validated.
        directory: absolute; where the job runs; `chdir` counts from here.
        home: takes the place of a leading `~` in what config files and options say: the script quotes values, so no shell does it.
        arguments: what came after `--`; they follow the config's own `training` arguments, so they win where a script takes the last.
    """
    resources, environment = config.resources, config.environment
    sets, unset = variables.resolved(environment)
    spec = JobSpec(
        job_name=config.job_name,
        chdir=posixpath.normpath(posixpath.join(directory, _at_home(config.chdir, home) or "")),
        launcher=cast("Launcher", config.launcher),
        nodes=resources.nodes,
        gpus_per_node=resources.gpus_per_node,
        gpu_type=resources.gpu_type,
        gpu_directive=cast("GpuDirective", resources.gpu_directive),
        partition=resources.partition,
        account=resources.account,
        qos=resources.qos,
        time_s=resources.time,
        mem_bytes=resources.mem,
        mem_per_cpu_bytes=resources.mem_per_cpu,
        cpus_per_task=resources.cpus_per_task,
        constraint=resources.constraint,
        reservation=resources.reservation,
        sbatch=(*config.sbatch.items(), *_mails(config)),
        module_start=None if environment.module_start == "none" else cast("Any", environment.module_start),
        module_use=tuple(_at_home(path, home) or "" for path in environment.module_use),
        modules=tuple(dict.fromkeys((*environment.modules_first, *environment.modules))),
        conda=environment.conda,
        venv=_at_home(environment.venv, home),
        uv=_at_home(environment.uv, home),
        pixi=_at_home(environment.pixi, home),
        container=_container(environment, home),
        env=tuple((name, _at_home(value, home) or "") for name, value in sets.items()),
        unset=unset,
        secrets=tuple(
            Secret(name=name, file=None if file == "environment" else _at_home(file, home)) for name, file in environment.secrets.items()
        ),
        before=tuple(_sourced(file, home) for file in environment.before),
        after=tuple(_sourced(file, home) for file in environment.after),
        offline=config.offline,
        accelerate_config=_at_home(config.accelerate_config, home) or "",
        script=_at_home(config.script, home),
        task=cast("Task", config.task),
        template=_at_home(config.template, home),
        cluster=config.cluster,
        shebang=config.launch.shebang,
        sharding=cast("Sharding", config.sharding),
        cpus_per_gpu=resources.cpus_per_gpu,
        gpus_on_srun=config.launch.gpus_on_srun,
        master_addr_suffix=config.launch.master_addr_suffix or "",
        cpu_bind=config.launch.cpu_bind,
        restart=_restart(config),
        max_restarts=config.restart.max,
        notify=_notify(config, home),
        array=config.array if config.sweep is None else None,  # of a sweep, it counts points
        arguments=_without_secrets((*(_at_home(word, home) or "" for word in argument_words(_fixed(config))), *arguments)),
    )
    return spec if config.tune is None else of_study(spec, definition(config), parallel=config.tune.parallel)


def of_study(spec: JobSpec, study: Definition, *, parallel: int) -> JobSpec:
    """Return the job whose array tasks are the trials of a study; `--array` takes some of the tasks.

    Args:
        spec: of the job.
        study: its definition, as the tasks will find it.
        parallel: trials that run at a time, where the array does not say it.
    """
    indices = spec.array or f"0-{study.trials - 1}"
    array = indices if "%" in indices else f"{indices}%{parallel}"
    file = f"{layout.RUNS}/{STUDIES}/{study.file}"
    return replace(spec, array=array, study=Study(name=study.study, file=file, keys=tuple(study.space)))


def _fixed(config: Config) -> list[tuple[str, Any]]:
    """Return the arguments that are the same in all trials of a study, where there is one."""
    return [(key, value) for key, value in config.training.items() if config.tune is None or key not in config.tune.space]


def of_part(
    config: Config, sweep: Sweep, part: ArrayPart, table: str, *, directory: str, home: str | None = None, arguments: Sequence[str] = ()
) -> JobSpec:
    """Return the job of one array of a sweep.

    Args:
        config: of the points of the array.
        sweep: what the points hold, and how it reaches the script.
        part: the array.
        table: file name of the points.
        directory: as for `to_spec`, as are `home` and `arguments`.
        home: see there.
        arguments: see there.
    """
    left_out = swept_arguments(sweep)
    training = {name: value for name, value in config.training.items() if name not in left_out}
    spec = to_spec(config.model_copy(update={"training": training}), directory=directory, home=home, arguments=arguments)
    file = f"{layout.RUNS}/{layout.SWEEPS}/{table}"
    return replace(spec, array=part.spec, sweep=SweepTable(file=file, offset=part.offset, how=sweep.passed, option=sweep.option))


def of_stage(spec: JobSpec, stage: Stage, planned: Sequence[Stage]) -> JobSpec:
    """Return the job of a stage in its place among all stages."""
    chained = tuple(parent for parent, kind in stage.dependencies if kind == "afterok") if spec.restart == "chain" else ()
    return replace(spec, stage=stage.name, parents=tuple(earlier(planned, stage.name)), must_have_completed=chained)


def _restart(config: Config) -> Restart:
    """Return how the job goes on; by default, a script of one's own is not started again: it may begin at its beginning."""
    if config.restart.mode == "auto":
        return "requeue" if config.script is None else "off"
    return cast("Restart", config.restart.mode)


#: Outcome → Slurm's words for it (sbatch(1), --mail-type; tried with 22.05). END: it completed, or was cancelled. FAIL: any other end, the
#: time limit too, which TIME_LIMIT would mail a second time; a training that stopped by itself has an exit code, which is FAIL. Not
#: REQUEUE: that is no end.
_MAILS = {"completed": ("END",), "failed": ("FAIL", "INVALID_DEPEND"), "stopped": ("END", "FAIL")}


def _mails(config: Config) -> list[tuple[str, str]]:
    """Return the directives by which Slurm mails; what `sbatch:` says of mails stays."""
    asked = config.notify
    if asked is None or asked.mail is None:
        return []
    words = dict.fromkeys(word for outcome in asked.on for word in _MAILS[outcome])
    directives = {"mail-user": asked.mail, "mail-type": ",".join(words)}
    return [(name, value) for name, value in directives.items() if name not in config.sbatch]


def _notify(config: Config, home: str | None) -> Notify | None:
    asked = config.notify
    if asked is None or (asked.command is None and asked.webhook is None):
        return None
    return Notify(on=asked.on, command=_at_home(asked.command, home), webhook=_at_home(asked.webhook, home))


def _without_secrets(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the training's arguments, which stand in the script.

    Raises:
        UsageError: one of them is a secret.
    """
    before = ""
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if equals and looks_secret(name.removeprefix("--"), value):
            variable = name.removeprefix("--").upper()
            raise UsageError(
                f"{name or 'an argument'} of the training looks like a secret, and would stand in the script",
                fix=f"put it into a file, chmod 600, and name that in config.yaml: environment.secrets.{variable}: FILE",
            )
        before = word if word.startswith("--") else ""
    return words


def _container(environment: Environment, home: str | None) -> Container | None:
    asked = environment.container
    if asked is None or asked.image is None:
        return None
    return Container(
        engine=cast("Any", asked.engine),
        image=_at_home(asked.image, home) or "",
        binds=tuple(_at_home(bind, home) or "" for bind in asked.binds),
        gpu=cast("Any", asked.gpu_libraries),
    )


def _sourced(file: str, home: str | None) -> str:
    """Return the path of a hook as `source` takes it: a name without a slash would be looked for on PATH."""
    path = _at_home(file, home) or ""
    return path if "/" in path else f"./{path}"


def _at_home(text: str | None, home: str | None) -> str | None:
    if text is None or home is None or not (text == "~" or text.startswith("~/")):
        return text
    return home + text[1:]
