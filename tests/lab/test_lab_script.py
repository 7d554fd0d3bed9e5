"""What `lab` does before any daemon: refuse in one line, install what is missing, edit /etc/hosts. No Slurm needed."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

HERE = Path(__file__).parent
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="the lab itself needs root")
HOSTS = "127.0.0.1 localhost\n"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("lab_host")


def executable(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code that may import the lab's modules in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", f"import os, sys; sys.path.insert(0, {str(HERE)!r}); {code}"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def refuses(done: subprocess.CompletedProcess[str], words: str) -> bool:
    """Say whether it refused as the README says: status 3, one line, nothing to eval."""
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert done.stderr.startswith("error: the lab cannot run here: ")
    assert done.stderr.count("\n") == 1
    return words in done.stderr


@pytest.mark.parametrize("before", [HOSTS, HOSTS.rstrip("\n"), ""])
def test_hosts_line_comes_and_goes(host: ModuleType, before: str) -> None:
    after = host.hosts_with(before)
    assert host.hosts_known(after)
    assert host.hosts_with(after) == after
    assert host.hosts_without(after).rstrip("\n") == before.rstrip("\n")


def test_hosts_of_the_user_are_left_alone(host: ModuleType) -> None:
    own = f"{HOSTS}10.0.0.1 node1\n10.0.0.2 node2 # mine\n"
    assert host.hosts_with(own) == host.hosts_without(own) == own
    assert not host.hosts_known(f"{HOSTS}10.0.0.1 node1 # node2\n")


@as_root
def test_not_root(tmp_path: Path) -> None:
    target = tmp_path / "lab"
    done = run(f"import lab_cli; os.setuid(65534); sys.exit(lab_cli.main(['up', '--dir', {str(target)!r}]))")
    assert refuses(done, "it needs root (device files, cgroups, munge), this is uid 65534")
    assert not target.exists()


def test_a_directory_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for verb, status in (("up", 3), ("down", 0)):
        done = subprocess.run([HERE / "lab", verb, "--dir", tmp_path], capture_output=True, text=True)
        assert done.returncode == status
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@as_root
@pytest.mark.parametrize("name", ["with space", "x" * 90, "quo'te"])
def test_a_path_that_slurm_cannot_take(tmp_path: Path, name: str) -> None:
    done = subprocess.run([HERE / "lab", "up", "--dir", tmp_path / name], capture_output=True, text=True)
    assert refuses(done, "must have at most 80 characters")
    assert not list(tmp_path.iterdir())


@as_root
def test_no_install_names_the_missing_packages(tmp_path: Path) -> None:
    # Half-removed packages are listed by dpkg-query too, with another status.
    listing = "slurmctld installed\\nslurmd installed\\nmunge config-files\\nslurmdbd installed\\n"
    executable(tmp_path, "dpkg-query", f"printf '{listing}'; exit 1")
    target = tmp_path / "lab"
    code = f"import lab_cli; sys.exit(lab_cli.main(['up', '--no-install', '--dir', {str(target)!r}]))"
    done = run(code, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert refuses(done, "not installed: slurm-client munge mariadb-server slurm-wlm-mysql-plugin")
    assert not target.exists()


@pytest.mark.parametrize(("works_after", "calls"), [(0, "install"), (1, "install update install")])
def test_install_updates_the_lists_only_when_needed(tmp_path: Path, works_after: int, calls: str) -> None:
    log = tmp_path / "calls"
    body = f'echo "$1" >> {log}; echo noise; echo "$DEBIAN_FRONTEND $*" >> {log}.full\n'
    body += f'[ "$1" = update ] || [ "$(grep -c install {log})" -gt {works_after} ]'
    executable(tmp_path, "apt-get", body)
    executable(tmp_path, "dpkg-query", "exit 1")
    done = run("import lab_host; lab_host.install(['slurmdbd'])", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert log.read_text().split() == calls.split()
    first = Path(f"{log}.full").read_text().splitlines()[0]
    assert first == "noninteractive install --yes --quiet --no-install-recommends slurmdbd"


def test_install_that_fails_is_a_refusal(tmp_path: Path, host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path, "apt-get", "exit 100")
    executable(tmp_path, "dpkg-query", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(host.Refusal, match=r"apt-get could not install slurmdbd \(exit status 100\)"):
        host.install(["slurmdbd"])


def test_no_cgroup_v1_hierarchy(tmp_path: Path, host: ModuleType) -> None:
    with pytest.raises(host.Refusal, match=f"no cgroup v1 hierarchy at {tmp_path}"):
        host.require_hierarchy(tmp_path)


@as_root
def test_a_hierarchy_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        Path(folder, "cgroup.procs").touch()
        # Root can write everywhere, so the question is asked as nobody.
        done = run(
            "from pathlib import Path; import lab_host; os.setuid(65534)\n"
            f"try: lab_host.require_hierarchy(Path({folder!r}))\n"
            "except lab_host.Refusal as refusal: print(refusal)"
        )
    assert done.stdout == f"the cgroup v1 hierarchy at {folder} cannot be written: Permission denied\n", done.stderr


def test_a_port_that_is_taken(host: ModuleType) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(host.Refusal, match=f"port {other.getsockname()[1]} is taken"):
            host.require_ports([other.getsockname()[1]])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["play"], "play which site? alps_clariden, deucalion, "),
        (["play", "leonardo", "atlantis"], "no site atlantis; there are alps_clariden, "),
    ],
)
def test_play_names_the_sites_when_it_gets_none(tmp_path: Path, words: list[str], said: str) -> None:
    done = subprocess.run([HERE / "lab", *words, "--dir", tmp_path / "lab"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert not (tmp_path / "lab").exists()


def test_the_files_of_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    sites = importlib.import_module("lab_sites")
    lab = importlib.import_module("lab_conf").Layout(tmp_path)
    ports = [sites.read(name).port for name in sites.names()]
    assert sorted({*ports, *(port + 1 for port in ports)}) == list(range(17200, 17200 + 2 * len(ports)))
    vista = sites.read("tacc_vista")
    conf = sites.slurm_conf(vista, sites.layout(lab, "tacc_vista"), lab, "here")
    # The site's own ClusterName and SelectTypeParameters, no GRES, a filter in sbatch and none in slurmctld.
    keys = [line.partition("=")[0] for line in conf.splitlines()]
    assert [keys.count(key) for key in ("ClusterName", "SelectTypeParameters", "GresTypes", "CliFilterPlugins", "JobSubmitPlugins")] == [
        1,
        1,
        0,
        1,
        0,
    ]
    assert "ClusterName=vista\n" in conf
    assert sites.gres_conf(vista) == ""
    assert sites.gres_conf(sites.read("ncsa_delta")).splitlines()[0] == "NodeName=gpua[001-040] Name=gpu Type=nvidia_a100 Count=4"
    assert sites.qos_orders(sites.read("frontier")) == "add qos debug set MaxWall=02:00:00 MaxSubmitJobsPerUser=1 Flags=DenyOnLimit\n"
    assert "Account - 'cin_staff':QOS='normal'\n" in sites.associations(sites.read("leonardo"))
    assert "Parent - 'cin_staff'\nUser - 'root':DefaultAccount='cin_staff':Partition='dcgp_usr_prod'\n" in sites.associations(
        sites.read("leonardo")
    )


def conf_of(number: str) -> dict[str, list[str]]:
    """Return key → values of the slurm.conf of a lab."""
    done = run(
        "import lab_conf; from pathlib import Path; print(lab_conf.slurm_conf(lab_conf.Layout(Path('/x')), 'here'))",
        HPCTRAIN_LAB_NUMBER=number,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.partition("=") for line in done.stdout.splitlines() if line and not line.startswith("#")]
    return {key: [value for name, _, value in lines if name == key] for key, _, _ in lines}


def test_a_second_lab_shares_nothing_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    sites = importlib.import_module("lab_sites")
    ports, names = [], []
    for number in ("1", "2", "9"):
        conf = conf_of(number)
        nodes = [dict(word.split("=", 1) for word in f"NodeName={value}".split()) for value in conf["NodeName"]]
        names += [conf["ClusterName"][0], *(node["NodeName"] for node in nodes)]
        ports += [*conf["SlurmctldPort"], *conf["AccountingStoragePort"], *(node["Port"] for node in nodes)]
        hosts = run("import lab_host; print(lab_host.HOSTS_LINE)", HPCTRAIN_LAB_NUMBER=number).stdout
        assert set(hosts.split()) >= {node["NodeName"] for node in nodes}
    assert len(set(names)) == len(names) == 9
    assert len(set(ports)) == len(ports) == 12
    assert max(map(int, ports)) < sites.FIRST_PORT
    first_jobs = [int(conf_of(str(number))["FirstJobId"][0]) for number in range(1, 10)]
    rendezvous = {20000 + (first + job) % 9000 for first in first_jobs for job in range(1000)}
    assert len(rendezvous) == 9000, "jobs of two labs would meet at one port"


def test_only_labs_besides_the_first_preempt_and_give_nodes_up_soon() -> None:
    assert "PreemptType" not in conf_of("1")
    rough = conf_of("2")
    assert (rough["PreemptType"], rough["SlurmdTimeout"]) == (["preempt/partition_prio"], ["10"])
    assert [line.split()[0] for line in rough["PartitionName"]] == ["boost_usr_prod", "debug", "low", "low_grace", "low_cancel", "high"]


@pytest.mark.parametrize("number", ["0", "10", "two", "1 "])
def test_a_number_that_no_lab_has(number: str) -> None:
    done = subprocess.run([HERE / "lab", "status"], capture_output=True, text=True, env={**os.environ, "HPCTRAIN_LAB_NUMBER": number})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: HPCTRAIN_LAB_NUMBER is {number!r}; a lab has a number from 1 to 9\nfix: HPCTRAIN_LAB_NUMBER=2\n"


def test_the_line_of_one_lab_stays_when_another_goes(host: ModuleType) -> None:
    second = "127.0.0.1 node3 node4 # hpctrain-lab-2\n"
    assert host.hosts_without(host.hosts_with(HOSTS + second)) == HOSTS + second
