"""Going on with launches: what is left of them, with which script, and what their exit codes say. Real jobs of the local scheduler."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from hpctrain.cli import remaining
from hpctrain.runs import launch
from hpctrain.runs.states import State

if TYPE_CHECKING:
    from conftest import Desk

pytestmark = [pytest.mark.usefixtures("no_slurm"), pytest.mark.slow]
TRAIN = """\
import os, sys
if "--fail" in sys.argv and not os.path.exists("mended"):
    sys.exit(3)
"""
GOES_ON = """\
import os, sys
done = os.path.join(os.environ["HPCTRAIN_RUN_DIR"], "done")
steps = int(open(done).read()) if os.path.exists(done) else 0
open(done, "w").write(str(steps + 1))
sys.exit(int(sys.argv[1]) if steps + 1 >= int(sys.argv[2]) else 85)
"""
JOB = "script: train.py\nlauncher: srun\n"


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("train.py", TRAIN)
    return desk


def outcomes(desk: Desk) -> dict[str, list[str]]:
    """Return run → how each of its attempts ended."""
    return {
        run.name: [json.loads(end.read_text())["outcome"] for end in sorted(run.glob("attempts/*/end.json"))]
        for run in sorted((desk.directory / "runs").iterdir()) if not run.name.startswith(".")
    }  # fmt: skip


def until(ready: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.1)


def old_record(desk: Desk, tag: str) -> None:
    """Make the record of a launch one that says nothing of its parts, as older ones do not."""
    for part in (desk.directory / f"runs/.launches/{tag}/parts").glob("*.json"):
        part.unlink()
    assert launch.load(desk.directory / "runs", tag).parts == ()  # type: ignore[union-attr]


def test_a_stage_that_was_never_submitted_is_left(project: Desk) -> None:
    """As after an sbatch that was refused midway: the stage has its part, and no submission."""
    project.write("config.yaml", f"job_name: st\n{JOB}stages: [{{name: tr}}, {{name: ev, after: any}}]\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "st").code == 0
    for kept in (project.directory / "runs/.launches/st/submissions").glob("*.json"):
        if json.loads(kept.read_text())["stage"] == "ev":
            kept.unlink()
    for made in (project.directory / "runs/st_ev/attempts").iterdir():
        made.rename(project.directory / "gone")
    said = project.run("resubmit", "st", "--dry-run")
    assert (said.code, said.out) == (0, "would submit runs/.launches/st/scripts/st-ev.sbatch st\n"), said.err
    assert project.run("resubmit", "st", "--local", "--wait").code == 0
    assert outcomes(project) == {"st_tr": ["completed"], "st_ev": ["completed"]}


def test_points_that_were_never_submitted_are_not_left(project: Desk) -> None:
    project.write("config.yaml", f"{JOB}sweep: [{{a: 1}}, {{b: 2}}, {{c: 3}}, {{fail: true}}]\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "sw", "--array", "0,3").code == 3
    said = project.run("resubmit", "sw", "--dry-run")
    assert (said.code, said.out) == (0, "would submit --array=3 runs/.launches/sw/scripts/sft.sbatch sw\n"), said.err
    assert "2 points were never submitted; to submit them: hpctrain submit --run-id sw --array 1-2" in said.lines
    project.write("mended", "")
    assert project.run("resubmit", "sw", "--local", "--wait").code == 0
    said = project.run("resubmit", "sw", "--array", "1")
    assert (said.code, said.out) == (0, "")
    assert "1 point was never submitted; to submit it: hpctrain submit --run-id sw --array 1" in said.lines
    assert project.run("submit", "--local", "--wait", "--run-id", "sw", "--array", "1-2").code == 0
    said = project.run("resubmit", "sw")
    assert "4 completed" in said.lines
    assert "never submitted" not in said.err


@pytest.mark.parametrize("old", [False, True])
def test_an_array_without_a_sweep(project: Desk, old: bool) -> None:
    project.write("train.py", TRAIN.replace('"--fail" in sys.argv', 'os.environ["SLURM_ARRAY_TASK_ID"] == "5"'))
    project.write("config.yaml", f"{JOB}array: 2-5%1\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "ar").code == 3
    if old:
        old_record(project, "ar")
    said = project.run("resubmit", "ar", "--dry-run")
    assert (said.code, said.out) == (0, "would submit --array=5%1 runs/.launches/ar/scripts/sft.sbatch ar\n"), said.err
    assert "3 completed, 1 failed" in said.err
    assert project.run("resubmit", "ar", "--array", "2", "--dry-run").out == ""
    project.write("mended", "")
    assert project.run("resubmit", "ar", "--local", "--wait").code == 0
    assert outcomes(project) == {f"ar_{index}": ["completed"] for index in (2, 3, 4)} | {"ar_5": ["failed", "completed"]}


@pytest.mark.parametrize("old", [False, True])
def test_the_script_that_was_submitted_last_is_the_one_that_goes_on(project: Desk, old: bool) -> None:
    project.write("config.yaml", JOB)
    scripts = {"5": "sft.sbatch", "7": "sft.2.sbatch"}
    for minutes in ("5", "7", "5"):
        assert project.run("submit", "--local", "--wait", "--run-id", "r1", "--force", "--time", minutes, "--", "--fail").code == 3
        said = project.run("resubmit", "r1", "--dry-run")
        assert said.out == f"would submit runs/.launches/r1/scripts/{scripts[minutes]} r1\n"
        if old:
            old_record(project, "r1")


def test_points_that_were_submitted_again_keep_their_new_script(project: Desk) -> None:
    project.write("config.yaml", f"{JOB}sweep: [{{fail: 1}}, {{fail: 2}}, {{fail: 3}}]\n")
    for words in ((), ("--array", "1", "--time", "7")):
        assert project.run("submit", "--local", "--wait", "--run-id", "sw", "--force", *words).code == 3
    assert project.run("resubmit", "sw", "--array", "0", "--local", "--wait").code == 3
    said = project.run("resubmit", "sw", "--dry-run")
    scripts = "runs/.launches/sw/scripts"
    assert sorted(said.out.splitlines()) == [
        f"would submit --array=0,2 {scripts}/sft.sbatch sw", f"would submit --array=1 {scripts}/sft.2.sbatch sw",
    ]  # fmt: skip


@pytest.mark.parametrize(("code", "starts", "outcome"), [(0, 2, "completed"), (3, 2, "failed"), (0, 9, "requeued")])
def test_the_exit_code_of_a_chain_is_that_of_its_run(project: Desk, code: int, starts: int, outcome: str) -> None:
    project.write("train.py", GOES_ON)
    project.write("config.yaml", f"{JOB}restart: {{mode: chain, max: 2}}\n")
    said = project.run("submit", "--local", "--wait", "--run-id", "r", "--", str(code), str(starts))
    assert outcomes(project)["r"][-1] == outcome
    assert said.code == (85 if outcome == "requeued" else code), said.err


def test_the_exit_code_of_a_requeued_job_is_its_last(project: Desk) -> None:
    project.write("train.py", GOES_ON)
    project.write("config.yaml", f"{JOB}restart: {{mode: requeue, max: 4}}\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "r", "--", "0", "3").code == 0
    assert outcomes(project) == {"r": ["requeued", "requeued", "completed"]}


def test_a_resubmitted_chain_is_a_chain_whatever_its_config_says(project: Desk) -> None:
    project.write("train.py", GOES_ON)
    project.write("config.yaml", f"{JOB}restart: {{mode: chain, max: 1}}\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "r", "--", "0", "4").code == 85
    (project.directory / "runs/.launches/r/config.json").unlink()
    assert project.run("resubmit", "r", "--local", "--wait").code == 0
    assert outcomes(project) == {"r": ["requeued", "requeued", "requeued", "completed"]}


def test_what_was_submitted_before_an_error_is_said(project: Desk) -> None:
    project.write("config.yaml", f"{JOB}sweep: {{grid: {{fail: [1, 2], resources.time: [5, 6]}}}}\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "sw").code == 3
    # This machine runs no job that asks for another time limit than it can read: found when that script is planned.
    second = project.directory / "runs/.launches/sw/scripts/sft-2.sbatch"
    second.write_text(second.read_text().replace("#SBATCH --time=", "#SBATCH --time=never"))
    said = project.run("resubmit", "sw", "--local")
    jobs = [each.job_id for each in launch.load(project.directory / "runs", "sw").submissions]  # type: ignore[union-attr]
    assert (said.code, len(jobs)) == (2, 3), said.err
    assert f"and still there: {jobs[-1]}; the rest is not" in said.err
    assert said.lines[-1].endswith("; then: hpctrain resubmit sw")


@pytest.mark.parametrize("damage", [None, "", "#!/bin/bash\n"])
def test_a_stored_script_that_is_gone(project: Desk, damage: str | None) -> None:
    project.write("config.yaml", JOB)
    assert project.run("submit", "--local", "--wait", "--run-id", "r", "--", "--fail").code == 3
    script = project.directory / "runs/.launches/r/scripts/sft.sbatch"
    script.unlink()
    if damage is not None:
        script.write_text(damage)
    said = project.run("resubmit", "r", "--local")
    error = next(line for line in said.lines if line.startswith("error: "))
    assert error.startswith(f"error: the script of r {'cannot be read' if damage is None else 'is damaged'}: {script}")
    assert (said.code, said.lines[-1]) == (2, "fix: hpctrain submit --run-id r")
    assert len(launch.load(project.directory / "runs", "r").submissions) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("word", ["failed", "stopped", "unknown"])
def test_a_run_with_a_job_is_not_left(word: str) -> None:
    assert remaining._is_left(State(word, forgotten=True))
    assert not remaining._is_left(State(word, live=("12",), forgotten=True))
