"""The parsers of what Slurm says of itself: recorded answers of seven versions, and made-up ones for odd words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.clusters import slurm_text
from hpctrain.clusters.live import Association, LiveCluster, LiveNodes, LivePartition
from hpctrain.scheduler import discover

RECORDED = Path(__file__).parent / "recorded"
VERSIONS = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())
MIB, GIB = 1024**2, 1024**3


def recorded(version: str) -> LiveCluster:
    texts = {name: (RECORDED / version / f"{name}.txt").read_text() for name in discover.queries("ada", {})}
    return discover.from_texts(texts)


def test_there_are_versions() -> None:
    assert VERSIONS == ["20.11", "21.08", "22.05", "23.11", "24.11", "25.11", "26.05"]


@pytest.mark.parametrize("version", VERSIONS)
class TestRecorded:
    """Against the configuration of record_conf.py."""

    def test_config(self, version: str) -> None:
        live = recorded(version)
        assert (live.cluster_name, live.version) == ("recorded", tuple(int(part) for part in version.split(".")))
        assert (live.max_array_size, live.kill_wait, live.job_requeue) == (10001, 60, False)
        assert (live.enforces_accounts, live.enforces_part_limits, live.whole_nodes) == (True, True, False)
        assert (live.default_memory_per_cpu, live.default_memory_per_node) == (2000 * MIB, None)
        assert live.silent == ()

    def test_partitions(self, version: str) -> None:
        live = recorded(version)
        names = [each.name for each in live.partitions or ()]
        assert names == ["batch", "gpu", "whole", "mixed", "debug", "course", "closed", "secret", "empty"]
        assert [each.name for each in live.partitions or () if each.default] == ["batch"]
        assert [each.name for each in live.partitions or () if each.up is False] == ["closed"]
        assert [each.name for each in live.partitions or () if each.exclusive] == ["whole"]
        limits = {each.name: (each.time_max, each.time_default, each.nodes_max) for each in live.partitions or ()}
        assert limits["batch"] == (3 * 86400, 4 * 3600, None)
        assert limits["gpu"] == (86400, 3600, None)
        assert limits["whole"] == (12 * 3600, None, 2)
        assert limits["mixed"] == (None, None, None)
        assert limits["debug"] == (1800, None, 1)

    def test_memory_and_who_may(self, version: str) -> None:
        live = recorded(version)
        gpu, debug, course = (live.partition(name) for name in ("gpu", "debug", "course"))
        assert gpu is not None
        assert debug is not None
        assert course is not None
        assert (gpu.default_memory_per_node, gpu.default_memory_per_cpu, gpu.memory_max_per_node) == (64000 * MIB, None, 500000 * MIB)
        assert (debug.allow_accounts, debug.allow_qos, debug.qos) == (("proj_a", "proj_b"), ("normal", "dbg"), "dbg")
        assert (course.allow_accounts, course.deny_accounts, course.deny_qos) == (None, ("proj_b",), ("long",))
        batch = live.partition(None)
        assert batch is not None
        assert batch.default_memory_per_cpu == 1900 * MIB

    def test_nodes(self, version: str) -> None:
        live = recorded(version)
        gpu, mixed, empty = (live.partition(name) for name in ("gpu", "mixed", "empty"))
        assert gpu is not None
        assert mixed is not None
        assert empty is not None
        # gpu002 is drained; gpu004 has never answered, and shows its GPUs without their sockets.
        assert gpu.nodes == (
            LiveNodes(
                count=4, cpus=64, threads_per_core=1, memory=515000 * MIB, gpus=(("a100", 4),), features=("a100", "ib", "ssd"), idle=3
            ),
        )
        kinds = {group.gpus: (group.count, group.cpus, group.threads_per_core, len(group.features)) for group in mixed.nodes}
        assert kinds == {
            (): (2, 128, 1, 1),
            (("a100", 4),): (4, 64, 1, 3),
            (("nvidia_h100_80gb_hbm3", 8),): (2, 224, 2, 7),
            (("a100", 2), ("h100", 2)): (1, 32, 1, 0),
            (("", 4),): (1, 16, 1, 0),
            (("a100_1g.5gb", 7), ("a100_3g.20gb", 2), ("a100", 1)): (1, 64, 1, 0),
        }
        assert (empty.nodes, empty.gpus_max) == ((), None)
        assert mixed.gpus_max == 10

    def test_accounts_and_qos(self, version: str) -> None:
        live = recorded(version)
        assert live.default_account == "proj_b"
        assert live.associations is not None
        assert {each.account: each for each in live.associations} == {  # none of the cluster `other`
            "proj_a": Association(account="proj_a", partition="gpu", qos=("normal",), time_max=8 * 3600, submit_max=20),
            "proj_b": Association(account="proj_b", qos=("dbg", "long", "normal"), default_qos="normal"),
            "proj_c": Association(account="proj_c", qos=("normal",)),
        }
        qos = {each.name: each for each in live.qos or ()}
        assert set(qos) == {"normal", "dbg", "long", "big"}
        dbg, long = qos["dbg"], qos["long"]
        assert (dbg.time_max, dbg.gpus_max, dbg.nodes_max, dbg.jobs_max, dbg.submit_max) == (1200, 8, 2, 1, 2)
        assert dbg.flags == ("DenyOnLimit",)
        assert (long.time_max, long.gpus_max, long.gpus_max_per_user, qos["big"].nodes_min) == (7 * 86400, None, 16, 4)


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        # Made up, after words seen on several sites.
        ("(null)", ()),
        ("", ()),
        ("gpu:4", (("", 4),)),
        ("gpu:a100:4(S:0-1)", (("a100", 4),)),
        ("gpu:a100:4(S:0,2)", (("a100", 4),)),
        ("gpu:nvidia_a100-sxm4-40gb:8(S:0-7)", (("nvidia_a100-sxm4-40gb", 8),)),
        ("gpu:a100:2(S:0),gpu:h100:2(S:1)", (("a100", 2), ("h100", 2))),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", (("a100", 4),)),
        ("gpu:nvidia_a100_1g.10gb:7(S:0),nic:2", (("nvidia_a100_1g.10gb", 7),)),
        ("gpu:tesla:no_consume:2", (("tesla", 2),)),
        ("gpu:no_consume:2", (("", 2),)),
        ("gpu:4,mps:400,shard:16(S:0)", (("", 4),)),
        ("shard:a100:16", ()),
        ("craynetwork:4,hbm:0", ()),
        ("gpu:0", ()),
        ("gpu:mi250:8(S:0-3),license:1", (("mi250", 8),)),
        ("fpga:4,ngpu:2", ()),
    ],
)
def test_gpus(gres: str, expected: tuple[tuple[str, int], ...]) -> None:
    assert slurm_text.gpus_in(gres) == expected


def sinfo(*fields: str) -> str:
    return slurm_text.SEPARATOR.join(fields)


def test_what_sinfo_may_say_elsewhere() -> None:
    text = "\n".join(
        [
            "slurm_load_node: a warning",
            "CLUSTER: a",
            sinfo("a", "gpu*", "inact", "2-00:00:00", "n/a", "2-infinite", "NO", "3", "1/1/1/3", "96+", "1000000+", "2", "gpu:4", "(null)"),
            sinfo("b", "other", "up", "1:00", "n/a", "1-infinite", "NO", "3", "1/1/1/3", "96", "1000", "2", "gpu:4", "x"),
        ]
    )
    (gpu,) = slurm_text.parse_sinfo(text)
    assert (gpu.name, gpu.default, gpu.up, gpu.time_max, gpu.nodes_min, gpu.nodes_max) == ("gpu", True, False, 2 * 86400, 2, None)
    assert gpu.exclusive is None  # NO says nothing
    assert gpu.nodes == (LiveNodes(count=3, cpus=96, threads_per_core=2, memory=1000000 * MIB, gpus=(("", 4),), idle=1),)


def test_what_scontrol_may_say_elsewhere() -> None:
    line = "PartitionName={} AllowAccounts=(null) OverSubscribe={} State={} MaxTime=UNLIMITED DefMemPerCPU={} MaxNodes={}"
    text = "\n".join(
        [line.format("a", "EXCLUSIVE", "DRAIN", "0", "0"), line.format("b", "EXCLUSIVE:USER", "UP", "UNLIMITED", "UNLIMITED"), "junk"]
    )
    a, b = slurm_text.parse_partitions(text)
    assert (a.exclusive, a.up, a.default_memory_per_cpu, a.nodes_max, a.allow_accounts, a.time_max) == (True, False, None, 0, None, None)
    assert (b.exclusive, b.up, b.default_memory_per_cpu) == (False, True, None)


@pytest.mark.parametrize(
    ("enforce", "limits", "select", "expected"),
    [("none", "NO", "select/linear", (False, False, True)), ("wckeys,nojobs", "ANY", "select/cons_tres", (False, True, False)),
     ("(null)", "0", "(null)", (False, False, None))],
)  # fmt: skip
def test_config_words(enforce: str, limits: str, select: str, expected: tuple[object, ...]) -> None:
    text = f"AccountingStorageEnforce = {enforce}\nEnforcePartLimits       = {limits}\nSelectType = {select}\n"
    text += "DefMemPerNode           = UNLIMITED\n"
    live = slurm_text.parse_config(text)
    assert (live.enforces_accounts, live.enforces_part_limits, live.whole_nodes) == expected
    assert (live.default_memory_per_node, live.cluster_name, live.version) == (None, None, None)


def test_one_of_the_two_programs_may_be_silent() -> None:
    one, two = LivePartition(name="a", up=True), LivePartition(name="b", time_max=60)
    assert slurm_text.joined(None, None) is None
    assert slurm_text.joined([one], None) == (one,)
    assert slurm_text.joined(None, [two]) == (two,)
    assert slurm_text.joined([one], [two]) == (two, one)


def test_words_that_nobody_knows_are_no_facts() -> None:
    live = discover.from_texts({"nodes": "what is this\n", "partitions": "{}", "config": "no equals sign", "qos": "x", "users": "x"})
    assert (live.partitions, live.qos, live.associations, live.cluster_name) == ((), (), (), None)
    assert [sentence.partition(" answered")[0] for sentence in live.silent] == ["sinfo", "scontrol show partition", "scontrol show config"]


@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    for parse in (slurm_text.parse_sinfo, slurm_text.parse_partitions, slurm_text.parse_config, slurm_text.parse_qos, slurm_text.gpus_in,
                  slurm_text.tres, lambda words: slurm_text.parse_users(words, cluster=None)):  # fmt: skip
        parse(text)  # type: ignore[operator]


@given(
    st.lists(
        st.sampled_from(["N/A", "gpu*", "up", "1:00", "n/a", "1-2", "NO", "3", "1/2", "", "999999999999", "gpu:a:9", "(null)"]),
        min_size=14,
        max_size=14,
    )
)
def test_any_row_of_sinfo_is_survived(fields: list[str]) -> None:
    slurm_text.parse_sinfo(slurm_text.SEPARATOR.join(fields))
