"""The lab's processes: how each is started, how the lab knows its own again, and how all of them
end.

A process is remembered as pid plus start time, so that a pid used again by somebody else is never
signalled.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import lab_conf
from lab_conf import Layout
from lab_host import SYSTEM_PATH, program

if TYPE_CHECKING:
    from collections.abc import Callable

# In the environment of every daemon, hence of every slurmstepd, and of nobody else; a user's shell
# has SLURM_CONF too.
MARK = "HPCTRAIN_LAB_DAEMON"
START_TIMEOUT_S = 300.0
TERM_TIMEOUT_S = 15.0
TCP_LISTEN = "0A"


class LabError(Exception):
    """Something of the lab did not start or did not stop."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """One program of the lab."""

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    port: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


def socket_answers(path: Path) -> bool:
    """Say whether somebody accepts connections on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def port_listens(port: int) -> bool:
    """Say whether somebody listens on a TCP port of this machine.

    The kernel's table is read instead of trying to connect: slurmd logs an error for every empty
    connection.
    """
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if Path(table).exists():
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            if any(
                int(row[1].rpartition(":")[2], 16) == port and row[3] == TCP_LISTEN for row in rows
            ):
                return True
    return False


def nodes_listen() -> bool:
    """Say whether a slurmd holds a node's port, whichever lab it belongs to."""
    return any(port_listens(port) for port in lab_conf.NODE_PORTS.values())


def munged(layout: Layout) -> tuple[str, ...]:
    """Return how the lab's own munged is started."""
    return (
        "munged",
        "--foreground",
        "--force",
        f"--socket={layout.munge_socket}",
        f"--key-file={layout.munge_key}",
        f"--pid-file={layout.run}/munged.pid",
        f"--seed-file={layout.run}/munged.seed",
    )


def mariadbd(layout: Layout) -> tuple[str, ...]:
    """Return how the lab's own MariaDB is started."""
    return (
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={layout.database}",
        f"--socket={layout.mysql_socket}",
        f"--pid-file={layout.run}/mariadbd.pid",
        "--skip-networking",
        "--skip-log-bin",
        "--innodb-lock-wait-timeout=900",
        # Speed before safety: the database lives as long as the lab does.
        "--innodb-flush-log-at-trx-commit=0",
        # slurmdbd ends at a conflict of two transactions otherwise; "loose": an older MariaDB does
        # not know it.
        "--loose-innodb-snapshot-isolation=OFF",
    )


def daemons(layout: Layout) -> list[Daemon]:
    """Return the lab's programs in the order they need each other."""
    return [
        Daemon("munged", munged(layout), lambda: socket_answers(layout.munge_socket)),
        Daemon("mariadbd", mariadbd(layout), lambda: socket_answers(layout.mysql_socket)),
        Daemon(
            "slurmdbd",
            ("slurmdbd", "-D"),
            lambda: port_listens(lab_conf.DATABASE_PORT),
            lab_conf.DATABASE_PORT,
            {"MYSQL_UNIX_PORT": str(layout.mysql_socket)},
        ),
        Daemon(
            "slurmctld",
            ("slurmctld", "-D"),
            lambda: slurm(layout, "scontrol", "ping").returncode == 0,
            lab_conf.CONTROLLER_PORT,
        ),
        *(
            Daemon(
                f"slurmd-{node}",
                ("slurmd", "-D", "-N", node),
                lambda port=port: port_listens(port),
                port,
            )  # type: ignore[misc]
            for node, port in lab_conf.NODE_PORTS.items()
        ),
    ]


def scrubbed(layout: Layout) -> dict[str, str]:
    """Return the smallest environment that the daemons and Slurm's commands need."""
    return {
        "PATH": f"{SYSTEM_PATH}:{os.environ.get('PATH', '')}",
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(layout.slurm_conf),
    }


def slurm(layout: Layout, *argv: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands against the lab; a command that hangs counts as failed (124)."""
    try:
        return subprocess.run(
            argv,
            env=scrubbed(layout),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            argv, 124, "", f"{argv[0]} gave no answer in {timeout_s:.0f} s"
        )


def started_at(pid: int) -> int | None:
    """Return a living process' start time in clock ticks since boot; None for a dead one or a
    zombie.
    """
    try:
        # The second field is the command in parentheses and may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def remembered(layout: Layout) -> dict[str, tuple[int, int]]:
    """Return name → (pid, start time) of what `up` started, dead or alive."""
    try:
        stored = json.loads(layout.state.read_text())
    except (OSError, ValueError):
        return {}
    return {name: (int(pid), int(start)) for name, (pid, start) in stored.items()}


def living(layout: Layout) -> dict[str, int]:
    """Return name → pid of the lab's daemons that are alive."""
    return {
        name: pid for name, (pid, start) in remembered(layout).items() if started_at(pid) == start
    }


def start(layout: Layout, daemon: Daemon) -> None:
    """Start one daemon and wait until it answers.

    It gets a session of its own and no file of ours, so that it outlives the calling shell and a
    `$(lab up)` ends.

    Raises:
        LabError: it ended, or did not answer in time; with the last lines of its log.
    """
    path = program(daemon.argv[0])
    if path is None:
        raise LabError(f"{daemon.argv[0]} is not installed")
    with (layout.log / f"{daemon.name}.out").open("ab") as log:
        child = subprocess.Popen(
            (path, *daemon.argv[1:]),
            env={**scrubbed(layout), **daemon.environment, MARK: str(layout.root)},
            cwd=layout.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    begun = started_at(child.pid)
    if begun is not None:
        known = {**remembered(layout), daemon.name: (child.pid, begun)}
        layout.state.write_text(json.dumps(known))
    deadline = time.monotonic() + START_TIMEOUT_S
    while not daemon.ready():
        if child.poll() is not None:
            raise LabError(
                f"{daemon.name} ended with status {child.returncode}{log_tail(layout, daemon.name)}"
            )
        if time.monotonic() > deadline:
            raise LabError(
                f"{daemon.name} gave no answer in {START_TIMEOUT_S:.0f}"
                f" s{log_tail(layout, daemon.name)}"
            )
        time.sleep(0.05)
    # The child is init's from now on: nobody waits for it here.
    child.returncode = 0


def log_tail(layout: Layout, name: str, lines: int = 5) -> str:
    """Return the last lines a daemon wrote, indented, for an error message."""
    path = layout.log / f"{name}.out"
    text = path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []
    return "".join(f"\n  {line}" for line in (f"{path}:", *text))


def own_cgroups() -> list[Path]:
    """Return the cgroups that the lab's slurmd processes made, deepest first."""
    tops = [top for node in lab_conf.NODES for top in lab_conf.CGROUP_ROOT.glob(f"*/slurm_{node}")]
    found = [Path(folder) for top in tops for folder, _, _ in os.walk(top)]
    return sorted(found, key=lambda folder: len(folder.parts), reverse=True)


def marked(layout: Layout) -> list[int]:
    """Return the pids of the lab's daemons and job step managers, remembered or not."""
    wanted = f"{MARK}={layout.root}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (
                    wanted in (entry / "environ").read_bytes().split(b"\0")
                    and started_at(int(entry.name)) is not None
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def in_cgroups() -> list[int]:
    """Return the pids in the cgroups of node1 and node2: the tasks of jobs, which carry no mark of
    ours.
    """
    found: set[int] = set()
    for folder in own_cgroups():
        try:
            found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
        except OSError:
            continue
    return sorted(found)


def signal_and_wait(pids: list[int], number: signal.Signals, timeout_s: float) -> list[int]:
    """Send a signal and return the processes that are still there after the time limit in seconds."""
    left = {pid: started_at(pid) for pid in pids}
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    deadline = time.monotonic() + timeout_s
    while alive := [
        pid for pid, begun in left.items() if begun is not None and started_at(pid) == begun
    ]:
        if time.monotonic() > deadline:
            return alive
        time.sleep(0.05)
    return []


def stop_all(layout: Layout) -> None:
    """End every process of the lab, in the reverse order of the start, and take its cgroups away.

    Raises:
        LabError: a process is still there after SIGKILL, or a cgroup cannot be removed.
    """
    for daemon in reversed(daemons(layout)):
        # Both slurmd go before slurmctld, which goes before slurmdbd: each still tells the next one
        # what it knows.
        pid = living(layout).get(daemon.name)
        if pid is not None and signal_and_wait([pid], signal.SIGTERM, TERM_TIMEOUT_S):
            signal_and_wait([pid], signal.SIGKILL, TERM_TIMEOUT_S)
    kill_all(lambda: marked(layout))
    # With ours gone, a node that still listens is another lab's, and so are the cgroups.
    if not nodes_listen():
        kill_all(in_cgroups)
        remove_cgroups()
    layout.state.unlink(missing_ok=True)


def kill_all(find: Callable[[], list[int]]) -> None:
    """Send SIGKILL to what is found until nothing is found any more.

    Raises:
        LabError: something stays.
    """
    # More than once: a step manager may have been about to start one more task.
    for _ in range(5):
        found = find()
        if not found:
            return
        signal_and_wait(found, signal.SIGKILL, TERM_TIMEOUT_S)
    raise LabError(f"these processes do not end: {' '.join(map(str, found))}")


def remove_cgroups() -> None:
    """Remove the lab's empty cgroups, the deepest first.

    Raises:
        LabError: one of them stays busy.
    """
    deadline = time.monotonic() + TERM_TIMEOUT_S
    for folder in own_cgroups():
        while folder.exists():
            try:
                folder.rmdir()
            except OSError as error:
                # The kernel needs a moment to let go of a process that has just ended.
                if time.monotonic() > deadline:
                    raise LabError(f"{folder} cannot be removed: {error.strerror}") from error
                time.sleep(0.05)
