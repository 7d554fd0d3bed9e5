"""A job, and the ways in which a test asks about it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.checks.job.context import Surroundings
from hpctrain.clusters.profile import Cluster
from hpctrain.config.spec import JobSpec
from hpctrain.doctor.facts import DoctorContext


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., DoctorContext]:
    """Return the maker of a context: `spec=` for keys of the job, the rest for the context."""

    def make(
        *,
        spec: dict[str, Any] | None = None,
        cluster: Cluster | None = None,
        on_cpu: bool = False,
        **values: Any,
    ) -> DoctorContext:
        job = JobSpec(**{"job_name": "sft", "chdir": str(tmp_path), **(spec or {})})
        around = Surroundings(variables={"ACCELERATE_USE_CPU": "1"} if on_cpu else {})
        return DoctorContext(job, cluster, None, around, **{"version": "0.1.0", **values})

    return make
