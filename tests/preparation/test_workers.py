"""How many processes prepare data where nobody says a number."""

from __future__ import annotations

import os

import pytest

from hpctrain.memory import cgroup, host
from hpctrain.preparation import workers


def test_there_is_a_worker_for_each_core_as_far_as_memory_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 6)
    monkeypatch.setattr(cgroup, "find_limit", lambda: None)
    for free, expected in ((10**6, 6), (2 * workers._WORKER_MIB + 1, 2), (0, 1)):
        monkeypatch.setattr(host, "node_mib", lambda free=free: (10**6 - free, 10**6))
        assert workers.count() == expected


def test_cores_are_those_that_the_process_is_bound_to() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert workers.cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= workers.cores() <= len(before)
