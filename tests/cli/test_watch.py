"""`hpctrain watch`: real jobs of the local scheduler, looked at on a real pseudo-terminal, through
a pipe, and once.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.jobs import schedulers
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.report.watching import StatusPoller
from tests.cli.conftest import Desk
from tests.cli.terminal import Terminal
from tests.waiting import wait_until

HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))
JOB = "script: train.py\nlauncher: srun\nresources: {time: 60}\nrestart: {mode: requeue, max: 2}\n"
#: Writes what a training writes, so far as `upto` says; ends with the code in `end`.
TRAIN = """\
import json, os, sys, time
run, attempt = os.environ["HPCTRAIN_RUN_DIR"], os.environ["HPCTRAIN_ATTEMPT"]
metrics = open(f"{run}/attempts/{attempt}/metrics.jsonl", "a", buffering=1)
os.makedirs(f"{run}/memory", exist_ok=True)
memory = open(f"{run}/memory/rank-0.jsonl", "a", buffering=1)
def row(event, step, **more):
    print(json.dumps({"event": event, "step": step, "epoch": step / 100, "at": time.time(), **more}), file=metrics)
def read(name):
    try:
        return open(name).read().strip()
    except OSError:
        return ""
name = os.environ["SLURM_ARRAY_TASK_ID"] if "SLURM_ARRAY_TASK_ID" in os.environ else ""
step = int(read(f"{run}/done") or 0)
while os.path.exists("hold"):
    time.sleep(0.05)
row("begin", step)
while True:
    while step < int(read("upto") or 0):
        step += 10
        row("log", step, loss=10.0 - step / 20)
        row("speed", step, max_steps=100, useful_tokens_per_s=1500.0, data_wait=0.01, step_s=0.5, eta_s=(100 - step) * 20)
        sample = dict(time_ms=int(time.time() * 1000), step=step, event="step", host="n1", rank=0, world_size=1, local_rank=0, gpu_index=0,
                      gpu_name="NVIDIA A100", gpu_uuid="GPU-0", gpu_used_mib=30000, gpu_total_mib=40960, gpu_utilisation_percent=90,
                      node_used_mib=1000, node_total_mib=4000)
        print(json.dumps(sample), file=memory)
        if step == 20:
            row("save", step)
    if read("end" + name):
        break
    time.sleep(0.05)
print(step, file=open(f"{run}/done", "w"))
code = read("end" + name)
if code == "85" and attempt.endswith(".0"):
    os.remove("end")
sys.exit(int(code))
"""


@pytest.fixture
def project(desk: Desk) -> Iterator[Desk]:
    desk.set(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true")
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", JOB)
    yield desk
    jobs = [record.job_id for record in LocalScheduler().status() if not record.is_final]
    if jobs:
        LocalScheduler().cancel(jobs)


def submit(project: Desk, *words: str, name: str = "r") -> str:
    said = project.run("submit", "--local", "--no-check", "--no-snapshot", "--run-id", name, *words)
    found = re.search(r"job (\d+)", said.err + said.out)
    assert found, said.err
    wait_until(lambda: state_of(found[1]) != "PENDING", "the job starts")
    return found[1]


def state_of(job: str) -> str:
    return LocalScheduler().status([job])[0].state


def plain(said: str) -> list[str]:
    """Return lines without what differs from time to time."""
    said = re.sub(r"^\d\d:\d\d:\d\d ", "", said, flags=re.MULTILINE)
    said = re.sub(r"\b9\d{7}\b", "JOB", said)
    said = re.sub(r"\d:\d\d:\d\d(?= of| on|;|$)", "TIME", said, flags=re.MULTILINE)
    said = re.sub(
        r"^.*want to run on.*\n", "", said, flags=re.MULTILINE
    )  # this machine may be busy
    return re.sub(
        r"about \d+ \w+|leaves \d+ min|after TIME|after \d:\d\d:\d\d",
        lambda found: found[0].split()[0] + " N",
        said,
    ).splitlines()


# -- on a terminal ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_run_is_followed_on_a_terminal_and_ctrl_c_leaves_it_alone(project: Desk) -> None:
    project.write("hold", "")  # until it was seen that there is no step yet
    job = submit(project)
    terminal = Terminal(HPCTRAIN, "watch", "--interval", "1")
    terminal.shows("no step")
    project.write("upto", "40")
    (project.directory / "hold").unlink()
    terminal.shows("step 40 of 100")
    terminal.shows("saved checkpoint-20")
    terminal.shows("host n1")
    terminal.shows("Ctrl-C leaves the job alone")
    lines = terminal.lines
    assert lines[0].startswith("r   ")
    assert f"job {job} on this machine" in lines[0]
    assert re.fullmatch(r"running for 0:\d\d:\d\d of 1:00:00", lines[1])
    assert re.fullmatch(r"▕█+.? *▏  40%  step 40 of 100, epoch 0.40", lines[2])
    assert re.fullmatch(r"done in about \d+ min; the time limit leaves \d+ min", lines[3])
    assert lines[4] == "loss 8  tokens/s 1500  data wait 1.0%  step 0.5 s"
    assert lines[5].startswith("     9.5 ┤")
    assert any(
        re.fullmatch(r"rank 0 n1:0 ▕█+.? +▏  29.3/40 GiB ▕█+.?▏  90%", line) for line in lines
    )
    assert any(re.fullmatch(r"host n1 ▕█+.? +▏ 1.0/3.9 GiB", line) for line in lines)
    assert max(map(len, lines)) < 80
    assert b"\x1b[?1049h" not in terminal.written
    assert len(terminal.while_only_numbers_change(2)) < 8000  # over a slow ssh, a frame is 2 KB
    assert terminal.interrupt() == 130
    assert terminal.lines[-1] == "" or f"hpctrain cancel {job}" in terminal.text
    assert f"job {job} keeps running; to stop it: hpctrain cancel {job}" in terminal.text
    assert terminal.written.rstrip().endswith(f"hpctrain cancel {job}".encode())
    assert b"\x1b[?25h" in terminal.written
    assert state_of(job) == "RUNNING"


# -- piped -----------------------------------------------------------------------------------------


def piped(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [HPCTRAIN, "watch", "--interval", "1", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(watch: subprocess.Popen[str], part: str) -> list[str]:
    """Return the lines up to the one with `part`."""
    lines = [""]
    while part not in lines[-1]:
        lines.append(watch.stdout.readline())
        assert lines[-1], lines
    return lines[1:]


def rest(watch: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for the end and return what has not been read; `communicate` would lose what `readline`
    has read ahead.
    """
    out, err = watch.stdout.read(), watch.stderr.read()
    watch.wait()
    return out, err


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_piped_there_is_one_line_for_each_change(project: Desk) -> None:
    submit(project)
    watch = piped()
    lines = until(watch, "running")
    project.write("upto", "40")
    lines += until(watch, "step 40 of 100")
    project.write("end", "0")
    out, err = rest(watch)
    told = plain("".join(lines) + out)
    assert re.fullmatch(
        r"r: job JOB on this machine: running for TIME of TIME(; no step is logged yet)?", told[0]
    )
    assert [line for line in told if "step 40 of 100" in line] == [
        "r: step 40 of 100, loss 8, 1500 tokens/s, done in about N; the time limit leaves N"
    ]
    assert [line for line in told if "saved" in line] == ["r: saved checkpoint-20"], told
    assert told[-1].startswith("r: completed after N")
    assert len(told) <= 7, told
    assert err.splitlines() == ["next: hpctrain report r"]
    assert watch.returncode == 0
    assert "\x1b" not in "".join(lines) + out


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_json_lines_and_the_jobs_own_code(project: Desk) -> None:
    project.write("upto", "20")
    submit(project)
    watch = piped("--json", "--exit-status", "r")
    lines = until(watch, '"change": "step", "text": "step 20 of 100')
    project.write("end", "7")
    out, _ = rest(watch)
    rows = [json.loads(line) for line in [*lines, *out.splitlines()]]
    assert watch.returncode == 7
    assert all((row["schema"], row["run"]) == (1, "r") for row in rows)
    step = next(row for row in rows if row["change"] == "step" and row["step"] == 20)
    assert (step["max_steps"], step["loss"], step["worst"]["gpu_used_mib"], step["fits"]) == (
        100,
        9.0,
        30000,
        True,
    )
    assert {row["change"] for row in rows} - {"idle"} == {
        "state",
        "step",
        "saved",
        "end",
    }
    assert (rows[-1]["change"], rows[-1]["exit_code"], rows[-1]["next"][0]) == (
        "end",
        7,
        "hpctrain explain r",
    )


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_once_shows_what_is_known_and_ends(project: Desk) -> None:
    project.write("upto", "40")
    project.write("end", "0")
    job = submit(project)
    wait_until(lambda: state_of(job) == "COMPLETED", "the job ends")
    for words in (("r",), (job,), ()):
        said = project.run("watch", "--once", *words)
        assert said.code == 0
        assert "completed after" in said.out
        assert "step 40 of 100" in said.out
    (end,) = [
        json.loads(line)
        for line in project.run("watch", "--once", "--json").out.splitlines()
        if '"end"' in line
    ]
    assert end["exit_code"] == 0


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_sweep_has_a_line_for_each_point(project: Desk) -> None:
    project.write("config.yaml", JOB + "sweep:\n  grid: {lr: [1, 2, 3]}\n  throttle: 2\n")
    project.write("upto", "40")
    submit(project, "--parallel", "2", name="s")
    terminal = Terminal(HPCTRAIN, "watch", "s", "--interval", "1", columns=100)
    terminal.shows("s: 2 running, 1 waiting")
    terminal.shows("40/100")
    rows = [line.split() for line in terminal.lines if line[:1].isdigit()]
    assert [row[:2] for row in rows] == [
        ["0", "running"],
        ["1", "running"],
        ["2", "waiting"],
    ], "the head says of which sweep"
    project.write("end0", "0")
    terminal.shows("2 running, 1 completed")
    project.write("end1", "2")
    project.write("end2", "0")
    assert terminal.end() == 0
    assert "1 failed, 2 completed" in terminal.text


# -- How often `hpctrain watch` asks Slurm, what it makes of the answers, and how it reads lo


# -- what is meant ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_slurm")
def test_nothing_to_watch_is_an_error(desk: Desk) -> None:
    said = desk.refused("watch")
    assert said.lines == [
        "error: no jobs or runs found",
        "fix: hpctrain submit",
    ]


@pytest.mark.usefixtures("no_slurm")
def test_words_that_mean_nothing_are_told_at_once(desk: Desk) -> None:
    said = desk.refused("watch", "nonsense", "123", "90000001_7")
    assert said.lines[0] == "error: there is no run or job 'nonsense', '123', '90000001_7'"


# -- the poll --------------------------------------------------------------------------------------

SQUEUE = r"""
echo "$*" >> squeue.log
line() { printf '%s\x1f' "$1" sft "$2" "$3" 0:00 10:00 2 gpu 2099-11-22T14:20:00; printf '\n'; }
cat state | while read -r job state reason; do line $job $state $reason; done
"""


@pytest.fixture
def slurm(desk: Desk) -> Desk:
    desk.program("sbatch sacct scontrol", "exit 1")
    desk.program(
        "squeue",
        SQUEUE.replace("squeue.log", str(desk.directory / "squeue.log")).replace(
            "cat state", f"cat {desk.directory / 'state'}"
        ),
    )
    return desk


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_a_job_that_waits_is_explained(slurm: Desk) -> None:
    slurm.write("state", "123 PENDING Priority\n")
    said = slurm.run("watch", "123", "--once")
    assert said.code == 0, said.err
    assert "job 123 on Slurm" in said.out
    assert "waiting: jobs with a higher priority are ahead; Slurm expects" in said.out
    assert "14:20" in said.out


@pytest.mark.usefixtures("no_slurm")
def test_slurm_is_asked_every_30_s(slurm: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.write("state", "123 PENDING Priority\n124 RUNNING None\n")
    now = 0.0
    asked: list[float] = []
    in_background = schedulers.in_background

    def ask(query: Any) -> Any:
        asked.append(now)
        return in_background(query)

    monkeypatch.setattr(schedulers, "in_background", ask)
    poll = StatusPoller(lambda: now)
    for second in range(100):
        now = float(second)
        poll.ask(["123", "124"])
    assert asked == [0, 30, 60, 90]
    # The same moment for squeue's cache: shared among all that ask.
    assert (slurm.directory / "squeue.log").read_text().count("\n") == 1


@pytest.mark.usefixtures("no_slurm")
def test_a_controller_that_is_silent_is_a_note(slurm: Desk) -> None:
    slurm.program(
        "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    )
    poll = StatusPoller(time.monotonic)
    poll.ask(["999"])
    assert "Slurm" in poll.unreachable.what


# -- the log's end ---------------------------------------------------------------------------------
