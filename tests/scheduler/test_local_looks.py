"""Looking at a local array at the very moment at which one of its tasks starts: each task is there
once, and none has failed.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.local import jobs
from hpctrain.local import plan as planning
from hpctrain.local.jobs import LocalJob
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.slurm import batch_script
from tests.scheduler.local_jobs import write


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalJob:
    """An array of the task 2 alone, which this process holds, and which has not started."""
    monkeypatch.chdir(tmp_path)
    script = write("true", "#SBATCH --array=2\n")
    made = jobs.new(tasks=1)
    machine = planning.LocalMachine(cores=1, gpus=(), host="here", user="me")
    directives = batch_script.read(script)[1]
    made.write_plan(
        planning.make(
            directives,
            job_id=made.path.name,
            directory=str(tmp_path),
            script=str(script),
            machine=machine,
        )
    )
    made.write_holder(os.getpid())
    made.write_state("PENDING")
    return made


def after_each(name: str, patch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Let something happen right after each call of a function of jobs."""
    real = getattr(jobs, name)

    def called(*words: Any) -> Any:
        try:
            return real(*words)
        finally:
            then()

    patch.setattr(jobs, name, called)


@pytest.mark.parametrize("listing", [1, 2, 3])
def test_a_task_that_starts_between_two_looks_is_there_once(
    job: LocalJob, monkeypatch: pytest.MonkeyPatch, listing: int
) -> None:
    listings = 0

    def look() -> None:
        nonlocal listings
        listings += 1
        if listings == listing:
            job.begin(2, job.plan().task(2))

    after_each("names", monkeypatch, look)
    assert [(row.job_id, row.state) for row in jobs.rows(job)] == [
        (f"{job.path.name}_2", "PENDING")
    ]
    listings = 0
    shutil.rmtree(job.task(2).path, ignore_errors=True)
    assert [(row.job_id, row.state) for row in LocalScheduler().status([f"{job.path.name}_2"])] == [
        (f"{job.path.name}_2", "PENDING")
    ]


def test_ids_are_not_given_out_again_where_the_directory_of_the_jobs_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The logs of the old jobs, and their attempts, are still in the projects."""
    first = int(jobs.new().path.name)
    assert int(jobs.new().path.name) == first + 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60)
    shutil.rmtree(jobs.root())
    again = int(jobs.new().path.name)
    assert abs(again - first) >= 9000
    assert again % 9000 == first % 9000, "the rendezvous port is still this user's"
    assert planning.FIRST_JOB_ID <= min(first, again) <= max(first, again) < 100_000_000
