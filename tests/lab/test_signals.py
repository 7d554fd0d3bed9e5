"""What Slurm itself does with signals and requeues: facts that the job scripts are built on, asked
of the real thing.
"""

from pathlib import Path

import pytest

from tests.lab.conftest import Lab
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SMALL = ("--ntasks=1", "--mem=100", "--time=2")
# A child of the task's shell that would write down each signal, and the shell itself.
LISTENERS = """
say() { echo "$1" >> heard; }
bash -c 'for s in TERM USR1; do trap "echo child $s >> heard" $s; done; echo there >> heard; while :; do sleep 0.1; done' & child=$!
for s in TERM USR1; do trap "say \\"task $s\\"" $s; done
while kill -0 $child 2>/dev/null; do wait $child; done
"""


def heard(folder: Path) -> list[str]:
    path = folder / "heard"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def listening(lab: Lab, folder: Path, forward: str) -> str:
    """Submit a batch script whose one task listens, and which does `forward` when a file asks for
    it.
    """
    (folder / "task.sh").write_text(LISTENERS)
    body = (
        f"srun bash task.sh & srun=$!\nuntil [ -e now ]; do sleep 0.1; done\n{forward}\necho"
        " forwarded >> heard\nwait $srun; sleep 2"
    )
    job = lab.submit(body, folder, *SMALL)
    wait_until(lambda: "there" in heard(folder), "the task listens")
    return job


def test_a_signal_reaches_the_first_process_of_a_task_and_not_its_children(
    lab: Lab, tmp_path: Path
) -> None:
    job = listening(lab, tmp_path, "true")
    try:
        lab.run("scancel", "--signal=TERM", job)
        wait_until(lambda: "task TERM" in heard(tmp_path), "the task's shell hears of it")
        lab.run("scancel", "--signal=USR1", job)
        wait_until(lambda: "task USR1" in heard(tmp_path), "the task's shell hears of it")
        assert not [line for line in heard(tmp_path) if line.startswith("child")]
        assert lab.run("squeue", "-h", "-j", job, "-o", "%T").stdout == "RUNNING\n"
    finally:
        lab.run("scancel", job)


@pytest.mark.parametrize(("number", "lives"), [("USR1", True), ("TERM", False)])
def test_srun_hands_on_usr1_and_ends_the_step_at_term(
    lab: Lab, tmp_path: Path, number: str, lives: bool
) -> None:
    job = listening(lab, tmp_path, f"kill -{number} $srun")
    (tmp_path / "now").touch()
    try:
        wait_until(lambda: "forwarded" in heard(tmp_path), "the batch script has sent it")
        if lives:
            wait_until(lambda: "task USR1" in heard(tmp_path), "the task's shell hears of it")
            # slurmdbd hears of a step a moment after its start.
            wait_until(lambda: f"{job}.0" in lab.accounting(job, "State"), "its step is accounted")
            assert lab.accounting(job, "State")[f"{job}.0"]["State"] == "RUNNING"
        else:
            rows = lab.finished(job, "ExitCode")
            assert rows[f"{job}.0"] == {"State": "CANCELLED by 0", "ExitCode": "0:9"}
            assert "task TERM" not in heard(tmp_path)
    finally:
        lab.run("scancel", job)


@pytest.mark.parametrize(
    ("name", "hit"),
    [("${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID", {"2"}), ("$SLURM_JOB_ID", {"1", "2"})],
)
def test_the_last_task_of_an_array_has_the_number_of_the_array(
    lab: Lab, tmp_path: Path, name: str, hit: set[str]
) -> None:
    # Only when both run: a task that waits is not requeued.
    both = "until [ -e began1 ] && [ -e began2 ]; do sleep 0.2; done; sleep 1"
    body = (
        f'touch began$SLURM_ARRAY_TASK_ID; [ "$SLURM_ARRAY_TASK_ID" = 2 ] && {{ {both}; scontrol'
        f" requeue {name}; }}; sleep 240"
    )
    job = lab.submit(body, tmp_path, "--array=1-2", *SMALL)
    try:
        wait_until(
            lambda: "Restarts=1" in lab.run("scontrol", "show", "job", "-o", job).stdout,
            "a task is requeued",
        )

        def requeued() -> set[str]:
            shown = lab.run("scontrol", "show", "job", "-o", job).stdout.splitlines()
            return {
                words["ArrayTaskId"] for words in map(fields, shown) if words["Restarts"] == "1"
            }

        wait_until(lambda: requeued() >= hit, "all that are meant")
        assert requeued() == hit
    finally:
        lab.run("scancel", job)


def fields(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def test_a_requeue_brings_back_a_job_that_was_cancelled(lab: Lab, tmp_path: Path) -> None:
    """Why the job script looks at its state first: COMPLETING, whoever ends it, and not RUNNING."""
    ask = "scontrol show job -o $SLURM_JOB_ID | grep -o 'JobState=[A-Z]*' >> heard"
    body = (
        f"trap '{ask}; scontrol requeue $SLURM_JOB_ID; exit' TERM; echo there >> heard; sleep 60 &"
        " wait"
    )
    job = lab.submit(body, tmp_path, *SMALL)
    wait_until(lambda: "there" in heard(tmp_path), "the trap is set")
    lab.run("scancel", job)
    try:
        wait_until(
            lambda: fields(lab.run("scontrol", "show", "job", "-o", job).stdout)["Restarts"] == "1",
            "it is back",
        )
        wait_until(lambda: "JobState=COMPLETING" in heard(tmp_path), "what it saw")
    finally:
        lab.run("scancel", job)


def test_arguments_of_the_script_survive_a_requeue(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    ask_again = '[ -n "${SLURM_RESTART_COUNT-}" ] || scontrol requeue $SLURM_JOB_ID'
    script.write_text(
        f'#!/bin/bash\necho "${{SLURM_RESTART_COUNT:-unset}} $*" >> heard\n{ask_again}\n'
    )
    where = (f"--chdir={tmp_path}", f"--output={tmp_path}/%j.out", *SMALL)
    job = lab.run("sbatch", "--parsable", *where, str(script), "TAG-1", "two words").stdout.strip()
    wait_until(lambda: len(heard(tmp_path)) == 2, "it has run twice")
    assert heard(tmp_path) == ["unset TAG-1 two words", "1 TAG-1 two words"]
    lab.finished(job)
