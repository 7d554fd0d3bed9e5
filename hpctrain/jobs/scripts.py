"""The scripts of a request: a single one, those of a sweep, or one for each stage.

Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpctrain import __version__
from hpctrain.config import schema, stages, to_spec
from hpctrain.config.spec import JobSpec
from hpctrain.config.study import STUDIES, Tune, definition
from hpctrain.errors import UsageError
from hpctrain.jobs import header, sweep_plan
from hpctrain.jobs.request import Job, Request, job_from, layers_of, suggested, words_of
from hpctrain.runs import layout
from hpctrain.runs.launch import Part
from hpctrain.slurm import batch_script
from hpctrain.slurm.notations import directives
from hpctrain.util import installed, shell, stored, text, yaml12

if TYPE_CHECKING:
    from hpctrain.config.layers import Layer
    from hpctrain.config.stages import Stage
    from hpctrain.config.sweep import ArrayPart
    from hpctrain.jobs.sweep_plan import SweepPlan

Kind = Literal["run", "sweep", "stages"]


@dataclass(frozen=True, slots=True)
class Script:
    """A rendered script.

    Attributes:
        path: the file to write, unless the request is for stdout.
        part: the array of a sweep that it submits.
        stage: the stage that it runs.
    """

    spec: JobSpec
    text: str
    path: Path
    job: Job
    part: ArrayPart | None = None
    stage: Stage | None = None


@dataclass(frozen=True, slots=True)
class Scripts:
    """All scripts of a request, in the order of submission.

    Attributes:
        job: for a sweep or stages, the settings that all scripts share.
        tables: files that the scripts read: the points of a sweep.
        plan: the plan of a sweep.
    """

    kind: Kind
    job: Job
    scripts: tuple[Script, ...]
    tables: Mapping[Path, str] = field(default_factory=dict)
    plan: SweepPlan | None = None


@dataclass(frozen=True, kw_only=True)
class JobScript:
    """A script to submit.

    Attributes:
        path: the user's file. Another command may write another script there at any time.
        text: the text that is checked, stored and submitted, rendered or read only once.
        made: the rendered script; None for a custom or an edited one.
        takes_name: whether hpctrain rendered it originally, so that it takes the name of its run as
            an argument.
    """

    path: Path
    text: str
    made: Script | None = None
    takes_name: bool = True

    @cached_property
    def values(self) -> dict[str, str | None]:
        """Its sbatch options.

        Raises:
            UsageError: it is not a batch script.
        """
        return directives.last_values(batch_script.parse(self.text, self.path))

    @property
    def part(self) -> Part:
        """Its entry in the launch record, without the names."""
        part = Part(script=self.path.name, array=self.values.get("array"), at=0.0)
        if self.made is None:
            return part
        spec, stage = self.made.spec, self.made.stage
        return replace(
            part,
            offset=self.made.part.offset if self.made.part is not None else 0,
            stage=spec.stage,
            dependencies=tuple(stage.dependencies) if stage is not None else (),
            links=spec.max_restarts if spec.restart == "chain" else 0,
        )

    @property
    def has_run(self) -> bool:
        """Whether its run has a directory before it starts; array tasks create their own."""
        return self.made is not None and self.made.part is None and not self.made.spec.array

    def is_written(self) -> bool:
        """Whether its file contains this text."""
        if not self.path.is_file():
            return False
        return stored.read_text(self.path, errors="surrogateescape") == self.text


@dataclass(frozen=True, slots=True)
class JobScripts:
    """The scripts of one launch, in the order of submission; `whole` is the complete set that they
    were rendered with, if known.
    """

    scripts: tuple[JobScript, ...]
    whole: Scripts | None = None

    @classmethod
    def of(cls, made: Scripts) -> JobScripts:
        """Return all scripts of a request."""
        each = (JobScript(path=one.path, text=one.text, made=one) for one in made.scripts)
        return cls(tuple(each), made)

    @property
    def takes_name(self) -> bool:
        """Whether the scripts take the name of their run as an argument."""
        return self.scripts[0].takes_name

    @property
    def name(self) -> str:
        """The job name; for stages, the name that they share."""
        if self.whole is not None:
            return self.whole.job.spec.job_name
        return self.scripts[0].values.get("job-name") or "job"

    @property
    def runs_dir(self) -> Path:
        """`runs/` in the directory in which the scripts run."""
        return Path(self.scripts[0].values.get("chdir") or Path.cwd()) / layout.RUNS


def jobs_of(asked: Request) -> list[tuple[str, Job]]:
    """Return the jobs of a request's scripts, each with its name in messages; "" for a single job.

    Raises:
        UsageError: all config errors at once, or an invalid sweep or invalid stages.
    """
    stacked = layers_of(asked)
    job = job_from(asked, stacked)
    if job.config.stages is not None:
        return [(f"stage {stage.name}", each) for stage, each in _stage_jobs(asked, stacked)]
    if job.config.sweep is not None and (plan := sweep_plan.plan(asked)) is not None:
        swept, keys = plan.sweep, plan.sweep.keys if plan.sweep.pass_ == "arguments" else ()
        varied = tuple(key for key in keys if key not in swept.config_keys)
        each = (
            [(f"combination {script.group.points[0].index}", script.job) for script in plan.scripts]
            if swept.config_keys
            else [("", job)]
        )
        return [(name, replace(point, varied=varied)) for name, point in each]
    return [("", job)]


def scripts_of(asked: Request, *, alone: bool = False) -> Scripts:
    """Return the scripts of a request; nothing is written.

    Args:
        asked: the request.
        alone: a single job, regardless of a sweep or stages in the config.

    Raises:
        UsageError: all config errors at once, a missing script or template, or an accelerate config
            that would start too few processes.
    """
    stacked = layers_of(asked)
    job = job_from(asked, stacked)
    if asked.to is not None and not asked.to.strip():
        raise UsageError(
            "--to must name a file, or be - for stdout",
            fix=f"{asked.again} --to {job.spec.job_name}.sbatch",
        )
    if alone:
        is_study = job.config.tune is not None
        spec = job.spec.replace(array=None, study=None) if is_study else job.spec
        return _single(asked, replace(job, spec=spec))
    if job.config.sweep is not None and (plan := sweep_plan.plan(asked)) is not None:
        return _swept(asked, job, plan)
    if job.config.stages is not None:
        return _staged(asked, job, stacked)
    if job.config.tune is not None:
        return _studied(asked, job, job.config.tune)
    return _single(asked, job)


def _single(asked: Request, job: Job) -> Scripts:
    path = _path(asked, job.spec.job_name, "")
    return Scripts("run", job, (_script(asked, job, job.spec, path),))


def _studied(asked: Request, job: Job, tune: Tune) -> Scripts:
    """Return the script whose tasks are trials, with the study's definition, which they read."""
    _refuse_twice(asked, tuple(tune.space))
    file = Path(asked.config or "config.yaml")
    text = stored.read_text(file) if file.is_file() else None
    left_out = {("array",)}
    words = words_of(
        replace(
            asked,
            options={key: value for key, value in asked.options.items() if key not in left_out},
            config=None,
            to=None,
        )
    )
    study = definition(job.config, file=None if text is None else (str(file), text), words=words)
    spec = job.spec.replace(study=None, array=job.config.array or asked.tasks)
    job = replace(job, spec=to_spec.of_study(spec, study, parallel=tune.parallel))
    path = Path(job.spec.chdir) / layout.RUNS / STUDIES / study.file
    return replace(_single(asked, job), tables={path: study.text})


def _refuse_twice(asked: Request, space: Sequence[str]) -> None:
    names = shell.options_of(asked.arguments)
    if both := [key for key in space if key.replace("-", "_") in names]:
        raise UsageError(
            f"{' and '.join(both)} {'is' if len(both) == 1 else 'are'} in the space of the study,"
            " and after --",
            fix=suggested(asked, asked.verb, without=[f"--{key}" for key in both]),
            hint="under training in config.yaml they are what the first trial takes",
        )


def _swept(asked: Request, job: Job, plan: SweepPlan) -> Scripts:
    points = plan.table()
    parts = [(script, part) for script in plan.scripts for part in script.parts]
    made = []
    for number, (script, part) in enumerate(parts, 1):
        where: dict[str, Any] = {
            "directory": str(Path.cwd()),
            "home": str(Path.home()),
            "arguments": asked.arguments,
        }
        spec = to_spec.of_part(script.job.config, plan.sweep, part, points.name, **where)
        path = _path(
            asked, spec.job_name, f"-{number}" if number > 1 else "", several=len(parts) > 1
        )
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
    """Return each stage with its job. Job names differ, so that logs and `scancel -n` distinguish
    the stages.
    """
    planned = stages.read(stacked, again=asked.again)
    found = []
    for stage in planned:
        job = job_from(asked, [stages.layer(stage, stacked), *stacked])
        found.append((stage, replace(job, spec=to_spec.of_stage(job.spec, stage, planned))))
    return found


def _path(asked: Request, job_name: str, suffix: str, *, several: bool = False) -> Path:
    if asked.to == "-" and several:
        raise UsageError(
            "this makes several scripts, and stdout takes one",
            fix=suggested(asked, asked.verb, without=["--to"]),
        )
    first = Path(f"{job_name}.sbatch" if asked.to in (None, "-") else asked.to)
    return first.with_name(f"{first.stem}{suffix}{first.suffix}") if suffix else first


def _script(
    asked: Request,
    job: Job,
    spec: JobSpec,
    path: Path,
    *,
    part: ArrayPart | None = None,
    stage: Stage | None = None,
) -> Script:
    directory = Path(spec.chdir)
    if directory.exists() and not directory.is_dir():
        raise UsageError(
            f"--chdir {directory} is a file, not a directory", hint="name a directory with --chdir"
        )
    if spec.script is not None and directory.is_dir() and not (directory / spec.script).is_file():
        raise UsageError(
            f"the script {spec.script!r} does not exist in {directory}",
            hint="name a file that exists with --script, or leave out --script for the built-in training",
        )
    _check_accelerate_config(spec, asked.again)
    arguments = (*([header.STANDALONE] if asked.standalone else []), *words_of(asked))
    # If the directory does not exist locally, the library cannot be written into it.
    standalone = asked.standalone or not directory.is_dir()
    text = rendered(spec, arguments, asked.again, standalone=standalone)
    return Script(spec, text, path, job, part, stage)


def rendered(
    spec: JobSpec, arguments: tuple[str, ...], again: str, *, standalone: bool = False
) -> str:
    """Return the text of a job's script, from the built-in templates and those in ./templates, which
    replace built-in ones of the same name.

    Args:
        spec: the job.
        arguments: argv of `hpctrain render`, for the script's header.
        again: the command that errors suggest.
        standalone: whether the script contains the functions that it would otherwise source.

    Raises:
        UsageError: the template does not exist, or cannot be read.
    """
    from hpctrain.jobs import render  # Jinja takes 30 ms

    own = {
        file.name: str(file)
        for file in sorted(Path("templates").glob("*"))
        if file.suffix == ".j2" or file.name == header.LIBRARY
    }
    templates = installed.templates()
    templates |= {name: _read_template(Path(file)) for name, file in own.items()}
    template = spec.template or render.template_name(spec)
    if template not in templates:
        if not Path(template).is_file():
            known = ", ".join(name for name in sorted(templates) if name.endswith(".sbatch.j2"))
            raise UsageError(
                f"there is no template {template!r}",
                details=(f"known are {known}",),
                fix=f"{again} --template {render.template_name(spec)}",
            )
        templates[template] = _read_template(Path(template))
    return render.render(
        spec,
        templates,
        template=template,
        version=__version__,
        directory=str(Path.cwd()),
        arguments=arguments,
        files=own,
        standalone=standalone,
    )


def _read_template(file: Path) -> str:
    try:
        return stored.read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the template {file}: {error}", fix=f"ls -l {shell.quote(file)}"
        ) from error


def _check_accelerate_config(spec: JobSpec, again: str) -> None:
    file = Path(spec.chdir) / spec.accelerate_config
    if spec.launcher != "accelerate" or spec.sharding != "ddp" or not Path(spec.chdir).is_dir():
        return
    if not file.exists():
        if spec.accelerate_config == "multi_gpu.yaml":
            return  # written together with the script
        raise UsageError(
            f"the accelerate config {spec.accelerate_config!r} does not exist in {spec.chdir}",
            fix=f"{again} --accelerate-config multi_gpu.yaml",
        )
    try:
        document = yaml12.load(stored.read_text(file), spec.accelerate_config)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {spec.accelerate_config}: {error}", fix=f"ls -l {shell.quote(file)}"
        ) from error
    found = schema.accelerate_problems(document, spec.accelerate_config)
    if found:
        raise UsageError(
            yaml12.problems_in(len(found), spec.accelerate_config),
            details=tuple(found),
            hint=f"edit {spec.accelerate_config}, then run: {again}",
        )


def what_runs(made: Scripts) -> list[str]:
    """Return a summary of what the scripts will run, one line each: nodes times GPUs, number of
    tasks, order of the stages.
    """
    lines = []
    for script in made.scripts:
        name = f"{script.path}: " if len(made.scripts) > 1 else ""
        if script.part is not None:
            tasks, _, throttle = script.part.spec.partition("%")
            points = f"{text.count(script.part.count, 'job')} as array {tasks}"
            points += f" + {script.part.offset}" if script.part.offset else ""
            lines.append(
                f"{name}{points}{f', {throttle} at a time' if throttle else ''}:"
                f" {script.spec.layout} each"
            )
        elif script.stage is not None:
            after = " and ".join(
                f"{parent}{'' if kind == 'afterok' else ', however it ends'}"
                for parent, kind in script.stage.dependencies
            )
            lines.append(
                f"{name}stage {script.stage.name}{f', after {after}' if after else ''}:"
                f" {script.spec.layout}"
            )
        else:
            lines.append(
                f"{name}{f'array {script.spec.array}: ' if script.spec.array else ''}{script.spec.layout}"
            )
    return lines
