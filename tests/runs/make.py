"""Run directories as the job script and the training leave them.

A module of its own, so that other tests can import it, too.
"""

import json
from pathlib import Path
from typing import Any

#: 2026-11-14: the time at which runs are made that do not say when.
AT = 1_794_600_000.0


def run(
    runs: Path,
    run_id: str = "sft-1",
    *,
    tag: str | None = None,
    name: str = "sft",
    created: float = AT,
    index: int | None = None,
    stage: str | None = None,
) -> Path:
    """Make a run's directory with its run.json, and return it."""
    directory = runs / run_id
    directory.mkdir(parents=True)
    who = {
        "schema": 1,
        "run_id": run_id,
        "tag": tag or run_id,
        "name": name,
        "created": created,
        "index": index,
        "stage": stage,
    }
    write(directory / "run.json", who)
    return directory


def attempt(
    directory: Path,
    job_id: str = "123",
    *,
    restart: int = 0,
    slurm_job_id: str | None = None,
    at: float = AT,
    outcome: str | None = None,
    status: int = 0,
    reason: str = "completed",
    ended: float | None = None,
    said: str | None = None,
) -> Path:
    """Add an attempt to a run and return its directory; without `outcome` there is no end.json,
    without `said` no exit.
    """
    path = directory / "attempts" / f"{slurm_job_id or job_id}.{restart}"
    path.mkdir(parents=True)
    start = {
        "schema": 1,
        "job_id": job_id,
        "slurm_job_id": slurm_job_id or job_id,
        "restart": restart,
        "host": "node1",
        "at": at,
    }
    write(path / "start.json", start)
    if said is not None:
        (path / "exit").write_text(f"{said}\n")
    if outcome is not None:
        write(
            path / "end.json",
            {
                "schema": 1,
                "at": ended or at + 60,
                "status": status,
                "reason": reason,
                "outcome": outcome,
            },
        )
    return path


def metrics(attempt_directory: Path, *rows: dict[str, Any]) -> None:
    """Append lines to an attempt's metrics.jsonl."""
    with (attempt_directory / "metrics.jsonl").open("a") as stream:
        stream.writelines(json.dumps({"event": "log", "at": AT, **row}) + "\n" for row in rows)


def submission(runs: Path, tag: str, job_id: str | None, name: str = "7f3a", **more: Any) -> None:
    """Add a submission to the launch of `tag`."""
    path = runs / ".launches" / tag / "submissions" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(
        path,
        {
            "schema": 1,
            "token": name,
            "argv": [],
            "at": AT,
            "scheduler": "slurm",
            "job_id": job_id,
            **more,
        },
    )


def write(path: Path, value: Any) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value))
