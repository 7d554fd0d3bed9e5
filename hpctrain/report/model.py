"""All facts of a report of one run, read from the run's files; also as JSON values.

Facts from a scheduler are passed in; nothing here queries one, or prints. Files of other users'
runs are read like your own. Unreadable files are skipped; names, configs and log lines are
untrusted, and the renderers escape them. Probable secrets are removed, because reports are shared
with colleagues.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.config.spec import shown_value
from hpctrain.explain.model import Explanation
from hpctrain.jobs import request
from hpctrain.logs import files, read, text
from hpctrain.memory.sample import MARK
from hpctrain.report import efficiency, idle
from hpctrain.report.efficiency import Efficiency, most
from hpctrain.report.idle import Idle
from hpctrain.runs import checkpoints, history, launch, layout, predicted, progress
from hpctrain.runs.history import History, RankMemory
from hpctrain.runs.job_state import State
from hpctrain.runs.store import Run
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import stored
from hpctrain.util.secrets import hidden, hidden_in

# -- one run ---------------------------------------------------------------------------------------

LOG_LINES = 30
#: Characters of a log line that a report shows.
_LINE = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalFacts:
    """Facts from other sources: the scheduler, the explanation, the cluster.

    Attributes:
        owner: of the run.
        explanation: None if there is none; `unexplained` is the reason.
        silent: why a scheduler did not answer.
        now: seconds since the epoch.
    """

    state: State
    owner: str
    accounts: tuple[JobRecord, ...] = ()
    explanation: Explanation | None = None
    unexplained: str | None = None
    silent: str | None = None
    now: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """All facts of a report of one run.

    Attributes:
        config: (key, value, where it was set) without defaults; resolved: the complete config, as
            JSON values. Without secrets.
        command: that launched it.
        code, environment: the contents of code.json and environment.json.
        ends: (file, its last lines, cleaned).
    """

    run: Run
    directory: Path
    given: ExternalFacts
    history: History
    efficiency: Efficiency
    fit: Mapping[str, Any] | None
    config: tuple[tuple[str, str, str], ...]
    resolved: Mapping[str, Any] | None
    command: str
    code: Mapping[str, Any]
    environment: Mapping[str, Any]
    saved: tuple[checkpoints.Saved, ...]
    ends: tuple[tuple[str, list[str]], ...]
    idle: tuple[Idle, ...]
    evaluation: Mapping[str, float]

    @property
    def is_running(self) -> bool:
        """Whether the run may still continue."""
        return (
            self.given.state.word in ("running", "pending", "unknown")
            and not self.given.state.forgotten
        )


def gather(run: Run, runs_dir: Path, given: ExternalFacts, *, points: int = 700) -> RunReport:
    """Collect the facts of a report."""
    directory = runs_dir / run.id
    whole = launch.load(runs_dir, run.tag)
    argv = whole.argv if whole is not None else ()
    values, origins = request.ran_with(run, runs_dir)
    past = history.read(directory, most=points)
    past = replace(past, starts=efficiency.with_ends(past.starts, given.accounts))
    return RunReport(
        run=run,
        directory=directory,
        given=given,
        history=past,
        efficiency=efficiency.of(
            given.accounts,
            past,
            config=values,
            completed=given.state.word == "completed",
            now=given.now if given.state.word == "running" else None,
        ),
        fit=predicted.read(directory),
        config=config_rows(values, origins),
        resolved=None if values is None else hidden_in("", values),
        command=hidden(shlex.join(["hpctrain", *argv[argv[0].endswith("hpctrain") :]]))
        if argv
        else "",
        code=hidden_in("", code_of(run, runs_dir)),
        environment=hidden_in("", environment_of(run, runs_dir)),
        saved=tuple(one for one in checkpoints.saved_in(directory) if one.is_checkpoint),
        ends=tuple(_ends(files.of_run(directory))),
        idle=_idle(run, past, given, values or {}),
        evaluation=evaluation_of(directory),
    )


def code_of(run: Run, runs_dir: Path) -> dict[str, Any]:
    """Return the version of the code that a run's launch recorded."""
    return request.first_object(runs_dir / layout.LAUNCHES / run.tag / "code.json")


def environment_of(run: Run, runs_dir: Path) -> dict[str, Any]:
    """Return the environment that the newest attempt recorded."""
    attempts = runs_dir / run.id / "attempts"
    return request.first_object(
        *(attempts / each.name / "environment.json" for each in reversed(run.attempts))
    )


def shown(item: Any) -> str:
    """Format a value for a table."""
    return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)


def config_rows(
    values: Mapping[str, Any] | None, origins: Mapping[str, str]
) -> tuple[tuple[str, str, str], ...]:
    """Return values that were set explicitly, and where; defaults are omitted."""
    rows = []
    for path, where in origins.items() if values is not None else ():
        item: Any = values
        keys = tuple(path.split("."))
        for part in keys:
            item = item.get(part) if isinstance(item, dict) else None
        rows.append((path, shown(shown_value(keys, item))[:2000], where))
    return tuple(rows)


def evaluation_of(directory: Path) -> dict[str, float]:
    """Return the metrics of a separate evaluation, if there was one."""
    metrics = (stored.read_object(directory / layout.EVALUATION) or {}).get("metrics")
    return {
        str(name): float(value)
        for name, value in (metrics.items() if isinstance(metrics, dict) else ())
        if isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
    }


def _ends(logs: Sequence[files.LogFile]) -> Iterator[tuple[str, list[str]]]:
    """Yield the last lines of the newest output and the newest errors, without samples (shown as
    charts) and ranks' own copies.
    """
    newest = {file.stream: file for file in logs if not file.copy}
    for file in dict.fromkeys(newest.values()):
        offset = read.tail(file.path, 40 * LOG_LINES, most_bytes=1 << 20)
        lines: list[str] = []
        for raw in read.lines(file.path, start=offset):
            line = hidden(text.clean(raw)).rstrip()
            if line and MARK not in line and not text.progress_bar(line):
                lines.append(line if len(line) <= _LINE else f"{line[: _LINE - 1]}…")
                del lines[:-LOG_LINES]
        if lines:
            yield file.name, lines


def _idle(
    run: Run, past: History, given: ExternalFacts, config: Mapping[str, Any]
) -> tuple[Idle, ...]:
    """Return wasted resources, from the last samples of each rank: thinned ones overstate
    idleness.
    """
    _, samples = progress.of_ranks([list(each.recent) for each in past.ranks])
    # Ranks cannot see unused GPUs: the scheduler, or the request, shows them.
    per_node = (config.get("resources") or {}).get("gpus_per_node")
    last = given.accounts[-1] if given.accounts else None
    if last is not None and last.gpus and last.n_nodes:
        per_node = last.gpus // last.n_nodes
    return idle.judge(
        samples,
        gpus_per_node=per_node,
        data_wait=efficiency.mean_of(past, "data_wait") if samples else None,
        run=run.id,
    )


# -- JSON ------------------------------------------------------------------------------------------

_PEAKS = (
    "gpu_used_mib",
    "torch_peak_mib",
    "torch_reserved_mib",
    "cgroup_used_mib",
    "node_used_mib",
    "rss_mib",
)


def to_json(facts: RunReport) -> dict[str, Any]:
    """Return the values of the page.

    Times are seconds since the epoch, sizes are bytes unless the name has a unit, fractions are 0
    to 1.
    """
    run, given = facts.run, facts.given
    return {
        "schema": 1,
        "run": {
            "id": run.id,
            "tag": run.tag,
            "name": run.name,
            "stage": run.stage,
            "index": run.index,
            "created": run.created,
            "job_ids": list(run.job_ids),
            "owner": given.owner,
            "directory": str(facts.directory.absolute()),
        },
        "state": given.state.word,
        "reason": given.state.reason,
        "at": given.now,
        "scheduler_silent": given.silent,
        "step": facts.history.last_step,
        "max_steps": facts.history.max_steps,
        "lost_steps": facts.history.lost_steps,
        "starts": [asdict(start) for start in facts.history.starts],
        "points": [
            asdict(point)
            for event in ("log", "evaluate", "speed", "save")
            for point in facts.history.of(event)
        ],
        "ranks": [_rank(each) for each in facts.history.ranks],
        "fit": facts.fit,
        "efficiency": asdict(facts.efficiency)
        | {"next": [asdict(ask) | {"directive": ask.directive} for ask in facts.efficiency.next]},
        "idle": [asdict(each) for each in facts.idle],
        "diagnosis": (
            None if given.explanation is None else hidden_in("", asdict(given.explanation))
        ),
        "accounts": [asdict(each) for each in given.accounts],
        "checkpoints": [one.summary() for one in facts.saved],
        "evaluation": dict(facts.evaluation),
        "command": facts.command or None,
        "config": facts.resolved,
        "set": [{"key": key, "value": value, "from": where} for key, value, where in facts.config],
        "code": dict(facts.code),
        "environment": dict(facts.environment),
        "log_ends": [{"file": name, "lines": lines} for name, lines in facts.ends],
    }


def _rank(each: RankMemory) -> dict[str, Any]:
    samples = [asdict(sample) for sample in each.samples]
    return {
        "rank": each.rank,
        "samples": each.count,
        "mean_utilisation_percent": each.mean_utilisation,
        "peak": ({name: most(row[name] for row in samples) for name in _PEAKS} if samples else {}),
        "last": samples[-1] if samples else None,
    }
