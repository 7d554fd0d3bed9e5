"""Playing sites: for each a slurmdbd and a slurmctld of its own, with the site's nodes, partitions,
accounts, QOS and policy.

The nodes are only known to slurmctld, so no job runs: what sbatch accepts stays in the queue, what
it refuses is refused in the site's words. munge and MariaDB are the lab's.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import lab_daemons
import lab_host
import lab_sites
from lab_conf import Layout
from lab_daemons import Daemon, LabError, slurm
from lab_host import program
from lab_sites import Site

if TYPE_CHECKING:
    from collections.abc import Callable


def daemons(site: Site, home: Layout, lab: Layout) -> list[Daemon]:
    """Return the site's two programs in the order they need each other."""
    return [
        Daemon(
            "slurmdbd",
            ("slurmdbd", "-D"),
            lambda: lab_daemons.port_listens(site.port + 1),
            site.port + 1,
            {"MYSQL_UNIX_PORT": str(lab.mysql_socket)},
        ),
        Daemon(
            "slurmctld",
            ("slurmctld", "-D"),
            lambda: slurm(home, "scontrol", "ping").returncode == 0,
            site.port,
        ),
    ]


def play(lab: Layout, names: list[str]) -> None:
    """Start these sites at the same time; one that is played already, as its directory describes
    it, is left alone.

    Most of the time goes to answers of slurmdbd, so several sites take hardly longer than one.

    Raises:
        LabError: a daemon did not start, or sacctmgr refused.
    """
    together(play_one, lab, names)


def together(work: Callable[[Layout, str], None], lab: Layout, names: list[str]) -> None:
    """Do the same for each site, all at once; the first failure is raised when all have ended."""
    with ThreadPoolExecutor(max_workers=max(len(names), 1)) as pool:
        for done in [pool.submit(work, lab, name) for name in names]:
            done.result()


def play_one(lab: Layout, name: str) -> None:
    """Start one site from nothing, or leave it alone if it is played as described."""
    site, home = lab_sites.read(name), lab_sites.layout(lab, name)
    wanted, done = lab_sites.digest(site), home.root / "played"
    with lab_host.locked(home):
        if done.exists() and done.read_text() == wanted and len(lab_daemons.living(home)) == 2:
            return
        done.unlink(missing_ok=True)
        stop(home)
        lab_host.require_ports([site.port, site.port + 1])
        drop_database(lab, name)
        lab_sites.write_config(site, home, lab, socket.gethostname().partition(".")[0])
        try:
            for daemon in daemons(site, home, lab):
                lab_daemons.start(home, daemon)
            register(site, home)
        except BaseException:
            stop(home)
            raise
        done.write_text(wanted)


def register(site: Site, home: Layout) -> None:
    """Fill the site's accounting: QOS, then the accounts that name them.

    After slurmctld: it brings the TRES that limits name.

    Raises:
        LabError: sacctmgr refused, or the site's QOS and accounts are not there afterwards.
    """
    # Slurm gives root the account 'root'; no user of a real site has one.
    goodbye = "delete user root where Account=root\n"
    for argv, typed in (
        (("sacctmgr", "-i"), lab_sites.qos_orders(site)),
        (("sacctmgr", "-i", "load", f"file={home.etc}/associations"), ""),
        (("sacctmgr", "-i"), goodbye),
    ):
        if argv == ("sacctmgr", "-i") and not typed:
            continue
        done = subprocess.run(
            argv,
            env=lab_daemons.scrubbed(home),
            input=typed,
            capture_output=True,
            text=True,
            timeout=lab_daemons.START_TIMEOUT_S,
            check=False,
        )
        if done.returncode or "error" in done.stdout + done.stderr:
            raise LabError(f"{site.name}: {' '.join(argv)}: {(done.stderr + done.stdout).strip()}")
    listed = slurm(
        home, "sacctmgr", "-nP", "show", "assoc", "user=root", "format=account,defaultqos,qos"
    ).stdout.splitlines()
    members = {name for name, account in site.accounts.items() if account.user}
    if {line.partition("|")[0] for line in listed} != members:
        raise LabError(f"{site.name}: sacctmgr lists the accounts {listed}, not {sorted(members)}")


def stop(home: Layout) -> None:
    """End the daemons of one site, at once: nobody wants their state."""
    lab_daemons.kill_all(lambda: lab_daemons.marked(home))
    home.state.unlink(missing_ok=True)


def unplay(lab: Layout, names: list[str]) -> None:
    """Stop these sites and take away what they left; one that is not played is fine."""
    together(unplay_one, lab, names)


def unplay_one(lab: Layout, name: str) -> None:
    """Stop one site."""
    home = lab_sites.layout(lab, name)
    if home.marker.exists():
        with lab_host.locked(home):
            stop(home)
            drop_database(lab, name)
            shutil.rmtree(home.root)


def unplay_all(lab: Layout) -> None:
    """Stop every site that was played from this directory, also one whose description is gone."""
    unplay(lab, sorted(folder.name for folder in (lab.root / "sites").glob("*")))


def played(lab: Layout) -> list[str]:
    """Return the sites that are played now."""
    homes = {name: lab_sites.layout(lab, name) for name in lab_sites.names()}
    return [
        name
        for name, home in homes.items()
        if (home.root / "played").exists() and len(lab_daemons.living(home)) == 2
    ]


def drop_database(lab: Layout, name: str) -> None:
    """Remove a site's database from the lab's MariaDB, if both are there."""
    if not lab_daemons.socket_answers(lab.mysql_socket):
        return
    order = f"DROP DATABASE IF EXISTS {lab_sites.database(name)}"
    argv = (
        program("mariadb") or "mariadb",
        "--no-defaults",
        f"--socket={lab.mysql_socket}",
        "--user=root",
        f"--execute={order}",
    )
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        raise LabError(f"{order}: {done.stderr.strip()}")
