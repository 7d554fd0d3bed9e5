"""What makes a training stop: signals, the stop file, the time limit; without torch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.training.survival import ResilienceContext, time_limit
from hpctrain.training.survival.stop import StopFile, Stopped, StopReason, write_exit
from hpctrain.training.survival.time_limit import MARGIN_PART, MARGIN_S, Deadline, end_time

LISTENER = """
import os, signal, sys, time
assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "started with the signals ignored"
from hpctrain.training.survival import stop
assert "torch" not in sys.modules
stop.listen()
os.kill(os.getpid(), signal.{name})
print(stop.signalled(), flush=True)
child = os.fork()
if child == 0:
    print("child", stop.signalled(), flush=True)
    os.kill(os.getpid(), signal.SIGUSR1)
    print("child lives", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("child lives on", flush=True)
_, status = os.waitpid(child, 0)
print("child ended by", os.WTERMSIG(status))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_that_was_ignored_at_the_start_is_heard_and_a_fork_hears_nothing(
    name: str,
) -> None:
    command = [
        "bash",
        "-c",
        "trap '' TERM USR1 USR2; exec \"$@\"",
        "bash",
        sys.executable,
        "-c",
        LISTENER.format(name=name),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines() == [
        name,
        "child None",
        "child lives",
        f"child ended by {int(signal.SIGTERM)}",
    ], done.stderr


def test_what_it_exits_with() -> None:
    assert [(wish.code, wish.reason) for wish in StopReason if wish] == [
        (85, "signal"),
        (85, "deadline"),
        (86, "stop-file"),
    ]
    with pytest.raises(SystemExit) as left:
        raise Stopped(StopReason.DEADLINE, 40)
    assert left.value.code == 85


def test_the_stop_file_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attempts/7.0").mkdir(parents=True)
    file = StopFile(tmp_path, "7.0")
    assert not file.there()
    (tmp_path / "stop").touch()
    assert not file.there(), "the last look was a moment ago"
    monkeypatch.setattr("hpctrain.training.survival.stop.LOOK_EVERY_S", 0.0)
    assert file.there()
    file.consume()
    assert not (tmp_path / "stop").exists()
    assert (tmp_path / "attempts/7.0/stopped-by").is_file()
    assert not StopFile(tmp_path, "7.1").there()
    assert not StopFile(None, None).there()


def test_the_exit_word_is_where_the_job_script_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_exit(85, "deadline", {"HPCTRAIN_RUN_DIR": str(tmp_path), "HPCTRAIN_ATTEMPT": "12.0"})
    assert (tmp_path / "attempts/12.0/exit").read_text() == "85 deadline\n"
    assert [path.name for path in (tmp_path / "attempts/12.0").iterdir()] == ["exit"]
    write_exit(85, "deadline", {})
    (tmp_path / "file").touch()
    write_exit(1, "error", {"HPCTRAIN_RUN_DIR": str(tmp_path / "file"), "HPCTRAIN_ATTEMPT": "12.0"})
    assert "notice: cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1795230000", 1795230000.0), ("", None), ("Unknown", None), ("0", None), ("-1", None)],
)
def test_when_the_time_ends(text: str, seconds: float | None) -> None:
    assert end_time({"SLURM_JOB_END_TIME": text}) == seconds
    assert end_time({}) is None


def needed(*seconds: float) -> float:
    return MARGIN_S + (1 + MARGIN_PART) * sum(seconds)


def test_the_time_that_is_needed_is_what_was_measured() -> None:
    deadline = Deadline(1000.0, now=0.0)
    nothing = needed()
    assert deadline.must_stop(1000 - nothing - 1, save=True) is None
    assert (
        deadline.must_stop(1000 - nothing, save=False)
        == f"the time limit ends in {nothing:.0f} s, no save was measured"
    )
    deadline.saves.append(41.0)
    deadline.steps.extend([2.0, 7.0, 1.0])
    limit = needed(41.0, 7.0)
    assert deadline.must_stop(1000 - limit - 1, save=False) is None
    assert (
        deadline.must_stop(1000 - limit, save=False)
        == f"the time limit ends in {limit:.0f} s, a save takes 41 s"
    )
    assert deadline.must_stop(1000 - limit - 1, save=True) is not None, (
        "the save that is due takes time as well"
    )


def test_half_of_the_time_is_the_latest_to_learn_what_a_save_takes() -> None:
    deadline = Deadline(1000.0, now=400.0)
    assert not deadline.wants_a_save(699.0)
    assert deadline.wants_a_save(700.0)
    deadline.saves.append(1.0)
    assert not deadline.wants_a_save(900.0)
    assert not Deadline(1000.0, now=400.0, save=5.0).wants_a_save(900.0), (
        "an earlier attempt measured it"
    )
    assert not Deadline(None, now=400.0).wants_a_save(1e12)


def test_a_job_without_time_for_one_step_says_so() -> None:
    deadline = Deadline(100.0, now=60.0, save=30.0, step=15.0)
    assert (
        deadline.too_late(60.0)
        == "the time limit ends in 40 s, a step takes 15 s and a save takes 30 s"
    )
    assert deadline.too_late(50.0) is None
    assert Deadline(100.0, now=60.0).too_late(99.0) is None, (
        "nothing is known, so nothing is claimed"
    )
    assert Deadline(None, now=0.0, save=1.0, step=1.0).too_late(1e12) is None


@pytest.mark.slow
def test_a_signal_that_the_job_script_got_is_heard_by_rank_0(tmp_path: Path) -> None:
    (tmp_path / "attempts/7.0").mkdir(parents=True)
    (tmp_path / "attempts/7.0/stop").touch()
    program = "from hpctrain.training.survival import stop; print(stop.signalled())"
    heard = {}
    for rank, attempt in (("0", "7.0"), ("1", "7.0"), ("0", "7.1")):
        environment = {
            **os.environ,
            "HPCTRAIN_RUN_DIR": str(tmp_path),
            "HPCTRAIN_ATTEMPT": attempt,
            "RANK": rank,
        }
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        heard[rank, attempt] = done.stdout.strip()
    assert heard == {("0", "7.0"): "SIGTERM", ("1", "7.0"): "None", ("0", "7.1"): "None"}


HOUR = 3600.0


@pytest.mark.parametrize(
    ("needed", "end", "now", "expected"),
    [
        (3.2, 24, 0, (True, "done in about 3.2 h; the time limit leaves 24 h")),
        (3.2, None, 0, (None, "done in about 3.2 h; no time limit is known")),
        (30, 24, 1, (False, "done in about 30 h, after the time limit, which leaves 23 h")),
    ],
)
def test_whether_it_ends_before_the_time_limit(
    needed: float, end: float | None, now: float, expected: tuple[bool | None, str]
) -> None:
    limit = None if end is None else end * HOUR
    assert time_limit.outlook(needed * HOUR, limit, now=now * HOUR) == expected


def test_the_time_limit_is_slurm_s() -> None:
    assert ResilienceContext.from_environment({"SLURM_JOB_END_TIME": "9"}).end == 9.0
