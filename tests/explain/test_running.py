"""A job that still runs and hangs because one of its ranks is dead: what killed that rank is said.

A healthy job's errors are not.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.explain import text
from hpctrain.explain.model import AttemptFact, Explanation, FileFact, JobContext
from hpctrain.logs import files as log_files
from hpctrain.logs import scan
from hpctrain.slurm.notations.records import JobRecord
from tests.explain.corpus import judge, rules

#: 2026-11-22T04:00:00Z; the step of the job began then.
BEGAN = 1_795_320_000.0
#: As `srun --label` shows them: four ranks on two nodes, of which the third dies in its step and
#: the others wait in the next all-reduce.
STEPS = "".join(
    f"0: {{'loss': {2 - step / 100:.2f}, 'grad_norm': 1.1, 'epoch': 0.{step:02d}}}\n"
    for step in range(1, 11)
)
UNKNOWN = """\
2: Traceback (most recent call last):
2:   File "/home/me/train.py", line 88, in <module>
2:     main()
2:   File "/home/me/train.py", line 61, in step
2:     batch = collate(rows)
2: KnownToNobody: shard 17 has 3 columns, not 4
"""
KNOWN = UNKNOWN.replace(
    "KnownToNobody: shard 17 has 3 columns, not 4",
    "ModuleNotFoundError: No module named 'flash_attn'",
)
NVIDIA = """\
2: Traceback (most recent call last):
2:   File "/home/me/train.py", line 61, in step
2:     loss.backward()
2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 39.50 GiB of which 1.2 GiB is free.
"""
EXITED = "srun: error: node2: task 2: Exited with exit code 1\n"


def explained(
    folder: Path,
    text: str,
    *,
    quiet_s: float,
    state: str = "RUNNING",
    step: int | None = 10,
    run: str | None = "sft-1",
    **more: Any,
) -> Explanation:
    """Return what is said of a job with this log, whose last step was logged, and whose log grew
    last, so long ago.
    """
    log = folder / "slurm-77.out"
    log.write_text(text)
    last = BEGAN + 100
    os.utime(log, (last, last))
    files = log_files.of_paths([log])
    account = JobRecord(
        job_id="77",
        scheduler="slurm",
        state=state,
        source="sacct",
        started=BEGAN,
        nodes="node[1-2]",
        n_nodes=2,
    )
    case = JobContext(
        files=(FileFact(name=files[0].name, size=log.stat().st_size, grown=last),),
        account=account,
        attempts=(
            AttemptFact(
                name="77.0",
                job_id="77",
                started=BEGAN,
                last_step=step,
                last_logged_at=last if step else None,
            ),
        ),
        step=step,
        max_steps=400 if step else None,
        step_s=2.0 if step else None,
        now=last + quiet_s,
        extra={"run": run} if run else {},
    )
    return judge(replace(case, **more), scan.scan(files, rules()))


def test_the_traceback_of_a_dead_rank_is_shown_while_the_others_wait(tmp_path: Path) -> None:
    found = explained(tmp_path, STEPS + UNKNOWN + EXITED, quiet_s=120)
    assert (found.unexplained.rank, found.unexplained.lines[-1]) == (
        2,
        "KnownToNobody: shard 17 has 3 columns, not 4",
    )
    lines = text.page(found)
    assert not found.diagnoses
    assert lines[-2:] == [
        "note: to end it: hpctrain cancel 77",
        "note: then, to continue: hpctrain resubmit sft-1",
    ], lines
    assert any("job 77 still runs" in line for line in lines)
    assert found.ended is not None
    assert "RUNNING" in found.ended


@pytest.mark.parametrize(("text", "rule"), [(KNOWN, "python-module-missing"), (NVIDIA, "cuda-oom")])
def test_a_cause_that_is_known_is_likely_and_its_fix_ends_the_job(
    tmp_path: Path, text: str, rule: str
) -> None:
    found = explained(tmp_path, STEPS + text + EXITED, quiet_s=120)
    [diagnosis] = found.diagnoses
    assert (diagnosis.id, diagnosis.certainty, diagnosis.rank) == (rule, "likely", 2)
    *_, cancel, last = diagnosis.fix.text.splitlines()
    assert cancel == "hpctrain cancel 77"
    assert last.startswith("hpctrain resubmit sft-1")
    assert last.endswith("--apply-fix") == bool(diagnosis.fix.changes)
    assert [note[:19] for note in found.notes] == ["job 77 still runs: "]
    bare = explained(tmp_path, STEPS + text + EXITED, quiet_s=120, run=None, attempts=())
    assert bare.diagnoses[0].fix.text.splitlines()[-1] == "hpctrain cancel 77", (
        "no run of hpctrain's"
    )


@pytest.mark.parametrize(
    "exited",
    [
        EXITED,
        "srun: error: node2: tasks 2-3: Exited with exit code 1\n",
        "srun: error: node2: task 2: Segmentation fault (core dumped)\n",
        (
            "E1122 04:01:40.000000 139 torch/distributed/elastic/multiprocessing/api.py:874] failed"
            " (exitcode: 1) local_rank: 2 (pid: 139) of binary: /home/me/venv/bin/python\n"
        ),
        "",
    ],
)
def test_who_says_that_a_process_has_ended(tmp_path: Path, exited: str) -> None:
    """A launcher's word is believed soon; a traceback, which somebody may have caught, only when
    nothing came for long.
    """
    found = [
        explained(tmp_path, STEPS + UNKNOWN + exited, quiet_s=quiet) for quiet in (30, 120, 2000)
    ]
    said = [bool(each.unexplained or each.diagnoses) for each in found]
    assert said == [False, exited != "", True], exited


@pytest.mark.parametrize(
    "text",
    [
        STEPS,
        # An error that a retry got over; a step of srun before the training that failed; warnings.
        STEPS[:100] + UNKNOWN + STEPS * 3,
        EXITED + STEPS,
        STEPS + "2: UserWarning: this tokenizer has no pad token\n",
    ],
)
@pytest.mark.parametrize("quiet_s", [1, 40, 100])
def test_a_healthy_job_that_runs_is_met_with_silence(
    tmp_path: Path, text: str, quiet_s: float
) -> None:
    found = explained(tmp_path, text, quiet_s=quiet_s)
    assert (found.diagnoses, found.unexplained, found.notes, found.failed) == ((), None, (), False)


def test_a_job_that_goes_on_behind_its_errors_is_healthy(tmp_path: Path) -> None:
    """Its metrics have newer steps than its log, whatever the log says."""
    text = STEPS + NVIDIA + EXITED
    assert explained(tmp_path, text, quiet_s=5).diagnoses == ()
    assert explained(tmp_path, text, quiet_s=120, now=None).diagnoses == (), (
        "without a clock nobody knows"
    )


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (STEPS + UNKNOWN + "0: ***** Running Evaluation *****\n", {}),
        (STEPS + UNKNOWN + STEPS[:120], {}),
        (STEPS + UNKNOWN + EXITED, {"config": {"training": {"logging_steps": 500}}}),
        (KNOWN + EXITED + "0: Generating train split\n0: Map: 1%\n0: Map: 2%\n", {"step": None}),
        (STEPS + KNOWN + EXITED, {"state": "SUSPENDED"}),
    ],
    ids=["evaluation", "other-ranks-went-on", "every-500-steps", "loads-data", "suspended"],
)
def test_ten_minutes_without_a_step_may_be_well(
    tmp_path: Path, text: str, more: dict[str, Any]
) -> None:
    """An error somebody caught, or a check at the head of the script that failed, and then a long
    time in which nothing is logged.
    """
    found = explained(tmp_path, text, quiet_s=600, **more)
    assert (found.diagnoses, found.unexplained, found.notes, found.failed) == ((), None, (), False)


def test_a_node_whose_clock_is_slow_does_not_stand_still(tmp_path: Path) -> None:
    """By its clock the last step was minutes ago; by that of the file system its log has just
    grown.
    """
    slow = (
        AttemptFact(
            name="77.0", job_id="77", started=BEGAN - 400, last_step=10, last_logged_at=BEGAN - 300
        ),
    )
    assert not explained(tmp_path, STEPS + KNOWN + EXITED, quiet_s=5, attempts=slow).failed
    assert explained(tmp_path, STEPS + KNOWN + EXITED, quiet_s=120, attempts=slow).failed


def test_before_the_first_step_a_model_may_take_its_time_to_load(tmp_path: Path) -> None:
    """`srun nvidia-smi || true` at the head of a script fails, and the training loads for minutes."""
    text = "srun: error: node2: task 0: Exited with exit code 127\n0: Loading checkpoint shards\n"
    assert explained(tmp_path, text, quiet_s=200, step=None).unexplained is None
    text = KNOWN + EXITED
    assert explained(tmp_path, text, quiet_s=30, step=None).diagnoses == ()
    assert [each.id for each in explained(tmp_path, text, quiet_s=90, step=None).diagnoses] == [
        "python-module-missing"
    ]
    bare = explained(tmp_path, text, quiet_s=90, step=None, run=None, attempts=())
    assert [each.id for each in bare.diagnoses] == ["python-module-missing"], (
        "a script of one's own, of which hpctrain knows the log alone"
    )


def test_what_srun_says_of_munge_before_a_node_fails_is_not_the_controller(tmp_path: Path) -> None:
    """The log of a job whose node slurmctld lost, as Slurm 22.05 left it: munge on the node had
    died.
    """
    text = """\
srun: error: eio_message_socket_accept: slurm_receive_msg[127.0.0.1:38542]: Zero Bytes were transmitted or received
slurmstepd-node9: error: *** JOB 4002 ON node9 CANCELLED AT 2026-11-22T07:58:33 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
slurmstepd-node9: error: *** STEP 4002.0 ON node9 CANCELLED AT 2026-11-22T07:58:33 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
srun: error: node9: task 0: Exited with exit code 143
"""
    found = explained(tmp_path, text, quiet_s=400, state="NODE_FAIL")
    assert [(each.id, each.certainty) for each in found.diagnoses] == [("node-fail", "certain")]
