"""What a run's directory, or the ends of bare logs, say of the case: attempts, config, samples, steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpctrain.cli import explain_config
from hpctrain.explain.case import AttemptFact, Case
from hpctrain.logs.model import LogFile
from hpctrain.memory.sample import MARK, Sample, parse_line
from hpctrain.runs import history, predicted, progress, speed, store
from hpctrain.runs.store import Run

#: Samples of each rank.
_MOST = 200
#: Of each bare log, both ends are looked at.
END_BYTES = 64 * 1024
_HEAD, _TAIL = 4, 12
_MIB = 1 << 20


def case(run_dir: Path, run: Run) -> Case:
    """Return what a run's own files say."""
    told = history.read(run_dir, most=_MOST)
    now = progress.read(run_dir)
    starts = {start.name: start for start in told.starts}
    attempts = []
    for attempt in run.attempts:
        start = starts.get(attempt.name)
        attempts.append(
            AttemptFact(
                name=attempt.name,
                job_id=attempt.job,
                restart=attempt.restart,
                started=attempt.started,
                ended=attempt.ended,
                status=attempt.status,
                outcome=attempt.outcome,
                reason=attempt.reason,
                first_step=start.first_step if start else None,
                last_step=start.last_step if start else None,
                last_logged_at=start.last_at if start else None,
                output_at=attempt.output_at,
            )
        )
    samples = sorted((sample for rank in told.ranks for sample in rank.samples), key=lambda sample: sample.time_ms)
    config = explain_config.of_run(run_dir, run)
    clocks = {rank.samples[-1].host: rank.clock_off_s for rank in told.ranks if rank.samples and rank.clock_off_s}
    environment = [store.read_object(str(run_dir / "attempts" / each.name / "environment.json")) for each in reversed(run.attempts)]
    return _with_sizes(
        Case(
            attempts=tuple(attempts),
            config=config,
            samples=tuple(samples),
            step=now.step,
            max_steps=now.max_steps,
            step_s=now.step_s,
            fit=predicted.read(run_dir),
            extra={"run": run.id, "clocks": clocks, **_versions(next((each for each in environment if each), {}))},
        )
    )


def with_logs(case: Case, files: Sequence[LogFile]) -> Case:
    """Return the case with the samples and the steps that the logs themselves say, at their two ends."""
    samples: list[Sample] = []
    said: list[speed.Speed] = []
    for file in files:
        lines = ends(file.path)
        found = [line for line in lines if MARK in line]
        shown = found if len(found) <= _HEAD + _TAIL else [*found[:_HEAD], *found[-_TAIL:]]
        samples += [sample for line in shown if (sample := parse_line(line)) is not None]
        last = next((line for line in reversed(lines) if speed.MARK in line), None)
        said += [known] if last is not None and (known := speed.parse_line(last)) is not None else []
    if said and case.step is None:
        newest = max(said, key=lambda each: each.step)
        case = replace(case, step=newest.step, max_steps=newest.max_steps, step_s=newest.step_s)
    return _with_sizes(replace(case, samples=tuple(sorted(set(samples), key=lambda sample: sample.time_ms)))) if samples else case


def ends(path: Path) -> list[str]:
    """Return the lines at the two ends of a file; none of one that cannot be read."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            content = stream.read(min(size, END_BYTES))
            if size > END_BYTES:
                stream.seek(max(END_BYTES, size - END_BYTES))
                content += b"\n" + stream.read(END_BYTES)
    except OSError:
        return []
    return content.decode("utf-8", "replace").splitlines()


def _versions(environment: Mapping[str, Any]) -> dict[str, Any]:
    torch = environment.get("torch") or (environment.get("versions") or {}).get("torch")
    return {"torch": torch} if isinstance(torch, str) else {}


def _with_sizes(case: Case) -> Case:
    """Add what the samples and the config say of the nodes and the number of processes."""
    resources = (case.config or {}).get("resources") or {}
    gpus, nodes = _whole(resources.get("gpus_per_node")), _whole(resources.get("nodes"))
    last = case.samples[-1] if case.samples else None
    gpu = next((sample.gpu_total_mib for sample in reversed(case.samples) if sample.gpu_total_mib), None)
    node = next((sample.node_total_mib for sample in reversed(case.samples) if sample.node_total_mib), None)
    return replace(
        case, gpus_per_node=gpus, world_size=last.world_size if last else (gpus * nodes if gpus and nodes else None),
        gpu_memory_bytes=gpu * _MIB if gpu else None, node_memory_bytes=node * _MIB if node else None,
    )  # fmt: skip


def _whole(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
