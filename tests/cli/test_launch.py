"""Launches on this machine: sweeps, stages, chains, resubmission, the code that was queued. Real jobs of the local scheduler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpctrain.runs import launch

if TYPE_CHECKING:
    from conftest import Desk

pytestmark = [pytest.mark.usefixtures("no_slurm"), pytest.mark.slow]
TRAIN = """\
import json, os, sys
point = json.loads(open(os.environ["HPCTRAIN_POINT"]).read()) if "HPCTRAIN_POINT" in os.environ else None
seen = {"argv": sys.argv[1:], "point": point, "file": __file__, "run": os.environ["HPCTRAIN_RUN_ID"], "env": dict(os.environ)}
with open(os.path.join(os.environ["HPCTRAIN_RUN_DIR"], "seen.json"), "w") as stream:
    json.dump(seen, stream)
if "--fail" in sys.argv and not os.path.exists("mended"):
    sys.exit(3)
"""


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("train.py", TRAIN)
    return desk


def tag_of(desk: Desk) -> str:
    [tag] = launch.tags(desk.directory / "runs")
    return tag


def seen(desk: Desk, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((desk.directory / "runs" / run / "seen.json").read_text())
    return found


def outcomes(desk: Desk) -> dict[str, list[str]]:
    """Return run → how each of its attempts ended."""
    return {
        run.name: [json.loads(end.read_text())["outcome"] for end in sorted(run.glob("attempts/*/end.json"))]
        for run in sorted((desk.directory / "runs").iterdir()) if not run.name.startswith(".")
    }  # fmt: skip


SWEEP = 'script: train.py\nlauncher: srun\nsweep: [{dim: 240}, {dim: 192, fail: true}, {dim: 10, name: "a b$(touch CANARY)"}]\n'


def test_a_sweep_runs_its_points_and_resubmit_the_one_that_failed(project: Desk) -> None:
    project.write("config.yaml", SWEEP)
    said = project.run("submit", "--local", "--wait")
    assert said.code == 3
    tag = tag_of(project)
    assert outcomes(project) == {f"{tag}_0": ["completed"], f"{tag}_1": ["failed"], f"{tag}_2": ["completed"]}
    assert seen(project, f"{tag}_0")["argv"] == ["--dim", "240"]
    assert seen(project, f"{tag}_2")["argv"] == ["--dim", "10", "--name", "a b$(touch CANARY)"]
    assert seen(project, f"{tag}_2")["point"] == {"dim": 10, "name": "a b$(touch CANARY)"}
    assert not (project.directory / "CANARY").exists()
    log = next((project.directory / "logs").glob("output_sft_*_1.log")).read_text()
    assert f"Exported run_id to <<< {tag}_1.id >>>\n" in log
    assert (project.directory / f"runs/.launches/{tag}/{tag}_1.id").read_text() == f"{tag}_1\n"

    assert project.run("resubmit", tag, "--dry-run").out == f"would submit --array=1 runs/.launches/{tag}/scripts/sft.sbatch {tag}\n"
    project.write("mended", "")
    said = project.run("resubmit", tag, "--local", "--wait")
    assert (said.code, "2 completed, 1 failed" in said.lines) == (0, True), said.err
    assert outcomes(project) == {f"{tag}_0": ["completed"], f"{tag}_1": ["failed", "completed"], f"{tag}_2": ["completed"]}
    said = project.run("resubmit", tag)
    assert (said.code, said.out) == (0, "")
    assert f"nothing is left to submit of {tag}" in said.err


def test_a_part_of_a_sweep_and_then_the_rest(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\nlauncher: srun\nsweep: {grid: {a: [1, 2], b: [3, 4]}, throttle: 2}\n")
    assert project.run("submit", "--local", "--wait", "--array", "0,3").code == 0
    tag = tag_of(project)
    assert outcomes(project) == {f"{tag}_0": ["completed"], f"{tag}_3": ["completed"]}
    assert seen(project, f"{tag}_3")["argv"] == ["--a", "2", "--b", "4"]
    assert project.run("submit", "--local", "--wait", "--run-id", tag, "--array", "1-2").code == 0
    assert sorted(outcomes(project)) == [f"{tag}_{index}" for index in range(4)]


def test_points_that_change_the_job_have_scripts_of_their_own(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\nlauncher: srun\nsweep: {grid: {seed: [1, 2], resources.nodes: [1, 2]}}\n")
    assert project.run("render").out.splitlines() == ["sft.sbatch", "sft-2.sbatch"]
    assert re.findall("--(?:nodes|array)=.*", (project.directory / "sft.sbatch").read_text())[:2] == ["--nodes=1", "--array=0,2"]
    assert re.findall("--(?:nodes|array)=.*", (project.directory / "sft-2.sbatch").read_text())[:2] == ["--nodes=2", "--array=1,3"]
    assert project.run("submit", "--local", "--wait").code == 0
    tag = tag_of(project)
    assert {name: seen(project, name)["env"]["SLURM_NNODES"] for name in outcomes(project)} == {
        f"{tag}_0": "1", f"{tag}_1": "2", f"{tag}_2": "1", f"{tag}_3": "2",
    }  # fmt: skip
    assert len(launch.load(project.directory / "runs", tag).submissions) == 2  # type: ignore[union-attr]


def test_a_sweep_larger_than_an_array_counts_on(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\nlauncher: srun\nsweep: points.json\n")
    project.write("points.json", json.dumps([{"number": number} for number in range(1003)]))
    assert project.run("render").out.splitlines() == ["sft.sbatch", "sft-2.sbatch"]
    assert project.run("submit", "--local", "--wait", "--array", "1002").code == 0
    tag = tag_of(project)
    assert outcomes(project) == {f"{tag}_1002": ["completed"]}
    assert seen(project, f"{tag}_1002")["argv"] == ["--number", "1002"]


@pytest.mark.parametrize("passed", ["environment", "file"])
def test_a_point_as_environment_and_as_a_file(project: Desk, passed: str) -> None:
    option = ", option: config" if passed == "file" else ""
    sweep = f"{{list: [{{DIM: 7, TEXT: \"a 'b'\"}}], pass: {passed}{option}}}"
    project.write("config.yaml", f"script: train.py\nlauncher: srun\nsweep: {sweep}\n")
    assert project.run("submit", "--local", "--wait").code == 0
    [run] = outcomes(project)
    found = seen(project, run)
    assert found["point"] == {"DIM": 7, "TEXT": "a 'b'"}
    if passed == "environment":
        assert (found["argv"], found["env"]["DIM"], found["env"]["TEXT"]) == ([], "7", "a 'b'")
    else:
        assert found["argv"] == ["--config", str(project.directory / "runs" / run / "point.json")]


def test_the_same_script_runs_a_point_by_hand(project: Desk) -> None:
    """Without Slurm: `SLURM_ARRAY_TASK_ID=2 bash sft.sbatch`."""
    project.write("config.yaml", SWEEP)
    assert project.run("render").code == 0
    project.set(SLURM_ARRAY_TASK_ID="2", PATH=f"{os.environ['PATH']}:{Path(sys.executable).parent}")
    ended = subprocess.run(["bash", "sft.sbatch"], cwd=project.directory, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    tag = tag_of(project)
    assert outcomes(project) == {f"{tag}_2": ["completed"]}
    assert f"Exported run_id to <<< {tag}_2.id >>>" in ended.stdout


def test_a_batch_script_is_not_run_by_bash_where_there_is_a_slurm(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\nlauncher: srun\n")
    assert project.run("render").code == 0
    project.program("sbatch", "exit 1")
    ended = subprocess.run(["bash", "sft.sbatch"], cwd=project.directory, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.splitlines()[-1].startswith("fix: sbatch sft.sbatch")) == (2, True)
    assert not (project.directory / "runs").exists()


STAGES = """\
job_name: st
script: train.py
launcher: srun
stages:
  - name: first
  - {name: second, training: {fail: true}}
  - {name: third}
  - {name: report, from: first, after: any}
"""


def test_stages_stop_at_the_one_that_fails_and_go_on_from_it(project: Desk) -> None:
    project.write("config.yaml", STAGES)
    assert project.run("render").out.splitlines() == ["st-first.sbatch", "st-second.sbatch", "st-third.sbatch", "st-report.sbatch"]
    assert project.run("submit", "--local").code == 0
    tag = tag_of(project)
    assert tag.startswith("st-2")
    runs = project.directory / "runs"
    until(lambda: (runs / f"{tag}_report/attempts").exists() and outcomes(project)[f"{tag}_report"] == ["completed"])
    until(lambda: outcomes(project)[f"{tag}_second"] == ["failed"])
    found = outcomes(project)
    assert (found[f"{tag}_first"], found[f"{tag}_third"]) == (["completed"], [])
    assert seen(project, f"{tag}_report")["env"]["HPCTRAIN_STAGE_FIRST"] == str(runs / f"{tag}_first")
    project.write("mended", "")
    said = project.run("resubmit", tag, "--local", "--wait")
    assert said.code == 0, said.err
    assert outcomes(project) == {
        f"{tag}_first": ["completed"], f"{tag}_second": ["failed", "completed"], f"{tag}_third": ["completed"],
        f"{tag}_report": ["completed"],
    }  # fmt: skip
    assert seen(project, f"{tag}_third")["env"]["HPCTRAIN_STAGE_SECOND"] == str(runs / f"{tag}_second")


def test_waiting_for_stages_ends_when_one_fails(project: Desk) -> None:
    project.write("config.yaml", STAGES)
    said = project.run("submit", "--local", "--wait")
    assert said.code == 3, said.err
    assert "(st-third) will not start: it waits for a job that did not end as it should" in said.err
    tag = tag_of(project)
    assert project.run("cancel", tag, "--yes").code == 0


def test_a_refused_submission_takes_nothing_of_another_along(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\nlauncher: srun\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "good").code == 0
    project.program("sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    assert project.run("submit", "--no-check", "--run-id", "bad").code == 1
    assert launch.tags(project.directory / "runs") == ["good"]
    assert sorted(path.name for path in (project.directory / "runs").iterdir() if path.name[0] != ".") == ["good"]


def test_two_submissions_of_one_name_at_once_are_one(project: Desk, hpctrain: str) -> None:
    project.write("train.py", "import time; time.sleep(20)")
    project.write("config.yaml", "script: train.py\nlauncher: srun\n")
    project.run("render")
    started = [
        subprocess.Popen([hpctrain, "submit", "--local", "--no-check", "--run-id", "r"], cwd=project.directory, stderr=subprocess.DEVNULL)
        for _ in range(4)
    ]
    assert sorted(each.wait() for each in started)[:2] in ([0, 1], [0, 2])
    assert len(launch.load(project.directory / "runs", "r").submissions) == 1  # type: ignore[union-attr]
    assert project.run("cancel", "r", "--yes").code == 0


def test_a_point_of_a_sweep_is_no_run_of_its_own(project: Desk) -> None:
    project.write("config.yaml", SWEEP)
    project.run("submit", "--local", "--wait", "--run-id", "s")
    project.write("config.yaml", "script: train.py\nlauncher: srun\n")
    said = project.run("submit", "--local", "--force", "--run-id", "s_1", "--", "--x", "1")
    assert (said.code, said.lines[-1]) == (2, "fix: hpctrain resubmit s --array 1, or another --run-id")


def until(ready: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.1)


GOES_ON = """\
import os, sys
done = os.path.join(os.environ["HPCTRAIN_RUN_DIR"], "done")
steps = int(open(done).read()) if os.path.exists(done) else 0
open(done, "w").write(str(steps + 1))
sys.exit(int(sys.argv[1]) if steps + 1 >= int(sys.argv[2]) else 85)
"""


@pytest.mark.parametrize("mode", ["requeue", "chain"])
def test_a_job_that_asks_for_it_goes_on_until_it_is_done(project: Desk, mode: str) -> None:
    project.write("train.py", GOES_ON)
    project.write("config.yaml", f"script: train.py\nlauncher: srun\nrestart: {{mode: {mode}, max: 4}}\n")
    assert project.run("submit", "--local", "--wait", "--", "0", "3").code in (0, 85)
    [run] = outcomes(project)
    assert outcomes(project)[run] == ["requeued", "requeued", "completed"]
    if mode == "requeue":
        assert len({name.name.partition(".")[0] for name in (project.directory / "runs" / run / "attempts").iterdir()}) == 1


@pytest.mark.parametrize("mode", ["requeue", "chain"])
def test_a_job_that_fails_is_not_started_again(project: Desk, mode: str) -> None:
    project.write("train.py", GOES_ON)
    project.write("config.yaml", f"script: train.py\nlauncher: srun\nrestart: {{mode: {mode}, max: 4}}\n")
    project.run("submit", "--local", "--wait", "--", "1", "2")
    [run] = outcomes(project)
    assert outcomes(project)[run] == ["requeued", "failed"]


def test_restarts_have_a_bound(project: Desk) -> None:
    project.write("train.py", GOES_ON)
    project.write("config.yaml", "script: train.py\nlauncher: srun\nrestart: {mode: requeue, max: 2}\n")
    said = project.run("submit", "--local", "--wait", "--", "0", "100")
    assert said.code == 85
    [run] = outcomes(project)
    assert outcomes(project)[run] == ["requeued", "requeued", "stopped"]
    assert f"fix: hpctrain resubmit {run}" in next((project.directory / "logs").glob("error_sft_*.log")).read_text()
    assert project.run("resubmit", run, "--local", "--wait").code == 85  # and the count begins anew
    assert outcomes(project)[run] == ["requeued", "requeued", "stopped"] * 2


def test_code_that_is_queued_is_code_that_runs(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\nlauncher: srun\n")
    project.write("data.txt", "as it is")
    said = project.run("submit", "--local", "--wait", "--run-id", "kept")
    assert said.code == 0, said.err
    kept = (project.directory / "runs/.launches/kept/code/train.py").resolve()
    assert seen(project, "kept")["file"] == str(kept)
    project.write("train.py", TRAIN + "print('new')\n")
    assert kept.read_text() == TRAIN
    assert project.run("submit", "--local", "--wait", "--no-snapshot", "--run-id", "live").code == 0
    assert seen(project, "live")["file"] in ("./train.py", f"{project.directory}/./train.py")
    code = json.loads((project.directory / "runs/.launches/kept/code.json").read_text())
    assert code["snapshot"] is True


def test_a_resubmission_runs_the_code_of_before_and_says_that_it_changed(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\nlauncher: srun\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "r", "--", "--fail").code == 3
    project.write("train.py", TRAIN.replace("sys.exit(3)", "pass"))
    said = project.run("resubmit", "r", "--local", "--wait")
    assert said.code == 3
    assert "the project has changed since: train.py; to run it as it is now: --new-code" in said.err
    assert project.run("resubmit", "r", "--local", "--wait", "--new-code").code == 0
    assert outcomes(project) == {"r": ["failed", "failed", "completed"]}


def test_the_record_of_a_launch(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\nlauncher: srun\nresources: {time: 5}\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "r").code == 0
    found = launch.load(project.directory / "runs", "r")
    assert found is not None
    assert (found.kind, found.runs, found.cwd) == ("run", ("r",), str(project.directory))
    [submission] = found.submissions
    assert (submission.scheduler, submission.script) == ("local", "sft.sbatch")
    config = json.loads((found.path / str(submission.config)).read_text())
    assert config["config"]["resources"]["time"] == 300
    assert config["origins"]["resources.time"] == "config.yaml:3:13"
    assert (found.path / "scripts/sft.sbatch").read_text() == (project.directory / "sft.sbatch").read_text()


def test_what_is_dropped_leaves_no_record(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\nlauncher: srun\n")
    for run in ("one", "two"):
        assert project.run("submit", "--local", "--wait", "--run-id", run).code == 0
    assert project.run("runs", "drop", "one", "--yes").code == 0
    assert launch.tags(project.directory / "runs") == ["two"]
    assert (project.directory / "runs/.launches/two/code/train.py").read_text() == TRAIN


def test_a_run_that_has_a_job_gets_no_second_one(project: Desk) -> None:
    project.write("train.py", "import time; time.sleep(60)")
    project.write("config.yaml", "script: train.py\nlauncher: srun\n")
    said = project.run("submit", "--local", "--parsable", "--run-id", "r")
    job = said.out.strip()
    try:
        until(lambda: project.run("runs", "list", "--state", "running").out.count("\n") == 2)
        said = project.run("submit", "--local", "--run-id", "r")
        assert said.code == 2
        assert said.lines[-2].startswith(f"error: the run r is running: job {job} is RUNNING")
        said = project.run("resubmit", "r", "--local")
        assert (said.code, "nothing is left to submit of r" in said.err) == (0, True)
    finally:
        assert project.run("cancel", job).code == 0


@pytest.mark.parametrize("name", ["../x", "a b", "-x", "x" * 121])
def test_a_name_that_cannot_be(project: Desk, name: str) -> None:
    project.write("config.yaml", "script: train.py\nlauncher: srun\n")
    project.run("render")
    said = project.run("submit", "--local", f"--run-id={name}")
    assert (said.code, "cannot be the name of a run" in said.err) == (2, True)
    assert not (project.directory / "runs").exists()


def test_resubmit_knows_what_sbatch_was_typed_for(project: Desk) -> None:
    """A script that somebody submitted by hand keeps a copy of itself in its run."""
    project.write("config.yaml", "script: train.py\nlauncher: srun\ntraining: {fail: true}\n")
    project.run("render")
    assert project.run("submit", "--local", "--wait", "--run-id", "r").code == 3
    launched = project.directory / "runs/.launches"
    launched.rename(project.directory / "gone")
    project.write("mended", "")
    assert project.run("resubmit", "r", "--local", "--wait").code == 0, outcomes(project)


def test_names_that_nobody_knows(project: Desk) -> None:
    assert project.refused("resubmit", "nobody").lines[-1] == "fix: cd PROJECT, or: hpctrain resubmit NAME --runs-dir DIR"
    (project.directory / "runs").mkdir()
    assert "nobody" in project.refused("resubmit", "nobody").lines[0]
    assert not Path("runs/.launches").exists()
