"""What Slurm prints, word for word, and what is made of it.

The texts were printed by Slurm 22.05 unless they say otherwise.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.slurm.notations import records, states
from tests.scheduler.sacct_rows import OLD, row

SCONTROL = (
    "JobId={id} {array}JobName={name} UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=0"
    " Nice=0 Account=proj_b QOS=normal JobState={state} Reason={reason} Dependency=(null) Requeue=1"
    " Restarts=0 BatchFlag=1 Reboot=0 ExitCode={exit} RunTime=00:01:07 TimeLimit=1-00:00:00"
    " TimeMin=N/A SubmitTime=2026-11-20T22:04:57 StartTime=Unknown EndTime=Unknown"
    " Partition=boost_usr_prod AllocNode:Sid=localhost:23199 NodeList= NumNodes=2-2 NumCPUs=1"
    " CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=1,mem=500M,node=1,billing=1 NtasksPerN:B:S:C=0:0:*:*"
    " Features=(null) Command=/home/me/my job.sh N=3 WorkDir=/home/me/a b Comment={comment} "
    " StdErr=/home/me/a b/e.log StdIn=/dev/null StdOut=/home/me/a b/o.log Power= \n"
)


def squeue_row(*fields: str) -> str:
    return records.SEPARATOR.join(fields) + "\n"


def sacct_row(job_id: str, state: str, exit_code: str = "0:0", **more: str) -> str:
    return row(job_id, state, exit_code, **more) + "\n"


def scontrol_row(name: str = "sft", comment: str = "(null)", **more: str) -> str:
    return SCONTROL.format(
        **(
            {"id": "71", "array": "", "state": "PENDING", "reason": "Priority", "exit": "0:0"}
            | more
        ),
        name=name,
        comment=comment,
    )


@pytest.mark.parametrize(
    ("printed", "job_id", "cluster"),
    [
        ("123\n", "123", None),
        ("123;leonardo\n", "123", "leonardo"),
        ("Welcome to HPC!\nYou have 5 hours left\n\n77;c-1\n", "77", "c-1"),
        ("quota: 12\n  99  \n", "99", None),
        ("123\r\n", "123", None),
    ],
)
def test_the_answer_of_sbatch(printed: str, job_id: str, cluster: str | None) -> None:
    assert records.parse_submission(printed) == (job_id, cluster)


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "\n",
        "Submitted batch job 5 on cluster x",
        "sbatch: Job 70 to start at",
        "12a",
        "slurm-wlm 22.05.8",
    ],
)
def test_no_job_id(printed: str) -> None:
    assert records.parse_submission(printed) is None


def test_warnings_and_odd_names_between_the_rows() -> None:
    r"""A name with a line break is taken (`sbatch -J $'x\ny'`), and squeue prints it as it is."""
    odd = squeue_row(
        "71",
        "x\ny|z JobState=FAILED",
        "PENDING",
        "None",
        "0:00",
        "1:00",
        "1",
        "gpu",
        "N/A",
        "c JobState=COMPLETED\nd",
    )
    plain = squeue_row(
        "8", "e\u2028f\x85g\x0ch", "RUNNING", "None", "INVALID", "1:00", "1", "gpu", "N/A", "(null)"
    )
    found = records.parse_squeue(
        "squeue: error: something\n" + odd + "slurm_load_jobs warning\n" + plain
    )
    assert [(job.job_id, job.state) for job in found] == [("71", "PENDING"), ("8", "RUNNING")]
    assert found[0].name == "x\ny|z JobState=FAILED"
    assert found[1].name == "e\u2028f\x85g\x0ch"


names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=records.SEPARATOR + "\0"),
    max_size=20,
)


@given(st.lists(st.tuples(names, names), max_size=5))
def test_no_name_hides_another_job(jobs: list[tuple[str, str]]) -> None:
    text = "".join(
        squeue_row(
            str(number), name, "RUNNING", "None", "0:07", "30:00", "2", "gpu", "N/A", comment
        )
        for number, (name, comment) in enumerate(jobs)
    )
    found = records.parse_squeue(text)
    assert [job.job_id for job in found] == [str(number) for number in range(len(jobs))]
    assert [job.name for job in found] == [name.strip() for name, _ in jobs]
    assert {job.state for job in found} <= {"RUNNING"}


@pytest.mark.parametrize(
    ("word", "state", "final"),
    [
        ("CANCELLED by 0", "CANCELLED", True),
        ("NODE_FAIL", "NODE_FAIL", True),
        ("REQUEUED", "REQUEUED", False),
        ("", states.UNKNOWN, False),
        ("A_STATE_OF_2030", "A_STATE_OF_2030", False),
    ],
)
def test_sacct_states(word: str, state: str, final: bool) -> None:
    (job,) = records.parse_sacct(sacct_row("5", word), OLD)
    assert (job.state, job.is_final) == (state, final)


def test_sacct_folds_the_steps_into_the_job() -> None:
    text = (
        sacct_row("63", "FAILED", "1:0")
        + sacct_row("63.batch", "FAILED", "1:0")
        + sacct_row("63.0", "OUT_OF_MEMORY", "0:125")
    )
    text += sacct_row("64_3", "CANCELLED by 1000", "0:15") + sacct_row("64_3.extern", "COMPLETED")
    text += sacct_row("65", "COMPLETED") + sacct_row("65.0", "OUT_OF_MEMORY", "0:125")
    killed, cancelled, healthy = records.parse_sacct(text, OLD)
    assert (
        killed.job_id,
        killed.state,
        killed.exit_code,
        killed.elapsed_s,
        killed.time_limit_s,
    ) == ("63", "OUT_OF_MEMORY", 1, 3, 120)
    assert (cancelled.job_id, cancelled.state, cancelled.exit_code, cancelled.signal) == (
        "64_3",
        "CANCELLED",
        0,
        15,
    )
    assert healthy.state == "COMPLETED"  # a step that the script itself got over


@pytest.mark.parametrize(
    ("array", "job_id"),
    [("ArrayJobId=70 ArrayTaskId=4 ", "70_4"), ("ArrayJobId=71 ArrayTaskId=1-5%2 ", "71_[1-5%2]")],
)
def test_scontrol_arrays(array: str, job_id: str) -> None:
    (fields,) = records.parse_scontrol_jobs(scontrol_row(array=array))
    assert records.from_scontrol(fields).job_id == job_id


def test_scontrol_is_not_fooled_by_a_name_or_a_comment() -> None:
    text = scontrol_row(
        "x\ny JobState=FAILED StdOut=/etc/passwd",
        "c JobState=COMPLETED StdOut=/etc/shadow\nd ExitCode=9:9",
        state="RUNNING",
        id="1",
    )
    text += "slurm_load_jobs error: Invalid job id specified\n" + scontrol_row(
        state="TIMEOUT", id="2"
    )
    first, second = records.parse_scontrol_jobs(text)
    job = records.from_scontrol(first)
    assert (job.state, job.name, job.exit_code) == (
        "RUNNING",
        "x\ny JobState=FAILED StdOut=/etc/passwd",
        0,
    )
    assert records.from_scontrol(second).state == "TIMEOUT"


@given(st.text())
def test_no_output_of_slurm_is_a_crash(text: str) -> None:
    text = text.replace("|", records.SEPARATOR)
    for parse in (records.parse_squeue, records.parse_scontrol_jobs):
        assert isinstance(parse(text), list)
    assert isinstance(records.parse_sacct(text, OLD), list)


@pytest.mark.parametrize("comment", ["None assigned", "N/A", "None", "Unknown"])
def test_a_comment_may_be_a_word_that_means_nothing_elsewhere(comment: str) -> None:
    (job,) = records.parse_sacct(sacct_row("5", "RUNNING", Comment=comment), OLD)
    assert job.comment == comment
