"""Damaged records, odd answers of Slurm and odd words: no command breaks, waits or fills the
memory, and what is whole is shown.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli import main
from hpctrain.runs import launch
from tests.cli import hostile_world
from tests.cli.conftest import Desk
from tests.cli.hostile_world import World
from tests.runs import make


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> hostile_world.World:
    made = hostile_world.World(tmp_path_factory.mktemp("damaged") / "world")
    made.local = made.make()  # type: ignore[attr-defined]
    return made


BOMB = "[" * 100_000
DAMAGES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "bomb": lambda path: path.write_text('{"plan": ' + BOMB),
    "wrong types": lambda path: path.write_text(
        '{"plan": 17, "host": [], "state": {}, "end": "²", "pid": -1, "created": "x"}'
    ),
    "a list": lambda path: path.write_text("[]"),
    "digits": lambda path: path.write_text('{"state": "RUNNING", "start": ' + "9" * 5000 + "}"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "word", ["²", "1_²", "٣", "9" * 5000, "1_" + "9" * 5000, "a\udcff", "\ud800"]
)
@pytest.mark.parametrize("verb", ["ps", "cancel", "logs", "explain", "watch"])
def test_a_word_that_is_no_job(desk: Desk, no_slurm: None, verb: str, word: str) -> None:
    said = desk.run(verb, word)
    assert said.code in (1, 2)
    assert said.lines[-1].startswith(("fix: ", "hint: "))


def test_the_log_of_an_ended_run_whose_job_nobody_knows_is_not_followed_for_ever(
    desk: Desk, hpctrain: str, no_slurm: None
) -> None:
    attempt = make.attempt(
        make.run(desk.directory / "runs", "r"), "123", outcome="failed", status=1
    )
    (attempt / "rank-0.log").write_text("step 1\n")
    desk.write("logs/output_sft_123.log", "hpctrain: job 123 run r\nstep 1\n")
    done = subprocess.run(
        [hpctrain, "logs", "-f", "r"],
        cwd=desk.directory,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "step 1" in done.stdout, done.stderr


def test_a_home_directory_of_nobody(desk: Desk) -> None:
    assert "~nouser/x" in desk.refused("render", "--sweep", "~nouser/x").err


@pytest.mark.parametrize("name", ["/dev/zero", "fifo"])
@pytest.mark.parametrize(
    "words",
    [
        ("render", "--config"),
        ("lint",),
        ("submit", "--no-check"),
    ],
)
def test_a_file_that_is_none_is_refused(
    desk: Desk, hpctrain: str, words: tuple[str, ...], name: str
) -> None:
    os.mkfifo(desk.directory / "fifo")
    argv = ["bash", "-c", 'ulimit -v 3000000; exec "$@"', "bash", hpctrain, *words, name]
    done = subprocess.run(
        argv,
        cwd=desk.directory,
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode in (1, 2), done.stderr
    assert "this is a mistake" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(("fix: ", "hint: "))


@pytest.mark.parametrize("verb", ["report", "explain", "resubmit", "watch --once", "runs show"])
def test_a_submission_whose_array_is_damaged(desk: Desk, no_slurm: None, verb: str) -> None:
    runs = desk.directory / "runs"
    launch.create(
        runs,
        "t",
        kind="sweep",
        name="t",
        now=1.0,
        cwd=str(desk.directory),
        version="1",
        argv=(),
        points=2,
        table="t",
    )
    make.run(runs, "t_0", tag="t", index=0)
    launch.Submission(token="a", argv=(), at=1.0, scheduler="slurm", job_id="9", array="x").write(
        launch.submissions_dir(runs, "t")
    )
    desk.run(*verb.split(), "t_0")  # which is no mistake of ours


# -- Names of jobs, reasons, records, logs and errors of programs may hold what a terminal ta


#: A title, a bell, CSI as an escape sequence, in one byte and as a character of UTF-8; a backspace;
#: an override of the direction.
ORDERS = b"\x1b]0;PWNED\x07\x1b[2J\x9b2J\xc2\x9b2J\x08\xe2\x80\xae"
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\udc80-\udc9f]"
)
WORDS = (
    "killed",
    "cancelled",
    "two nodes",
    "oom",
    "array",
    "None",
    "NonZeroExitCode",
    "boost_usr_prod",
    "debug",
    "proj_b",
    "normal",
    "node",
)
#: What ties records to each other, or says what a row is.
KEPT = {
    "run_id",
    "tag",
    "job_id",
    "slurm_job_id",
    "event",
    "schema",
    "token",
    "state",
    "digest",
    "scheduler",
    "outcome",
    "array",
}
KINDS = ("slurm", "refusals", "records")


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    """Return a world for each place that foreign text comes from."""
    base = tmp_path_factory.mktemp("foreign")
    World(base / "slurm").make()
    made = {}
    for kind in KINDS:
        made[kind] = World(base / kind)
        if kind != "slurm":
            shutil.copytree(base / "slurm", base / kind, symlinks=True)
    for path in made["slurm"].answers.glob("*.txt"):
        content = path.read_bytes()
        for word in (
            WORDS if path.name not in ("exit.txt", "sbatch.txt", "sacct-helpformat.txt") else ()
        ):
            content = content.replace(word.encode(), word.encode() + ORDERS)
        path.write_bytes(content)
    (made["refusals"].answers / "stderr.txt").write_bytes(b"sbatch: error: " + ORDERS + b"\n")
    (made["refusals"].answers / "exit.txt").write_text("1")
    for path in made["records"].records():
        if path.suffix in (".json", ".jsonl") and path.name != "hpctrain.json":
            rows = (
                [json.loads(line) for line in path.read_text().splitlines()]
                if path.suffix == ".jsonl"
                else [json.loads(path.read_text())]
            )
            path.write_text("\n".join(json.dumps(spoiled(row)) for row in rows) + "\n")
    for path in (made["records"].project / "logs").iterdir():
        path.write_bytes(
            b"epoch 1 " + ORDERS + b"\n" + path.read_bytes().replace(b"CUDA", b"CUDA" + ORDERS)
        )
    return made


def spoiled(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: spoiled(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [spoiled(item, key) for item in value]
    return (
        value + ORDERS.decode("utf-8", "surrogateescape")
        if isinstance(value, str) and key not in KEPT
        else value
    )


def seen(content: bytes) -> str:
    """Return what of an output a terminal would obey, with what is around it; nothing where there
    is none.
    """
    text = content.decode("utf-8", "surrogateescape")
    found = OBEYED.search(text)
    return repr(text[max(0, found.start() - 60) : found.end() + 20]) if found else ""


@pytest.mark.slow
@pytest.mark.parametrize("verb", [path for path, _ in hostile_world.leaves()], ids=" ".join)
@pytest.mark.parametrize("kind", KINDS)
def test_no_verb_sends_a_terminal_orders(
    worlds: dict[str, World],
    kind: str,
    verb: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    world = worlds[kind]
    monkeypatch.chdir(world.project)
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    for words in hostile_world.lines(
        (hostile_world.RUNS[0], "asked", hostile_world.JOBS[0]), only=verb
    ):
        with pytest.raises(SystemExit):
            main(words)
        out, err = capfdbinary.readouterr()
        assert (seen(out), seen(err)) == ("", ""), words
        if "--json" in words and out:
            for line in [out] if verb[0] != "watch" else out.splitlines():
                json.loads(line)
