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
from hpctrain.training.survival.time_limit import end_time


@dataclass(frozen=True, slots=True, kw_only=True)
class ResilienceContext:
    """Paths, job and measurements that saving and resuming need.

    Attributes:
        run_dir: the run's directory; None without a job script.
        run_id: the run's id.
        attempt: the name of this start of the job.
        stop_on_nan: end with an error if the gradient norm is not finite.
        record: written into each checkpoint, to be compared at a resume.
        ranks: the group of all processes, if it exists already.
        end: when the job's time limit ends it, in seconds since the epoch; None if unknown.
    """

    run_dir: Path | None = None
    run_id: str | None = None
    attempt: str | None = None
    stop_on_nan: bool = True
    record: Mapping[str, Any] = field(default_factory=dict)
    ranks: Ranks | None = None
    end: float | None = None

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, **more: Any
    ) -> ResilienceContext:
        """Return the context of a job script's environment."""
        word = environ.get(layout.RUN_DIR_VARIABLE)
        return cls(
            run_dir=Path(word) if word else None,
            end=end_time(environ),
            run_id=environ.get(layout.RUN_ID_VARIABLE) or None,
            attempt=environ.get(layout.ATTEMPT_VARIABLE) or None,
            **more,
        )
