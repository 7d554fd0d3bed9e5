"""What a played site is: its directory under sites/, and the text of its configuration files.

A site is described in Slurm's own words: lines of slurm.conf, the policy as job_submit.lua and
cli_filter.lua, the limits as sacctmgr takes them. This module only reads and writes files.
"""

import hashlib
import re
import shutil
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab_conf import CGROUP_ROOT, Layout

SITES = Path(__file__).with_name("sites")
# Not the lab's: a played site's SLURM_CONF must not be taken for a lab that can be brought up.
MARK = ".hpctrain-lab-site"
# Each site has two ports, in the order of the names: slurmctld and slurmdbd.
FIRST_PORT = 17200
POLICIES = {"job_submit.lua": "JobSubmitPlugins=lua", "cli_filter.lua": "CliFilterPlugins=lua"}

# What every site's slurm.conf starts with; a key in the site's own lines takes the place of one
# here.
SLURM_CONF = """\
ClusterName={name}
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge_socket}
CredType=cred/munge
MpiDefault=none
MailProg=/bin/true
StateSaveLocation={spool}/slurmctld
SlurmctldPidFile={run}/slurmctld.pid
SlurmctldLogFile={log}/slurmctld.log
SlurmctldDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
EnforcePartLimits=ALL
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={database_port}
AccountingStoragePass={munge_socket}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_comment
# The nodes are of the cloud kind and asleep: they need no slurmd, and sinfo, sbatch and its --test-only take them for idle.
PrivateData=cloud
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=INFINITE
ResumeTimeout=36000
# No job ever runs: slurmctld may give it nodes once, when it has just started, and then waits for them to wake up.
SchedulerType=sched/backfill
SchedulerParameters=defer,sched_interval=86400,sched_min_interval=2000000000,bf_interval=3600
"""


@dataclass(frozen=True, slots=True)
class Account:
    """An account of a site, and how root, the only user, is tied to it.

    Attributes:
        qos: the QOS that its jobs may use.
        default_qos: the one that a job without --qos gets; without it, and with several in `qos`,
            such a job is refused.
        limits: as `sacctmgr load` takes them: `MaxSubmitJobs=0`.
        partitions: the user may use it there alone; empty: everywhere.
        user: whether the user is a member at all.
    """

    qos: tuple[str, ...] = ("normal",)
    default_qos: str | None = None
    limits: str = ""
    partitions: tuple[str, ...] = ()
    user: bool = True


@dataclass(frozen=True, slots=True)
class Site:
    """One directory under sites/, read.

    Attributes:
        name: of the directory, and of hpctrain's cluster profile.
        slurm_conf: the site's own lines: nodes (each with State=CLOUD), partitions, and what
            differs from `SLURM_CONF`.
        qos: QOS → its limits, as `sacctmgr add qos` takes them.
        accounts: account → `Account`; the first one is the user's default account unless
            `default_account` says otherwise.
        policies: file name → text of the Lua plugins.
        without: keys of `SLURM_CONF` that the site does not have.
        port: the first of its two ports.
    """

    name: str
    slurm_conf: str
    accounts: dict[str, Account]
    default_account: str
    port: int
    qos: dict[str, str] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()


def names() -> list[str]:
    """Return the names of all sites, in order."""
    return sorted(file.parent.name for file in SITES.glob("*/site.toml"))


def read(name: str) -> Site:
    """Return the description of a site.

    Raises:
        OSError: there is none.
        ValueError: it is no TOML, or says what no site can.
        TypeError: it has a key that no site has.
    """
    folder = SITES / name
    said: dict[str, Any] = tomllib.loads((folder / "site.toml").read_text())
    accounts = {
        account: Account(
            **{
                key: tuple(value) if isinstance(value, list) else value
                for key, value in keys.items()
            }
        )
        for account, keys in said["accounts"].items()
    }
    return Site(
        name=name,
        slurm_conf=said["slurm_conf"],
        accounts=accounts,
        default_account=said.get("default_account", next(iter(accounts))),
        port=FIRST_PORT + 2 * names().index(name),
        qos=said.get("qos", {}),
        without=tuple(said.get("without", ())),
        policies={
            file: (folder / file).read_text() for file in POLICIES if (folder / file).exists()
        },
    )


def slurm_conf(site: Site, home: Layout, lab: Layout, hostname: str) -> str:
    """Return the site's slurm.conf: the common lines, except those that the site has of its own,
    and the site's.
    """
    common = SLURM_CONF.format(
        name=site.name,
        hostname=hostname,
        controller_port=site.port,
        database_port=site.port + 1,
        munge_socket=lab.munge_socket,
        spool=home.spool,
        run=home.run,
        log=home.log,
    ) + "".join(f"{POLICIES[file]}\n" for file in site.policies)
    own = {line.partition("=")[0] for line in site.slurm_conf.splitlines()} | {*site.without}
    kept = [line for line in common.splitlines() if line.partition("=")[0] not in own]
    return "\n".join(
        ("# Written by tests/lab/lab; `lab play` writes it again.", *kept, "", site.slurm_conf)
    )


def gres_conf(site: Site) -> str:
    """Return gres.conf: one line for each kind of node that has GPUs in slurm.conf."""
    found = re.findall(
        r"^NodeName=(\S+) .*\bGres=gpu:(?:(\w+):)?(\d+)", site.slurm_conf, re.MULTILINE
    )
    return "".join(
        f"NodeName={nodes} Name=gpu{f' Type={kind}' if kind else ''} Count={count}\n"
        for nodes, kind, count in found
    )


def slurmdbd_conf(site: Site, home: Layout, lab: Layout) -> str:
    """Return slurmdbd.conf.

    Each site has a slurmdbd of its own: QOS belong to that, and sites call different ones `debug`.
    """
    return f"""\
DbdHost=localhost
DbdPort={site.port + 1}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={lab.munge_socket}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc={database(site.name)}
PidFile={home.run}/slurmdbd.pid
LogFile={home.log}/slurmdbd.log
DebugLevel=info
"""


def database(name: str) -> str:
    """Return the name of a site's database."""
    return f"site_{name}"


def qos_orders(site: Site) -> str:
    """Return the lines for sacctmgr's stdin that make the QOS; `normal` is there from the start."""
    return "".join(
        f"{'modify' if name == 'normal' else 'add'} qos {name} set {limits}\n"
        for name, limits in site.qos.items()
        if limits
    )


def associations(site: Site) -> str:
    """Return the file for `sacctmgr load`: accounts, their QOS and limits, and the user's right to
    use them.
    """
    lines = [f"Cluster - '{cluster_name(site)}':QOS='normal'", "Parent - 'root'"]
    for name, account in site.accounts.items():
        default = f":DefaultQOS='{account.default_qos}'" if account.default_qos else ""
        limits = f":{account.limits}" if account.limits else ""
        lines.append(f"Account - '{name}':QOS='{','.join(account.qos)}'{default}{limits}")
    for name, account in site.accounts.items():
        if account.user:
            lines.append(f"Parent - '{name}'")
            default = f":DefaultAccount='{site.default_account}'"
            lines += [
                f"User - 'root'{default}:Partition='{partition}'"
                for partition in account.partitions
            ] or [f"User - 'root'{default}"]
    return "\n".join((*lines, ""))


def cluster_name(site: Site) -> str:
    """Return the site's ClusterName."""
    found = re.search(r"^ClusterName=(\S+)", site.slurm_conf, re.MULTILINE)
    return found[1] if found else site.name


def layout(lab: Layout, name: str) -> Layout:
    """Return where a played site lives: inside the lab's directory."""
    return Layout(lab.root / "sites" / name, MARK)


def digest(site: Site) -> str:
    """Return a text that is another one for each change of the description."""
    return hashlib.sha256(repr((site, SLURM_CONF)).encode()).hexdigest()


def write_config(site: Site, home: Layout, lab: Layout, hostname: str) -> None:
    """Make the site's directories, empty of an earlier play's state, and write every file that its
    daemons read.
    """
    for folder in (home.etc, home.spool):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in (home.etc, home.run, home.log, home.spool / "slurmctld"):
        folder.mkdir(parents=True, exist_ok=True)
    files = {
        "slurm.conf": slurm_conf(site, home, lab, hostname),
        "gres.conf": gres_conf(site),
        # No slurmd reads it, but Slurm's commands look for it.
        "cgroup.conf": f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={CGROUP_ROOT}\n",
        "slurmdbd.conf": slurmdbd_conf(site, home, lab),
        "associations": associations(site),
        **site.policies,
    }
    for name, text in files.items():
        path = home.etc / name
        path.write_text(text)
        # slurmdbd refuses a file that others can read.
        path.chmod(0o600 if name == "slurmdbd.conf" else 0o644)
