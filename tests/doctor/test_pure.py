"""The pure parts: versions, quotas, report lines, NCCL's words, small words."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from hpctrain.doctor import lines, nccl_log, quota_text, report, words
from hpctrain.doctor.facts import Quota
from hpctrain.doctor.judge import versions

releases = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@given(releases, st.lists(st.tuples(st.sampled_from([">=", "<=", ">", "<", "==", "!="]), releases), max_size=3))
def test_versions_compare_as_packaging_compares_them(version: str, bounds: list[tuple[str, str]]) -> None:
    wanted = SpecifierSet(",".join(operator + bound for operator, bound in bounds))
    assert versions.satisfies(version, tuple(bounds)) == wanted.contains(version)


@given(releases, st.lists(st.integers(0, 30), min_size=2, max_size=4))
def test_compatible_releases_and_series(version: str, parts: list[int]) -> None:
    bound = ".".join(map(str, parts))
    assert versions.satisfies(version, (("~=", bound),)) == SpecifierSet(f"~={bound}").contains(version)
    assert versions.satisfies(version, (("==", f"{bound}.*"),)) == SpecifierSet(f"=={bound}.*").contains(version)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch>=2.6", ("torch", ((">=", "2.6"),))),
        ("Transformers>=4.56.2,!=5.1.*", ("transformers", ((">=", "4.56.2"), ("!=", "5.1.*")))),
        ("accelerate (>=1.10.1)", ("accelerate", ((">=", "1.10.1"),))),
        ("datasets[audio]<6", ("datasets", (("<", "6"),))),
        ("peft", ("peft", ())),
    ],
)
def test_a_demand_is_read(text: str, expected: object) -> None:
    assert versions.demand(text) == expected


def test_a_local_version_is_its_release() -> None:
    assert versions.satisfies("2.13.0+cpu", ((">=", "2.6"), ("<", "3")))


QUOTA = """Disk quotas for user ada (uid 1000):
                         Filesystem blocks   quota   limit   grace   files   quota   limit   grace
                       nas:/home 47185920* 47185920 52428800 1764000000 120000  200000  220000       0
                          /dev/sdb1    1024       0       0       0      12       0       0       0
"""
LFS = """/lustre/scratch/a/very/long/path
                1610612736  0  2147483648       -  532123*  500000  550000 6d23h
"""


def test_quotas_of_both_programs() -> None:
    home, disk = quota_text.parse_quota(QUOTA)
    assert home == Quota(file_system="nas:/home", used=47185920 << 10, limit=52428800 << 10, files=120000, files_limit=220000)
    assert disk.limit is None
    assert quota_text.parse_quota("Disk quotas for user ada (uid 1000): none\n") == []
    (scratch,) = quota_text.parse_lfs_quota(LFS)
    assert (scratch.used, scratch.limit, scratch.files, scratch.files_limit) == (1610612736 << 10, 2147483648 << 10, 532123, 550000)


@given(
    st.dictionaries(st.text(string.ascii_lowercase, min_size=1).filter(lambda key: key != "kind"), st.text() | st.integers() | st.none())
)
def test_a_line_comes_back_and_stays_one_line(values: dict[str, object]) -> None:
    line = lines.line("rank", **values)
    assert len(line.splitlines()) == 1
    assert lines.read(f"[default0]:{line}\nsome other line\n") == [{"kind": "rank", **values}]


def test_a_line_fits_into_one_write_whatever_it_says() -> None:
    line = lines.line("failed", said="ü" * 100_000, stage="x" * 9000)
    assert len(line.encode()) < 4096
    assert lines.read(line)[0]["kind"] == "failed"


@pytest.mark.parametrize("torn", ['[doctor] {"kind":"rank","ra', "[doctor] 7", '[doctor] {"rank": 1}', "[doctor] "])
def test_torn_lines_are_no_facts(torn: str) -> None:
    assert lines.read(torn) == []


def test_a_report_of_another_version_is_read() -> None:
    log = "\n".join(
        [
            lines.line("rank", rank=10, host="node10", cpus="0-2,8", invented=1),
            lines.line("rank", rank=2, host="node2", cpus=None),
            lines.line("node", rank=10, host="node10", shm={"path": "/dev/shm", "free": 5}),
            lines.line("node", rank=2, host="node2"),
            lines.line("torch", rank=2, host="node2", version="2.6", visible=3),
            lines.line("read", rank=2, host="node2", path="d", bytes=100, seconds=2.0, dropped=True),
            lines.line("done", rank=2, host="node2"),
        ]
    )
    found = report.read(log)
    assert [rank.rank for rank in found.ranks] == [2, 10]
    assert [node.host for node in found.nodes] == ["node2", "node10"]
    assert found.ranks[1].cpu_set == {0, 1, 2, 8}
    assert (found.ranks[0].done, found.ranks[0].visible, found.ranks[1].done) == (True, 3, False)
    assert found.nodes[0].read is not None
    assert found.nodes[0].read.speed == 50.0


SLINGSHOT = """nid1:9:9 [0] NCCL INFO Bootstrap: Using hsn0:10.253.1.2<0>
nid1:9:9 [0] NCCL INFO NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)
nid1:9:9 [0] NCCL INFO Using network AWS Libfabric
"""
INFINIBAND = """a:1:1 [0] NCCL INFO Bootstrap : Using ib0:10.1.1.1<0>
a:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.1.1.1<0>
a:1:1 [0] NCCL INFO Using network IB
"""
SOCKETS = """a:1:1 [0] NCCL INFO NET/IB : No device found.
a:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>
a:1:1 [0] NCCL INFO Using network Socket
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SLINGSHOT, nccl_log.NcclNetwork("AWS Libfabric (cxi)", (), "hsn0")),
        (INFINIBAND, nccl_log.NcclNetwork("IB", ("mlx5_0", "mlx5_1"), "ib0")),
        (SOCKETS, nccl_log.NcclNetwork("Socket", ("eth0", "eth1"), None)),
        ("", nccl_log.NcclNetwork()),
    ],
)
def test_what_nccl_says_of_its_network(text: str, expected: nccl_log.NcclNetwork) -> None:
    assert nccl_log.parse(text) == expected


def test_small_words() -> None:
    assert [words.size(count) for count in (0, 900, 5 << 30, 64 << 30, 3 << 40)] == ["0 B", "900 B", "5.0 GiB", "64 GiB", "3.0 TiB"]
    assert [words.rate(speed) for speed in (85e6, 3.1e8, 163e9)] == ["85 MB/s", "0.31 GB/s", "163 GB/s"]
    assert words.ranges([3, 1, 2, 9]) == "1-3,9"
    assert json.dumps(words.many(1, "process", "es")) == '"1 process"'
