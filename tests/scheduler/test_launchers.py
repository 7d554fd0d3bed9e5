"""Every launcher, one node and two, for real on this machine: the right ranks, and no two jobs on one port."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import data
from hpctrain.scheduler.local import job_directory
from hpctrain.scheduler.local.scheduler import LocalScheduler

PROGRAM = """import os, sys, torch, torch.distributed as d
d.init_process_group("gloo")
total = torch.ones(1)
d.all_reduce(total)
sys.stdout.write(f"rank {d.get_rank()}/{d.get_world_size()} sum {int(total)} "
                 f"local {os.environ['LOCAL_RANK']} node {os.environ['SLURM_NODEID']} "
                 f"argv {sys.argv[1:]} unbuffered {os.environ['PYTHONUNBUFFERED']} offline {os.environ['HF_HUB_OFFLINE']}\\n")
assert os.path.isdir(os.environ["HPCTRAIN_RUN_DIR"]) and os.path.dirname(os.environ["TRITON_CACHE_DIR"]).startswith(os.environ["TMPDIR"])
d.barrier()
sys.stdout.flush()
d.destroy_process_group()
os._exit(0)  # torch's own way out crashes now and then after a distributed run
"""


def run(hpctrain: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([hpctrain, *words], capture_output=True, text=True, timeout=200)


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    Path("train.py").write_text(PROGRAM)
    (tmp_path / "node-local").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "node-local"))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("launcher", ["accelerate", "torchrun", "srun"])
def test_every_rank_is_there_once(hpctrain: str, launcher: str, nodes: int, gpus: int) -> None:
    shipped = data.path("multi_gpu.yaml").read_text()
    Path("multi_gpu.yaml").write_text(
        shipped.replace("num_processes: -1", "num_processes: 7").replace("num_machines: 1", "num_machines: 3")
    )
    rendered = run(
        hpctrain,
        "render",
        "--launcher",
        launcher,
        "--nodes",
        str(nodes),
        "--gpus",
        str(gpus),
        "--script",
        "train.py",
        "--",
        "--x",
        "a 'b' $(c)",
    )
    assert rendered.returncode == 0, rendered.stderr
    done = run(hpctrain, "submit", "--local", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    if launcher == "accelerate":
        assert "num_processes: 7" in Path("multi_gpu.yaml").read_text(), "the user's file is left alone, and its number is not used"
    world = nodes * gpus
    form = r"^rank (\d+)/(\d+) sum (\d+) local (\d+) node (\d+) argv (.*) unbuffered 1 offline 1$"
    lines = re.findall(form, done.stdout, re.MULTILINE)
    assert sorted(int(line[0]) for line in lines) == list(range(world))
    assert {(int(line[1]), int(line[2])) for line in lines} == {(world, world)}
    assert sorted((int(line[4]), int(line[3])) for line in lines) == [(node, local) for node in range(nodes) for local in range(gpus)]
    assert {line[5] for line in lines} == {str(["--x", "a 'b' $(c)"])}
    assert list(Path("node-local").glob("hpctrain-*")) == [], "the node-local caches are removed"


@pytest.mark.slow
def test_a_port_that_is_taken_is_passed_over(hpctrain: str) -> None:
    Path("train.py").write_text('import os\nos.write(1, f\'port {os.environ["MASTER_PORT"]} {os.environ["MASTER_ADDR"]}\\n\'.encode())\n')
    port = 20000 + job_directory.first_job_id() % 9000
    with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 1)):
        assert run(hpctrain, "render", "--nodes", "2", "--launcher", "srun", "--script", "train.py").returncode == 0
        done = run(hpctrain, "submit", "--local", "--wait")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"port {port + 2} 127.0.0.1") == 2
    assert LocalScheduler().status()[0].state == "COMPLETED"


@pytest.mark.slow
def test_the_rank_of_a_node_is_that_nodes_own(hpctrain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each node runs, seen through a recording stand-in for the launcher."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "accelerate").write_text('#!/bin/bash\nprintf "%s\\n" "$*" >> "node-$SLURM_NODEID.txt"\n')
    (programs / "accelerate").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", "/nonexistent")  # of a login node, for instance
    assert run(hpctrain, "render", "--nodes", "3", "--gpus", "4", "--script", "train.py").returncode == 0
    assert run(hpctrain, "submit", "--local", "--wait").returncode == 0
    for node in range(3):
        (line,) = Path(f"node-{node}.txt").read_text().splitlines()
        assert line.startswith(f"launch --machine_rank {node} --rdzv_conf is_host={int(node == 0)} --config_file multi_gpu.yaml")
        assert "--num_machines 3 --num_processes 12 --rdzv_backend c10d --main_process_ip 127.0.0.1 " in line
