"""The lab's verbs. stdout is for the caller's eval, everything else goes to stderr.

Exit status: 0 done · 1 it failed, or the lab is not up · 2 usage · 3 it cannot run on this machine
· 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import lab_conf
import lab_daemons
import lab_host
import lab_play
import lab_sites
from lab_conf import Layout
from lab_daemons import LabError, slurm
from lab_host import Refusal, say

if TYPE_CHECKING:
    from types import FrameType

NODES_TIMEOUT_S = 300.0
UP_STATES = frozenset({"idle", "mixed", "allocated", "completing"})


def main(arguments: list[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    options = parse(arguments)
    layout = Layout(Path(options.dir).absolute())
    # A terminated `up` must clean up after itself as an interrupted one does.
    signal.signal(signal.SIGTERM, interrupted)
    try:
        return int(options.verb(layout, options))
    except Refusal as refusal:
        sys.stderr.write(f"error: the lab cannot run here: {refusal}\n")
        return 3
    except (LabError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        return 130


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options; argparse itself ends with status 2 on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="lab", description="A real two-node Slurm cluster on this machine."
    )
    verbs = parser.add_subparsers(required=True, metavar="up|down|status|env|play|unplay|sites")
    default = os.environ.get("HPCTRAIN_LAB_DIR", lab_conf.DIRECTORY)
    for name, verb, text in (
        ("up", up, "start it, or do nothing if it runs; prints 'export SLURM_CONF=...' for eval"),
        ("down", down, "cancel its jobs, stop it, and remove all it made"),
        ("status", status, "say in one line whether it is up; exit status 0 or 1"),
        ("env", env, "print the export line, or exit with status 1 if it is not up"),
        (
            "play",
            play,
            (
                "start played sites, and the lab if it is not up; prints the export line, or for"
                " several sites lines of SITE PATH"
            ),
        ),
        ("unplay", unplay, "stop played sites, all of them if none is named"),
        ("sites", sites, "list the sites that can be played, and whether they are"),
    ):
        sub = verbs.add_parser(name, help=text, description=text)
        sub.add_argument(
            "--dir", default=default, help="everything it writes goes here (default: %(default)s)"
        )
        sub.set_defaults(verb=verb)
        if name in ("play", "unplay"):
            sub.add_argument("site", nargs="*", help="a directory under tests/lab/sites")
        if name == "play":
            sub.add_argument("--all", action="store_true", help="every site")
    options = parser.parse_args(arguments)
    unknown = set(getattr(options, "site", ())).difference(lab_sites.names())
    if unknown:
        parser.error(
            f"no site {', '.join(sorted(unknown))}; there are {', '.join(lab_sites.names())}"
        )
    if options.verb is play and not options.site and not options.all:
        parser.error(f"play which site? {', '.join(lab_sites.names())}")
    return options


def interrupted(_number: int, _frame: FrameType | None) -> None:
    """Turn SIGTERM into the exception that SIGINT already is."""
    raise KeyboardInterrupt


def up(layout: Layout, _options: argparse.Namespace) -> int:
    """Start whatever of the lab is not running and wait for both nodes."""
    ensure_up(layout)
    print_exports(layout)
    return 0


def ensure_up(layout: Layout) -> None:
    """Start whatever of the lab is not running, wait for both nodes, and print nothing on stdout."""
    begun = time.monotonic()
    if healthy(layout):
        return
    lab_host.require_machine()
    check_directory(layout)
    missing = lab_host.missing_packages()
    if missing:
        lab_host.install(missing)
    with lab_host.locked(layout) as fresh:
        # Somebody else's `up` may have finished while this one waited for the lock.
        if not healthy(layout):
            bring_up(layout, fresh=fresh)
    say(f"up in {time.monotonic() - begun:.1f} s")


def play(layout: Layout, options: argparse.Namespace) -> int:
    """Start played sites; see lab_play."""
    ensure_up(layout)
    begun = time.monotonic()
    wanted = lab_sites.names() if options.all else options.site
    lab_play.play(layout, wanted)
    say(f"plays {', '.join(wanted)} after {time.monotonic() - begun:.1f} s")
    for name in wanted:
        conf = lab_sites.layout(layout, name).slurm_conf
        sys.stdout.write(f"export SLURM_CONF={conf}\n" if len(wanted) == 1 else f"{name} {conf}\n")
    return 0


def unplay(layout: Layout, options: argparse.Namespace) -> int:
    """Stop played sites; nothing to do is fine."""
    if options.site:
        lab_play.unplay(layout, options.site)
    else:
        lab_play.unplay_all(layout)
    return 0


def sites(layout: Layout, _options: argparse.Namespace) -> int:
    """List the sites."""
    now = lab_play.played(layout)
    sys.stdout.write(
        "".join(f"{name}{'  played' if name in now else ''}\n" for name in lab_sites.names())
    )
    return 0


def bring_up(layout: Layout, *, fresh: bool) -> None:
    """Write the configuration, start the daemons that are not alive, and wait for the nodes.

    Args:
        layout: where the lab lives.
        fresh: there was no lab in this directory before, so nothing on the machine can be left over
            from one.
    """
    alive = lab_daemons.living(layout)
    todo = [daemon for daemon in lab_daemons.daemons(layout) if daemon.name not in alive]
    try:
        if fresh and (strangers := lab_daemons.in_cgroups()):
            raise Refusal(
                f"a slurmd that is not ours runs jobs as {' or '.join(lab_conf.NODES)} (pid"
                f" {strangers[0]})"
            )
        if not alive:
            # After a crash of everything: daemons that the state file has forgotten still hold the
            # ports.
            lab_daemons.stop_all(layout)
        lab_host.require_ports([daemon.port for daemon in todo if daemon.port is not None])
        prepare(layout)
    except Refusal:
        if fresh:
            discard(layout)
        raise
    try:
        for daemon in todo:
            say(f"starting {daemon.name}")
            lab_daemons.start(layout, daemon)
            if daemon.name == "slurmdbd":
                register(layout)
        wait_for_nodes(layout)
    except BaseException:
        # Nothing half-started stays behind; the directory does, for its logs.
        lab_daemons.stop_all(layout)
        forget_hosts()
        raise


def prepare(layout: Layout) -> None:
    """Make the files, the fake GPUs, the addresses and the empty database.

    Raises:
        Refusal: this machine does not allow one of them.
        LabError: MariaDB cannot make its tables.
    """
    try:
        lab_conf.write_config(layout, socket.gethostname().partition(".")[0])
        lab_host.edit_hosts(present=True)
    except OSError as error:
        raise Refusal(f"{error.filename or layout.root}: {error.strerror}") from error
    if layout.accounts_done.exists():
        return
    # A first `up` that broke off has left half a database.
    shutil.rmtree(layout.database, ignore_errors=True)
    made = subprocess.run(
        (
            lab_host.program("mariadb-install-db") or "mariadb-install-db",
            "--no-defaults",
            "--user=root",
            f"--datadir={layout.database}",
            "--skip-test-db",
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise LabError(f"mariadb-install-db failed: {made.stdout}{made.stderr}")


def register(layout: Layout) -> None:
    """Tell the accounting database about the cluster, its accounts, its QOS and root's right to use
    them.

    Raises:
        LabError: sacctmgr refused, with its words.
    """
    if layout.accounts_done.exists():
        return
    accounts = ",".join(lab_conf.ACCOUNTS)
    for order in (
        f"add cluster {lab_conf.CLUSTER}",
        "add qos debug set MaxWall=00:10:00",
        f"add account {accounts} Cluster={lab_conf.CLUSTER} set QOS=normal,debug DefaultQOS=normal",
        f"add user root Account={accounts}",
        f"modify user root set DefaultAccount={lab_conf.DEFAULT_ACCOUNT}",
        # Slurm gives root the account 'root'; no user of a real site has one.
        "delete user root where Account=root",
    ):
        done = slurm(layout, "sacctmgr", "--immediate", "--quiet", *order.split())
        if done.returncode:
            raise LabError(f"sacctmgr {order}: {(done.stderr or done.stdout).strip()}")
    layout.accounts_done.touch()


def node_states(layout: Layout) -> dict[str, str]:
    """Return node → state as sinfo says it ('idle', 'mixed', 'idle*' for one that does not answer)."""
    asked = slurm(
        layout, "sinfo", "--noheader", "--Node", "--partition=boost_usr_prod", "--format=%N %T"
    )
    if asked.returncode:
        return {}
    return dict(line.split(maxsplit=1) for line in asked.stdout.splitlines() if line.strip())


def wait_for_nodes(layout: Layout) -> None:
    """Wait until both nodes take jobs; a node that was down or drained is resumed.

    Raises:
        LabError: they do not in time.
    """
    deadline = time.monotonic() + NODES_TIMEOUT_S
    while True:
        states = node_states(layout)
        if ready(states):
            return
        if time.monotonic() > deadline:
            raise LabError(f"the nodes are not idle after {NODES_TIMEOUT_S:.0f} s: {states}")
        for node, state in states.items():
            if state.startswith(("down", "drain")):
                slurm(layout, "scontrol", "update", f"NodeName={node}", "State=RESUME")
        time.sleep(0.2)


def ready(states: dict[str, str]) -> bool:
    """Say whether every node of the lab is there and takes jobs."""
    return set(states) == set(lab_conf.NODES) and UP_STATES.issuperset(states.values())


def healthy(layout: Layout) -> bool:
    """Say whether every daemon is alive and both nodes take jobs."""
    return len(lab_daemons.living(layout)) == len(lab_daemons.daemons(layout)) and ready(
        node_states(layout)
    )


def print_exports(layout: Layout) -> None:
    """Print what the caller evals."""
    sys.stdout.write(f"export SLURM_CONF={layout.slurm_conf}\n")


def down(layout: Layout, _options: argparse.Namespace) -> int:
    """Stop the lab and take away what it made; nothing to do is fine."""
    begun = time.monotonic()
    if not layout.marker.exists():
        say(f"no lab in {layout.root}")
        return 0
    # Before the lab's MariaDB and munge, which their daemons need to end in peace.
    lab_play.unplay_all(layout)
    with lab_host.locked(layout):
        cancel_jobs(layout)
        lab_daemons.stop_all(layout)
        forget_hosts()
        shutil.rmtree(layout.root)
    say(f"down in {time.monotonic() - begun:.1f} s")
    return 0


def cancel_jobs(layout: Layout) -> None:
    """Cancel every job and give the running ones the time that KillWait grants them."""
    if "slurmctld" not in lab_daemons.living(layout):
        return
    deadline = time.monotonic() + lab_conf.KILL_WAIT_S + 3
    cancelled: set[str] = set()
    while True:
        jobs = set(
            slurm(layout, "squeue", "--noheader", "--format=%F", timeout_s=10).stdout.split()
        )
        if jobs - cancelled:
            say(f"cancelling {len(jobs)} jobs")
            slurm(layout, "scancel", *sorted(jobs), timeout_s=10)
            cancelled |= jobs
        if not jobs or time.monotonic() > deadline:
            return
        time.sleep(0.3)


def status(layout: Layout, _options: argparse.Namespace) -> int:
    """Say in one line whether the lab is up."""
    alive = lab_daemons.living(layout)
    states = node_states(layout) if "slurmctld" in alive else {}
    nodes = ", ".join(f"{node} {state}" for node, state in sorted(states.items()))
    dead = [daemon.name for daemon in lab_daemons.daemons(layout) if daemon.name not in alive]
    good = not dead and ready(states)
    if good:
        line = f"{lab_conf.CLUSTER} is up: {nodes}"
    elif not alive:
        line = f"{lab_conf.CLUSTER} is down"
    else:
        line = (
            f"{lab_conf.CLUSTER} is broken: {nodes or 'no node answers'}; not running:"
            f" {', '.join(dead) or 'none'}"
        )
    sys.stdout.write(f"{line} ({layout.root})\n")
    return 0 if good else 1


def env(layout: Layout, _options: argparse.Namespace) -> int:
    """Print the export line if the lab is up."""
    if not healthy(layout):
        sys.stderr.write("error: the lab is not up\nfix: tests/lab/lab up\n")
        return 1
    print_exports(layout)
    return 0


def check_directory(layout: Layout) -> None:
    """Check that the lab may live in this directory, before anything is written.

    Raises:
        Refusal: Slurm or a Unix socket cannot take the path, or it holds somebody else's files.
    """
    path = str(layout.root)
    if len(path) > lab_conf.MAX_DIR_LENGTH or not all(
        char.isalnum() or char in "/._-" for char in path
    ):
        raise Refusal(
            f"{path!r} must have at most {lab_conf.MAX_DIR_LENGTH} characters out of A-Z a-z 0-9 /"
            " . _ -"
        )
    if (
        layout.root.exists()
        and not layout.marker.exists()
        and (not layout.root.is_dir() or any(layout.root.iterdir()))
    ):
        raise Refusal(f"{path} holds other files; name another directory with --dir")


def forget_hosts() -> None:
    """Take the lab's line out of /etc/hosts, unless another lab's nodes need it."""
    if not lab_daemons.nodes_listen():
        lab_host.edit_hosts(present=False)


def discard(layout: Layout) -> None:
    """Take back what a refused `up` has written."""
    forget_hosts()
    shutil.rmtree(layout.root)
