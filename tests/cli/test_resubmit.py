"""Going on with launches: what is left of them, with which script, and what their exit codes say.

Real jobs of the local scheduler.
"""

import json
from typing import Any

import pytest

from hpctrain.explain.model import Change
from hpctrain.jobs import resubmit
from hpctrain.runs import launch
from hpctrain.runs.job_state import State
from hpctrain.util import shell
from tests.cli.conftest import Desk

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


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_stage_that_was_never_submitted_is_left(project: Desk) -> None:
    """As after an sbatch that was refused midway: the stage has its part, and no submission."""
    project.write(
        "config.yaml", f"job_name: st\n{JOB}stages: [{{name: tr}}, {{name: ev, after: any}}]\n"
    )
    assert project.run("submit", "--local", "--wait", "--run-id", "st").code == 0
    for kept in (project.directory / "runs/.launches/st/submissions").glob("*.json"):
        if json.loads(kept.read_text())["stage"] == "ev":
            kept.unlink()
    for made in (project.directory / "runs/st_ev/attempts").iterdir():
        made.rename(project.directory / "gone")
    said = project.run("resubmit", "st", "--dry-run")
    assert (said.code, said.out) == (
        0,
        "would submit runs/.launches/st/scripts/st-ev.sbatch st\n",
    ), said.err
    assert project.run("resubmit", "st", "--local", "--wait").code == 0
    assert project.outcomes() == {"st_tr": ["completed"], "st_ev": ["completed"]}


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_points_that_were_never_submitted_are_not_left(project: Desk) -> None:
    project.write("config.yaml", f"{JOB}sweep: [{{a: 1}}, {{b: 2}}, {{c: 3}}, {{fail: true}}]\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "sw", "--array", "0,3").code == 3
    said = project.run("resubmit", "sw", "--dry-run")
    assert (said.code, said.out) == (
        0,
        "would submit --array=3 runs/.launches/sw/scripts/sft.sbatch sw\n",
    ), said.err
    assert (
        "2 combinations never submitted; to submit the rest: hpctrain submit --run-id sw --array 1-2"
        in said.lines
    )
    project.write("mended", "")
    assert project.run("resubmit", "sw", "--local", "--wait").code == 0
    said = project.run("resubmit", "sw", "--array", "1")
    assert (said.code, said.out) == (0, "")
    assert (
        "1 combination never submitted; to submit the rest: hpctrain submit --run-id sw --array 1"
        in said.lines
    )
    assert project.run("submit", "--local", "--wait", "--run-id", "sw", "--array", "1-2").code == 0
    said = project.run("resubmit", "sw")
    assert "4 completed" in said.lines
    assert "never submitted" not in said.err


def listed(desk: Desk, tag: str) -> dict[str, str]:
    """Return run → state, as `runs list` shows them."""
    found = json.loads(desk.run("runs", "list", "--json", tag).out)["runs"]
    return {run["id"]: run["state"] for run in found}


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_deleted_point_is_neither_listed_nor_submitted_again(project: Desk) -> None:
    project.write("config.yaml", f"{JOB}sweep: [{{a: 1}}, {{fail: true}}]\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "sw").code == 3
    assert project.run("runs", "delete", "sw_1", "--yes").code == 0
    assert listed(project, "sw") == {"sw_0": "completed"}
    said = project.run("resubmit", "sw", "--dry-run")
    assert (said.code, said.out) == (0, ""), said.err
    assert project.run("resubmit", "sw_1", "--dry-run").code == 2
    # it is the user's to submit it again
    assert project.run("submit", "--local", "--wait", "--run-id", "sw", "--array", "1").code == 3
    assert listed(project, "sw") == {"sw_0": "completed", "sw_1": "failed"}
    assert project.run("resubmit", "sw", "--dry-run").out.startswith("would submit --array=1 ")


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "starts", "outcome"), [(0, 2, "completed"), (3, 2, "failed"), (0, 9, "requeued")]
)
def test_the_exit_code_of_a_chain_is_that_of_its_run(
    project: Desk, code: int, starts: int, outcome: str
) -> None:
    project.write("train.py", GOES_ON)
    project.write("config.yaml", f"{JOB}restart: {{mode: chain, max: 2}}\n")
    said = project.run("submit", "--local", "--wait", "--run-id", "r", "--", str(code), str(starts))
    assert project.outcomes()["r"][-1] == outcome
    assert said.code == (85 if outcome == "requeued" else code), said.err


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_resubmitted_chain_is_a_chain_whatever_its_config_says(project: Desk) -> None:
    project.write("train.py", GOES_ON)
    project.write("config.yaml", f"{JOB}restart: {{mode: chain, max: 1}}\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "r", "--", "0", "4").code == 85
    (project.directory / "runs/.launches/r/config.json").unlink()
    assert project.run("resubmit", "r", "--local", "--wait").code == 0
    assert project.outcomes() == {"r": ["requeued", "requeued", "requeued", "completed"]}


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_stored_script_that_is_gone(project: Desk) -> None:
    project.write("config.yaml", JOB)
    assert project.run("submit", "--local", "--wait", "--run-id", "r", "--", "--fail").code == 3
    (project.directory / "runs/.launches/r/scripts/sft.sbatch").unlink()
    said = project.run("resubmit", "r", "--local")
    error = next(line for line in said.lines if line.startswith("error: "))
    assert error.startswith("error: the script of r no longer exists: ")
    assert (said.code, said.lines[-1]) == (2, "fix: hpctrain submit --run-id r -- --fail")
    assert len(launch.load(project.directory / "runs", "r").submissions) == 1  # type: ignore[union-attr]


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
@pytest.mark.parametrize("word", ["failed", "stopped", "unknown"])
def test_a_run_with_a_job_is_not_left(word: str) -> None:
    assert resubmit._is_left(State(word, forgotten=True))
    assert not resubmit._is_left(State(word, live=("12",), forgotten=True))


@pytest.mark.usefixtures("no_slurm")
def test_tasks_of_an_array_that_was_submitted_by_hand_are_one_array(project: Desk) -> None:
    for index in (1, 3):
        run = {"schema": 1, "run_id": f"h_{index}", "tag": "h", "name": "sft", "index": index}
        project.write(f"runs/h_{index}/run.json", json.dumps(run))
        project.write(f"runs/h_{index}/script.sbatch", "#!/bin/bash\n#SBATCH --array=0-3%2\ntrue\n")
    said = project.run("resubmit", "h", "--dry-run")
    assert said.out == "would submit --array=1,3%2 runs/h_1/script.sbatch h\n", said.err


# -- resubmit --apply-fix: real jobs of the local scheduler that fail, are explained, changed


slow = pytest.mark.slow

OOM = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been"
    " OOM Killed."
)
#: Needs more than 64G for what it is told to, as its newest job script says.
LARGE_TRAIN = f"""\
import glob, os, sys
scripts = [open(name).read() for name in glob.glob("runs/.launches/*/scripts/*.sbatch")]
if "--big" in sys.argv and not any("--mem=96G" in text for text in scripts):
    sys.stderr.write({OOM!r} + "\\n")
    sys.exit(137)
print("done", *sys.argv[1:])
"""
LARGE_JOB = "script: train.py\nlauncher: srun\nresources: {mem: 64G}\n"


@pytest.fixture
def large(desk: Desk, no_slurm: None) -> Desk:
    desk.write("train.py", LARGE_TRAIN)
    desk.write("config.yaml", LARGE_JOB)
    return desk


def failing(desk: Desk, body: str, *words: str) -> None:
    desk.write("train.py", body)
    assert desk.run("submit", "--local", "--wait", "--run-id", "r1", *words).code != 0


@slow
def test_more_memory_and_the_run_is_done(large: Desk) -> None:
    assert large.run("submit", "--local", "--wait", "--run-id", "r1", "--", "--big").code == 137
    before = large.snapshot()
    said = large.run("resubmit", "r1", "--apply-fix", "--dry-run")
    assert (said.code, said.out.splitlines()) == (
        0,
        ["r1: host-oom, certain", "  resources.mem: 64G -> 96G", "would submit sft.sbatch r1"],
    )
    said = large.run("resubmit", "r1", "--apply-fix", "--dry-run", "--json")
    fixes = [
        {
            "runs": ["r1"],
            "diagnosis": "host-oom",
            "certainty": "certain",
            "changes": [{"key": "resources.mem", "old": "64G", "new": "96G"}],
        }
    ]
    assert json.loads(said.out) == {
        "schema": 1,
        "run": "r1",
        "fixes": fixes,
        "jobs": [],
        "dry_run": True,
    }
    assert large.snapshot() == before
    said = large.run("resubmit", "r1", "--apply-fix", "--local", "--wait")
    assert (said.code, large.outcomes()) == (0, {"r1": ["failed", "completed"]}), said.err
    assert "  resources.mem: 64G -> 96G" in said.lines
    whole = launch.load(large.directory / "runs", "r1")
    assert whole is not None
    assert [part.config for part in whole.parts] == ["config.json", "config.2.json"]
    kept = json.loads((whole.path / "config.2.json").read_text())
    assert (kept["config"]["resources"]["mem"], kept["origins"]["resources.mem"]) == (
        96 << 30,
        "hpctrain resubmit --apply-fix (host-oom)",
    )
    assert kept["origins"]["launcher"] == "config.yaml:2:1"


@slow
def test_a_submission_that_was_interrupted_is_done_once(large: Desk) -> None:
    """The changed script was kept, and no scheduler has got it: the same command goes on, and
    changes nothing twice.
    """
    assert large.run("submit", "--local", "--wait", "--run-id", "r1", "--", "--big").code == 137
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpctrain.jobs.submit.Submitter._send", interrupted)
        assert large.run("resubmit", "r1", "--apply-fix", "--local").code == 130
    said = large.run("resubmit", "r1", "--apply-fix", "--local", "--wait")
    assert (said.code, large.outcomes()) == (0, {"r1": ["failed", "completed"]}), said.err
    assert sorted(
        path.name for path in (large.directory / "runs/.launches/r1/scripts").glob("*.sbatch")
    ) == [
        "sft.2.sbatch",
        "sft.sbatch",
    ]


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@slow
def test_what_fails_with_the_fix_in_place_is_not_tried_for_ever(large: Desk) -> None:
    body = LARGE_TRAIN.replace('and not any("--mem=96G" in text for text in scripts)', "")
    failing(large, body, "--", "--big")
    assert large.run("resubmit", "r1", "--apply-fix", "--local", "--wait").code == 137
    said = large.run("resubmit", "r1", "--apply-fix", "--local", "--wait")
    if said.code == 1:  # the record of this machine knows no memory, so the same fix comes out
        assert "error: r1 failed with this fix applied: host-oom" in said.lines
    else:
        assert "  resources.mem: 96G -> " in said.err
    assert not any(
        "64G -> 96G" in line for line in said.lines if line.startswith("  resources.mem")
    )


CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 39.39 GiB of which 1.12 GiB is free."
)


@slow
def test_a_training_of_ones_own_is_told_and_not_changed(large: Desk) -> None:
    """What its options mean only its author knows."""
    large.write(
        "config.yaml",
        LARGE_JOB + "training: {per_device_train_batch_size: 4, gradient_accumulation_steps: 8}\n",
    )
    failing(large, f"import sys\nsys.stderr.write({CUDA!r})\nsys.exit(1)\n")
    said = large.refused("resubmit", "r1", "--apply-fix", "--local", code=1)
    assert (
        "  per_device_train_batch_size: 4 -> 2, gradient_accumulation_steps: 8 -> 16" in said.lines
    )


DIED = (
    "RuntimeError: One of the subprocesses has abruptly died during map operation. To debug the"
    " error, disable multiprocessing."
)


@slow
def test_what_is_only_likely_is_not_done_unasked(large: Desk) -> None:
    failing(
        large,
        f"import sys\nsys.stderr.write('Traceback (most recent call last):\\n' + {DIED!r} +"
        " '\\n')\nsys.exit(1)\n",
    )
    said = large.run("resubmit", "r1", "--apply-fix", "--local")
    assert said.code == 2, said.err
    assert any(line.startswith("error: map-worker-died is ") for line in said.lines)
    assert "  resources.mem: 64G -> 96G" in said.lines
    large.write("train.py", "print('done')\n")
    assert (
        large.run("resubmit", "r1", "--apply-fix", "--new-code", "--local", "--wait", "--yes").code
        == 0
    )
    assert "--mem=96G" in (large.directory / "runs/.launches/r1/scripts/sft.2.sbatch").read_text()


@slow
def test_a_sweep_is_left_to_config_yaml(large: Desk) -> None:
    large.write("config.yaml", f"{LARGE_JOB}sweep: [{{a: 1}}, {{a: 2, big: true}}]\n")
    assert large.run("submit", "--local", "--wait", "--run-id", "sw").code == 137
    assert "note: 1 of 2 tasks of sw failed" in large.run("explain", "sw").err
    said = large.refused("resubmit", "sw", "--apply-fix", "--local")
    assert said.lines[-1].endswith("then run: hpctrain submit --run-id sw --array 1")


@slow
def test_of_stages_the_one_that_failed(large: Desk) -> None:
    stages = (
        "stages: [{name: one}, {name: two, start: none, training: {big: true}}, {name: three,"
        " start: none}]\n"
    )
    large.write("config.yaml", f"job_name: st\n{LARGE_JOB}{stages}")
    assert large.run("submit", "--local", "--wait", "--run-id", "st").code != 0
    said = large.run("resubmit", "st", "--apply-fix", "--local", "--wait")
    assert said.code == 0, said.err
    assert "st_two: host-oom, certain" in said.lines
    assert large.outcomes()["st_two"] == ["failed", "completed"]
    assert large.outcomes()["st_one"] == ["completed"]
    assert large.outcomes()["st_three"] == ["completed"]
    scripts = large.directory / "runs/.launches/st/scripts"
    assert "--mem=96G" in (scripts / "st-two.2.sbatch").read_text()
    assert not (scripts / "st-three.2.sbatch").exists()


# -- the config, without jobs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "left", "old"),
    [
        (("--per_device_train_batch_size", "4", "--x", "1"), ("--x", "1"), "4"),
        (("--per-device-train-batch-size=4", "--x"), ("--x",), "4"),
        (("train", "--x", "1"), ("train", "--x", "1"), "8"),
    ],
)
def test_an_option_behind_the_dashes_is_the_one_that_counts(
    arguments: tuple[str, ...], left: tuple[str, ...], old: str
) -> None:
    change = Change(key="training.per_device_train_batch_size", old=None, new=2)
    data: dict[str, Any] = {"training": {"per_device_train_batch_size": "8"}}
    done = resubmit._applied(data, [change], arguments)
    assert (done[0].old, done[0].new, data["training"]) == (
        old,
        2,
        {"per_device_train_batch_size": "2"},
    )
    others = [
        group
        for name, group in shell.option_groups(arguments)
        if name != "per_device_train_batch_size"
    ]
    assert tuple(word for group in others for word in group) == left


# -- a real training -------------------------------------------------------------------------------
