"""What somebody new does in the first hour, wrongly: no command that is offered then may fail, or do something else than it says."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Desk

pytestmark = pytest.mark.usefixtures("no_slurm")
#: Fails as long as the config says so, and says what it got.
TRAIN = "import sys\nprint(sys.argv[1:])\nsys.exit(3 if '--fail' in sys.argv else 0)\n"


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--time", "5", "--", "--lr", "1e-4")], ids=["bare", "options"])
def test_a_config_that_was_mended_reaches_a_run_by_the_command_that_resubmit_says(desk: Desk, options: tuple[str, ...]) -> None:
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", "script: train.py\nlauncher: srun\ntraining: {fail: true}\n")
    assert desk.run("render", *options).code == 0
    assert desk.run("submit", "--local", "--wait", "--run-id", "r1", *options).code == 3
    desk.write("config.yaml", "script: train.py\nlauncher: srun\ntraining: {other: 1}\n")
    for more in ((), ("--new-code",)):  # the script is the old one in both
        said = desk.run("resubmit", "r1", "--local", "--wait", *more)
        assert said.code == 3
        assert "note: config.yaml has changed since, and r1 goes on with the script that was made of it before" in said.err
        assert "to run it as it is now: --new-code" not in said.err  # it does not help
    [command] = re.findall(r"^note: config\.yaml .* as it is now: (.*)$", said.err, re.MULTILINE)
    assert "--local" in command
    for each in command.replace("submit", "submit --wait").split(" && "):
        done = desk.run(*shlex.split(each)[1:])
        assert done.code == 0, done.err
    shown = desk.run("runs", "show", "r1").out
    assert "training.other" in shown
    assert "training.fail" not in shown


def test_what_a_stale_script_offers_still_goes_on_with_the_run(desk: Desk) -> None:
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", "script: train.py\nlauncher: srun\n")
    assert desk.run("render").code == 0
    desk.write("config.yaml", "script: train.py\nlauncher: srun\nresources: {time: 10}\n")
    said = desk.refused("submit", "--local", "--run-id", "r1")
    offered = "fix: hpctrain render && hpctrain submit --local --run-id r1, or the script as it is: hpctrain submit --local --run-id r1 "
    assert said.lines[-1].startswith(offered)


@pytest.mark.slow
def test_what_failed_is_to_be_explained_and_what_is_submitted_can_be_watched(desk: Desk) -> None:
    desk.write("train.py", TRAIN)
    said = desk.run("submit", "--local", "--wait", "--script", "train.py", "--launcher", "srun", "--", "--fail")
    assert said.code == 3
    [job] = re.findall(r"^submitted job (\d+)", said.err, re.MULTILINE)
    assert said.lines[-1] == f"next: hpctrain explain {job}"
    assert "script-exit" in (told := desk.run("explain", job)).out or told.out, told.err
    done = desk.run("submit", "--local", "--script", "train.py", "--launcher", "srun", "--", "--quick", "--force")
    assert f"next: hpctrain watch {int(job) + 1}, " in done.err or "next: hpctrain watch " in done.err
    assert desk.run("cancel", "--yes").code in (0, 1)


def test_arguments_of_the_shipped_training_do_not_reach_another_script_in_silence(desk: Desk) -> None:
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", "training: {model_name_or_path: m, dataset_name: d, learning_rate: 1e-5, max_steps: 3}\n")
    note = (
        "note: train.py also gets what config.yaml has under training: --model_name_or_path, --dataset_name, --learning_rate and 1 more; "
        "without them: --config OTHER.yaml"
    )
    said = desk.run("render", "--script", "train.py", "--", "--lr", "1e-4")
    assert said.code == 0
    assert note in said.lines
    desk.write("config.yaml", "script: train.py\ntraining: {lr: 1e-4}\n")  # both are of one hand
    assert "also gets" not in desk.run("render").err


@pytest.mark.parametrize("verb", ["check", "submit"])
def test_the_wrong_directory_is_named(desk: Desk, verb: str) -> None:
    said = desk.run(verb, "--nodes", "1")
    assert said.code == 1
    words = f"a config: there is no config.yaml in {desk.directory}; cd to the directory that has yours, or: hpctrain init"
    assert words in " ".join((said.out + said.err).split())
    desk.write("config.yaml", "job_name: sft\n")
    said = desk.run(verb, "--nodes", "1")
    assert "there is no config.yaml" not in said.out + said.err


def test_rendering_ends_with_the_verb_that_checks_and_records(desk: Desk) -> None:
    desk.write("config.yaml", "script: train.py\n")
    desk.write("train.py", TRAIN)
    said = desk.run("render", "--to", "a b.sbatch")
    assert said.lines[-1] == (
        "next: hpctrain submit 'a b.sbatch', or: sbatch 'a b.sbatch'; without Slurm: hpctrain submit --local --wait 'a b.sbatch'"
    )
    assert desk.run("submit", "--dry-run", "a b.sbatch").code == 0
