"""The host's numbers agree with psutil's, which reads them another way."""

import subprocess
import sys
from pathlib import Path

import psutil

from hpctrain.memory import host

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
