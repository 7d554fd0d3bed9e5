"""What `lab` does before any daemon: refuse in one line, install what is missing, edit /etc/hosts.

No Slurm needed.
"""

import importlib
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
HOSTS = "127.0.0.1 localhost\n"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("lab_host")


def test_hosts_of_the_user_are_left_alone(host: ModuleType) -> None:
    own = f"{HOSTS}10.0.0.1 node1\n10.0.0.2 node2 # mine\n"
    assert host.hosts_with(own) == host.hosts_without(own) == own
    assert not host.hosts_known(f"{HOSTS}10.0.0.1 node1 # node2\n")


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
