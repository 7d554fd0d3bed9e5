"""What the real Slurm of the lab says of itself, held against the lab's configuration; and
`hpctrain init` on it, up to sbatch.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hpctrain.clusters import discover
from hpctrain.clusters.live import LiveCluster, LiveNodes, LivePartition
from tests.lab.conftest import Lab

pytestmark = [pytest.mark.slurm]

MIB = 1024**2


@pytest.fixture
def lab_conf(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the lab's own configuration."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("lab_conf")


@pytest.fixture
def live(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> LiveCluster:
    monkeypatch.setenv("SLURM_CONF", lab.env["SLURM_CONF"])
    return discover.discover()


def test_the_lab_says_what_it_was_configured_as(
    live: LiveCluster, lab: Lab, lab_conf: ModuleType
) -> None:
    assert live.silent == ()
    assert (live.cluster_name, live.job_requeue) == (lab_conf.CLUSTER, True)
    version = lab.run("sinfo", "--version").stdout.split()[1]
    assert live.version == tuple(int(part) for part in version.split(".")[:2])
    assert live.enforces_accounts
    assert (
        live.default_memory_per_cpu == lab_conf.MEMORY_PER_NODE_MB // lab_conf.CPUS_PER_NODE * MIB
    )
    assert live.max_array_size == 1001  # Slurm's default


def test_partitions_and_nodes(live: LiveCluster, lab_conf: ModuleType) -> None:
    limits = {
        each.name: (each.default, each.time_max, each.up, each.exclusive)
        for each in live.partitions or ()
    }
    assert limits["boost_usr_prod"] == (True, 86400, True, False)
    assert limits["debug"] == (False, 600, True, False)
    for partition in (live.partition("debug"), live.partition(None)):
        (nodes,) = partition.nodes
        assert nodes == LiveNodes(
            count=len(lab_conf.NODES),
            cpus=lab_conf.CPUS_PER_NODE,
            threads_per_core=1,
            memory=lab_conf.MEMORY_PER_NODE_MB * MIB,
            gpus=(("", lab_conf.GPUS_PER_NODE),),
        )


def test_accounts_and_qos(live: LiveCluster, lab_conf: ModuleType) -> None:
    assert sorted(live.accounts or ()) == sorted(lab_conf.ACCOUNTS)
    assert live.default_account == lab_conf.DEFAULT_ACCOUNT
    assert {each.name: each.time_max for each in live.qos or ()} == {"normal": None, "debug": 600}
    assert all(set(each.qos) == {"normal", "debug"} for each in live.associations or ())


def test_a_change_is_seen(lab: Lab, live: LiveCluster) -> None:
    """The facts are those of now: a new partition, which is down."""
    name = f"new{os.getpid()}"
    assert live.partition(name) is None
    limits = (
        "MaxNodes=1",
        "MaxTime=UNLIMITED",
        "DefMemPerNode=1000",
        "AllowAccounts=proj_b",
        "OverSubscribe=EXCLUSIVE",
    )
    lab.run("scontrol", "create", f"PartitionName={name}", "Nodes=node2", "State=DOWN", *limits)
    try:
        found = discover.discover().partition(name)
    finally:
        lab.run("scontrol", "delete", f"PartitionName={name}")
    assert isinstance(found, LivePartition)
    assert (found.up, found.nodes_max, found.time_max, found.default_memory_per_node) == (
        False,
        1,
        None,
        1000 * MIB,
    )
    assert (found.allow_accounts, found.exclusive, [group.count for group in found.nodes]) == (
        ("proj_b",),
        True,
        [1],
    )


@pytest.mark.parametrize(
    "words",
    [(), ("--partition", "debug", "--nodes", "2", "--gpus", "2", "--account", "euhpc_a06_067")],
)
def test_what_init_writes_is_taken_by_sbatch(
    lab: Lab, tmp_path: Path, words: tuple[str, ...]
) -> None:
    hpctrain = str(Path(sys.executable).with_name("hpctrain"))
    env = {**lab.env, "XDG_CONFIG_HOME": str(tmp_path), "HPCTRAIN_STATE_DIR": str(tmp_path)}

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
        return done

    assert run(hpctrain, "init", "--yes", *words).stdout == "config.yaml\n"
    script = run(hpctrain, "render").stdout.strip()
    tested = run("sbatch", "--test-only", script).stderr
    partition = words[1] if words else "boost_usr_prod"
    assert f"in partition {partition}" in tested
    job = run("sbatch", "--parsable", "--hold", script).stdout.strip()
    try:
        shown = lab.run("scontrol", "show", "job", "-o", job).stdout
    finally:
        lab.run("scancel", job)
    nodes, gpus, account = (2, 2, "euhpc_a06_067") if words else (1, 4, "proj_b")
    for field in (
        f"Account={account}",
        f"Partition={partition}",
        f"NumNodes={nodes}",
        f"TresPerNode=gres/gpu:{gpus}",
    ):
        assert field in shown.replace("gres:", "gres/")  # as 22.05 writes it
    found = json.loads(run(hpctrain, "init", "--json").stdout)
    assert found["slurm"]["default_account"] == "proj_b"
