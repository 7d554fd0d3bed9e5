"""The faults of the campaign: what is done to a run, and what must come of it.

A fault is a function that waits for its moment and strikes. The rest of the row says what is then
allowed:
`lost` steps over the whole run (0 for an announced end), and how often a `human` has to submit the
run again.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from watched_run import GaveUpError, Run

MAX_STEPS = 60
SAVE_STEPS = 15
#: Where most faults strike: seven steps after the first checkpoint.
HIT = 22
#: Where checkpoints are damaged: two of them are there.
LATE_HIT = 37
#: Seconds for a step where Slurm needs half a minute to notice what has happened.
SLOW_S = 1.2
#: One checkpoint of the campaign's model fits into it, with room for most of a second one.
SMALL_DISK = "600k"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the campaign.

    Attributes:
        name: a word.
        what: for the report.
        strike: does it.
        lost: the most steps that may have to be done again.
        human: how often somebody has to submit the run again.
        nodes: of the job; one process on each.
        options: of `hpctrain submit`.
        pace_s: seconds that each step sleeps.
        alone: nothing else may run in the lab meanwhile.
        short: part of the short campaign.
        restarts: how often the job must start at least, the first time included.
        patience_s: how long the whole may take, in seconds.
    """

    name: str
    what: str
    strike: Callable[[Run], None]
    lost: int = 0
    human: int = 0
    nodes: int = 1
    options: tuple[str, ...] = ()
    pace_s: float = 0.2
    alone: bool = False
    short: bool = False
    restarts: int = 2
    patience_s: float = 420.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a run.

    Attributes:
        fault: its name.
        attempts: how often the job started.
        humans: how often somebody had to submit it again.
        lost: steps that were done twice.
        seconds: from the submission to the end.
        wrong: what is not as it must be; empty: passed.
        notes: what else happened.
    """

    fault: str
    attempts: int
    humans: int
    lost: int
    seconds: float
    wrong: tuple[str, ...]
    notes: tuple[str, ...] = ()


def judged(fault: Fault, humans: int, attempts: int, lost: int, *, equal: bool) -> list[str]:
    wrong = []
    if not equal:
        wrong.append("the final weights are not those of the uninterrupted run")
    if lost > fault.lost:
        wrong.append(f"{lost} steps lost, {fault.lost} allowed")
    if humans != fault.human:
        wrong.append(f"submitted again by hand {humans} times, {fault.human} expected")
    if attempts < fault.restarts:
        wrong.append(f"started {attempts} times: the fault did not interrupt it")
    return wrong


def slurm(*argv: str) -> Callable[[Run], None]:
    """Return a strike: a command of Slurm, where JOB stands for the job."""

    def strike(run: Run) -> None:
        run.reach(HIT)
        run.lab.run(*(run.job if word == "JOB" else word for word in argv))

    return strike


def again_and_again(run: Run) -> None:
    """SIGTERM ten times within two seconds: also while it saves."""
    run.reach(HIT)
    for _ in range(10):
        run.lab.run("scancel", "--signal=TERM", run.job, check=False)
        time.sleep(0.2)


def touch_stop(run: Run) -> None:
    """What a person does who wants the run to save and stop."""
    run.reach(HIT)
    (run.directory / "stop").touch()


def nothing(_run: Run) -> None:
    """The job's own time limit is the fault."""


def ranks(run: Run) -> dict[int, psutil.Process]:
    found: dict[int, psutil.Process] = {}
    for process in run.lab.processes_of({run.job}):
        try:
            environment, words = process.environ(), process.cmdline()
        except psutil.Error:
            continue
        # The launcher has no RANK; of a rank and what it forked, the oldest is the rank.
        if "RANK" in environment and any("hpctrain.training.sft" in word for word in words):
            rank = int(environment["RANK"])
            if rank not in found or process.create_time() < found[rank].create_time():
                found[rank] = process
    return found


def kill_rank(last: bool) -> Callable[[Run], None]:
    """Return a strike: SIGKILL to rank 0, or to the last one."""

    def strike(run: Run) -> None:
        run.reach(HIT)
        there = ranks(run)
        there[max(there) if last else 0].kill()

    return strike


def kill_program(word: str) -> Callable[[Run], None]:
    """Return a strike: SIGKILL to the first process of the job that has a word in its command line
    and is no rank.
    """

    def strike(run: Run) -> None:
        run.reach(HIT)
        trainers = {process.pid for process in ranks(run).values()}
        for process in sorted(run.lab.processes_of({run.job}), key=lambda each: each.create_time()):
            if word in " ".join(process.cmdline()) and process.pid not in trainers:
                process.kill()
                return
        raise GaveUpError(f"no process with {word!r} in its command line")

    return strike


def freeze_rank(run: Run) -> None:
    """A rank that hangs for ever; somebody sees it and cancels the job."""
    run.reach(HIT)
    there = ranks(run)
    there[max(there)].suspend()
    time.sleep(3)
    run.lab.run("scancel", run.job)


def kill_while_saving(run: Run) -> None:
    """SIGKILL to rank 0 in the moment in which it writes a checkpoint."""
    run.reach(SAVE_STEPS - 3)
    victim = ranks(run)[0]
    run.wait(lambda: any(run.checkpoints.glob(".saving-*")), "a checkpoint being written", 0.001)
    victim.kill()


def stop_slurmd(run: Run) -> None:
    """The daemon of a node ends; what it started runs on, until Slurm gives the node up."""
    run.reach(HIT)
    run.lab.kill_daemon(f"slurmd-{run.lab.nodes[1]}", signal.SIGTERM)
    come_back(run)


def power_failure(run: Run) -> None:
    """A node is gone with all that ran on it."""
    run.reach(HIT)
    victims = run.lab.pids_on(run.lab.nodes[1], {run.job})
    run.lab.kill_daemon(f"slurmd-{run.lab.nodes[1]}", signal.SIGKILL)
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    come_back(run)


def come_back(run: Run) -> None:
    run.wait(
        lambda: run.lab.wait_for_node(run.lab.nodes[1], "down"), f"{run.lab.nodes[1]} is down", 0.3
    )
    run.wait(lambda: "PENDING" in run.state(), "the job is pending again", 0.2)
    run.lab.up()


def restart_controller(run: Run) -> None:
    """Slurmctld is killed, and starts again ten seconds later."""
    run.reach(HIT)
    run.lab.kill_daemon("slurmctld", signal.SIGKILL)
    time.sleep(10)
    run.lab.up()


def preempt(run: Run) -> None:
    """A job of a higher partition wants both nodes."""
    run.reach(HIT)
    run.lab.run(
        "sbatch",
        "--partition=high",
        "--nodes=2",
        "--exclusive",
        "--time=1",
        "--mem=100",
        "--output=/dev/null",
        "--wrap=sleep 5",
    )
    run.wait(lambda: "RUNNING" not in run.state(), "the job is preempted", 0.3)


def small_disk(run: Run) -> None:
    """Give the run a small disk of its own for its checkpoints, before it starts."""
    run.checkpoints.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(run.checkpoints)],
        check=True,
    )


def fill_disk(run: Run) -> None:
    """Somebody else's file takes what is left; the next save fails, and so does the job.

    Then the file goes.
    """
    run.reach(SAVE_STEPS + 2)
    filler = run.checkpoints / "somebody-elses-file"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(descriptor, b"x" * 4096)
    except OSError:
        pass
    finally:
        os.close(descriptor)
    run.wait(lambda: not run.state(), "the job fails for want of space", 0.3)
    whole(run, SAVE_STEPS)
    filler.unlink(missing_ok=True)


def read_only(run: Run) -> None:
    """The file system turns read-only, as Lustre and NFS do in trouble; later somebody mends it."""
    run.reach(SAVE_STEPS + 2)
    subprocess.run(["mount", "-o", "remount,ro", str(run.checkpoints)], check=True)
    run.wait(lambda: not run.state(), "the job fails because it cannot save", 0.3)
    whole(run, SAVE_STEPS)
    subprocess.run(["mount", "-o", "remount,rw", str(run.checkpoints)], check=True)


def whole(run: Run, step: int) -> None:
    """Hold that a checkpoint is as it was saved: `hpctrain checkpoints verify` says so.

    Raises:
        GaveUpError: with its words.
    """
    done = subprocess.run(
        ["hpctrain", "checkpoints", "verify", f"{run.tag}/checkpoint-{step}"],
        env=run.lab.env,
        cwd=run.project,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise GaveUpError(f"checkpoint-{step} is no longer whole: {done.stdout}{done.stderr}")


def damage(how: Callable[[Path], None]) -> Callable[[Run], None]:
    """Return a strike: the job is killed, and its newest checkpoint is damaged before it is
    submitted again.
    """

    def strike(run: Run) -> None:
        run.reach(LATE_HIT)
        # `scancel --signal=KILL` would be a cancellation: announced, and saved.
        ranks(run)[0].kill()
        run.wait(lambda: not run.state(), "the job is gone", 0.3)
        newest = max(
            run.checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2])
        )
        how(newest)
        run.notes.append(f"damaged {newest.name}")

    return strike


def truncate(checkpoint: Path) -> None:
    file = next(iter(sorted(checkpoint.glob("*.safetensors"))))
    os.truncate(file, file.stat().st_size // 2)


def flip_a_bit(checkpoint: Path) -> None:
    """The size stays; only the digest knows."""
    file = next(iter(sorted(checkpoint.glob("*.safetensors"))))
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def without(name: str) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / name).unlink()


def half_copied(checkpoint: Path) -> None:
    """A copy that broke off: a directory that looks newer than all others, with nothing to show for
    it.
    """
    step = int(checkpoint.name.partition("-")[2])
    shutil.copytree(
        checkpoint,
        checkpoint.with_name(f"checkpoint-{step + 1}"),
        ignore=lambda _, names: [names[0], "hpctrain.json"],
    )


ONE_SAVE = SAVE_STEPS
#: The newest checkpoint does not count, so the one before it does.
TWO_SAVES = 2 * SAVE_STEPS

FAULTS = (
    # Announced ends: nothing is lost.
    Fault(
        "sigterm-steps",
        "scancel --signal=TERM",
        slurm("scancel", "--signal=TERM", "JOB"),
        nodes=2,
        short=True,
    ),
    Fault(
        "sigterm-batch",
        "scancel --batch --signal=TERM",
        slurm("scancel", "--batch", "--signal=TERM", "JOB"),
    ),
    Fault("sigusr1", "scancel --signal=USR1", slurm("scancel", "--signal=USR1", "JOB"), nodes=2),
    Fault("sigterm-storm", "SIGTERM ten times in two seconds", again_and_again),
    Fault(
        "scancel",
        "scancel: no requeue brings it back, a human does",
        slurm("scancel", "JOB"),
        human=1,
        nodes=2,
        short=True,
    ),
    Fault("requeue", "scontrol requeue from outside", slurm("scontrol", "requeue", "JOB")),
    Fault(
        "chain",
        "SIGTERM where nothing is requeued: the next job of the chain goes on",
        slurm("scancel", "--signal=TERM", "JOB"),
        options=("--restart", "chain", "--max-restarts", "2"),
    ),
    Fault("stop-file", "touch runs/RUN_ID/stop", touch_stop, human=1),
    Fault(
        "time-limit",
        "--time=1, and work for four minutes",
        nothing,
        options=("--time", "1", "--max-restarts", "40"),
        pace_s=4.0,
        restarts=4,
        patience_s=1200,
    ),
    Fault(
        "preempted",
        "preemption, GraceTime=0",
        preempt,
        nodes=2,
        options=("--partition", "low"),
        alone=True,
        short=True,
    ),
    Fault(
        "preempted-grace",
        "preemption, GraceTime=20",
        preempt,
        nodes=2,
        options=("--partition", "low_grace"),
        alone=True,
    ),
    Fault(
        "controller",
        "slurmctld killed, back after 10 s",
        restart_controller,
        alone=True,
        restarts=1,
    ),
    # Ends without a word: at most one save's steps.
    Fault(
        "kill-rank-0", "SIGKILL to rank 0", kill_rank(last=False), lost=ONE_SAVE, human=1, nodes=2
    ),
    Fault(
        "kill-last-rank",
        "SIGKILL to the last rank",
        kill_rank(last=True),
        lost=ONE_SAVE,
        human=1,
        nodes=2,
        short=True,
    ),
    Fault(
        "kill-launcher",
        "SIGKILL to accelerate launch",
        kill_program("accelerate launch"),
        lost=ONE_SAVE,
        human=1,
        nodes=2,
    ),
    Fault("kill-srun", "SIGKILL to srun", kill_program("srun "), lost=ONE_SAVE, human=1),
    Fault(
        "kill-batch-shell",
        "SIGKILL to the batch script",
        kill_program("slurm_script"),
        lost=ONE_SAVE,
        human=1,
    ),
    Fault(
        "kill-in-save",
        "SIGKILL while a checkpoint is written",
        kill_while_saving,
        lost=ONE_SAVE,
        human=1,
    ),
    Fault(
        "frozen-rank",
        "SIGSTOP to a rank, then scancel",
        freeze_rank,
        lost=ONE_SAVE,
        human=1,
        nodes=2,
    ),
    Fault(
        "slurmd",
        "slurmd of a node stops",
        stop_slurmd,
        lost=ONE_SAVE,
        nodes=2,
        alone=True,
        pace_s=SLOW_S,
    ),
    Fault(
        "power-failure",
        "a node dies with all its processes",
        power_failure,
        lost=ONE_SAVE,
        nodes=2,
        alone=True,
        pace_s=SLOW_S,
        short=True,
    ),
    # Disks and files.
    Fault(
        "full-disk",
        "the disk fills up before a save",
        fill_disk,
        lost=ONE_SAVE,
        human=1,
        short=True,
    ),
    Fault(
        "read-only",
        "the checkpoints' file system turns read-only",
        read_only,
        lost=ONE_SAVE,
        human=1,
    ),
    Fault(
        "truncated",
        "killed, newest checkpoint truncated",
        damage(truncate),
        lost=TWO_SAVES,
        human=1,
    ),
    Fault(
        "bit-flip",
        "killed, one bit of the newest weights flipped",
        damage(flip_a_bit),
        lost=TWO_SAVES,
        human=1,
    ),
    Fault(
        "no-manifest",
        "killed, newest manifest gone",
        damage(without("hpctrain.json")),
        lost=TWO_SAVES,
        human=1,
    ),
    Fault(
        "no-optimizer",
        "killed, newest optimizer file gone",
        damage(without("optimizer.pt")),
        lost=TWO_SAVES,
        human=1,
    ),
    Fault(
        "half-copy",
        "killed, a half-copied newer checkpoint",
        damage(half_copied),
        lost=ONE_SAVE,
        human=1,
    ),
)
ON_SMALL_DISK = frozenset({"full-disk", "read-only"})
