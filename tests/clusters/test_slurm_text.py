"""The parsers of what Slurm says of itself: recorded answers of seven versions, and made-up ones
for odd words.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.clusters import discover
from hpctrain.clusters import live as live_cluster
from hpctrain.clusters.live import LiveCluster, LiveNodes

RECORDED = Path(__file__).parent / "recorded"
VERSIONS = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())
MIB, GIB = 1024**2, 1024**3


def recorded(version: str) -> LiveCluster:
    texts = {
        name: (RECORDED / version / f"{name}.txt").read_text()
        for name in discover.queries("ada", {})
    }
    return discover.from_texts(texts)


def in_order(value: Any) -> Any:
    """Return JSON values, lists in the order of their text: the versions list nodes and QOS in
    orders of their own.
    """
    if isinstance(value, dict):
        return {key: in_order(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return sorted(map(in_order, value), key=json.dumps)
    return value


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_says_the_same(version: str, request: pytest.FixtureRequest) -> None:
    """Of one configuration of a cluster; recorded/parsed.json is what it says."""
    live = recorded(version)
    assert live.version == tuple(int(part) for part in version.split("."))
    assert [each.name for each in live.partitions or ()][:3] == ["batch", "gpu", "whole"], (
        "in order"
    )
    golden = RECORDED / "parsed.json"
    found = in_order(asdict(replace(live, version=None)))
    if request.config.getoption("--update-golden"):
        golden.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(golden.read_text()), "write it with: pytest --update-golden"


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
    assert live_cluster.gpus_in(gres) == expected


def sinfo(*fields: str) -> str:
    return live_cluster.SEPARATOR.join(fields)


def test_what_sinfo_may_say_elsewhere() -> None:
    text = "\n".join(
        [
            "slurm_load_node: a warning",
            "CLUSTER: a",
            sinfo(
                "a",
                "gpu*",
                "inact",
                "2-00:00:00",
                "3",
                "96+",
                "1000000+",
                "2",
                "gpu:4",
                "(null)",
            ),
            sinfo(
                "b",
                "other",
                "up",
                "1:00",
                "3",
                "96",
                "1000",
                "2",
                "gpu:4",
                "x",
            ),
        ]
    )
    (gpu,) = live_cluster.parse_sinfo(text)
    assert (gpu.name, gpu.default, gpu.up, gpu.time_max) == ("gpu", True, False, 2 * 86400)
    assert gpu.nodes == (
        LiveNodes(count=3, cpus=96, threads_per_core=2, memory=1000000 * MIB, gpus=(("", 4),)),
    )


def test_what_scontrol_may_say_elsewhere() -> None:
    line = (
        "PartitionName={} AllowAccounts=(null) OverSubscribe={} State={} MaxTime=UNLIMITED"
        " DefMemPerCPU={} MaxNodes={}"
    )
    text = "\n".join(
        [
            line.format("a", "EXCLUSIVE", "DRAIN", "0", "0"),
            line.format("b", "EXCLUSIVE:USER", "UP", "UNLIMITED", "UNLIMITED"),
            "junk",
        ]
    )
    a, b = live_cluster.parse_partitions(text)
    assert (
        a.exclusive,
        a.up,
        a.default_memory_per_cpu,
        a.nodes_max,
        a.allow_accounts,
        a.time_max,
    ) == (True, False, None, 0, None, None)
    assert (b.exclusive, b.up, b.default_memory_per_cpu) == (False, True, None)


def test_words_that_nobody_knows_are_no_facts() -> None:
    live = discover.from_texts(
        {
            "nodes": "what is this\n",
            "partitions": "{}",
            "config": "no equals sign",
            "qos": "x",
            "users": "x",
        }
    )
    assert (live.partitions, live.qos, live.associations, live.cluster_name) == ((), (), (), None)
    assert [sentence.partition(" answered")[0] for sentence in live.silent] == [
        "sinfo or scontrol show partition",
        "scontrol show config",
    ]


@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    for parse in (
        live_cluster.parse_sinfo,
        live_cluster.parse_partitions,
        live_cluster.parse_config,
        live_cluster.parse_qos,
        live_cluster.gpus_in,
        live_cluster.tres,
        lambda words: live_cluster.parse_users(words, cluster=None),
    ):
        parse(text)  # type: ignore[operator]
