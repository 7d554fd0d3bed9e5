"""The context of a training that saves, stops and resumes, from the job script's environment and
the options. No torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.runs import layout
from hpctrain.training.process import Ranks
from hpctrain.training.survival.time_limit import Job, end_time
from hpctrain.util import files
from hpctrain.util.text import integer


@dataclass(frozen=True, slots=True, kw_only=True)
class ResilienceContext:
    """Paths, job and measurements that saving and resuming need.

    Attributes:
        run_dir: the run's directory; None without a job script.
        run_id: the run's id.
        attempt: the name of this start of the job.
        stop_on_nan: end with an error if the gradient norm is not finite.
        save_seconds: duration of the last save of an earlier attempt.
        leaving_seconds: time between that save and the end of its job.
        record: written into each checkpoint, to be compared at a resume.
        ranks: the group of all processes, if it exists already.
        job: the job's time limit, and what follows it.
        cluster: the cluster's name, from the job config or Slurm.
    """

    run_dir: Path | None = None
    run_id: str | None = None
    attempt: str | None = None
    stop_on_nan: bool = True
    save_seconds: float | None = None
    leaving_seconds: float | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    ranks: Ranks | None = None
    job: Job = field(default_factory=Job)
    cluster: str | None = None

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, **more: Any
    ) -> ResilienceContext:
        """Return the context of a job script's environment."""
        word = environ.get(layout.RUN_DIR_VARIABLE)
        run_dir = Path(word) if word else None
        config = {} if run_dir is None else _config(run_dir)
        cluster = config.get("cluster")
        return cls(
            run_dir=run_dir,
            job=_job(run_dir, config, environ),
            cluster=(
                cluster if isinstance(cluster, str) else environ.get("SLURM_CLUSTER_NAME") or None
            ),
            run_id=environ.get(layout.RUN_ID_VARIABLE) or None,
            attempt=environ.get(layout.ATTEMPT_VARIABLE) or None,
            **more,
        )


def _config(run_dir: Path) -> dict[str, Any]:
    """Return the job config as resolved by `hpctrain submit`; empty if the script was submitted
    manually.
    """
    stage = (files.read_json(run_dir / "run.json") or {}).get("stage")
    launch = run_dir / "launch"
    places = [
        *([launch / f"config.{stage}.json"] if stage else []),
        launch / "config.json",
    ]
    record = next((found for place in places if (found := files.read_json(place))), {})
    config = record.get("config")
    return config if isinstance(config, dict) else {}


def _job(run_dir: Path | None, config: Mapping[str, Any], environ: Mapping[str, str]) -> Job:
    """Return the job's times. Slurm reports the start since 23.02; before that, the job script
    wrote it.
    """
    began = integer(environ.get("SLURM_JOB_START_TIME", ""))
    attempt = environ.get(layout.ATTEMPT_VARIABLE)
    if began is None and run_dir is not None and attempt:
        at = (files.read_json(run_dir / "attempts" / attempt / "start.json") or {}).get("at")
        began = int(at) if isinstance(at, int | float) else None
    restart = config.get("restart")
    restart = restart if isinstance(restart, dict) else {}
    mode, most = restart.get("mode"), restart.get("max")
    return Job(
        end=end_time(environ),
        began=began,
        # `auto` means requeue in a job that runs hpctrain's own training.
        mode="requeue" if mode == "auto" else mode,
        restarts=integer(environ.get("SLURM_RESTART_COUNT", "")) or 0,
        most=most,
    )
