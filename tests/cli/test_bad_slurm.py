"""A Slurm that refuses, is silent, talks too much or is not there at all; real executables stand in for sbatch and squeue."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpctrain.errors import SchedulerError
from hpctrain.runs import launch
from hpctrain.scheduler import ledger
from hpctrain.scheduler.slurm import SlurmScheduler

if TYPE_CHECKING:
    from conftest import Desk


@pytest.fixture
def rendered(desk: Desk) -> Desk:
    """A desk with a script, and a Slurm that has no jobs."""
    assert desk.run("render").code == 0
    for name in ("squeue", "sacct", "scancel"):
        desk.program(name, "true")
    desk.program("scontrol", "exit 1")
    return desk


def test_a_dry_run_says_each_sbatch_and_what_it_waits_for(desk: Desk) -> None:
    desk.program("sbatch", "exit 1")
    sbatch = "sbatch --parsable --comment=hpctrain:TOKEN"
    stages = "stages: [{name: a}, {name: b}]\n"
    for config, words, expected in (
        ("", ("--restart", "chain", "--max-restarts", "3"), [
            f"would run: {sbatch} sft.sbatch RUN", f"and for the chain, 3 x: {sbatch} --dependency=afterany:JOB_BEFORE sft.sbatch RUN",
        ]),
        (stages, (), [f"would run: {sbatch} sft-a.sbatch RUN", f"would run: {sbatch} --dependency=afterok:JOB_OF_a sft-b.sbatch RUN"]),
    ):  # fmt: skip
        desk.write("config.yaml", config)
        said = desk.run("submit", "--dry-run", *words).out.splitlines()
        assert [line for line in said if not line.startswith("would write ")] == expected


def test_no_slurm_at_all(rendered: Desk, no_slurm: None) -> None:
    said = rendered.run("submit", "--dry-run")
    assert said.code == 0
    assert "sbatch is not on PATH, so the job runs on this machine" in said.err
    with pytest.raises(SchedulerError, match="sbatch is not on PATH") as caught:
        SlurmScheduler().submit(Path("sft.sbatch"))
    assert caught.value.exit_code == 3
    assert ledger.entries() == []


REFUSALS = [
    ("Invalid account or account/partition combination specified", "--account NAME"),
    ("invalid partition specified: gpux", "--partition NAME"),
    ("Invalid qos specification", "--qos NAME"),
    ("Requested time limit is invalid (missing or exceeds some limit)", "--time LIMIT"),
    ("Requested node configuration is not available", "--nodes"),
    ("Invalid --begin specification", "hpctrain render --sbatch begin=VALUE"),
    ("Something that nobody has seen before", "hpctrain submit --test-only sft.sbatch"),
]


@pytest.mark.parametrize(("words", "fix"), REFUSALS, ids=[words[:12] for words, _ in REFUSALS])
def test_a_refusal_is_shown_in_slurms_words(rendered: Desk, words: str, fix: str) -> None:
    rendered.program("sbatch", f"echo 'sbatch: error: Batch job submission failed: {words}' >&2; exit 1")
    said = rendered.refused("submit", "--no-check", code=1)
    assert said.lines[0] == "error: Slurm refused the job"
    assert said.lines[1].startswith("  ran: sbatch --parsable --comment=hpctrain:")
    assert said.lines[2] == f"  sbatch said: Batch job submission failed: {words}"
    assert fix in said.lines[-1]
    assert ledger.entries() == []


UNREACHABLE = ["Unable to contact slurm controller (connect failure)", "slurm_load_jobs error: Connection refused"]


@pytest.mark.parametrize("words", [*UNREACHABLE, "Could not establish a configuration source"])
def test_slurm_cannot_be_reached(rendered: Desk, words: str) -> None:
    rendered.program("sbatch", f"echo 'sbatch: error: {words}' >&2; exit 1")
    rendered.program("squeue", f"echo 'squeue: error: {words}' >&2; exit 1")
    for verb in (["submit", "--no-check"], ["cancel", "5"], ["logs", "5"]):
        assert words.removeprefix("slurm_load_jobs error: ") in rendered.refused(*verb, code=3).err


@pytest.mark.parametrize(
    ("printed", "shown"), [("123", "123"), ("123;cluster", "123;cluster"), ("Welcome to HPC!\nYou have 5 hours left\n77;c-1", "77;c-1")]
)
def test_the_job_id_is_found(rendered: Desk, printed: str, shown: str) -> None:
    rendered.program("sbatch", f"cat <<'END'\n{printed}\nEND")
    said = rendered.run("submit", "--no-check", "--parsable")
    assert (said.code, said.out) == (0, f"{shown}\n")


@pytest.mark.slow  # as long as hpctrain waits for the job to appear
def test_no_job_id_at_all(rendered: Desk) -> None:
    rendered.program("sbatch", "echo welcome")
    said = rendered.run("submit", "--no-check")
    assert (said.code, "welcome" in said.err) == (3, True)
    [tag] = launch.tags(rendered.directory / "runs")
    [asked] = launch.load(rendered.directory / "runs", tag).submissions  # type: ignore[union-attr]
    assert (asked.job_id, asked.argv[-1]) == (None, tag), "what may have arrived is remembered"


def test_a_job_that_sbatch_did_not_answer_for_is_found_and_not_sent_twice(rendered: Desk) -> None:
    """It hangs after it has sent the job; the job's comment tells which one it is."""
    queue = rendered.write("../queue", b"")
    row = "\x1f".join(["77", "sft", "PENDING", "None", "0:00", "5:00", "1", "gpu", "N/A"])
    rendered.program("sbatch", f"printf '%s\\x1f%s\\n' '{row}' \"${{2#--comment=}}\" >> {queue}; exec sleep 30")
    rendered.program("squeue", f"cat {queue}")
    rendered.set(HPCTRAIN_SLURM_TIMEOUT="0.5")
    said = rendered.run("submit", "--no-check", "--parsable")
    assert (said.code, said.out) == (0, "77\n"), said.err
    assert "found by its comment" in said.err
    assert len(queue.read_text().splitlines()) == 1


def test_a_job_that_nobody_knows_is_not_sent_again_at_once(rendered: Desk) -> None:
    calls = rendered.write("../calls", b"")
    rendered.program("sbatch", f"echo called >> {calls}; exec sleep 30")
    waited: list[float] = []
    scheduler = SlurmScheduler(timeout=0.5, sleep=waited.append)
    for sentence in ("whether the job exists is unknown", "an earlier submission of this script has not been answered"):
        with pytest.raises(SchedulerError, match=sentence) as caught:
            scheduler.submit(Path("sft.sbatch"))
        assert caught.value.exit_code == 3
        assert caught.value.fix
    assert calls.read_text() == "called\n"
    assert sum(waited) >= 10
    assert "UNKNOWN" in rendered.run("ps").out


@pytest.mark.parametrize("value", ["abc", "nan"])
def test_a_bad_timeout(rendered: Desk, value: str) -> None:
    rendered.program("sbatch", "echo 123")
    rendered.set(HPCTRAIN_SLURM_TIMEOUT=value)
    assert "HPCTRAIN_SLURM_TIMEOUT" in rendered.refused("submit").err


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


@pytest.mark.parametrize("trial", ["--dry-run", "--wait"])
@pytest.mark.parametrize("where", [(), ("--local",)])
def test_what_is_no_batch_script_is_refused_in_a_trial_too(desk: Desk, trial: str, where: tuple[str, ...]) -> None:
    desk.program("sbatch", "exit 1")
    desk.write("notes.txt", "no script\n")
    assert desk.refused("submit", *where, trial, "notes.txt").lines[0] == "error: notes.txt is not a batch script"


def test_a_local_job_is_shown_and_cancelled_while_slurm_is_silent(rendered: Desk, no_slurm: None) -> None:
    rendered.write("job.sbatch", "#!/bin/bash\n#SBATCH --job-name=here\n#SBATCH --output=out.log\necho started; sleep 300\n")
    submitted = rendered.run("submit", "--local", "--no-check", "--parsable", "job.sbatch")
    assert submitted.code == 0, submitted.err
    job = submitted.out.strip()
    deadline = time.monotonic() + 20
    log = rendered.directory / "out.log"
    while not (log.exists() and log.read_text()) and time.monotonic() < deadline:  # its supervisor has yet to start it
        time.sleep(0.1)
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        rendered.program(name, f"touch {rendered.directory}/asked; echo '{name}: error: {UNREACHABLE[0]}' >&2; exit 1")
    assert rendered.run("logs", job).code == 0
    assert not (rendered.directory / "asked").exists(), "the id is one of this machine"
    by_name = rendered.run("logs", "here")
    assert by_name.code == 0
    assert "note: Slurm does not answer" in by_name.err
    for verb in (["logs", "other"], ["logs", "5"], ["cancel", "here", "5", "--yes"], ["cancel"]):
        refused = rendered.refused(*verb, code=3)
        found = [line for line in refused.lines if line != "nothing was cancelled"]
        assert found == [f"error: Slurm does not answer: squeue said: {UNREACHABLE[0]}", "fix: sinfo, and when that answers: hpctrain ps"]
        assert (verb[0] == "cancel") == (found != refused.lines)
    assert rendered.run("ps").err.splitlines() == found, "the words of ps"
    ended = rendered.run("cancel", job)
    assert (ended.code, ended.out) == (0, f"cancelled job {job} (here)\n")
