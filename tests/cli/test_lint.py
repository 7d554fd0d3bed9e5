"""`hpctrain lint` as it is typed: outputs, exit codes, repairs, refusals."""

import io
import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Desk

GOOD = "#!/bin/bash\n#SBATCH --time=01:00:00\npython train.py\n"
BAD = "#!/bin/bash\n#SBATCH --nodes=2\n#sbatch --time=1:00\nexport PYTHONBUFFERED=1\nrate = 3\n"

#: The findings of BAD, in the order of its lines.
FOUND = ["directive-misspelt", "blank-misplaced", "pythonbuffered"]


def test_a_correct_script_says_nothing_on_stdout(desk: Desk) -> None:
    desk.write("job.sbatch", GOOD)
    said = desk.run("lint", "job.sbatch")
    assert (said.code, said.out) == (0, "")
    assert said.err == "1 file: nothing found\n"


def test_findings_are_shown_by_line_with_what_where_why_and_fix(desk: Desk) -> None:
    desk.write("job.sbatch", BAD)
    desk.write("good.sbatch", GOOD)
    said = desk.run("lint", "good.sbatch", "job.sbatch")
    assert said.code == 1
    heads = [
        line.split(": ")[0] + ": " + line.split(": ")[1]
        for line in said.out.split("\n")
        if line.startswith("job.sbatch:")
    ]
    assert heads == [
        "job.sbatch:3:1: error directive-misspelt",
        "job.sbatch:5:1: error blank-misplaced",
        "job.sbatch:4:8: warning pythonbuffered",
    ]
    assert all(len(line) <= 80 for line in said.out.split("\n"))
    assert "  seen: rate = 3\n" in said.out
    assert "  fix:  write: rate=3\n" in said.out
    assert said.err == "2 files: 2 errors, 1 warning; more on each: hpctrain explain ID\n"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 1),
        (("--level", "note"), 1),
        (("--ignore", "directive-misspelt,blank-misplaced"), 0),
        (("--ignore", "directive-misspelt,blank-misplaced", "--level", "warning"), 1),
        (("--select", "pythonbuffered"), 0),
        (("--select", "pythonbuffered", "--level", "warning"), 1),
        (
            (
                "--select",
                "pythonbuffered,fixed-port",
                "--ignore",
                "pythonbuffered",
                "--level",
                "warning",
            ),
            0,
        ),
    ],
)
def test_the_exit_code_follows_level_and_choice(
    desk: Desk, options: tuple[str, ...], code: int
) -> None:
    desk.write("job.sbatch", BAD)
    assert desk.run("lint", *options, "job.sbatch").code == code


def test_json(desk: Desk) -> None:
    desk.write("job.sbatch", BAD)
    said = desk.run("lint", "--json", "job.sbatch")
    document = json.loads(said.out)
    assert document["files"] == 1
    assert [finding["id"] for finding in document["findings"]] == FOUND
    assert document["findings"][0]["line"] == 3
    assert document["findings"][0]["docs"] == "docs/findings.md#directive-misspelt"
    assert said.code == 1


def test_stdin(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    document = json.loads(desk.run("lint", "--json", "-").out)
    assert {finding["file"] for finding in document["findings"]} == {"-"}
    assert "--fix cannot write to stdin" in desk.refused("lint", "--fix", "-").err


def test_a_directory_is_searched_for_batch_scripts(desk: Desk) -> None:
    for name in ("a.sbatch", "deep/b.slurm", "deep/c.sh", ".hidden/d.sbatch", "e.txt"):
        desk.write(f"jobs/{name}", BAD)
    desk.write("jobs/helper.sh", "export PYTHONBUFFERED=1\n")
    document = json.loads(desk.run("lint", "--json", "jobs").out)
    assert document["files"] == 3
    assert {finding["file"] for finding in document["findings"]} == {
        "jobs/a.sbatch",
        "jobs/deep/b.slurm",
        "jobs/deep/c.sh",
    }


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ("no such file", "job.sbatch", "nowhere/x.sbatch", "binary.sbatch"),
            [
                "error: cannot read no such file: no such file or directory",
                "cannot read nowhere/x.sbatch: no such file or directory",
                "cannot read binary.sbatch: has nul bytes, so it is not a script",
                "fix: ls -l",
            ],
        ),
        (
            ("empty",),
            [
                "error: no *.sbatch, *.slurm, and no *.sh with #SBATCH in empty",
                "fix: ls -l",
            ],
        ),
        (
            ("--select", "fixed-port,pythonbufferd", "job.sbatch"),
            [
                "error: no finding of lint is called 'pythonbufferd'",
                "fix: hpctrain explain --list",
                "hint: did you mean pythonbuffered?",
            ],
        ),
        (
            ("--ignore", "fixed-port,pythonbufferd", "job.sbatch"),
            [
                "error: no finding of lint is called 'pythonbufferd'",
                "fix: hpctrain explain --list",
                "hint: did you mean pythonbuffered?",
            ],
        ),
        (
            ("--select", "", "job.sbatch"),
            ["error: --select names no finding", "fix: hpctrain explain --list"],
        ),
    ],
    ids=["unreadable", "no script", "select", "ignore", "nothing"],
)
def test_what_cannot_be_looked_at_is_refused(
    desk: Desk, words: tuple[str, ...], lines: list[str]
) -> None:
    desk.write("job.sbatch", BAD)
    desk.write("binary.sbatch", b"\x7fELF\0\0")
    desk.write("empty/notes.txt", "nothing\n")
    assert desk.refused("lint", *words).lines == lines


def test_fix_rewrites_and_keeps_mode_link_and_bytes(desk: Desk) -> None:
    script = desk.write("real/job.sbatch", BAD.encode() + b"# caf\xe9\n")
    script.chmod(0o750)
    (desk.directory / "link.sbatch").symlink_to("real/job.sbatch")
    said = desk.run("lint", "--fix", "link.sbatch")
    assert said.err.startswith("fixed link.sbatch: directive-misspelt, pythonbuffered\n")
    assert (
        script.read_bytes()
        == b"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=1:00\nexport PYTHONUNBUFFERED=1\n"
        b"rate = 3\n# caf\xe9\n"
    )
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert (desk.directory / "link.sbatch").is_symlink()
    assert said.code == 1, "one finding has no fix"
    assert sorted(path.name for path in desk.directory.rglob("*")) == [
        "job.sbatch",
        "link.sbatch",
        "real",
    ]
    before = script.stat().st_mtime_ns
    assert "fixed" not in desk.run("lint", "--fix", "link.sbatch").err
    assert script.stat().st_mtime_ns == before, "a file with nothing to repair is not written"


def test_diff_shows_and_writes_nothing(desk: Desk) -> None:
    desk.write("job.sbatch", BAD.replace("\n", "\r\n"))
    before = desk.snapshot()
    said = desk.run("lint", "--diff", "job.sbatch")
    assert said.code == 1
    assert said.out.startswith("--- a/job.sbatch\n+++ b/job.sbatch\n@@ ")
    assert "-export PYTHONBUFFERED=1^M\n" in said.out
    assert "+export PYTHONUNBUFFERED=1\n" in said.out
    assert desk.snapshot() == before
    desk.run("lint", "--fix", "job.sbatch")
    said = desk.run("lint", "--diff", "job.sbatch")
    assert (said.code, said.out) == (0, "")


def test_a_script_of_hpctrain_is_made_again_and_not_edited(desk: Desk) -> None:
    script = Path(desk.run("render", "--time", "10").out.strip())
    script.write_text(script.read_text() + "export PYTHONBUFFERED=1\n")
    before = script.read_bytes()
    said = desk.run("lint", "--fix", str(script))
    assert "was written by hpctrain, so it is not edited" in said.err
    assert script.read_bytes() == before
    assert desk.run("lint", "--diff", str(script)).out == ""


@pytest.mark.parametrize("option", ["--level=error", "--json", "--explain", "--explain --json"])
def test_no_output_shows_a_secret(option: str, desk: Desk) -> None:
    token, key = "hf_" + "aB3dE5gH7jK9" * 3, "0123456789abcdef" * 2 + "01234567"
    head = "#!/bin/bash\n#SBATCH --time=1\n"
    desk.write("job.sh", f"{head}export HF_TOKEN={token} PET_X={token}\nWANDB_API_KEY={key}\n")
    said = desk.run("lint", *option.split(), "job.sh")
    assert token not in said.out + said.err
    assert key not in said.out + said.err
    assert "secret-in-script" in said.out, "lint has read the script as it is"


def test_the_pre_commit_hook() -> None:
    (hook,) = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["entry"]) == ("hpctrain-lint", "hpctrain lint")
    assert re.search(hook["files"], "scripts/job.sbatch")
    assert not re.search(hook["files"], "a.sbatch.j2")


# -- `hpctrain lint --explain` and `render --explain`, as a person sees them


GOLDENS = sorted((Path(__file__).parents[1] / "golden").glob("*/script.sbatch"))
EVERYTHING = next(path for path in GOLDENS if path.parent.name == "everything")
FOREIGN = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --output=log.txt
#SBATCH --gres=gpu:4
#SBATCH --site-plugin=on
./stage-in.sh /data
srun torchrun --nnodes 2 --node_rank $SLURM_NODEID \\
    --nproc_per_node 4 train.py
"""


def test_a_foreign_script_with_its_findings(desk: Desk) -> None:
    desk.write("job.sh", FOREIGN)
    said = desk.run("lint", "--explain", "job.sh")
    below = " ".join(said.out[said.out.index("   7  srun") :].split())
    assert "[rank-expanded-early]" in below
    document = json.loads(desk.run("lint", "--explain", "--json", "job.sh").out)
    assert "rank-expanded-early" in [one["id"] for one in document["lines"][6]["findings"]]
    chosen = desk.run("lint", "--explain", "--select", "fixed-port", "job.sh")
    assert "rank-expanded-early" not in chosen.out


def test_json_has_every_line_in_order(desk: Desk) -> None:
    document: dict[str, Any] = json.loads(
        desk.run("lint", "--explain", "--json", str(EVERYTHING)).out
    )
    text = EVERYTHING.read_text()
    assert "\n".join(line["text"] for line in document["lines"]) + "\n" == text
    keys = {"line", "text", "section", "why", "source", "kind", "known", "parts", "findings"}
    for number, line in enumerate(document["lines"], start=1):
        assert (line["line"], set(line)) == (number, keys)


def test_sources_are_named_when_asked_for(desk: Desk) -> None:
    assert "[sbatch(1)]" not in desk.run("lint", "--explain", str(EVERYTHING)).out
    assert "[sbatch(1)]" in desk.run("lint", "--explain", "--sources", str(EVERYTHING)).out


def test_a_script_cannot_move_the_cursor(desk: Desk) -> None:
    desk.write(
        "evil.sh",
        "#!/bin/bash\n#SBATCH --comment=\x1b[2J\necho '\x1b[31mred' \x07 \x9b1m"
        " \u202e\n./\x1b[2J\n\x1b]0;title\x07\n",
    )
    out = desk.run("lint", "--explain", "evil.sh").out
    assert not [letter for letter in out if letter != "\n" and not letter.isprintable()]
    assert "\\x1b[31mred" in out


def test_one_script_is_explained(desk: Desk) -> None:
    desk.write("mine.sbatch", FOREIGN)
    desk.write("other.sbatch", FOREIGN)
    assert "takes one file" in desk.refused("lint", "--explain", ".").err


def test_render_explain_shows_what_would_be_rendered_and_writes_nothing(desk: Desk) -> None:
    options = ["--nodes", "2", "--gpus", "4", "--time", "1-00:00:00", "--", "--max_steps", "5"]
    before = desk.snapshot()
    said = desk.run("render", "--explain", *options)
    assert said.code == 0
    assert desk.snapshot() == before
    assert "At most 24 h; then Slurm sends SIGTERM" in said.out
    again = "hpctrain render --nodes 2 --gpus 4 --time 1-00:00:00 -- --max_steps 5"
    assert said.lines[-2:] == [
        "2 nodes x 4 GPUs = 8 processes",
        f"nothing was written; next: {again}",
    ]
    desk.run("render", *options)
    assert desk.run("lint", "--explain", "sft.sbatch").out == said.out


def test_render_explain_takes_no_file(desk: Desk) -> None:
    said = desk.refused("render", "--explain", "--to", "x.sbatch")
    assert "--explain writes no file" in said.err
    assert said.lines[-1] == "fix: hpctrain render --explain"
