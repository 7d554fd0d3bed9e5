"""The host's numbers agree with psutil's, which reads them another way."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hpctrain.memory import host
from hpctrain.memory.host import find_limit

EATER = (
    "import sys; b = bytearray(60 << 20); b[::4096] = b'x' * len(b[::4096]); print('ready',"
    " flush=True); input()"
)


def test_own_memory_grows_by_what_is_taken() -> None:
    before = host.own_rss_mib()
    taken = bytearray(64 << 20)
    taken[::4096] = b"x" * len(taken[::4096])
    assert 60 <= host.own_rss_mib() - before <= 72
    assert abs(host.own_rss_mib() - psutil.Process().memory_info().rss / 2**20) < 4


def test_node_memory_is_the_kernels() -> None:
    used, total = host.node_mib()
    lines = Path("/proc/meminfo").read_text().splitlines()
    known = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in lines}
    assert total == known["MemTotal"]
    assert abs(used - (known["MemTotal"] - known["MemAvailable"])) < 512


def test_children_and_grandchildren_count_and_dead_ones_do_not() -> None:
    nothing = host.children_rss_mib()
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {EATER!r}])"
    child = subprocess.Popen(
        [sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child.stdout.readline()
    expected = sum(p.memory_info().rss for p in psutil.Process().children(recursive=True)) >> 20
    assert expected > 60
    assert abs(host.children_rss_mib() - expected) < 8
    child.communicate("\n")
    assert host.children_rss_mib() == nothing
    assert host.children_rss_mib(child.pid) == 0


MIB = 1 << 20
V1_NONE = 9223372036854771712
V2_MOUNT = "25 24 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "34 25 0:29 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory"
HYBRID = "26 25 0:23 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw"


def tree(root: Path, cgroup: str, mounts: list[str], files: dict[str, object]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text("\n".join(mounts) + "\n")
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def v2_level(path: str, limit: object, current: int = 0, cache: int = 0) -> dict[str, object]:
    stat = (
        f"anon {current - cache}\nfile {cache}\ninactive_file {cache // 2}\nactive_file"
        f" {cache - cache // 2}"
    )
    return {
        f"{path}/memory.max": limit,
        f"{path}/memory.current": current,
        f"{path}/memory.stat": stat,
    }


def v1_level(path: str, limit: object, usage: int = 0, cache: int = 0) -> dict[str, object]:
    stat = (
        "cache 7\ninactive_file 1\nactive_file 1\ntotal_inactive_file"
        f" {cache // 2}\ntotal_active_file {cache // 2}"
    )
    return {
        f"memory/{path}/memory.limit_in_bytes": limit,
        f"memory/{path}/memory.usage_in_bytes": usage,
        f"memory/{path}/memory.stat": stat,
    }


def test_slurm_v2_the_jobs_limit_above_a_task_without_one(tmp_path: Path) -> None:
    job = "system.slice/slurmstepd.scope/job_123"
    root = tree(
        tmp_path,
        f"0::/{job}/step_0/user/task_1\n",
        [V2_MOUNT],
        {
            **v2_level(f"{job}/step_0/user/task_1", "max", 5 * MIB),
            **v2_level(f"{job}/step_0/user", "max"),
            **v2_level(f"{job}/step_0", 4000 * MIB, 700 * MIB, 200 * MIB),
            **v2_level(job, 4000 * MIB, 900 * MIB, 300 * MIB),
            **v2_level("system.slice", 90000 * MIB, 1),
        },
    )
    level = find_limit(root)
    assert (
        level.directory == root / "sys/fs/cgroup" / job
    )  # of two equal limits the one that the steps share
    assert (level.used_mib(), level.limit_mib()) == (600, 4000)


def test_slurm_v1_hierarchy_with_other_controllers(tmp_path: Path) -> None:
    job = "slurm/uid_1000/job_5"
    root = tree(
        tmp_path,
        f"12:cpuset:/{job}\n11:memory:/{job}/step_batch/task_0\n1:name=systemd:/x\n0::/x\n",
        [V1_MOUNT, HYBRID],
        {
            **v1_level(f"{job}/step_batch/task_0", V1_NONE),
            **v1_level(f"{job}/step_batch", 2000 * MIB, 1000 * MIB, 400 * MIB),
            **v1_level(job, 3000 * MIB),
            **v1_level("", V1_NONE),
        },
    )
    level = find_limit(root)
    assert level.version == 1
    assert (level.used_mib(), level.limit_mib()) == (600, 2000)


def test_no_limit_anywhere(tmp_path: Path) -> None:
    root = tree(
        tmp_path, "0::/a/b\n", [V2_MOUNT], {**v2_level("a/b", "max"), **v2_level("a", "max")}
    )
    assert find_limit(root) is None


@pytest.mark.parametrize("path", ["/../..", "/host/only/path", "/"])
def test_in_a_container_the_mount_is_the_own_cgroup(tmp_path: Path, path: str) -> None:
    mount = V2_MOUNT.replace(" / /sys", " /kubepods/pod1 /sys")
    files = {"memory.max": 100 * MIB, "memory.current": 10 * MIB, "memory.stat": "inactive_file 0"}
    level = find_limit(tree(tmp_path, f"0::{path}\n", [mount], files))
    assert (level.used_mib(), level.limit_mib()) == (10, 100)


def test_a_mount_of_a_part_of_the_hierarchy(tmp_path: Path) -> None:
    mount = V2_MOUNT.replace(" / /sys", " /jobs /sys")
    root = tree(tmp_path, "0::/jobs/job_1\n", [mount], v2_level("job_1", 50 * MIB, 5 * MIB))
    level = find_limit(root)
    assert level.directory.name == "job_1"


def test_no_cgroup_file_system(tmp_path: Path) -> None:
    assert find_limit(tree(tmp_path, "0::/\n", ["1 1 0:1 / / rw - ext4 /dev/sda rw"], {})) is None
