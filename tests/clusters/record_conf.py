"""The made-up cluster of record.py: node kinds, partitions, accounts and QOS that Slurm has many ways to word. Pure."""

from __future__ import annotations

#: Whose accounts are recorded.
USER = "ada"
#: Nodes with a slurmd of their own; all others have never answered.
RUNNING = ("gpu001", "gpu002", "gpu003", "h100-01", "mixed01", "plain01", "cpu01")

NODES = """\
NodeName=gpu[001-004] NodeHostname=ctl Port=[17001-17004] CPUs=64 Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=515000 \
Gres=gpu:a100:4 Feature=a100,ib,ssd State=UNKNOWN
NodeName=h100-[01-02] NodeHostname=ctl Port=[17011-17012] CPUs=224 Sockets=2 CoresPerSocket=56 ThreadsPerCore=2 RealMemory=2063000 \
Gres=gpu:nvidia_h100_80gb_hbm3:8 Feature=h100,{long_features} State=UNKNOWN
NodeName=mixed01 NodeHostname=ctl Port=17021 CPUs=32 Sockets=2 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=256000 \
Gres=gpu:a100:2,gpu:h100:2 Weight=20 State=UNKNOWN
NodeName=mig01 NodeHostname=ctl Port=17022 CPUs=64 Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=515000 \
Gres=gpu:a100_1g.5gb:7,gpu:a100_3g.20gb:2,gpu:a100:1 State=UNKNOWN
NodeName=plain01 NodeHostname=ctl Port=17023 CPUs=16 Sockets=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=128000 \
Gres=gpu:4,{shared}:400 State=UNKNOWN
NodeName=cpu[01-08] NodeHostname=ctl Port=[17031-17038] CPUs=128 Sockets=2 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=257000 \
Feature=milan State=UNKNOWN
NodeName=future01 CPUs=64 RealMemory=515000 Gres=gpu:a100:4 State=FUTURE
PartitionName=batch Nodes=cpu[01-08] Default=YES MaxTime=3-00:00:00 DefaultTime=04:00:00 DefMemPerCPU=1900 State=UP
PartitionName=gpu Nodes=gpu[001-004] MaxTime=1-00:00:00 DefaultTime=01:00:00 DefMemPerNode=64000 MaxMemPerNode=500000 State=UP
PartitionName=whole Nodes=gpu[003-004],h100-[01-02] MaxTime=12:00:00 MinNodes=1 MaxNodes=2 OverSubscribe=EXCLUSIVE State=UP
PartitionName=mixed Nodes=gpu[001-004],h100-[01-02],mixed01,mig01,plain01,cpu[01-02] MaxTime=UNLIMITED OverSubscribe=FORCE:1 State=UP
PartitionName=debug Nodes=gpu001 MaxTime=30 MaxNodes=1 QOS=dbg AllowAccounts=proj_a,proj_b AllowQos=normal,dbg PriorityTier=10 State=UP
PartitionName=course Nodes=plain01 MaxTime=02:00:00 DenyAccounts=proj_b DenyQos=long OverSubscribe=YES:2 ExclusiveUser=YES State=UP
PartitionName=closed Nodes=gpu004 State=DOWN
PartitionName=secret Nodes=gpu004 Hidden=YES State=UP
PartitionName=empty State=UP
"""

SLURM_CONF = """\
ClusterName=recorded
SlurmctldHost=ctl(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
StateSaveLocation=/var/spool/slurm
SlurmdSpoolDir=/var/spool/slurm/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmdParameters=config_overrides
GresTypes=gpu,{shared}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
KillWait=60
MaxArraySize=10001
JobRequeue=0
EnforcePartLimits=ALL
DefMemPerCPU=2000
SlurmdTimeout=3600
SlurmctldTimeout=300
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStorageTRES=gres/gpu,gres/gpu:a100
AccountingStorageEnforce=associations,limits,qos,safe
"""

SLURMDBD_CONF = """\
DbdHost=localhost
SlurmUser=root
AuthType=auth/munge
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
PidFile=/run/slurmdbd.pid
"""

GRES_CONF = """\
NodeName=gpu[001-004] Name=gpu Type=a100 File=/dev/fake[0-1] Cores=0-31
NodeName=gpu[001-004] Name=gpu Type=a100 File=/dev/fake[2-3] Cores=32-63
NodeName=h100-[01-02] Name=gpu Type=nvidia_h100_80gb_hbm3 File=/dev/fake[0-7] Cores=0-111
NodeName=mixed01 Name=gpu Type=a100 File=/dev/fake[0-1] Cores=0-15
NodeName=mixed01 Name=gpu Type=h100 File=/dev/fake[2-3] Cores=16-31
NodeName=plain01 Name=gpu File=/dev/fake[0-3]
NodeName=plain01 Name={shared} Count=400
"""

PASSWD = "root:x:0:0:root:/:/bin/bash\nada:x:1000:1000:Ada:/:/bin/bash\nmunge:x:101:101::/:/bin/false\nslurm:x:64030:64030::/:/bin/false\n"


def files(version: str) -> dict[str, str]:
    """Return path → text of every configuration file of that version."""
    shared = "mps"
    features = ",".join(f"a_feature_with_a_long_name_{number}" for number in range(6))
    conf = SLURM_CONF.format(shared=shared)
    found = {
        "etc/passwd": PASSWD,
        "etc/group": "root:x:0:\nada:x:1000:\nmunge:x:101:\nslurm:x:64030:\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "etc/hosts": "127.0.0.1 localhost ctl\n",
        "etc/slurm/slurm.conf": conf + NODES.format(shared=shared, long_features=features),
        "etc/slurm/gres.conf": GRES_CONF.format(shared=shared),
        "etc/slurm/slurmdbd.conf": SLURMDBD_CONF,
    }
    without = "\n".join(line for line in conf.splitlines() if not line.startswith("AccountingStorage"))
    found["etc/slurm/none.conf"] = f"{without}\n" + NODES.format(shared=shared, long_features=features)
    found["etc/slurm/gone.conf"] = conf.replace("MpiDefault", "SlurmctldPort=16999\nMessageTimeout=2\nMpiDefault").replace(
        "AccountingStorageHost=localhost", "AccountingStorageHost=localhost\nAccountingStoragePort=16998"
    )
    if tuple(int(part) for part in version.split(".")) >= (23, 2):
        found["etc/slurm/cgroup.conf"] = "CgroupPlugin=disabled\n"
    # Debian 11 still reads what later ones moved.
    return found | {name.replace("etc/slurm/", "etc/slurm-llnl/"): text for name, text in found.items() if name.startswith("etc/slurm/")}


def qos() -> list[list[str]]:
    """Return the sacctmgr commands that make the QOS, without which slurmctld does not start."""
    return [["add", "cluster", "recorded"], ["add", "qos", "dbg"], ["add", "qos", "long"], ["add", "qos", "big"]]


def accounts() -> list[list[str]]:
    """Return the sacctmgr commands that make limits and accounts."""
    return [
        ["modify", "qos", "dbg", "set", "MaxWall=00:20:00", "MaxTRESPerJob=gres/gpu=8,node=2", "MaxJobsPerUser=1", "MaxSubmitJobsPerUser=2",
         "Flags=DenyOnLimit"],
        ["modify", "qos", "long", "set", "MaxWall=7-00:00:00", "MaxTRESPerUser=gres/gpu=16,cpu=128,mem=1000G"],
        ["modify", "qos", "big", "set", "MinTRESPerJob=node=4"],
        ["add", "account", "proj_a", "Cluster=recorded", "Description=first"],
        ["add", "account", "proj_b", "Cluster=recorded"],
        ["add", "account", "proj_c", "Cluster=recorded"],
        ["add", "user", "ada", "Account=proj_b", "DefaultAccount=proj_b", "Cluster=recorded"],
        ["add", "user", "ada", "Account=proj_a", "Cluster=recorded", "Partition=gpu"],
        ["add", "user", "ada", "Account=proj_c", "Cluster=recorded"],
        ["modify", "user", "ada", "where", "Account=proj_b", "set", "QOS=normal,dbg,long", "DefaultQOS=normal"],
        ["modify", "user", "ada", "where", "Account=proj_a", "set", "MaxWall=08:00:00", "MaxSubmitJobs=20",
         "MaxTRESPerJob=gres/gpu=4,node=1"],
        ["add", "cluster", "other"],
        ["add", "account", "elsewhere", "Cluster=other"],
        ["add", "user", "ada", "Account=elsewhere", "Cluster=other"],
    ]  # fmt: skip


def events() -> list[list[str]]:
    """Return the commands that put nodes into states with marks of their own."""
    return [
        ["scontrol", "update", "NodeName=gpu002", "State=DRAIN", "Reason=fan"],
        ["scontrol", "create", "reservation", "ReservationName=m", "StartTime=now", "Duration=60", "Users=root", "Nodes=gpu003",
         "Flags=MAINT,IGNORE_JOBS"],
        ["scontrol", "update", "NodeName=cpu02", "State=DOWN", "Reason=gone"],
    ]  # fmt: skip
