"""All that a report of one run shows, read from files of the run. What a scheduler says is given; nothing here asks one, or prints.

Files of somebody else's run are read like one's own; what cannot be read is left out, and what there is comes as it is: names, configs and
log lines are anybody's, and whoever shows them escapes them.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.explain.model import Explanation
from hpctrain.logs import found, read, text
from hpctrain.logs.model import LogFile
from hpctrain.memory.sample import MARK, Sample
from hpctrain.report import efficiency, held, idle, log_history, next_time, ran_with, secrets
from hpctrain.report.efficiency import Efficiency
from hpctrain.report.idle import Idle
from hpctrain.runs import checkpoints, history, layout, manifest, predicted, store
from hpctrain.runs.history import History
from hpctrain.runs.predicted import Beside
from hpctrain.runs.states import State
from hpctrain.runs.store import Run
from hpctrain.scheduler.parse import duration, memory_size
from hpctrain.scheduler.parse.accounting import Account

LOG_LINES = 30
_RAN_WITH = "environment.json"
_LINE = 400
"""Characters of a log line that a report shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint; `problem` says why it does not count."""

    name: str
    step: int | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The last lines of a log, cleaned."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What others have found out: the scheduler, the explanation, the cluster.

    Attributes:
        owner: whose run it is.
        explanation: None where none could be made; `unexplained` says why then.
        silent: why a scheduler has not answered.
        whole_nodes: whether the site bills whole nodes.
        now: seconds since the epoch.
    """

    state: State
    owner: str
    accounts: tuple[Account, ...] = ()
    explanation: Explanation | None = None
    unexplained: str | None = None
    silent: str | None = None
    whole_nodes: bool | None = None
    now: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """See the module.

    Attributes:
        from_log: the curves were read from the log, because the training wrote no metrics.
        config: (key, value, where it was written) of what somebody has set; resolved: all of it, as JSON values. Without secrets.
        command: that launched it.
        code, environment: what code.json and environment.json hold.
    """

    run: Run
    directory: Path
    given: Given
    history: History
    from_log: bool
    efficiency: Efficiency
    beside: tuple[Beside, ...]
    fit: Mapping[str, Any] | None
    config: tuple[tuple[str, str, str], ...]
    resolved: Mapping[str, Any] | None
    command: str
    code: Mapping[str, Any]
    environment: Mapping[str, Any]
    saved: tuple[Saved, ...]
    ends: tuple[LogEnd, ...]
    idle: tuple[Idle, ...]
    evaluation: Mapping[str, float]

    @property
    def is_running(self) -> bool:
        """Whether the run may still go on."""
        return self.given.state.word in ("running", "pending", "unknown") and not self.given.state.forgotten


def gather(run: Run, runs_dir: Path, given: Given, *, most: int = 2000) -> Facts:
    """Return what a report of a run shows."""
    directory = runs_dir / run.id
    launch = runs_dir / layout.LAUNCHES / run.tag
    launched = ran_with.read(run, runs_dir)
    values = launched.config
    logs = found.of_run(directory, project=project_of(runs_dir, run.tag))
    past = history.read(directory, most=most)
    from_log = not any(point.event in ("log", "evaluate", "speed") for point in past.points)
    if from_log:
        past = log_history.read(logs, past, most=most)
    past = replace(past, starts=held.with_ends(past.starts, given.accounts))
    fit = predicted.read(directory)
    running = given.state.word == "running"
    counted = efficiency.of(
        given.accounts, past, config=values, fit=fit, whole_nodes=given.whole_nodes, completed=given.state.word == "completed",
        now=given.now if running else None,
    )  # fmt: skip
    environment = secrets.value("", _first(*(directory / "attempts" / each.name / _RAN_WITH for each in reversed(run.attempts))))
    return Facts(
        run=run, directory=directory, given=given, history=past, from_log=from_log and bool(past.of("log", "evaluate", "speed")),
        efficiency=counted, beside=tuple(predicted.beside(fit)) if fit else (), fit=fit,
        config=_config(values, launched.origins), resolved=None if values is None else secrets.value("", values),
        command=_command(launch), code=secrets.value("", _first(directory / "code.json", launch / "code.json")),
        environment=environment,
        saved=_saved(directory / checkpoints.CHECKPOINTS), ends=tuple(_ends(logs)),
        idle=_idle(run, past, counted, given, config=values, variables=environment.get("variables")), evaluation=_evaluation(directory),
    )  # fmt: skip


def project_of(runs_dir: Path, tag: str) -> Path:
    """Return the directory where the jobs of a launch run: as it says, if it is there, else what holds `runs`."""
    launch = runs_dir / layout.LAUNCHES / tag
    said = (store.read_object(str(launch / "launch.json")) or {}).get("cwd")
    there = Path(said) if isinstance(said, str) and said.startswith("/") else None
    return there if there is not None and there.is_dir() else runs_dir.absolute().parent


def _first(*paths: Path) -> dict[str, Any]:
    return next((value for path in paths if (value := store.read_object(str(path)))), {})


def _config(values: Mapping[str, Any] | None, origins: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Return what somebody has set, and where; the defaults are left out."""
    if values is None:
        return ()
    rows = []
    for path, where in origins.items():
        item: Any = values
        for part in path.split("."):
            item = item.get(part) if isinstance(item, dict) else None
        rows.append((path, secrets.shown(secrets.value(path.rpartition(".")[2], _in_units(path, item)))[:2000], where))
    return tuple(rows)


def _in_units(path: str, value: Any) -> Any:
    """Return seconds and bytes as people write them in a config."""
    if not isinstance(value, int):
        return value
    if path == "resources.time":
        return duration.format(value)
    return memory_size.format(value) if path in ("resources.mem", "resources.mem_per_cpu") else value


def _command(launch: Path) -> str:
    """Return the words that launched the run: arguments of the training that are in no config stand there."""
    argv = (store.read_object(str(launch / "launch.json")) or {}).get("argv")
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    if words and words[0].rpartition("/")[2] != "hpctrain":
        words.insert(0, "hpctrain")
    return secrets.text(shlex.join(["hpctrain", *words[1:]])) if words else ""


def _saved(folder: Path) -> tuple[Saved, ...]:
    rows = []
    for path in checkpoints.all_of(folder):
        known = manifest.read_manifest(path)
        wrong = manifest.problems(path, digests=False, extra=False)
        rows.append(Saved(name=path.name, step=known.step if known else None, problem="; ".join(wrong) or None))
    return tuple(rows)


def _evaluation(directory: Path) -> dict[str, float]:
    metrics = (store.read_object(str(directory / layout.EVALUATION)) or {}).get("metrics")
    pairs = metrics.items() if isinstance(metrics, dict) else ()
    return {str(name): float(value) for name, value in pairs if isinstance(value, float) or (type(value) is int and abs(value) < 2**63)}


def _ends(logs: Sequence[LogFile]) -> list[LogEnd]:
    """Return the last lines of the newest output and the newest errors; samples, which are drawn, and ranks' own copies are left out."""
    own = [file for file in logs if not file.copy]
    newest = {file.stream: file for file in own}
    ends = []
    for file in dict.fromkeys(newest.values()):
        offset, _ = read.tail(file, 40 * LOG_LINES, most_bytes=1 << 20)
        lines: list[str] = []
        for _, raw in read.lines(file, start=offset):
            line = secrets.text(text.clean(raw)).rstrip()
            if line and MARK not in line and not text.progress_bar(line):
                lines.append(line if len(line) <= _LINE else f"{line[: _LINE - 1]}…")
                del lines[:-LOG_LINES]
        if lines:
            ends.append(LogEnd(name=file.name, lines=tuple(lines)))
    return ends


def _idle(
    run: Run, past: History, counted: Efficiency, given: Given, *, config: Mapping[str, Any] | None, variables: Any
) -> tuple[Idle, ...]:
    """Return what was wasted, judged from the last samples of each rank: thinned ones show a GPU at its idlest."""
    samples = sorted((s for each in efficiency.newest_ranks(past) for s in _since_begin(each.recent)), key=lambda s: s.time_ms)
    if not samples:
        return ()
    # What the ranks saw says nothing of GPUs that nobody uses: the scheduler does, or what was asked for.
    last = given.accounts[-1] if given.accounts else None
    resources = (config or {}).get("resources")
    asked = resources.get("gpus_per_node") if isinstance(resources, Mapping) else None
    per_node = last.gpus // last.n_nodes if last is not None and last.gpus and last.n_nodes else asked if isinstance(asked, int) else None
    threads, of_step = idle.threads_and_cores(variables)
    cores = counted.cpus // counted.nodes if counted.cpus and counted.nodes else None
    return idle.judge(
        samples, gpus_per_node=per_node, cpus_per_node=of_step if of_step is not None else cores,
        data_wait=next_time.mean_of(past, "data_wait"), config=config, threads=threads, run=run.id,
    )  # fmt: skip


def _since_begin(recent: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples of the newest start: what an earlier one did on other nodes is no waste of this one."""
    begun = max((index for index, sample in enumerate(recent) if sample.event == "train_begin"), default=-1)
    return recent[begun + 1 :]


def clock(at: float | None) -> str:
    """Return a time of this machine's clock, or a dash."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
