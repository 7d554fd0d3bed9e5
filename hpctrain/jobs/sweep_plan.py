"""A resolved sweep: its points, the selected ones, the jobs that run them, and arrays within
Slurm's limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.config import layers
from hpctrain.config.fields import BY_PATH
from hpctrain.config.layers import Layer
from hpctrain.config.sweep import (
    DEFAULT_MAX_ARRAY_SIZE,
    ArrayPart,
    Group,
    PointTable,
    Sweep,
    SweepPoint,
    arrays,
    expand,
    groups,
    load_sweep,
    selected,
    spoken,
    swept_arguments,
    table,
)
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.jobs.request import Job, Request, job_from, layers_of, suggested
from hpctrain.util import process, shell, stored

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster

#: Timeout in seconds of the single Slurm query; without an answer, the profile's value is used.
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class SweepScript:
    """One script of a sweep: the points that share it, its job, and its arrays."""

    group: Group
    job: Job
    parts: tuple[ArrayPart, ...]

    @property
    def gpu_seconds(self) -> int | None:
        """GPU seconds if every point runs to its time limit; None without a time limit."""
        spec = self.job.spec
        return (
            None
            if spec.time_s is None
            else spec.nodes * spec.gpus_per_node * spec.time_s * len(self.group.points)
        )


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A whole sweep.

    Attributes:
        job: the settings that all points share.
        points: all points; the table contains them all, so that an index has the same meaning for
            every selection.
        chosen: the selected points (--array).
        throttle: maximum number of running tasks in each array.
        max_array_size: MaxArraySize; the highest index is one less.
        max_array_size_from: the source of that limit.
    """

    sweep: Sweep
    job: Job
    points: list[SweepPoint]
    chosen: list[SweepPoint]
    throttle: int | None
    scripts: list[SweepScript]
    max_array_size: int
    max_array_size_from: str

    @property
    def gpu_seconds(self) -> int | None:
        """GPU seconds of all selected points at most; None without a time limit."""
        each = [script.gpu_seconds for script in self.scripts]
        return None if None in each else sum(seconds for seconds in each if seconds is not None)

    def table(self) -> PointTable:
        """Return the table that the tasks read.

        Raises:
            UsageError: a value cannot be passed on a command line.
        """
        return table(
            self.sweep, self.points, training=self.job.config.training, home=str(Path.home())
        )


def plan(asked: Request) -> SweepPlan | None:
    """Return the plan of a request's sweep; None without a sweep.

    Raises:
        UsageError: all problems of the config, or of the sweep, at once.
    """
    stacked = layers_of(asked)
    whole = job_from(asked, stacked)
    written = whole.config.sweep
    if written is None:
        return None
    if isinstance(written, str):
        title = written
        sweep = load_sweep(Path.cwd() / stored.expanded(written), written, again=asked.again)
    else:
        [title, *_] = [
            layer.title for layer in stacked if layers.written([layer], ("sweep",)) is not None
        ]
        sweep = written
    _refuse_twice(sweep, asked, whole)
    points = expand(sweep)
    typed = whole.config.array
    indices, throttle = (
        selected(typed, len(points)) if typed is not None else (range(len(points)), None)
    )
    chosen = [points[index] for index in indices]
    throttle = throttle or sweep.throttle
    size, source = max_array_size(whole.cluster)
    scripts = []
    for group in groups(sweep, chosen):
        job = job_from(asked, [_over(group, title), *stacked]) if group.overrides else whole
        scripts.append(SweepScript(group, job, tuple(arrays(group.indices, size, throttle))))
    return SweepPlan(sweep, whole, points, chosen, throttle, scripts, size, source)


def max_array_size(cluster: Cluster | None) -> tuple[int, str]:
    """Return MaxArraySize and its source: Slurm, else the profile, else Slurm's default."""
    from hpctrain.clusters import discover
    from hpctrain.clusters.live import parse_config

    if discover.is_available():
        try:
            live = parse_config(
                process.run(("scontrol", "show", "config"), timeout=_TIMEOUT_S).stdout
            ).max_array_size
        except (SchedulerError, OSError):
            live = None
        if live:
            return live, "scontrol show config"
    known = cluster.profile.slurm.max_array_size if cluster is not None else None
    if cluster is not None and known is not None:
        return known, cluster.evidence("slurm", "max_array_size")
    return DEFAULT_MAX_ARRAY_SIZE, "Slurm's default"


def _over(group: Group, title: str) -> Layer:
    """Return the values that a group's points set, as the layer of highest precedence."""
    data: dict[str, Any] = {}
    for key, value in group.overrides:
        layers.put(data, tuple(key.split(".")), value)
    where = f"{title}: combination {group.points[0].index}: {spoken(group.overrides)}"
    paths = [tuple(key.split(".")) for key, _ in group.overrides]
    origins = {path[:end]: where for path in paths for end in range(1, len(path) + 1)}
    return Layer("file", title, data, origins)


def _refuse_twice(sweep: Sweep, asked: Request, job: Job) -> None:
    """Refuse values that the sweep varies and that are also set elsewhere: one would silently
    override the other.
    """
    options = [
        BY_PATH[path].option for path in asked.options if ".".join(path) in sweep.config_keys
    ]
    if options:
        raise UsageError(
            f"the sweep varies what {' and '.join(options)} says",
            fix=suggested(asked, asked.verb, without=options),
        )
    typed = shell.options_of(asked.arguments)
    twice = sorted(name for name in swept_arguments(sweep) if name.replace("-", "_") in typed)
    if twice:
        raise UsageError(
            f"the sweep varies {', '.join(twice)}, which is also given after --",
            fix=suggested(asked, asked.verb, without=[f"--{name}" for name in twice]),
        )
    secrets = sorted(set(sweep.keys) & set(job.config.environment.secrets))
    if secrets and sweep.pass_ == "environment":
        raise UsageError(
            f"the sweep varies {', '.join(secrets)}, which is in environment.secrets",
            hint="take it out of one of the two",
        )
