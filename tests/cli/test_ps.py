"""`hpctrain ps`: one table of all jobs, with the progress of their runs, and why those that wait do."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import tempfile
import termios
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.cli import ps_rows, ps_table
from hpctrain.memory.sample import Sample
from hpctrain.runs.progress import Progress
from hpctrain.scheduler import ledger
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import SEPARATOR, JobRecord
from hpctrain.scheduler.pending import Place
from tests.runs import make

if TYPE_CHECKING:
    from conftest import Desk

SOON = time.mktime(time.strptime("2026-11-22T14:20:00", "%Y-%m-%dT%H:%M:%S"))


def queued(job_id: str, state: str = "PENDING", reason: str = "Priority", **more: str) -> str:
    fields = {"id": job_id, "name": "sft", "state": state, "reason": reason, "elapsed": "0:00", "limit": "4:00:00", "nodes": "2",
              "partition": "gpu", "start": "N/A", "comment": "(null)"}  # fmt: skip
    return SEPARATOR.join((fields | more).values())


def place(job_id: str, priority: int, user: str, start: str = "N/A") -> str:
    return SEPARATOR.join((job_id, user, str(priority), "gpu", "Priority", start))


@pytest.fixture
def cluster(desk: Desk) -> Desk:
    """A Slurm of programs: `queue` holds my jobs, `places` those that wait; each call is a line of `calls`."""
    for name in ("sacct", "scancel", "sbatch"):
        desk.program(name, f"echo {name} $* >> {desk.directory}/../calls")
    desk.program("scontrol", "exit 1")
    desk.set(LOGNAME="ada")
    body = f'echo squeue "$@" >> {desk.directory}/../calls\ncase " $* " in *" -P "*) cat ../places;; *) cat ../queue;; esac'
    desk.program("squeue", body)
    show(desk, [])
    return desk


def show(desk: Desk, queue: list[str], places: tuple[str, ...] = ()) -> None:
    desk.write("../queue", "".join(f"{row}\n" for row in queue))
    desk.write("../places", "".join(f"{row}\n" for row in places))


def calls(desk: Desk, program: str) -> list[str]:
    path = desk.directory.parent / "calls"
    return [line for line in path.read_text().splitlines() if line.startswith(f"{program} ")] if path.exists() else []


# the table


def test_jobs_of_both_schedulers_with_the_words_of_their_reasons(cluster: Desk) -> None:
    show(
        cluster,
        [
            queued("41", "RUNNING", "None", elapsed="1:02:03"),
            queued("42"),
            queued("43", reason="JobHeldUser"),
            queued("44", reason="NewReason"),
        ],
        (place("7", 900, "eve"), place("8_[0-9]", 800, "bob"), place("9", 700, "eve"), place("42", 600, "ada", str(int(SOON)))),
    )
    cluster.write("local.sbatch", "#!/bin/bash\n#SBATCH --job-name=here\n#SBATCH --output=out.log\nexit 3\n")
    assert cluster.run("submit", "--local", "--no-check", "--wait", "local.sbatch").code == 3
    said = cluster.run("ps")
    assert said.code == 0, said.err
    lines = {line.split()[0]: line for line in said.out.splitlines()}
    assert lines["JOB"].split() == [
        "JOB", "NAME", "STATE", "ON", "NODES", "ELAPSED", "LIMIT", "RUN", "STEP", "LOSS", "TOK/S", "ETA", "MEMORY", "WHY",
    ]  # fmt: skip
    assert lines["41"].split() == ["41", "sft", "RUNNING", "slurm", "2", "01:02:03", "04:00:00", *["-"] * 6]
    assert lines["42"].endswith(f"waiting: 3 jobs ahead by priority; Slurm expects {ps_rows.when(SOON, time.time())}")
    assert lines["43"].endswith("waiting: held by you")
    assert lines["44"].endswith("waiting: NewReason"), "a reason that nobody has seen is shown as it is"
    [local] = [line for line in lines.values() if " local " in line]
    assert local.endswith("exit code 3")
    assert (len(calls(cluster, "squeue")), len(calls(cluster, "sacct"))) == (2, 1), "mine, and one for all that wait"


def test_the_progress_of_the_run_of_a_job(cluster: Desk) -> None:
    where = make.run(cluster.directory / "runs", "sft-7f3a")
    attempt = make.attempt(where, "41")
    make.metrics(attempt, {"event": "begin", "step": 0}, {"step": 120, "loss": 1.234})
    show(cluster, [queued("41", "RUNNING", "None")])
    [job] = json.loads(cluster.run("ps", "--json").out)["jobs"]
    assert (job["job_id"], job["run"], job["run_dir"], job["step"], job["loss"]) == ("41", "sft-7f3a", str(where), 120, 1.234)
    assert "sft-7f3a  120 " in cluster.run("ps").out


def test_the_run_of_a_job_that_has_not_started_is_that_of_its_launch(cluster: Desk) -> None:
    cluster.write("train.py", "print(1)\n")
    cluster.write("config.yaml", "script: train.py\nlauncher: srun\n")
    cluster.program("sbatch", "echo 42")
    assert cluster.run("submit", "--no-check").code == 0
    [entry] = ledger.entries()
    show(cluster, [queued("42")])
    cluster.go("elsewhere")
    cluster.program("squeue", f"cat {cluster.directory}/../../queue")
    [job] = json.loads(cluster.run("ps", "--json").out)["jobs"]
    assert job["run"] == entry.arguments[0]
    assert job["run_dir"] == f"{entry.directory}/runs/{entry.arguments[0]}"


def test_old_keys_of_json_stay(cluster: Desk) -> None:
    show(cluster, [queued("42")])
    [job] = json.loads(cluster.run("ps", "--json").out)["jobs"]
    assert set(JobRecord.__slots__) <= set(job)
    assert (job["reason"], job["ahead"], job["expected"], job["memory"], job["why"]) == (
        "Priority", None, None, None, "waiting: jobs with a higher priority are ahead",
    )  # fmt: skip


def test_slurm_is_silent_and_local_jobs_are_shown(cluster: Desk) -> None:
    cluster.write("local.sbatch", "#!/bin/bash\n#SBATCH --job-name=here\n#SBATCH --output=out.log\ntrue\n")
    assert cluster.run("submit", "--local", "--no-check", "--wait", "local.sbatch").code == 0
    cluster.program("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    for words in ((), ("--json",)):
        said = cluster.run("ps", *words)
        assert said.code == 3
        assert "here" in said.out
        assert said.lines[0].startswith("error: Slurm does not answer: squeue said: ")
        assert said.lines[-1].startswith("fix: ")


def test_a_slurm_that_hangs_is_said_in_words(cluster: Desk) -> None:
    cluster.set(HPCTRAIN_SLURM_TIMEOUT="1")
    cluster.program("squeue", "sleep 20")
    said = cluster.run("ps")
    assert said.code == 3
    assert said.lines == [
        "error: Slurm does not answer: squeue did not answer within 1 s",
        "fix: sinfo, and when that answers: hpctrain ps",
    ]


def test_an_accounting_that_hangs_is_said_and_hides_nothing(cluster: Desk) -> None:
    cluster.set(HPCTRAIN_SLURM_TIMEOUT="1")
    cluster.program("sacct", "sleep 20")
    show(cluster, [queued("42")])
    said = cluster.run("ps")
    assert said.code == 0
    assert "42 " in said.out
    assert "note: sacct does not answer; of jobs that have ended, only what slurmctld remembers is shown" in said.err


def test_a_job_that_there_is_not(cluster: Desk) -> None:
    assert cluster.refused("ps", "nope").lines[0] == "error: there is no job 'nope'"


def test_no_jobs(cluster: Desk) -> None:
    said = cluster.run("ps")
    assert (said.code, said.out, said.err) == (0, "", "no jobs; next: hpctrain submit\n")


def test_tasks_that_came_to_the_same_end_share_a_line(cluster: Desk) -> None:
    rows = [queued(f"50_{task}", "COMPLETED", "None") for task in range(30)] + [queued("50_[30-99%4]", reason="JobArrayTaskLimit")]
    show(cluster, [*rows, *(queued(f"{number}", "COMPLETED", "None") for number in range(60, 72))])
    cluster.program("scontrol", 'echo "JobId=${@: -1} JobName=sft UserId=a(1) GroupId=a(1) JobState=COMPLETED ExitCode=0:0"')
    said = cluster.run("ps")
    assert "50_[30-99%4]" in said.out
    assert len(said.out.splitlines()) == 1 + 10 + 1
    assert said.lines == ["and 32 more that ended: hpctrain ps --all"]
    assert len([line for line in cluster.run("ps", "--all").out.splitlines() if line.startswith("50_")]) == 31
    assert "50_[0-29]" in cluster.run("ps", "50").out


# one job that waits

SHOWN = (
    "JobId=42 JobName=sft UserId=ada(1000) GroupId=ada(1000) Account=proj QOS=normal JobState=PENDING Reason=Priority Requeue=1 Restarts=0 "
    "TimeLimit=04:00:00 Partition=gpu NumNodes=2-2 NumCPUs=2 TRES=cpu=2,gres/gpu=8 TresPerNode=gres:gpu:4"
)
SBATCH = """
case "$*" in
    *partition=debug*) echo "sbatch: Job 1 to start at $(date +%s) using 2 processors on nodes n1 in partition debug" >&2 ;;
    *nodes=1*) echo "sbatch: error: Batch job submission failed: Node count specification invalid" >&2; exit 1 ;;
    *) echo "sbatch: Job 1 to start at LATER using 2 processors on nodes n[1-2] in partition gpu" >&2 ;;
esac
"""


@pytest.fixture
def waits(cluster: Desk) -> Desk:
    later = int(time.time()) + 7200
    show(cluster, [queued("42")], (place("7", 900, "eve"), place("42", 600, "ada", str(later))))
    script = f"[ \"$1\" = write ] && {{ printf '#!/bin/bash\\ntrue\\n'; exit; }}\n[ \"$3\" = -o ] && echo '{SHOWN}'"
    cluster.program("scontrol", f'echo scontrol "$@" >> {cluster.directory}/../calls\n{script}; true')
    cluster.program("sbatch", f'echo sbatch "$@" >> {cluster.directory}/../calls\n{SBATCH.replace("LATER", str(later + 600))}')
    nodes = ("", "debug", "up", "30:00", "n/a", "1-2", "NO", "4", "0/4/0/4", "16", "8000", "1", "gpu:4", "")
    cluster.program("sinfo", f"echo '{SEPARATOR.join(nodes)}'")
    cluster.program("sacctmgr", "exit 1")
    return cluster


def test_why_a_job_waits_and_what_would_start_sooner(waits: Desk) -> None:
    said = waits.run("ps", "42")
    assert said.code == 0, said.err
    assert "waiting: 1 job ahead by priority; Slurm expects " in said.out
    lines = said.out.splitlines()
    assert all(len(line) <= 80 for line in lines[2:])
    asked = calls(waits, "sbatch")
    assert f"would start sooner ({len(asked)} questions with sbatch --test-only; nothing was" in said.out
    assert "  partition gpu -> debug, time -> 00:30:00: now, " in said.out
    assert "    scontrol update JobId=42 Partition=debug TimeLimit=00:30:00" in lines
    assert "Slurm would not take: nodes 2 -> 1: Batch job submission failed" in said.out
    assert "time 04:00:00 -> 02:00:00: " not in said.out, "not sooner than the job itself"
    assert all("--test-only" in call for call in asked)
    assert 2 < len(asked) <= 8
    waits.run("ps", "42")
    assert len(calls(waits, "sbatch")) == len(asked), "not again within 15 s"
    assert list(Path(tempfile.gettempdir()).glob("hpctrain-ps-*")) == []


def test_the_same_as_json(waits: Desk) -> None:
    [job] = json.loads(waits.run("ps", "42", "--json").out)["jobs"]
    told = job["pending"]
    assert (job["ahead"], told["kind"], told["planned"], told["fix"]) == (1, "queue", True, None)
    [best] = told["sooner"]
    assert best["options"] == ["--partition=debug", "--time=00:30:00"]
    assert 7000 < best["sooner_s"] <= 7200
    assert told["expected"] == job["expected"]
    assert {each["words"] for each in told["refused"]} >= {"nodes 2 -> 1"}


@pytest.mark.parametrize(
    ("reason", "fix"),
    [("JobHeldUser", "scontrol release 42"), ("DependencyNeverSatisfied", "hpctrain cancel 42"), ("BeginTime", None), ("Dependency", None)],
)
def test_what_no_question_can_help_is_not_asked(waits: Desk, reason: str, fix: str | None) -> None:
    show(waits, [queued("42", reason=reason)])
    said = waits.run("ps", "42")
    assert calls(waits, "sbatch") == []
    assert (f"to change that: {fix}" in said.out.splitlines()) == (fix is not None)


def test_without_a_plan_the_job_as_it_is_is_asked_about_too(waits: Desk) -> None:
    show(waits, [queued("42")], (place("7", 900, "eve"), place("42", 600, "ada")))
    said = waits.run("ps", "42")
    assert "as a job like it that is submitted" in said.out
    assert calls(waits, "sbatch")[0].count("--nodes=2 --time=04:00:00 --partition=gpu --qos=normal --account=proj --gres=gpu:4") == 1
    assert "now, 2h" in said.out


def test_a_job_whose_script_slurm_does_not_give(waits: Desk) -> None:
    waits.program("scontrol", f'[ "$3" = -o ] && echo \'{SHOWN}\'; [ "$1" != write ]')
    said = waits.run("ps", "42")
    assert (said.code, "what would start sooner is unknown: Slurm does not give the job's script" in said.out) == (0, True)


# the terminal


def row(**more: object) -> ps_rows.Row:
    record = JobRecord(job_id="123456", scheduler="slurm", state="RUNNING", name="sft", elapsed_s=3723, time_limit_s=14400, nodes=2)
    worst = Sample(time_ms=1, step=1, event="step", host="n1", rank=3, world_size=8, local_rank=3, gpu_used_mib=62464, gpu_total_mib=81920)
    progress = Progress(step=1200, max_steps=10000, loss=1.2345, tokens_per_s=12345.6, eta_s=7800.0, samples=(worst,))
    values = {"record": record, "job_id": "123456", "run": "sft-261121-031508-7f3a", "progress": progress, "why": ""} | more
    return ps_rows.Row(**values)  # type: ignore[arg-type]


def test_eighty_columns_hold_what_matters() -> None:
    head, line = ps_table._shown([row()], 80, colour=False)
    assert head.split() == ["JOB", "RUN", "STATE", "TIME", "STEP", "LOSS", "ETA", "MEMORY", "TOK/S"][: len(head.split())]
    assert {"STEP", "LOSS", "ETA", "MEMORY"} <= set(head.split())
    assert line.split()[2:7] == ["RUNNING", "1h02/4h00", "1200/10000", "1.234", "2h10"]
    assert "61/80G r3" in line
    assert max(map(len, (head, line))) <= 80


def test_wide_signs_take_two_columns() -> None:
    lines = ps_table._shown([row(run="日本語のとても長い名前のジョブ"), row()], 80, colour=False)
    assert len({ps_table.columns(line[: line.index("1h02")]) for line in lines[1:]}) == 1, "one below the other"
    assert max(map(ps_table.columns, lines)) <= 80


WORDS = {"61/80G", "r3", "123456", "RUNNING", "1h02/4h00", "1200/10000", "1.234", "2h10", "12k", "2", "slurm", "sft-261121-031508-7f3a"}


def test_a_narrow_terminal_has_fewer_columns_and_whole_numbers() -> None:
    for width in range(12, 200):
        lines = ps_table._shown([row(), row(record=replace(row().record, state="OUT_OF_MEMORY"))], width, colour=False)
        assert max(map(len, lines)) <= max(width, 20)
        for word in lines[1].split():
            assert word in WORDS or (word.startswith("sft") and "…" in word), "no number is cut"
        assert (lines[0].split()[0], len(lines)) == ("JOB", 3)


def test_why_stands_behind_the_row_or_below_it() -> None:
    record = JobRecord(job_id="7", scheduler="slurm", state="PENDING", name="sft", reason="Priority")
    said = "waiting: 3 jobs ahead by priority; Slurm expects tomorrow 14:20"
    waiting = row(record=record, job_id="7", run=None, progress=None, why=said)
    head, line = ps_table._shown([waiting], 120, colour=False)
    assert line.endswith(f"  {said}")
    assert "STEP" not in head, "a column that nobody fills is none"
    assert ps_table._shown([row(), waiting], 60, colour=False)[-2:] == [
        "  waiting: 3 jobs ahead by priority; Slurm expects tomorrow",
        "  14:20",
    ]


def test_a_terminal_and_no_colour(cluster: Desk, hpctrain: str) -> None:
    show(cluster, [queued("41", "RUNNING", "None"), queued("42")], (place("7", 9, "eve"), place("42", 1, "ada")))
    plain, coloured = (_typed(hpctrain, 80, environment) for environment in ({"NO_COLOR": "1"}, {}))
    assert "\x1b" not in plain
    assert "\x1b[36mRUNNING" in coloured
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert "waiting: 1 job ahead by priority" in plain
    assert "what would start sooner: hpctrain ps 42" in plain
    assert "\x1b" not in cluster.run("ps").out


def _typed(hpctrain: str, width: int, environment: dict[str, str]) -> str:
    """Return what `hpctrain ps` shows on a terminal of that width."""
    child, terminal = pty.fork()
    if child == 0:
        time.sleep(0.1)
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
        os.execve(hpctrain, [hpctrain, "ps"], {**kept, "TERM": "xterm", **environment})  # noqa: S606 - a terminal of its own
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    said = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        said += piece
        if not piece:
            break
    os.waitpid(child, 0)
    os.close(terminal)
    return said.decode().replace("\r", "")


@given(st.text(max_size=40), st.integers(1, 60))
def test_names_are_cut_in_the_middle(name: str, width: int) -> None:
    cut = ps_table.middle(name, width)
    assert ps_table.columns(cut) <= max(width, 1)
    assert cut == name or "…" in cut


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0s"), (59, "59s"), (60, "1m00"), (3599, "59m59"), (3723, "1h02"), (86400, "1d00h"), (190_000, "2d04h")]
)
def test_times_are_short(seconds: int, words: str) -> None:
    assert ps_table.short(seconds) == words


@pytest.mark.parametrize(
    ("job", "standing", "words"),
    [
        ({"reason": "Priority"}, Place(ahead=1), "waiting: 1 job ahead by priority"),
        ({"reason": "Priority"}, Place(ahead=3, mine=2), "waiting: 3 jobs ahead by priority (2 of them yours)"),
        ({"reason": "Priority"}, Place(ahead=2, mine=2), "waiting: 2 jobs ahead by priority (yours)"),
        ({"reason": "Priority"}, Place(mine=2), "waiting: 2 of your own jobs ahead by priority"),
        ({"reason": "Priority"}, Place(), "waiting: jobs with a higher priority are ahead"),
        ({"reason": "Resources"}, Place(ahead=0), "waiting: first in line, for nodes that are in use"),
        ({"reason": "Dependency"}, Place(ahead=9), "waiting: a job it depends on has not ended yet"),
        ({"reason": "Licenses"}, Place(ahead=2), "waiting: licenses it asks for are in use; 2 jobs ahead by priority"),
        ({"state": "COMPLETED"}, Place(), ""),
        ({"state": "FAILED", "exit_code": 9}, Place(), "exit code 9"),
        ({"state": "CANCELLED", "exit_code": 0, "signal": 15}, Place(), "signal 15"),
        ({"state": "RUNNING"}, Place(), ""),
        ({"state": states.UNKNOWN, "reason": "sbatch did not answer"}, Place(), "sbatch did not answer"),
        ({"scheduler": "local", "reason": "waits for GPUs"}, Place(), "waiting: waits for GPUs"),
    ],
)
def test_why_in_words(job: dict[str, object], standing: Place, words: str) -> None:
    record = JobRecord(**({"job_id": "1", "scheduler": "slurm", "state": "PENDING"} | job))  # type: ignore[arg-type]
    assert ps_rows.why(record, standing, time.time()) == words


def test_when_in_words() -> None:
    now = time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1))
    said = [ps_rows.when(now + seconds, now) for seconds in (-5, 30, 8400, 86_400, 3 * 86_400)]
    assert said == ["now", "now", "14:20", "tomorrow 12:00", "2026-11-25 12:00"]
