"""`hpctrain init` with a profile and without Slurm: which nodes, which partition, how much memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpctrain import yaml12
from hpctrain.config import layers
from hpctrain.config.schema import Config

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Desk


def config_of(desk: Desk) -> Config:
    document = yaml12.load((desk.directory / "config.yaml").read_text(), "config.yaml")
    return layers.resolve([layers.from_document(document, "config.yaml")]).config


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.parametrize(
    ("account", "constraint", "gpus"), [("abc@h100", "h100", 4), ("abc@a100", "a100", 8), ("abc@v100", None, 4)]
)  # fmt: skip
def test_where_the_constraint_chooses_the_nodes_no_partition_is_written(
    desk: Desk, account: str, constraint: str | None, gpus: int
) -> None:
    words = ("init", "--cluster", "jean_zay", "--account", account)
    assert desk.run(*words).code == 0
    asked = config_of(desk).resources
    assert (asked.partition, asked.constraint, asked.gpus_per_node) == (None, constraint, gpus)
    text = (desk.directory / "config.yaml").read_text()
    assert "the constraint chooses" in text
    assert "gpu_p13" not in text
    assert "at most" not in text  # of a partition that the job does not land in
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "http" not in text
    assert "# sources: hpctrain clusters show jean_zay" in text
    assert "all of a node: profile jean_zay: " in text
    assert desk.run(*words, "--force", "--partition", "gpu_p6").code == 0
    assert config_of(desk).resources.partition == "gpu_p6"


@pytest.mark.usefixtures("no_slurm")
def test_the_longest_time_is_that_of_the_qos(desk: Desk) -> None:
    words = ("init", "--cluster", "jean_zay", "--account", "abc@h100", "--qos", "qos_gpu_h100-t3")
    assert "at most 20:00:00" in desk.refused(*words, "--time", "20:00:01").err
    assert desk.run(*words, "--time", "20:00:00").code == 0
    assert "gpu_p13" not in desk.refused("init", "--cluster", "jean_zay", "--force").err


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.parametrize(("gpus", "mem"), [(4, "7G"), (2, "3G"), (1, "1G")])
def test_the_memory_of_several_gpus_is_rounded_once(desk: Desk, tmp_path: Path, gpus: int, mem: str) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "small.yaml").write_text(
        "title: Small\nnodes: {a: {gpus: 4, memory: 7900M}}\nmemory: {request: per-gpu}\npartitions: {gpu: {nodes: a}}\n"
    )
    desk.set(HPCTRAIN_CLUSTERS=str(tmp_path / "profiles"))
    assert desk.run("init", "--cluster", "small", "--gpus", str(gpus)).code == 0
    assert f"mem: {mem} " in (desk.directory / "config.yaml").read_text()
