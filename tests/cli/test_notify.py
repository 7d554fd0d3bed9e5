"""`notify:` of config.yaml and `hpctrain doctor --notify`: a real job on the local scheduler, a real program, a real server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Desk
from tests.runs.test_notify import SECRET, Server, server  # noqa: F401  # a fixture

TELL = """\
#!/bin/bash
printf '%s|' "$1" "$HPCTRAIN_RUN_ID" "$HPCTRAIN_OUTCOME" "$HPCTRAIN_STATUS" >>"$(dirname "$0")/told it.txt"
"""


def project(tmp_path: Path, server: Server, script: str, notify: str) -> Path:  # noqa: F811
    (tmp_path / "train.py").write_text(script)
    tell = tmp_path / "tell it.sh"
    tell.write_text(TELL)
    tell.chmod(0o755)
    hook = tmp_path / "hook"
    hook.write_text(server.url + "\n")
    hook.chmod(0o600)
    (tmp_path / "config.yaml").write_text(
        f"script: train.py\nlauncher: srun\nresources: {{gpus: 1, time: 5}}\nnotify: {notify}\n"
    )
    return tmp_path


def hpctrain(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run(
        ["hpctrain", *words],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_a_job_tells_that_it_failed(tmp_path: Path, server: Server) -> None:  # noqa: F811
    where = project(
        tmp_path,
        server,
        "raise SystemExit(3)\n",
        '{on: [failed], command: "./tell it.sh", webhook: hook}',
    )
    done = hpctrain(where, "submit", "--local", "--wait", "--run-id", "R")
    assert done.returncode == 3, done.stdout + done.stderr
    told, run, outcome, status, _ = (where / "told it.txt").read_text().split("|")
    assert told.startswith("R failed: job 9")
    assert told.endswith("exit code 3")
    assert (run, outcome, status) == ("R", "failed", "3")
    assert [(body["outcome"], body["run"], body["status"]) for body in server.bodies] == [
        ("failed", "R", 3)
    ]
    for path in where.rglob("*"):
        assert (
            path.name == "hook"
            or not path.is_file()
            or SECRET not in path.read_text(errors="replace")
        ), path


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_who_cannot_be_told_changes_nothing(tmp_path: Path, server: Server) -> None:  # noqa: F811
    where = project(
        tmp_path, server, "print('trained')\n", "{command: ./tell it.sh, webhook: hook}"
    )
    (where / "tell it.sh").write_text("#!/bin/bash\nexit 7\n")
    server.answers = [404]
    done = hpctrain(where, "submit", "--local", "--wait", "--run-id", "R")
    assert done.returncode == 0, done.stdout + done.stderr
    log = next((where / "logs").glob("error_*_9*.log")).read_text()
    assert "warning: ./tell it.sh, which was to tell of the end, failed" in log
    assert "error: the notification was not sent\n  127.0.0.1 answers 404" in log
    assert (
        json.loads(next((where / "runs/R/attempts").glob("*/end.json")).read_text())["outcome"]
        == "completed"
    )


@pytest.mark.slow
def test_trying_it(tmp_path: Path, server: Server) -> None:  # noqa: F811
    where = project(tmp_path, server, "", '{command: "./tell it.sh", webhook: hook}')
    done = hpctrain(where, "doctor", "--notify")
    assert (done.returncode, done.stdout) == (
        0,
        "ran ./tell it.sh\nnotified the webhook\n",
    ), done.stderr
    assert "test message" in (where / "told it.txt").read_text()
    assert "test message" in server.bodies[0]["text"]
    (where / "tell it.sh").write_text("#!/bin/bash\nexit 7\n")
    assert hpctrain(where, "doctor", "--notify").returncode == 1
    assert len(server.bodies) == 2, "the webhook is called although the command failed"


def test_nobody_is_named(desk: Desk) -> None:
    desk.write("config.yaml", "notify: {mail: me@example.org}\n")
    said = desk.refused("doctor", "--notify")
    assert said.lines[-1] == "hint: add to config.yaml: notify: {webhook: ~/.hpctrain_webhook}"


@pytest.mark.parametrize(
    ("notify", "said"),
    [
        (
            "{webhook: https://hooks.example.org/x}",
            "webhook must be a file that holds the address, which is a secret",
        ),
        ("{on: [done], command: x}", "must be 'completed', 'failed' or 'stopped', not 'done'"),
        ("{on: [failed]}", "notify has no recipient: give one of mail, command and webhook"),
        ("{mail: 'me@example.org --wrap=x'}", "mail must be an address such as me@example.org"),
    ],
)
def test_what_is_wrong_is_said(desk: Desk, notify: str, said: str) -> None:
    desk.write("config.yaml", f"notify: {notify}\n")
    refused = desk.refused("render").err
    assert said in " ".join(refused.split()), refused
    assert "hooks.example.org" not in refused


@pytest.mark.usefixtures("no_slurm")
def test_a_program_that_is_not_there_is_found_before_the_job_queues(desk: Desk) -> None:
    desk.write("train.py", "")
    desk.write(
        "config.yaml", "script: train.py\nnotify: {command: scripts/tell.sh, webhook: hook}\n"
    )
    said = desk.run("check").out
    assert "the command 'scripts/tell.sh' does not exist" in said
    assert "the file 'hook' for HPCTRAIN_WEBHOOK does not exist" in said


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_of_a_sweep_each_combination_tells(tmp_path: Path, server: Server) -> None:  # noqa: F811
    script = "import sys\nraise SystemExit(3 if sys.argv[-1] == '2' else 0)\n"
    where = project(tmp_path, server, script, "{on: [failed], webhook: hook}")
    config = where / "config.yaml"
    config.write_text(config.read_text() + "sweep: points.json\n")
    (where / "points.json").write_text('[{"x": 1}, {"x": 2}, {"x": 3}]')
    done = hpctrain(where, "submit", "--local", "--wait", "--run-id", "S")
    assert done.returncode != 0, done.stdout + done.stderr
    assert [(body["run"], body["outcome"]) for body in server.bodies] == [("S_1", "failed")]


@pytest.mark.parametrize(
    ("on", "types"),
    [
        ("[completed]", "END"),
        ("[failed]", "FAIL,INVALID_DEPEND"),
        ("[stopped]", "END,FAIL"),
        ("[completed, failed]", "END,FAIL,INVALID_DEPEND"),
        ("[completed, failed, stopped]", "END,FAIL,INVALID_DEPEND"),
    ],
)
def test_what_slurm_mails(desk: Desk, on: str, types: str) -> None:
    desk.write("config.yaml", f"notify: {{mail: me@example.org, on: {on}}}\n")
    script = desk.run("render", "--to", "-").out
    assert "\n#SBATCH --mail-user=me@example.org " in script
    assert f"\n#SBATCH --mail-type={types} " in script
