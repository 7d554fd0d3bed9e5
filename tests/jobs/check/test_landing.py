"""Where a job lands that names no partition, and what goes with it: limits that a QOS lifts,
accounts and QOS of other nodes.
"""

from dataclasses import replace
from typing import Any

import pytest

from hpctrain.clusters.live import Association, LiveQos
from hpctrain.clusters.merge import merge
from tests.jobs.check.check_scene import GIB, LIVE, PROFILE, Near, Scene, nodes, partition

ANY: dict[str, Any] = {"partition": None}
S = Scene


# -- the constraint finds the partition (IDRIS) ----------------------------------------------------

IDRIS: dict[str, Any] = {
    "partitions": {
        "p13": {"nodes": "v100", "default": True, "time_max": "4-00:00:00"},
        "p5": {"nodes": "a100", "time_max": "20:00:00"},
    },
    "nodes": {
        "v100": {"gpus": 4, "cpus": 40, "select": {"qos": ["normal"]}},
        "v100_32": {"gpus": 4, "cpus": 40, "select": {"constraint": "v100-32g"}},
        "a100": {"gpus": 8, "cpus": 64, "select": {"constraint": "a100", "qos": ["normal-a100"]}},
    },
    "qos": {"normal": {}, "normal-a100": {}},
    "defaults": {"nodes": "v100"},
}
P13 = partition(
    name="p13",
    time_max=4 * 86_400,
    nodes=(nodes(cpus=40, gpus=(("", 4),), features=("v100", "v100-32g")),),
)
P5 = partition(
    name="p5",
    default=False,
    time_max=20 * 3600,
    nodes=(nodes(gpus=(("", 8),), features=("a100",)),),
)
ON_A100: dict[str, Any] = {
    "partition": None,
    "constraint": "a100",
    "gpus_per_node": 8,
    "cpus_per_gpu": 8,
    "qos": None,
}


IDRIS_LIVE = {"partitions": (P13, P5)}
BARE = {
    "partitions": tuple(
        replace(each, nodes=(replace(each.nodes[0], features=()),)) for each in (P13, P5)
    )
}
LONG = {**ON_A100, "time_s": 21 * 3600}
ON_V100_32: dict[str, Any] = {**ON_A100, "constraint": "v100-32g"}
EITHER = {**ON_A100, "constraint": "[v100|a100]", "time_s": 2 * 86_400}
NORMAL = {**ON_A100, "qos": "normal"}
OF_P5 = "time 21:00:00 is more than partition p5 allows: 20:00:00"
BY_CONSTRAINT = [
    Near(
        why="the default has no say",
        scene=S(spec=ON_A100, profile=IDRIS, live=IDRIS_LIVE),
        only=(),
    ),
    Near(
        why="the nodes of the partition that is found",
        scene=S(spec=ON_V100_32, profile=IDRIS, live=IDRIS_LIVE),
        only=("gpus-per-node",),
    ),
    Near(why="no Slurm", scene=S(spec=ON_A100, profile=IDRIS, live=None), only=()),
    Near(
        why="elsewhere a constraint chooses no partition: no profile",
        scene=S(spec=ON_A100, profile=None, live=IDRIS_LIVE),
        has="gpus-per-node",
        what="partition p13",
    ),
    Near(
        why="elsewhere a constraint chooses no partition: another profile",
        scene=S(spec=ON_A100, live=IDRIS_LIVE),
        has="gpus-per-node",
        what="partition p13",
    ),
    Near(
        why="a constraint with alternatives is not judged by one",
        scene=S(spec=EITHER, profile=IDRIS, live=IDRIS_LIVE),
        only=(),
    ),
    Near(
        why="what neither alternative has",
        scene=S(spec={**EITHER, "mem_bytes": 481 * GIB}, profile=IDRIS, live=IDRIS_LIVE),
        only=("memory-limit",),
    ),
    Near(
        why="the QOS of other nodes",
        scene=S(spec=NORMAL, profile=IDRIS, live=None),
        has="qos-not-allowed",
        level="error",
        what="a100 nodes do not accept the QOS 'normal'",
        fix="hpctrain render --qos normal-a100",
    ),
    Near(
        why="the QOS of other nodes, as it was seen",
        scene=S(spec=NORMAL, profile=IDRIS, live=None, level="seen"),
        has="qos-not-allowed",
        level="warning",
    ),
    Near(
        why="the QOS of these nodes",
        scene=S(spec={**ON_A100, "qos": "normal-a100"}, profile=IDRIS, live=None),
        only=(),
    ),
    Near(
        why="accounting knows better",
        scene=S(spec=NORMAL, profile=IDRIS, live=IDRIS_LIVE),
        only=(),
    ),
]


# -- constraint and QOS find it (NERSC) ------------------------------------------------------------

NERSC: dict[str, Any] = {
    "partitions": {},
    "nodes": {
        "a100": {"gpus": 4, "cpus": 128, "select": {"constraint": "gpu"}},
        "a100_80": {"gpus": 4, "cpus": 128, "select": {"constraint": "gpu&hbm80g"}},
    },
    "defaults": {"nodes": "a100"},
}
GPU = nodes(cpus=128, features=("gpu", "a100"))
MILAN = partition(
    name="milan",
    time_max=3600,
    nodes_max=1,
    exclusive=True,
    nodes=(nodes(cpus=256, gpus=(), features=("cpu",)),),
)
SHARED = partition(
    name="shared", default=False, time_max=2 * 3600, allow_qos=("long",), nodes=(GPU,)
)
WHOLE = partition(
    name="whole",
    default=False,
    nodes=(GPU, nodes(cpus=128, memory=100 * GIB, features=("gpu", "hbm80g"))),
)
ALL = {"partitions": (MILAN, SHARED, WHOLE)}
ON_GPU: dict[str, Any] = {"partition": None, "constraint": "gpu"}


BOTH = {"partitions": (MILAN, replace(SHARED, allow_qos=None), WHOLE)}
BY_BOTH = [
    Near(
        why="of several partitions none has a limit",
        scene=S(spec=ON_GPU, profile=NERSC, live=BOTH),
        only=(),
    ),
    Near(
        why="the nodes of several partitions count",
        scene=S(spec={**ON_GPU, "gpus_per_node": 8, "cpus_per_gpu": 8}, profile=NERSC, live=BOTH),
        only=("gpus-per-node",),
    ),
    Near(
        why="one partition has nodes with both features",
        scene=S(spec={**ON_GPU, "constraint": "gpu&hbm80g"}, profile=NERSC, live=BOTH),
        has="memory-limit",
        evidence="sinfo",
    ),
    Near(
        why="a feature that no GPU node has",
        scene=S(spec={**ON_GPU, "constraint": "cpu"}, profile=NERSC, live=ALL),
        has="gpus-per-node",
    ),
    Near(
        why="some nodes need no constraint",
        scene=S(spec={**ON_GPU, "constraint": "nvme", "cpus_per_gpu": 8}, profile=IDRIS, live=None),
        only=(),
    ),
]


# -- the QOS finds it (BSC) ------------------------------------------------------------------------

BSC: dict[str, Any] = {
    "partitions": {"acc": {"nodes": "h100"}},
    "nodes": {"h100": {"gpus": 4, "cpus": 64, "cpus_per_gpu": 16}},
    "defaults": {"nodes": "h100"},
    "qos": {"normal": {"cpus_max": 640}, "long": {}},
    "qos_required": True,
}
GPP = partition(name="gpp", nodes=(nodes(cpus=112, gpus=()),))
ACC = partition(name="acc", default=False, time_max=3 * 86_400)


def test_where_the_qos_finds_the_partition_the_default_has_no_say() -> None:
    live = {"partitions": (GPP, ACC)}
    assert Scene(spec={**ANY, "time_s": 2 * 86_400}, profile=BSC, live=live).findings() == []
    usual = {**BSC, "qos_required": False}
    assert "gpus-per-node" in Scene(spec=ANY, profile=usual, live=live).ids()


@pytest.mark.parametrize(("level", "expected"), [("documented", "error"), ("seen", "warning")])
def test_the_cores_that_a_site_wants_with_each_gpu(level: str, expected: str) -> None:
    wants = {
        "nodes": {
            "a100": {**PROFILE["nodes"]["a100"], "cpus_per_gpu": 16, "cpus_per_gpu_required": True}
        }
    }
    Near(
        why="",
        scene=Scene(spec={"cpus_per_task": 8}, profile=wants, level=level),
        has="cores-few",
        level=expected,
        what="8 cores for 4 processes",
        fix="hpctrain render --cpus-per-task 64",
    ).look()
    assert Scene(spec={"cpus_per_task": 64}, profile=wants, level=level).ids() == []
    # A number to ask for is no rule.
    for said in (None, False):
        advice = {
            "nodes": {
                "a100": {
                    **PROFILE["nodes"]["a100"],
                    "cpus_per_gpu": 16,
                    "cpus_per_gpu_required": said,
                }
            }
        }
        assert Scene(spec={"cpus_per_task": 8}, profile=advice).ids() == []


# -- a QOS that lifts the partition's limits -------------------------------------------------------

THREE_DAYS = {"qos": "long", "time_s": 3 * 86_400}


LIFTING = LiveQos(name="long", time_max=4 * 86_400, flags=("DenyOnLimit", "PartitionTimeLimit"))
LIFTS = {"qos": {"long": {"time_max": "4-00:00:00", "lifts_partition_time": True}}}
NARROW = {"partitions": (partition(nodes_max=8),)}


def of_its_qos(*flags: str) -> dict[str, Any]:
    own = LiveQos(name="part", time_max=3600, gpus_max=4)
    job = LiveQos(name="normal", flags=flags)
    return {"partitions": (partition(qos="part"),), "qos": (job, own)}


LIFTED = [
    Near(why="not lifted", scene=S(spec=THREE_DAYS), only=("time-limit",)),
    Near(why="lifted", scene=S(spec=THREE_DAYS, live={"qos": (LIFTING,)}), only=()),
    Near(
        why="the limit of the QOS stays",
        scene=S(spec={**THREE_DAYS, "time_s": 5 * 86_400}, live={"qos": (LIFTING,)}),
        has="time-limit",
        what="QOS long allows",
    ),
    Near(
        why="no Slurm: the profile lifts",
        scene=S(spec=THREE_DAYS, profile=LIFTS, live=None),
        only=(),
    ),
    Near(
        why="Slurm's word wins",
        scene=S(spec=THREE_DAYS, profile=LIFTS, live={"qos": (replace(LIFTING, flags=()),)}),
        only=("time-limit",),
    ),
    Near(why="nodes", scene=S(spec={"nodes": 9}, live=NARROW), only=("nodes-limit",)),
    Near(
        why="a QOS that only Slurm knows, which does not say whose it is",
        scene=S(
            spec={"qos": "mine"},
            live={
                "associations": None,
                "partitions": (partition(qos="part"),),
                "qos": (LiveQos(name="part"), LiveQos(name="mine", nodes_max=1)),
            },
        ),
        has="nodes-limit",
        what="QOS mine allows 1",
    ),
    Near(
        why="the limits of the partition's own QOS",
        scene=S(live=of_its_qos()),
        only=("time-limit", "gpus-limit"),
        evidence="sacctmgr show qos part, the QOS of the partition",
    ),
    Near(why="and a QOS above them", scene=S(live=of_its_qos("OverPartQOS")), only=()),
    Near(
        why="nodes, lifted",
        scene=S(
            spec={"nodes": 9},
            live={**NARROW, "qos": (LiveQos(name="normal", flags=("PartitionMaxNodes",)),)},
        ),
        only=(),
    ),
]


def test_what_a_qos_lifts_is_merged_into_the_profile() -> None:
    cluster = Scene(profile=LIFTS).cluster()
    laid = [
        merge(cluster, replace(LIVE, qos=(replace(LIFTING, flags=flags),)))
        for flags in ((), ("PartitionTimeLimit",))
    ]
    assert [each.profile.qos["long"].lifts_partition_time for each in laid] == [False, True]


# -- accounts --------------------------------------------------------------------------------------

TIED = (
    Association(account="proj_c", partition="cpu", qos=("normal",)),
    Association(account="proj_b", partition="gpu", qos=("normal",)),
    Association(account="proj_b", partition="debug", qos=("normal",)),
)


DELTA: dict[str, Any] = {
    "nodes": {"a100": {**PROFILE["nodes"]["a100"], "select": {"account_suffix": "-gpu"}}},
    "account": {"required": True, "pattern": "[a-z]{4}-delta-(gpu|cpu)"},
}
NO_ACCOUNT: dict[str, Any] = {"account": None, "qos": None}
OF_DELTA = (
    Association(account="abcd-delta-cpu", qos=("normal",)),
    Association(account="abcd-delta-gpu", qos=("normal",)),
)
LARGE = (partition(name="GPU"),)  # Delta has gpuA100x4, and sacctmgr says gpua100x4
SHORT = replace(TIED[1], time_max=3600)
EVERYWHERE = (*TIED, Association(account="proj_c", qos=("normal",)))
ACCOUNTS = [
    Near(why="mine here", scene=S(live={"associations": TIED}), only=()),
    Near(
        why="partitions are compared in lower case",
        scene=S(spec={"partition": "GPU"}, live={"associations": TIED, "partitions": LARGE}),
        only=(),
    ),
    Near(
        why="the limit of an association in lower case",
        scene=S(spec={"partition": "GPU"}, live={"associations": (SHORT,), "partitions": LARGE}),
        only=("time-limit",),
    ),
    Near(
        why="the limit of another partition's association",
        scene=S(live={"associations": (replace(SHORT, partition="debug"), TIED[1])}),
        only=(),
    ),
    Near(
        why="mine everywhere",
        scene=S(spec={"account": "proj_c"}, live={"associations": EVERYWHERE}),
        only=(),
    ),
    Near(
        why="associations are not enforced",
        scene=S(
            spec={"account": "proj_c"}, live={"associations": TIED, "enforces_accounts": False}
        ),
        only=(),
    ),
    Near(
        why="a default account that the partition takes",
        scene=S(spec=NO_ACCOUNT, live={"associations": TIED, "default_account": "proj_b"}),
        only=("account-missing",),
        level="warning",
    ),
    Near(
        why="a default account of another cluster",
        scene=S(spec=NO_ACCOUNT, live={"default_account": "proj_x"}),
        only=("account-missing",),
        level="error",
    ),
    Near(
        why="an account of CPU nodes",
        scene=S(spec={"account": "abcd-delta-cpu"}, profile=DELTA, live=None),
        has="account-nodes",
        level="error",
        what="-gpu",
    ),
    Near(
        why="a default account of other nodes",
        scene=S(
            spec={"account": None},
            profile=DELTA,
            live={"associations": OF_DELTA, "default_account": "abcd-delta-cpu"},
        ),
        has="account-nodes",
        evidence="sacctmgr: your default account is abcd-delta-cpu; ",
    ),
    Near(
        why="an account of these nodes",
        scene=S(spec={"account": "abcd-delta-gpu"}, profile=DELTA, live=None),
        only=(),
    ),
]


@pytest.mark.parametrize(
    "near", [*BY_CONSTRAINT, *BY_BOTH, *LIFTED, *ACCOUNTS], ids=lambda near: near.why
)
def test_landing(near: Near) -> None:
    near.look()
