"""What the local scheduler's book says of jobs that really ran."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from hpctrain.jobs import schedulers
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import stored
from tests.scheduler.local_jobs import end_all, submit, wait

MIB = 1024**2


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_slurm: None) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    end_all()


def account(job_id: str) -> JobRecord:
    [found] = schedulers.accounts([job_id])
    return found


def test_a_job_that_ended(tmp_path: Path) -> None:
    before = time.time()
    job = submit(
        "python3 -c \"held = bytearray(200 << 20); held[::4096] = b'x' * len(held[::4096])\";"
        " exit 7",
        "#SBATCH --time=5\n#SBATCH --nodes=2\n",
    )
    wait(job)
    found = account(job)
    assert (found.state, found.exit_code, found.signal, found.restarts, found.source) == (
        "FAILED",
        7,
        None,
        0,
        "local",
    )
    assert (found.n_nodes, found.nodes, found.gpus, found.time_limit_s, found.partition) == (
        2,
        "127.0.0.[1-2]",
        0,
        300,
        "local",
    )
    assert found.submitted is not None
    assert found.started is not None
    assert found.ended is not None
    assert before <= found.submitted <= found.started <= found.ended <= time.time()
    assert (found.work_dir, found.output) == (str(tmp_path), f"{tmp_path}/logs/out_{job}.log")
    [step] = found.steps
    assert step.name == "batch"
    assert 200 * MIB < (step.max_rss_bytes or 0) < 2000 * MIB, "of its largest process"
    assert step.cpu_s is not None
    assert stored.made(JobRecord, asdict(found)) == found
