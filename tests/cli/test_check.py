"""`hpctrain check` and the checks of `submit`: real files, real environments, stub programs for
Slurm.
"""

import json
import re
from typing import Any

import pytest

from hpctrain.checks.job import IDS
from hpctrain.data.manifest import DatasetManifest, Split, tokenizer_fingerprint
from hpctrain.runs import launch
from tests.cli.check_desk import JOB, document, with_job
from tests.cli.conftest import Desk


@pytest.fixture
def project(desk: Desk) -> Desk:
    return with_job(desk)


# -- what is shown ---------------------------------------------------------------------------------


def test_nothing_wrong_is_said_with_what_was_and_was_not_checked(project: Desk) -> None:
    said = project.run("check", "--no-slurm", "--level", "error")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("1 node x 1 GPU = 1 process: ")
    assert "checked: config, files, environment" in lines
    assert "not checked: Slurm: --no-slurm" in lines
    assert "a cluster profile: none is named" in said.out
    assert said.err == "next: hpctrain submit\n"


def test_json_has_every_key_and_the_place_in_the_file(project: Desk) -> None:
    project.write("config.yaml", JOB + "  time: 3-00:00:00\n")
    found = document(project, "--cluster", "leonardo", "--account", "EUHPC_A06_067")
    assert found["cluster"] == "leonardo"
    assert found["job"] == {"name": "sft", "nodes": 1, "gpus_per_node": 1, "processes": 1}
    (limit,) = (finding for finding in found["findings"] if finding["id"] == "time-limit")
    assert (limit["file"], limit["line"], limit["column"]) == ("config.yaml", 5, 3)
    assert limit["docs"] == "docs/findings.md#time-limit"
    assert "config.yaml:5:3: time: 3-00:00:00; profile leonardo: " in limit["evidence"]
    assert found["counts"]["error"] >= 1
    assert found["start_estimate"] is None
    assert {finding["id"] for finding in found["findings"]} <= set(IDS)


def test_the_level_hides_findings_and_changes_no_exit_code(project: Desk) -> None:
    broken = "environment:\n  conda: nowhere\n  before: [gone.sh]\n"
    project.write("config.yaml", JOB + broken)
    words = ("check", "--no-slurm")
    assert "warning environment-missing" in project.run(*words).out
    said = project.run(*words, "--level", "error")
    assert "warning environment-missing" not in said.out
    assert "1 error, 2 warnings" in said.out
    assert said.code == 1


def test_show_origin_says_which_layer_won_and_over_what(project: Desk) -> None:
    project.set(HPCTRAIN_NODES="3")
    env = "{MY_PASSWORD: hunter2, OTHER_PASSWORD: $hunter2}"
    project.write("config.yaml", f"{JOB}  nodes: 2\nenvironment:\n  env: {env}\n")
    said = project.run("check", "--no-slurm", "--show-origin", "--nodes", "4")
    assert "resources.nodes = 4   --nodes   (over HPCTRAIN_NODES, config.yaml:5:3)\n" in said.out
    assert "resources.time = 01:00:00   default\n" in said.out
    assert "OTHER_PASSWORD" in said.out
    assert "hunter2" not in said.out
    values = {value["key"]: value for value in document(project, "--show-origin")["values"]}
    assert values["resources.nodes"] == {
        "key": "resources.nodes",
        "value": 3,
        "origin": "HPCTRAIN_NODES",
        "over": ["config.yaml:5:3"],
    }


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("train.py",), "fix: hpctrain check --script train.py"),
        (("x.sbatch",), "fix: hpctrain lint x.sbatch"),
        (("a.yaml", "--config", "b.yaml"), "fix: hpctrain check a.yaml"),
        (
            ("nope.yaml",),
            "hint: name a file that exists with --config",
        ),
    ],
)
def test_what_is_no_job_config_is_a_usage_error(
    project: Desk, words: tuple[str, ...], fix: str
) -> None:
    assert project.refused("check", *words).lines[-1] == fix


def test_a_config_may_be_named(project: Desk) -> None:
    project.write("other.yaml", JOB.replace("train.py", "gone.py"))
    found = document(project, "other.yaml")
    (finding,) = (finding for finding in found["findings"] if finding["id"] == "script-missing")
    assert finding["evidence"] == "other.yaml:1:1: script: gone.py"
    assert "--config other.yaml" in finding["fix"]


# -- Slurm, by stub programs -----------------------------------------------------------------------


def slurm(desk: Desk, sbatch: str) -> None:
    desk.program(
        "sinfo scontrol sacctmgr squeue sacct",
        "echo 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2; exit 1",
    )
    desk.program("sbatch", sbatch)


@pytest.mark.slow
def test_a_slurm_that_does_not_answer_is_not_checked_against(project: Desk) -> None:
    slurm(project, "exit 1")
    found = json.loads(project.run("check", "--json").out)
    said = [sentence for sentence in found["not_checked"] if sentence.startswith("Slurm")]
    assert len(said) == 1
    assert "Unable to contact slurm controller" in said[0]
    assert not any(sentence.startswith("Slurm") for sentence in found["checked"])


def test_submit_shows_warnings_in_a_line_each_and_goes_on(project: Desk) -> None:
    slurm(project, "echo 7")
    assert project.run("render").code == 0
    said = project.run("submit", "--parsable")
    assert (said.code, said.out) == (0, "7\n")
    assert sum(line.startswith("warning path-not-shared: ") for line in said.lines) == 1


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


# -- `hpctrain check` on a prepared dataset: its tokenizer has to be the model's


WORDS = (
    "check",
    "--json",
    "--no-slurm",
    "--",
    "--model_name_or_path",
    "model",
    "--dataset_name",
    "data",
)


def tokenizer(*words: str, **more: Any) -> str:
    vocabulary = {word: number for number, word in enumerate(words)}
    return json.dumps(
        {
            "added_tokens": [],
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": words[0]},
            **more,
        }
    )


@pytest.fixture
def prepared(desk: Desk) -> Desk:
    desk.write("config.yaml", "launcher: srun\n")
    desk.write("model/config.json", '{"model_type": "qwen3"}')
    desk.write("model/tokenizer.json", tokenizer("?", "a", "b"))
    made_with = tokenizer_fingerprint(desk.directory / "model")
    assert made_with is not None
    made = DatasetManifest(
        sources=(),
        form="text",
        columns={},
        loss_on="all",
        tokenizer=made_with,
        tokenizer_name="models/ours",
        template=None,
        vocabulary=3,
        max_length=None,
        packed=False,
        splits={"train": Split(rows=1, examples=1, tokens=1, trained=1, longest=1)},
    )
    desk.write("data/hpctrain.json", made.to_json())
    return desk


def found(desk: Desk) -> list[dict[str, Any]]:
    return [
        finding
        for finding in json.loads(desk.run(*WORDS).out)["findings"]
        if finding["id"] == "dataset-tokenizer"
    ]


def test_another_tokenizer_than_the_models_is_an_error(prepared: Desk) -> None:
    assert found(prepared) == []
    prepared.write("model/tokenizer.json", tokenizer("?", "b", "a"))
    (finding,) = found(prepared)
    assert finding["level"] == "error"
    assert "models/ours" in finding["evidence"]


# -- `hpctrain submit` looks before it hands over: our scripts by their job, anybody's by the


GOOD = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
#SBATCH --account=abc@h100
#SBATCH --constraint=h100
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 python train.py
"""


@pytest.fixture
def silent_slurm(desk: Desk) -> Desk:
    desk.program("sbatch", "touch submitted; echo 123")
    desk.program("sinfo scontrol sacctmgr", "echo no answer >&2; exit 1")
    return desk


def submitted(desk: Desk) -> bool:
    return (desk.directory / "submitted").exists()


def test_a_script_of_ones_own_is_read_before_it_is_submitted(silent_slurm: Desk) -> None:
    silent_slurm.write("own.sbatch", GOOD.replace("--gres=gpu:4", "--gres=gpu:$GPUS"))
    said = silent_slurm.refused("submit", "own.sbatch", code=1)
    assert said.lines[0] == "error: not submitted: 1 error in the job"
    assert not submitted(silent_slurm)
    assert silent_slurm.run(*said.lines[-1].rpartition(": hpctrain ")[2].split()).code == 0
    (silent_slurm.directory / "submitted").unlink()
    assert silent_slurm.run("submit", "own.sbatch", "--no-check").code == 0
    assert submitted(silent_slurm)


def test_its_directives_are_held_against_the_cluster_of_the_config(silent_slurm: Desk) -> None:
    silent_slurm.write("config.yaml", "cluster: jean_zay\n")
    silent_slurm.write("own.sbatch", GOOD.replace("#SBATCH --constraint=h100\n", ""))
    assert "account-nodes" in silent_slurm.refused("submit", "own.sbatch", code=1).err
    silent_slurm.write("own.sbatch", GOOD)
    assert silent_slurm.run("submit", "own.sbatch").code == 0


def test_the_strongest_word_on_the_cluster_wins(desk: Desk) -> None:
    desk.write("config.yaml", "cluster: leonardo\n")
    for variables, words, partition in (
        ({}, (), "boost_usr_prod"),
        ({"HPCTRAIN_CLUSTER": "tacc_vista"}, (), "gh"),
        ({"HPCTRAIN_CLUSTER": "tacc_vista"}, ("--cluster", "meluxina"), "gpu"),
        (
            {"HPCTRAIN_CLUSTER": "tacc_vista"},
            ("--cluster", "meluxina", "--partition", "mine"),
            "mine",
        ),
    ):
        desk.set(**variables)
        assert f"#SBATCH --partition={partition} " in desk.run("render", "--to", "-", *words).out


def test_a_job_that_is_refused_leaves_nothing_behind(silent_slurm: Desk) -> None:
    before = silent_slurm.snapshot()
    said = silent_slurm.refused("submit", "--nodes", "2", "--", "--seed", "1", code=1)
    assert silent_slurm.snapshot() == before
    assert said.lines[-1].endswith(
        ": hpctrain submit --nodes 2 --ignore model-folder,dataset-folder -- --seed 1"
    )
    assert silent_slurm.run(*said.lines[-1].rpartition(": hpctrain ")[2].split()).code == 0
    assert submitted(silent_slurm)
    assert "--nodes=2 " in (silent_slurm.directory / "sft.sbatch").read_text()


def test_a_script_that_is_none_leads_to_lint(silent_slurm: Desk) -> None:
    silent_slurm.write("a colleague's.sh", "python train.py\n")
    said = silent_slurm.refused("submit", "a colleague's.sh")
    fix = """hpctrain lint 'a colleague'"'"'s.sh'"""
    assert said.lines[-1] == f"fix: {fix}"


# -- A finding that does not apply is accepted by its id: on the command line, in the config,


@pytest.fixture
def without_hook(desk: Desk) -> Desk:
    """Return a job with one error: its hook is missing."""
    with_job(desk)
    desk.write(
        "config.yaml",
        (desk.directory / "config.yaml").read_text() + "environment:\n  before: [setup.sh]\n",
    )
    desk.program("sinfo scontrol sacctmgr squeue sacct", "echo no answer >&2; exit 1")
    desk.program("sbatch", "echo 123")
    return desk


def checked(desk: Desk, *words: str) -> tuple[int, dict[str, Any]]:
    said = desk.run("check", "--no-slurm", "--json", *words)
    return said.code, json.loads(said.out)


def accept_in_config(desk: Desk, id_: str = "hook-missing") -> None:
    desk.write(
        "config.yaml", (desk.directory / "config.yaml").read_text() + f"check:\n  ignore: [{id_}]\n"
    )


def recorded(desk: Desk) -> list[tuple[str, ...]]:
    runs = desk.directory / "runs"
    whole = [launch.load(runs, tag) for tag in launch.tags(runs)]
    return [part.ignored for each in whole if each is not None for part in each.parts]


def test_check_marks_it_and_counts_it_no_more(without_hook: Desk) -> None:
    assert checked(without_hook)[0] == 1
    code, found = checked(without_hook, "--ignore", "hook-missing,gpus-unused")
    marked = {each["id"]: each["ignored"] for each in found["findings"]}
    assert (code, found["counts"]["error"], marked.pop("hook-missing")) == (0, 0, True)
    assert not any(marked.values())
    said = without_hook.run("check", "--no-slurm", "--ignore", "hook-missing")
    assert (said.code, said.out.count("hook-missing")) == (0, 1)
    assert "--ignore hook-missing" in said.err.splitlines()[-1]


@pytest.mark.parametrize(
    "words", [("--ignore", "hook-mising"), ("--ignore", "gpus-unused,hook-mising")]
)
def test_an_unknown_id_is_an_error_that_names_the_nearest(
    without_hook: Desk, words: tuple[str, ...]
) -> None:
    for verb in ("check", "submit", "render"):
        said = without_hook.refused(verb, *words)
        assert "'hook-mising'" in said.err
        assert "'hook-missing'" in said.err
    accept_in_config(without_hook, "hook-mising")
    assert "config.yaml:" in without_hook.refused("check").err


def test_submit_takes_it_from_the_command_line(without_hook: Desk) -> None:
    assert "--ignore hook-missing" in without_hook.refused("submit", code=1).err
    said = without_hook.run("submit", "--ignore", "hook-missing")
    assert (said.code, said.err.count("hook-missing")) == (0, 1)
    assert recorded(without_hook) == [("hook-missing",)]


@pytest.mark.slow
def test_what_a_refused_submit_suggests_keeps_its_flags_and_works(without_hook: Desk) -> None:
    said = without_hook.run("submit", "--parsable", "--no-snapshot")
    assert said.code == 1
    suggested = said.lines[-1].partition("hpctrain ")[2].split()
    assert {"--parsable", "--no-snapshot"} <= set(suggested)
    assert without_hook.run(*suggested).out == "123\n"


def test_a_script_that_is_rendered_already_is_submitted_as_it_is(without_hook: Desk) -> None:
    without_hook.run("render", "--time", "10")
    text = (without_hook.directory / "sft.sbatch").read_text()
    assert without_hook.run("submit", "--ignore", "hook-missing").code == 0
    assert without_hook.run("submit", "sft.sbatch", "--ignore", "hook-missing").code == 0
    assert (without_hook.directory / "sft.sbatch").read_text() == text
    assert recorded(without_hook) == [("hook-missing",)] * 2


def test_a_script_of_ones_own(without_hook: Desk) -> None:
    without_hook.write(
        "own.sbatch",
        "#!/bin/bash\n#SBATCH --mem=1G\n#SBATCH --mem-per-cpu=1G\n#SBATCH --time=10\nsrun true\n",
    )
    (found,) = json.loads(without_hook.run("lint", "--json", "own.sbatch").out)["findings"]
    without_hook.refused("submit", "own.sbatch", code=1)
    assert without_hook.run("submit", "own.sbatch", "--ignore", found["id"]).code == 0


# -- `--gpus 0`: a job on the CPU on purpose, in every verb, with every launcher, on Slurm an


@pytest.fixture
def cpu_project(desk: Desk) -> Desk:
    with_job(desk)
    desk.write(
        "config.yaml",
        "script: train.py\nresources:\n  gpus_per_node: 0\n  mem_per_gpu: 2G\n  cpus_per_gpu: 4\n",
    )
    return desk


def script(desk: Desk, *words: str) -> str:
    said = desk.run("render", "--to", "-", *words)
    assert said.code == 0, said.err
    return said.out


@pytest.mark.slow
@pytest.mark.parametrize("nodes", ["1", "2"])
@pytest.mark.parametrize("launcher", ["accelerate", "torchrun", "srun"])
@pytest.mark.parametrize("directive", ["gres", "gpus-per-node", "gpus", "none"])
def test_no_gpu_is_requested_and_each_node_has_one_process(
    cpu_project: Desk, launcher: str, nodes: str, directive: str
) -> None:
    if directive == "gpus" and nodes == "2":
        return
    text = script(
        cpu_project, "--launcher", launcher, "--nodes", nodes, "--gpu-directive", directive
    )
    head = [line.partition(" # ")[0].strip() for line in text.splitlines()]
    assert not re.search(r"--(gres|gpus)", text)
    assert "#SBATCH --ntasks-per-node=1" in head
    assert ("#SBATCH --mem=2G" in head, "#SBATCH --cpus-per-task=4" in head) == (True, True)
    assert f"HPCTRAIN_WORLD_SIZE={nodes}" in text
    assert "export ACCELERATE_USE_CPU=true\n" in text
    counted = {
        "accelerate": rf"--num_processes {nodes}\b",
        "torchrun": r"--nproc_per_node 1\b",
        "srun": r"LOCAL_WORLD_SIZE=1\b",
    }
    assert re.search(counted[launcher], text)


def test_fit_is_about_gpus(cpu_project: Desk) -> None:
    cpu_project.write(
        "config.yaml", "resources: {gpus_per_node: 0}\ntraining: {model_name_or_path: m}\n"
    )
    cpu_project.write("m/config.json", '{"model_type": "qwen3"}')
    said = cpu_project.refused("fit")
    assert "--gpus 1" in said.lines[-1]
