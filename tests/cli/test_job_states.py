"""A job's state as a user reads it, the same in `ps`, `watch`, `cancel`, `runs`, `logs` and
`report`; raw states stay in --json.
"""

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli import follow
from hpctrain.errors import SchedulerError
from hpctrain.runs import launch
from hpctrain.slurm import ledger, query_cache
from hpctrain.slurm.client import SlurmScheduler
from hpctrain.slurm.ledger import Submission
from hpctrain.slurm.notations.records import JobRecord
from tests.cli.conftest import Desk
from tests.cli.fake_slurm import put, queued, show
from tests.runs import make
from tests.scheduler.sacct_rows import row

AT = make.AT


@pytest.fixture
def cluster(desk: Desk) -> Desk:
    return put(desk)


def jobs(desk: Desk, *words: str) -> dict[str, dict[str, Any]]:
    return {job["job_id"]: job for job in json.loads(desk.run("ps", "--json", *words).out)["jobs"]}


def chain(desk: Desk, *, second: str = "RUNNING") -> Path:
    """Two jobs of a chain: 24 saved at its limit at step 40, 25 goes on."""
    run = make.run(desk.directory / "runs", "r")
    make.metrics(
        make.attempt(run, "24", outcome="requeued", status=85, reason="deadline"),
        {"event": "begin", "step": 0},
        {"step": 40, "loss": 2.0},
        {"event": "save", "step": 40},
    )
    if second != "PENDING":
        make.metrics(
            make.attempt(run, "25", at=AT + 100),
            {"event": "begin", "step": 40},
            {"step": 70, "loss": 1.0},
        )
    submitted(desk, "r", "24", "25")
    show(
        desk,
        queued("24", "FAILED"),
        queued("25", second, "Dependency" if second == "PENDING" else "None"),
    )
    return run


# a link that saved


def test_a_link_that_saved_did_not_fail(cluster: Desk) -> None:
    chain(cluster)
    found = jobs(cluster)
    assert found["24"]["state"] == "FAILED", "Slurm's own word stays"
    assert re.search(r"time limit.*saved.*\b25\b", found["24"]["summary"])
    row = next(line for line in cluster.run("ps").out.splitlines() if line.startswith("24 "))
    assert "FAILED" not in row
    assert " stopped " in row
    assert found["24"]["summary"] in row
    assert (found["24"]["step"], found["24"]["loss"]) == (40, 2.0), "what each did itself"
    assert (found["25"]["step"], found["25"]["loss"]) == (70, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("ps", "24"),
        ("runs", "show", "r"),
        ("logs", "24"),
        ("cancel", "24"),
        ("report", "r", "--to", "-"),
    ],
)
def test_every_command_says_the_same_of_it(cluster: Desk, words: tuple[str, ...]) -> None:
    chain(cluster)
    summary = jobs(cluster)["24"]["summary"]
    cluster.write("logs/output_sft_24.log", "hpctrain: attempt 24.0 of the run r begins on n1\n")
    cluster.program(
        "scontrol",
        'echo "JobId=24 JobName=sft UserId=a(1) GroupId=a(1) JobState=FAILED ExitCode=85:0'
        f" StdOut={cluster.directory}/logs/output_sft_24.log"
        f' StdErr={cluster.directory}/logs/output_sft_24.log"',
    )
    said = cluster.run(*words)
    told = re.sub(r"\s+", " ", said.out + said.err)
    assert summary in told, told
    assert "FAILED" not in told
    assert "exit code 85" not in told


def test_a_deliberate_stop_did_not_fail(cluster: Desk) -> None:
    make.attempt(
        make.run(cluster.directory / "runs", "r"),
        "24",
        outcome="stopped",
        status=86,
        reason="stop-file",
    )
    show(cluster, queued("24", "FAILED"))
    summary = jobs(cluster)["24"]["summary"]
    assert "request" in summary
    assert "86" not in summary
    assert "FAILED" not in cluster.run("ps").out
    row = json.loads(cluster.run("runs", "list", "--json").out)["runs"][0]
    assert (row["state"], row["reason"], row["summary"]) == ("stopped", "stop-file", summary)
    assert summary in cluster.run("runs", "list").out


def test_exit_code_85_of_a_job_that_hpctrain_does_not_know_is_a_failure(cluster: Desk) -> None:
    show(cluster, queued("24", "FAILED"))
    cluster.program(
        "scontrol",
        'echo "JobId=24 JobName=sft UserId=a(1) GroupId=a(1) JobState=FAILED ExitCode=85:0"',
    )
    assert "exit code 85" in jobs(cluster)["24"]["summary"]
    assert "FAILED" in cluster.run("ps").out


@pytest.mark.parametrize(
    "state", ["TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "DEADLINE", "BOOT_FAIL"]
)
def test_how_slurm_ended_a_job_is_said(cluster: Desk, state: str) -> None:
    show(cluster, queued("24", state))
    job = jobs(cluster)["24"]
    assert job["state"] == state
    assert job["summary"]
    row = next(line for line in cluster.run("ps").out.splitlines() if line.startswith("24 "))
    assert job["why"]
    assert row.endswith(f"  {job['why']}"), row


def test_a_time_limit_at_which_it_saved(cluster: Desk) -> None:
    make.attempt(
        make.run(cluster.directory / "runs", "r"),
        "24",
        outcome="interrupted",
        status=85,
        reason="signal",
    )
    show(cluster, queued("24", "TIMEOUT"))
    assert re.search(r"time limit.*saved", jobs(cluster)["24"]["summary"])


# what a job did itself


def test_a_task_that_never_ran_has_no_steps(cluster: Desk) -> None:
    """The sweep was cancelled and submitted again: the points are the same, and the tasks are
    others.
    """
    for index in range(2):
        run = make.run(cluster.directory / "runs", f"s_{index}", tag="s", index=index)
        make.metrics(
            make.attempt(run, f"20_{index}", slurm_job_id=str(20 + index)),
            {"event": "begin", "step": 0},
            {"step": 5, "loss": 1.0},
        )
    submitted(cluster, "s", "15", "20", array="0-1")
    show(
        cluster,
        queued("15_0", "CANCELLED", elapsed="0:00"),
        queued("15_1", "CANCELLED", elapsed="0:00"),
        queued("20_0", "RUNNING"),
        queued("20_1", "RUNNING"),
    )
    found = jobs(cluster)
    assert [found[job]["run"] for job in ("15_0", "15_1", "20_0", "20_1")] == [
        "s_0",
        "s_1",
        "s_0",
        "s_1",
    ]
    assert [found[job]["step"] for job in ("15_0", "15_1", "20_0", "20_1")] == [None, None, 5, 5]


def test_a_job_that_waits_to_start_again_has_no_eta(cluster: Desk) -> None:
    attempt = make.attempt(
        make.run(cluster.directory / "runs", "r"),
        "24",
        outcome="requeued",
        status=85,
        reason="signal",
    )
    speed = {
        "event": "speed",
        "step": 40,
        "max_steps": 100,
        "eta_s": 600.0,
        "step_s": 10.0,
        "useful_tokens_per_s": 1500.0,
    }
    make.metrics(attempt, {"event": "begin", "step": 0}, {"step": 40, "loss": 2.0}, speed)
    show(cluster, queued("24", "PENDING", "BeginTime"))
    job = jobs(cluster)["24"]
    assert (job["step"], job["loss"]) == (40, 2.0), "what it did is done"
    assert (job["eta_s"], job["tokens_per_s"]) == (None, None), "what it did per second is over"
    show(cluster, queued("24", "RUNNING"))
    query_cache.invalidate()
    assert jobs(cluster)["24"]["eta_s"] == 600.0


# a cancellation that Slurm did not answer

TIMED_OUT = "scancel: error: Kill job error on job id 24: Socket timed out on send/recv operation"


@pytest.fixture
def hangs(cluster: Desk) -> Desk:
    """A slurmctld that stops answering when it gets scancel: `heard` is what the queue shows from
    then on.
    """
    cluster.patch.setattr("hpctrain.slurm.client._PAUSES_S", (0.0, 0.0))
    show(cluster, queued("24", "RUNNING"))
    at = cluster.directory.parent
    cluster.program(
        "scancel",
        f'echo "$*" >> {at}/sent; cp {at}/heard {at}/queue; echo "{TIMED_OUT}" >&2; exit 1',
    )
    return cluster


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING"])
def test_a_cancellation_that_was_heard_is_one(hangs: Desk, state: str) -> None:
    hangs.write("../heard", queued("24", state) + "\n")
    said = hangs.run("cancel", "24")
    assert (said.code, "cancelled job 24" in said.out) == (0, True), said.err
    assert "error" not in said.err
    assert (hangs.directory.parent / "sent").read_text() == "24\n"


def test_one_that_was_not_heard_is_called_unknown(hangs: Desk) -> None:
    hangs.write("../heard", queued("24", "RUNNING") + "\n")
    said = hangs.run("cancel", "24")
    assert (said.code, said.out) == (3, ""), said.err
    assert "Socket timed out" in said.err
    assert said.lines[-1] == "fix: hpctrain cancel 24"
    assert (hangs.directory.parent / "sent").read_text() == "24\n"


def test_one_that_slurm_refuses_is_not_sent_again(hangs: Desk) -> None:
    at = hangs.directory.parent
    hangs.program(
        "scancel",
        f'echo "$*" >> {at}/sent; echo "scancel: error: Access/permission denied" >&2; exit 1',
    )
    said = hangs.run("cancel", "24")
    assert (said.code, "permission denied" in said.err) == (1, True), said.err
    assert (at / "sent").read_text() == "24\n"


def test_a_job_of_another_user_is_not_called_cancelled(hangs: Desk) -> None:
    hangs.program(
        "scancel",
        'echo "scancel: error: Kill job error on job id 31: Access/permission denied" >&2; exit 1',
    )
    hangs.program(
        "scontrol",
        'echo "JobId=31 JobName=theirs UserId=bob(1001) GroupId=bob(1001) JobState=RUNNING'
        ' Reason=None"',
    )
    said = hangs.run("cancel", "31")
    assert (said.code, said.out, "permission denied" in said.err) == (1, "", True), said.err


# what `watch` shows


def watched(desk: Desk) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in desk.run("watch", "r", "--once", "--json").out.splitlines()
    ]


def test_before_the_first_step_is_logged_no_step_is_claimed(cluster: Desk) -> None:
    run = make.run(cluster.directory / "runs", "r")
    make.metrics(make.attempt(run, "24"), {"event": "begin", "step": 0})
    show(cluster, queued("24", "RUNNING"))
    assert not re.search(r"\bstep 0\b", cluster.run("watch", "r", "--once").out)
    assert not any(re.search(r"\bstep 0\b", row["text"]) for row in watched(cluster))
    sample = {
        "time_ms": int(AT * 1000) + 5000,
        "step": 7,
        "event": "step",
        "host": "n1",
        "rank": 0,
        "world_size": 1,
        "local_rank": 0,
    }
    (run / "memory").mkdir()
    (run / "memory" / "rank-0.jsonl").write_text(json.dumps(sample) + "\n")
    assert [row["step"] for row in watched(cluster) if row["change"] == "step"] == [7]
    assert jobs(cluster)["24"]["step"] == 7


def test_what_saved_and_stopped_is_not_explained(cluster: Desk) -> None:
    make.attempt(
        make.run(cluster.directory / "runs", "r"),
        "24",
        outcome="stopped",
        status=86,
        reason="stop-file",
    )
    show(cluster, queued("24", "FAILED"))
    assert watched(cluster)[-1]["next"] == ["hpctrain report r", "hpctrain resubmit r"]
    assert "stopped on request" in cluster.run("watch", "r", "--once").out


# figures


def submitted(desk: Desk, tag: str, *numbers: str, array: str | None = None) -> None:
    """Record submissions as `hpctrain submit` does."""
    launch = desk.directory / "runs" / ".launches" / tag
    (launch / "submissions").mkdir(parents=True)
    kind = {"kind": "sweep", "points": 2, "table": "t"} if array else {"kind": "run", "runs": [tag]}
    make.write(launch / "launch.json", {"schema": 1, "tag": tag, "name": "sft", **kind})
    for number in numbers:
        sent = Submission(token=number * 4, at=time.time(), arguments=(tag,), array=array)
        ledger.found(ledger.record(sent, launch / "submissions"), number)


# -- The seconds in which slurmctld and slurmdbd do not say the same of a job


def accounted(
    state: str,
    exit_code: str = "0:0",
    *,
    name: str = "sft",
    limit: str = "01:00:00",
    nodes: str = "2",
    job: str = "27",
) -> str:
    more = {"JobName": name, "Timelimit": limit, "NNodes": nodes, "ElapsedRaw": "42"}
    more["End"] = str(int(time.time()))
    return row(job, state, exit_code, Partition="gpu", **more)


def test_a_job_that_slurmctld_has_forgotten_is_known_to_slurmdbd_or_to_nobody(
    cluster: Desk,
) -> None:
    cluster.program("sacct", f"echo '{accounted('COMPLETED')}'")
    assert " COMPLETED " in cluster.run("ps", "27").out
    cluster.program("sacct", "true")
    assert cluster.refused("ps", "28").lines[0] == "error: there is no job '28'"
    cluster.program(
        "sacct",
        "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1",
    )
    for words in (("ps", "29"), ("cancel", "29"), ("logs", "29")):
        unknown = cluster.refused(*words, code=3)
        assert unknown.lines[:2] == [
            "error: whether there is a job '29' is not known",
            "  sacct said: Problem talking to the database: Connection refused",
        ]
    cluster.program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert cluster.refused("ps", "30").lines[0] == "error: there is no job '30'", (
        "a site without accounting has no trouble with it"
    )


@pytest.mark.slow
def test_a_silent_slurmctld_is_waited_for_once_in_a_command(cluster: Desk) -> None:
    cluster.program("sacct", f"echo '{accounted('RUNNING')}'")
    cluster.set(HPCTRAIN_SLURM_TIMEOUT="3")
    cluster.program("squeue", f"echo asked >> {cluster.directory}/asked; sleep 20")
    cluster.program("scontrol", f"echo asked >> {cluster.directory}/asked; sleep 20")
    cluster.program("sacct", "echo 'sacct: error: no' >&2; exit 1")
    cluster.write("logs/output_sft_27.log", "step 1\n")
    said = cluster.run("explain", "27")
    assert (said.code, said.out) == (0, "no failure found\n")
    assert said.lines[-2:] == [
        "note: whether job 27 still runs, or how it ended, is not known",
        "note: squeue did not answer within 3 s; hpctrain ps 27 asks again",
    ]
    assert (cluster.directory / "asked").read_text() == "asked\n"
    put(cluster)
    show(cluster, queued("27", "RUNNING"))
    assert cluster.run("ps").code == 0, "the next command asks again"


# -- What each verb says while Slurm's controller does not answer: what the files here know,


TIMED_OUT_ERROR = "slurm_load_jobs error: Socket timed out on send/recv operation"
WORDS = "squeue said: Socket timed out on send/recv operation"
SILENT = f"error: Slurm does not answer: {WORDS}"
FIX = ["fix: sinfo", "hint: when that answers, run: hpctrain ps"]


@pytest.fixture
def submitted_project(desk: Desk) -> Desk:
    """Return a desk with a job 123 of the run r, which writes, and a Slurm that has stopped
    answering since.
    """
    desk.program("sbatch", "echo 123")
    desk.program("squeue sacct scancel", "true")
    desk.program("scontrol", "exit 1")
    assert desk.run("submit", "--no-check", "--no-snapshot", "--run-id", "r").code == 0
    assert launch.load(desk.directory / "runs", "r") is not None
    desk.write("logs/output_sft_123.log", "step 1\nstep 2\n")
    desk.program("squeue scancel scontrol", f"echo '{TIMED_OUT_ERROR}' >&2; exit 1")
    desk.program("sacct", "echo 'sacct: error: no' >&2; exit 1")
    return desk


@pytest.mark.parametrize("words", [("123",), ("r",)])
def test_the_log_of_a_job_is_on_this_disk(submitted_project: Desk, words: tuple[str, ...]) -> None:
    said = submitted_project.run("logs", *words)
    assert (said.code, said.out) == (0, "step 1\nstep 2\n"), said.err
    assert said.lines[0].startswith("Slurm does not answer")


def test_ps_says_where_to_look_meanwhile(submitted_project: Desk) -> None:
    said = submitted_project.run("ps")
    note = "note: what the files of the runs here show: hpctrain runs list"
    assert (said.code, said.out, said.lines) == (3, "", [note, SILENT, *FIX])
    assert "unknown" in submitted_project.run("runs", "list").out


def test_nothing_is_cancelled_and_no_running_job_is_to_be(submitted_project: Desk) -> None:
    assert submitted_project.refused("cancel", "r", code=3).lines == [
        SILENT,
        "nothing was cancelled",
        *FIX,
    ]
    again = submitted_project.refused(
        "submit", "--no-check", "--no-snapshot", "--run-id", "r", code=3
    )
    assert again.lines[-5:] == [
        "error: whether job 123 of the run r still runs is not known",
        f"  {WORDS}",
        "two jobs of one run would write to the same checkpoints",
        "fix: sinfo",
        "hint: when that answers, run the same command again; or use another --run-id",
    ]


def test_sbatch_that_hangs_is_looked_for_a_minute_and_no_longer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A squeue that hangs too would cost its own minute each time."""
    desk.program(
        "sbatch",
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation'"
        " >&2; exit 1",
    )
    desk.program(
        "squeue", f"echo asked >> {desk.directory}/asked; echo '{TIMED_OUT_ERROR}' >&2; exit 1"
    )
    desk.program("sacct", "exit 1")
    for minute, looks in ((3600.0, 3), (0.0, 1)):
        desk.write("job.sbatch", f"#!/bin/bash\n#SBATCH --output=x.log\necho {looks}\n")
        monkeypatch.setattr("hpctrain.slurm.client._LOOKS_S", minute)
        (desk.directory / "asked").unlink(missing_ok=True)
        with pytest.raises(SchedulerError, match="whether the job exists is unknown"):
            SlurmScheduler(sleep=lambda _: None).submit(Path("job.sbatch"), arguments=[str(looks)])
        assert (desk.directory / "asked").read_text().count("asked") == looks


class Held:
    """A scheduler that answers when it is let go."""

    name = "slurm"

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def status(
        self, job_ids: list[str] | None = None, *, max_age_s: float = 0.0
    ) -> list[JobRecord]:
        assert (job_ids, max_age_s) == (["123"], 15.0)
        self.let_go.wait(30)
        return [JobRecord(job_id="123", scheduler="slurm", state="COMPLETED", exit_code=0)]


def test_a_log_is_shown_while_slurm_is_being_asked() -> None:
    held, seen = Held(), [0]

    class Tail:
        def copy(self) -> str:
            seen[0] += 1
            if seen[0] == 3:
                held.let_go.set()
            return ""

    record = follow.until_the_end(held, "123", [Tail().copy], print)  # type: ignore[arg-type]
    assert record is not None
    assert seen[0] >= 4


# -- A Slurm that refuses, is silent, talks too much or is not there at all; real executables


@pytest.fixture
def rendered(desk: Desk) -> Desk:
    """A desk with a script, and a Slurm that has no jobs."""
    assert desk.run("render").code == 0
    desk.program("squeue sacct scancel", "true")
    desk.program("scontrol", "exit 1")
    return desk


def test_a_dry_run_says_each_sbatch_and_what_it_waits_for(desk: Desk) -> None:
    desk.program("sbatch", "exit 1")
    sbatch = "sbatch --parsable --comment=hpctrain:TOKEN"
    stages = "stages: [{name: a}, {name: b}]\n"
    for config, words, expected in (
        (
            "",
            ("--restart", "chain", "--max-restarts", "3"),
            [
                f"would run: {sbatch} sft.sbatch RUN",
                f"would run: {sbatch} --dependency=afterany:JOB_BEFORE sft.sbatch RUN  # 3 x",
            ],
        ),
        (
            stages,
            (),
            [
                f"would run: {sbatch} sft-a.sbatch RUN",
                f"would run: {sbatch} --dependency=afterok:JOB_OF_a sft-b.sbatch RUN",
            ],
        ),
    ):
        desk.write("config.yaml", config)
        said = desk.run("submit", "--dry-run", *words).out.splitlines()
        assert [line for line in said if not line.startswith("would write ")] == expected


REFUSALS = [
    (
        "Invalid account or account/partition combination specified",
        "sacctmgr -nP show associations",
    ),
    ("invalid partition specified: gpux", "sinfo -o '%P %l"),
    ("Invalid qos specification", "sacctmgr -nP show associations"),
    ("Requested time limit is invalid (missing or exceeds some limit)", "sinfo -o '%P %l"),
    ("Requested node configuration is not available", "sinfo -o '%P %D %c %m %f %G'"),
    ("Invalid --begin specification", "Slurm gives no other reason"),
    ("Something that nobody has seen before", "Slurm gives no other reason"),
]


@pytest.mark.parametrize(("words", "fix"), REFUSALS, ids=[words[:12] for words, _ in REFUSALS])
def test_a_refusal_is_shown_in_slurms_words(rendered: Desk, words: str, fix: str) -> None:
    rendered.program(
        "sbatch", f"echo 'sbatch: error: Batch job submission failed: {words}' >&2; exit 1"
    )
    said = rendered.refused("submit", "--no-check", "--run-id", "r", code=1)
    assert said.lines[0] == "error: Slurm refused the job"
    assert said.lines[1].startswith("  ran: sbatch --parsable --comment=hpctrain:")
    assert said.lines[2] == f"  sbatch said: Batch job submission failed: {words}"
    assert fix in said.lines[-2]
    assert ledger.submissions() == []


@pytest.mark.parametrize(
    ("typed", "again"),
    [
        ((), "sft.sbatch"),
        (("--ignore", "torch-build"), "--ignore torch-build sft.sbatch"),
        (("sft.sbatch",), "sft.sbatch"),
        (("--nodes", "2", "--", "--seed", "1"), "--nodes 2 -- --seed 1"),
    ],
)
def test_a_refused_command_is_repeated_with_its_options(
    rendered: Desk, typed: tuple[str, ...], again: str
) -> None:
    rendered.program("sbatch", "echo 'sbatch: error: our own policy' >&2; exit 1")
    said = rendered.run("submit", "--no-check", "--run-id", "r", *typed)
    assert said.code == 1
    assert said.err.rstrip().endswith(f"then run: hpctrain submit --run-id r --no-check {again}")


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("123", "123"),
        ("123;cluster", "123;cluster"),
        ("Welcome to HPC!\nYou have 5 hours left\n77;c-1", "77;c-1"),
    ],
)
def test_the_job_id_is_found(rendered: Desk, printed: str, shown: str) -> None:
    rendered.program("sbatch", f"cat <<'END'\n{printed}\nEND")
    said = rendered.run("submit", "--no-check", "--parsable")
    assert (said.code, said.out) == (0, f"{shown}\n")


def test_no_job_id_at_all(rendered: Desk) -> None:
    rendered.patch.setattr("hpctrain.slurm.client._PAUSES_S", (0.0, 0.0))
    rendered.program("sbatch", "echo welcome")
    said = rendered.run("submit", "--no-check")
    assert (said.code, "welcome" in said.err) == (3, True)
    [tag] = launch.tags(rendered.directory / "runs")
    [asked] = launch.load(rendered.directory / "runs", tag).submissions  # type: ignore[union-attr]
    assert (asked.job_id, asked.argv[-1]) == (None, tag), "what may have arrived is remembered"


DOS = "#!/bin/bash\r\n#SBATCH --nodes=1\r\ntrue\r\n"


@pytest.mark.parametrize(
    "script",
    ["echo\n", "", '#!/bin/bash\n#SBATCH --comment="open\n', "#!/bin/bash\n#SBATCH word\n", DOS],
)
@pytest.mark.parametrize("where", [[], ["--local"]], ids=["slurm", "local"])
def test_a_script_that_is_no_batch_script(rendered: Desk, script: str, where: list[str]) -> None:
    rendered.program("sbatch", "echo 'sbatch was called' >&2; exit 9")
    rendered.write("x.sh", script)
    assert "x.sh is not a batch script" in rendered.refused("submit", *where, "x.sh").err
