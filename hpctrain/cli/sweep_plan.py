"""A sweep resolved: its points, those that are meant, the jobs that run them, and the arrays that Slurm takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.cli.job_options import Job, Request, job_from, layers_of
from hpctrain.config import layers
from hpctrain.config.fields import BY_PATH
from hpctrain.config.layers import Layer
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.jobs.sweep import ArrayPart, Group, Point, Sweep, Table, arrays, expand, groups, selected, swept_arguments, table
from hpctrain.jobs.sweep.array import DEFAULT_MAX_ARRAY_SIZE
from hpctrain.jobs.sweep.model import spoken

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster

#: Seconds for the one question to Slurm; without an answer, the profile's word holds.
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Script:
    """One script of a sweep: the points that share it, its job, and the arrays that it is submitted as."""

    group: Group
    job: Job
    parts: tuple[ArrayPart, ...]

    @property
    def gpu_seconds(self) -> int | None:
        """What its points cost when each of them runs to its time limit; None where there is none."""
        spec = self.job.spec
        return None if spec.time_s is None else spec.processes * spec.time_s * len(self.group.points)


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole sweep.

    Attributes:
        job: what all points have in common.
        points: all of them; the table holds them all, so that an index means the same whichever are run.
        chosen: those that are run (--array).
        throttle: tasks that run at a time, in each array.
        max_array_size: MaxArraySize; the highest index is one less.
        max_array_size_from: where that is from.
    """

    sweep: Sweep
    job: Job
    points: list[Point]
    chosen: list[Point]
    throttle: int | None
    scripts: list[Script]
    max_array_size: int
    max_array_size_from: str

    @property
    def gpu_seconds(self) -> int | None:
        """What all chosen points cost at most."""
        each = [script.gpu_seconds for script in self.scripts]
        return None if None in each else sum(seconds for seconds in each if seconds is not None)

    def table(self) -> Table:
        """Return the table that the tasks read.

        Raises:
            UsageError: a value that no command line can carry.
        """
        return table(self.sweep, self.points, training=self.job.config.training, home=str(Path.home()))


def plan(asked: Request) -> Plan | None:
    """Return the plan of the sweep of a request; None where there is no sweep.

    Raises:
        UsageError: all problems of the config, or of the sweep, at once.
    """
    stacked = layers_of(asked)
    whole = job_from(asked, stacked)
    written = whole.config.sweep
    if written is None:
        return None
    title = _title(written, stacked)
    sweep = _sweep(written, asked)
    _refuse_twice(sweep, asked)
    _refuse_secrets(sweep, whole)
    points = expand(sweep)
    typed = whole.config.array
    indices, throttle = selected(typed, len(points)) if typed is not None else (range(len(points)), None)
    chosen = [points[index] for index in indices]
    throttle = throttle or sweep.throttle
    size, source = max_array_size(whole.cluster)
    scripts = []
    for group in groups(sweep, chosen):
        job = job_from(asked, [_over(group, title), *stacked]) if group.overrides else whole
        scripts.append(Script(group, job, tuple(arrays(group.indices, size, throttle))))
    return Plan(sweep, whole, points, chosen, throttle, scripts, size, source)


def max_array_size(cluster: Cluster | None) -> tuple[int, str]:
    """Return MaxArraySize, and where it is from: Slurm itself where it is here, else the profile, else Slurm's default."""
    from hpctrain.clusters.slurm_text import parse_config
    from hpctrain.scheduler import discover, process

    if discover.is_available():
        try:
            live = parse_config(process.run(("scontrol", "show", "config"), timeout=_TIMEOUT_S).stdout).max_array_size
        except (SchedulerError, OSError):
            live = None
        if live:
            return live, "scontrol show config"
    known = cluster.profile.slurm.max_array_size if cluster is not None else None
    if cluster is not None and known is not None:
        return known, cluster.evidence("slurm", "max_array_size")
    return DEFAULT_MAX_ARRAY_SIZE, "Slurm's default"


def _sweep(written: Sweep | str, asked: Request) -> Sweep:
    if isinstance(written, Sweep):
        return written
    from hpctrain.config import sweep_file

    # Only the plan reads it once: whoever submits looks at the sweep before and after the checks.
    pipe = asked.verb == "sweep plan"
    return sweep_file.load(Path.cwd() / Path(written).expanduser(), written, again=asked.again, pipe=pipe)


def _title(written: Sweep | str, stacked: Sequence[Layer]) -> str:
    if isinstance(written, str):
        return written
    return next((layer.title for layer in stacked if layers.written([layer], ("sweep",)) is not None), "the sweep")


def _over(group: Group, title: str) -> Layer:
    """Return what the points of a group set of config.yaml: the strongest layer, because it is what the sweep is about."""
    data = group.data()
    where = f"{title}: point {group.points[0].index}: {spoken(group.overrides)}"
    origins = {path: where for key, _ in group.overrides for path in _prefixes(key.split("."))}
    return Layer("file", title, data, origins)


def _prefixes(parts: list[str]) -> Iterable[tuple[str, ...]]:
    return (tuple(parts[:end]) for end in range(1, len(parts) + 1))


def _refuse_twice(sweep: Sweep, asked: Request) -> None:
    """Refuse what the sweep varies and somebody typed too: one of the two would win without a word."""
    options = [BY_PATH[path].option for path in asked.options if ".".join(path) in sweep.config_keys]
    if options:
        raise UsageError(f"the sweep varies what {' and '.join(options)} says", fix=f"{asked.again}, without {options[0]}")
    typed = {word[2:].partition("=")[0].replace("-", "_") for word in asked.arguments if word.startswith("--")}
    twice = sorted(name for name in swept_arguments(sweep) if name.replace("-", "_") in typed)
    if twice:
        raise UsageError(f"the sweep varies {', '.join(twice)}, which also stands behind --", fix=f"take --{twice[0]} away from behind --")


def _refuse_secrets(sweep: Sweep, job: Job) -> None:
    """Refuse variables of points that the job reads from the files of its secrets."""
    if sweep.passed == "environment":
        twice = sorted(set(sweep.keys) & set(job.config.environment.secrets))
        if twice:
            raise UsageError(f"the sweep varies {', '.join(twice)}, which is in environment.secrets", fix="take it out of one of the two")
