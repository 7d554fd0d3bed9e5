"""Run a command where another Debian's Slurm is installed: a tree that debootstrap makes once,
entered with namespaces of its own.

The mounts, processes and ports of such a run are its own too, and end with it: the lab in it has
any number, beside whatever runs here. The tree is never written to; /tmp is empty at each start.
The checkout and the Python that runs this are seen in it at their usual paths.

Exit status: the command's · 1 the tree could not be made · 2 usage · 3 it cannot run on this
machine.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

REPOSITORY = Path(__file__).resolve().parents[2]
#: Debian's name for each release that was tried, and the Slurm in it.
SUITES = {"bookworm": "22.05", "trixie": "24.11", "sid": "whatever is newest"}
MIRROR = "http://deb.debian.org/debian"
#: What the lab asks for (lab_host), what its tests use, and the libraries of a Python that was
#: built elsewhere.
PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "munge",
    "slurmdbd",
    "mariadb-server",
    "slurm-wlm-mysql-plugin",
    "environment-modules",
    "btrfs-progs",
    "ca-certificates",
    "git",
    "iproute2",
    "kmod",
    "mount",
    "procps",
    "python3-venv",
    "libbz2-1.0",
    "libexpat1",
    "libffi8",
    "liblzma5",
    "libncursesw6",
    "libsqlite3-0",
    "libssl-dev",
    "zlib1g",
)
#: Packages that one suite takes from another: slurmdbd 26.05 cannot talk to a database through
#: sid's libmariadb of November 2026.
FROM_ELSEWHERE = {"sid": ("trixie", "libmariadb3")}
#: The cgroup v1 hierarchies that the lab's slurmd needs.
HIERARCHIES = ("memory", "freezer")
CGROUPS = Path("/sys/fs/cgroup")
#: Tests of what hpctrain asks Slurm, and of what it makes of the answers.
TESTS = (
    "test_check",
    "test_discover",
    "test_end_to_end",
    "test_explain",
    "test_explain_node",
    "test_lab",
    "test_late_sbatch",
    "test_ps",
    "test_report",
    "test_requeue",
    "test_runs",
    "test_same_script",
    "test_watch",
)
NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--cgroup", "--fork", "--kill-child=SIGKILL")
#: Goes into cgroups, then becomes a program: a cgroup namespace begins where the process is.
INTO_CGROUPS = (
    'while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 3; shift; done; shift; exec "$@"'
)


class Refusal(Exception):  # noqa: N818 -- not an error: this machine cannot do it
    """It cannot run here; the message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the tree if it is not there, run the command in it, and return its exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, stopped)
    try:
        if options.inside:
            return inside(options)
        require_machine()
        tree = built(options.suite, options.cache)
        with (
            tempfile.TemporaryDirectory(prefix="hpctrain-other-slurm-") as place,
            own_cgroups() as cgroups,
        ):
            return outside(options, tree, Path(place), cgroups)
    except Refusal as refusal:
        sys.stderr.write(f"error: another Slurm cannot run here: {refusal}\n")
        return 3
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; argparse itself ends with status 2 on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="other_slurm",
        description=(
            "Run a command where another Debian's Slurm is installed: by default the tests of"
            " tests/lab that ask Slurm."
        ),
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("/var/cache/hpctrain-lab"),
        help="the trees are here (default: %(default)s)",
    )
    parser.add_argument(
        "--bind",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a directory that is seen in it too",
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument(
        "suite",
        choices=SUITES,
        help="; ".join(f"{name}: Slurm {version}" for name, version in SUITES.items()),
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="runs in the checkout, with this Python first on PATH",
    )
    return parser.parse_args(arguments)


def stopped(_number: int, _frame: FrameType | None) -> None:
    """End as after Ctrl-C, with what has to be cleaned up."""
    raise SystemExit(128 + signal.SIGTERM)


def require_machine() -> None:
    """Check what no tree can bring.

    Raises:
        Refusal: not Linux, not root, no debootstrap, no cgroup v1, or a Python that lies where the
            tree has its own.
    """
    if not sys.platform.startswith("linux"):
        raise Refusal(f"it needs Linux, this is {sys.platform}")
    if os.geteuid() != 0:
        raise Refusal(f"it needs root (mounts, namespaces, cgroups), this is uid {os.geteuid()}")
    for program in ("debootstrap", "unshare", "mount"):
        if shutil.which(program) is None:
            raise Refusal(f"no {program} on PATH: apt-get install debootstrap util-linux mount")
    for name in HIERARCHIES:
        if not (CGROUPS / name / "cgroup.procs").exists():
            raise Refusal(f"no cgroup v1 hierarchy at {CGROUPS / name}")
    if sys.base_prefix == "/usr":
        raise Refusal(
            "this Python is the system's own, in whose place the tree has another: run it with one"
            " from elsewhere"
        )


def built(suite: str, cache: Path) -> Path:
    """Return the tree of a suite; it is made on the first call, in some minutes, and is complete or
    not there.
    """
    tree = cache / suite
    if tree.exists():
        return tree
    cache.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"other_slurm: making {tree} from {MIRROR} (1 GB, some minutes)\n")
    with tempfile.TemporaryDirectory(prefix=f"{suite}-", dir=cache) as place:
        made = Path(place) / suite
        # In namespaces too: what debootstrap mounts and starts ends with it, whatever happens.
        unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL")
        order = (
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            suite,
            str(made),
            MIRROR,
        )
        subprocess.run((*unshare, *order), check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        if suite in FROM_ELSEWHERE:
            other, package = FROM_ELSEWHERE[suite]
            (made / "etc/apt/sources.list.d/other.list").write_text(f"deb {MIRROR} {other} main\n")
            # A mirror may keep a sid that is older than its own lists allow.
            apt = (
                "chroot",
                str(made),
                "apt-get",
                "--quiet",
                "--option",
                "Acquire::Check-Valid-Until=false",
            )
            for words in (
                ("update",),
                ("install", "--yes", "--allow-downgrades", f"{package}/{other}"),
            ):
                subprocess.run(
                    (*unshare, *apt, *words),
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr,
                )
        shutil.rmtree(made / "var/cache/apt/archives", ignore_errors=True)
        made.rename(tree)
    return tree


@contextmanager
def own_cgroups() -> Iterator[list[Path]]:
    """Give a new cgroup of each hierarchy, and take it away with all that was made in it."""
    folders = [CGROUPS / name / f"hpctrain-other-slurm-{os.getpid()}" for name in HIERARCHIES]
    try:
        for folder in folders:
            folder.mkdir()
        yield folders
    finally:
        for folder in folders:
            remove_cgroup(folder)


def remove_cgroup(top: Path) -> None:
    """Remove a cgroup and those in it; the kernel needs a moment to let go of processes that have
    just ended.

    Raises:
        OSError: it stays busy for 20 s.
    """
    deadline = time.monotonic() + 20
    while top.exists():
        try:
            for folder, _, _ in os.walk(top, topdown=False):
                Path(folder).rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def outside(options: argparse.Namespace, tree: Path, place: Path, cgroups: list[Path]) -> int:
    """Start the first process of the new namespaces, and wait for its end."""
    again = [
        sys.executable,
        str(Path(__file__).with_name("other_slurm")),
        f"--cache={tree.parent}",
        f"--inside={place}",
    ]
    binds = [f"--bind={folder.resolve()}" for folder in options.bind]
    argv = [
        "/bin/sh",
        "-c",
        INTO_CGROUPS,
        "sh",
        *map(str, cgroups),
        "--",
        "unshare",
        *NAMESPACES,
        "--",
        *again,
        *binds,
    ]
    child = subprocess.Popen([*argv, options.suite, *options.command])
    try:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:  # the command has been told too, and may take its time
                continue
    finally:
        child.kill()  # after a SIGTERM; the first process in there ends with it, and so all others
        child.wait()


def inside(options: argparse.Namespace) -> int:
    """Mount everything, change into the tree, run the command, and bury whom nobody waits for: this
    is process 1 here.
    """
    root = mounted(
        options.cache / options.suite,
        options.inside,
        [REPOSITORY, *map(Path, (sys.prefix, sys.base_prefix)), *options.bind],
    )
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    # With loopback addresses alone, getaddrinfo (AI_ADDRCONFIG) has none for slurmdbd to listen on.
    subprocess.run(("ip", "address", "add", "192.0.2.1/32", "dev", "lo"), check=True)
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    os.chroot(root)
    os.chdir(REPOSITORY)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("TERM", "COLUMNS") or name.startswith(("HPCTRAIN_", "OMP_"))
    }
    environment = kept | {
        "PATH": f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "HPCTRAIN_REQUIRE_LAB": "1",
    }
    version = subprocess.run(
        ("slurmctld", "-V"), env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    sys.stderr.write(f"other_slurm: {version} of Debian {options.suite}\n")
    child = subprocess.Popen(options.command or tests(), env=environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


def tests() -> list[str]:
    """Return the command that runs the lab's tests."""
    files = [f"tests/lab/{name}.py" for name in TESTS]
    return [
        "tests/with_lab.sh",
        "python",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "3",
        "--dist",
        "loadfile",
        *files,
    ]


def mounted(tree: Path, place: Path, binds: Sequence[Path]) -> Path:
    """Return the root for the command: the tree under a layer in memory, /proc, /sys, /dev,
    cgroups, what is seen of this machine.
    """
    mount("-t", "tmpfs", "tmpfs", place)
    root, upper, work = (place / name for name in ("root", "upper", "work"))
    for folder in (root, upper, work):
        folder.mkdir()
    mount(
        "-t", "overlay", "overlay", "-o", f"lowerdir={tree},upperdir={upper},workdir={work}", root
    )
    mount("-t", "proc", "proc", root / "proc")
    mount("-t", "sysfs", "sysfs", root / "sys")
    mount("--rbind", "/dev", root / "dev")
    mount("-t", "tmpfs", "tmpfs", root / "tmp")
    mount("-t", "tmpfs", "tmpfs", root / "sys/fs/cgroup")
    for name in HIERARCHIES:
        (root / f"sys/fs/cgroup/{name}").mkdir()
        mount("-t", "cgroup", "-o", name, "cgroup", root / f"sys/fs/cgroup/{name}")
    for folder in sorted(set(binds)):
        target = root / folder.relative_to("/")
        target.mkdir(parents=True, exist_ok=True)
        mount("--bind", folder, target)
    return root


def mount(*words: str | Path) -> None:
    """Mount something in this namespace."""
    subprocess.run(("mount", *words), check=True)
