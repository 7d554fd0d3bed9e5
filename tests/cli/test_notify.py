"""`notify:` of config.yaml and `hpctrain doctor --notify`: a real job on the local scheduler, a real program, a real server."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Desk
from tests.runs.test_notify import SECRET, Server, server  # noqa: F401  # a fixture

TELL = """\
#!/bin/bash
printf '%s|' "$1" "$HPCTRAIN_RUN_ID" "$HPCTRAIN_OUTCOME" "$HPCTRAIN_STATUS" >>"$(dirname "$0")/told it.txt"
"""


def project(desk: Desk, server: Server, script: str, notify: str) -> None:  # noqa: F811
    desk.set(PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    desk.write("train.py", script)
    desk.write("tell it.sh", TELL).chmod(0o755)
    desk.write("hook", server.url + "\n").chmod(0o600)
    desk.write(
        "config.yaml",
        f"script: train.py\nlauncher: srun\nresources: {{gpus: 1, time: 5}}\nnotify: {notify}\n",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_a_job_tells_that_it_failed(desk: Desk, server: Server) -> None:  # noqa: F811
    project(
        desk,
        server,
        "raise SystemExit(3)\n",
        '{on: [failed], command: "./tell it.sh", webhook: hook}',
    )
    done = desk.run("submit", "--local", "--wait", "--run-id", "R")
    assert done.code == 3, done.out + done.err
    told, run, outcome, status, _ = (desk.directory / "told it.txt").read_text().split("|")
    assert told.startswith("R failed: job 9")
    assert told.endswith("exit code 3")
    assert (run, outcome, status) == ("R", "failed", "3")
    assert [(body["outcome"], body["run"], body["status"]) for body in server.bodies] == [
        ("failed", "R", 3)
    ]
    for path in desk.directory.rglob("*"):
        assert (
            path.name == "hook"
            or not path.is_file()
            or SECRET not in path.read_text(errors="replace")
        ), path


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_who_cannot_be_told_changes_nothing(desk: Desk, server: Server) -> None:  # noqa: F811
    project(desk, server, "print('trained')\n", "{command: ./tell it.sh, webhook: hook}")
    desk.write("tell it.sh", "#!/bin/bash\nexit 7\n")
    server.answers = [404]
    done = desk.run("submit", "--local", "--wait", "--run-id", "R")
    assert done.code == 0, done.out + done.err
    log = next((desk.directory / "logs").glob("error_*_9*.log")).read_text()
    assert "warning: ./tell it.sh, which was to tell of the end, failed" in log
    assert "error: the notification was not sent\n  127.0.0.1 answers 404" in log
    assert (
        json.loads(next((desk.directory / "runs/R/attempts").glob("*/end.json")).read_text())[
            "outcome"
        ]
        == "completed"
    )


@pytest.mark.slow
def test_trying_it(desk: Desk, server: Server) -> None:  # noqa: F811
    project(desk, server, "", '{command: "./tell it.sh", webhook: hook}')
    done = desk.run("doctor", "--notify")
    assert (done.code, done.out) == (
        0,
        "ran ./tell it.sh\nnotified the webhook\n",
    ), done.err
    assert "test message" in (desk.directory / "told it.txt").read_text()
    assert "test message" in server.bodies[0]["text"]
    desk.write("tell it.sh", "#!/bin/bash\nexit 7\n")
    assert desk.run("doctor", "--notify").code == 1
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
    assert "hook-missing: the command 'scripts/tell.sh'" in said
    assert "'hook'" in said
