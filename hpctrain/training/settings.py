"""Where a training leaves what it saves and how it survives: what the job script's environment says, and what the options add. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.runs import files, layout
from hpctrain.training.deadline import end_time
from hpctrain.training.estimate import Job

if TYPE_CHECKING:
    from hpctrain.training.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """See the module.

    Attributes:
        run_dir: the run's directory; None where no job script gave one.
        run_id: the run's id.
        attempt: the name of this start of the job.
        end: when the job's time ends, in seconds since the epoch; None for never.
        stop_on_nan: end with an error when the gradient norm is not finite.
        save_seconds: what the last save of an earlier attempt took.
        leaving_seconds: what passed between that save and the end of its job.
        record: what is written into each checkpoint, to be compared at a resume.
        ranks: the group of all processes, where there is one already.
        job: the time of the job, and what follows when it is over.
        cluster: the name of the cluster, as the job config has it, or Slurm.
    """

    run_dir: Path | None = None
    run_id: str | None = None
    attempt: str | None = None
    end: float | None = None
    stop_on_nan: bool = True
    save_seconds: float | None = None
    leaving_seconds: float | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    ranks: Ranks | None = None
    job: Job = field(default_factory=Job)
    cluster: str | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **more: Any) -> Survival:
        """Return what a job script's environment says."""
        word = environ.get(layout.RUN_DIR_VARIABLE)
        run_dir = Path(word) if word else None
        config = {} if run_dir is None else _config(run_dir)
        cluster = config.get("cluster")
        return cls(
            run_dir=run_dir,
            job=_job(run_dir, config, environ),
            cluster=cluster if isinstance(cluster, str) else environ.get("SLURM_CLUSTER_NAME") or None,
            run_id=environ.get(layout.RUN_ID_VARIABLE) or None,
            attempt=environ.get(layout.ATTEMPT_VARIABLE) or None,
            end=end_time(environ),
            **more,
        )

    def after(self, save_seconds: float | None, leaving_seconds: float | None) -> Survival:
        """Return the same with what an earlier attempt measured."""
        return replace(self, save_seconds=save_seconds, leaving_seconds=leaving_seconds)


def _config(run_dir: Path) -> dict[str, Any]:
    """Return the job config as `hpctrain submit` resolved it; empty where a script was submitted by hand."""
    stage = (files.read_json(run_dir / "run.json") or {}).get("stage")
    launch = run_dir / "launch"
    places = [run_dir / "config.json", *([launch / f"config.{stage}.json"] if stage else []), launch / "config.json"]
    record = next((found for place in places if (found := files.read_json(place))), {})
    config = record.get("config")
    return config if isinstance(config, dict) else {}


def _job(run_dir: Path | None, config: Mapping[str, Any], environ: Mapping[str, str]) -> Job:
    """Return the time of the job: Slurm says when it began from 23.02 on; before that, the job script wrote down when it did."""
    began = _whole(environ.get("SLURM_JOB_START_TIME"))
    attempt = environ.get(layout.ATTEMPT_VARIABLE)
    if began is None and run_dir is not None and attempt:
        at = (files.read_json(run_dir / "attempts" / attempt / "start.json") or {}).get("at")
        began = int(at) if isinstance(at, int | float) else None
    restart = config.get("restart")
    restart = restart if isinstance(restart, dict) else {}
    mode, most = restart.get("mode"), restart.get("max")
    if mode == "auto":  # of a job that runs hpctrain's own training, as this one does
        mode = "requeue"
    return Job(
        end=end_time(environ),
        began=began,
        mode=mode if isinstance(mode, str) else None,
        restarts=_whole(environ.get("SLURM_RESTART_COUNT")) or 0,
        most=most if isinstance(most, int) else None,
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and int(text) > 0 else None
