"""`hpctrain runs` as it is typed: lists, pages, and removals that never touch what runs."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.local.scheduler import LocalScheduler
from hpctrain.runs import predicted
from tests.cli.conftest import Desk, Said
from tests.cli.fake_slurm import put, queued, show
from tests.cli.terminal import Terminal
from tests.runs import make
from tests.waiting import wait_until

NOW = time.time()


@pytest.fixture
def runs(desk: Desk) -> Path:
    """Make runs in all states that need no scheduler, and one that is not a run."""
    folder = desk.directory / "runs"
    for number in range(3):
        make.attempt(
            make.run(folder, f"grid_{number}", tag="grid", index=number, created=NOW - 9 * 86_400),
            f"50_{number}",
            slurm_job_id=str(50 + number),
            outcome="completed",
            at=NOW - 9 * 86_400,
        )
    old = NOW - 8 * 86_400
    make.attempt(
        make.run(folder, "sft-old", created=old),
        "60",
        outcome="failed",
        status=1,
        reason="nan",
        at=old,
    )
    make.metrics(
        folder / "sft-old" / "attempts" / "60.0",
        {"step": 7, "loss": None, "nonfinite": {"loss": "nan"}},
    )
    make.attempt(
        make.run(folder, "sft-new"),
        "61",
        outcome="stopped",
        status=86,
        reason="stop-file",
        at=NOW - 100,
    )
    (folder / "Nov20_tensorboard").mkdir()
    return folder


def slurm(desk: Desk, *jobs: tuple[str, str], silent: bool = False) -> None:
    """Put a Slurm on PATH that shows these jobs in its queue, and knows no others."""
    put(desk)
    show(desk, *(queued(*job) for job in jobs))
    if silent:
        desk.program(
            "squeue sacct", "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1"
        )


def rows(said: Said) -> dict[str, list[str]]:
    """Return the table by its first column."""
    return {line.split()[0]: line.split()[1:] for line in said.out.splitlines()}


def listed(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run("runs", "list", "--json", *words)
    assert said.code == 0, said.err
    found = json.loads(said.out)
    return {run["id"]: run for run in found["runs"]}


@pytest.mark.usefixtures("no_slurm")
class TestList:
    def test_without_runs_it_says_where_it_looked(self, desk: Desk) -> None:
        said = desk.run("runs", "list")
        assert (said.code, said.out) == (0, "")
        assert f"{desk.directory} has no directory runs" in said.err
        assert "hpctrain submit" in said.err
        assert json.loads(desk.run("runs", "list", "--json").out) == {
            "schema": 1,
            "runs": [],
            "foreign": [],
        }
        (desk.directory / "runs").mkdir()
        assert "no runs in" in desk.run("runs", "list").err

    def test_a_file_in_place_of_runs_is_refused(self, desk: Desk) -> None:
        desk.write("runs", "x")
        assert "cannot read runs: not a directory" in desk.refused("runs", "list", code=1).err

    def test_the_table(self, desk: Desk, runs: Path) -> None:
        said = desk.run("runs", "list")
        assert said.code == 0
        assert list(rows(said))[1:] == ["grid_0", "grid_1", "grid_2", "sft-old", "sft-new"]
        assert rows(said)["sft-old"][:3] == ["failed", "7", "NaN"]
        assert rows(said)["sft-new"][0] == "stopped"
        assert "not runs, ignored: Nov20_tensorboard" in said.err
        again = desk.run("runs", "list", "--runs-dir", str(runs)).out
        aged = re.compile(r"[\d.]+ (?:s|min|h|days)\b *")  # between the two the clock goes on
        assert [aged.sub("AGO ", line) for line in again.splitlines()] == [
            aged.sub("AGO ", line) for line in said.out.splitlines()
        ]
        assert aged.sub("AGO ", said.out) != said.out

    def test_filters(self, desk: Desk, runs: Path) -> None:
        assert set(listed(desk, "--state", "failed", "--state", "stopped")) == {
            "sft-old",
            "sft-new",
        }
        assert set(listed(desk, "grid")) == {"grid_0", "grid_1", "grid_2"}
        assert "sft-new" not in listed(desk, "--older-than", "7d")
        assert set(listed(desk, "*_1", "sft-n")) == {"grid_1", "sft-new"}
        refused = desk.refused("runs", "list", "sft-odl", "sft")
        assert "there is no run 'sft-odl'" in refused.err
        assert "sft-new, sft-old" in refused.err
        assert "is not an age" in desk.run("runs", "list", "--older-than", "soon").err

    def test_json_is_json_whatever_was_logged(self, desk: Desk, runs: Path) -> None:
        found = listed(desk, "sft-old")["sft-old"]
        assert (found["last_loss"], found["nonfinite"], found["state"]) == (
            None,
            {"last_loss": "nan"},
            "failed",
        )


class TestStates:
    def test_a_silent_slurm_leaves_states_unknown(self, desk: Desk, runs: Path) -> None:
        make.attempt(make.run(runs, "live"), "200", at=NOW)
        slurm(desk, silent=True)
        said = desk.run("runs", "list")
        assert said.code == 0
        assert rows(said)["live"][0] == "unknown"
        assert "Unable to contact slurm controller" in said.err
        assert rows(said)["grid_0"][0] == "completed"

    def test_slurm_is_not_asked_where_all_has_been_said(self, desk: Desk, runs: Path) -> None:
        slurm(desk, silent=True)
        assert desk.run("runs", "list").code == 0
        assert not (desk.directory.parent / "calls").exists()


@pytest.mark.usefixtures("no_slurm")
class TestShow:
    def test_a_page(self, desk: Desk, runs: Path) -> None:
        launch = runs / ".launches" / "sft-old"
        launch.mkdir(parents=True)
        make.write(
            launch / "config.json",
            {
                "schema": 1,
                "config": {"job": {"time": "1:00:00"}},
                "origins": {"job.time": "config.yaml:3:5"},
            },
        )
        make.write(launch / "code.json", {"commit": "0123456789abcdef", "dirty": True})
        (runs / "sft-old" / "checkpoints" / "checkpoint-5").mkdir(parents=True)
        said = desk.run("runs", "show", "sft-o")
        assert said.code == 0
        for words in (
            "failed with exit code 1",
            "not finite",
            "0123456789ab and changes",
            "config.yaml:3:5",
            "1:00:00",
            "60.0",
            "node1",
            "checkpoint-5",
            "loss NaN",
        ):
            assert words in said.out
        assert "next: hpctrain logs 60" in said.err
        assert "next: hpctrain resubmit sft-old" in said.err
        found = json.loads(desk.run("runs", "show", "sft-old", "--json").out)
        assert (found["state"], found["origins"], found["saved"][0]["name"]) == (
            "failed",
            {"job.time": "config.yaml:3:5"},
            "checkpoint-5",
        )
        [attempt] = found["attempts"]
        assert (attempt["outcome"], attempt["reason"]) == ("failed", "nan")

    def test_what_is_not_there(self, desk: Desk, runs: Path) -> None:
        assert "there is no run 'sft-oldd'" in desk.refused("runs", "show", "sft-oldd").err
        assert "there is no run" in desk.refused("runs", "show", "Nov20_tensorboard").err
        assert (
            "no such directory: elsewhere"
            in desk.refused("runs", "show", "x", "--runs-dir", "elsewhere").err
        )


@pytest.mark.usefixtures("no_slurm")
class TestBeginnings:
    """The beginning of an id is enough to read, never to remove; and it does not run on into the
    number of another point.
    """

    @pytest.fixture
    def far(self, desk: Desk, runs: Path) -> Path:
        make.attempt(
            make.run(runs, "wide_2499", tag="wide", index=2499), "70", outcome="failed", status=1
        )
        return runs / "wide_2499"

    @pytest.mark.parametrize(
        "verb",
        [
            ["runs", "show"],
            ["runs", "list"],
            ["resubmit"],
            ["checkpoints", "list"],
            ["report"],
            ["explain"],
        ],
    )
    def test_a_point_is_not_the_beginning_of_another_one(
        self, desk: Desk, far: Path, verb: list[str]
    ) -> None:
        assert "'wide_2'" in desk.refused(*verb, "wide_2").err

    @pytest.mark.parametrize("verb", ["runs", "checkpoints"])
    @pytest.mark.parametrize("word", ["wide_2", "wide_249", "wid", "sft-o", "sft"])
    def test_what_removes_takes_whole_names(
        self, desk: Desk, far: Path, verb: str, word: str
    ) -> None:
        (far / "checkpoints/checkpoint-1").mkdir(parents=True)
        for more in ("--dry-run", "--yes"):
            assert repr(word) in desk.refused(verb, "delete", word, more).err

    @pytest.mark.parametrize("word", ["wide", "wide_2*", "wide_2499"])
    def test_a_tag_a_glob_and_a_name_are_whole(self, desk: Desk, far: Path, word: str) -> None:
        said = desk.run("runs", "delete", word, "--yes", "--json")
        assert [row["id"] for row in json.loads(said.out)["dropped"]] == ["wide_2499"]


class TestDrop:
    def test_what_has_ended_goes_and_what_lives_stays(self, desk: Desk, runs: Path) -> None:
        for name, job in (
            ("live-run", "200"),
            ("live-wait", "201"),
            ("live-odd", "202"),
            ("live-gone", "203"),
        ):
            make.attempt(make.run(runs, name), job, outcome="requeued" if job == "201" else None)
        make.submission(runs, "sft-old", "204")  # submitted again
        slurm(
            desk,
            ("200", "RUNNING"),
            ("201", "PENDING"),
            ("202", "A_NEW_WORD"),
            ("204", "PENDING"),
            ("61", "COMPLETING"),
        )
        before = {
            name: desk.snapshot()[f"runs/{name}/run.json"]
            for name in ("live-run", "live-wait", "live-odd", "live-gone", "sft-old")
        }
        said = desk.run("runs", "delete", "*", "--yes", "--json")
        assert said.code == 0, said.err
        found = json.loads(said.out)
        assert sorted(row["id"] for row in found["dropped"]) == ["grid_0", "grid_1", "grid_2"]
        assert sorted(row["id"] for row in found["kept"]) == [
            "live-gone",
            "live-odd",
            "live-run",
            "live-wait",
            "sft-new",
            "sft-old",
        ]
        assert {name: desk.snapshot()[f"runs/{name}/run.json"] for name in before} == before
        assert (runs / "Nov20_tensorboard").is_dir()
        assert [path.name for path in runs.glob(".drop*")] == []
        calls = (desk.directory.parent / "calls").read_text().splitlines()
        assert (
            len([line for line in calls if line.startswith("squeue")]) == 3
        )  # before, for 203 by its id, and again

    def test_who_names_a_running_run_is_told_how_to_end_it(self, desk: Desk, runs: Path) -> None:
        make.attempt(make.run(runs, "live-run"), "200")
        slurm(desk, ("200", "RUNNING"))
        said = desk.run("runs", "delete", "live-run", "sft-old", "--yes")
        assert said.code == 1
        assert "stays: live-run (running: job 200 is RUNNING)" in said.err
        assert said.lines[-1] == "fix: hpctrain cancel 200"
        assert (runs / "live-run").exists()
        assert not (runs / "sft-old").exists()

    def test_a_silent_slurm_keeps_what_may_run(self, desk: Desk, runs: Path) -> None:
        make.attempt(make.run(runs, "live-run"), "200")
        make.submission(runs, "sft-old", "204")
        slurm(desk, silent=True)
        said = desk.run("runs", "delete", "*", "--yes")
        assert said.code == 3
        assert said.lines[-1].startswith("fix: hpctrain ps")
        assert {path.name for path in runs.glob("[!.]*")} == {
            "live-run",
            "sft-old",
            "Nov20_tensorboard",
        }

    def test_a_submission_that_was_never_answered_counts_as_a_job(
        self, desk: Desk, runs: Path
    ) -> None:
        make.submission(runs, "sft-old", None)
        (runs / ".launches" / "sft-new" / "submissions").mkdir(parents=True)
        (runs / ".launches" / "sft-new" / "submissions" / "x.json").write_text("{")
        slurm(desk)
        said = desk.run("runs", "delete", "sft-*", "--yes")
        assert (
            "sft-old (unknown: a submission of it was never answered)" in said.err
            or not (runs / "sft-old").exists()
        )
        assert (runs / "sft-new").exists()  # its last sign of life is younger than a day

    @pytest.mark.usefixtures("no_slurm")
    def test_preview_and_refusals_remove_nothing(self, desk: Desk, runs: Path) -> None:
        before = desk.snapshot()
        said = desk.run("runs", "delete", "*", "--dry-run", "--state", "completed")
        assert said.code == 0
        assert list(rows(said)) == ["RUN", "grid_0", "grid_1", "grid_2", "3"]
        assert "3 runs, " in said.out
        assert desk.snapshot() == before
        refused = desk.run("runs", "delete", "grid")
        assert (refused.code, refused.out) == (2, "")
        assert "this would remove 3 runs" in refused.err
        assert "--yes" in refused.lines[-1]
        assert "no runs are named" in desk.refused("runs", "delete", "--yes").err
        assert desk.snapshot() == before
        assert desk.run("runs", "delete", "nothing*", "--yes").code == 0
        assert (
            desk.run(
                "runs", "delete", "*", "--older-than", "7d", "--state", "completed", "--yes"
            ).code
            == 0
        )
        assert {path.name for path in runs.iterdir()} == {"sft-old", "sft-new", "Nov20_tensorboard"}

    @pytest.mark.usefixtures("no_slurm")
    @pytest.mark.parametrize(("answer", "left"), [("n\n", True), ("\n", True), ("y\n", False)])
    def test_on_a_terminal_it_asks(
        self, runs: Path, hpctrain: str, answer: str, left: bool
    ) -> None:
        terminal = Terminal(hpctrain, "runs", "delete", "sft-old")
        terminal.until("Remove 1 run, ")
        terminal.type(answer)
        assert terminal.end() == 0
        assert (runs / "sft-old").exists() is left

    def test_a_job_that_starts_while_somebody_reads_the_preview(
        self, desk: Desk, runs: Path, hpctrain: str
    ) -> None:
        slurm(desk)
        terminal = Terminal(hpctrain, "runs", "delete", "sft-*")
        terminal.until("Remove 2 runs")
        make.attempt(runs / "sft-old", "400", at=NOW)
        slurm(desk, ("400", "RUNNING"))
        terminal.type("y\n")
        terminal.until("stays: sft-old (running: job 400 is RUNNING), since a moment ago")
        assert terminal.end() == 0
        assert {path.name for path in runs.glob("sft-*")} == {"sft-old"}
        assert (runs / "sft-old" / "attempts" / "60.0" / "end.json").exists()


@pytest.mark.usefixtures("no_slurm")
class TestLocalJob:
    @pytest.fixture
    def job(self, desk: Desk) -> Iterator[str]:
        desk.write(
            "job.sbatch",
            "#!/bin/bash\n#SBATCH --output=log\nwhile [ ! -e stop ]; do sleep 0.1; done\n",
        )
        job_id = LocalScheduler().submit(Path("job.sbatch")).job_id
        wait_until(lambda: LocalScheduler().status([job_id])[0].state != "PENDING")
        yield job_id
        LocalScheduler().cancel([job_id])

    def test_a_filter_that_matches_a_running_job_removes_nothing_of_it(
        self, desk: Desk, runs: Path, job: str
    ) -> None:
        for name, outcome in (("mine-a", None), ("mine-b", "requeued"), ("mine-c", "failed")):
            make.attempt(make.run(runs, name), job, outcome=outcome)
        before = {
            name: what for name, what in desk.snapshot().items() if name.startswith("runs/mine")
        }
        assert {listed(desk)[name]["state"] for name in ("mine-a", "mine-b")} == {"running"}
        for words in (("mine-*",), ("*", "--state", "running"), ("--older-than", "1s")):
            desk.run("runs", "delete", *words, "--yes")
            assert {
                name: what for name, what in desk.snapshot().items() if name.startswith("runs/mine")
            } == before
        assert {path.name for path in runs.glob("[!.]*")} == {
            "mine-a",
            "mine-b",
            "mine-c",
            "Nov20_tensorboard",
        }
        desk.write("stop", "")
        wait_until(lambda: listed(desk)["mine-a"]["state"] != "running")
        assert desk.run("runs", "delete", "mine-*", "--yes").code == 0
        assert list(runs.glob("mine-*")) == []


# -- `hpctrain runs delete` where runs belong to somebody else, or cannot be written


NOBODY = 65534


class TestSomebodyElse:
    """Runs that this user may not remove, or not all of."""

    @pytest.fixture
    def project(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="hpctrain-") as folder:
            Path(folder).chmod(0o777)
            yield Path(folder)
            subprocess.run(["chmod", "-R", "u+rwX", folder])

    def type(self, project: Path, hpctrain: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Type a command as somebody who is not root."""
        state = project / "state"
        state.mkdir(exist_ok=True)
        state.chmod(0o777)
        # What root has kept closed, Python itself perhaps, may be read, and nothing more.
        caps = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        other = (
            ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *caps)
            if os.geteuid() == 0
            else ()
        )
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(state),
            "HPCTRAIN_STATE_DIR": str(state),
        }
        argv = [*other, sys.executable, "-P", "-m", "hpctrain", "runs", *words]
        return subprocess.run(
            argv,
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )

    def give(self, path: Path) -> None:
        if os.geteuid() == 0:
            for each in (path, *path.rglob("*")):
                os.chown(each, NOBODY, NOBODY, follow_symlinks=False)

    def test_each_is_named_the_others_go_and_the_code_is_1(
        self, project: Path, hpctrain: str
    ) -> None:
        runs = project / "runs"
        for name in ("a", "b", "closed", "deep"):
            make.attempt(make.run(runs, name), outcome="completed")
            (runs / name / "checkpoints" / "checkpoint-1").mkdir(parents=True)
            (runs / name / "checkpoints" / "checkpoint-1" / "model").write_text("x")
        self.give(runs)
        (runs / "closed").chmod(0o555)
        (runs / "deep" / "checkpoints" / "checkpoint-1").chmod(0o555)
        done = self.type(project, hpctrain, "delete", "*", "--yes")
        assert done.returncode == 1, done.stderr
        assert {path.name for path in runs.glob("*")} == {"closed", "deep"}
        assert {path.name for path in runs.glob(".dropp*")} == set()
        assert (runs / "deep" / "checkpoints" / "checkpoint-1" / "model").exists()
        assert (runs / "closed" / "attempts" / "123.0" / "end.json").exists()
        assert "error: 2 runs cannot be removed" in done.stderr
        assert "closed: runs/closed is not writable for you; it belongs to" in done.stderr
        assert "deep: runs/deep/checkpoints/checkpoint-1 is not writable for you" in done.stderr
        assert done.stderr.splitlines()[-1] == "fix: ls -ld runs/closed"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_another_users_runs_in_a_shared_directory(self, project: Path, hpctrain: str) -> None:
        runs = project / "runs"
        for name in ("mine", "theirs", "theirs-open"):
            make.attempt(make.run(runs, name), outcome="completed")
        self.give(runs / "mine")
        for path in (runs / "theirs-open", *(runs / "theirs-open").rglob("*")):
            path.chmod(0o777)
        runs.chmod(0o1777)  # as /tmp
        done = self.type(project, hpctrain, "delete", "*", "--yes")
        assert done.returncode == 1, done.stderr
        assert {path.name for path in runs.glob("*")} == {"theirs", "theirs-open"}
        assert len(list((runs / "theirs-open").rglob("*.json"))) == 3
        assert "theirs-open: cannot remove runs/theirs-open" in done.stderr
        runs.chmod(0o755)
        listing = self.type(project, hpctrain, "list")
        assert (listing.returncode, len(listing.stdout.splitlines())) == (0, 3)
        closed = self.type(project, hpctrain, "delete", "theirs-open", "--yes")
        assert "runs is not writable for you; it belongs to root" in closed.stderr

    def test_a_link_is_not_followed(self, project: Path, hpctrain: str) -> None:
        make.attempt(make.run(project / "scratch", "a"), outcome="completed")
        (project / "runs").mkdir()
        (project / "runs" / "a").symlink_to(project / "scratch" / "a")
        self.give(project)
        done = self.type(project, hpctrain, "delete", "a", "--yes")
        assert done.returncode == 1
        assert "is a link to" in done.stderr
        assert (project / "scratch" / "a" / "run.json").exists()


# -- `hpctrain runs show` lays predicted beside measured, and shows what an evaluation-only r


GIB = 2**30
RECORD: dict[str, Any] = {
    "layout": None,
    "shape": None,
    "gpu": "NVIDIA H100",
    "cluster": None,
    "predicted": {
        "total": 42 * GIB,
        "allocated": 39 * GIB,
        "reserved": 40 * GIB,
        "parts": {},
        "host": None,
        "tokens_per_s": 11000.0,
    },
    "measured": {
        "allocated": 40 * GIB,
        "reserved": None,
        "used": 42 * GIB,
        "host": 10 * GIB,
        "tokens_per_s": 10000.0,
        "mfu": 0.4,
    },
}


@pytest.fixture
def one_run(desk: Desk, no_slurm: None) -> Path:
    return make.run(desk.directory / "runs", "r")


def test_predicted_beside_measured(desk: Desk, one_run: Path) -> None:
    predicted.write(one_run, RECORD)
    lines = desk.run("runs", "show", "r").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("WHAT"))
    assert lines[at].split() == ["WHAT", "PREDICTED", "MEASURED", "PREDICTION", "IS", "OFF"]
    assert [" ".join(line.split()) for line in lines[at + 1 : at + 6]] == [
        "GPU, tensors 39 GiB 40 GiB -2.5 %",
        "GPU, reserved 40 GiB - -",
        "GPU, all 42 GiB 42 GiB +0.0 %",
        "node's memory - 10 GiB -",
        "tokens/s 11,000 10,000 +10.0 %",
    ]
    assert all(len(line) <= 80 for line in lines[at : at + 6])
    assert json.loads(desk.run("runs", "show", "r", "--json").out)["fit"] == {"schema": 1, **RECORD}
