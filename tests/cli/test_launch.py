"""Launches on this machine: sweeps, stages, chains, resubmission, the code that was queued.

Real jobs of the local scheduler.
"""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.jobs import header, script_files
from hpctrain.runs import launch
from hpctrain.slurm import client as slurm
from hpctrain.slurm import ledger
from tests.cli.conftest import Desk
from tests.waiting import wait_until

TRAIN = """\
import json, os, sys
point = json.loads(open(os.environ["HPCTRAIN_POINT"]).read()) if "HPCTRAIN_POINT" in os.environ else None
seen = {"argv": sys.argv[1:], "point": point, "file": __file__, "run": os.environ["HPCTRAIN_RUN_ID"], "env": dict(os.environ)}
with open(os.path.join(os.environ["HPCTRAIN_RUN_DIR"], "seen.json"), "w") as stream:
    json.dump(seen, stream)
if "--fail" in sys.argv and not os.path.exists("mended"):
    sys.exit(3)
"""
CONFIG = "script: train.py\nlauncher: srun\n"


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", CONFIG)
    return desk


def tag_of(desk: Desk) -> str:
    [tag] = launch.tags(desk.directory / "runs")
    return tag


def seen(desk: Desk, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((desk.directory / "runs" / run / "seen.json").read_text())
    return found


SWEEP = (
    "script: train.py\nlauncher: srun\nsweep: [{dim: 240}, {dim: 192, fail: true}, {dim: 10, name:"
    ' "a b$(touch CANARY)"}]\n'
)


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_sweep_runs_its_points_and_resubmit_the_one_that_failed(project: Desk) -> None:
    project.write("config.yaml", SWEEP)
    said = project.run("submit", "--local", "--wait")
    assert said.code == 3
    tag = tag_of(project)
    assert project.outcomes() == {
        f"{tag}_0": ["completed"],
        f"{tag}_1": ["failed"],
        f"{tag}_2": ["completed"],
    }
    assert seen(project, f"{tag}_0")["argv"] == ["--dim", "240"]
    assert seen(project, f"{tag}_2")["argv"] == ["--dim", "10", "--name", "a b$(touch CANARY)"]
    assert seen(project, f"{tag}_2")["point"] == {"dim": 10, "name": "a b$(touch CANARY)"}
    assert not (project.directory / "CANARY").exists()
    log = next((project.directory / "logs").glob("output_sft_*_1.log")).read_text()
    assert f"Exported run_id to <<< {tag}_1.id >>>\n" in log
    assert (project.directory / f"runs/.launches/{tag}/{tag}_1.id").read_text() == f"{tag}_1\n"

    assert (
        project.run("resubmit", tag, "--dry-run").out
        == f"would submit --array=1 runs/.launches/{tag}/scripts/sft.sbatch {tag}\n"
    )
    project.write("mended", "")
    said = project.run("resubmit", tag, "--local", "--wait")
    assert (said.code, "2 completed, 1 failed" in said.lines) == (0, True), said.err
    assert project.outcomes() == {
        f"{tag}_0": ["completed"],
        f"{tag}_1": ["failed", "completed"],
        f"{tag}_2": ["completed"],
    }
    said = project.run("resubmit", tag)
    assert (said.code, said.out) == (0, "")
    assert f"nothing is left to submit of {tag}" in said.err


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_batch_script_is_not_run_by_bash_where_there_is_a_slurm(project: Desk) -> None:
    assert project.run("render").code == 0
    project.program("sbatch", "exit 1")
    ended = subprocess.run(
        ["bash", "sft.sbatch"], cwd=project.directory, capture_output=True, text=True
    )
    assert (
        ended.returncode,
        ended.stderr.splitlines()[-1].startswith("fix: sbatch sft.sbatch"),
    ) == (2, True)
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


def test_a_stage_gets_the_accelerate_config_that_only_it_reads(project: Desk) -> None:
    project.write("config.yaml", "stages: [{name: a}, {name: b, launcher: srun}]\n")
    assert "wrote multi_gpu.yaml (accelerate config)" in project.run("render").lines
    assert (project.directory / "multi_gpu.yaml").is_file()


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_stages_stop_at_the_one_that_fails_and_go_on_from_it(project: Desk) -> None:
    project.write("config.yaml", STAGES)
    assert project.run("render").out.splitlines() == [
        "st-first.sbatch",
        "st-second.sbatch",
        "st-third.sbatch",
        "st-report.sbatch",
    ]
    assert project.run("submit", "--local").code == 0
    tag = tag_of(project)
    assert tag.startswith("st-2")
    runs = project.directory / "runs"
    wait_until(
        lambda: (
            (runs / f"{tag}_report/attempts").exists()
            and project.outcomes()[f"{tag}_report"] == ["completed"]
        )
    )
    wait_until(lambda: project.outcomes()[f"{tag}_second"] == ["failed"])
    found = project.outcomes()
    assert (found[f"{tag}_first"], found[f"{tag}_third"]) == (["completed"], [])
    assert seen(project, f"{tag}_report")["env"]["HPCTRAIN_STAGE_FIRST"] == str(
        runs / f"{tag}_first"
    )
    project.write("mended", "")
    said = project.run("resubmit", tag, "--local", "--wait")
    assert said.code == 0, said.err
    assert project.outcomes() == {
        f"{tag}_first": ["completed"],
        f"{tag}_second": ["failed", "completed"],
        f"{tag}_third": ["completed"],
        f"{tag}_report": ["completed"],
    }
    assert seen(project, f"{tag}_third")["env"]["HPCTRAIN_STAGE_SECOND"] == str(
        runs / f"{tag}_second"
    )


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_waiting_for_stages_ends_when_one_fails(project: Desk) -> None:
    project.write("config.yaml", STAGES)
    said = project.run("submit", "--local", "--wait")
    assert said.code == 3, said.err
    assert "(st-third) will not start: its dependency has failed" in said.err
    tag = tag_of(project)
    assert project.run("cancel", tag, "--yes").code == 0


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_refused_submission_takes_nothing_of_another_along(project: Desk) -> None:
    assert project.run("submit", "--local", "--wait", "--run-id", "good").code == 0
    project.program("sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    assert project.run("submit", "--no-check", "--run-id", "bad").code == 1
    assert launch.tags(project.directory / "runs") == ["good"]
    assert sorted(
        path.name for path in (project.directory / "runs").iterdir() if path.name[0] != "."
    ) == ["good"]


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_two_submissions_of_one_name_at_once_are_one(project: Desk, hpctrain: str) -> None:
    project.write("train.py", "import time; time.sleep(600)")
    project.run("render")
    started = [
        subprocess.Popen(
            [hpctrain, "submit", "--local", "--no-check", "--run-id", "r"],
            cwd=project.directory,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(4)
    ]
    assert sorted(each.wait() for each in started)[:2] in ([0, 1], [0, 2])
    assert len(launch.load(project.directory / "runs", "r").submissions) == 1  # type: ignore[union-attr]
    assert project.run("cancel", "r", "--yes").code == 0


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_point_of_a_sweep_is_no_run_of_its_own(project: Desk) -> None:
    project.write("config.yaml", SWEEP)
    project.run("submit", "--local", "--wait", "--run-id", "s")
    project.write("config.yaml", CONFIG)
    said = project.run("submit", "--local", "--force", "--run-id", "s_1", "--", "--x", "1")
    assert (said.code, said.lines[-2]) == (2, "fix: hpctrain resubmit s_1")


GOES_ON = """\
import os, sys
done = os.path.join(os.environ["HPCTRAIN_RUN_DIR"], "done")
steps = int(open(done).read()) if os.path.exists(done) else 0
open(done, "w").write(str(steps + 1))
sys.exit(int(sys.argv[1]) if steps + 1 >= int(sys.argv[2]) else 85)
"""


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["requeue", "chain"])
def test_a_job_that_asks_for_it_goes_on_until_it_is_done(project: Desk, mode: str) -> None:
    project.write("train.py", GOES_ON)
    project.write(
        "config.yaml", f"script: train.py\nlauncher: srun\nrestart: {{mode: {mode}, max: 4}}\n"
    )
    assert project.run("submit", "--local", "--wait", "--", "0", "3").code in (0, 85)
    [run] = project.outcomes()
    assert project.outcomes()[run] == ["requeued", "requeued", "completed"]
    if mode == "requeue":
        assert (
            len(
                {
                    name.name.partition(".")[0]
                    for name in (project.directory / "runs" / run / "attempts").iterdir()
                }
            )
            == 1
        )


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_code_that_is_queued_is_code_that_runs(project: Desk) -> None:
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


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_resubmission_runs_the_code_of_before_and_says_so(project: Desk) -> None:
    assert project.run("submit", "--local", "--wait", "--run-id", "r", "--", "--fail").code == 3
    project.write("train.py", TRAIN.replace("sys.exit(3)", "pass"))
    said = project.run("resubmit", "r", "--local", "--wait")
    assert said.code == 3
    assert "r continues with the code and config of its submission" in said.err
    assert project.run("resubmit", "r", "--local", "--wait", "--new-code").code == 0
    assert project.outcomes() == {"r": ["failed", "failed", "completed"]}


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_run_that_has_a_job_gets_no_second_one(project: Desk) -> None:
    project.write("train.py", "import time; time.sleep(600)")
    said = project.run("submit", "--local", "--parsable", "--run-id", "r")
    job = said.out.strip()
    try:
        wait_until(lambda: project.run("runs", "list", "--state", "running").out.count("\n") == 2)
        said = project.run("submit", "--local", "--run-id", "r")
        assert said.code == 2
        assert said.lines[-3].startswith(f"error: the run r is running: job {job} is RUNNING")
        said = project.run("resubmit", "r", "--local")
        assert (said.code, "nothing is left to submit of r" in said.err) == (0, True)
    finally:
        assert project.run("cancel", job).code == 0


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["../x", "a b", "-x", "x" * 121])
def test_a_name_that_cannot_be(project: Desk, name: str) -> None:
    project.run("render")
    said = project.run("submit", "--local", f"--run-id={name}")
    assert (said.code, "cannot be the name of a run" in said.err) == (2, True)
    assert not (project.directory / "runs").exists()


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_resubmit_knows_what_sbatch_was_typed_for(project: Desk) -> None:
    """A script that somebody submitted by hand keeps a copy of itself in its run."""
    project.write("config.yaml", "script: train.py\nlauncher: srun\ntraining: {fail: true}\n")
    project.run("render")
    assert project.run("submit", "--local", "--wait", "--run-id", "r").code == 3
    (project.directory / "runs/.launches").rename(project.directory / "gone")
    project.write("mended", "")
    assert project.run("resubmit", "r", "--local", "--wait").code == 0, project.outcomes()


# -- Several `hpctrain submit` in one directory at the same moment: each sends the script tha


TRAIN_AT_ONCE = """\
import json, os, sys
with open(os.path.join(os.environ["HPCTRAIN_RUN_DIR"], "seen.json"), "w") as stream:
    json.dump(sys.argv[1:], stream)
"""


@pytest.mark.slow
def test_sbatch_gets_what_was_rendered_though_the_file_says_something_else_by_then(
    desk: Desk, tmp_path: Path
) -> None:
    desk.write("train.py", TRAIN_AT_ONCE)
    desk.write("config.yaml", CONFIG)
    script = desk.directory / "sft.sbatch"
    desk.program(
        "sbatch", f'echo "#!/bin/bash" > {script}; cp "${{@: -2:1}}" {tmp_path}/sent; echo 101'
    )
    desk.program("squeue sacct scontrol sinfo scancel", "true")
    assert desk.run("render", "--to", "rendered.sbatch").code == 0
    said = desk.run("submit", "--no-check", "--run-id", "R", "--time", "10")
    assert said.code == 0, said.err
    assert script.read_text() == "#!/bin/bash\n"
    sent = (tmp_path / "sent").read_text()
    assert "#SBATCH --time=" in sent
    assert "hpctrain.training" in sent or "train.py" in sent
    assert (desk.directory / "runs/.launches/R/scripts/sft.sbatch").read_text() == sent


# -- The functions of a job script go where the script goes


WORDS = ("--launcher", "srun", "--gpus", "0", "--script", "train.py")


@pytest.fixture
def library_project(desk: Desk) -> Desk:
    desk.write("train.py", "import os, sys; sys.exit(0 if os.path.exists('done') else 3)\n")
    return desk


def functions(desk: Desk) -> list[Path]:
    return sorted((desk.directory / header.LIBRARY_DIRECTORY).glob("*"))


def test_a_script_for_stdout_has_its_functions_in_the_project(library_project: Desk) -> None:
    text = library_project.run("render", "--to", "-", *WORDS).out
    assert functions(library_project) == [script_files.library_path(text)]


def test_a_script_for_a_directory_that_is_elsewhere_holds_them(library_project: Desk) -> None:
    text = library_project.run("render", "--to", "-", *WORDS, "--chdir", "/nowhere/project").out
    assert (script_files.library_path(text), "\nhpctrain_finish() {" in text) == (None, True)
    assert not functions(library_project)


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_submit_and_resubmit_put_them_back(library_project: Desk) -> None:
    assert library_project.run("render", *WORDS).code == 0
    [path] = functions(library_project)
    path.unlink()
    assert library_project.run("submit", "--wait", "sft.sbatch").code == 3
    assert functions(library_project) == [path]
    [tag] = launch.tags(library_project.directory / "runs")
    path.unlink()
    library_project.write("done", "")
    said = library_project.run("resubmit", tag, "--wait")
    assert said.code == 0, said.err
    assert functions(library_project) == [path]


# -- Launches whose sbatch is refused, or answers late or never, in the middle: what was sent


#: Each call is a line of `asked`; the line of the same number in `modes` says what becomes of it.
SBATCH = r"""
cd HERE
echo "$*" >> asked
number=$(wc -l < asked)
mode=$(sed -n "${number}p" modes 2>/dev/null)
script=$(sed -n 's/.* \([^ ]*sbatch\) .*/\1/p' <<< "$*")
array=$(cd PROJECT && sed -n 's/^#SBATCH --array=\([^ ]*\).*/\1/p' "$script")
[[ $* =~ --array=([^ ]*) ]] && array=${BASH_REMATCH[1]}
row=$(printf '%s\x1f' "$((100 + number))${array:+_[$array]}" sft PENDING None 0:00 5:00 1 gpu N/A)${2#--comment=}
case $mode in
    refuse) echo "sbatch: error: Batch job submission failed: Invalid qos specification" >&2; exit 1 ;;
    late) echo "$row" >> late; echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1 ;;
    *) echo "$row" >> queue; echo $((100 + number)) ;;
esac
"""


class Cluster:
    """A Slurm of programs, and the project that submits to it."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        self.desk, self.folder = desk, folder
        folder.mkdir()
        desk.write("train.py", "print(1)\n")
        desk.program(
            "sbatch", SBATCH.replace("HERE", str(folder)).replace("PROJECT", str(desk.directory))
        )
        desk.program("squeue", f"cat {folder}/queue 2>/dev/null; true")
        desk.program("sacct scancel", "true")
        desk.program("scontrol", "exit 1")
        desk.patch.setattr(slurm, "_PAUSES_S", (0.0,))

    def config(self, text: str) -> None:
        self.desk.write("config.yaml", "script: train.py\nlauncher: srun\n" + text)

    def modes(self, *modes: str) -> None:
        """Say what becomes of the calls of sbatch from now on."""
        (self.folder / "modes").write_text(
            "ok\n" * len(self.asked) + "".join(f"{mode}\n" for mode in modes)
        )

    def arrive(self) -> None:
        late = self.folder / "late"
        with (self.folder / "queue").open("a") as queue:
            queue.write(late.read_text())
        late.unlink()

    def end_all(self) -> None:
        (self.folder / "queue").write_text("")

    @property
    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def whole(self) -> launch.Launch:
        [tag] = launch.tags(self.desk.directory / "runs")
        found = launch.load(self.desk.directory / "runs", tag)
        assert found is not None
        return found


@pytest.fixture
def cluster(desk: Desk, tmp_path: Path) -> Cluster:
    return Cluster(desk, tmp_path / "slurm")


CHAIN = "restart: {mode: chain, max: 2}\n"
THREE_STAGES = (
    "stages:\n  - name: train\n  - {name: tune, from: train}\n  - {name: evaluate, from: tune}\n"
)


@pytest.mark.slow
def test_everything_is_recorded_before_the_first_sbatch(cluster: Cluster) -> None:
    cluster.config(THREE_STAGES)
    cluster.modes("ok", "refuse")
    said = cluster.desk.run("submit", "--no-check")
    assert said.code == 1
    whole = cluster.whole
    assert [(part.stage, part.dependencies) for part in whole.parts] == [
        ("train", ()),
        ("tune", (("train", "afterok"),)),
        ("evaluate", (("tune", "afterok"),)),
    ]
    assert all(
        (whole.path / "scripts" / part.script).is_file()
        and (whole.path / str(part.config)).is_file()
        for part in whole.parts
    )
    assert [each.job_id for each in whole.submissions] == ["101"]
    assert (
        f"submitted before that for {whole.tag}, and still there: 101; the rest is not" in said.err
    )
    assert said.lines[-1].endswith(f"then run: hpctrain resubmit {whole.tag}")


@pytest.mark.slow
def test_a_refused_first_script_leaves_nothing(cluster: Cluster) -> None:
    cluster.config(THREE_STAGES)
    assert cluster.desk.run("render").code == 0
    cluster.modes("refuse")
    cluster.desk.refused("submit", "--no-check", code=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "again"),
    [
        (CHAIN, "3 jobs to Slurm as a chain: 103, 104, 105"),
        (THREE_STAGES, "job 105 to Slurm: sft-evaluate.sbatch"),
    ],
)
def test_an_unanswered_link_is_found_before_anything_is_sent(
    cluster: Cluster, config: str, again: str
) -> None:
    cluster.config(config)
    cluster.modes("ok", "late")
    assert cluster.desk.run("submit", "--no-check").code == 3
    said = cluster.desk.run("submit", "--no-check")
    assert (said.code, "may still arrive" in said.err, len(cluster.asked)) == (3, True, 2), said.err
    cluster.arrive()
    said = cluster.desk.run("submit", "--no-check")
    assert (said.code, len(cluster.asked)) == (1, 2), said.err
    assert "job 102 is the earlier submission that sbatch did not answer" in said.err
    assert [each.job_id for each in cluster.whole.submissions] == ["101", "102"]
    said = cluster.desk.run("submit", "--no-check")
    assert (said.code, said.out.endswith(f"submitted {again}\n")) == (0, True), said.err


SWEEPS = {
    "sweep": "sweep: {grid: {seed: [1, 2, 3]}}\n",
    "array": "array: 0-2\n",
    "stages": THREE_STAGES,
    "run": "",
    "chain": CHAIN,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SWEEPS)
def test_what_waits_is_not_submitted_a_second_time(cluster: Cluster, kind: str) -> None:
    cluster.config(SWEEPS[kind])
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r").code == 0
    asked = len(cluster.asked)
    said = cluster.desk.run("submit", "--no-check", "--run-id", "r")
    assert (said.code, len(cluster.asked)) == (2, asked), said.err
    assert " is pending: job 10" in said.err
    cluster.end_all()
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r").code == 0
    assert len(cluster.asked) == 2 * asked


@pytest.mark.slow
def test_other_points_of_a_sweep_that_waits_may_be_submitted(cluster: Cluster) -> None:
    cluster.config(SWEEPS["sweep"])
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r", "--array", "0").code == 0
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r", "--array", "1-2").code == 0
    said = cluster.desk.run("submit", "--no-check", "--run-id", "r", "--array", "2")
    assert (said.code, "the run r_2 is pending" in said.err, len(cluster.asked)) == (
        2,
        True,
        2,
    ), said.err


@pytest.mark.slow
def test_another_script_of_a_run_with_an_open_answer_waits_for_it(cluster: Cluster) -> None:
    cluster.config("")
    cluster.modes("late")
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r").code == 3
    cluster.config("resources: {time: 10}\n")
    assert cluster.desk.run("render").code == 0
    said = cluster.desk.run("submit", "--no-check", "--run-id", "r")
    assert (said.code, "may still arrive" in said.err, len(cluster.asked)) == (3, True, 1), said.err
    for sent in ledger.submissions():  # ten minutes later
        replace(sent, at=sent.at - 601).write(Path(sent.record).parent)
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r").code == 0
    assert len(cluster.asked) == 2
