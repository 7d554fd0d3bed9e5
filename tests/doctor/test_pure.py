"""The pure parts: versions, quotas, report lines, NCCL's words, small words; the ids and the libraries."""

import re
import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpctrain.doctor
from hpctrain.doctor import IDS, environment_evaluation, inside
from hpctrain.logs import preflight


@pytest.mark.parametrize(
    ("version", "demand", "well"),
    [
        ("2.13.0+cpu", "torch>=2.6,<3", True),
        ("5.0rc1", "transformers>=5.0", True),
        ("2.9.0a0+git1234", "torch>=2.9", True),
        ("5.1.3", "Transformers>=4.56.2,!=5.1.*", False),
        ("1.10", "accelerate (>=1.10.1)", False),
        ("7", "datasets[audio]<6", False),
    ],
)
def test_what_versions_demand(version: str, demand: str, well: bool) -> None:
    assert environment_evaluation.satisfies(version, demand) == well


@given(
    st.dictionaries(
        st.text(string.ascii_lowercase, min_size=1).filter(lambda key: key != "kind"),
        st.text() | st.integers() | st.none(),
    )
)
def test_a_line_comes_back_and_stays_one_line(values: dict[str, object]) -> None:
    line = preflight.line("rank", **values)
    assert len(line.splitlines()) == 1
    assert preflight.read_lines(f"[default0]:{line}\nsome other line\n") == [
        {"kind": "rank", **values}
    ]


def test_a_line_fits_into_one_write_whatever_it_says() -> None:
    line = preflight.line("failed", said="ü" * 100_000, stage="x" * 9000)
    assert len(line.encode()) < 4096
    assert preflight.read_lines(line)[0]["kind"] == "failed"


@pytest.mark.parametrize(
    "torn", ['[doctor] {"kind":"rank","ra', "[doctor] 7", '[doctor] {"rank": 1}', "[doctor] "]
)
def test_torn_lines_are_no_facts(torn: str) -> None:
    assert preflight.read_lines(torn) == []


def test_a_report_of_another_version_is_read() -> None:
    log = "\n".join(
        [
            preflight.line("rank", rank=10, host="node10", cpus="0-2,8", invented=1),
            preflight.line("rank", rank=2, host="node2", cpus=None),
            preflight.line("node", rank=10, host="node10", gpus_given=5),
            preflight.line("node", rank=2, host="node2"),
            preflight.line("torch", rank=2, host="node2", version="2.6", visible=3),
            preflight.line("read", rank=2, host="node2", path="d", error="x"),
            preflight.line("done", rank=2, host="node2"),
        ]
    )
    found = preflight.read_report(log)
    assert [rank.rank for rank in found.ranks] == [2, 10]
    assert [node.host for node in found.nodes] == ["node2", "node10"]
    assert found.ranks[1].cpu_set == {0, 1, 2, 8}
    assert (found.ranks[0].done, found.ranks[0].visible, found.ranks[1].done) == (True, 3, False)
    assert found.nodes[0].read == preflight.Access(path="d", error="x")


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
        (SLINGSHOT, ("AWS Libfabric (cxi)", ())),
        (INFINIBAND, ("IB", ("mlx5_0", "mlx5_1"))),
        (SOCKETS, ("Socket", ("eth0", "eth1"))),
        ("", (None, ())),
    ],
)
def test_what_nccl_says_of_its_network(text: str, expected: tuple[Any, ...]) -> None:
    found = preflight.nccl_network(text, "a")
    assert (found.transport, found.devices) == expected


# -- Every id is said somewhere, and listed


ROOM = Path(hpctrain.doctor.__file__).parent


def test_the_ids_are_those_that_the_evaluation_says() -> None:
    said = {
        each
        for path in (*ROOM.glob("*_evaluation.py"), ROOM / "login.py")
        for each in re.findall(r'"((?:doctor|node)-[a-z-]+)"', path.read_text())
    }
    assert said == set(IDS)
    assert len(IDS) == len(set(IDS))


# -- What doctor looks for is what the training demands


def test_each_library_of_the_training_is_looked_for() -> None:
    """What is demanded and never looked for would be called missing on every machine."""
    extra = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["train"]
    assert {re.split(r"[^A-Za-z0-9_-]", line)[0] for line in extra} <= set(inside.PACKAGES)
