"""`hpctrain sweep plan`: what a person sees of a sweep before it becomes jobs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpctrain.config import sweep_file
from hpctrain.jobs.sweep import expand, table

if TYPE_CHECKING:
    from conftest import Desk

EXAMPLES = Path(__file__).parents[2] / "examples" / "sweep"
CONFIG = """\
resources: {nodes: 2, gpus_per_node: 4, time: 30}
training: {max_steps: 5}
sweep:
  grid: {learning_rate: [1e-5, 3e-5], seed: [1, 2, 3]}
  zip: {model_dim: [240], data: ["a b"]}
  throttle: 4
"""
SCONTROL = "[ \"$*\" = 'show config' ] && printf 'ClusterName = x\\nMaxArraySize            = 3\\n'"


@pytest.fixture
def project(desk: Desk, no_slurm: None) -> Desk:
    desk.write("config.yaml", CONFIG)
    return desk


def document(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run("sweep", "plan", "--json", *words)
    assert (said.code, said.err) == (0, "")
    found: dict[str, Any] = json.loads(said.out)
    assert found["schema"] == 1
    return found


def test_the_plan_of_a_config(project: Desk) -> None:
    said = project.run("sweep", "plan")
    assert said.code == 0
    assert (
        said.out
        == """\
6 points, 1 script, 1 array job; 4 at a time
highest array index: 1000 (MaxArraySize 1001: Slurm's default)
each point: 2 nodes x 4 GPUs = 8 processes, 00:30:00
at most 24 GPU hours: GPUs x time limit, for every point
the same in all: model_dim=240 data=a b

POINT  learning_rate  seed
0      1e-5           1
1      1e-5           2
2      1e-5           3
3      3e-5           1
4      3e-5           2
5      3e-5           3
"""
    )
    assert said.err == "next: hpctrain render, with the same options\n"


def test_a_part_keeps_the_indices_of_the_whole(project: Desk) -> None:
    found = document(project, "--array", "0,3-5%2", "--time", "60")
    assert [point["index"] for point in found["points"]] == [0, 3, 4, 5]
    assert (found["count"], found["throttle"], found["gpu_seconds"]) == (6, 2, 4 * 8 * 3600)
    assert found["scripts"][0]["arrays"] == [{"offset": 0, "array": "0,3-5%2", "count": 4}]
    assert document(project)["table"] == found["table"]
    assert "4 points of 6, " in project.run("sweep", "plan", "--array", "0,3-5").out


def test_values_are_those_that_were_written(project: Desk) -> None:
    said = project.run("sweep", "plan", "--json").out
    assert '"values": {"learning_rate": 1e-5, "seed": 1, "model_dim": 240, "data": "a b"}' in said


def test_more_points_than_an_array_has(project: Desk) -> None:
    project.program("sinfo", "exit 1")
    project.program("sbatch", "exit 1")
    project.program("scontrol", SCONTROL)
    found = document(project)
    assert (found["max_array_size"], found["max_array_size_from"]) == (3, "scontrol show config")
    assert found["scripts"][0]["arrays"] == [{"offset": 0, "array": "0-2%4", "count": 3}, {"offset": 3, "array": "0-2%4", "count": 3}]
    said = project.run("sweep", "plan").out
    assert "6 points, 1 script, 2 array jobs; 4 at a time in each array, 8 in all\nhighest array index: 2 (MaxArraySize 3: scontrol" in said
    assert "\n    --array=0-2%4, point = index + 3\n" in said


def test_the_profile_knows_where_slurm_does_not_answer(project: Desk) -> None:
    found = document(project, "--cluster", "deucalion", "--account", "F202500001HPCVLABEPICUREG")
    assert found["max_array_size"] == 10_000
    assert "Slurm's default" not in found["max_array_size_from"]


def test_values_of_the_config_make_scripts(project: Desk) -> None:
    project.write("sweep.yaml", "grid: {resources.nodes: [1, 2], seed: [1, 2], nodes: [7]}\n")
    said = project.run("sweep", "plan", "--sweep", "sweep.yaml")
    assert "4 points, 2 scripts, 2 array jobs\n" in said.out
    assert "script 1: resources.nodes=1: points 0-1: 1 node x 4 GPUs = 4 processes, 00:30:00\n" in said.out
    assert "script 2: resources.nodes=2: points 2-3: 2 nodes x 4 GPUs = 8 processes, 00:30:00\n" in said.out
    assert "at most 12 GPU hours" in said.out
    assert "note: nodes goes to the script; resources.nodes is the job's\n" in said.err
    found = document(project, "--sweep", "sweep.yaml")
    assert [(script["nodes"], script["points"]) for script in found["scripts"]] == [(1, "0-1"), (2, "2-3")]
    assert [point["script"] for point in found["points"]] == [0, 0, 1, 1]


def test_what_a_point_sets_of_the_config_is_checked_as_the_config_is(project: Desk) -> None:
    project.write("sweep.yaml", "grid: {resources.nodes: [1, two], resources.gpu_per_node: [1]}\n")
    said = project.refused("sweep", "plan", "--sweep", "sweep.yaml")
    assert "sweep.yaml: point 0: " in said.err
    assert "did you mean 'gpus_per_node'?" in said.err
    assert said.lines[-1].startswith("fix: edit sweep.yaml, then run: hpctrain sweep plan")


def test_bare_lists_and_files_of_every_kind(project: Desk) -> None:
    project.write("config.yaml", "sweep:\n- {model_dim: 240}\n- {model_dim: 192}\n")
    inline = document(project)
    for name, text in {
        "points.json": '[{"model_dim": 240}, {"model_dim": 192}]', "points.yaml": "- model_dim: 240\n- model_dim: 192\n",
        "points": '{"list": [{"model_dim": 240}, {"model_dim": 192}]}', "sp ace.yml": "list: [{model_dim: 240}, {model_dim: 192}]",
    }.items():  # fmt: skip
        project.write(name, text)
        project.write("config.yaml", f"sweep: {name}\n")
        assert document(project) == inline
        project.write("config.yaml", CONFIG)
        assert document(project, "--sweep", name)["points"] == inline["points"]


def test_what_is_wrong_is_said_with_its_place_and_what_to_type(project: Desk) -> None:
    assert "there is no point 6; the points are 0 to 5" in project.refused("sweep", "plan", "--array", "4-6").err
    project.write("nodes.yaml", "grid: {resources.nodes: [1, 2]}\n")
    assert "the sweep varies what --nodes says" in project.refused("sweep", "plan", "--sweep", "nodes.yaml", "--nodes", "3").err
    assert "learning_rate, which also stands behind --" in project.refused("sweep", "plan", "--", "--learning-rate", "3").err
    assert project.refused("sweep", "plan", "--sweep", "nosuch").lines[0] == "error: there is no file nosuch with a sweep"
    project.write("bad.json", '[{"a": 1},\n {"a": 1}]')
    assert "bad.json:2:2: item 2 is the same point as item 1: a=1" in project.refused("sweep", "plan", "--sweep", "bad.json").lines
    project.write("config.yaml", "sweep:\n  grd: {a: [1]}\n  pass: never\n")
    said = project.refused("sweep", "plan")
    assert "config.yaml:2:3: unknown key 'grd' in sweep; did you mean 'grid'?" in said.lines
    assert said.lines[0].startswith("error: 3 problems in config.yaml")
    project.write("config.yaml", "job_name: x\n")
    assert project.refused("sweep", "plan").lines[0] == "error: there is no sweep in the config"
    project.write("key.json", '[{"token": "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"}]')
    assert "abcdefgh" not in project.refused("sweep", "plan", "--sweep", "key.json").err
    assert "hpctrain sweep plan -- --zzz 3" in project.refused("sweep", "plan", "--zzz", "3").lines[-1]


def on_a_terminal(directory: Path, hpctrain: str, *words: str) -> list[str]:
    """Return the lines that a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"NO_COLOR": "1"}
    done = subprocess.Popen(
        [hpctrain, *words], stdout=theirs, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment, cwd=directory
    )
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    assert done.wait() == 0
    return said.decode().splitlines()


def test_a_wide_table_fits_a_terminal_and_is_whole_in_a_pipe(desk: Desk, no_slurm: None, hpctrain: str) -> None:
    points = [{f"a_rather_long_name_{key}": f"{number}{key}" * (key + 1) for key in range(8)} for number in range(3)]
    desk.write("points.json", json.dumps(points))
    lines = on_a_terminal(desk.directory, hpctrain, "sweep", "plan", "--sweep", "points.json")
    assert max(map(len, lines)) <= 80
    assert [line[0] for line in lines if line[:1].isdigit()] == ["3", "0", "1", "2"]
    assert "   a_rather_long_name_3=23232323 a_rather_long_name_4=2424242424" in lines
    piped = desk.run("sweep", "plan", "--sweep", "points.json").out.splitlines()
    assert piped[-4].split() == ["POINT", *points[0]]
    assert [line.split() for line in piped[-3:]] == [[str(number), *point.values()] for number, point in enumerate(points)]


def test_a_long_table_is_shortened_on_a_terminal_and_whole_in_a_pipe(desk: Desk, no_slurm: None, hpctrain: str) -> None:
    desk.write("points.yaml", f"grid: {{seed: {list(range(100))}}}")
    lines = on_a_terminal(desk.directory, hpctrain, "sweep", "plan", "--sweep", "points.yaml")
    assert "... and 50 more: hpctrain sweep plan | less" in lines
    assert lines[lines.index("... and 50 more: hpctrain sweep plan | less") - 1].split() == ["39", "39"]
    assert lines[lines.index("... and 50 more: hpctrain sweep plan | less") + 1].split() == ["90", "90"]
    assert [line.split()[0] for line in desk.run("sweep", "plan", "--sweep", "points.yaml").out.splitlines()[-100:]] == [
        str(index) for index in range(100)
    ]


def test_values_that_a_terminal_would_obey_are_shown(desk: Desk, no_slurm: None) -> None:
    desk.write("points.json", json.dumps([{"a": "x\x1b[2J\ny"}, {"a": ""}, {"b": "-"}, {"a": None}]))
    said = desk.run("sweep", "plan", "--sweep", "points.json").out
    assert [line.split() for line in said.splitlines()[-5:]] == [
        ["POINT", "a", "b"], ["0", '"x\\u001b[2J\\ny"', "-"], ["1", '""', "-"], ["2", "-", '"-"'], ["3", "null", "-"],
    ]  # fmt: skip


def test_the_examples_run(desk: Desk, no_slurm: None) -> None:
    """Each point of the example, as the words of its line in the table, runs the example's script."""
    for file in EXAMPLES.iterdir():
        shutil.copy(file, desk.directory)
    plan = document(desk, "--config", "any_script.yaml")
    sweep = sweep_file.load(EXAMPLES / "points.json", "points.json", again="")
    made = table(sweep, expand(sweep), training={"steps": "20"})
    assert made.name == plan["table"]
    desk.write("points.tsv", made.text)
    seen = []
    for index in range(plan["count"]):
        read = f'command=(); eval "command+=($(sed -n {index + 1}p points.tsv | cut -f2-))"; {sys.executable} train.py "${{command[@]}}"'
        subprocess.run(["bash", "-euc", read], cwd=desk.directory, check=True, capture_output=True)
        seen.append(json.loads((desk.directory / "result.json").read_text()))
    assert [(each["learning_rate"], each["steps"], each["seed"], each["bias"]) for each in seen] == [
        (0.01, 20, 1, True), (0.1, 20, 1, True), (0.1, 200, 1, True), (0.3, 20, 1, False),
    ]  # fmt: skip
    assert seen[2]["loss"] < seen[1]["loss"] < seen[0]["loss"]
    assert document(desk, "--config", "config.yaml")["count"] == 4


def test_the_usage_line_names_the_group_once(project: Desk) -> None:
    assert project.run("sweep", "plan", "--help").out.startswith("Usage: hpctrain sweep plan [")


def test_a_sweep_comes_from_a_file_and_the_plan_takes_a_pipe(project: Desk) -> None:
    program = [sys.executable, "-m", "hpctrain"]
    for words, code, sentence in (
        (["sweep", "plan", "--json"], 0, '"count": 2'),
        (["render"], 2, "error: a sweep is read from a file, and /dev/stdin is a pipe\nfix: cat /dev/stdin > sweep.yaml"),
    ):
        said = subprocess.run([*program, *words, "--sweep", "/dev/stdin"], input="grid: {a: [1, 2]}\n", capture_output=True, text=True)
        assert said.returncode == code
        assert sentence in said.stdout + said.stderr
    for verb in (["sweep", "plan"], ["render"]):
        assert "/dev/zero is a device or a socket" in project.refused(*verb, "--sweep", "/dev/zero").err
    with project.write("huge.json", "[").open("r+b") as stream:
        stream.truncate(1 << 40)
    assert "huge.json is larger than 64 MB" in project.run("render", "--sweep", "huge.json").err
    (project.directory / "huge.json").unlink()
    assert "cannot read /etc: is a directory" in project.refused("sweep", "plan", "--sweep", "/etc").err


def test_no_stages_are_no_plain_job(project: Desk) -> None:
    project.write("config.yaml", "stages: []\n")
    assert "config.yaml:1:1: stages must hold at least one stage" in project.refused("render").err


def test_a_message_about_indices_begins_as_all_do(project: Desk) -> None:
    assert "--array: invalid job array specification" in project.refused("sweep", "plan", "--array", "3-1").err
