"""Where a training leaves what it saves and how it survives: what the job script's environment says, and what the options add. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.runs import layout
from hpctrain.training.deadline import end_time

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

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **more: Any) -> Survival:
        """Return what a job script's environment says."""
        run_dir = environ.get(layout.RUN_DIR_VARIABLE)
        return cls(
            run_dir=Path(run_dir) if run_dir else None,
            run_id=environ.get(layout.RUN_ID_VARIABLE) or None,
            attempt=environ.get(layout.ATTEMPT_VARIABLE) or None,
            end=end_time(environ),
            **more,
        )

    def after(self, save_seconds: float | None, leaving_seconds: float | None) -> Survival:
        """Return the same with what an earlier attempt measured."""
        return replace(self, save_seconds=save_seconds, leaving_seconds=leaving_seconds)
