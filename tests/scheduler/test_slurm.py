"""Slurm's side of the protocol, against programs on PATH that record what they were asked. The real Slurm is in tests/lab."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.cli import follow
from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.scheduler import ledger
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.parse.records import SEPARATOR
from hpctrain.scheduler.slurm import SlurmScheduler

SCRIPT = "#!/bin/bash\n#SBATCH --job-name=sft\n#SBATCH --comment=mine\n#SBATCH --output=logs/o_%j.log\ntrue\n"
Programs = Callable[..., None]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Return a function that puts programs on PATH: name=body of a bash script; each call of one is a line in calls.txt."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    Path("job.sbatch").write_text(SCRIPT)

    def put(**bodies: str) -> None:
        for name, body in bodies.items():
            (folder / name).write_text(f'#!/bin/bash\necho "{name} $*" >> {tmp_path}/calls.txt\nenv > {tmp_path}/{name}.env\n{body}\n')
            (folder / name).chmod(0o755)

    put(squeue="", sacct="", scontrol="exit 1", scancel="")
    return put


def calls(program: str) -> list[str]:
    path = Path("calls.txt")
    return [line for line in path.read_text().splitlines() if line.startswith(f"{program} ")] if path.exists() else []


def scheduler() -> SlurmScheduler:
    return SlurmScheduler(timeout=1.0, sleep=lambda _: None)


def squeue_line(job_id: str, comment: str, state: str = "PENDING") -> str:
    return SEPARATOR.join((job_id, "sft", state, "None", "0:00", "1:00:00", "1", "gpu", "N/A", comment))


def test_the_environment_of_an_outer_job_does_not_reach_sbatch(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert re.findall(r"^(?:SLURM|SBATCH|SQUEUE|SCANCEL|PMI|PET|OMPI)_\w+=.*$", passed, re.MULTILINE) == ["SLURM_CONF=/etc/other.conf"]
    (call,) = calls("sbatch")
    assert re.fullmatch(r"sbatch --parsable --comment=hpctrain:[0-9a-f]{16} mine job\.sbatch", call), (
        "our token, and the user's own comment"
    )


def test_a_refusal_is_slurms_own_words_and_leaves_nothing(programs: Programs) -> None:
    programs(sbatch="echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1")
    with pytest.raises(HpctrainError) as refused:
        scheduler().submit(Path("job.sbatch"))
    assert "  sbatch said: Batch job submission failed: Invalid qos specification" in refused.value.details
    assert refused.value.fix is not None
    assert "hpctrain render --qos NAME" in refused.value.fix
    assert ledger.entries() == []


@pytest.mark.parametrize(
    "sbatch", ["sleep 30", "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"]
)
def test_no_answer_and_no_job_is_unknown_and_is_not_sent_again(programs: Programs, sbatch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(sbatch=sbatch)
    with pytest.raises(SchedulerError, match="whether the job exists is unknown"):
        scheduler().submit(Path("job.sbatch"))
    (record,) = scheduler().status()
    assert (record.state, record.name) == ("UNKNOWN", "sft")
    with pytest.raises(SchedulerError, match="has not been answered, and may still arrive"):
        scheduler().submit(Path("job.sbatch"))
    assert len(calls("sbatch")) == 1, "never submitted twice"

    # It has arrived after all: the next submission finds it, and ps knows its id.
    (entry,) = ledger.unanswered()
    programs(squeue=f"echo '{squeue_line('77', f'{entry.comment} mine')}'")
    assert scheduler().submit(Path("job.sbatch")).job_id == "77"
    assert len(calls("sbatch")) == 1
    assert [(record.job_id, record.state) for record in scheduler().status()] == [("77", "PENDING")]


def test_a_submission_without_a_trace_is_sent_again_only_when_the_user_says_so(programs: Programs) -> None:
    programs(sbatch="sleep 30")
    with pytest.raises(SchedulerError):
        scheduler().submit(Path("job.sbatch"))
    programs(sbatch="echo 78")
    with pytest.raises(SchedulerError, match="may still arrive"):
        scheduler().submit(Path("job.sbatch"))
    assert scheduler().submit(Path("job.sbatch"), resend=True).job_id == "78"
    assert ledger.unanswered() == []


def test_another_script_is_not_held_up(programs: Programs) -> None:
    programs(sbatch="sleep 30")
    with pytest.raises(SchedulerError):
        scheduler().submit(Path("job.sbatch"))
    Path("other.sbatch").write_text(SCRIPT.replace("sft", "other"))
    programs(sbatch="echo 79")
    assert scheduler().submit(Path("other.sbatch")).job_id == "79"


def test_slurm_that_cannot_be_reached(programs: Programs) -> None:
    programs(sbatch="echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(SchedulerError, match="cannot be reached"):
        scheduler().submit(Path("job.sbatch"))
    assert ledger.entries() == []
    programs(squeue="sleep 30")
    with pytest.raises(SchedulerError, match="squeue did not answer within 1 s"):
        scheduler().status()


def test_one_query_for_all_jobs_and_final_states_from_accounting(programs: Programs) -> None:
    running, ended = squeue_line("5", "", "RUNNING"), squeue_line("6", "", "FAILED")
    row = SEPARATOR.join(("6", "sft", "FAILED", "9:0", "0:0", "12", "01:00:00", "1", "gpu", "2026-01-02T03:04:05", ""))
    programs(squeue=f"echo '{running}'; echo '{ended}'", sacct=f"echo '{row}'")
    found = {record.job_id: record for record in scheduler().status(["5", "6"])}
    assert (found["5"].state, found["6"].state, found["6"].exit_code) == ("RUNNING", "FAILED", 9)
    assert (len(calls("squeue")), len(calls("sacct"))) == (1, 1)


def test_without_accounting_slurmctld_is_asked(programs: Programs) -> None:
    line = "JobId=6 JobName=my job UserId=u(1) GroupId=g(1) JobState=FAILED "
    line += "Reason=NonZeroExitCode ExitCode=1:0 DerivedExitCode=0:125 RunTime=00:00:12 TimeLimit=01:00:00"
    programs(
        squeue=f"echo '{squeue_line('6', '', 'FAILED')}'",
        sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1",
        scontrol=f"echo '{line}'",
    )
    (record,) = scheduler().status(["6"])
    assert (record.name, record.state, record.exit_code, record.elapsed_s) == ("my job", "OUT_OF_MEMORY", 1, 12)


def test_accounting_that_hangs_hides_no_job_and_is_left_alone_for_a_while(programs: Programs) -> None:
    programs(squeue=f"echo '{squeue_line('5', '', 'RUNNING')}'; echo '{squeue_line('6', '', 'FAILED')}'", sacct="sleep 30")
    for _ in range(2):
        assert [(record.job_id, record.state) for record in scheduler().status()] == [("5", "RUNNING"), ("6", "FAILED")]
    assert len(calls("sacct")) == 1
    assert [record.job_id for record in scheduler().status(["6"])] == ["6"]


def test_hundreds_of_tasks_that_ended_are_few_questions(programs: Programs) -> None:
    tasks = "\n".join(squeue_line(f"6_{task}", "", "CANCELLED") for task in range(300))
    others = "\n".join(squeue_line(f"{job}", "", "FAILED") for job in range(100, 120))
    Path("queue").write_text(f"{tasks}\n{others}\n")
    line = "JobId=9 ArrayJobId=6 ArrayTaskId=7 JobName=x UserId=u(1) GroupId=g(1) JobState=FAILED ExitCode=3:0 RunTime=00:00:12"
    programs(squeue=f"cat {Path.cwd()}/queue", sacct="exit 1", scontrol=f"case \"$*\" in *' 6') echo '{line}';; *) exit 1;; esac")
    found = {record.job_id: record for record in scheduler().status()}
    assert len(found) == 320
    assert (found["6_7"].state, found["6_7"].exit_code, found["6_8"].state, found["119"].state) == ("FAILED", 3, "CANCELLED", "FAILED")
    assert len(calls("scontrol")) <= 4


def test_a_job_that_was_cancelled_after_its_requeue_waits_no_more(programs: Programs) -> None:
    def row(job: str) -> str:
        return SEPARATOR.join((job, "sft", "REQUEUED", "0:0", "0:0", "2", "01:00:00", "1", "gpu", "2026-01-02T03:04:05", ""))

    programs(squeue=f"echo '{squeue_line('5', '', 'PENDING')}'; echo '{squeue_line('7_[1-3]', '')}'")
    Path("said").write_text("\n".join(row(job) for job in ("4", "5", "7_2", "8_1")) + "\n")
    programs(sacct=f"cat {Path.cwd()}/said")
    found = {record.job_id: record.state for record in scheduler().status()}
    assert found == {"4": "CANCELLED", "5": "PENDING", "7_2": "REQUEUED", "7_[1-3]": "PENDING", "8_1": "CANCELLED"}


def test_where_a_job_writes(programs: Programs) -> None:
    programs(sbatch="echo 123")
    scheduler().submit(Path("job.sbatch"))
    logs = scheduler().logs("123")
    assert logs is not None
    assert logs.output == Path.cwd() / "logs" / "o_123.log"
    assert logs.error == logs.output
    programs(scontrol="echo 'JobId=9 JobName=x UserId=u(1) GroupId=g(1) StdErr=/a b/e.log StdIn=/dev/null StdOut=/a b/o.log Power='")
    logs = scheduler().logs("9")
    assert logs is not None
    assert (logs.output, logs.error) == (Path("/a b/o.log"), Path("/a b/e.log"))


@pytest.mark.slow
def test_a_controller_that_restarts_does_not_end_the_waiting(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_ASK_FIRST_S", 0.2)
    row = SEPARATOR.join(("5", "sft", "COMPLETED", "0:0", "0:0", "12", "01:00:00", "1", "gpu", "2026-01-02T03:04:05", ""))
    once = "if [ ! -e blip ]; then touch blip; echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1; fi"
    programs(squeue=f"{once}; echo '{squeue_line('5', '', 'COMPLETED')}'", sacct=f"echo '{row}'")
    said: list[str] = []
    record = follow.until_the_end(scheduler(), "5", [], said.append)
    assert record is not None
    assert record.state == "COMPLETED"
    assert said == ["Slurm did not answer; asking again"]


def test_cancel_passes_over_a_submission_without_an_id(programs: Programs, hpctrain: str) -> None:
    programs(sbatch="sleep 30")
    with pytest.raises(SchedulerError):
        scheduler().submit(Path("job.sbatch"))
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
    scheduler().submit(Path("job.sbatch"), arguments=["tag", "a b", "--array=5"], dependency="afterok:12", array="0,3,7-9%2")
    words = Path("words.txt").read_text().splitlines()
    assert words[2:] == ["--dependency=afterok:12", "--array=0,3,7-9%2", "job.sbatch", "tag", "a b", "--array=5"]


def test_the_same_work_in_other_orders_is_not_sent_past_an_open_answer(programs: Programs) -> None:
    programs(sbatch="sleep 30")
    with pytest.raises(SchedulerError, match="whether the job exists is unknown"):
        scheduler().submit(Path("job.sbatch"), array="0-9", arguments=["tag"], dependency="afterok:1")
    programs(sbatch="echo 80")
    for words in ({"array": "10-19"}, {"array": "0-9"}, {"dependency": "afterok:2"}, {}):
        with pytest.raises(SchedulerError, match="has not been answered"):
            scheduler().submit(Path("job.sbatch"), arguments=["tag"], **words)
    assert len(calls("sbatch")) == 1
    assert scheduler().submit(Path("job.sbatch"), array="0-9", arguments=["other"]).job_id == "80", "another launch is not held up"
    [entry] = ledger.unanswered_of(SCRIPT)
    assert (entry.orders, entry.arguments) == (("--dependency=afterok:1", "--array=0-9"), ("tag",)), "what a new call looks for first"
    programs(squeue=f"echo '{squeue_line('77_[0-9]', entry.comment)}'")
    assert scheduler().submit(Path("job.sbatch"), array="3", arguments=["tag"]).job_id == "77"
    assert ledger.unanswered() == []
    assert scheduler().submit(Path("job.sbatch"), array="3", arguments=["tag"]).job_id == "80", "told once"


def test_a_look_at_the_queue_does_not_use_up_the_answer(programs: Programs) -> None:
    programs(sbatch="sleep 30")
    with pytest.raises(SchedulerError, match="whether the job exists is unknown"):
        scheduler().submit(Path("job.sbatch"), arguments=["tag"])
    [entry] = ledger.unanswered()
    programs(squeue=f"echo '{squeue_line('77', entry.comment)}'", sbatch="echo 80")
    assert [record.job_id for record in scheduler().status()] == ["77"]
    assert ledger.unanswered() == []
    programs(squeue="")  # it has ended, and Slurm has forgotten it
    found = scheduler().submit(Path("job.sbatch"), arguments=["tag"])
    assert (found.job_id, "nothing new was submitted" in found.notes[0]) == ("77", True)
    assert len(calls("sbatch")) == 1
    assert scheduler().submit(Path("job.sbatch"), arguments=["tag"]).job_id == "80"


def test_days_of_silence_are_no_answer(programs: Programs) -> None:
    entry = ledger.new(Path("job.sbatch"), SCRIPT, name="sft", output=None, error=None)
    ledger._write(replace(entry, at=entry.at - 3 * 86_400))
    programs(sbatch="echo 80")
    assert scheduler().status() == [], "no news any more"
    with pytest.raises(SchedulerError, match="has not been answered"):
        scheduler().submit(Path("job.sbatch"))


def submitted_as_123(programs: Programs) -> ledger.Entry:
    """Submit a job that gets the id 123, two minutes ago."""
    programs(sbatch="echo 123")
    scheduler().submit(Path("job.sbatch"))
    (entry,) = ledger.entries()
    return ledger.found(replace(entry, at=entry.at - 120), "123", None)


OURS, OTHERS = Path("logs/o_123.log"), Path("/elsewhere/o.log")


@pytest.mark.parametrize(
    ("comment", "remembered", "output"),
    [
        ("{entry.comment} mine", True, OURS),
        ("hpctrain:0123456789abcdef", True, OTHERS),  # of a controller that has begun again, and given out the id once more
        ("(null)", True, OTHERS),  # and to a job that somebody submitted by sbatch
        ("hpctrain:0123456789abcdef", False, None),
        ("changed by the site", False, OURS),
    ],
)
def test_an_id_that_is_used_again_has_the_log_of_the_job_that_has_it_now(
    programs: Programs, comment: str, remembered: bool, output: Path | None
) -> None:
    entry = submitted_as_123(programs)
    shown = f"JobId=123 JobName=other UserId=me(1000) GroupId=me(1000) StdErr={OTHERS} StdIn=/dev/null StdOut={OTHERS} Power="
    programs(squeue=f"echo '{squeue_line('123', comment.format(entry=entry), 'RUNNING')}'", scontrol=f"echo '{shown}'" * remembered)
    logs = scheduler().logs("123")
    assert (None if logs is None else logs.output) == (None if output is None else Path.cwd() / output)


def test_what_ended_under_an_id_that_is_submitted_again_is_another_job(programs: Programs) -> None:
    row = ("123", "sft", "FAILED", "3:0", "0:0", "60", "01:00:00", "1", "gpu", "2026-11-22T08:00:00", "")
    programs(sacct=f"echo '{SEPARATOR.join(row)}'", sbatch="echo 123")
    assert [(each.job_id, each.state) for each in scheduler().status(["123"], max_age_s=15)] == [("123", "FAILED")]
    programs(sacct=f"echo '{SEPARATOR.join((*row[:2], 'COMPLETED', '0:0', *row[4:]))}'")
    assert scheduler().status(["123"], max_age_s=15)[0].state == "FAILED", "the last word is not asked again"
    scheduler().submit(Path("job.sbatch"))
    assert scheduler().status(["123"], max_age_s=15)[0].state == "COMPLETED"
