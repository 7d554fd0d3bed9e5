"""What the job script calls for its trial, and many of them at once: none is lost, none is doubled."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tune_made import BASE, SPACE, row

from hpctrain.config.study import Definition, Space
from hpctrain.errors import UsageError
from hpctrain.training import study, trial

pytestmark = pytest.mark.torch  # optuna is in the same extra


# -- what the job script calls ---------------------------------------------------------------------


@pytest.fixture
def job(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    definition = replace(
        BASE,
        space={
            **SPACE,
            "odd": Space(choices=("$(touch CANARY)", "a 'b' \"c\" *; d")),
        },
    )
    (runs / ".studies").mkdir()
    (runs / ".studies" / definition.file).write_text(definition.text)
    (runs / "r_0" / "attempts" / "7.0").mkdir(parents=True)
    monkeypatch.setenv("HPCTRAIN_RUN_DIR", str(runs / "r_0"))
    monkeypatch.setenv("HPCTRAIN_ATTEMPT", "7.0")
    yield runs / ".studies" / definition.file
    assert not Path("CANARY").exists()


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as ended_:
        trial.main([str(word) for word in words])
    return int(ended_.value.code or 0)


def test_asking_and_telling_from_a_script(
    job: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("ask", job) == 0
    said = json.loads((runs / "r_0" / "trial.json").read_text())
    words = (runs / "r_0" / "trial.words").read_text().splitlines()
    assert words[::2] == [f"--{key}" for key in said["params"]]
    assert words[-1] == said["params"]["odd"]
    read = subprocess.run(
        [
            "bash",
            "-c",
            (
                'command=(x); mapfile -t -O "${#command[@]}" command <trial.words; printf "%s\\n"'
                ' "${command[@]}"'
            ),
        ],
        cwd=runs / "r_0",
        capture_output=True,
        text=True,
        check=True,
    )
    assert read.stdout.splitlines() == ["x", *words]
    reporter = trial.Reporter(runs / "r_0" / "trial.json")
    assert not reporter.report(10, 1.5)
    assert (reporter.metric, reporter.said) == ("eval_loss", None)
    assert call("tell", 85, "deadline") == 0
    assert row(runs, 0).state == "running"
    assert call("tell", 0, "completed") == 0
    assert (row(runs, 0).state, row(runs, 0).value) == ("completed", 1.5)
    assert not reporter.report(20, 1.0)
    assert "has already ended" in str(reporter.said)
    assert call("ask", job) == trial.NONE_LEFT
    assert "hpctrain: trial 0 of the study s is completed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "reason", "state"),
    [
        (1, "nan", "failed"),
        (137, "", "failed"),
        (0, "pruned", "pruned"),
        (86, "stop-file", "running"),
    ],
)
def test_what_an_exit_code_means_for_a_trial(
    job: Path, runs: Path, status: int, reason: str, state: str
) -> None:
    assert call("ask", job) == 0
    assert call("tell", status, reason) == 0
    assert row(runs, 0).state == state


def test_a_training_that_was_told_to_end_is_not_over(job: Path, runs: Path) -> None:
    assert call("ask", job) == 0
    (runs / "r_0" / "attempts" / "7.0" / "stop").touch()
    assert call("tell", 143, "") == 0
    assert row(runs, 0).state == "running"


def test_what_is_wrong_is_said(
    job: Path, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("ask", runs / "nothing.json") == 2
    assert call("tell", "1", "x") == 2
    assert "does not say which trial this is" in capsys.readouterr().err
    assert call("sing") == 2
    job.write_text("{}")
    assert call("ask", job) == 2
    monkeypatch.delenv("HPCTRAIN_RUN_DIR")
    assert call("ask", job) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_disk_that_takes_nothing_is_said(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("ask", job) == 0

    def full(lock: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", lock._lock_file)

    monkeypatch.setattr("optuna.storages.journal.JournalFileOpenLock.acquire", full)
    for words in (("ask", job), ("tell", 0, "completed")):
        assert call(*words) == 1
        assert capsys.readouterr().err.startswith("error: the study can write nothing: ")


def test_a_reporter_without_a_journal_says_so_and_lets_the_training_go_on(
    job: Path, runs: Path
) -> None:
    assert call("ask", job) == 0
    reporter = trial.Reporter(runs / "r_0" / "trial.json")
    journal = runs / ".studies" / "s" / "journal.log"
    journal.rename(journal.with_name("away"))
    assert not reporter.report(5, 1.0)
    assert "the study did not get the value of step 5" in str(reporter.said)
    journal.with_name("away").rename(journal)
    assert not reporter.report(10, 1.0)
    assert reporter.said is None


def test_a_metric_that_no_evaluation_has_ends_the_training(job: Path, runs: Path) -> None:
    from transformers import TrainerControl, TrainerState

    from hpctrain.training.process import Ranks
    from hpctrain.training.trial_callback import TrialCallback

    assert call("ask", job) == 0
    watch = TrialCallback(runs / "r_0" / "trial.json", Ranks())
    event: Any = (None, TrainerState(), TrainerControl())
    watch.on_evaluate(*event, metrics={"eval_accuracy": 0.5})
    with pytest.raises(UsageError, match="no evaluation has the metric 'eval_loss'"):
        watch.on_step_begin(*event)
    watch.on_evaluate(*event, metrics={"eval_loss": 0.5})
    watch.on_step_begin(*event)
    assert row(runs, 0).reports == {0: 0.5}


# -- many at once ----------------------------------------------------------------------------------

WORKER = """
import os, sys
from pathlib import Path
from hpctrain.config.study import from_json
from hpctrain.training import study
import json
runs, me, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
study.GRACE_S = 5  # a process killed while it held a lock: how long the others wait
definition = from_json(json.loads(Path(sys.argv[4]).read_text()))
for number in range(rounds):
    found = study.ask(runs, definition, f"w{me}_{number}")
    there = study.open_study(runs, "s")
    study.report(there, found.number, 5, found.number)
    print(found.number, json.dumps(found.params, sort_keys=True), flush=True)
    study.tell(there, definition, found.number, "completed")
"""


def workers(
    runs: Path, count: int, rounds: int, definition: Definition, prefix: str = ""
) -> list[subprocess.Popen[str]]:
    file = runs / "definition.json"
    file.write_text(definition.text)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(runs), f"{prefix}{number}", str(rounds), str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(count)
    ]


@pytest.mark.slow
def test_six_processes_of_10_trials_lose_and_double_none(runs: Path) -> None:
    definition = replace(BASE, trials=60, sampler="random")
    numbers: list[int] = []
    for process in workers(runs, 6, 10, definition):
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        numbers += [int(line.split()[0]) for line in out.splitlines()]
    assert sorted(numbers) == list(range(60))
    rows = study.rows(study.open_study(runs, "s"))
    assert [each.state for each in rows] == ["completed"] * 60
    assert [each.value for each in rows] == [float(number) for number in range(60)]
    assert len({each.run for each in rows}) == 60
    assert study.ask(runs, definition, "one more") is None
