"""Studies: each run gets its trial, once; ends are told by whoever knows them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tune_made import BASE, LOG, SPACE, asked, ended, report, row, tell

from hpctrain.config.study import Pruner
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.training import study

pytestmark = pytest.mark.torch  # optuna is in the same extra


def test_a_run_gets_its_own_trial_again(runs: Path) -> None:
    first, second = asked(runs, "r_0"), asked(runs, "r_1")
    assert (first.number, second.number) == (0, 1)
    assert first.params != second.params
    again = asked(runs, "r_0")
    assert (again.number, again.params) == (0, first.params)
    assert all(SPACE[key].holds(value) for key, value in first.params.items())


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_seed_tries_the_same_in_any_process_and_another_does_not(
    tmp_path: Path, sampler: Any
) -> None:
    def values(name: str, seed: int) -> list[Any]:
        folder = tmp_path / name
        folder.mkdir()
        return [
            asked(folder, f"r_{number}", replace(BASE, sampler=sampler, seed=seed)).params
            for number in range(4)
        ]

    first = values("a", 1)
    assert len({json.dumps(each) for each in first}) == 4, (
        "processes must not all draw the first value of one seed"
    )
    assert values("b", 1) == first
    assert values("c", 2) != first


def test_the_first_trial_takes_what_the_config_says(runs: Path) -> None:
    definition = replace(BASE, first={"learning_rate": 2e-5})
    assert asked(runs, "r_0", definition).params["learning_rate"] == 2e-5
    assert asked(runs, "r_1", definition).params["learning_rate"] != 2e-5


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
    assert row(runs, 1).reports == {5: 2.0}, (
        "it goes on from a checkpoint, so that its past is that of the failed one"
    )
    assert (row(runs, 0).state, row(runs, 0).reason) == ("failed", "error")


@pytest.mark.parametrize(
    ("kept", "direction", "value"),
    [("last", "minimize", 3.0), ("best", "minimize", 1.0), ("best", "maximize", 3.0)],
)
def test_the_value_of_a_trial(runs: Path, kept: Any, direction: Any, value: float) -> None:
    definition = replace(BASE, value=kept, direction=direction)
    asked(runs, "r_0", definition)
    report(runs, 0, s5=2.0, s10=1.0, s15=3.0)
    assert tell(runs, definition, 0) == "completed"
    assert row(runs, 0).value == value
    assert tell(runs, definition, 0, "failed") == "completed", "what is over stays as it is"


def test_a_trial_without_a_value_has_failed(runs: Path) -> None:
    for number, (values, reason) in enumerate(
        [({}, "no-evaluation"), ({"s5": 1.0, "s10": float("nan")}, "nan")]
    ):
        asked(runs, f"r_{number}")
        report(runs, number, **values)
        assert tell(runs, BASE, number) == "failed"
        assert row(runs, number).reason == reason


def test_a_retry_repeats_the_step_that_was_nan(runs: Path) -> None:
    asked(runs, "r_0")
    report(runs, 0, s5=2.0, s10=float("nan"))
    report(runs, 0, s5=1.0)
    assert tell(runs, BASE, 0) == "failed"
    asked(runs, "r_0")
    assert row(runs, 1).reports == {5: 2.0}, "the first report counts; what failed comes again"
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
def test_an_end_that_nobody_has_told_is_told_by_the_next_who_asks(
    runs: Path, said: dict[str, Any], state: str
) -> None:
    asked(runs, "r_0")
    report(runs, 0, s5=2.0)
    ended(runs, "r_0", **said)
    asked(runs, "r_1")
    assert row(runs, 0).state == state
    assert row(runs, 1).state == "running"


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("0 pruned", "pruned"),
        ("0 completed", "completed"),
        ("1 nan", "failed"),
        ("85 signal", "running"),
    ],
)
def test_the_word_of_a_training_counts_where_the_script_was_killed(
    runs: Path, word: str, state: str
) -> None:
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


def test_the_trial_of_a_process_that_was_killed_while_it_asked_is_given_up(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(study, "_value", die)
        with pytest.raises(KeyboardInterrupt):
            study.ask(runs, BASE, "r_0")
    found = asked(runs, "r_0")
    assert (found.number, set(found.params)) == (1, set(SPACE))
    assert (row(runs, 0).state, row(runs, 0).reason) == ("failed", "never-taken")


def test_another_search_is_another_study(runs: Path) -> None:
    asked(runs, "r_0")
    with pytest.raises(UsageError) as refused:
        study.ask(
            runs,
            replace(
                BASE,
                metric="eval_accuracy",
                direction="maximize",
                space={"lora_r": SPACE["lora_r"]},
            ),
            "r_1",
        )
    text = refused.value.render()
    assert "metric was eval_loss, and is eval_accuracy now" in text
    assert "learning_rate was float" in text
    assert text.splitlines()[-1] == "hint: use another name in config.yaml, such as tune.study: s-2"
    wider = {**SPACE, "learning_rate": LOG.replace(high=1.0)}
    assert asked(runs, "r_1", replace(BASE, space=wider, trials=60)).number == 1


def test_a_damaged_journal_is_said(runs: Path) -> None:
    asked(runs, "r_0")
    path = study.folder(runs, "s") / "journal.log"
    path.write_bytes(b"not JSON\n" + path.read_bytes())
    with pytest.raises(HpctrainError, match="is damaged"):
        study.open_study(runs, "s")


def test_the_median_pruner_stops_what_is_worse(runs: Path) -> None:
    definition = replace(BASE, pruner=Pruner(startup_trials=2, startup_steps=5))
    for number in range(3):
        asked(runs, f"r_{number}", definition)
    stops = []
    for number, value in enumerate((1.0, 2.0, 9.0)):
        there = study.open_study(runs, "s")
        there.pruner = study.pruner(definition)
        stops.append([study.report(there, number, step, value) for step in (3, 6)])
        if number < 2:
            tell(runs, definition, number)
    assert stops == [[False, False], [False, False], [False, True]]
    tell(runs, definition, 2, "pruned")
    assert study.report(study.open_study(runs, "s"), 2, 8, 1.0) is None
