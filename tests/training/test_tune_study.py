"""Studies: each run gets its trial, once; ends are told by whoever knows them; many processes share one journal."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs.tune import Definition, Distribution, Pruner
from hpctrain.runs import files
from hpctrain.training import study, study_journal, study_sampling, trial

pytestmark = pytest.mark.torch  # optuna is in the same extra

LOG = Distribution(kind="float", low=1e-5, high=1e-3, log=True)
SPACE = {
    "learning_rate": LOG,
    "lora_r": Distribution(kind="choice", choices=(8, 16)),
    "steps": Distribution(kind="int", low=0, high=20, step=5),
}
BASE = Definition(study="s", space=SPACE, trials=50)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def report(runs: Path, number: int, **values: float) -> None:
    for step, value in values.items():
        study.report(study.open_study(runs, "s"), number, int(step[1:]), value)


def tell(runs: Path, definition: Definition, number: int, ending: Any = "completed", reason: str | None = None) -> str:
    return study.tell(study.open_study(runs, "s"), definition, number, ending, reason)


def row(runs: Path, number: int) -> study.Row:
    return study.rows(study.open_study(runs, "s"))[number]


def ended(runs: Path, run: str, attempt: str = "7.0", **said: Any) -> None:
    place = runs / run / "attempts" / attempt
    place.mkdir(parents=True)
    files.write_json(place / "start.json", {"schema": 1, "job_id": "7", "at": 1})
    if said:
        files.write_json(place / "end.json", {"schema": 1, "at": 2, **said})


def asked(runs: Path, run: str, definition: Definition = BASE, **more: Any) -> study.Asked:
    found = study.ask(runs, definition, run, **more)
    assert found is not None
    return found


def test_a_run_gets_its_own_trial_again(runs: Path) -> None:
    first, second = asked(runs, "r_0"), asked(runs, "r_1")
    assert (first.number, second.number) == (0, 1)
    assert first.params != second.params
    again = asked(runs, "r_0")
    assert (again.number, again.params, again.again) == (0, first.params, True)
    assert all(SPACE[key].holds(value) for key, value in first.params.items())


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_seed_tries_the_same_in_any_process_and_another_does_not(tmp_path: Path, sampler: Any) -> None:
    def values(name: str, seed: int) -> list[Any]:
        folder = tmp_path / name
        folder.mkdir()
        return [asked(folder, f"r_{number}", replace(BASE, sampler=sampler, seed=seed)).params for number in range(4)]

    first = values("a", 1)
    assert len({json.dumps(each) for each in first}) == 4, "processes must not all draw the first value of one seed"
    assert values("b", 1) == first
    assert values("c", 2) != first


def test_the_first_trial_takes_what_the_config_says(runs: Path) -> None:
    definition = replace(BASE, first={"learning_rate": 2e-5})
    assert asked(runs, "r_0", definition).params["learning_rate"] == 2e-5
    assert asked(runs, "r_1", definition).params["learning_rate"] != 2e-5


def test_a_grid_is_tried_whole_and_each_point_once(runs: Path) -> None:
    space = {"lora_r": Distribution(kind="choice", choices=(8, None)), "lr": Distribution(kind="float", low=0.1, high=0.3, step=0.1)}
    definition = Definition(study="s", space=space, sampler="grid", trials=6)
    found = [asked(runs, f"r_{number}", definition).params for number in range(6)]
    assert found == [{"lora_r": rank, "lr": lr} for rank in (8, None) for lr in (0.1, 0.2, 0.3)]
    assert study.ask(runs, definition, "r_6") is None
    tell(runs, definition, 2, "failed")
    assert asked(runs, "r_6", definition).params == found[2], "a point whose trial has failed is missing"


def test_there_are_no_more_trials_than_were_asked_for(runs: Path) -> None:
    definition = replace(BASE, trials=3)
    for number in range(3):
        asked(runs, f"r_{number}", definition)
        report(runs, number, s5=1.0)
    assert study.ask(runs, definition, "r_3") is None
    tell(runs, definition, 0)
    tell(runs, definition, 1, "pruned")
    assert study.ask(runs, definition, "r_3") is None
    tell(runs, definition, 2, "failed", "nan")
    assert asked(runs, "r_3", definition).number == 3
    assert study.ask(runs, definition, "r_0") is None, "its trial is over"


def test_a_run_that_failed_and_is_submitted_again_goes_on_with_its_values(runs: Path) -> None:
    first = asked(runs, "r_0")
    report(runs, 0, s5=2.0)
    tell(runs, BASE, 0, "failed", "error")
    again = asked(runs, "r_0")
    assert (again.number, again.params, again.retry_of) == (1, first.params, 0)
    assert row(runs, 1).reports == {5: 2.0}, "it goes on from a checkpoint, so that its past is that of the failed one"
    assert (row(runs, 0).state, row(runs, 0).reason) == ("failed", "error")


@pytest.mark.parametrize(("kept", "direction", "value"), [("last", "minimize", 3.0), ("best", "minimize", 1.0), ("best", "maximize", 3.0)])
def test_the_value_of_a_trial(runs: Path, kept: Any, direction: Any, value: float) -> None:
    definition = replace(BASE, value=kept, direction=direction)
    asked(runs, "r_0", definition)
    report(runs, 0, s5=2.0, s10=1.0, s15=3.0)
    assert tell(runs, definition, 0) == "completed"
    assert row(runs, 0).value == value
    assert tell(runs, definition, 0, "failed") == "completed", "what is over stays as it is"


def test_a_trial_without_a_value_has_failed(runs: Path) -> None:
    for number, (values, reason) in enumerate([({}, "no-evaluation"), ({"s5": 1.0, "s10": float("nan")}, "nan")]):
        asked(runs, f"r_{number}")
        report(runs, number, **values)
        assert tell(runs, BASE, number) == "failed"
        assert row(runs, number).reason == reason


def test_a_second_report_of_a_step_changes_nothing(runs: Path) -> None:
    asked(runs, "r_0")
    report(runs, 0, s5=2.0)
    report(runs, 0, s5=1.0)
    assert row(runs, 0).reports == {5: 2.0}


def test_a_number_takes_the_place_of_nan(runs: Path) -> None:
    asked(runs, "r_0")
    report(runs, 0, s5=2.0, s10=float("nan"))
    assert tell(runs, BASE, 0) == "failed"
    asked(runs, "r_0")
    assert row(runs, 1).reports == {5: 2.0}, "the step that failed comes again"
    report(runs, 1, s10=float("nan"))
    report(runs, 1, s10=1.0)
    assert tell(runs, BASE, 1) == "completed"
    assert row(runs, 1).value == 1.0


ENDS = [
    ({"status": 0, "outcome": "completed", "reason": "completed"}, "completed"),
    ({"status": 0, "outcome": "completed", "reason": "pruned"}, "pruned"),
    ({"status": 1, "outcome": "failed", "reason": "nan"}, "failed"),
    ({"status": 85, "outcome": "requeued", "reason": "deadline"}, "running"),
    ({"status": 86, "outcome": "stopped", "reason": "stop-file"}, "running"),
    ({"status": 143, "outcome": "interrupted", "reason": ""}, "running"),
    ({}, "running"),
]


@pytest.mark.parametrize(("said", "state"), ENDS)
def test_an_end_that_nobody_has_told_is_told_by_the_next_who_asks(runs: Path, said: dict[str, Any], state: str) -> None:
    asked(runs, "r_0")
    report(runs, 0, s5=2.0)
    ended(runs, "r_0", **said)
    asked(runs, "r_1")
    assert row(runs, 0).state == state
    assert row(runs, 1).state == "running"


@pytest.mark.parametrize(
    ("word", "state"), [("0 pruned", "pruned"), ("0 completed", "completed"), ("1 nan", "failed"), ("85 signal", "running")]
)
def test_the_word_of_a_training_counts_where_the_script_was_killed(runs: Path, word: str, state: str) -> None:
    asked(runs, "r_0")
    report(runs, 0, s5=2.0)
    ended(runs, "r_0")
    (runs / "r_0" / "attempts" / "7.0" / "exit").write_text(word + "\n")
    asked(runs, "r_1")
    assert row(runs, 0).state == state


def test_a_job_that_a_scheduler_knows_to_be_gone(runs: Path) -> None:
    asked(runs, "r_0")
    ended(runs, "r_0")
    assert study.settle(runs, BASE, {}) == []
    assert study.settle(runs, BASE, {"r_0": "node_fail"}) == [(0, "r_0", "failed")]
    assert row(runs, 0).reason == "node_fail"


def test_a_trial_that_its_process_never_took_is_given_up(runs: Path) -> None:
    asked(runs, "r_0")
    there = study.open_study(runs, "s")
    there._storage.create_new_trial(there._study_id)  # and killed
    assert asked(runs, "r_1").number == 2
    assert (row(runs, 1).state, row(runs, 1).reason) == ("failed", "never-taken")


def test_a_process_that_was_killed_while_it_asked_gets_the_same_trial(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "suggest", die)
    with pytest.raises(KeyboardInterrupt):
        study.ask(runs, BASE, "r_0")
    monkeypatch.setattr(study, "suggest", study_sampling.suggest)
    found = asked(runs, "r_0")
    assert (found.number, found.again, set(found.params)) == (0, True, set(SPACE))


def test_another_search_is_another_study(runs: Path) -> None:
    asked(runs, "r_0")
    with pytest.raises(UsageError) as refused:
        study.ask(runs, replace(BASE, metric="eval_accuracy", direction="maximize", space={"lora_r": SPACE["lora_r"]}), "r_1")
    text = refused.value.render()
    assert "metric was eval_loss, and is eval_accuracy now" in text
    assert "learning_rate is not in the space any more" in text
    assert text.splitlines()[-1] == "fix: another name in config.yaml, such as tune.study: s-2"
    wider = {**SPACE, "learning_rate": replace(LOG, high=1.0)}
    assert asked(runs, "r_1", replace(BASE, space=wider, trials=60)).number == 1


def test_a_damaged_journal_is_said(runs: Path) -> None:
    asked(runs, "r_0")
    path = study.folder(runs, "s") / "journal.log"
    path.write_bytes(b"not JSON\n" + path.read_bytes())
    with pytest.raises(HpctrainError, match="is damaged"):
        study.open_study(runs, "s")


def test_optunas_own_reader_reads_the_journal(runs: Path) -> None:
    import optuna

    asked(runs, "r_0")
    report(runs, 0, s5=2.0)
    tell(runs, BASE, 0)
    backend = optuna.storages.journal.JournalFileBackend(str(study.folder(runs, "s") / "journal.log"))
    there = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend))
    assert there.best_value == 2.0


def test_the_median_pruner_stops_what_is_worse_and_hyperband_is_there(runs: Path) -> None:
    definition = replace(BASE, pruner=Pruner(startup_trials=2, startup_steps=5))
    for number in range(3):
        asked(runs, f"r_{number}", definition)
    stops = []
    for number, value in enumerate((1.0, 2.0, 9.0)):
        there = study.open_study(runs, "s")
        there.pruner = study_sampling.pruner(definition)
        stops.append([study.report(there, number, step, value) for step in (3, 6)])
        if number < 2:
            tell(runs, definition, number)
    assert stops == [[False, False], [False, False], [False, True]]
    tell(runs, definition, 2, "pruned")
    assert study.report(study.open_study(runs, "s"), 2, 8, 1.0) is None
    made = study_sampling.pruner(replace(BASE, pruner=Pruner(kind="hyperband", most_steps=400, first_step=50)))
    assert (made._min_resource, made._max_resource) == (50, 400)


# -- what the job script calls ------------------------------------------------------------------------------------------


@pytest.fixture
def job(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    definition = replace(BASE, space={**SPACE, "odd": Distribution(kind="choice", choices=("$(touch CANARY)", "a 'b' \"c\" *; d"))})
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


def test_asking_and_telling_from_a_script(job: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ask", job) == 0
    said = json.loads((runs / "r_0" / "trial.json").read_text())
    words = (runs / "r_0" / "trial.words").read_text().splitlines()
    assert words[::2] == [f"--{key}" for key in said["params"]]
    assert words[-1] == said["params"]["odd"]
    read = subprocess.run(
        ["bash", "-c", 'command=(x); mapfile -t -O "${#command[@]}" command <trial.words; printf "%s\\n" "${command[@]}"'],
        cwd=runs / "r_0", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert read.stdout.splitlines() == ["x", *words]
    reporter = trial.Reporter(runs / "r_0" / "trial.json")
    assert not reporter.report(10, 1.5)
    assert (reporter.metric, reporter.said) == ("eval_loss", None)
    assert call("tell", 85, "deadline") == 0
    assert row(runs, 0).state == "running"
    assert call("tell", 0, "completed") == 0
    assert (row(runs, 0).state, row(runs, 0).value) == ("completed", 1.5)
    assert not reporter.report(20, 1.0)
    assert "is over already" in str(reporter.said)
    assert call("ask", job) == trial.NONE_LEFT
    assert "hpctrain: trial 0 of the study s is completed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "reason", "state"), [(1, "nan", "failed"), (137, "", "failed"), (0, "pruned", "pruned"), (86, "stop-file", "running")]
)
def test_what_an_exit_code_means_for_a_trial(job: Path, runs: Path, status: int, reason: str, state: str) -> None:
    assert call("ask", job) == 0
    assert call("tell", status, reason) == 0
    assert row(runs, 0).state == state


def test_a_training_that_was_told_to_end_is_not_over(job: Path, runs: Path) -> None:
    assert call("ask", job) == 0
    (runs / "r_0" / "attempts" / "7.0" / "stop").touch()
    assert call("tell", 143, "") == 0
    assert row(runs, 0).state == "running"


def test_what_is_wrong_is_said(job: Path, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
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
    job: Path, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("ask", job) == 0

    def full(lock: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(lock.path))

    monkeypatch.setattr(study_journal.Lock, "acquire", full)
    for words in (("ask", job), ("tell", 0, "completed")):
        assert call(*words) == 1
        said = capsys.readouterr().err.splitlines()
        assert said[0] == "error: the study can write nothing: read-only file system"
        assert said[-1].startswith(f"fix: df -h {runs / '.studies' / 's'}; ls -ld ")


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b'{"op_code": 99, "worker_id": "x"}\n'])
def test_lines_that_mean_nothing_are_damage(runs: Path, line: bytes) -> None:
    asked(runs, "r_0")
    with (study.folder(runs, "s") / "journal.log").open("ab") as stream:
        stream.write(line)
    with pytest.raises(HpctrainError, match="is damaged"):
        study.open_study(runs, "s")


def test_a_reporter_without_a_journal_says_so_and_lets_the_training_go_on(job: Path, runs: Path) -> None:
    assert call("ask", job) == 0
    reporter = trial.Reporter(runs / "r_0" / "trial.json")
    journal = runs / ".studies" / "s" / "journal.log"
    journal.rename(journal.with_name("away"))
    assert not reporter.report(5, 1.0)
    assert "the study was not told of step 5" in str(reporter.said)
    journal.with_name("away").rename(journal)
    assert not reporter.report(10, 1.0)
    assert reporter.said is None


# -- many at once -------------------------------------------------------------------------------------------------------

WORKER = """
import os, sys
from pathlib import Path
from hpctrain.jobs.tune import from_json
from hpctrain.training import study
import json
runs, me, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
definition = from_json(json.loads(Path(sys.argv[4]).read_text()))
for number in range(rounds):
    found = study.ask(runs, definition, f"w{me}_{number}")
    there = study.open_study(runs, "s")
    study.report(there, found.number, 5, found.number)
    print(found.number, json.dumps(found.params, sort_keys=True), flush=True)
    study.tell(there, definition, found.number, "completed")
"""


def workers(runs: Path, count: int, rounds: int, definition: Definition, prefix: str = "") -> list[subprocess.Popen[str]]:
    file = runs / "definition.json"
    file.write_text(definition.text)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(runs), f"{prefix}{number}", str(rounds), str(file)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True, env=environment,
        )
        for number in range(count)
    ]  # fmt: skip


@pytest.mark.slow
def test_eight_processes_of_25_trials_lose_and_double_none(runs: Path) -> None:
    definition = replace(BASE, trials=200, sampler="random")
    numbers: list[int] = []
    for process in workers(runs, 8, 25, definition):
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        numbers += [int(line.split()[0]) for line in out.splitlines()]
    assert sorted(numbers) == list(range(200))
    rows = study.rows(study.open_study(runs, "s"))
    assert [each.state for each in rows] == ["completed"] * 200
    assert [each.value for each in rows] == [float(number) for number in range(200)]
    assert len({each.run for each in rows}) == 200
    assert study.ask(runs, definition, "one more") is None


@pytest.mark.slow
def test_processes_that_are_killed_anywhere_leave_a_study_that_goes_on(runs: Path) -> None:
    definition = replace(BASE, trials=400, sampler="random")
    said: list[str] = []
    for round_ in range(6):
        processes = workers(runs, 3, 12, definition, f"{round_}_")  # a run whose trial is over gets no other
        for position, process in enumerate(processes):
            assert process.stdout is not None
            said += [process.stdout.readline() for _ in range(1 + (position or round_) % 2)]
            process.send_signal(signal.SIGKILL)
        for process in processes:
            said += process.communicate()[0].splitlines()
    rows = study.rows(study.open_study(runs, "s"))
    assert [each.number for each in rows] == list(range(len(rows)))
    numbers = [int(line.split()[0]) for line in said]
    assert len(numbers) == len(set(numbers)) >= 18, "each has a trial of its own"
    assert set(numbers) <= {each.number for each in rows}, "none is lost"
    assert asked(runs, "after", definition).number == len(rows)
    tell(runs, definition, len(rows), "failed")
