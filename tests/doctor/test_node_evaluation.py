"""The judge of the preflight job: silent on healthy nodes, and each finding for its own cause."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpctrain.clusters.profile import Cluster, Profile
from hpctrain.doctor.facts import DoctorContext
from hpctrain.doctor.node_evaluation import evaluate
from hpctrain.finding import Finding
from hpctrain.logs.preflight import (
    Access,
    AllReduceSpeed,
    NetworkFacts,
    NodeFacts,
    RankFacts,
    RankFailure,
    Report,
)

G = 1 << 30


def rank(number: int, **more: Any) -> RankFacts:
    usual: dict[str, Any] = {
        "rank": number,
        "host": f"node{number // 4 + 1}",
        "cpus": "0-31",
        "cpus_per_task": 32,
        "version": "2.9.0",
        "cuda": "12.8",
        "visible": 4,
        "on_cpu": False,
        "done": True,
    }
    return RankFacts(**{**usual, **more})


def node(name: str, **more: Any) -> NodeFacts:
    usual: dict[str, Any] = {
        "host": name,
        "gpus_given": 4,
        "read": Access(path="data"),
        "write": Access(path="out"),
    }
    return NodeFacts(**{**usual, **more})


def speed(group: str, bandwidth: float, **more: Any) -> AllReduceSpeed:
    usual: dict[str, Any] = {
        "group": group,
        "ranks": 8,
        "bytes": G // 4,
        "seconds": 0.01,
        "right": True,
        "backend": "nccl",
    }
    return AllReduceSpeed(**{**usual, "bandwidth": bandwidth, **more})


HEALTHY = Report(
    ranks=tuple(rank(number) for number in range(8)),
    nodes=(node("node1"), node("node2")),
    speeds=(speed("node1", 200e9), speed("node2", 210e9), speed("all", 40e9)),
    networks=(
        NetworkFacts(host="node1", transport="IB", devices=("mlx5_0",)),
        NetworkFacts(host="node2", transport="IB", devices=("mlx5_0",)),
    ),
)
CLUSTER = Cluster(Profile.read({"name": "x", "title": "X", "network": {"interface": "ib0"}}))


def ranks(host: str = "node2", **more: Any) -> dict[str, Any]:
    return {
        "ranks": tuple(
            replace(each, **more) if each.host == host else each for each in HEALTHY.ranks
        )
    }


def nodes(**more: Any) -> dict[str, Any]:
    return {"nodes": (HEALTHY.nodes[0], replace(HEALTHY.nodes[1], **more))}


BROKEN: list[tuple[str, str, dict[str, Any], str]] = [
    ("node-silent", "error", {"ranks": HEALTHY.ranks[:4]}, "4 of 8 processes never reported"),
    ("node-silent", "error", ranks(done=False), "ranks 4-7 started and did not finish"),
    (
        "node-silent",
        "error",
        {
            "failures": (
                RankFailure(
                    rank=3,
                    host="node1",
                    stage="connecting the ranks",
                    said="RuntimeError: no route",
                ),
            )
        },
        "rank 3 stopped at: connecting the ranks (node1)",
    ),
    ("node-gpus-missing", "error", ranks(visible=3), "node2: 3 of 4 GPUs"),
    (
        "node-gpus-missing",
        "note",
        {"ranks": tuple(replace(each, on_cpu=True, visible=0) for each in HEALTHY.ranks)},
        "the GPUs were not tested",
    ),
    (
        "node-all-reduce-wrong",
        "error",
        {"speeds": (speed("all", 40e9, right=False),)},
        "gives wrong sums",
    ),
    (
        "node-all-reduce-slow",
        "warning",
        {"speeds": (speed("all", 2.3e9),)},
        "8 ranks of all nodes: 2.3 GB/s over IB",
    ),
    (
        "node-all-reduce-slow",
        "warning",
        {"speeds": (speed("node2", 4e9), speed("all", 40e9))},
        "of node2: 4 GB/s",
    ),
    (
        "node-cores-few",
        "error",
        ranks(cpus="5"),
        "node2: all ranks on 1 core (CPU 5) of 32 for each task",
    ),
    ("node-cores-few", "warning", ranks(cpus="0-7"), "node2: all ranks on 8 cores (CPU 0-7) of 32"),
    (
        "node-dataset-unreadable",
        "error",
        nodes(read=Access(path="d", error="No such file or directory")),
        "node2: cannot read the dataset",
    ),
    (
        "node-checkpoint-unwritable",
        "error",
        nodes(write=Access(path="o", error="Read-only file system")),
        "Read-only file system",
    ),
]


def findings(
    report: Report, context: Callable[..., DoctorContext], cluster: Cluster | None = CLUSTER
) -> list[Finding]:
    return evaluate(report, context(spec={"nodes": 2, "gpus_per_node": 4}, cluster=cluster))


def test_healthy_nodes_are_healthy(context: Callable[..., DoctorContext]) -> None:
    assert findings(HEALTHY, context) == []


@pytest.mark.parametrize(
    ("id_", "level", "change", "words"),
    BROKEN,
    ids=[f"{row[0]}-{number}" for number, row in enumerate(BROKEN)],
)
def test_each_finding_for_its_own_cause(
    context: Callable[..., DoctorContext], id_: str, level: str, change: dict[str, Any], words: str
) -> None:
    found = findings(replace(HEALTHY, **change), context)
    assert [finding.id for finding in found] == [id_], found
    assert found[0].level == level
    assert words in found[0].what
    assert found[0].evidence
    assert found[0].reason
    assert found[0].fix


def test_what_many_nodes_have_in_common_is_said_once(context: Callable[..., DoctorContext]) -> None:
    broken = replace(HEALTHY, ranks=tuple(replace(each, visible=3) for each in HEALTHY.ranks))
    (finding,) = findings(broken, context)
    assert finding.what == "node[1-2]: 3 of 4 GPUs"
    assert "--sbatch exclude=node[1-2]" in finding.fix


def test_a_cpu_build_of_torch_is_the_reason_that_is_named(
    context: Callable[..., DoctorContext],
) -> None:
    broken = replace(
        HEALTHY,
        ranks=tuple(
            replace(each, visible=0, cuda=None, version="2.9.0+cpu") for each in HEALTHY.ranks
        ),
    )
    assert findings(broken, context)[0].evidence == "torch 2.9.0+cpu is a CPU build"


def test_what_the_job_said_is_evidence_for_silence(context: Callable[..., DoctorContext]) -> None:
    (finding,) = evaluate(
        Report(),
        context(spec={"nodes": 2, "gpus_per_node": 4}),
        ("error: node1 has 2 of the 4 GPUs",),
    )
    assert "error: node1 has 2 of the 4 GPUs" in finding.evidence


def test_every_finding_of_the_nodes_is_tried() -> None:
    from hpctrain.doctor import IDS

    assert {row[0] for row in BROKEN} == {each for each in IDS if each.startswith("node-")}
