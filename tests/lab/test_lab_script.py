"""What `lab` does before any daemon: refuse in one line, install what is missing, edit /etc/hosts.

No Slurm needed.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="the lab itself needs root")
HOSTS = "127.0.0.1 localhost\n"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("lab_host")


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
    done = run(
        "import lab_cli; os.setuid(65534); sys.exit(lab_cli.main(['up', '--dir',"
        f" {str(target)!r}]))"
    )
    assert refuses(done, "it needs root (device files, cgroups, munge), this is uid 65534")
    assert not target.exists()


def test_a_directory_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for verb, status in (("up", 3), ("down", 0)):
        done = subprocess.run(
            [HERE / "lab", verb, "--dir", tmp_path], capture_output=True, text=True
        )
        assert done.returncode == status
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_line_of_one_lab_stays_when_another_goes(host: ModuleType) -> None:
    second = "127.0.0.1 node3 node4 # hpctrain-lab-2\n"
    assert host.hosts_without(host.hosts_with(HOSTS + second)) == HOSTS + second
