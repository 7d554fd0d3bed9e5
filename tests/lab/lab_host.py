"""What the lab asks of the machine: can it run here, are the packages there, do its nodes have an
address.

Raises Refusal, with one line, before anything has been started.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import lab_conf

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "munge",
    "slurmdbd",
    "mariadb-server",
    "slurm-wlm-mysql-plugin",
    "environment-modules",
)
PROGRAMS = (
    "slurmctld",
    "slurmd",
    "sbatch",
    "munged",
    "slurmdbd",
    "mariadbd",
    "mariadb",
    "mariadb-install-db",
)
HIERARCHIES = ("memory", "freezer")
HOSTS_MARK = f"# hpctrain-lab{lab_conf.SUFFIX}"
HOSTS_LINE = f"127.0.0.1 {' '.join(lab_conf.NODES)} {HOSTS_MARK}"
APT_TIMEOUT_S = 900
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Refusal(Exception):  # noqa: N818 -- not an error of the lab: this machine cannot hold it
    """The lab cannot run here; the message is one line."""


def say(text: str) -> None:
    """Write one line of progress; stdout is for the caller's eval."""
    sys.stderr.write(f"lab: {text}\n")


def program(name: str) -> str | None:
    """Return the path of a program, also from the sbin folders that a user's PATH often lacks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def missing_packages() -> list[str]:
    """Return the packages that dpkg does not list as installed.

    On a machine without dpkg the programs themselves are looked for, and their names are returned
    instead.
    """
    dpkg = program("dpkg-query")
    if dpkg is None:
        return [name for name in PROGRAMS if program(name) is None]
    asked = subprocess.run(
        [dpkg, "-W", "-f=${Package} ${db:Status-Status}\n", *PACKAGES],
        capture_output=True,
        text=True,
        check=False,
    )
    installed = {
        line.split()[0] for line in asked.stdout.splitlines() if line.endswith(" installed")
    }
    return [name for name in PACKAGES if name not in installed]


def install(packages: list[str]) -> None:
    """Install Debian packages; the package lists are only fetched when the first try fails.

    Raises:
        Refusal: apt-get is missing or failed.
    """
    apt = program("apt-get")
    if apt is None or program("dpkg-query") is None:
        raise Refusal(f"no {', '.join(packages)} and no apt-get to install them with")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    order = [apt, "install", "--yes", "--quiet", "--no-install-recommends", *packages]
    say(f"installing {' '.join(packages)}")
    # apt writes to our stderr: stdout may be the caller's eval.
    for argv in (order, [apt, "update", "--quiet"], order):
        done = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            timeout=APT_TIMEOUT_S,
            check=False,
        )
        if argv is order and done.returncode == 0:
            return
    raise Refusal(f"apt-get could not install {' '.join(packages)} (exit status {done.returncode})")


def require_machine() -> None:
    """Check the things no package can bring.

    Raises:
        Refusal: not Linux, not root, no cgroup v1 hierarchy that can be written, or a read-only
            /etc/hosts.
    """
    if not sys.platform.startswith("linux"):
        raise Refusal(f"Slurm's cgroup plugins need Linux, this is {sys.platform}")
    if os.geteuid() != 0:
        raise Refusal(f"it needs root (device files, cgroups, munge), this is uid {os.geteuid()}")
    for name in HIERARCHIES:
        require_hierarchy(lab_conf.CGROUP_ROOT / name)
    if not hosts_known(Path("/etc/hosts").read_text()) and not os.access("/etc/hosts", os.W_OK):
        raise Refusal(
            f"{' and '.join(lab_conf.NODES)} have no address and /etc/hosts cannot be written"
        )


def require_hierarchy(folder: Path) -> None:
    """Check that a cgroup v1 hierarchy is mounted at a folder and takes a new group.

    Raises:
        Refusal: it does not.
    """
    if not (folder / "cgroup.procs").exists():
        raise Refusal(f"no cgroup v1 hierarchy at {folder}")
    probe = folder / f"hpctrain_lab_probe_{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise Refusal(
            f"the cgroup v1 hierarchy at {folder} cannot be written: {error.strerror}"
        ) from error


def require_ports(ports: list[int]) -> None:
    """Check that nobody listens where a daemon of the lab is about to.

    Raises:
        Refusal: a port is taken.
    """
    for port in ports:
        with socket.socket() as probe:
            # As the daemons do: a connection of the last minute in TIME_WAIT is no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))  # noqa: S104 -- bound and closed again, never listened on
            except OSError as error:
                raise Refusal(
                    f"port {port} is taken ({error.strerror}): does another lab run here?"
                ) from error


def hosts_known(text: str) -> bool:
    """Say whether the text of /etc/hosts names every node of the lab."""
    names = {name for line in text.splitlines() for name in line.partition("#")[0].split()[1:]}
    return names.issuperset(lab_conf.NODES)


def hosts_with(text: str) -> str:
    """Return the text of /etc/hosts with the lab's line, unless it names the nodes already."""
    if hosts_known(text):
        return text
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{HOSTS_LINE}\n"


def hosts_without(text: str) -> str:
    """Return the text of /etc/hosts without the lines that the lab added."""
    return "".join(
        line for line in text.splitlines(keepends=True) if not line.rstrip().endswith(HOSTS_MARK)
    )


def edit_hosts(*, present: bool) -> None:
    """Add the lab's line to /etc/hosts, or take it out.

    The file is written in place: in a container it is a mount of its own and cannot be replaced.
    """
    path = Path("/etc/hosts")
    before = path.read_text()
    after = hosts_with(before) if present else hosts_without(before)
    if after != before:
        path.write_text(after)


@contextmanager
def locked(layout: lab_conf.Layout) -> Iterator[bool]:
    """Keep a second `up` or `down` of the same directory waiting; make the directory if it is
    missing.

    Yields:
        Whether the directory was no lab before.
    """
    while True:
        layout.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(layout.root, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # A `down` may have removed the directory that we waited for.
            if layout.root.exists() and layout.root.stat().st_ino == os.fstat(handle).st_ino:
                fresh = not layout.marker.exists()
                layout.marker.touch()
                yield fresh
                return
        finally:
            os.close(handle)
