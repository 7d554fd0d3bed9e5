"""What is said of GPUs that do nothing; and that nothing is said of a run that is well."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.memory.sample import Sample
from hpctrain.report import idle, model
from hpctrain.runs import store
from hpctrain.runs.job_state import State
from hpctrain.slurm.notations.records import JobRecord
from tests.report import made_runs


def samples(
    *,
    nodes: int = 1,
    ranks: int = 4,
    moments: int = 6,
    of_rank: dict[int, dict[str, Any]] | None = None,
    event: str = "step",
    **all_: Any,
) -> list[Sample]:
    """Return samples of a healthy run, but for what is said."""
    found = []
    for moment in range(moments):
        for rank in range(nodes * ranks):
            values: dict[str, Any] = {
                "time_ms": 1_794_600_000_000 + moment * 10_000,
                "step": moment * 10,
                "event": event,
                "host": f"n{rank // ranks + 1}",
                "rank": rank,
                "world_size": nodes * ranks,
                "local_rank": rank % ranks,
                "gpu_index": rank % ranks,
                "gpu_uuid": f"GPU-{rank}",
                "gpu_used_mib": 60_000,
                "gpu_total_mib": 81_559,
                "gpu_utilisation_percent": 95,
                "torch_allocated_mib": 50_000,
            }
            found.append(Sample(**values | all_ | (of_rank or {}).get(rank, {})))
    return found


def judge(given: Iterable[Sample], **more: Any) -> tuple[idle.Idle, ...]:
    return idle.judge(
        list(given),
        **{"gpus_per_node": 4, "data_wait": 0.01, "run": "sft-1"} | more,
    )


def ids(found: Iterable[idle.Idle]) -> list[str]:
    return [each.id for each in found]


CPU: dict[str, Any] = dict.fromkeys(
    (
        "gpu_index",
        "gpu_uuid",
        "gpu_used_mib",
        "gpu_total_mib",
        "gpu_utilisation_percent",
        "torch_allocated_mib",
    )
)


@pytest.mark.parametrize(
    "given",
    [
        samples(),
        samples(nodes=16),
        samples(ranks=1, gpu_utilisation_percent=60),
        [],
        samples(**CPU),
        samples(gpu_utilisation_percent=None, gpu_uuid=None),  # unknown
        samples(moments=1, gpu_utilisation_percent=0),  # one alone proves nothing
        samples(moments=3, of_rank={2: {"gpu_utilisation_percent": 0}}),
        samples(event="evaluate", gpu_utilisation_percent=0),
        samples(event="save", of_rank={1: {"gpu_utilisation_percent": 0}}),
        samples(event="train_begin", gpu_utilisation_percent=0, gpu_used_mib=300),
        samples(
            of_rank={rank: {"gpu_used_mib": 9_000} for rank in (1, 2, 3)}
        ),  # uneven, and all of them work
    ],
    ids=[
        "well",
        "64 ranks",
        "one",
        "none",
        "cpu",
        "unknown",
        "one sample",
        "three",
        "evaluation",
        "saving",
        "start",
        "uneven",
    ],
)
def test_nothing_is_said_of_a_run_that_is_well(given: list[Sample]) -> None:
    per_node = None if not given or len(given) < 4 or given[0].world_size == 1 else 4
    assert judge(given, gpus_per_node=per_node) == ()


def test_a_rank_whose_gpu_rests_is_named() -> None:
    (found,) = judge(samples(nodes=2, of_rank={5: {"gpu_utilisation_percent": 2}}))
    assert (found.id, found.rank, found.node) == ("gpu-idle", 5, "n2")
    assert (
        found.what
        == "the GPU of rank 5 on n2 does nothing (at most 5 % in 4 samples), while 7 work"
    )
    assert found.fix == "hpctrain logs sft-1 --rank 5"


def test_a_training_on_the_cpu_beside_its_gpus_is_told() -> None:
    (found,) = judge(samples(gpu_utilisation_percent=0, torch_allocated_mib=0, gpu_used_mib=3))
    assert found.id == "gpu-idle"
    assert "runs on the CPU" in found.cause


def test_a_node_that_uses_one_of_its_four() -> None:
    (found,) = judge(samples(nodes=2, ranks=1))
    assert (found.id, found.node) == ("node-underused", "n1")
    assert found.what == "n[1-2]: 1 of 4 GPUs is used on each node"
    assert found.fix.endswith("--gpus 1")


def test_processes_that_share_a_gpu() -> None:
    (found,) = judge(samples(gpu_uuid="GPU-0", gpu_index=0))
    assert found.id == "node-underused"
    assert found.what == "n1: 4 processes share 1 GPU"
    assert "LOCAL_RANK" in found.fix
    assert ids(judge(samples(gpu_uuid="GPU-0"), gpus_per_node=None)) == ["node-underused"]


def test_a_loader_that_starves_the_gpus() -> None:
    (found,) = judge(samples(gpu_utilisation_percent=4), data_wait=0.34)
    assert found.id == "data-starved"
    assert found.what == "the GPUs wait for their data 34% of the time"


@pytest.mark.parametrize("wait", [None, 0.2, float("nan")])
def test_a_wait_that_is_small_or_unknown_is_none(wait: float | None) -> None:
    assert judge(samples(), data_wait=wait) == ()


def report_of(runs: Path, *accounts: JobRecord) -> list[str]:
    """Return the ids in the report of a made run of 8 GPUs."""
    made_runs.gpu_run(runs, steps=200, restarts=0)
    run = store.read_run(runs, "pretrain-1")
    assert run is not None
    found = model.gather(
        run, runs, model.ExternalFacts(state=State("completed"), owner="me", accounts=accounts)
    )
    return [each.id for each in found.idle]


def test_a_report_judges_as_watch_does(tmp_path: Path) -> None:
    # Only the scheduler knows of GPUs that nobody uses; the ranks do not.
    local = JobRecord(job_id="4711", scheduler="local", state="COMPLETED", n_nodes=1)
    assert report_of(tmp_path / "local", local) == []
    eight = JobRecord(job_id="4711", scheduler="slurm", state="COMPLETED", n_nodes=2, gpus=16)
    assert report_of(tmp_path / "slurm", eight) == ["node-underused"]
