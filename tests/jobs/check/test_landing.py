"""Where a job lands that names no partition, and what goes with it: limits that a QOS lifts, accounts and QOS of other nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from check_scene import AROUND, GIB, LIVE, PROFILE, SPEC, Scene, nodes, partition

from hpctrain.clusters import slurm_text
from hpctrain.clusters.live import Association, LivePartition, LiveQos
from hpctrain.clusters.merge import merge
from hpctrain.jobs.check import check
from hpctrain.jobs.finding import Finding

ANY: dict[str, Any] = {"partition": None}


def the(scene: Scene, id_: str) -> Finding:
    (found,) = (finding for finding in scene.findings() if finding.id == id_)
    return found


def merged_ids(spec: dict[str, Any], profile: dict[str, Any], *partitions: LivePartition) -> list[str]:
    """As `hpctrain check` does it: with what Slurm says laid over the profile."""
    live = replace(LIVE, partitions=partitions)
    found = check(
        replace(SPEC, **spec), cluster=merge(Scene(profile=profile).cluster(), live), live=live, around=AROUND, origins={}
    )  # fmt: skip
    return [finding.id for finding in found]


# -- the constraint finds the partition (IDRIS) ---------------------------------------------------------------------------

IDRIS: dict[str, Any] = {
    "partitions": {"p13": {"nodes": "v100", "default": True, "time_max": "4-00:00:00"}, "p5": {"nodes": "a100", "time_max": "20:00:00"}},
    "nodes": {
        "v100": {"gpus": 4, "cpus": 40, "select": {"qos": ["normal"]}},
        "v100_32": {"gpus": 4, "cpus": 40, "select": {"constraint": "v100-32g"}},
        "a100": {"gpus": 8, "cpus": 64, "select": {"constraint": "a100", "qos": ["normal-a100"]}},
    },
    "qos": {"normal": {}, "normal-a100": {}},
    "defaults": {"nodes": "v100"},
}
P13 = partition(name="p13", time_max=4 * 86_400, nodes=(nodes(cpus=40, gpus=(("", 4),), features=("v100", "v100-32g")),))
P5 = partition(name="p5", default=False, time_max=20 * 3600, nodes=(nodes(gpus=(("", 8),), features=("a100",)),))
ON_A100: dict[str, Any] = {"partition": None, "constraint": "a100", "gpus_per_node": 8, "cpus_per_gpu": 8, "qos": None}


def test_the_default_partition_has_no_say_where_the_constraint_finds_another() -> None:
    live = {"partitions": (P13, P5)}
    assert Scene(spec=ON_A100, profile=IDRIS, live=live).findings() == []
    found = the(Scene(spec={**ON_A100, "time_s": 21 * 3600}, profile=IDRIS, live=live), "time-limit")
    assert found.what == "time 21:00:00 is more than partition p5 allows: 20:00:00"
    assert Scene(spec={**ON_A100, "constraint": "v100-32g"}, profile=IDRIS, live=live).ids() == ["gpus-per-node"]


def test_without_slurm_the_profile_says_where_such_nodes_are() -> None:
    assert Scene(spec=ON_A100, profile=IDRIS, live=None).findings() == []
    found = the(Scene(spec={**ON_A100, "time_s": 21 * 3600}, profile=IDRIS, live=None), "time-limit")
    assert found.what == "time 21:00:00 is more than partition p5 allows: 20:00:00"
    four_days = {**ON_A100, "constraint": "v100-32g", "gpus_per_node": 4, "time_s": 5 * 86_400}
    assert "partition p13" in the(Scene(spec=four_days, profile=IDRIS, live=None), "time-limit").what


def test_a_slurm_that_shows_no_features_leaves_it_to_the_profile() -> None:
    bare = tuple(replace(each, nodes=(replace(each.nodes[0], features=()),)) for each in (P13, P5))
    found = the(Scene(spec={**ON_A100, "time_s": 21 * 3600}, profile=IDRIS, live={"partitions": bare}), "time-limit")
    assert found.what.startswith("time 21:00:00 is more than partition p5 allows")


@pytest.mark.parametrize("profile", [None, {}])
def test_elsewhere_a_constraint_does_not_move_the_job_out_of_the_default_partition(profile: dict[str, Any] | None) -> None:
    found = the(Scene(spec=ON_A100, profile=profile, live={"partitions": (P13, P5)}), "gpus-per-node")
    assert "partition p13" in found.what


def test_a_constraint_with_alternatives_is_not_judged_by_one() -> None:
    either = Scene(spec={**ON_A100, "constraint": "[v100|a100]", "time_s": 2 * 86_400}, profile=IDRIS, live={"partitions": (P13, P5)})
    assert either.ids() == []
    # What neither has is known.
    assert replace(either, spec={**either.spec, "mem_bytes": 481 * GIB}).ids() == ["memory-limit"]


def test_the_qos_of_other_nodes_where_accounting_says_nothing() -> None:
    found = the(Scene(spec={**ON_A100, "qos": "normal"}, profile=IDRIS, live=None), "qos-not-allowed")
    assert (found.level, found.what) == ("error", "a100 nodes do not go with the QOS 'normal'")
    assert found.fix == "hpctrain render --qos normal-a100"
    assert the(Scene(spec={**ON_A100, "qos": "normal"}, profile=IDRIS, live=None, level="seen"), "qos-not-allowed").level == "warning"
    assert Scene(spec={**ON_A100, "qos": "normal-a100"}, profile=IDRIS, live=None).ids() == []
    # Accounting knows better.
    assert Scene(spec={**ON_A100, "qos": "normal"}, profile=IDRIS, live={"partitions": (P13, P5)}).ids() == []


# -- constraint and QOS find it (NERSC) -----------------------------------------------------------------------------------

NERSC: dict[str, Any] = {
    "partitions": {},
    "nodes": {
        "a100": {"gpus": 4, "cpus": 128, "select": {"constraint": "gpu"}},
        "a100_80": {"gpus": 4, "cpus": 128, "select": {"constraint": "gpu&hbm80g"}},
    },
    "defaults": {"nodes": "a100"},
}
GPU = nodes(cpus=128, features=("gpu", "a100"))
MILAN = partition(name="milan", time_max=3600, nodes_max=1, exclusive=True, nodes=(nodes(cpus=256, gpus=(), features=("cpu",)),))
SHARED = partition(name="shared", default=False, time_max=2 * 3600, allow_qos=("long",), nodes=(GPU,))
WHOLE = partition(name="whole", default=False, nodes=(GPU, nodes(cpus=128, memory=100 * GIB, features=("gpu", "hbm80g"))))
ALL = {"partitions": (MILAN, SHARED, WHOLE)}
ON_GPU: dict[str, Any] = {"partition": None, "constraint": "gpu"}


def test_of_several_partitions_none_has_a_limit_and_their_nodes_count() -> None:
    both = {"partitions": (MILAN, replace(SHARED, allow_qos=None), WHOLE)}
    assert Scene(spec=ON_GPU, profile=NERSC, live=both).findings() == []
    assert Scene(spec={**ON_GPU, "gpus_per_node": 8, "cpus_per_gpu": 8}, profile=NERSC, live=both).ids() == ["gpus-per-node"]
    found = the(Scene(spec={**ON_GPU, "constraint": "gpu&hbm80g"}, profile=NERSC, live=both), "memory-limit")
    assert "sinfo -p whole" in found.evidence
    typed = the(Scene(spec={**ON_GPU, "gpu_type": "h100"}, profile=NERSC, live=both), "gpu-type-unknown")
    assert typed.what.endswith("in partition shared or whole")


def test_the_qos_chooses_among_them() -> None:
    found = the(Scene(spec={**ON_GPU, "qos": "long"}, profile=NERSC, live={**ALL, "partitions": (MILAN, SHARED)}), "time-limit")
    assert found.what == "time 04:00:00 is more than partition shared allows: 02:00:00"
    found = the(Scene(spec={**ON_GPU, "qos": "normal", "time_s": 25 * 3600}, profile=NERSC, live=ALL), "time-limit")
    assert found.what == "time 1-01:00:00 is more than partition whole allows: 1-00:00:00"


def test_merged_facts_of_a_partition_that_nobody_asked_for_do_not_count() -> None:
    both = (MILAN, replace(SHARED, allow_qos=None), WHOLE)
    spec = {**ON_GPU, "mem_bytes": 90 * GIB, "time_s": 23 * 3600}
    assert merged_ids(spec, NERSC, *both) == []
    assert "time-limit" in merged_ids(spec, NERSC, *both[:2])


def test_a_feature_that_no_node_has_and_one_that_no_gpu_node_has() -> None:
    found = the(Scene(spec={**ON_GPU, "constraint": "gpuu"}, profile=NERSC, live=ALL), "constraint-unknown")
    assert (found.level, found.what) == ("error", "no node here has the feature 'gpuu'")
    assert "gpus-per-node" in Scene(spec={**ON_GPU, "constraint": "cpu"}, profile=NERSC, live=ALL).ids()
    alone = the(Scene(spec={**ON_GPU, "constraint": "cpu"}, profile=NERSC, live=None), "constraint-unknown")
    assert (alone.level, alone.what) == ("warning", "no GPU node that is known here is had by the constraint 'cpu'")
    assert alone.fix == "hpctrain render --constraint gpu"
    assert Scene(spec={**ON_GPU, "constraint": "hbm80g&gpu&nvme"}, profile=NERSC, live=None).ids() == []
    # Some of these need no constraint.
    assert Scene(spec={**ON_GPU, "constraint": "nvme", "cpus_per_gpu": 8}, profile=IDRIS, live=None).ids() == []


# -- the QOS finds it (BSC) -----------------------------------------------------------------------------------------------

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
    # What was only read off Slurm makes no site that chooses.
    assert merged_ids({**ANY, "time_s": 2 * 86_400}, BSC, GPP, ACC) == []
    assert "gpus-per-node" in merged_ids(ANY, {**BSC, "partitions": {}}, GPP, ACC)


@pytest.mark.parametrize("live", [None, {"qos": (LiveQos(name="normal", cpus_max=640),)}])
def test_the_cores_of_all_nodes_against_the_qos(live: dict[str, Any] | None) -> None:
    assert Scene(spec={"nodes": 10}, profile={"qos": BSC["qos"]}, live=live).ids() == []
    found = the(Scene(spec={"nodes": 11}, profile={"qos": BSC["qos"]}, live=live), "cores-limit")
    assert (found.level, found.what) == ("error", "704 cores on 11 nodes, and QOS normal allows 640 to a job")
    assert found.fix == "hpctrain render --nodes 10"


def test_sacctmgr_shows_the_cores_of_a_qos() -> None:
    row = "normal|02:00:00|cpu=640,node=9||||node=2|DenyOnLimit,PartitionTimeLimit\n"
    (found,) = slurm_text.parse_qos(row)
    assert (found.cpus_max, found.nodes_max, found.nodes_min, found.flags) == (640, 9, 2, ("DenyOnLimit", "PartitionTimeLimit"))


@pytest.mark.parametrize(("level", "expected"), [("documented", "error"), ("seen", "warning")])
def test_the_cores_that_a_site_wants_with_each_gpu(level: str, expected: str) -> None:
    wants = {"nodes": {"a100": {**PROFILE["nodes"]["a100"], "cpus_per_gpu": 16, "cpus_per_gpu_required": True}}}
    found = the(Scene(spec={"cpus_per_task": 8}, profile=wants, level=level), "cores-few")
    assert (found.level, found.what) == (expected, "8 cores for 4 GPUs of a node, and this site wants 16 for each")
    assert found.fix == "hpctrain render --cpus-per-task 64"
    assert Scene(spec={"cpus_per_task": 64}, profile=wants, level=level).ids() == []
    # A number to ask for is no rule.
    for said in (None, False):
        advice = {"nodes": {"a100": {**PROFILE["nodes"]["a100"], "cpus_per_gpu": 16, "cpus_per_gpu_required": said}}}
        assert Scene(spec={"cpus_per_task": 8}, profile=advice).ids() == []


# -- a QOS that lifts the partition's limits ------------------------------------------------------------------------------

THREE_DAYS = {"qos": "long", "time_s": 3 * 86_400}


def test_a_qos_may_lift_the_time_of_the_partition() -> None:
    lifting = LiveQos(name="long", time_max=4 * 86_400, flags=("DenyOnLimit", "PartitionTimeLimit"))
    assert Scene(spec=THREE_DAYS).ids() == ["time-limit"]
    assert Scene(spec=THREE_DAYS, live={"qos": (lifting,)}).ids() == []
    assert "QOS long allows" in the(Scene(spec={**THREE_DAYS, "time_s": 5 * 86_400}, live={"qos": (lifting,)}), "time-limit").what
    known = {"qos": {"long": {"time_max": "4-00:00:00", "lifts_partition_time": True}}}
    assert Scene(spec=THREE_DAYS, profile=known, live=None).ids() == []
    # Slurm's word wins, in both directions.
    assert Scene(spec=THREE_DAYS, profile=known, live={"qos": (replace(lifting, flags=()),)}).ids() == ["time-limit"]
    cluster = Scene(profile=known).cluster()
    laid = [merge(cluster, replace(LIVE, qos=(replace(lifting, flags=flags),))) for flags in ((), ("PartitionTimeLimit",))]
    assert [each.profile.qos["long"].lifts_partition_time for each in laid] == [False, True]


def test_a_qos_may_lift_the_nodes_of_the_partition() -> None:
    narrow = {"partitions": (partition(nodes_max=8),)}
    assert Scene(spec={"nodes": 9}, live=narrow).ids() == ["nodes-limit"]
    assert Scene(spec={"nodes": 9}, live={**narrow, "qos": (LiveQos(name="normal", flags=("PartitionMaxNodes",)),)}).ids() == []


# -- accounts -------------------------------------------------------------------------------------------------------------

TIED = (
    Association(account="proj_c", partition="cpu", qos=("normal",)),
    Association(account="proj_b", partition="gpu", qos=("normal",)),
    Association(account="proj_b", partition="debug", qos=("normal",)),
)


def test_an_account_that_is_mine_in_other_partitions_only() -> None:
    assert Scene(live={"associations": TIED}).ids() == []
    found = the(Scene(spec={"account": "Proj_C"}, live={"associations": TIED}), "account-not-allowed")
    assert (found.level, found.what) == ("error", "partition gpu does not take the account 'Proj_C'")
    assert found.evidence.endswith("sacctmgr show associations: it is yours in cpu only")
    assert "proj_b" in found.fix
    # Delta has gpuA100x4, and sacctmgr says gpua100x4.
    large = partition(name="GPU")
    assert Scene(spec={"partition": "GPU"}, live={"associations": TIED, "partitions": (large,)}).ids() == []
    short = (replace(TIED[1], time_max=3600),)
    assert Scene(spec={"partition": "GPU"}, live={"associations": short, "partitions": (large,)}).ids() == ["time-limit"]
    assert Scene(live={"associations": (replace(short[0], partition="debug"), TIED[1])}).ids() == []
    # Nothing to type that would be refused again.
    alone = the(Scene(spec={"account": "proj_c"}, live={"associations": TIED[:1]}), "account-not-allowed")
    assert alone.fix == "ask your project's leader, or the site, for an account"
    debug = the(Scene(spec={"account": "proj_b"}, live={"associations": TIED[2:]}), "account-not-allowed")
    assert debug.fix == "hpctrain render --partition debug"
    everywhere = (*TIED, Association(account="proj_c", qos=("normal",)))
    assert Scene(spec={"account": "proj_c"}, live={"associations": everywhere}).ids() == []
    assert Scene(spec={"account": "proj_c"}, live={"associations": TIED, "enforces_accounts": False}).ids() == []


def test_a_default_account_that_the_partition_does_not_take_is_no_comfort() -> None:
    live = {"associations": TIED, "default_account": "proj_c"}
    scene = Scene(spec={"account": None, "qos": None}, live=live)
    assert the(scene, "account-missing").level == "error"
    assert the(scene, "account-missing").fix.endswith("--account proj_b")
    found = the(scene, "account-not-allowed")
    assert found.evidence.startswith("sacctmgr: your default account is proj_c; ")
    good = Scene(spec={"account": None, "qos": None}, live={**live, "default_account": "proj_b"})
    assert [(each.id, each.level) for each in good.findings()] == [("account-missing", "warning")]
    other_cluster = Scene(spec={"account": None, "qos": None}, live={"default_account": "proj_x"})
    assert [(each.id, each.level) for each in other_cluster.findings()] == [("account-missing", "error")]


DELTA: dict[str, Any] = {
    "nodes": {"a100": {**PROFILE["nodes"]["a100"], "select": {"account_suffix": "-gpu"}}},
    "account": {"required": True, "pattern": "[a-z]{4}-delta-(gpu|cpu)"},
}


@pytest.mark.parametrize(("account", "typed"), [("abcd-delta-cpu", "abcd-delta-gpu"), ("abcd-delta", "abcd-delta-gpu")])
def test_an_account_of_cpu_nodes(account: str, typed: str) -> None:
    found = the(Scene(spec={"account": account}, profile=DELTA, live=None), "account-nodes")
    assert (found.level, found.fix) == ("error", f"hpctrain render --account {typed}")
    assert Scene(spec={"account": "abcd-delta-gpu"}, profile=DELTA, live=None).ids() == []


def test_a_default_account_of_other_nodes() -> None:
    mine = (Association(account="abcd-delta-cpu", qos=("normal",)), Association(account="abcd-delta-gpu", qos=("normal",)))
    scene = Scene(spec={"account": None}, profile=DELTA, live={"associations": mine, "default_account": "abcd-delta-cpu"})
    assert the(scene, "account-nodes").evidence.startswith("sacctmgr: your default account is abcd-delta-cpu; ")
