"""Every launcher, one node and two, for real on this machine: the right ranks, and no two jobs on
one port.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.local import jobs
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.util import installed

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
    return subprocess.run([hpctrain, *words], capture_output=True, text=True, timeout=600)


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    Path("train.py").write_text(PROGRAM)
    (tmp_path / "node-local").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "node-local"))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(  # one node of two GPUs is below
    ("launcher", "nodes", "gpus"),
    [
        ("accelerate", 2, 2),
        ("torchrun", 2, 2),
        ("srun", 2, 2),
    ],
)
def test_every_rank_is_there_once(hpctrain: str, launcher: str, nodes: int, gpus: int) -> None:
    shipped = installed.path("multi_gpu.yaml").read_text()
    Path("multi_gpu.yaml").write_text(
        shipped.replace("num_processes: -1", "num_processes: 7").replace(
            "num_machines: 1", "num_machines: 3"
        )
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
        assert "num_processes: 7" in Path("multi_gpu.yaml").read_text(), (
            "the user's file is left alone, and its number is not used"
        )
    world = nodes * gpus
    form = r"^rank (\d+)/(\d+) sum (\d+) local (\d+) node (\d+) argv (.*) unbuffered 1 offline 1$"
    lines = re.findall(form, done.stdout, re.MULTILINE)
    assert sorted(int(line[0]) for line in lines) == list(range(world))
    assert {(int(line[1]), int(line[2])) for line in lines} == {(world, world)}
    assert sorted((int(line[4]), int(line[3])) for line in lines) == [
        (node, local) for node in range(nodes) for local in range(gpus)
    ]
    assert {line[5] for line in lines} == {str(["--x", "a 'b' $(c)"])}
    assert list(Path("node-local").glob("hpctrain-*")) == [], "the node-local caches are removed"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.extended
def test_a_node_whose_own_name_does_not_resolve(hpctrain: str) -> None:
    """Torch's elastic launchers look their node's name up, and wait 300 s, twice, for an address
    that does not come.
    """
    unshare = (
        "unshare",
        "--uts",
        *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
        "bash",
        "-c",
    )
    if subprocess.run([*unshare, "hostname no-such-host-1"], capture_output=True).returncode:
        pytest.skip("unshare gives no host name of its own here")
    words = ("--launcher", "torchrun", "--nodes", "2", "--gpus", "2", "--script", "train.py")
    assert run(hpctrain, "render", *words).returncode == 0
    done = run(
        *unshare, f"hostname no-such-host-1; exec timeout 100 {hpctrain} submit --local --wait"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("/4 sum 4 ") == 4


@pytest.mark.slow
def test_a_port_that_is_taken_is_passed_over(hpctrain: str) -> None:
    Path("train.py").write_text(
        'import os\nos.write(1, f\'port {os.environ["MASTER_PORT"]}'
        ' {os.environ["MASTER_ADDR"]}\\n\'.encode())\n'
    )
    port = 20000 + jobs.next_job_id() % 9000
    with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 1)):
        assert (
            run(
                hpctrain, "render", "--nodes", "2", "--launcher", "srun", "--script", "train.py"
            ).returncode
            == 0
        )
        done = run(hpctrain, "submit", "--local", "--wait")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"port {port + 2} 127.0.0.1") == 2
    assert LocalScheduler().status()[0].state == "COMPLETED"
