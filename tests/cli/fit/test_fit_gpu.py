"""`hpctrain fit`: which GPU it is."""

import pytest

from hpctrain.clusters import live
from tests.cli.conftest import Desk
from tests.cli.fit.fit_project import CONFIG, document


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_without_a_profile_the_gpu_is_named(project: Desk) -> None:
    project.write("config.yaml", CONFIG.replace("cluster: leonardo", "# no cluster"))
    said = project.refused("fit")
    assert "the job's GPU is unknown" in said.err
    assert "GPU is unknown" in project.refused("fit", "--cluster", "generic_university").err
    randi = document(project, "--cluster", "randi")["gpu"]["source"]
    assert "profile randi" in randi
    assert "'NVIDIA A100' may have more memory" in randi
    assert said.lines[-1] == "fix: hpctrain fit --gpu h100"
    again = project.refused(
        "fit", "--model", "model", "--nodes", "2", "--", "--max_length", "512"
    ).lines[-1]
    assert again == "fix: hpctrain fit --nodes 2 --gpu h100 --model model -- --max_length 512"
    assert document(project, *again.split()[3:])["gpu"]["name"] == "NVIDIA H100 SXM"
    found = document(project, "--gpu", "h200")
    assert found["gpu"]["name"] == "NVIDIA H200"
    assert document(project, "--gpu-memory", "80G")["asked"]["tokens_per_s"] is None
    assert "name it with --gpu" in " ".join(project.run("fit", "--gpu-memory", "80G").out.split())


def test_what_slurm_says_of_its_gpus_is_asked_where_nothing_else_does(project: Desk) -> None:
    project.write("config.yaml", CONFIG.replace("cluster: leonardo", "# no cluster"))
    fields = (
        "N/A",
        "gpu*",
        "up",
        "1-00:00:00",
        "4",
        "64",
        "512000",
        "1",
        "gpu:a100:4",
        "a100",
    )
    project.write("nodes.txt", live.SEPARATOR.join(fields) + "\n")
    project.program("sinfo", f"cat '{project.directory}/nodes.txt'")
    project.program("scontrol sacctmgr", "exit 1")
    found = document(project)
    assert found["gpu"]["name"] == "NVIDIA A100 SXM 40GB"
    assert "sinfo" in found["gpu"]["source"]
    assert "'a100' may have more memory" in found["gpu"]["source"]
    assert "may have" not in document(project, "--gpu-memory", "80G")["gpu"]["source"]
    assert max(row["layout"]["gpus_per_node"] for row in found["rows"]) == 4


def test_a_gpu_that_is_not_known_needs_its_memory(project: Desk) -> None:
    said = project.refused("fit", "--gpu", "h900")
    assert "the memory of the GPU 'h900' is unknown" in said.err
    assert "NVIDIA H100 SXM" in " ".join(said.err.split())
    assert said.lines[-1] == "fix: hpctrain fit --gpu h900 --gpu-memory 80G"
    assert (
        document(project, "--gpu", "h900", "--gpu-memory", "200G")["gpu"]["bytes"] == 200 * 1024**3
    )
    assert "is less than a GiB" in project.refused("fit", "--gpu-memory", "80").err
    assert "memory size" in project.refused("fit", "--gpu-memory", "much").err


@pytest.mark.slow
def test_a_gpu_without_bfloat16_trains_in_float32(project: Desk) -> None:
    found = document(project, "--gpu", "v100", "--gpu-memory", "32G")
    assert found["asked"]["layout"]["compute"] is None
