"""Slurm's side of the protocol, against programs on PATH that record what they were asked.

The real Slurm is in tests/lab.
"""

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.cli import follow
from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.slurm import ledger
from hpctrain.slurm.client import SlurmScheduler
from hpctrain.slurm.ledger import Submission
from hpctrain.slurm.notations.records import SEPARATOR
from tests.scheduler.sacct_rows import calls, row

SCRIPT = (
    "#!/bin/bash\n#SBATCH --job-name=sft\n#SBATCH --comment=mine\n#SBATCH"
    " --output=logs/o_%j.log\ntrue\n"
)
Programs = Callable[..., None]


@pytest.fixture(autouse=True)
def _script(tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(SCRIPT)


def scheduler(timeout: float = 60.0) -> SlurmScheduler:
    return SlurmScheduler(timeout=timeout, sleep=lambda _: None)


def squeue_line(job_id: str, comment: str, state: str = "PENDING") -> str:
    return SEPARATOR.join(
        (job_id, "sft", state, "None", "0:00", "1:00:00", "1", "gpu", "N/A", comment)
    )


def test_the_environment_of_an_outer_job_does_not_reach_sbatch(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "SLURM_JOB_ID",
        "SQUEUE_FORMAT",
        "SCANCEL_INTERACTIVE",
        "SLURM_MEM_PER_CPU",
        "SBATCH_ACCOUNT",
        "PMI_RANK",
        "PET_NNODES",
        "OMPI_COMM_WORLD_SIZE",
    ):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    programs(sbatch="echo greetings from the site; echo '123;cluster'")
    submission = scheduler().submit(Path("job.sbatch"))
    assert (submission.job_id, submission.cluster) == ("123", "cluster")
    assert "SBATCH_ACCOUNT" in " ".join(submission.notes)
    passed = Path("sbatch.env").read_text()
    assert re.findall(
        r"^(?:SLURM|SBATCH|SQUEUE|SCANCEL|PMI|PET|OMPI)_\w+=.*$", passed, re.MULTILINE
    ) == ["SLURM_CONF=/etc/other.conf"]
    (call,) = calls("sbatch")
    assert re.fullmatch(
        r"sbatch --parsable --comment=hpctrain:[0-9a-f]{16} mine job\.sbatch", call
    ), "our token, and the user's own comment"


@pytest.mark.parametrize(
    "sbatch",
    [
        pytest.param("sleep 30", marks=pytest.mark.slow),
        "kill -9 $$",
        (
            "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv"
            " operation' >&2; exit 1"
        ),
    ],
)
def test_no_answer_and_no_job_is_unknown_and_is_not_sent_again(
    programs: Programs, sbatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(sbatch=sbatch)
    with pytest.raises(SchedulerError, match="whether the job exists is unknown"):
        scheduler().submit(Path("job.sbatch"))
    (record,) = scheduler().status()
    assert (record.state, record.name) == ("UNKNOWN", "sft")
    with pytest.raises(SchedulerError, match="has not been answered, and may still arrive"):
        scheduler().submit(Path("job.sbatch"))
    assert len(calls("sbatch")) == 1, "never submitted twice"

    # It has arrived after all: the next submission finds it among others, and ps knows its id.
    (entry,) = ledger.submissions()
    other, own = (f"{token} mine" for token in (f"{ledger.PREFIX}{'0' * 16}", entry.comment))
    programs(
        squeue=f"echo '{squeue_line('76', other)}'; echo '{squeue_line('77', own)}'",
        sbatch="echo 80",
    )
    with pytest.raises(HpctrainError, match="job 77 is the earlier submission"):
        scheduler().submit(Path("job.sbatch"))
    assert len(calls("sbatch")) == 1
    assert [record.job_id for record in scheduler().status()] == ["76", "77"]
    assert scheduler().submit(Path("job.sbatch")).job_id == "80", "told once"


@pytest.mark.slow
def test_slurm_that_cannot_be_reached(programs: Programs) -> None:
    programs(
        sbatch=(
            "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller"
            " (connect failure)' >&2; exit 1"
        )
    )
    with pytest.raises(SchedulerError, match="cannot be reached"):
        scheduler().submit(Path("job.sbatch"))
    assert ledger.submissions() == []
    programs(squeue="sleep 30")
    with pytest.raises(SchedulerError, match="squeue did not answer within 1 s"):
        scheduler(timeout=1.0).status()


def test_one_query_for_all_jobs_and_final_states_from_accounting(programs: Programs) -> None:
    running, ended = squeue_line("5", "", "RUNNING"), squeue_line("6", "", "FAILED")
    said = row("6", "FAILED", "9:0")
    programs(squeue=f"echo '{running}'; echo '{ended}'", sacct=f"echo '{said}'")
    found = {record.job_id: record for record in scheduler().status(["5", "6"])}
    assert (found["5"].state, found["6"].state, found["6"].exit_code) == ("RUNNING", "FAILED", 9)
    assert (len(calls("squeue")), len(calls("sacct"))) == (1, 1)


def test_without_accounting_slurmctld_is_asked(programs: Programs) -> None:
    line = "JobId=6 JobName=my job UserId=u(1) GroupId=g(1) JobState=FAILED "
    line += (
        "Reason=NonZeroExitCode ExitCode=1:0 DerivedExitCode=0:125 RunTime=00:00:12"
        " TimeLimit=01:00:00"
    )
    programs(
        squeue=f"echo '{squeue_line('6', '', 'FAILED')}'",
        sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1",
        scontrol=f"echo '{line}'",
    )
    (record,) = scheduler().status(["6"])
    assert (record.name, record.state, record.exit_code, record.elapsed_s) == (
        "my job",
        "OUT_OF_MEMORY",
        1,
        12,
    )


@pytest.mark.slow
def test_accounting_that_hangs_hides_no_job_and_is_left_alone_for_a_while(
    programs: Programs,
) -> None:
    programs(
        squeue=f"echo '{squeue_line('5', '', 'RUNNING')}'; echo '{squeue_line('6', '', 'FAILED')}'",
        sacct="sleep 30",
    )
    for _ in range(2):
        assert [(record.job_id, record.state) for record in scheduler(timeout=3.0).status()] == [
            ("5", "RUNNING"),
            ("6", "FAILED"),
        ]
    assert Path("calls.txt").read_text().count("sacct ") == 1
    assert [record.job_id for record in scheduler().status(["6"])] == ["6"]


def test_hundreds_of_tasks_that_ended_are_few_questions(programs: Programs) -> None:
    tasks = "\n".join(squeue_line(f"6_{task}", "", "CANCELLED") for task in range(300))
    others = "\n".join(squeue_line(f"{job}", "", "FAILED") for job in range(100, 120))
    Path("queue").write_text(f"{others}\n{tasks}\n")
    line = (
        "JobId=9 ArrayJobId=6 ArrayTaskId=7 JobName=x UserId=u(1) GroupId=g(1) JobState=FAILED"
        " ExitCode=3:0 RunTime=00:00:12"
    )
    programs(
        squeue=f"cat {Path.cwd()}/queue",
        sacct="exit 1",
        scontrol=f"case \"$*\" in *' 6') echo '{line}';; *) exit 1;; esac",
    )
    found = {record.job_id: record for record in scheduler().status()}
    assert len(found) == 320
    assert (found["6_7"].state, found["6_7"].exit_code, found["6_8"].state, found["119"].state) == (
        "FAILED",
        3,
        "CANCELLED",
        "FAILED",
    )
    assert len(calls("scontrol")) <= 4


def test_a_job_that_was_cancelled_after_its_requeue_waits_no_more(programs: Programs) -> None:
    programs(
        squeue=f"echo '{squeue_line('5', '', 'PENDING')}'; echo '{squeue_line('7_[1-3]', '')}'"
    )
    Path("said").write_text(
        "\n".join(row(job, "REQUEUED") for job in ("4", "5", "7_2", "8_1")) + "\n"
    )
    programs(sacct=f"cat {Path.cwd()}/said")
    found = {record.job_id: record.state for record in scheduler().status()}
    assert found == {
        "4": "CANCELLED",
        "5": "PENDING",
        "7_2": "REQUEUED",
        "7_[1-3]": "PENDING",
        "8_1": "CANCELLED",
    }


def test_where_a_job_writes(programs: Programs) -> None:
    programs(sbatch="echo 123")
    scheduler().submit(Path("job.sbatch"))
    logs = scheduler().logs("123")
    assert logs.output == Path.cwd() / "logs" / "o_123.log"
    assert logs.error == logs.output
    programs(
        scontrol=(
            "echo 'JobId=9 JobName=x UserId=u(1) GroupId=g(1) StdErr=/a b/e.log StdIn=/dev/null"
            " StdOut=/a b/o.log Power='"
        )
    )
    logs = scheduler().logs("9")
    assert (logs.output, logs.error) == (Path("/a b/o.log"), Path("/a b/e.log"))


@pytest.mark.slow
def test_a_controller_that_restarts_does_not_end_the_waiting(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "ASK_EVERY_S", 0.2)
    once = (
        "if [ ! -e blip ]; then touch blip; echo 'slurm_load_jobs error: Unable to contact slurm"
        " controller' >&2; exit 1; fi"
    )
    programs(
        squeue=f"{once}; echo '{squeue_line('5', '', 'COMPLETED')}'",
        sacct=f"echo '{row('5', 'COMPLETED')}'",
    )
    said: list[str] = []
    record = follow.until_the_end(scheduler(), "5", [], said.append)
    assert record.state == "COMPLETED"
    assert said == ["Slurm did not answer; asking again"]


def test_cancel_passes_over_a_submission_without_an_id(programs: Programs, hpctrain: str) -> None:
    programs(sbatch="sleep 30")
    with pytest.raises(SchedulerError):
        scheduler(timeout=3.0).submit(Path("job.sbatch"))
    programs(squeue=f"echo '{squeue_line('783', '', 'RUNNING')}'")
    done = subprocess.run([hpctrain, "cancel", "sft", "--yes"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert calls("scancel") == ["scancel 783"]
    assert "it cannot be cancelled before Slurm shows it" in done.stderr


def test_half_of_what_was_asked_is_not_done_silently(programs: Programs, hpctrain: str) -> None:
    programs(squeue="echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    Path("local.sbatch").write_text("#!/bin/bash\nsleep 60\n")
    job_id = LocalScheduler().submit(Path("local.sbatch")).job_id
    assert subprocess.run([hpctrain, "cancel", job_id, "786"], capture_output=True).returncode == 3
    assert not LocalScheduler().status([job_id])[0].is_final
    assert subprocess.run([hpctrain, "cancel", job_id], capture_output=True).returncode == 0


def test_arguments_dependency_and_array_go_to_sbatch_around_the_script(programs: Programs) -> None:
    programs(sbatch='printf "%s\\n" "$@" > words.txt; echo 123')
    scheduler().submit(
        Path("job.sbatch"),
        arguments=["tag", "a b", "--array=5"],
        dependency="afterok:12",
        array="0,3,7-9%2",
    )
    words = Path("words.txt").read_text().splitlines()
    assert words[2:] == [
        "--dependency=afterok:12",
        "--array=0,3,7-9%2",
        "job.sbatch",
        "tag",
        "a b",
        "--array=5",
    ]


def test_after_days_a_request_is_lost(programs: Programs) -> None:
    sent = Submission(
        token="a" * 16,
        digest=ledger.digest(SCRIPT),
        directory=str(Path.cwd()),
        at=time.time() - 3 * 86_400,
    )
    ledger.record(sent, None)
    programs(sbatch="echo 80")
    assert scheduler().status() == [], "no news any more"
    assert scheduler().submit(Path("job.sbatch")).job_id == "80"


def test_what_ended_under_an_id_that_is_submitted_again_is_another_job(programs: Programs) -> None:
    programs(sacct=f"echo '{row('123', 'FAILED', '3:0')}'", sbatch="echo 123")
    for _ in range(2):
        assert scheduler().status(["123"], max_age_s=15)[0].state == "FAILED"
        programs(sacct=f"echo '{row('123', 'COMPLETED')}'")
    scheduler().submit(Path("job.sbatch"))
    assert scheduler().status(["123"], max_age_s=15)[0].state == "COMPLETED"
