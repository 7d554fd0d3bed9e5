"""Profiles from files: which one wins, whose evidence holds, and what is said of
mistakes.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.clusters import load
from hpctrain.clusters.load import Attestation
from hpctrain.errors import UsageError

DOCS = "https://docs.hpc.cineca.it/hpc/leonardo.html"
Write = Callable[..., dict[str, str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return what writes profiles, and returns the environment in which they are found."""

    def writer(where: str = "user", **profiles: str) -> dict[str, str]:
        directory = tmp_path / "config/hpctrain/clusters" if where == "user" else tmp_path / where
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in profiles.items():
            (directory / f"{name}.yaml").write_text(text)
        return {
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "HPCTRAIN_CLUSTERS": f"{tmp_path / 'site'}:{tmp_path / 'site2'}",
        }

    return writer


def refused(name: str, environment: dict[str, str]) -> list[str]:
    with pytest.raises(UsageError) as caught:
        load.load(name, environment)
    lines = caught.value.render().splitlines()
    assert lines[0].startswith("error: ")
    assert lines[-1].startswith(("fix: ", "hint: "))
    return lines


def test_the_user_wins_over_the_site_and_the_site_over_what_is_shipped(write: Write) -> None:
    assert load.available({})["leonardo"].parent == load.SHIPPED
    environment = write("site2", leonardo="title: second site", tiger="title: second site")
    assert load.load("leonardo", environment).profile.title == "second site"
    write("site", leonardo="title: first site", tiger="title: first site")
    assert load.load("leonardo", environment).profile.title == "first site"
    write(leonardo="title: mine")
    assert load.load("leonardo", environment).profile.title == "mine"
    assert load.load("tiger", environment).profile.title == "first site"
    assert load.load("karolina", environment).profile.title == "Karolina"
    assert load.load("leonardo", {}).profile.title == "Leonardo Booster"


@pytest.mark.parametrize("name", ["jean_zay", "jean-zay", "Jean-Zay", "JEAN ZAY", " jean_zay "])
def test_hyphens_and_case_of_a_name_do_not_matter(name: str, write: Write) -> None:
    assert load.load(name, {}).profile.name == "jean_zay"
    environment = write(**{"Jean-Zay": "title: mine"})
    assert load.load(name, environment).profile.title == "mine"


def test_a_name_that_is_not_known_gets_the_nearest_one(write: Write) -> None:
    environment = write(tiger="title: Tiger")
    assert "did you mean 'leonardo'?" in refused("leonrado", environment)[0]
    assert "did you mean 'tiger'?" in refused("tigre", environment)[0]
    lines = refused("xyzzy", environment)
    assert "did you mean" not in lines[0]
    assert "tiger" in lines[1]
    assert lines[-1] == "fix: hpctrain clusters"


def test_evidence_holds_for_what_is_below_unless_that_says_otherwise(
    write: Write, tmp_path: Path
) -> None:
    environment = write(
        tiger="""
title: Tiger
docs: https://tiger.example/docs
sources: {wiki: https://tiger.example/wiki}
evidence: recalled
source: docs
memory: {default_per_cpu: 4G}
partitions:
  evidence: documented
  gpu:
    time_max: 2-00:00:00
    nodes_max: {value: 4, evidence: seen}
    gpus_max: {value: 9, source: wiki}
    qos: [a, {value: b, evidence: reported, source: https://tiger.example/qos}]
  empty: {evidence: seen}
"""
    )
    cluster = load.load("tiger", environment)
    origins, docs, wiki = (
        cluster.origins,
        "https://tiger.example/docs",
        "https://tiger.example/wiki",
    )
    assert cluster.profile.partitions["gpu"].qos == ("a", "b")
    assert cluster.profile.partitions["gpu"].nodes_max == 4
    assert origins["memory", "default_per_cpu"] == Attestation("recalled", docs)
    assert origins["partitions", "gpu", "time_max"] == Attestation("documented", docs)
    assert origins["partitions", "gpu", "nodes_max"] == Attestation("seen", docs)
    assert origins["partitions", "gpu", "gpus_max"] == Attestation("documented", wiki)
    assert origins["partitions", "gpu", "qos", "0"] == Attestation("documented", docs)
    assert origins["partitions", "gpu", "qos", "1"] == Attestation(
        "reported", "https://tiger.example/qos"
    )
    assert origins["partitions", "empty"] == Attestation("seen", docs)
    assert load.tally(load.read_source("tiger", environment).data, origins) == {
        "documented": 3,
        "reported": 1,
        "seen": 2,
        "recalled": 1,
    }


def test_every_problem_is_said_with_its_place(write: Write) -> None:
    environment = write(
        tiger="""titel: Tiger
noteworthy:
detect: {hosts: ["login[0-9"]}
partitions:
  gpu: {nodse: a100, time_max: 1 day, nodes: h100}
  bad: 7
nodes: {a100: {gpus: 4, select: {constraints: gpu}}, none: {cpus: 4}}
defaults: {dialect: gres}
gpu_request: {dialect: gress}
account: {evidence: sen, required: maybe}
memory: {source: wiki, per_gpu: 60G}
traps: [fine, {a: 1}]
"""
    )
    lines = refused("tiger", environment)
    said = [line.partition("tiger.yaml:")[2] for line in lines[1:-1]]
    assert lines[0].startswith("error: 15 problems in ")
    for expected in (
        "1:1: title is missing",
        "1:1: unknown key 'titel'; did you mean 'title'?",
        "2:1: unknown key 'noteworthy'",
        "3:18: hosts: item 1 must be a regular expression",
        "5:9: unknown key 'nodse' in partitions.gpu; did you mean 'nodes'?",
        "5:22: time_max must be a time limit in one of Slurm's forms",
        "6:3: bad must hold keys and values, not '7'",
        "7:34: unknown key 'constraints' in nodes.a100.select; did you mean 'constraint'?",
        "7:54: gpus is missing",
        "8:12: unknown key 'dialect' in defaults; it belongs in gpu_request",
        "9:15: dialect must be 'gres', 'gpus-per-node', 'gpus' or 'none', not 'gress'",
        "10:11: evidence must be one of documented, reported, seen, recalled, own, not 'sen'",
        "10:26: required must be true or false, not 'maybe'",
        "11:10: source 'wiki' is neither a URL nor a key of sources",
        "12:15: traps: item 2 must be text",
    ):
        assert any(line.startswith(expected) for line in said), expected
    assert said == sorted(said, key=lambda line: [int(number) for number in line.split(":")[:2]])
    assert lines[-1].endswith("tiger.yaml, then run: hpctrain clusters show tiger")


def test_names_have_to_exist(write: Write) -> None:
    environment = write(
        tiger=(
            "title: T\npartitions: {gpu: {nodes: a10}}\nnodes: {a100: {gpus: 4}}\nqos: {fast: }\n"
            "defaults: {partition: gpus, qos: slow, nodes: b200}"
        )
    )
    lines = refused("tiger", environment)
    assert len(lines) == 6
    assert "nodes names 'a10', which the profile lacks; did you mean 'a100'?" in lines[1]
    assert "partition names 'gpus', which the profile lacks; did you mean 'gpu'?" in lines[2]
    assert "qos names 'slow', which the profile lacks; known: fast" in lines[3]


def test_a_file_that_cannot_be_read_is_named(write: Write, tmp_path: Path) -> None:
    environment = write(tiger="a: b: c")
    assert "tiger.yaml is not valid YAML" in refused("tiger", environment)[0]
    (tmp_path / "config/hpctrain/clusters/tiger.yaml").write_bytes(b"title: \xff")
    assert "it is not UTF-8 text" in refused("tiger", environment)[0]
    (tmp_path / "config/hpctrain/clusters/lion.yaml").symlink_to("nowhere")
    assert "there is no file" in refused("lion", environment)[0]
    assert load.load("leonardo", environment).profile.name == "leonardo", (
        "one bad file does not stand in the way of others"
    )


def test_detection(write: Write) -> None:
    def detect(
        environment: dict[str, str] | None = None,
        cluster_name: str | None = None,
        hosts: tuple[str, ...] = (),
    ) -> list[str]:
        return load.detect(environment or {}, cluster_name=cluster_name, hosts=hosts)

    assert detect() == []
    assert detect(cluster_name="Leonardo") == ["leonardo"]
    assert detect({"SYSTEMNAME": "juwelsbooster"}) == ["juwels_booster"]
    assert detect({"SYSTEMNAME": "juwels"}) == [], "the whole value has to match"
    assert detect(hosts=("login3", "login3.vista.tacc.utexas.edu")) == ["tacc_vista"]
    assert detect(hosts=("login3.vista.tacc.utexas.edu.example",)) == []
    assert detect({"TACC_SYSTEM": "ls6"}, "lumi") == ["lumi_g", "tacc_lonestar6"]
