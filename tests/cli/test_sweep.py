"""`hpctrain submit --dry-run`: what a sweep is, before it becomes jobs."""

import itertools
import json
from typing import Any

import pytest

from tests.cli.conftest import Desk

CONFIG = """\
resources: {nodes: 2, gpus_per_node: 4, time: 30}
training: {max_steps: 5}
sweep:
  grid: {learning_rate: [1e-5, 3e-5], seed: [1, 2, 3]}
  zip: {model_dim: [240], corpus: ["a b"]}
  throttle: 4
"""
SCONTROL = "[ \"$*\" = 'show config' ] && printf 'ClusterName = x\\nMaxArraySize            = 3\\n'"


@pytest.fixture
def project(desk: Desk, no_slurm: None) -> Desk:
    desk.write("config.yaml", CONFIG)
    return desk


def document(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run("submit", "--dry-run", "--json", *words)
    assert said.code == 0
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_the_plan_of_a_config(project: Desk) -> None:
    said = project.run("submit", "--dry-run")
    assert said.code == 0
    table, _, orders = said.out.partition("would write")
    rows = [line.split() for line in table.rpartition("\n\n")[2].splitlines()]
    assert rows == [
        ["POINT", "learning_rate", "seed"],
        *(
            [str(at), rate, seed]
            for at, (rate, seed) in enumerate(itertools.product(["1e-5", "3e-5"], "123"))
        ),
    ]
    assert "model_dim=240 corpus=a b" in table
    assert "would run: " in orders
    assert not list(project.directory.glob("*.sbatch"))


def test_a_part_keeps_the_indices_of_the_whole(project: Desk) -> None:
    found = document(project, "--array", "0,3-5%2", "--time", "60")
    assert [point["index"] for point in found["points"]] == [0, 3, 4, 5]
    assert (found["count"], found["throttle"], found["gpu_seconds"]) == (6, 2, 4 * 8 * 3600)
    assert found["scripts"][0]["arrays"] == [{"offset": 0, "array": "0,3-5%2", "count": 4}]
    assert document(project)["table"] == found["table"]
    assert "4 combinations of 6, " in project.run("submit", "--dry-run", "--array", "0,3-5").out


def test_values_are_those_that_were_written(project: Desk) -> None:
    said = project.run("submit", "--dry-run", "--json").out
    assert '"values": {"learning_rate": 1e-5, "seed": 1, "model_dim": 240, "corpus": "a b"}' in said


def test_more_points_than_an_array_has(project: Desk) -> None:
    project.program("sinfo sbatch", "exit 1")
    project.program("scontrol", SCONTROL)
    found = document(project)
    assert (found["max_array_size"], found["max_array_size_from"]) == (3, "scontrol show config")
    assert found["scripts"][0]["arrays"] == [
        {"offset": 0, "array": "0-2%4", "count": 3},
        {"offset": 3, "array": "0-2%4", "count": 3},
    ]
    said = project.run("submit", "--dry-run").out
    assert "2 array jobs; 4 at a time in each array, 8 in all" in said
    assert "\n    --array=0-2%4, combination = index + 3\n" in said


def test_the_profile_knows_where_slurm_does_not_answer(project: Desk) -> None:
    found = document(project, "--cluster", "deucalion", "--account", "F202500001HPCVLABEPICUREG")
    assert found["max_array_size"] == 10_000
    assert "Slurm's default" not in found["max_array_size_from"]


def test_values_of_the_config_make_scripts(project: Desk) -> None:
    project.write("sweep.yaml", "grid: {resources.nodes: [1, 2], seed: [1, 2], nodes: [7]}\n")
    said = project.run("submit", "--dry-run", "--sweep", "sweep.yaml")
    assert "4 combinations, 2 scripts, 2 array jobs\n" in said.out
    assert (
        "script 1: resources.nodes=1: combinations 0-1: 1 node x 4 GPUs = 4 processes, 00:30:00\n"
        in said.out
    )
    assert (
        "script 2: resources.nodes=2: combinations 2-3: 2 nodes x 4 GPUs = 8 processes, 00:30:00\n"
        in said.out
    )
    found = document(project, "--sweep", "sweep.yaml")
    assert [(script["nodes"], script["points"]) for script in found["scripts"]] == [
        (1, "0-1"),
        (2, "2-3"),
    ]
    assert [point["script"] for point in found["points"]] == [0, 0, 1, 1]


def test_what_a_point_sets_of_the_config_is_checked_as_the_config_is(project: Desk) -> None:
    project.write("sweep.yaml", "grid: {resources.nodes: [1, two], resources.gpu_per_node: [1]}\n")
    said = project.refused("submit", "--dry-run", "--sweep", "sweep.yaml")
    assert "sweep.yaml: combination 0: " in said.err
    assert "did you mean 'gpus_per_node'?" in said.err
    assert said.lines[-1].startswith("hint: edit sweep.yaml, then run: hpctrain submit ")


def test_bare_lists_and_files_of_every_kind(project: Desk) -> None:
    project.write("config.yaml", "sweep:\n- {model_dim: 240}\n- {model_dim: 192}\n")
    inline = document(project)
    for name, text in {
        "points.json": '[{"model_dim": 240}, {"model_dim": 192}]',
        "points.yaml": "- model_dim: 240\n- model_dim: 192\n",
        "points": '{"list": [{"model_dim": 240}, {"model_dim": 192}]}',
        "sp ace.yml": "list: [{model_dim: 240}, {model_dim: 192}]",
    }.items():
        project.write(name, text)
        project.write("config.yaml", f"sweep: {name}\n")
        assert document(project) == inline
        project.write("config.yaml", CONFIG)
        assert document(project, "--sweep", name)["points"] == inline["points"]


@pytest.mark.parametrize(
    ("files", "words", "lines"),
    [
        ({}, "--array 4-6", ["there is no combination 6\n", "the combinations are 0 to 5"]),
        (
            {"nodes.yaml": "grid: {resources.nodes: [1, 2]}\n"},
            "--sweep nodes.yaml --nodes 3",
            ["the sweep varies what --nodes says"],
        ),
        ({}, "-- --learning-rate 3", ["learning_rate cannot be varied and also given after --"]),
        ({}, "--sweep nosuch", ["error: there is no file nosuch\n"]),
        (
            {"bad.json": '[{"a": 1},\n {"a": 1}]'},
            "--sweep bad.json",
            ["combination 1 is the same as combination 0: a=1\n"],
        ),
        (
            {"config.yaml": "sweep:\n  grd: {a: [1]}\n  pass: never\n"},
            "",
            [
                "error: 2 problems in config.yaml",
                "config.yaml:2:3: unknown key 'grd' in sweep; did you mean 'grid'?\n",
            ],
        ),
        ({}, "--zzz 3", ["hpctrain submit --dry-run -- --zzz 3\n"]),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_what_to_type(
    project: Desk, files: dict[str, str], words: str, lines: list[str]
) -> None:
    for name, content in files.items():
        project.write(name, content)
    said = project.refused("submit", "--dry-run", *words.split()).err
    assert [line for line in lines if line not in said] == []


def test_a_key_in_a_sweep_is_not_shown(project: Desk) -> None:
    project.write("key.json", '[{"token": "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"}]')
    assert "abcdefgh" not in project.refused("submit", "--dry-run", "--sweep", "key.json").err


def table_of(desk: Desk, file: str) -> list[str]:
    said = desk.run("submit", "--dry-run", "--sweep", file).out
    return said.partition("would write")[0].splitlines()


def test_values_that_a_terminal_would_obey_are_shown(desk: Desk, no_slurm: None) -> None:
    desk.write(
        "points.json", json.dumps([{"a": "x\x1b[2J\ny"}, {"a": ""}, {"b": "-"}, {"a": None}])
    )
    assert [line.split() for line in table_of(desk, "points.json")[-5:]] == [
        ["POINT", "a", "b"],
        ["0", '"x\\u001b[2J\\ny"', "-"],
        ["1", '""', "-"],
        ["2", "-", '"-"'],
        ["3", "null", "-"],
    ]


def test_a_sweep_comes_from_a_regular_file_of_bounded_size(project: Desk) -> None:
    for verb in (["submit", "--dry-run"], ["render"]):
        for path in ("/dev/zero", "/etc"):
            assert f"cannot read {path}: " in project.refused(*verb, "--sweep", path).err
    with project.write("huge.json", "[").open("r+b") as stream:
        stream.truncate(1 << 40)
    assert "larger than 16 MB" in project.run("render", "--sweep", "huge.json").err
