"""The scripts of a request: a single one, those of a sweep, or one for each stage.

Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpctrain import __version__
from hpctrain.config import layers, stages, to_spec
from hpctrain.config import sweep as sweeps
from hpctrain.config.fields import BY_PATH
from hpctrain.config.layers import Layer
from hpctrain.config.spec import JobSpec
from hpctrain.config.study import STUDIES, definition
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.jobs import header
from hpctrain.jobs.request import Job, Request, job_of, layers_of, suggested, words_of
from hpctrain.runs import layout
from hpctrain.runs.launch import Part
from hpctrain.slurm import batch_script
from hpctrain.slurm.notations import directives
from hpctrain.util import installed, process, shell, stored, text

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster
    from hpctrain.config.stages import Stage
    from hpctrain.config.sweep import ArrayPart, Group, PointTable, Sweep, SweepPoint

Kind = Literal["run", "sweep", "stages"]
#: Timeout in seconds of the single Slurm query; without an answer, the profile's value is used.
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Script:
    """A batch script.

    Attributes:
        path: the user's file. Another command may write another script there at any time.
        text: the text that is checked, stored and submitted, rendered or read only once.
        job: the job that it was rendered from; None for a custom or an edited one.
        part: the array of a sweep that it submits.
        stage: the stage that it runs.
        takes_name: whether hpctrain rendered it originally, so that it takes the name of its run as
            an argument.
    """

    path: Path
    text: str
    job: Job | None = None
    part: ArrayPart | None = None
    stage: Stage | None = None
    takes_name: bool = True

    @property
    def spec(self) -> JobSpec:
        """The spec of its job."""
        assert self.job is not None  # noqa: S101 - asked of rendered scripts only
        return self.job.spec

    @property
    def values(self) -> dict[str, str | None]:
        """Its sbatch options.

        Raises:
            UsageError: it is not a batch script.
        """
        return directives.last_values(batch_script.parse(self.text, self.path))

    @property
    def entry(self) -> Part:
        """Its entry in the launch record, without the names."""
        part = Part(script=self.path.name, array=self.values.get("array"), at=0.0)
        if self.job is None:
            return part
        return replace(
            part,
            offset=self.part.offset if self.part is not None else 0,
            stage=self.spec.stage,
            dependencies=tuple(self.stage.dependencies) if self.stage is not None else (),
            links=self.spec.max_restarts if self.spec.restart == "chain" else 0,
        )

    def is_written(self) -> bool:
        """Whether its file contains this text."""
        if not self.path.is_file():
            return False
        return stored.read_text(self.path, errors="surrogateescape") == self.text


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of one launch, in the order of submission.

    Attributes:
        job: the settings that all scripts share; None for a custom or an edited script.
        tables: files that the scripts read: the points of a sweep.
        plan: the plan of a sweep.
    """

    scripts: tuple[Script, ...]
    kind: Kind = "run"
    job: Job | None = None
    tables: Mapping[Path, str] = field(default_factory=dict)
    plan: SweepPlan | None = None

    @property
    def takes_name(self) -> bool:
        """Whether the scripts take the name of their run as an argument."""
        return self.scripts[0].takes_name

    @property
    def name(self) -> str:
        """The job name; for stages, the name that they share."""
        if self.job is not None:
            return self.job.spec.job_name
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
    job = job_of(asked, stacked)
    if job.config.stages is not None:
        return [(f"stage {stage.name}", each) for stage, each in _stage_jobs(asked, stacked)]
    if job.config.sweep is None:
        return [("", job)]
    plan = plan_sweep(asked, job, stacked)
    varied = tuple(sorted(sweeps.swept_arguments(plan.sweep) - plan.sweep.config_keys))
    names = [f"combination {script.group.points[0].index}" for script in plan.scripts]
    jobs = [replace(script.job, varied=varied) for script in plan.scripts]
    if not plan.sweep.config_keys:
        return [("", replace(job, varied=varied))]
    return list(zip(names, jobs, strict=True))


def scripts_of(asked: Request, *, alone: bool = False) -> Scripts:
    """Return the scripts of a request; nothing is written.

    Args:
        asked: the request.
        alone: a single job, regardless of a sweep or stages in the config.

    Raises:
        UsageError: all config errors at once, or a template is missing.
    """
    stacked = layers_of(asked)
    job = job_of(asked, stacked)
    name, config = job.spec.job_name, job.config
    if asked.to is not None and not asked.to.strip():
        raise UsageError(
            "--to must name a file, or be - for stdout", fix=f"{asked.again} --to {name}.sbatch"
        )
    if not alone and config.sweep is not None:
        return _swept(asked, job, plan_sweep(asked, job, stacked))
    if not alone and config.stages is not None:
        made = [
            _script(asked, own, _path(asked, name, f"-{stage.name}", several=True), stage=stage)
            for stage, own in _stage_jobs(asked, stacked)
        ]
        return Scripts(tuple(made), "stages", job)
    tables = {}
    if config.tune is not None and alone:
        job = replace(job, spec=job.spec.replace(array=None, study=None))
    elif config.tune is not None:  # its tasks are trials, which read the study's definition
        _refuse_typed(asked, config.tune.space)
        file = Path(asked.config or "config.yaml")
        options = {path: value for path, value in asked.options.items() if path != ("array",)}
        study = definition(
            config,
            file=(str(file), stored.read_text(file)) if file.is_file() else None,
            words=words_of(replace(asked, options=options, config=None, to=None)),
        )
        spec = job.spec.replace(study=None, array=config.array or asked.tasks)
        job = replace(job, spec=to_spec.of_study(spec, study, parallel=config.tune.parallel))
        tables = {Path(job.spec.chdir) / layout.RUNS / STUDIES / study.file: study.text}
    return Scripts((_script(asked, job, _path(asked, name)),), "run", job, tables)


def _refuse_typed(asked: Request, keys: Iterable[str]) -> None:
    """Refuse arguments after `--` that a sweep or study varies: they would override all its values."""
    names = shell.options_of(asked.arguments)
    if both := sorted(key for key in keys if key.replace("-", "_") in names):
        raise UsageError(
            f"{text.listed(both)} cannot be varied and also given after --",
            fix=suggested(asked, asked.verb, without=[f"--{key}" for key in both]),
            hint="of a study, the values under training in config.yaml are those of the first trial",
        )


def _swept(asked: Request, job: Job, plan: SweepPlan) -> Scripts:
    parts = [(script, part) for script in plan.scripts for part in script.parts]
    where: dict[str, Any] = {
        "directory": str(Path.cwd()),
        "home": str(Path.home()),
        "arguments": asked.arguments,
    }
    made = []
    for number, (script, part) in enumerate(parts, 1):
        spec = to_spec.of_part(script.job.config, plan.sweep, part, plan.table.name, **where)
        suffix = f"-{number}" if number > 1 else ""
        path = _path(asked, spec.job_name, suffix, several=len(parts) > 1)
        made.append(_script(asked, replace(script.job, spec=spec), path, part=part))
    file = Path(job.spec.chdir) / layout.RUNS / layout.SWEEPS / plan.table.name
    return Scripts(tuple(made), "sweep", job, {file: plan.table.text}, plan)


def _stage_jobs(asked: Request, stacked: Sequence[Layer]) -> list[tuple[Stage, Job]]:
    """Return each stage with its job. Job names differ, so that logs and `scancel -n` distinguish
    the stages.
    """
    planned = stages.read(stacked, again=asked.again)
    found = []
    for stage in planned:
        job = job_of(asked, [stages.layer(stage, stacked), *stacked])
        found.append((stage, replace(job, spec=to_spec.of_stage(job.spec, stage, planned))))
    return found


def _path(asked: Request, job_name: str, suffix: str = "", *, several: bool = False) -> Path:
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
    path: Path,
    *,
    part: ArrayPart | None = None,
    stage: Stage | None = None,
) -> Script:
    directory = Path(job.spec.chdir)
    if directory.exists() and not directory.is_dir():
        raise UsageError(
            f"--chdir {directory} is a file, not a directory", hint="name a directory with --chdir"
        )
    arguments = (*([header.STANDALONE] if asked.standalone else []), *words_of(asked))
    # If the directory does not exist locally, the library cannot be written into it.
    standalone = asked.standalone or not directory.is_dir()
    made = rendered(job.spec, arguments, asked.again, standalone=standalone)
    return Script(path, made, job, part, stage)


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
    template = spec.template or render.template_name(spec)
    if template not in templates and template not in own and Path(template).is_file():
        own[template] = template
    for name, file in own.items():
        try:
            templates[name] = stored.read_text(file)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"cannot read the template {file}: {error}", fix=f"ls -l {shell.quote(file)}"
            ) from error
    if template not in templates:
        known = ", ".join(name for name in sorted(templates) if name.endswith(".sbatch.j2"))
        raise UsageError(
            f"there is no template {template!r}",
            details=(f"known are {known}",),
            fix=f"{again} --template {render.template_name(spec)}",
        )
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


def what_runs(made: Scripts) -> list[str]:
    """Return a summary of what the scripts will run, one line each: nodes times GPUs, number of
    tasks, order of the stages.
    """
    return [
        ": ".join(
            [
                *([str(script.path)] if len(made.scripts) > 1 else []),
                *([f"stage {script.spec.stage}"] if script.spec.stage else []),
                *([f"array {script.spec.array}"] if script.spec.array else []),
                script.spec.layout,
            ]
        )
        for script in made.scripts
    ]


# -- a sweep: its points, the selected ones, the jobs that run them, and arrays within Slurm's limits


@dataclass(frozen=True, slots=True)
class SweepScript:
    """One script of a sweep: the points that share it, its job, and its arrays."""

    group: Group
    job: Job
    parts: tuple[ArrayPart, ...]

    @property
    def gpu_seconds(self) -> int | None:
        """GPU seconds if every point runs to its time limit; None without a time limit."""
        spec, points = self.job.spec, len(self.group.points)
        return spec.time_s and spec.nodes * spec.gpus_per_node * spec.time_s * points


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A whole sweep.

    Attributes:
        points: all points; the table contains them all, so that an index has the same meaning for
            every selection.
        chosen: the selected points (--array).
        throttle: maximum number of running tasks in each array.
        max_array_size: MaxArraySize; the highest index is one less.
        max_array_size_from: the source of that limit.
        table: what the tasks read.
    """

    sweep: Sweep
    points: list[SweepPoint]
    chosen: list[SweepPoint]
    throttle: int | None
    scripts: list[SweepScript]
    max_array_size: int
    max_array_size_from: str
    table: PointTable

    @property
    def gpu_seconds(self) -> int | None:
        """GPU seconds of all selected points at most; None without a time limit."""
        each = [script.gpu_seconds for script in self.scripts]
        return None if None in each else sum(seconds for seconds in each if seconds is not None)


def plan_sweep(asked: Request, whole: Job, stacked: Sequence[Layer]) -> SweepPlan:
    """Return the plan of a request's sweep.

    Args:
        asked: the request.
        whole: its job, which has a sweep.
        stacked: the layers of the request.

    Raises:
        UsageError: all problems of the config, or of the sweep, at once.
    """
    sweep = whole.config.sweep
    title = next(one.title for one in stacked if layers.written([one], ("sweep",)) is not None)
    if isinstance(sweep, str):
        title = sweep
        sweep = sweeps.load_sweep(Path.cwd() / stored.expanded(sweep), sweep, again=asked.again)
    assert sweep is not None  # noqa: S101 - see Args
    options = [
        BY_PATH[path].option for path in asked.options if ".".join(path) in sweep.config_keys
    ]
    if options:
        raise UsageError(
            f"the sweep varies what {' and '.join(options)} says",
            fix=suggested(asked, asked.verb, without=options),
        )
    _refuse_typed(asked, sweeps.swept_arguments(sweep))
    secrets = sorted(set(sweep.keys) & whole.config.environment.secrets.keys())
    if secrets and sweep.pass_ == "environment":
        raise UsageError(
            f"the sweep varies {text.listed(secrets)}, which is in environment.secrets",
            hint="keep it in one of the two",
        )
    points = sweeps.expand(sweep)
    indices, throttle = list(range(len(points))), sweep.throttle
    if whole.config.array is not None:
        indices, limit = sweeps.selected(whole.config.array, len(points))
        throttle = limit or throttle
    chosen = [points[index] for index in indices]
    size, source = _max_array_size(whole.cluster)
    scripts = []
    for group in sweeps.groups(sweep, chosen):
        job = job_of(asked, [_over(group, title), *stacked]) if group.overrides else whole
        arrays = sweeps.arrays(group.indices, size, throttle)
        scripts.append(SweepScript(group, job, tuple(arrays)))
    table = sweeps.table(sweep, points, training=whole.config.training, home=str(Path.home()))
    return SweepPlan(sweep, points, chosen, throttle, scripts, size, source, table)


def _over(group: Group, title: str) -> Layer:
    data: dict[str, Any] = {}
    for key, value in group.overrides:
        layers.put(data, tuple(key.split(".")), value)
    where = f"{title}: combination {group.points[0].index}: {sweeps.spoken(group.overrides)}"
    paths = [tuple(key.split(".")) for key, _ in group.overrides]
    origins = {path[:end]: where for path in paths for end in range(1, len(path) + 1)}
    return Layer("file", title, data, origins)


def _max_array_size(cluster: Cluster | None) -> tuple[int, str]:
    from hpctrain.clusters import discover
    from hpctrain.clusters.live import parse_config

    if discover.is_available():
        with suppress(SchedulerError, OSError):
            said = process.run(("scontrol", "show", "config"), timeout=_TIMEOUT_S).stdout
            if live := parse_config(said).max_array_size:
                return live, "scontrol show config"
    if cluster is not None and cluster.profile.slurm.max_array_size:
        source = cluster.evidence("slurm", "max_array_size")
        return cluster.profile.slurm.max_array_size, source
    return sweeps.DEFAULT_MAX_ARRAY_SIZE, "Slurm's default"
