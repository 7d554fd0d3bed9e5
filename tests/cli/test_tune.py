"""`hpctrain tune`: real studies on the local scheduler, with a training of one's own that needs no
torch.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.runs import launch
from hpctrain.util import installed
from tests.cli.conftest import Desk, Said

pytestmark = [pytest.mark.usefixtures("no_slurm"), pytest.mark.torch]
#: A training whose loss is best at x = 3; `ON_INDEX_STEP` is what goes wrong in the task of that
#: index, at that step.
TRAIN = """\
import os, signal, sys
from pathlib import Path
from hpctrain.training.trial import Reporter
said = dict(zip(sys.argv[1::2], sys.argv[2::2]))
run = Path(os.environ["HPCTRAIN_RUN_DIR"])
(run / "argv").open("a").write(" ".join(sys.argv[1:]) + "\\n")
done = run / "done"
trial = Reporter()

def kill_the_job():
    family, pid = [], os.getpid()
    while b"supervis" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        family.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for each in reversed(family):
        os.kill(each, signal.SIGKILL)

for step in range(int(done.read_text()) + 1 if done.exists() else 1, 4):
    if trial.report(step, (float(said["--x"]) - 3) ** 2 + 1 / step):
        trial.leave()
    done.write_text(str(step))
    wrong = Path(f"on_{run.name.rpartition('_')[2]}_{step}")
    if wrong.exists():
        word = wrong.read_text()
        wrong.unlink()
        if word == "kill":
            kill_the_job()
        sys.exit(int(word))
"""
CONFIG = """\
# a search
job_name: line
script: train.py
launcher: srun
restart: {mode: requeue}
training:
  x: 0.5      # a guess
  flag: yes
tune:
  space:
    x: {low: 0.0, high: 10.0}
    how: {choices: [plain, "$(touch CANARY)", null]}
  trials: 4
  parallel: 1
  pruner: none
"""


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", CONFIG)
    desk.set(PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return desk


def tune(desk: Desk, *words: str, code: int = 0) -> Said:
    said = desk.run("tune", "--local", "--wait", *words)
    assert said.code == code, said.err + "".join(
        path.read_text() for path in (desk.directory / "logs").glob("*_*.log")
    )
    assert not list(desk.directory.rglob("CANARY"))
    return said


def state(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run("tune", "status", *words, "--json")
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def rows(desk: Desk) -> list[tuple[int, str, str | None]]:
    return [(row["number"], row["state"], row["reason"]) for row in state(desk)["rows"]]


def tag_of(desk: Desk) -> str:
    return launch.tags(desk.directory / "runs")[-1]


# -- before anything runs --------------------------------------------------------------------------


def test_a_config_without_a_study(desk: Desk) -> None:
    desk.write("config.yaml", "job_name: x\n")
    said = desk.refused("tune", "--local")
    assert said.lines[0] == "error: config has no tune: section"
    assert "tune: {space: " in said.lines[-1]


def test_a_study_that_never_evaluates_is_not_submitted(desk: Desk) -> None:
    desk.write("config.yaml", "tune: {space: {learning_rate: {low: 1e-5, high: 1e-3}}}\n")
    said = desk.run("tune", "--local")
    assert said.code == 1
    assert "tune-no-evaluation" in said.err
    assert launch.tags(desk.directory / "runs") == []
    assert "tune-no-evaluation" in desk.run("check", "--no-slurm").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--local -- --x 3", "x cannot be varied and also given after --"),
        ("--json status", "options before `status` would have no effect"),
    ],
)
def test_what_cannot_be_together(project: Desk, words: str, said: str) -> None:
    assert said in project.refused("tune", *words.split()).err


def test_dry_runs_write_nothing(project: Desk) -> None:
    before = project.snapshot()
    said = project.run("tune", "--local", "--dry-run")
    assert said.code == 0
    assert "study line: 4 trials\narray 0-3%1: 1 node x 1 GPU = 1 process\n" in said.err
    assert project.snapshot() == before


def test_there_is_no_study_yet(project: Desk) -> None:
    for words in (("status",), ("best",), ("status", "x"), ("best", "x")):
        said = project.refused("tune", *words).err
        assert "there is no study" in said
        # A misspelt name must not lead to a command that submits a study.
        assert "fix: hpctrain tune status\n" in said or len(words) == 1


def test_without_optuna_it_says_what_to_install(
    project: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.directory / "runs/.studies/line").mkdir(parents=True)
    project.write("runs/.studies/line/journal.log", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert project.refused("tune", "status").lines == [
        "error: a study needs optuna, which is not installed here",
        f"fix: {installed.command('tune')}",
    ]


# -- studies ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_from_its_beginning_to_the_config_of_the_best(project: Desk) -> None:
    said = tune(project)
    assert "next: hpctrain tune status line" in said.err
    found = state(project)
    assert [(row["number"], row["state"]) for row in found["rows"]] == [
        (number, "completed") for number in range(4)
    ]
    assert found["rows"][0]["params"]["x"] == 0.5, "the first trial takes what training says"
    assert found["rows"][0]["reports"] == [
        {"step": step, "value": 6.25 + 1 / step} for step in (1, 2, 3)
    ]
    best = min(found["rows"], key=lambda row: row["value"])
    assert found["best"] == best["number"]
    argv = (project.directory / "runs" / best["run"] / "argv").read_text()
    assert argv.startswith(f"--flag yes --x {best['params']['x']!r}")

    page = project.run("tune", "status", "line")
    assert page.out.splitlines()[:2] == [
        "study line: 4 of 4 trials done; eval_loss, minimize",
        (
            f"best: trial {best['number']} with {best['value']:.6g}: x={best['params']['x']:.4g}"
            f" how={best['params']['how'] or '-'}"
        ),
    ]
    listed = json.loads(project.run("runs", "list", "--json").out)["runs"]
    assert {run["trial"]["number"] for run in listed} == {0, 1, 2, 3}

    assert json.loads(project.run("tune", "best", "--json").out)["best"]["number"] == best["number"]
    written = project.run("tune", "best", "line", "--to", "best.yaml")
    assert written.out == "best.yaml\n"
    text = (project.directory / "best.yaml").read_text()
    assert f"  x: {best['params']['x']!r}\n" in text
    assert "tune:" not in text
    assert "error: best.yaml exists" in project.refused("tune", "best", "--to", "best.yaml").err
    rendered = project.run("render", "--config", "best.yaml", "--to", "-").out
    assert f"--x {best['params']['x']!r}" in rendered
    assert "#SBATCH --array" not in rendered
    assert project.run("tune", "best", "--to", "-").out.endswith(text.split("\n", 1)[1])

    assert project.run("submit", "--local", "--dry-run", "--config", "best.yaml").code == 0, (
        "what is said to be next works"
    )
    again = project.run("tune", "--local")
    assert again.code == 0
    assert "nothing to submit; next: hpctrain tune status line" in again.err
    assert len(launch.tags(project.directory / "runs")) == 1


@pytest.mark.slow
def test_the_same_command_runs_what_is_missing(project: Desk) -> None:
    tell = project.write(
        "tell.sh",
        '#!/bin/bash\necho "$1|$HPCTRAIN_OUTCOME|$HPCTRAIN_REASON|$HPCTRAIN_STATUS" >>told\n',
    )
    tell.chmod(0o755)
    project.write("config.yaml", CONFIG + "notify: {command: ./tell.sh}\n")
    project.write("on_1_2", "1")
    tune(project, code=1)
    assert rows(project) == [
        (0, "completed", None),
        (1, "failed", "exit-1"),
        (2, "completed", None),
        (3, "completed", None),
    ]
    said = tune(project)
    assert "study line: 4 trials: 3 completed, 1 failed\narray 0-0%1: " in said.err
    assert rows(project)[4:] == [(4, "completed", None)]
    tune_again = project.run("tune", "--local")
    assert "nothing to submit" in tune_again.err
    tag = launch.tags(project.directory / "runs")[0]
    left = project.run("resubmit", tag, "--local", "--wait")
    assert left.code == 0, left.err
    said = (project.directory / "told").read_text().splitlines()[-1]
    assert said.startswith(tag)
    assert said.endswith("|completed|no-trial-left|0")
    assert len(rows(project)) == 5, (
        "the study has its four trials: the run that failed has nothing to do"
    )


@pytest.mark.slow
def test_resubmit_goes_on_with_the_values_of_a_run_that_failed(project: Desk) -> None:
    project.write("on_1_2", "1")
    tune(project, code=1)
    before = state(project)["rows"][1]
    assert project.run("resubmit", tag_of(project), "--local", "--wait").code == 0
    after = state(project)["rows"]
    assert (after[4]["params"], after[4]["retry_of"], after[4]["run"]) == (
        before["params"],
        1,
        before["run"],
    )
    assert [report["step"] for report in after[4]["reports"]] == [
        1,
        2,
        3,
    ], "what it had found before counts"
    assert (project.directory / "runs" / before["run"] / "argv").read_text().count("--x") == 2


@pytest.mark.slow
@pytest.mark.extended
def test_a_requeued_task_goes_on_with_its_trial(project: Desk) -> None:
    project.write("on_2_1", "85")
    tune(project)
    assert rows(project) == [(number, "completed", None) for number in range(4)]
    words = (project.directory / "runs" / f"{tag_of(project)}_2" / "argv").read_text().splitlines()
    assert len(words) == 2
    assert words[0] == words[1]


@pytest.mark.slow
def test_a_trial_whose_job_was_killed_is_seen_by_the_next_call(project: Desk) -> None:
    """The whole job is killed, as by a node that fails: nobody writes a last word, and the
    scheduler alone knows.
    """
    project.write("config.yaml", CONFIG.replace("trials: 4", "trials: 2"))
    project.write("on_0_2", "kill")
    project.run("tune", "--local", "--wait")
    assert [row[1] for row in rows(project)] == ["running", "completed"]
    assert "lost" in project.run("tune", "status").out
    said = tune(project)
    assert "note: trial 0 is failed" in said.err
    assert [row[1] for row in rows(project)] == ["failed", "completed", "completed"]


@pytest.mark.slow
def test_a_second_call_at_once_submits_nothing_twice(project: Desk) -> None:
    first = project.run("tune", "--local", "--parsable")
    assert first.code == 0
    second = project.run("tune", "--local")
    assert "nothing to submit" in second.err, second.err
    project.run("cancel", "--yes", first.out.strip())
