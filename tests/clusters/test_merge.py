"""A profile with Slurm's own words over it: what Slurm says wins and says so, what it does not say
stays.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.clusters import discover, load
from hpctrain.clusters.live import Association, LiveCluster, LiveNodes, LivePartition, LiveQos
from hpctrain.clusters.load import Attestation
from hpctrain.clusters.merge import merge
from hpctrain.clusters.profile import Cluster, Profile

RECORDED = Path(__file__).parent / "recorded"
SHIPPED = sorted(load.available({}))
MIB, GIB = 1024**2, 1024**3
A100 = LiveNodes(
    count=10, cpus=32, threads_per_core=1, memory=400 * GIB, gpus=(("a100", 4),), features=("a100",)
)


def recorded(version: str = "24.11") -> LiveCluster:
    return discover.from_texts(
        {
            name: (RECORDED / version / f"{name}.txt").read_text()
            for name in discover.queries("ada", {})
        }
    )


def site(**sections: object) -> Cluster:
    """Return a profile with one kind of node and one partition, all of it documented."""
    values: dict[str, object] = {
        "name": "site",
        "title": "A site",
        "partitions": {
            "gpu": {"nodes": "a100", "time_max": "12:00:00", "nodes_max": 4},
            "gone": {"time_max": "01:00:00"},
        },
        "nodes": {
            "a100": {
                "gpus": 4,
                "cpus": 32,
                "memory": "480G",
                "gpu": "NVIDIA A100",
                "cpus_per_gpu": 8,
            }
        },
        "defaults": {"partition": "gpu", "nodes": "a100"},
        "gpu_request": {"dialect": "gpus-per-node"},
    }
    profile = Profile.read(values | sections)
    documented = Attestation("documented", "https://site.example/docs")
    return Cluster(
        profile,
        {(key,): documented for key in values} | {("partitions", "gone", "time_max"): documented},
    )


def live(*partitions: LivePartition, **facts: object) -> LiveCluster:
    return LiveCluster(partitions=partitions, **facts)  # type: ignore[arg-type]


def test_limits_of_slurm_win_and_say_so() -> None:
    merged = merge(
        site(),
        live(
            LivePartition(name="gpu", default=True, up=True, time_max=86400, nodes=(A100,)),
            version=(23, 2),
        ),
    )
    gpu = merged.profile.partitions["gpu"]
    assert (gpu.time_max, gpu.nodes_max, gpu.default, gpu.nodes) == (86400, 4, True, "a100")
    assert merged.evidence("partitions", "gpu", "time_max") == "scontrol show partition gpu"
    assert (
        merged.evidence("partitions", "gpu", "nodes_max")
        == "profile site: documented, https://site.example/docs"
    )
    assert merged.profile.slurm.version == "23.02"
    assert merged.evidence("slurm", "version") == "scontrol show config"
    assert merged.profile.gpu_request.dialect == "gpus-per-node"


def test_a_partition_that_is_gone_is_dropped_and_a_new_one_added() -> None:
    new = LivePartition(name="new", up=True, time_max=60, nodes=(A100,))
    merged = merge(site(), live(LivePartition(name="gpu", up=True, nodes=(A100,)), new))
    assert list(merged.profile.partitions) == ["gpu", "new"]
    assert merged.profile.partitions["new"].nodes == "a100"  # nodes that are alike are one kind
    assert not [path for path in merged.origins if "gone" in path]
    larger = replace(new, nodes=(replace(A100, count=1, memory=420 * GIB),))
    gpu = LivePartition(name="gpu", up=True, nodes=(A100,))
    both = merge(site(), live(gpu, larger)).profile
    assert both.nodes["a100"].memory == 400 * GIB  # what every node of the kind has


def test_a_node_shows_what_it_has_and_the_profile_what_a_job_can_have() -> None:
    bigger = replace(A100, cpus=64, memory=512 * GIB)
    shape = merge(site(), live(LivePartition(name="gpu", nodes=(bigger,)))).profile.nodes["a100"]
    assert (shape.cpus, shape.memory) == (32, 480 * GIB)
    smaller = merge(site(), live(LivePartition(name="gpu", nodes=(replace(A100, cpus=30),))))
    assert (smaller.profile.nodes["a100"].cpus, smaller.profile.nodes["a100"].memory) == (
        30,
        400 * GIB,
    )
    assert smaller.evidence("nodes", "a100", "memory") == "sinfo -p gpu"
    assert (
        smaller.evidence("nodes", "a100", "gpu")
        == "profile site: documented, https://site.example/docs"
    )


def test_two_partitions_with_unlike_nodes_get_two_kinds() -> None:
    h100 = LiveNodes(count=2, cpus=96, threads_per_core=2, memory=1000 * GIB, gpus=(("h100", 8),))
    profile = site(partitions={"dev": {"nodes": "a100"}, "gpu": {"nodes": "a100"}})
    merged = merge(
        profile,
        live(LivePartition(name="dev", nodes=(h100,)), LivePartition(name="gpu", nodes=(A100,))),
    ).profile
    assert (merged.partitions["gpu"].nodes, merged.partitions["dev"].nodes) == ("a100", "a100-dev")
    dev = merged.nodes["a100-dev"]
    assert (merged.nodes["a100"].gpus, dev.gpus, dev.cpus, dev.gpu) == (4, 8, 96, "h100")


def test_features_choose_among_the_nodes_of_one_partition() -> None:
    nodes = {
        "small": {"gpus": 4, "select": {"constraint": "gpu&hbm40g"}},
        "large": {"gpus": 4, "select": {"constraint": "gpu&hbm80g"}},
    }
    groups = tuple(
        replace(A100, cpus=cpus, features=("gpu", feature))
        for cpus, feature in ((64, "hbm40g"), (128, "hbm80g"))
    )
    profile = site(nodes=nodes, partitions={"gpu": {}}, defaults={"partition": "gpu"})
    merged = merge(profile, live(LivePartition(name="gpu", nodes=groups))).profile
    assert {name: shape.cpus for name, shape in merged.nodes.items()} == {"small": 64, "large": 128}
    assert merged.partitions["gpu"].nodes is None


def test_whole_nodes() -> None:
    shared = LivePartition(name="gpu", exclusive=False, nodes=(A100,))
    assert merge(site(), live(shared)).profile.partitions["gpu"].whole_nodes is False
    # A plugin of the site, or its bill, may make whole what Slurm would share.
    whole = site(partitions={"gpu": {"nodes": "a100", "whole_nodes": "true"}})
    assert merge(whole, live(shared)).profile.partitions["gpu"].whole_nodes is True
    texts = {"config": "SelectType = select/linear", "partitions": "PartitionName=gpu"}
    linear = merge(site(), discover.from_texts(texts))
    assert linear.profile.partitions["gpu"].whole_nodes is True


def test_the_qos_of_a_partition_limits_every_job_in_it() -> None:
    qos = (
        LiveQos(name="Tight", time_max=600, nodes_max=9, gpus_max=8),
        LiveQos(name="normal"),
        LiveQos(name="of-others"),
    )
    facts = {"qos": qos, "associations": (Association(account="a", qos=("normal",)),)}
    merged = merge(
        site(qos={"old": {"time_max": "10"}}),
        live(
            LivePartition(name="gpu", time_max=86400, nodes_max=4, qos="tight", nodes=(A100,)),
            **facts,
        ),
    )
    gpu = merged.profile.partitions["gpu"]
    assert (gpu.time_max, gpu.nodes_max, gpu.gpus_max) == (600, 4, 8)
    assert (
        merged.evidence("partitions", "gpu", "time_max")
        == "sacctmgr show qos tight, the QOS of the partition"
    )
    assert list(merged.profile.qos) == ["normal"]


def test_memory_is_said_in_one_way() -> None:
    profile = site(memory={"default_per_node": "8G", "request": "all"})
    merged = merge(
        profile, live(LivePartition(name="gpu", nodes=(A100,)), default_memory_per_cpu=2 * GIB)
    )
    assert (merged.profile.memory.default_per_cpu, merged.profile.memory.default_per_node) == (
        2 * GIB,
        None,
    )
    assert merged.profile.memory.request == "all"
    own = merge(
        profile,
        live(
            LivePartition(name="gpu", default_memory_per_node=GIB, nodes=(A100,)),
            default_memory_per_cpu=2 * GIB,
        ),
    )
    assert (own.profile.memory.default_per_cpu, own.profile.memory.default_per_node) == (None, GIB)
    assert own.evidence("memory", "default_per_node") == "scontrol show partition"


@pytest.mark.parametrize(
    "version", sorted(path.name for path in RECORDED.iterdir() if path.is_dir())
)
def test_a_site_without_a_profile(version: str) -> None:
    merged = merge(None, recorded(version))
    profile = merged.profile
    assert (profile.name, profile.title, profile.gpu_request.dialect, profile.gpu_request.type) == (
        "recorded",
        "Slurm cluster recorded",
        "gres",
        None,
    )
    assert profile.defaults.partition == "mixed"  # most GPU nodes; the default one has none
    shapes = {name: part.nodes for name, part in profile.partitions.items()}
    assert shapes["gpu"] == shapes["debug"] == shapes["closed"] == "a100"
    assert (profile.nodes["a100"].gpus, profile.nodes["a100"].memory) == (4, 515000 * MIB)
    assert profile.nodes[str(shapes["batch"])].gpus == 0
    assert shapes["empty"] is None
    assert profile.partitions["debug"].time_max == 1200  # 30 minutes of its own, 20 of its QOS
    assert profile.partitions["whole"].whole_nodes is True
    assert profile.account.list_command is not None
    assert merged.evidence("nodes", "a100", "gpus") == "sinfo -p mixed"


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_profile_takes_what_another_cluster_says(name: str) -> None:
    """Whatever Slurm says of whatever site, the outcome is a valid profile, and its partitions name
    kinds of nodes that are there.
    """
    merged = merge(load.load(name, {}), recorded())
    assert set(merged.profile.partitions) == {each.name for each in recorded().partitions or ()}
    assert {part.nodes for part in merged.profile.partitions.values()} - {None} <= set(
        merged.profile.nodes
    )
    assert merged.profile.defaults.partition in merged.profile.partitions
