"""`hpctrain check` and the checks of `submit`: real files, real environments, stub programs for Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from check_desk import JOB, document, ids, with_job

from hpctrain.jobs.check import IDS

if TYPE_CHECKING:
    from conftest import Desk


@pytest.fixture
def project(desk: Desk) -> Desk:
    return with_job(desk)


# -- what is shown ------------------------------------------------------------------------------------------------------


def test_nothing_wrong_is_said_with_what_was_and_was_not_checked(project: Desk) -> None:
    said = project.run("check", "--no-slurm", "--level", "error")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("1 node x 1 GPU = 1 process: ")
    assert "checked: config, files, environment" in lines
    assert "not checked: Slurm: --no-slurm" in lines
    assert "a cluster profile: none is named" in said.out
    assert said.err == "next: hpctrain submit\n"


def test_a_block_has_what_evidence_reason_and_fix_in_eighty_columns(project: Desk) -> None:
    project.write("train.py", "def broken(:\n    pass\n")
    said = project.run("check", "--no-slurm")
    assert said.code == 1
    text = said.out
    assert "error script-syntax: " in text
    assert "  seen: train.py:1:12: " in text
    assert "  why:  every process ends at once with SyntaxError\n" in text
    assert "  fix:  edit train.py, then: python3 -m py_compile train.py\n" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_json_has_every_key_and_the_place_in_the_file(project: Desk) -> None:
    project.write("config.yaml", JOB + "  time: 3-00:00:00\n")
    found = document(project, "--cluster", "leonardo", "--account", "EUHPC_A06_067")
    assert found["cluster"] == "leonardo"
    assert found["job"] == {"name": "sft", "nodes": 1, "gpus_per_node": 1, "processes": 1}
    (limit,) = (finding for finding in found["findings"] if finding["id"] == "time-limit")
    assert (limit["file"], limit["line"], limit["column"]) == ("config.yaml", 5, 3)
    assert limit["docs"] == "docs/findings/time-limit.md"
    assert "config.yaml:5:3: time: 3-00:00:00; profile leonardo: " in limit["evidence"]
    assert found["counts"]["error"] >= 1
    assert found["start_estimate"] is None
    assert {finding["id"] for finding in found["findings"]} <= set(IDS)


def test_the_level_hides_findings_and_changes_no_exit_code(project: Desk) -> None:
    project.write("train.py", "(\n")
    words = ("check", "--no-slurm", "--cluster", "leonardo", "--account", "EUHPC_A06_067")
    assert "note single-process" in project.run(*words).out
    said = project.run(*words, "--level", "error")
    assert "note single-process" not in said.out
    assert "1 note" in said.out
    assert said.code == 1


def test_show_origin_says_which_layer_won_and_over_what(project: Desk) -> None:
    project.set(HPCTRAIN_NODES="3")
    project.write("config.yaml", JOB + "  nodes: 2\nenvironment:\n  env: {MY_PASSWORD: hunter2}\n")
    said = project.run("check", "--no-slurm", "--show-origin", "--nodes", "4")
    assert "resources.nodes = 4   --nodes   (over HPCTRAIN_NODES, config.yaml:5:3)\n" in said.out
    assert "resources.time = 01:00:00   default\n" in said.out
    assert "MY_PASSWORD" in said.out
    assert "hunter2" not in said.out
    values = {value["key"]: value for value in document(project, "--show-origin")["values"]}
    assert values["resources.nodes"] == {"key": "resources.nodes", "value": 3, "origin": "HPCTRAIN_NODES", "over": ["config.yaml:5:3"]}


def test_a_profiles_value_says_so_as_origin(project: Desk) -> None:
    values = {value["key"]: value for value in document(project, "--cluster", "frontier", "--show-origin")["values"]}
    assert values["resources.gpu_directive"]["value"] == "none"
    assert values["resources.gpu_directive"]["origin"].startswith("profile frontier: documented")


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("train.py",), "fix: hpctrain check --script train.py"),
        (("x.sbatch",), "fix: hpctrain lint x.sbatch"),
        (("a.yaml", "--config", "b.yaml"), "fix: hpctrain check a.yaml"),
        (("nope.yaml",), "fix: --config with one of: ls *.yaml; without --config, ./config.yaml is read"),
    ],
)
def test_what_is_no_job_config_is_a_usage_error(project: Desk, words: tuple[str, ...], fix: str) -> None:
    assert project.refused("check", *words).lines[-1] == fix


def test_a_wrong_config_is_a_config_error(project: Desk) -> None:
    project.write("config.yaml", JOB + "  tiem: 5\n")
    assert "unknown key 'tiem'" in project.refused("check").err


def test_a_config_may_be_named(project: Desk) -> None:
    project.write("other.yaml", JOB.replace("train.py", "gone.py"))
    found = document(project, "other.yaml")
    (finding,) = (finding for finding in found["findings"] if finding["id"] == "script-missing")
    assert finding["evidence"] == "other.yaml:1:1: script: gone.py"
    assert "--config other.yaml" in finding["fix"]


def test_what_comes_next_is_of_the_job_that_was_checked(project: Desk) -> None:
    project.write("my job.yaml", JOB)
    for words in (("my job.yaml",), ("--config", "my job.yaml")):
        assert project.run("check", "--no-slurm", *words).err == "next: hpctrain submit --config 'my job.yaml'\n"
    assert project.run("check", "--no-slurm", "--nodes", "2", "--", "--x", "1").err == "next: hpctrain submit --nodes 2 -- --x 1\n"
    project.write("gone.yaml", JOB.replace("train.py", "gone.py"))
    assert project.run("check", "--no-slurm", "gone.yaml").err.endswith("then: hpctrain check --config gone.yaml\n")
    project.write("study.yaml", JOB + "tune: {study: line, space: {x: {low: 0, high: 8}}, trials: 2}\n")
    assert project.run("check", "--no-slurm", "study.yaml").err == "next: hpctrain tune --config study.yaml\n"


def test_nothing_is_written(project: Desk) -> None:
    before = project.snapshot()
    project.run("check", "--no-slurm", "--cluster", "jean_zay")
    assert project.snapshot() == before


# -- Slurm, by stub programs --------------------------------------------------------------------------------------------


def slurm(desk: Desk, sbatch: str) -> None:
    for name in ("sinfo", "scontrol", "sacctmgr", "squeue", "sacct"):
        desk.program(name, "echo 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2; exit 1")
    desk.program("sbatch", sbatch)


def test_a_slurm_that_does_not_answer_is_not_checked_against(project: Desk) -> None:
    slurm(project, "exit 1")
    found = json.loads(project.run("check", "--json").out)
    said = [sentence for sentence in found["not_checked"] if sentence.startswith("Slurm")]
    assert said == ["Slurm: it does not answer (sinfo: slurm_load_ctl_conf error: Unable to contact slurm controller)"]
    assert not any(sentence.startswith("Slurm") for sentence in found["checked"])


def test_one_program_that_does_not_answer_is_named_without_its_format(project: Desk) -> None:
    slurm(project, "exit 1")
    project.program("scontrol", '[ "$2" = config ] && echo "ClusterName = lab" || echo "PartitionName=gpu State=UP"')
    found = json.loads(project.run("check", "--json").out)
    said = [sentence for sentence in found["not_checked"] if sentence.startswith("Slurm")]
    failed = "slurm_load_ctl_conf error: Unable to contact slurm controller"
    assert said == [f"Slurm: {name}: {failed}" for name in ("sinfo", "sacctmgr show user", "sacctmgr show qos")]


def test_submit_stops_on_errors_and_shows_them_whole(project: Desk) -> None:
    calls = project.directory.parent / "called"
    slurm(project, f"touch {calls}; echo 7")
    assert project.run("render").code == 0
    project.write("train.py", "(\n")
    said = project.run("submit")
    assert said.code == 1
    assert not calls.exists()
    assert "error: not submitted: 1 error in the job\n" in said.err
    assert "error script-syntax: " in said.err
    assert said.lines[-1] == "fix: as above, then submit again; to submit as it is: hpctrain submit --no-check"
    assert project.run("submit", "--no-check").code == 0
    assert calls.exists()


def test_submit_shows_warnings_in_a_line_each_and_goes_on(project: Desk) -> None:
    slurm(project, "echo 7")
    project.set(SBATCH_QOS="x")
    assert project.run("render").code == 0
    said = project.run("submit", "--parsable")
    assert (said.code, said.out) == (0, "7\n")
    assert sum(line.startswith("warning shell-leaks: ") for line in said.lines) == 1
    assert "note single-process" not in said.err


def test_a_script_of_ones_own_is_judged_by_its_text_alone(project: Desk) -> None:
    slurm(project, "echo 7")
    assert project.run("render").code == 0
    project.write("train.py", "(\n")
    project.write("own.sbatch", "#!/bin/bash\ntrue\n")
    assert project.run("submit", "own.sbatch").code == 0
    assert "script-syntax" in project.refused("submit", "sft.sbatch", code=1).err
    script = project.directory / "sft.sbatch"
    script.write_text(script.read_text() + "# mine\n")
    assert project.run("submit").code == 0


@pytest.mark.usefixtures("no_slurm")
def test_here_nothing_about_a_cluster_is_checked(project: Desk) -> None:
    project.write("config.yaml", JOB + "  time: 100-00:00:00\n")
    assert project.run("render", "--cluster", "leonardo").code == 0
    assert "time-limit" in ids(project, "--cluster", "leonardo")
    said = project.run("submit", "--cluster", "leonardo")
    assert "time-limit" not in said.err
    assert "path-not-shared" not in said.err


def test_heavy_packages_stay_out(project: Desk, hpctrain: str) -> None:
    code = (
        "import sys\nfrom hpctrain.cli import main\ntry: main(['check', '--no-slurm', '--cluster', 'leonardo'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'rich', 'datasets', 'accelerate', 'trl', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
