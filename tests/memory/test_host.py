"""The host's numbers agree with psutil's, which reads them another way."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil

from hpctrain.memory import host

EATER = "import sys; b = bytearray(60 << 20); b[::4096] = b'x' * len(b[::4096]); print('ready', flush=True); input()"


def eater() -> subprocess.Popen[str]:
    """Start a child that holds 60 MiB, and wait until it does."""
    child = subprocess.Popen([sys.executable, "-c", EATER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def end(child: subprocess.Popen[str]) -> None:
    child.communicate("\n")


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
    children = host.ChildrenMemory()
    nothing = children.read_mib()
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {EATER!r}])"
    child = subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    expected = sum(p.memory_info().rss for p in psutil.Process().children(recursive=True)) >> 20
    assert expected > 60
    assert abs(children.read_mib(rescan=True) - expected) < 8
    end(child)
    assert children.read_mib() == nothing


def test_a_child_of_the_main_thread_is_seen_at_once_and_a_threads_child_at_the_next_scan() -> None:
    now = 0.0
    children = host.ChildrenMemory(rescan_s=10, clock=lambda: now)
    others = children.read_mib()  # of a test before, in this process
    assert children.read_mib() < others + 60
    own = eater()
    assert children.read_mib() > others + 60
    end(own)
    started, stop = threading.Event(), threading.Event()

    def work() -> None:
        child = eater()
        started.set()
        stop.wait()
        end(child)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    try:
        now = 9.0
        early = children.read_mib()
        now = 10.0
        assert early < others + 60 < children.read_mib()
    finally:
        stop.set()
        thread.join()


def test_without_the_kernels_list_psutil_is_asked() -> None:
    others = host.ChildrenMemory().read_mib()  # of a test before, in this process
    children = host.ChildrenMemory()
    children._kernel_lists_children = False
    child = eater()
    assert children.read_mib() > others + 60
    end(child)
    assert children.read_mib() < others + 60


def test_a_process_that_is_gone_has_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert host.ChildrenMemory(pid=child.pid).read_mib(rescan=True) == 0
    assert host.ChildrenMemory(pid=os.getpid()).read_mib() >= 0
