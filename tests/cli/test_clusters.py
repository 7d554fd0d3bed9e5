"""`hpctrain clusters`: the list, the page of one cluster, and a cluster of one's own from one file."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from hpctrain.clusters import load

if TYPE_CHECKING:
    from conftest import Desk

TIGER = """\
title: Tiger
docs: https://tiger.example/docs
detect: {variables: {SITE: tiger}}
partitions:
  gpu: {nodes: h100, time_max: 2-00:00:00, default: true}
  long_name_of_a_partition_that_nobody_types: {nodes_max: 2}
nodes:
  h100: {gpus: 4, gpu: NVIDIA H100, cpus: 96, memory: 1T}
gpu_request: {dialect: gres, type: h100}
account: {required: true, list_command: {value: my_projects, evidence: documented, source: docs}}
traps: [the queue is long on Mondays]
"""


@pytest.fixture
def tiger(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Add one file to the user's directory: all that a new cluster needs."""
    directory = desk.directory.parent / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory))
    desk.write("../config/hpctrain/clusters/tiger.yaml", TIGER)
    return desk


def test_the_list(desk: Desk) -> None:
    said = desk.run("clusters")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].split() == ["NAME", "TITLE", "GPUS", "PARTITIONS", "SURE"]
    assert len(lines) == 20
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in said.out + said.err
    rows = {line.split()[0]: line for line in lines[1:]}
    assert rows.keys() == load.available({}).keys()
    assert "3 A100 +1" in rows["tacc_lonestar6"]
    assert "boost_usr_prod +2" in rows["leonardo"]
    assert "none of these" in said.err


def test_the_list_marks_this_machine(tiger: Desk) -> None:
    tiger.set(SITE="tiger")
    said = tiger.run("clusters")
    (line,) = [line for line in said.out.splitlines() if line.startswith("* ")]
    assert line.split() == ["*", "tiger", "Tiger", "4", "H100", "gpu", "+1", "own"]
    assert "looks like tiger (*)" in said.err
    assert said.lines[-1] == "next: hpctrain clusters show tiger"


def test_slurm_conf_says_which_cluster_this_is(desk: Desk) -> None:
    desk.set(SLURM_CONF=str(desk.write("slurm.conf", "# ClusterName=karolina\nclustername = Leonardo\n")))
    assert json.loads(desk.run("clusters", "--json").out)["detected"] == ["leonardo"]


def test_the_list_as_json(tiger: Desk) -> None:
    said = json.loads(tiger.run("clusters", "--json").out)
    assert said["schema"] == 1
    found = {cluster["name"]: cluster for cluster in said["clusters"]}
    assert len(found) == 20
    assert found["tiger"]["shipped"] is False
    assert found["tiger"]["file"].endswith("hpctrain/clusters/tiger.yaml")
    assert found["tiger"]["nodes"] == {"h100": {"gpus": 4, "gpu": "NVIDIA H100"}}
    assert found["leonardo"]["shipped"] is True
    assert found["leonardo"]["default_partition"] == "boost_usr_prod"
    assert list(found["leonardo"]["evidence"]) == ["documented", "reported", "seen", "recalled"]
    assert found["jean_zay"]["detected"] is False


def test_a_profile_that_is_wrong_does_not_hide_the_others(tiger: Desk) -> None:
    tiger.write("../config/hpctrain/clusters/lion.yaml", "titel: Lion\n")
    said = tiger.run("clusters")
    assert said.code == 2
    assert len(said.out.splitlines()) == 21
    assert "lion.yaml:1:1: unknown key 'titel'; did you mean 'title'?" in said.err
    assert said.lines[-1].startswith("fix: ")
    tiger.refused("clusters", "show", "lion")


@pytest.mark.parametrize("name", sorted(load.available({})))
def test_the_page_of_a_cluster(name: str, desk: Desk) -> None:
    said = desk.run("clusters", "show", name)
    assert said.code == 0
    assert said.err == ""
    assert "\x1b" not in said.out
    lines = said.out.splitlines()
    assert lines[0].startswith(f"{name}: ")
    # Only a word that must stay whole is longer: an address, a pattern, a mask. In front of it, at most a title.
    for line in lines:
        assert len(line) <= 80 or max(map(len, line.split())) > 45, line
        assert line == line.rstrip()
    found = load.read(name, {})
    assert {found.origins[path].source for path in found.origins if path[0] not in ("name", "title", "centre", "docs")} <= {
        line.split("] ", 1)[1] for line in lines if line.startswith("  [")
    }
    assert "unknown" in lines


def test_every_value_of_the_page_has_level_and_source(desk: Desk) -> None:
    page = desk.run("clusters", "show", "leonardo").out
    lines = page.splitlines()
    for expected in (
        "boost_usr_prod nodes a100 documented [1]",
        "time_max 24:00:00 reported [1]",
        "memory 494000M seen [2]",
        "compute no reported [3]",
        "variables NCCL_SOCKET_IFNAME=ib0, GLOO_SOCKET_IFNAME=ib0 reported [1]",
        "- the way in needs a second factor (2FA) documented [1]",
        "[2] https://github.com/BLAST-WarpX/warpx",
    ):
        assert expected in [" ".join(line.split()) for line in lines], expected
    after = lines[lines.index("unknown") + 1 :]
    assert "memory of a job that asks for none" in " ".join(after)
    frontier = " ".join(desk.run("clusters", "show", "frontier").out.split())
    assert "time_by_nodes nodes_min 1 time_max 02:00:00; nodes_min 92 time_max 06:00:00; nodes_min 184 time_max 12:00:00" in frontier


def test_a_new_cluster_is_one_file(tiger: Desk) -> None:
    said = tiger.run("clusters", "show", "Tiger")
    assert said.code == 0
    text = " ".join(said.out.split())
    assert "tiger: Tiger" in text
    assert "gpu nodes h100, time_max 2-00:00:00, own [1] default" in text
    assert "list_command my_projects documented [" in text
    assert "tiger.yaml" in text
    assert "the queue is long on Mondays" in text
    assert "time limit of long_name" not in text, "nobody said that it has GPUs"


def test_the_page_as_json(desk: Desk) -> None:
    said = json.loads(desk.run("clusters", "show", "lumi-g", "--json").out)
    assert said["schema"] == 1
    assert said["name"] == "lumi_g"
    assert said["profile"]["memory"]["per_gpu"] == 60 << 30
    assert said["profile"]["partitions"]["dev-g"]["time_max"] == 3 * 3600
    assert said["evidence"]["/partitions/dev-g/time_max"] == {
        "level": "documented", "source": "https://github.com/Lumi-supercomputer/lumi-userguide",
    }  # fmt: skip
    assert "highest array index" in said["unknown"]
    assert [Path(file).name for file in said["files"]] == ["lumi_g.yaml"]


def test_the_page_as_yaml_starts_a_profile_of_ones_own(tiger: Desk) -> None:
    text = tiger.run("clusters", "show", "jean_zay", "--yaml").out
    assert yaml.safe_load(text)["title"] == "Jean Zay"
    tiger.write("../config/hpctrain/clusters/mine.yaml", text.replace("Jean Zay", "My Zay"))
    theirs, mine = (json.loads(tiger.run("clusters", "show", name, "--json").out) for name in ("jean_zay", "mine"))
    assert mine["evidence"] == theirs["evidence"]
    assert mine["profile"] == theirs["profile"] | {"name": "mine", "title": "My Zay"}


def test_what_is_refused(tiger: Desk) -> None:
    assert "did you mean 'leonardo'?" in tiger.refused("clusters", "show", "leonrado").lines[0]
    assert tiger.refused("clusters", "show", "leonrado").lines[-1] == "fix: hpctrain clusters show leonardo"
    tiger.refused("clusters", "show", "tiger", "--json", "--yaml")
    tiger.refused("clusters", "--json", "show", "tiger")
    tiger.refused("clusters", "shwo", "tiger")
    tiger.refused("clusters", "show")


def on_a_terminal(hpctrain: str, *words: str, **environment: str) -> str:
    """Return what a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm", **environment}
    done = subprocess.Popen([hpctrain, *words], stdout=theirs, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    assert done.wait() == 0
    return said.decode()


def test_colour_is_for_terminals_that_want_it(hpctrain: str) -> None:
    assert "\x1b[1m" in on_a_terminal(hpctrain, "clusters", "show", "leonardo")
    assert "\x1b[32mdocumented" in on_a_terminal(hpctrain, "clusters", "show", "leonardo")
    assert "\x1b" not in on_a_terminal(hpctrain, "clusters", "show", "leonardo", NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(hpctrain, "clusters", NO_COLOR="1")
