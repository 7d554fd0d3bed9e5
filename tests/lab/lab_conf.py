"""What the lab's files say: the paths inside its directory and the text of every configuration
file.

Pure, except for write_config, which writes that text. Nothing here starts a process or looks at the
machine.
"""

import os
import secrets
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

# A machine can hold several labs: 1 is everybody's; 2 is the one whose nodes die and whose jobs are
# preempted. Each has its own nodes, ports, directory and daemons.
_SAID = os.environ.get("HPCTRAIN_LAB_NUMBER") or "1"
if _SAID not in [str(number) for number in range(1, 20)]:  # the ports of a twentieth are the sites'
    sys.stderr.write(
        f"error: HPCTRAIN_LAB_NUMBER is {_SAID!r}; a lab has a number from 1 to 19\nfix:"
        " HPCTRAIN_LAB_NUMBER=2\n"
    )
    raise SystemExit(2)
NUMBER = int(_SAID)
SUFFIX = "" if NUMBER == 1 else f"-{NUMBER}"
CLUSTER = "lab" if NUMBER == 1 else f"lab{NUMBER}"
NODES = (f"node{2 * NUMBER - 1}", f"node{2 * NUMBER}")
NODE_RANGE = f"node[{2 * NUMBER - 1}-{2 * NUMBER}]"
NODE_PORTS = {node: 17001 + 10 * (NUMBER - 1) + index for index, node in enumerate(NODES)}
CONTROLLER_PORT = 16817 + 10 * (NUMBER - 1)
DATABASE_PORT = CONTROLLER_PORT + 2
DIRECTORY = f"/tmp/hpctrain-lab{SUFFIX}"
# Jobs of two labs meet on this machine's ports, which are made of job ids. A test of two clusters
# with the same ids says one.
FIRST_JOB_ID = int(os.environ.get("HPCTRAIN_LAB_FIRST_JOB_ID") or 1 + 1000 * (NUMBER - 1))
CPUS_PER_NODE = 16
MEMORY_PER_NODE_MB = 8000
GPUS_PER_NODE = 4
# Slurm's default is 30 s. The rough lab's jobs need some of it: they save when they are told of
# their end.
KILL_WAIT_S = 5 if NUMBER == 1 else 15
ACCOUNTS = ("euhpc_a06_067", "proj_b")
DEFAULT_ACCOUNT = "proj_b"
CGROUP_ROOT = Path("/sys/fs/cgroup")

# Linux allows 107 characters in the path of a Unix socket, and "run/munge.socket.2.lock" is our
# longest.
MAX_DIR_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each thing of one lab lives; all of it under one directory."""

    root: Path
    # A played site's directory is no lab, so it carries another mark (lab_sites).
    mark: str = f".hpctrain-lab{SUFFIX}"

    @property
    def marker(self) -> Path:
        """The file that says this directory is a lab, so that `down` may remove it."""
        return self.root / self.mark

    @property
    def state(self) -> Path:
        """The processes that `up` started."""
        return self.root / "state.json"

    @property
    def accounts_done(self) -> Path:
        """Exists once the cluster and its accounts are in the database."""
        return self.root / "accounts-done"

    @property
    def etc(self) -> Path:
        """Configuration files and the munge key."""
        return self.root / "etc"

    @property
    def run(self) -> Path:
        """Sockets and pid files."""
        return self.root / "run"

    @property
    def log(self) -> Path:
        """One log per daemon."""
        return self.root / "log"

    @property
    def spool(self) -> Path:
        """State of slurmctld and of each slurmd."""
        return self.root / "spool"

    @property
    def database(self) -> Path:
        """MariaDB's data directory."""
        return self.root / "mysql"

    @property
    def devices(self) -> Path:
        """The fake GPUs."""
        return self.root / "dev"

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF points to."""
        return self.etc / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """The lab's own munge socket, so that a munge of the host is left alone."""
        return self.run / "munge.socket.2"

    @property
    def munge_key(self) -> Path:
        """The lab's own munge key."""
        return self.etc / "munge.key"

    @property
    def mysql_socket(self) -> Path:
        """MariaDB's only door: it has no TCP port."""
        return self.run / "mysql.sock"


SLURM_CONF = """\
# Written by tests/lab/lab; `lab up` writes it again.
ClusterName={cluster}
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={controller_port}
FirstJobId={first_job_id}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential has expired: 10 s here instead of Slurm's two minutes.
AuthInfo=socket={munge_socket},cred_expire=10
MpiDefault=none
MailProg=/bin/true

StateSaveLocation={spool}/slurmctld
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldLogFile={log}/slurmctld.log
SlurmdLogFile={log}/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info

# The nodes claim more CPUs and GPUs than this machine has. Memory is enforced for real, by the memory cgroup.
SlurmdParameters=config_overrides
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={memory_per_cpu_mb}
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup

# A test's job starts at once, and a finished one stays visible to squeue and scontrol for five minutes.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=1
MinJobAge=300
KillWait={kill_wait_s}
OverTimeLimit=0
JobRequeue=1
ReturnToService=2
MessageTimeout=30
EnforcePartLimits=ALL

JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={database_port}
AccountingStoragePass={munge_socket}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_comment,job_script

{nodes}
PartitionName=boost_usr_prod Nodes={node_range} Default=YES MaxTime=24:00:00 State=UP
PartitionName=debug Nodes={node_range} MaxTime=00:10:00 State=UP
"""

# What every lab but the first has besides: jobs that others may preempt, and a controller that soon
# notices a dead node.
ROUGH_CONF = """\
SlurmdTimeout=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes={node_range} MaxTime=01:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 State=UP
PartitionName=low_grace Nodes={node_range} MaxTime=01:00:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 State=UP
PartitionName=low_cancel Nodes={node_range} MaxTime=01:00:00 PriorityTier=1 PreemptMode=CANCEL GraceTime=20 State=UP
PartitionName=high Nodes={node_range} MaxTime=01:00:00 PriorityTier=10 PreemptMode=OFF State=UP
"""


def slurm_conf(layout: Layout, hostname: str) -> str:
    """Return slurm.conf.

    Args:
        layout: where the lab lives.
        hostname: the short name of this machine; slurmctld refuses to start under another one.
    """
    nodes = "\n".join(
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={NODE_PORTS[name]}"
        f" CPUs={CPUS_PER_NODE} Boards=1 SocketsPerBoard=2 CoresPerSocket={CPUS_PER_NODE // 2}"
        f" ThreadsPerCore=1 RealMemory={MEMORY_PER_NODE_MB} Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
        for name in NODES
    )
    return (SLURM_CONF + (ROUGH_CONF if NUMBER > 1 else "")).format(
        cluster=CLUSTER,
        hostname=hostname,
        controller_port=CONTROLLER_PORT,
        first_job_id=FIRST_JOB_ID,
        database_port=DATABASE_PORT,
        munge_socket=layout.munge_socket,
        spool=layout.spool,
        run=layout.run,
        log=layout.log,
        memory_per_cpu_mb=MEMORY_PER_NODE_MB // CPUS_PER_NODE,
        kill_wait_s=KILL_WAIT_S,
        nodes=nodes,
        node_range=NODE_RANGE,
    )


def gres_conf(layout: Layout) -> str:
    """Return gres.conf: four device files, because a line with Count and no File is counted as 0
    GPUs.
    """
    return f"NodeName={NODE_RANGE} Name=gpu File={layout.devices}/gpu[0-{GPUS_PER_NODE - 1}]\n"


def cgroup_conf() -> str:
    """Return cgroup.conf: a job that outgrows its --mem is killed by the kernel, swap does not help
    it.
    """
    return f"""\
CgroupPlugin=cgroup/v1
CgroupMountpoint={CGROUP_ROOT}
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
AllowedSwapSpace=0
"""


def slurmdbd_conf(layout: Layout) -> str:
    """Return slurmdbd.conf; slurmdbd finds the database's socket in its environment
    (MYSQL_UNIX_PORT).
    """
    return f"""\
DbdHost=localhost
DbdPort={DATABASE_PORT}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
PidFile={layout.run}/slurmdbd.pid
LogFile={layout.log}/slurmdbd.log
DebugLevel=info
"""


def write_config(layout: Layout, hostname: str) -> None:
    """Make the lab's directories and write every file the daemons read.

    Raises:
        OSError: the directory cannot be written, or this machine does not allow device files
            (EPERM).
    """
    for folder in (layout.etc, layout.run, layout.log, layout.spool / "slurmctld", layout.devices):
        folder.mkdir(parents=True, exist_ok=True)
    for node in NODES:
        (layout.spool / node).mkdir(exist_ok=True)
    for path, text, mode in (
        (layout.slurm_conf, slurm_conf(layout, hostname), 0o644),
        (layout.etc / "gres.conf", gres_conf(layout), 0o644),
        (layout.etc / "cgroup.conf", cgroup_conf(), 0o644),
        # slurmdbd refuses a file that others can read: on a real site it holds a password.
        (layout.etc / "slurmdbd.conf", slurmdbd_conf(layout), 0o600),
    ):
        path.write_text(text)
        path.chmod(mode)
    if not layout.munge_key.exists():
        layout.munge_key.touch(0o600)
        layout.munge_key.write_bytes(secrets.token_bytes(128))
    for index in range(GPUS_PER_NODE):
        device = layout.devices / f"gpu{index}"
        if not device.is_char_device():
            # The null device (1, 3): Slurm only wants to see a character device.
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
