"""`hpctrain report` as people type it."""

import json
import re
from typing import Any

import pytest

from tests.cli.conftest import Desk, Said
from tests.report import made_runs

pytestmark = pytest.mark.usefixtures("no_slurm")


@pytest.fixture
def project(desk: Desk) -> Desk:
    """Return a project with a finished run of 8 GPUs."""
    made_runs.gpu_run(desk.directory / "runs", steps=400, restarts=1)
    return desk


def call(project: Desk, *words: str, code: int = 0) -> Said:
    done = project.run("report", *words)
    assert done.code == code, done.out + done.err
    return done


def test_the_page_lies_beside_the_run_and_needs_nothing_else(project: Desk) -> None:
    done = call(project)
    assert done.out == "runs/pretrain-1/report.html\n"
    assert "next, on your own machine: scp " in done.err
    page = (project.directory / "runs/pretrain-1/report.html").read_text()
    assert "default-src 'none'" in page
    without_namespace = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|\bsrc=|@import|url\(", without_namespace), (
        "something from elsewhere"
    )
    for word in (
        "pretrain-1",
        "GPU hours",
        "#SBATCH --mem=",
        "rank 3 (the fullest)",
        "NVIDIA H100",
        "Where the time went",
    ):
        assert word in page


@pytest.mark.slow
def test_again_replaces_only_its_own_file(project: Desk) -> None:
    call(project)
    call(project)
    target = project.directory / "notes.html"
    target.write_text("<h1>mine</h1>")
    done = call(project, "--to", "notes.html", code=2)
    assert done.err.endswith(
        "error: notes.html exists, and is not a report of hpctrain\nhint: name another file with"
        " --to, or replace it with --force\n"
    )
    assert target.read_text() == "<h1>mine</h1>"
    assert call(project, "--to", "notes.html", "--force").out == "notes.html\n"
    assert [path.name for path in project.directory.iterdir() if path.name.startswith(".")] == []


def test_to_standard_output(project: Desk) -> None:
    assert call(project, "--to", "-").out.startswith("<!DOCTYPE html>")
    assert not (project.directory / "runs/pretrain-1/report.html").exists()


def test_json(project: Desk) -> None:
    said: dict[str, Any] = json.loads(call(project, "pretrain-1", "--json").out)
    assert (
        said["run"]["id"],
        said["state"],
        said["step"],
        said["max_steps"],
        said["lost_steps"],
    ) == (
        "pretrain-1",
        "completed",
        400,
        400,
        70,
    )
    assert len(said["ranks"]) == 8
    assert max(said["ranks"], key=lambda each: each["peak"]["gpu_used_mib"])["rank"] == 3
    assert said["efficiency"]["gpus"] == 8
    assert [start["lost_steps"] for start in said["starts"]] == [70, 0]
    assert said["efficiency"]["next"][0]["directive"].startswith("#SBATCH --time=")


def test_words_behind_the_dashes_win_over_the_config_on_the_page_as_they_did_in_the_job(
    project: Desk,
) -> None:
    launch = project.directory / "runs/.launches/pretrain-1"
    config = {"training": {"max_steps": "60", "save_steps": "30", "report_to": "none"}}
    made_runs.write(
        launch / "config.json",
        {"schema": 1, "config": config, "origins": {"training.max_steps": "config.yaml:3"}},
    )
    words = (
        "--nodes 1 -- --max_steps 400 --logging-steps=7 --bf16 --report_to none tensorboard"
        " --max_steps 500 --api_token hunter2hunter2"
    )
    (project.directory / "runs/pretrain-1/script.sbatch").write_text(
        "#!/bin/bash\n# made by hpctrain 0.1.0 from template job.sbatch.j2,"
        " text 0123456789ab\n# make it again: cd /somewhere && hpctrain render"
        f" {words}\n"
    )
    said = json.loads(call(project, "--json").out)
    assert said["config"]["training"] == {
        "max_steps": "500",
        "save_steps": "30",
        "logging_steps": "7",
        "bf16": "true",
        "report_to": ["none", "tensorboard"],
        "api_token": "(hidden)",
    }
    assert {"key": "training.max_steps", "value": "500", "from": "given after --"} in said["set"]


@pytest.mark.parametrize(
    "line",
    [
        "hpctrain submit -- --hub_token hf_x --password={}",
        "a --password={} b",
        "--a b --api-key {}",
        '{{"password": "{}"}}',
        "Authorization: Bearer {}",
        '"authorization": "Basic {}"',
        "https://me:{}@host/x",
        "WANDB_API_KEY={}",
        "token: {}",
        "x --secret '{}'",
    ],
)
def test_forms_of_a_secret(line: str) -> None:
    from hpctrain.util import secrets

    assert "hunter2" not in secrets.hidden(line.format("hunter2hunter2hunter2"))
    assert (
        secrets.hidden("pad_token: <pad> max_token: 1000000 Basic training eos_token=</s>").count(
            "hidden"
        )
        == 0
    )


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        ("pretain-1", "error: there is no run 'pretain-1'", 2),
        ("--to x.html --json", "--to and --json are mutually exclusive", 2),
        ("--metric loss", "--metric orders several runs", 2),
        ("--runs-dir nowhere", "no such directory: nowhere", 2),
        ("--runs-dir empty", "there are no runs in empty", 2),
        ("--to runs", "is a directory", 2),
        ("--to no/where.html", "fix: mkdir -p no", 1),
        ("z*", "no run is called like z*", 2),
    ],
)
def test_bad_words(project: Desk, words: str, said: str, code: int) -> None:
    (project.directory / "empty").mkdir()
    assert said in call(project, *words.split(), code=code).err


def test_a_run_that_failed_before_its_first_step(project: Desk) -> None:
    run = project.directory / "runs" / "broken"
    path = run / "attempts" / "90000009.0"
    made_runs.write(
        run / "run.json", {"run_id": "broken", "tag": "broken", "created": made_runs.AT}
    )
    made_runs.write(
        path / "start.json",
        {
            "job_id": "90000009",
            "slurm_job_id": "90000009",
            "restart": 0,
            "host": "n1",
            "at": made_runs.AT,
        },
    )
    made_runs.write(
        path / "end.json",
        {"at": made_runs.AT + 30, "status": 1, "reason": "error", "outcome": "failed"},
    )
    (run / "script.sbatch").write_text(
        f"#!/bin/bash\n#SBATCH --output={project.directory}/logs/out_%j.log\n"
    )
    (project.directory / "logs").mkdir()
    log = "Traceback (most recent call last):\n"
    log += (
        '  File "train.py", line 3, in <module>\n    import torhc\nModuleNotFoundError: No module'
        " named 'torhc'\n"
    )
    (project.directory / "logs/out_90000009.log").write_text(log)
    call(project, "broken")
    page = (project.directory / "runs/broken/report.html").read_text()
    assert "No module named &#39;torhc&#39;" in page
    assert "Diagnosis" in page
    assert json.loads(call(project, "broken", "--json").out)["diagnosis"] is not None


def test_secrets_stay_where_they_are(project: Desk) -> None:
    token, password = "hf_" + "a" * 34, "hunter2hunter2hunter2"
    config = {
        "training": {"hub_token": token},
        "environment": {
            "env": {"WANDB_API_KEY": "0" * 40, "HTTP_PROXY": f"http://me:{password}@proxy"}
        },
    }
    origins = dict.fromkeys(
        ["training.hub_token", "environment.env.WANDB_API_KEY", "environment.env.HTTP_PROXY"],
        "config.yaml:3",
    )
    made_runs.write(
        project.directory / "runs/.launches/pretrain-1/config.json",
        {"schema": 1, "config": config, "origins": origins},
    )
    (project.directory / "runs/pretrain-1/script.sbatch").write_text(
        f"#!/bin/bash\n#SBATCH --output={project.directory}/logs/out_%j.log\n"
    )
    (project.directory / "logs").mkdir()
    (project.directory / "logs/out_4711.log").write_text(
        f"login with --token {token}\nWANDB_API_KEY={'0' * 40}\nproxy http://me:{password}@proxy\n"
        f'{{"password": "{password}"}} Authorization: Bearer {password}\n'
    )
    call(project)
    for said in (
        (project.directory / "runs/pretrain-1/report.html").read_text(),
        call(project, "--json").out,
    ):
        assert token not in said
        assert "0" * 40 not in said
        assert password not in said
        assert "(hidden)" in said


@pytest.fixture
def sweep(desk: Desk) -> Desk:
    """Return a project with a sweep over learning rates and optimizers; point 2 has failed."""
    for index, rate in enumerate((3e-5, 3e-4, 3e-3, 1e-3)):
        run = made_runs.gpu_run(
            desk.directory / "runs",
            f"lr_{index}",
            ranks=1,
            steps=200,
            restarts=0,
            tag="lr",
            index=index,
            rate=rate,
            seed=index,
            outcome="failed" if index == 2 else "completed",
        )
        made_runs.write(
            run / "point.json",
            {"learning_rate": rate, "optim": "lion" if index % 2 else "adamw", "seed": 1},
        )
    return desk


def test_a_sweep_is_compared(sweep: Desk) -> None:
    said = json.loads(call(sweep, "lr", "--json").out)
    assert (said["metric"], said["best"], said["varying"]) == (
        "eval_loss",
        "lr_1",
        ["learning_rate", "optim"],
    )
    assert [run["id"] for run in said["runs"]][:2] == ["lr_1", "lr_3"]
    assert said["next"] == ["hpctrain report lr_1", "hpctrain explain lr_2"]
    done = call(sweep, "lr")
    assert done.out == "runs/lr.report.html\n"
    assert "best: lr_1" in done.err
    page = (sweep.directory / "runs/lr.report.html").read_text()
    assert 'id="curves"' in page
    assert "best: lr_1" in page


def test_the_name_of_a_study_means_its_trials(sweep: Desk) -> None:
    for index in range(3):
        trial = {"study": "search", "number": index, "params": {"learning_rate": 10.0**-index}}
        made_runs.write(sweep.directory / f"runs/lr_{index}/trial.json", trial)
    (sweep.directory / "runs/.studies/search").mkdir(parents=True)
    made_runs.write(
        sweep.directory / "runs/.studies/search-0a1b.json",
        {"study": "search", "metric": "eval_loss", "direction": "maximize"},
    )
    said = json.loads(call(sweep, "search", "--json").out)
    assert len(said["runs"]) == 3
    assert (said["study"], said["metric"], said["higher_is_better"]) == (
        "search",
        "eval_loss",
        True,
    )
    assert said["next"][0] == "hpctrain tune best search --to best.yaml"
    assert said["best"] == "lr_0"
