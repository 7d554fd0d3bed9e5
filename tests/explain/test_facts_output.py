"""A training of one's own that hangs, told from one that is slow by its output alone; who cancelled a job; what was killed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpctrain.cli import explain_steps
from hpctrain.explain.case import AttemptFact, Case, FileFact
from hpctrain.explain.facts import FACTS
from hpctrain.explain.fixes import FIXES
from hpctrain.memory.sample import Sample
from hpctrain.scheduler.parse.accounting import Account, Step

T0 = 1_795_000_000.0
HOUR = 3600.0
CONFIG: dict[str, Any] = {"script": "train.py", "resources": {"nodes": 1, "gpus_per_node": 4, "time": 3600}, "restart": {"mode": "off"}}


def of_output(at: float, *, steps: int = 60, err_steps: int = 0, elapsed: float = HOUR, **more: Any) -> Case:
    """Return a job that the time limit ended; its output last grew at `at`, and Slurm and the launcher wrote to both files at the end."""
    until = T0 + elapsed
    files = (
        FileFact(name="out.log", stream="out", size=900, grown=until, steps=steps),
        FileFact(name="err.log", stream="err", size=900, grown=until, steps=err_steps),
    )
    account = Account(
        job_id="7", scheduler="slurm", state="TIMEOUT", started=T0, ended=until, elapsed_s=int(elapsed), time_limit_s=int(elapsed)
    )
    attempt = AttemptFact(name="7.0", job_id="7", started=T0, ended=until, output_at=T0 + at)
    said: dict[str, Any] = {"files": files, "account": account, "attempts": (attempt,), "config": CONFIG, "step": 60, "max_steps": 1000}
    return Case(**{**said, **more})


def test_an_output_that_stood_still_is_a_hang_and_only_likely() -> None:
    found = FACTS["hang"](of_output(600))
    assert found is not None
    assert (found.groups["quiet"], found.groups["step"], found.at, found.certainty) == ("50 min", "60", T0 + 600, None)
    assert "out.log grew last" in found.evidence[0].text
    assert FACTS["slow"](of_output(600)) is None


@pytest.mark.parametrize("slow", [
    of_output(HOUR - 50),  # steps came until the end
    of_output(HOUR - 170, steps=3000),  # three minutes are no hang, whatever a step takes
    of_output(1800, steps=6, elapsed=HOUR),  # a step takes five minutes: half an hour may be an evaluation
])  # fmt: skip
def test_an_output_that_went_on_is_no_hang(slow: Case) -> None:
    assert FACTS["hang"](slow) is None


def test_a_training_that_is_slow_says_how_much_is_left() -> None:
    slow = replace(of_output(HOUR - 20), step_s=60.0)
    found = FACTS["slow"](slow)
    assert found is not None
    assert (found.groups["step"], found.groups["max_steps"], found.groups["left"]) == ("60", "1000", "15 h 40 min")
    assert FIXES["time_limit"](slow, {}) is not None


@pytest.mark.parametrize("unknown", [
    of_output(600, steps=0),  # it prints no steps there
    of_output(600, err_steps=60),  # a progress bar in the errors: the output tells nothing
    of_output(600, steps=3),  # no rhythm
    replace(of_output(600), attempts=(AttemptFact(name="7.0", job_id="7", started=T0, ended=T0 + HOUR),)),  # an older job script
])  # fmt: skip
def test_where_the_output_tells_nothing_neither_is_said(unknown: Case) -> None:
    assert FACTS["hang"](unknown) is None
    assert FACTS["slow"](unknown) is None


def test_a_short_start_needs_half_of_it() -> None:
    assert FACTS["hang"](of_output(10, steps=30, elapsed=80.0)) is not None
    assert FACTS["hang"](of_output(45, steps=30, elapsed=80.0)) is None


def taken(rank: int, step: int) -> Sample:
    return Sample(time_ms=int((T0 + 2 * step) * 1000), step=step, event="step", rank=rank, host="n0", world_size=2, local_rank=rank)


def test_a_rank_that_lacks_what_all_others_did_makes_it_certain() -> None:
    samples = tuple(taken(rank, step) for step in (10, 20, 30) for rank in (0, 1) if (rank, step) != (1, 30))
    found = FACTS["hang"](of_output(600, samples=samples, step_s=2.0))
    assert found is not None
    assert (found.certainty, found.rank, found.node) == ("certain", 1, "n0")
    together = tuple(taken(rank, step) for step in (10, 20, 30) for rank in (0, 1))
    found = FACTS["hang"](of_output(600, samples=together, step_s=2.0))
    assert found is not None
    assert found.certainty is None, "a long evaluation looks the same"


def test_a_hang_is_looked_at_and_gets_no_more_time() -> None:
    fixed = FIXES["hang"](of_output(600, extra={"run": "r1"}), {"rank": "3"})
    assert fixed is not None
    assert "rank 3" in fixed.text
    assert "hpctrain resubmit r1" in fixed.text
    assert fixed.changes == ()
    # All nodes of the job; and without GPUs, which Slurm 20.11 does not share, so that the step would wait for the one that hangs.
    case = of_output(600, extra={"run": "r1"})
    assert case.account is not None
    on_four = FIXES["hang"](replace(case, account=replace(case.account, n_nodes=4)), {"rank": "3"})
    assert on_four is not None
    assert "--overlap --gres none --nodes 4 --ntasks-per-node 1 " in on_four.text


# -- steps in lines ----------------------------------------------------------------------------------------------------


def test_lines_that_tell_of_steps() -> None:
    said = explain_steps.of_lines(f"[rank{rank}]: step {step} of 1000, loss 2.5" for step in range(1, 31) for rank in (0, 1))
    assert (said.count, said.first, said.last, said.most) == (30, 1, 30, 1000)
    bars = explain_steps.of_lines(f" {step}%|██   | {step}/100 [00:10<01:00,  1.67s/it]" for step in range(10, 20))
    assert (bars.count, bars.last, bars.most) == (10, 19, 100)
    rows = explain_steps.of_lines("{'loss': '2.3', 'epoch': '0.1'}" for _ in range(7))
    assert (rows.count, rows.last) == (7, None)


@pytest.mark.parametrize("lines", [
    [f"Step {step}/4: loading" for step in range(1, 5)],
    ["iteration of the year 2024"] * 9,
    ["step 7 of 10"] * 50,
])  # fmt: skip
def test_lines_that_do_not(lines: list[str]) -> None:
    assert explain_steps.of_lines(lines).count == 0


def test_only_the_newest_start_of_a_file_counts() -> None:
    begins = "hpctrain: attempt 7.1 of the run r1 begins on n0 at 2026-11-22T05:21:32+0000"
    lines = [*(f"step {step} of 100" for step in range(1, 51)), begins, *(f"step {step} of 100" for step in range(51, 61))]
    said = explain_steps.of_lines(lines)
    assert (said.count, said.first, said.last) == (10, 51, 60)


# -- cancelled, killed, again and again --------------------------------------------------------------------------------


def cancelled(by: int | None, user: str = "tom", **extra: Any) -> Case:
    return Case(account=Account(job_id="7", scheduler="slurm", state="CANCELLED", user=user, cancelled_by=by, ended=T0), extra=extra)


def test_who_cancelled_a_job() -> None:
    def who(case: Case) -> str | None:
        found = FACTS["cancelled_by"](case)
        return None if found is None else found.groups["who"]

    assert who(cancelled(1000, owner_uid=1000)) == "tom, the user of the job"
    assert who(cancelled(1007, owner_uid=1000, canceller="anna")) == "user 1007 (anna), and not tom"
    assert who(cancelled(1007)) == "user 1007"
    assert who(cancelled(None)) is None
    assert (who(cancelled(0)), FACTS["cancelled_by_root"](cancelled(0)) is not None) == (None, True)
    assert FACTS["cancelled_by_root"](cancelled(0, user="root", owner_uid=0)) is None, "root's own job"
    assert who(cancelled(0, user="root", owner_uid=0)) == "root, the user of the job"


def killed(held: int) -> Case:
    steps = (Step(name="0", state="FAILED", max_rss_bytes=held << 20),)
    account = Account(job_id="7", scheduler="slurm", state="FAILED", memory_bytes=1000 << 20, nodes="n1", n_nodes=1, steps=steps)
    return Case(account=account, config={"script": "train.py", "resources": {"mem": 1000 << 20}}, extra={"run": "r1"})


def test_what_was_killed_says_what_the_record_knows() -> None:
    far = FIXES["killed"](killed(300), {})
    assert far is not None
    assert "FAILED; the largest task held 300 MiB of the 1000 MiB" in far.text
    assert "hpctrain resubmit r1" in far.text
    near = FIXES["killed"](killed(900), {})
    assert near is not None
    assert near.text.startswith("--mem 1000M -> ")
    assert near.changes == (), "what a look every some seconds saw is no proof"
    assert FIXES["killed"](Case(), {}) is None


def starts(seconds: float, **more: Any) -> Case:
    attempts = tuple(
        AttemptFact(name=f"7.{n}", restart=n, started=T0 + n * 9000, ended=T0 + n * 9000 + seconds, outcome="requeued") for n in range(3)
    )
    return Case(attempts=attempts, config={**CONFIG, **more})


def test_a_script_that_resumes_by_itself_is_in_no_loop() -> None:
    """Its steps are not known: three starts of two hours each are how a long training of one's own is meant to run."""
    assert FACTS["requeue_loop"](starts(7200)) is None
    assert FACTS["requeue_loop"](starts(20)) is not None
    assert FACTS["requeue_loop"](starts(7200, script=None)) is not None
