"""How long a training takes, and whether that is before its time limit."""

import pytest

from hpctrain.training.survival import ResilienceContext, time_limit

HOUR = 3600.0


@pytest.mark.parametrize(
    ("needed", "end", "now", "expected"),
    [
        (3.2, 24, 0, (True, "done in about 3.2 h; the time limit leaves 24 h")),
        (3.2, None, 0, (None, "done in about 3.2 h; no time limit is known")),
        (30, 24, 1, (False, "done in about 30 h, after the time limit, which leaves 23 h")),
    ],
)
def test_whether_it_ends_before_the_time_limit(
    needed: float, end: float | None, now: float, expected: tuple[bool | None, str]
) -> None:
    limit = None if end is None else end * HOUR
    assert time_limit.outlook(needed * HOUR, limit, now=now * HOUR) == expected


def test_the_time_limit_is_slurm_s() -> None:
    assert ResilienceContext.from_environment({}).end is None
    assert ResilienceContext.from_environment({"SLURM_JOB_END_TIME": "9"}).end == 9.0
