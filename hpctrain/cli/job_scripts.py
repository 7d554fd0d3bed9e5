"""The scripts that a request makes: one, or those of a sweep, or one for each stage. Nothing is written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpctrain import __version__, yaml12
from hpctrain.cli.job_options import Job, Request, job_from, layers_of, mention_unknown_variables, words_of
from hpctrain.config import accelerate_config, to_spec
from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.jobs.spec import JobSpec
from hpctrain.jobs.tune import STUDIES
from hpctrain.runs import layout

if TYPE_CHECKING:
    from hpctrain.cli.sweep_plan import Plan
    from hpctrain.config.layers import Layer
    from hpctrain.jobs.stages import Stage
    from hpctrain.jobs.sweep import ArrayPart

Kind = Literal["run", "sweep", "stages"]


@dataclass(frozen=True, slots=True)
class Script:
    """A rendered script.

    Attributes:
        path: where it goes; None: stdout.
        part: of a sweep, the array that it is.
        stage: of stages, the one that it runs.
    """

    spec: JobSpec
    text: str
    path: Path | None
    job: Job
    part: ArrayPart | None = None
    stage: Stage | None = None


@dataclass(frozen=True, slots=True)
class Scripts:
    """All scripts of a request, in the order in which they are submitted.

    Attributes:
        job: of a sweep or of stages, what all of them have in common.
        tables: files that the scripts read: the points of a sweep.
        plan: of a sweep.
    """

    kind: Kind
    job: Job
    scripts: tuple[Script, ...]
    tables: Mapping[Path, str] = field(default_factory=dict)
    plan: Plan | None = None


def jobs_of(asked: Request) -> list[tuple[str, Job]]:
    """Return the jobs that a request's scripts run, each with the name that messages call it by; "" for the only one.

    Raises:
        UsageError: all config errors at once, a sweep or stages that cannot be.
    """
    mention_unknown_variables()
    stacked = layers_of(asked)
    job = job_from(asked, stacked)
    if job.config.stages is not None:
        return [(f"stage {stage.name}", each) for stage, each in _stage_jobs(asked, stacked)]
    if job.config.sweep is not None:
        from hpctrain.cli import sweep_plan

        plan = sweep_plan.plan(asked)
        if plan is not None and plan.sweep.config_keys:
            return [(f"point {script.group.points[0].index}", script.job) for script in plan.scripts]
    return [("", job)]


def scripts_of(asked: Request, *, alone: bool = False) -> Scripts:
    """Return the scripts of a request; nothing is written.

    Args:
        asked: what was typed.
        alone: one job, whatever the config says of a sweep and of stages.

    Raises:
        UsageError: all config errors at once, a missing script, template or accelerate config that would start too few processes.
    """
    mention_unknown_variables()
    stacked = layers_of(asked)
    job = job_from(asked, stacked)
    if asked.to is not None and not asked.to.strip():
        raise UsageError("--to must name a file, or be - for stdout", fix=f"{asked.again} --to {job.spec.job_name}.sbatch")
    if job.config.sweep is not None and not alone:
        return _swept(asked, job)
    if job.config.stages is not None and not alone:
        return _staged(asked, job, stacked)
    if job.config.tune is not None:
        return _studied(asked, job) if not alone else _alone(asked, replace(job, spec=replace(job.spec, array=None, study=None)))
    return _alone(asked, job)


def _alone(asked: Request, job: Job) -> Scripts:
    return Scripts("run", job, (_script(asked, job, job.spec, _path(asked, job.spec.job_name, "")),))


def _studied(asked: Request, job: Job) -> Scripts:
    """Return the script whose tasks are trials, with the definition of the study that they read."""
    from hpctrain.config.tune import definition

    tune = job.config.tune
    if tune is None:
        raise ValueError("a config with a study has a section for it")
    _refuse_twice(asked, tuple(tune.space))
    file = Path(asked.config or "config.yaml")
    text = file.read_text(encoding="utf-8") if file.is_file() else None
    left_out = {("array",)}
    words = words_of(
        replace(asked, options={key: value for key, value in asked.options.items() if key not in left_out}, config=None, to=None)
    )
    study = definition(job.config, file=None if text is None else (str(file), text), words=words)
    spec = replace(job.spec, study=None, array=job.config.array or asked.tasks)
    job = replace(job, spec=to_spec.of_study(spec, study, parallel=tune.parallel))
    path = Path(job.spec.chdir) / layout.RUNS / STUDIES / study.file
    return replace(_alone(asked, job), tables={path: study.text})


def _refuse_twice(asked: Request, space: Sequence[str]) -> None:
    names = {word.removeprefix("--").partition("=")[0].replace("-", "_") for word in asked.arguments if word.startswith("--")}
    if both := [key for key in space if key.replace("-", "_") in names]:
        raise UsageError(
            f"{' and '.join(both)} {'is' if len(both) == 1 else 'are'} in the space of the study, and behind --",
            fix=f"leave {' and '.join(f'--{key}' for key in both)} out; under training in config.yaml they are what the first trial takes",
        )


def _swept(asked: Request, job: Job) -> Scripts:
    from hpctrain.cli import sweep_plan

    plan = sweep_plan.plan(asked)
    if plan is None:
        raise ValueError("a config with a sweep has a plan")
    points = plan.table()
    parts = [(script, part) for script in plan.scripts for part in script.parts]
    made = []
    for number, (script, part) in enumerate(parts, 1):
        where: dict[str, Any] = {"directory": str(Path.cwd()), "home": str(Path.home()), "arguments": asked.arguments}
        spec = to_spec.of_part(script.job.config, plan.sweep, part, points.name, **where)
        path = _path(asked, spec.job_name, f"-{number}" if number > 1 else "", several=len(parts) > 1)
        made.append(_script(asked, script.job, spec, path, part=part))
    file = Path(job.spec.chdir) / layout.RUNS / layout.SWEEPS / points.name
    return Scripts("sweep", job, tuple(made), {file: points.text}, plan)


def _staged(asked: Request, job: Job, stacked: Sequence[Layer]) -> Scripts:
    made = []
    for stage, own in _stage_jobs(asked, stacked):
        path = _path(asked, job.spec.job_name, f"-{stage.name}", several=True)
        made.append(_script(asked, own, own.spec, path, stage=stage))
    return Scripts("stages", job, tuple(made))


def _stage_jobs(asked: Request, stacked: Sequence[Layer]) -> list[tuple[Stage, Job]]:
    """Return each stage with its job, whose name is its own, so that logs and `scancel -n` tell stages apart."""
    from hpctrain.config import stages as written

    planned = written.read(stacked, again=asked.again)
    found = []
    for stage, job in written.resolve_each(planned, stacked, lambda layers: job_from(asked, layers)):
        found.append((stage, replace(job, spec=to_spec.of_stage(job.spec, stage, planned))))
    return found


def _path(asked: Request, job_name: str, suffix: str, *, several: bool = False) -> Path | None:
    if asked.to == "-":
        if several:
            raise UsageError("this makes several scripts, and stdout takes one", fix=f"{asked.again} --to FILE.sbatch")
        return None
    first = Path(asked.to or f"{job_name}.sbatch")
    return first.with_name(f"{first.stem}{suffix}{first.suffix}") if suffix else first


def _script(
    asked: Request, job: Job, spec: JobSpec, path: Path | None, *, part: ArrayPart | None = None, stage: Stage | None = None
) -> Script:
    _check_directory(spec, asked.again)
    _check_training_script(spec, asked.again)
    _check_accelerate_config(spec, asked.again)
    from hpctrain.cli import templates as files_
    from hpctrain.jobs import render

    templates, template, files_of_the_user = files_.find(spec, asked.again)
    made: dict[str, Any] = {
        "version": __version__, "directory": str(Path.cwd()), "arguments": words_of(asked), "compiled": files_.compiled(),
        "files": files_of_the_user,
    }  # fmt: skip
    return Script(spec, render.render(spec, templates, template=template, **made), path, job, part, stage)


def paths_of(scripts: Sequence[Script]) -> list[Path]:
    """Return where the scripts go.

    Raises:
        ValueError: one goes to stdout.
    """
    found = [script.path for script in scripts if script.path is not None]
    if len(found) != len(scripts):
        raise ValueError("a script for stdout has no path")
    return found


def _check_directory(spec: JobSpec, again: str) -> None:
    if Path(spec.chdir).exists() and not Path(spec.chdir).is_dir():
        raise UsageError(f"--chdir {spec.chdir} is a file, not a directory", fix=f"{again} --chdir DIRECTORY")


def _check_training_script(spec: JobSpec, again: str) -> None:
    if spec.script is None or not Path(spec.chdir).is_dir():
        return
    if not (Path(spec.chdir) / spec.script).is_file():
        raise UsageError(
            f"there is no script {spec.script!r} in {spec.chdir}",
            fix=f"{again} --script FILE, or without --script for the training that task names",
        )


def _check_accelerate_config(spec: JobSpec, again: str) -> None:
    file = Path(spec.chdir) / spec.accelerate_config
    if spec.launcher != "accelerate" or spec.sharding != "ddp" or not Path(spec.chdir).is_dir():
        return
    if not file.exists():
        if spec.accelerate_config == "multi_gpu.yaml":
            return  # written beside the script
        raise UsageError(
            f"there is no accelerate config {spec.accelerate_config!r} in {spec.chdir}",
            fix=f"{again} --accelerate-config multi_gpu.yaml",
        )
    try:
        document = yaml12.load(file.read_text(encoding="utf-8"), spec.accelerate_config)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {spec.accelerate_config}: {error}", fix=f"ls -l {shell.quote(file)}") from error
    found = accelerate_config.problems(document, spec.accelerate_config)
    if found:
        raise UsageError(
            yaml12.problems_in(len(found), spec.accelerate_config),
            details=tuple(found),
            fix=f"edit {spec.accelerate_config}, then run: {again}",
        )
