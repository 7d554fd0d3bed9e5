"""`hpctrain lint` as it is typed: outputs, exit codes, repairs, refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from hpctrain.jobs.lint import IDS, RULES

if TYPE_CHECKING:
    from tests.cli.conftest import Desk

ROOT = Path(__file__).parents[2]
GOOD = "#!/bin/bash\n#SBATCH --time=01:00:00\npython train.py\n"
BAD = "#!/bin/bash\n#SBATCH --nodes=2\n#sbatch --time=1:00\nexport PYTHONBUFFERED=1\nsrun -K 1 python train.py\n"

#: The findings of BAD, in the order of its lines.
FOUND = ["missing-time", "directive-case", "pythonbuffered", "kill-on-bad-exit-value"]


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
    heads = [line.split(": ")[0] + ": " + line.split(": ")[1] for line in said.out.split("\n") if line.startswith("job.sbatch:")]
    assert heads == [
        "job.sbatch:2:9: note missing-time",
        "job.sbatch:3:1: error directive-case",
        "job.sbatch:4:8: warning pythonbuffered",
        "job.sbatch:5:6: error kill-on-bad-exit-value",
    ]
    assert all(len(line) <= 80 for line in said.out.split("\n"))
    assert "    seen: srun -K 1 python train.py\n" in said.out
    assert "    fix:  write: --kill-on-bad-exit=1\n" in said.out
    assert "\x1b" not in said.out
    assert said.err == "2 files: 2 errors, 1 warning, 1 note; more on each: hpctrain docs ID\n"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 1),
        (("--level", "note"), 1),
        (("--ignore", "directive-case,kill-on-bad-exit-value"), 0),
        (("--ignore", "directive-case,kill-on-bad-exit-value", "--level", "warning"), 1),
        (("--select", "pythonbuffered"), 0),
        (("--select", "pythonbuffered", "--level", "warning"), 1),
        (("--select", "pythonbuffered,missing-time", "--ignore", "pythonbuffered", "--level", "warning"), 0),
    ],
)
def test_the_exit_code_follows_level_and_choice(desk: Desk, options: tuple[str, ...], code: int) -> None:
    desk.write("job.sbatch", BAD)
    assert desk.run("lint", *options, "job.sbatch").code == code


def test_json(desk: Desk) -> None:
    desk.write("job.sbatch", BAD)
    said = desk.run("lint", "--json", "job.sbatch")
    document = json.loads(said.out)
    assert document["schema"] == 1
    assert document["files"] == 1
    assert [finding["id"] for finding in document["findings"]] == [
        "missing-time",
        "directive-case",
        "pythonbuffered",
        "kill-on-bad-exit-value",
    ]
    assert document["findings"][1]["line"] == 3
    assert document["findings"][1]["docs"] == "docs/findings/directive-case.md"
    assert said.code == 1


def test_sarif(desk: Desk) -> None:
    desk.write("job.sbatch", BAD)
    said = desk.run("lint", "--sarif", "job.sbatch")
    run = json.loads(said.out)["runs"][0]
    assert [result["ruleId"] for result in run["results"]] == FOUND
    assert len(run["tool"]["driver"]["rules"]) == len(RULES)
    assert said.code == 1
    desk.refused("lint", "--sarif", "--json", "job.sbatch")


def test_one_other_number_among_many_is_found_and_what_is_left_out_is_said(desk: Desk) -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --time=1\n"
    line = 'srun torchrun --nnodes {} --rdzv_backend c10d --rdzv_id "$SLURM_JOB_ID" --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT" train.py\n'
    odd = 4 + 1500 + 1
    desk.write("odd.sbatch", head + line.format(2) * 1500 + line.format(3) + line.format(2) * 300)
    said = desk.run("lint", "--json", "odd.sbatch")
    document = json.loads(said.out)
    assert [(finding["id"], finding["line"]) for finding in document["findings"]] == [("nnodes-mismatch", odd)]
    assert document["skipped"] == 1790
    desk.write("same.sbatch", head + "".join(f'if [ -f "$A{n}" ]; then\n  rm "$A{n}" || exit {n}\nfi\n' for n in range(6000)))
    said = desk.run("lint", "same.sbatch")
    assert said.err == "1 file: nothing found\nnote: 5990 blocks like others were not read again\n"
    desk.write("job.sbatch", GOOD)
    assert json.loads(desk.run("lint", "--json", "job.sbatch").out)["skipped"] == 0


def test_stdin(desk: Desk) -> None:
    hpctrain = Path(sys.executable).with_name("hpctrain")
    done = subprocess.run([hpctrain, "lint", "--json", "-"], input=BAD.encode(), capture_output=True, cwd=desk.directory)
    assert {finding["file"] for finding in json.loads(done.stdout)["findings"]} == {"-"}
    assert done.returncode == 1
    refused = subprocess.run([hpctrain, "lint", "--fix", "-"], input=BAD.encode(), capture_output=True, cwd=desk.directory)
    assert refused.returncode == 2
    assert refused.stderr.decode().endswith("fix: hpctrain lint --diff - < FILE\n")


def test_a_directory_is_searched_for_batch_scripts(desk: Desk) -> None:
    for name in ("a.sbatch", "deep/b.slurm", "deep/c.sh", ".hidden/d.sbatch", "e.txt"):
        desk.write(f"jobs/{name}", BAD)
    desk.write("jobs/helper.sh", "export PYTHONBUFFERED=1\n")
    document = json.loads(desk.run("lint", "--json", "jobs").out)
    assert document["files"] == 3
    assert {finding["file"] for finding in document["findings"]} == {"jobs/a.sbatch", "jobs/deep/b.slurm", "jobs/deep/c.sh"}


def test_all_files_that_cannot_be_read_are_named_at_once(desk: Desk) -> None:
    desk.write("job.sbatch", BAD)
    desk.write("binary.sbatch", b"\x7fELF\0\0")
    said = desk.refused("lint", "no such file", "job.sbatch", "nowhere/x.sbatch", "binary.sbatch")
    assert said.lines[0] == "error: cannot read 3 files"
    assert said.lines[1:4] == [
        "no such file: no such file or directory",
        "nowhere/x.sbatch: no such file or directory",
        "binary.sbatch: holds NUL bytes, so it is no script",
    ]
    assert said.lines[-1] == "fix: ls -l 'no such file' nowhere/x.sbatch binary.sbatch"


def test_one_file_that_is_not_there_is_named_with_what_lies_beside_it(desk: Desk) -> None:
    desk.write("train.sbatch", GOOD)
    said = desk.refused("lint", "trian.sbatch")
    assert said.lines == ["error: cannot read trian.sbatch: no such file or directory", "scripts in .: train.sbatch", "fix: ls -l ."]


def test_a_directory_without_scripts_is_refused(desk: Desk) -> None:
    desk.write("empty/notes.txt", "nothing\n")
    said = desk.refused("lint", "empty")
    assert said.lines == [
        "error: no batch script in empty",
        "looked for *.sbatch, *.slurm, and *.sh with #SBATCH lines",
        "fix: ls -lR empty",
    ]


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_an_unknown_id_is_refused_with_the_nearest(desk: Desk, option: str) -> None:
    desk.write("job.sbatch", GOOD)
    said = desk.refused("lint", option, "fixed-port,pythonbufferd", "job.sbatch")
    assert said.lines == ["error: no finding of lint is called 'pythonbufferd'", "fix: write: pythonbuffered"]


def test_fix_rewrites_and_keeps_mode_link_and_bytes(desk: Desk) -> None:
    script = desk.write("real/job.sbatch", BAD.encode() + b"# caf\xe9\n")
    script.chmod(0o750)
    (desk.directory / "link.sbatch").symlink_to("real/job.sbatch")
    said = desk.run("lint", "--fix", "link.sbatch")
    assert said.err.startswith("fixed link.sbatch: directive-case, kill-on-bad-exit-value, pythonbuffered\n")
    assert script.read_bytes() == (
        b"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=1:00\nexport PYTHONUNBUFFERED=1\n"
        b"srun --kill-on-bad-exit=1 python train.py\n# caf\xe9\n"
    )
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert (desk.directory / "link.sbatch").is_symlink()
    assert said.code == 0
    assert sorted(path.name for path in desk.directory.rglob("*")) == ["job.sbatch", "link.sbatch", "real"]
    before = script.stat().st_mtime_ns
    assert desk.run("lint", "--fix", "link.sbatch").err == "1 file: nothing found\n"
    assert script.stat().st_mtime_ns == before, "a file with nothing to repair is not written"


def test_fix_says_that_other_hard_links_keep_the_old_text(desk: Desk) -> None:
    script = desk.write("job.sbatch", BAD)
    os.link(script, desk.directory / "other.sbatch")
    said = desk.run("lint", "--fix", "job.sbatch")
    assert "note: job.sbatch had 2 hard links; the others keep the old text\n" in said.err
    assert (desk.directory / "other.sbatch").read_text() == BAD


def test_diff_shows_and_writes_nothing(desk: Desk) -> None:
    desk.write("job.sbatch", BAD.replace("\n", "\r\n"))
    before = desk.snapshot()
    said = desk.run("lint", "--diff", "job.sbatch")
    assert said.code == 1
    assert said.out.startswith("--- a/job.sbatch\n+++ b/job.sbatch\n@@ ")
    assert "-srun -K 1 python train.py^M\n" in said.out
    assert "+srun --kill-on-bad-exit=1 python train.py\n" in said.out
    assert desk.snapshot() == before
    desk.run("lint", "--fix", "job.sbatch")
    said = desk.run("lint", "--diff", "job.sbatch")
    assert (said.code, said.out) == (0, "")


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch")
def test_the_diff_is_a_patch(desk: Desk) -> None:
    desk.write("job.sbatch", BAD)
    patch = desk.run("lint", "--diff", "job.sbatch").out
    done = subprocess.run(["patch", "-p1"], input=patch, text=True, capture_output=True, cwd=desk.directory)
    assert done.returncode == 0, done.stderr
    assert desk.run("lint", "--diff", "job.sbatch").code == 0


def test_only_the_selected_repairs_are_made(desk: Desk) -> None:
    script = desk.write("job.sbatch", BAD)
    desk.run("lint", "--fix", "--select", "pythonbuffered", "job.sbatch")
    assert script.read_text() == BAD.replace("PYTHONBUFFERED", "PYTHONUNBUFFERED")


def test_a_script_of_hpctrain_is_made_again_and_not_edited(desk: Desk) -> None:
    rendered = desk.run("render", "--time", "10").out.strip()
    script = Path(rendered)
    script.write_text(script.read_text() + "export PYTHONBUFFERED=1\n")
    before = script.read_bytes()
    said = desk.run("lint", "--fix", str(script))
    assert "was written by hpctrain, so it is not edited; change config.yaml, then: hpctrain render --time 10" in said.err
    assert script.read_bytes() == before
    assert desk.run("lint", "--diff", str(script)).out == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_an_error(desk: Desk) -> None:
    script = desk.write("jobs/job.sbatch", BAD)
    script.parent.chmod(0o555)
    said = desk.run("lint", "--fix", "jobs/job.sbatch")
    script.parent.chmod(0o755)
    assert said.code == 1
    assert "error: cannot write" in said.err


def test_no_output_shows_a_secret(desk: Desk) -> None:
    token = "hf_" + "aB3dE5gH7jK9" * 3
    desk.write("job.sbatch", f"#!/bin/bash\n#SBATCH --time=1\nexport HF_TOKEN={token} PYTHONBUFFERED=1 PET_X={token}\n")
    for options in ((), ("--json",), ("--sarif",)):
        said = desk.run("lint", *options, "job.sbatch")
        assert said.code == 1
        assert token not in said.out + said.err
        assert "hf_" in said.out


def test_colour_only_on_a_terminal(desk: Desk) -> None:
    desk.write("job.sbatch", BAD)
    hpctrain = str(Path(sys.executable).with_name("hpctrain"))
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        done = subprocess.run(
            ["script", "-qec", f"{hpctrain} lint job.sbatch", "/dev/null"], cwd=desk.directory, capture_output=True, text=True,
            env={**{key: value for key, value in os.environ.items() if key != "NO_COLOR"}, "TERM": "xterm", **environment},
        )  # fmt: skip
        assert ("\x1b[" in done.stdout) == coloured


def test_lint_imports_nothing_heavy(desk: Desk) -> None:
    desk.write("job.sbatch", BAD)
    program = (
        "import sys\nfrom hpctrain.cli import main\n"
        "try:\n    main(['lint', 'job.sbatch'])\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=desk.directory, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & {"pydantic", "jinja2", "yaml", "rich", "torch", "numpy", "psutil"}


def test_the_pre_commit_hook() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "hpctrain-lint"
    assert hook["language"] == "python"
    assert hook["entry"] == "hpctrain lint"
    wanted = re.compile(hook["files"])
    assert wanted.search("scripts/job.sbatch")
    assert wanted.search("a.slurm")
    assert not wanted.search("train.py")
    assert not wanted.search("a.sbatch.j2")


def test_the_hook_does_what_pre_commit_asks(desk: Desk) -> None:
    """pre-commit calls the entry with file names, and takes any other code than 0 for a failure."""
    desk.write("a.sbatch", GOOD)
    desk.write("b.sbatch", BAD)
    hpctrain = [str(Path(sys.executable).with_name("hpctrain")), "lint"]
    assert subprocess.run([*hpctrain, "a.sbatch"], cwd=desk.directory, capture_output=True).returncode == 0
    assert subprocess.run([*hpctrain, "a.sbatch", "b.sbatch"], cwd=desk.directory, capture_output=True).returncode == 1


def test_all_ids_are_known_to_docs(desk: Desk) -> None:
    for id_ in IDS[::10]:
        assert desk.run("docs", id_).out.startswith(f"# {id_}\n")
