"""`hpctrain explain-script` and `render --explain`, as a person sees them: on 80 columns, in a pipe, on a terminal, as JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Desk

GOLDENS = sorted((Path(__file__).parents[1] / "golden").glob("*/script.sbatch"))
EVERYTHING = next(path for path in GOLDENS if path.parent.name == "everything")
FOREIGN = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --output=log.txt
#SBATCH --gres=gpu:4
source ~/.bashrc
./stage-in.sh /data
srun torchrun --nnodes 2 --node_rank $SLURM_NODEID \\
    --nproc_per_node 4 train.py
"""


def on_a_terminal(command: str, cwd: Path, columns: int, **variables: str) -> str:
    """Return what a command writes to a terminal; `script` of util-linux gives it one."""
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", **variables}
    done = subprocess.run(
        ["script", "-qec", f"{command} 2>/dev/null", "/dev/null"], cwd=cwd, env=environment, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0
    return done.stdout.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.parent.name)
def test_a_page_has_every_line_of_the_script_on_80_columns(golden: Path, desk: Desk) -> None:
    said = desk.run("explain-script", str(golden))
    assert said.code == 0
    assert "does not know" not in said.err
    assert "\x1b" not in said.out
    # A word that is longer than the line stands alone; nothing else is wider.
    assert [line for line in said.out.splitlines() if len(line) > 80 and len(line.split()) > 1 and max(map(len, line.split())) < 60] == []
    text = golden.read_text().splitlines()
    numbers = sorted(int(number) for number in re.findall(r"^ {0,3}(\d+)  ", said.out, re.MULTILINE))
    assert numbers == [number for number, line in enumerate(text, start=1) if line.strip()]
    flat = re.sub(r"\s+", "", said.out)
    assert all(re.sub(r"\s+", "", line) in flat for line in text)


def test_headings_and_the_numbers_of_the_script(desk: Desk) -> None:
    out = desk.run("explain-script", str(EVERYTHING)).out
    headings = re.findall(r"^(.+)\n-+$", out, re.MULTILINE)
    assert headings == ["what this file is", "what is asked of Slurm", "where it logs", "where it runs", "where it logs", "the environment",
                        "the run", "where the ranks meet", "the launch", "on each node", "the launch", "after the launch"]  # fmt: skip
    assert "2 nodes x 4 GPUs = 8" in out
    assert "32 cores / 4 = 8 for each" in " ".join(out.split())
    assert "      As in line " in out, "what was said before is not said again"


def test_what_is_not_known_is_named_on_stderr(desk: Desk) -> None:
    desk.write("job.sh", FOREIGN)
    said = desk.run("explain-script", "job.sh")
    assert "your own" in said.out.lower()
    assert "note: 1 line holds a command or an option that hpctrain does not know: 6" in said.err
    assert "0 for all" in " ".join(said.out.split())
    # Directives are sorted by heading: what is asked, and then where it logs.
    assert said.out.index("--gres=gpu:4") < said.out.index("--output=log.txt")


def test_findings_of_lint_stand_under_their_lines(desk: Desk) -> None:
    from hpctrain.jobs.lint import lint

    desk.write("job.sh", FOREIGN)
    expected = [finding for finding in lint(FOREIGN, "job.sh") if finding.line == 7]
    assert expected, "lint says nothing of $SLURM_NODEID that the batch shell expands"
    said = desk.run("explain-script", "job.sh")
    below = " ".join(said.out[said.out.index("   7  srun") :].split())
    for finding in expected:
        assert f"{finding.level}: {finding.what} [{finding.id}]" in below
    assert "note: " in said.err
    document = json.loads(desk.run("explain-script", "--json", "job.sh").out)
    assert {finding["id"] for finding in document["lines"][6]["findings"]} == {finding.id for finding in expected}


def test_json_has_every_line_in_order(desk: Desk) -> None:
    document: dict[str, Any] = json.loads(desk.run("explain-script", "--json", str(EVERYTHING)).out)
    assert document["schema"] == 1
    text = EVERYTHING.read_text()
    assert "\n".join(line["text"] for line in document["lines"]) + "\n" == text
    assert [line["line"] for line in document["lines"]] == list(range(1, text.count("\n") + 1))
    for line in document["lines"]:
        assert set(line) == {"line", "text", "section", "why", "source", "kind", "known", "parts", "findings"}
        assert line["why"] or line["kind"] in ("blank", "comment"), line


def test_sources_are_named_when_asked_for(desk: Desk) -> None:
    assert "[sbatch(1)]" not in desk.run("explain-script", str(EVERYTHING)).out
    assert "[sbatch(1)]" in desk.run("explain-script", "--sources", str(EVERYTHING)).out


def test_stdin_is_a_script_too(hpctrain: str, tmp_path: Path) -> None:
    done = subprocess.run([hpctrain, "explain-script", "-"], input=FOREIGN, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Two nodes for this job" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_gets_colours_and_its_own_width(hpctrain: str, tmp_path: Path) -> None:
    command = f"{hpctrain} explain-script {EVERYTHING}"
    wide, narrow = on_a_terminal(command, tmp_path, 100), on_a_terminal(command, tmp_path, 60)
    assert "\x1b[1mwhat is asked of Slurm" in wide
    assert wide.count("\n") < narrow.count("\n")
    plain = on_a_terminal(command, tmp_path, 80, NO_COLOR="1")
    assert "\x1b" not in plain
    assert plain == subprocess.run(command.split(), capture_output=True, text=True, cwd=tmp_path).stdout


def test_a_script_cannot_move_the_cursor(desk: Desk) -> None:
    desk.write("evil.sh", "#!/bin/bash\n#SBATCH --comment=\x1b[2J\necho '\x1b[31mred' \x07 \x9b1m \u202e\n./\x1b[2J\n\x1b]0;title\x07\n")
    out = desk.run("explain-script", "evil.sh").out
    assert not [letter for letter in out if letter != "\n" and not letter.isprintable()]
    assert "\\x1b[31mred" in out


def test_bytes_that_are_no_text(desk: Desk) -> None:
    desk.write("bytes.sh", b"#!/bin/bash\n#SBATCH --comment=\xff\xfe\n\x00\n")
    assert "\\udcff" in desk.run("explain-script", "bytes.sh").out
    assert json.loads(desk.run("explain-script", "--json", "bytes.sh").out)["lines"][1]["text"].endswith("\udcff\udcfe")


def test_an_empty_file_is_no_problem(desk: Desk) -> None:
    desk.write("empty.sh", "")
    assert desk.run("explain-script", "empty.sh").code == 0
    assert json.loads(desk.run("explain-script", "--json", "empty.sh").out)["lines"] == []


def test_a_missing_script_names_those_that_are_there(desk: Desk) -> None:
    desk.write("mine.sbatch", FOREIGN)
    said = desk.refused("explain-script", "nine.sbatch")
    assert said.lines[0] == "error: cannot read the script 'nine.sbatch': No such file or directory"
    assert said.lines[-1] == "fix: hpctrain explain-script mine.sbatch"
    assert "Is a directory" in desk.refused("explain-script", ".").err


def test_render_explain_shows_what_would_be_rendered_and_writes_nothing(desk: Desk) -> None:
    options = ["--nodes", "2", "--gpus", "4", "--time", "1-00:00:00", "--", "--max_steps", "5"]
    before = desk.snapshot()
    said = desk.run("render", "--explain", *options)
    assert said.code == 0
    assert desk.snapshot() == before
    assert "At most 24 hours; then Slurm sends SIGTERM" in said.out
    assert "Stops after 5 steps" in said.out
    assert said.lines[-2:] == ["2 nodes x 4 GPUs = 8 processes", "nothing was written; next: hpctrain render, with the same options"]
    desk.run("render", *options)
    assert desk.run("explain-script", "sft.sbatch").out == said.out


def test_render_explain_takes_no_file(desk: Desk) -> None:
    assert "--explain writes no file" in desk.refused("render", "--explain", "--to", "x.sbatch").err
    assert desk.refused("render", "--explain", "--to", "-").lines[-1] == "fix: leave out --to"
    assert "must be between 1 and 64" in desk.refused("render", "--explain", "--gpus", "0").err


TOKENS = {"WANDB_API_KEY": "0123456789abcdef" * 2 + "01234567", "HF_TOKEN": "hf_" + "aB3dE6gH9jK2" * 3}


@pytest.mark.parametrize("options", [(), ("--json",), ("--sources",)])
def test_no_token_is_shown(options: tuple[str, ...], desk: Desk) -> None:
    desk.write("job.sh", "#!/bin/bash\n" + "".join(f"export {name}={value}\n" for name, value in TOKENS.items()) + "srun python train.py\n")
    said = desk.run("explain-script", *options, "job.sh")
    assert said.code == 0
    assert not any(value in said.out + said.err for value in TOKENS.values())
    assert "WANDB_API_KEY=012" in said.out, "the line stays, cut"
    assert "HF_TOKEN=hf_" in said.out
    assert "secret-in-script" in said.out, "lint has read the script as it is"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_python_program_is_said_to_be_no_shell_script_once(options: tuple[str, ...], desk: Desk) -> None:
    desk.write("train.py", "import torch\nprint('hello')\n")
    said = desk.refused("explain-script", *options, "train.py")
    assert said.out == ""
    assert said.err.count("not a shell script") == 1
    assert said.lines[-1] == "fix: hpctrain render --explain --script train.py"
    # sbatch takes a Python program with directives; those can be explained.
    desk.write("job.py", "#!/usr/bin/env python3\n#SBATCH --nodes=1\nprint('hello')\n")
    assert "--nodes=1" in desk.run("explain-script", "job.py").out
