"""What each verb says while Slurm's controller does not answer: what the files here know, what nobody knows, and where to look."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpctrain.cli import follow, watch_poll
from hpctrain.errors import SchedulerError
from hpctrain.runs import launch
from hpctrain.scheduler.parse.records import JobRecord
from hpctrain.scheduler.slurm import SlurmScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Desk

TIMED_OUT = "slurm_load_jobs error: Socket timed out on send/recv operation"
WORDS = "squeue said: Socket timed out on send/recv operation"
SILENT = f"error: Slurm does not answer: {WORDS}"
FIX = "fix: sinfo, and when that answers: hpctrain ps"
#: What squeue, and sbatch, say when munge on the login node is dead (Slurm 22.05).
MUNGE = "Munge encode failed: Failed to connect to /run/munge.socket.2' >&2; echo 'X error: Protocol authentication error"


@pytest.fixture
def submitted(desk: Desk) -> Desk:
    """Return a desk with a job 123 of the run r, which writes, and a Slurm that has stopped answering since."""
    desk.program("sbatch", "echo 123")
    for name in ("squeue", "sacct", "scancel"):
        desk.program(name, "true")
    desk.program("scontrol", "exit 1")
    assert desk.run("submit", "--no-check", "--no-snapshot", "--run-id", "r").code == 0
    assert launch.load(desk.directory / "runs", "r") is not None
    desk.write("logs/output_sft_123.log", "step 1\nstep 2\n")
    for name in ("squeue", "scancel", "scontrol"):
        desk.program(name, f"echo '{TIMED_OUT}' >&2; exit 1")
    desk.program("sacct", "echo 'sacct: error: no' >&2; exit 1")
    return desk


@pytest.mark.parametrize("words", [("123",), ("r",), ()])
def test_the_log_of_a_job_is_on_this_disk(submitted: Desk, words: tuple[str, ...]) -> None:
    said = submitted.run("logs", *words)
    assert (said.code, said.out) == (0, "step 1\nstep 2\n"), said.err
    assert said.lines == ["logs/output_sft_123.log: whether job 123 still runs is not known", SILENT.removeprefix("error: ")]


def test_a_log_whose_place_is_known_waits_for_slurm_a_moment_only(submitted: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctrain.cli.logs_chosen._PATIENCE_S", 0.5)
    submitted.program("squeue", "exec sleep 600")
    said = submitted.run("logs", "r")
    assert (said.code, said.out) == (0, "step 1\nstep 2\n"), said.err
    assert said.lines[-1] == "Slurm does not answer: squeue did not answer within 0.5 s"


def test_ps_says_where_to_look_meanwhile(submitted: Desk) -> None:
    said = submitted.run("ps")
    note = "note: what the files of the runs here say meanwhile: hpctrain runs list"
    assert (said.code, said.out, said.lines) == (3, "", [note, SILENT, FIX])
    assert "unknown" in submitted.run("runs", "list").out


def test_nothing_is_cancelled_and_no_running_job_is_to_be(submitted: Desk) -> None:
    assert submitted.refused("cancel", "r", code=3).lines == [SILENT, "nothing was cancelled", FIX]
    again = submitted.refused("submit", "--no-check", "--no-snapshot", "--run-id", "r", code=3)
    assert again.lines[-4:] == [
        "error: whether job 123 of the run r still runs is not known",
        f"  {WORDS}",
        "two jobs of one run would write to the same checkpoints",
        "fix: sinfo, and when that answers: the same command; or another --run-id",
    ]


def test_a_dead_munge_is_no_refusal_of_the_job(submitted: Desk) -> None:
    for name in ("sbatch", "squeue"):
        submitted.program(name, f"echo '{name}: error: {MUNGE}' >&2; exit 1")
    said = submitted.refused("submit", "--no-check", "--no-snapshot", "--run-id", "other", code=3)
    assert "error: Slurm cannot be reached" in said.lines
    assert said.lines[-1] == "fix: sinfo, or on this machine: hpctrain submit --local"
    assert submitted.run("ps").lines[-1] == FIX


def test_sbatch_that_hangs_is_looked_for_a_minute_and_no_longer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A squeue that hangs too would cost its own minute each time."""
    desk.program("sbatch", "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1")
    desk.program("squeue", f"echo asked >> {desk.directory}/asked; echo '{TIMED_OUT}' >&2; exit 1")
    desk.program("sacct", "exit 1")
    desk.write("job.sbatch", "#!/bin/bash\n#SBATCH --output=x.log\ntrue\n")
    for minute, looks in ((3600.0, 3), (0.0, 1)):
        monkeypatch.setattr("hpctrain.scheduler.slurm._LOOKS_S", minute)
        (desk.directory / "asked").unlink(missing_ok=True)
        with pytest.raises(SchedulerError, match="whether the job exists is unknown"):
            SlurmScheduler(sleep=lambda _: None).submit(Path("job.sbatch"), arguments=[str(looks)])
        assert (desk.directory / "asked").read_text().count("asked") == looks


class Held:
    """A scheduler that answers when it is let go."""

    name = "slurm"

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def status(self, job_ids: list[str] | None = None, *, max_age_s: float = 0.0) -> list[JobRecord]:
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

    record = follow.until_the_end(held, "123", [Tail()], print)  # type: ignore[arg-type]
    assert record is not None
    assert seen[0] >= 4


def test_watch_goes_on_while_slurm_is_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    monkeypatch.setattr(watch_poll.schedulers, "available", lambda: [held])
    poll = watch_poll.Poll(time.monotonic)
    for _ in range(3):
        poll.ask(["123"], patience=0.01)
    assert (poll.is_asking, poll.asked, poll.record("123")) == (True, 1, None), "one question at a time"
    held.let_go.set()
    wait_for(lambda: bool(poll.ask(["123"], patience=0.1)) and poll.record("123") is not None)
    assert (poll.is_asking, poll.has_ended("123")) == (False, True)


def test_whoever_leaves_watch_leaves_no_squeue_behind(submitted: Desk) -> None:
    asked = submitted.directory / "asked"
    submitted.program("squeue", f"echo $$ > {asked}.part; mv {asked}.part {asked}; exec sleep 600")
    watch = subprocess.Popen(
        [Path(sys.executable).with_name("hpctrain"), "watch", "r"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(asked.exists)
    watch.send_signal(signal.SIGINT)  # to it alone: a terminal tells both
    assert watch.wait(120) == 130
    status = Path(f"/proc/{asked.read_text().strip()}/status")
    wait_for(lambda: not status.exists() or "\nState:\tZ" in status.read_text())  # a zombie, where nobody buries


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120  # a busy machine
    while not condition():
        assert time.monotonic() < deadline
