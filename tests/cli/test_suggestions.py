"""Each command that hpctrain suggests can be pasted, and asks for the job that it is about: the
same config, options and arguments.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Desk

pytestmark = [pytest.mark.usefixtures("no_slurm"), pytest.mark.slow]
STUDY = (
    "job_name: study\nscript: train.py\nlauncher: srun\nresources: {time: 10, cpus_per_task: 1}\n"
)
TRAIN = "import sys\nprint(open('says.txt').read())\nsys.exit(3)\n"
NAN = "{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0003, 'epoch': 0.1}"
TYPED = ("--config", "study.yaml", "--account", "proj_b", "--sbatch", "comment=two words")
BEHIND = ("--", "--beta", "2", "--note", "it's here")
#: Of the verbs: what is no part of the job. Options with a value, and without one.
ASIDE, FLAGS = (
    ("--run-id", "--gpu"),
    (
        "--local",
        "--wait",
        "--no-check",
        "--force",
        "--explain",
        "--json",
    ),
)


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("study.yaml", STUDY)
    desk.write("train.py", TRAIN)
    desk.write("says.txt", "nothing")
    desk.write("points.yaml", "grid:\n  gamma: [1, 2, 3, 4]\n")
    return desk


def commands(text: str) -> list[str]:
    """Return the commands of hpctrain in what was said, with the lines joined that a backslash
    breaks.
    """
    joined = re.sub(r" \\\n\s+", " ", text)
    found = re.findall(
        r"^(?:\s+|.*?(?:: |, or: ))??((?:cd \S+ && )?hpctrain (?:render|submit|check|fit|sweep"
        r" plan|resubmit).*)$",
        joined,
        re.MULTILINE,
    )
    return [
        re.split(r", (?:if it is|which|or|then)\b|; (?:without|or)\b", each)[0] for each in found
    ]


def described(desk: Desk, words: list[str]) -> list[str]:
    """Return the script of the job that a command describes, without its header."""
    split = words.index("--") if "--" in words else len(words)
    options, kept = words[:split], []
    while options:
        word = options.pop(0)
        if word in ASIDE or word == "--to":
            options.pop(0)
        elif word not in FLAGS:
            kept.append(word)
    said = desk.run("render", *kept, "--to", "-", *words[split:])
    assert said.code == 0, (words, said.err)
    return [line for line in said.out.splitlines() if not line.startswith("# ")]


def pasted(desk: Desk, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as it was printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=desk.directory,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )


def same_job(desk: Desk, command: str, *options: str, behind: tuple[str, ...] = BEHIND) -> None:
    """Hold a suggested command against the job, with what it changes; and paste it."""
    words = shlex.split(command)
    verb = 3 if words[1:3] == ["submit", "--dry-run"] else 2
    assert described(desk, words[verb:]) == described(desk, [*TYPED, *options, *behind]), command
    done = pasted(desk, command)
    assert done.returncode != 2, (command, done.stderr)


def test_what_a_wrong_config_says_names_it(project: Desk) -> None:
    project.write("study.yaml", STUDY + "nodez: 2\n")
    for verb in ("check", "render", "submit"):
        said = project.run(verb, *TYPED, *BEHIND)
        assert said.code == 2
        project.write("study.yaml", STUDY)
        [command] = commands(said.lines[-1])
        same_job(project, command)
        project.write("study.yaml", STUDY + "nodez: 2\n")


def test_what_is_wrong_keeps_the_rest(project: Desk) -> None:
    [command] = commands(
        project.refused("render", *TYPED, "--learning_rate", "5", *BEHIND).lines[-1]
    )
    same_job(project, command, behind=("--", "--learning_rate", "5", *BEHIND[1:]))


@pytest.mark.parametrize(
    "words",
    [
        ("check", "--no-slurm"),
        ("render", "--explain"),
        ("render", "--explain", "--to", "-"),
        ("submit", "--local", "--to", "-"),
        ("submit", "--dry-run", "--sweep", "points.yaml"),
    ],
    ids=" ".join,
)
def test_what_comes_next_is_the_same_job(project: Desk, words: tuple[str, ...]) -> None:
    [command] = commands(project.run(words[0], *TYPED, *words[1:], *BEHIND).lines[-1])
    same_job(project, command, *(words[2:] if "--sweep" in words else ()))


def submitted(desk: Desk, *words: str) -> str:
    said = desk.run("submit", "--local", "--wait", "--no-check", *TYPED, *words, *BEHIND)
    return re.findall(r"^run (\S+)", said.err, re.MULTILINE)[0]


def test_a_diagnosis_suggests_the_same_job(project: Desk) -> None:
    project.write("study.yaml", STUDY + "training: {learning_rate: 3.0e-4}\n")
    project.write("says.txt", NAN)
    said = project.run("explain", submitted(project))
    [command] = [each for each in commands(said.out) if each.startswith("hpctrain submit")]
    changed = ["--learning_rate", "1e-5", "--max_grad_norm", "1.0", "--bf16", "true"]
    same_job(project, command, behind=(*BEHIND, *changed))


def test_slurm_is_not_asked_for_a_local_job(project: Desk) -> None:
    project.write("train.py", "import os\nos.kill(os.getpid(), 9)\n")
    said = project.run("explain", submitted(project), "--json")
    fix = json.loads(said.out)["diagnoses"][0]["fix"].splitlines()[-1]
    assert pasted(project, fix).returncode == 0, fix
