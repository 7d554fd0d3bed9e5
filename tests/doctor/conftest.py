"""A job, and the ways in which a test asks about it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config.spec import JobSpec
from hpctrain.doctor.facts import DoctorContext


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., DoctorContext]:
    """Return the maker of a context: `spec=` for keys of the job, the rest for the context."""

    def make(*, spec: dict[str, Any] | None = None, **values: Any) -> DoctorContext:
        job = JobSpec(**{"job_name": "sft", "chdir": str(tmp_path), **(spec or {})})
        return DoctorContext(spec=job, **{"version": "0.1.0", "machine": "x86_64", **values})

    return make
