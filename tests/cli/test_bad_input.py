"""Whatever a person types or has lying about: a clear error with a fix, the right exit code, and nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpctrain.jobs import render

if TYPE_CHECKING:
    from conftest import Desk

#: What the kernel lets root do nowhere but here.
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


# ---- options -------------------------------------------------------------------------------------------------------------------

OPTIONS = [
    (["--gpus", "0"], "--gpus must be between 1 and 64, not 0"),
    (["--gpus", "-1"], "--gpus must be between 1 and 64, not -1"),
    (["--gpus-per-node", "four"], "--gpus must be a whole number, not 'four'"),
    (["--nodes", "99999999999999999999"], "--nodes must be between 1 and 10000, not 99999999999999999999"),
    (["-N", "2-4"], "--nodes must be a whole number, not '2-4'"),
    (["--cpus-per-task", "1e3"], "--cpus-per-task must be a whole number, not '1e3'"),
    (["--job-name", "a\nb"], r"--job-name must be one line without control characters, not 'a\nb'"),
    (["--job-name", "it's"], "--job-name must be 1 to 64 of the characters"),
    (["--account", "$(touch CANARY)"], "--account must be letters, digits and . _ - , : + @, not '$(touch CANARY)'"),
    (["--partition", "é"], "--partition must be letters"),
    (["--qos", "#"], "--qos must be letters"),
    (["--reservation", "100%"], "--reservation must be letters"),
    (["--constraint", "a;b"], "--constraint must be feature names"),
    (["--time", "1h"], "--time must be a time limit of Slurm's forms"),
    (["--time", "0"], "--time must be more than 0"),
    (["--mem", "1.5G"], "--mem must be a whole number with K, M, G or T"),
    (["--launcher", "torchrunn"], "--launcher must be 'accelerate', 'torchrun' or 'srun', not 'torchrunn'"),
    (["--gpu-directive", "gpu"], "--gpu-directive must be 'gres'"),
    (["--offline", "perhaps"], "--offline must be true or false, not 'perhaps'"),
    (["--chdir", "-here"], "--chdir must not begin with a dash, because programs would take it for an option, not '-here'"),
    (["--script", "nope.py"], "there is no script 'nope.py' in "),
    (["--template", "nope.j2"], "there is no template 'nope.j2'"),
    (["--accelerate-config", "nope.yaml"], "there is no accelerate config 'nope.yaml' in "),
    (["--config", "nope.yaml"], "there is no file nope.yaml"),
    (["--sbatch", "gpus=4"], "--sbatch: 'gpus' in sbatch must not be here"),
    (["--sbatch", "gpus-per-nod=4"], "--sbatch: 'gpus-per-nod' in sbatch must not be here"),
    (["--sbatch", "=x"], "--sbatch: '' in sbatch is no long option name"),
    (["--sbatch", "comment=a\nb"], "--sbatch: 'comment' in sbatch must be one line"),
    (["--sbatch", "test-only"], "use hpctrain submit --test-only"),
    (["--conda", "a", "--venv", "b"], "--venv: venv and conda exclude each other"),
    (["--gpu", "4"], "no such option"),
    (["train.py"], "unexpected extra argument"),
    (["--nodes"], "requires an argument"),
]


@pytest.mark.parametrize(("words", "sentence"), OPTIONS, ids=[" ".join(words).replace("\n", "\\n") for words, _ in OPTIONS])
@pytest.mark.parametrize("verb", ["render", "submit"])
def test_bad_options(desk: Desk, verb: str, words: list[str], sentence: str) -> None:
    if (verb, words) != ("submit", ["train.py"]):  # submit takes a script
        assert sentence in desk.refused(verb, *words).err


def test_all_bad_options_at_once(desk: Desk) -> None:
    said = desk.refused("render", "--gpus", "0", "--nodes", "x", "--time", "y", "--sbatch", "nodes=2", "--job-name", "")
    assert said.lines[0] == "error: 5 problems in the options"
    assert said.lines[-1] == "fix: hpctrain render --nodes 2 --gpus 4 --time 01:00:00 --job-name sft"


def test_the_fix_works(desk: Desk) -> None:
    fix = desk.refused("render", "--gpus", "0", "--mem", "lots", "--constraint", "$x").lines[-1]
    assert desk.run(*fix.removeprefix("fix: hpctrain ").split()).code == 0


def test_bad_variables(desk: Desk) -> None:
    desk.set(HPCTRAIN_GPUS="0", HPCTRAIN_MEM="$(free)")
    said = desk.refused("render", "--nodes", "2")
    assert said.lines[1:3] == ["HPCTRAIN_GPUS: gpus_per_node must be between 1 and 64, not 0",
                               "HPCTRAIN_MEM: mem must be a whole number with K, M, G or T, such as 64G, not '$(free)'"]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [["rendr"], ["--json"], ["nope", "--debug"], ["ps", "--x"], ["submit", "nope.sbatch"], ["submit", "."], ["submit", "--to", "-"]],
)
def test_bad_commands(desk: Desk, words: list[str]) -> None:
    desk.refused(*words)


# ---- config files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["render", "submit", "cancel"])
def test_a_bad_config_is_told_of_whole(desk: Desk, verb: str) -> None:
    for name in ("squeue", "sacct", "scontrol", "sbatch"):
        desk.program(name, "true")
    desk.write("config.yaml", "resources:\n  gpus_per_nod: 4\n  nodes: 0\nlauncher: torchrunn\n")
    said = desk.refused(verb)
    assert said.lines[:4] == [
        "error: 3 problems in config.yaml",
        "config.yaml:2:3: unknown key 'gpus_per_nod' in resources; did you mean 'gpus_per_node'?",
        "config.yaml:3:3: nodes must be between 1 and 10000, not 0",
        "config.yaml:4:1: launcher must be 'accelerate', 'torchrun' or 'srun', not 'torchrunn'",
    ]
    assert said.lines[-1].startswith("fix: edit config.yaml, then run: ")


@pytest.mark.parametrize(
    "content", [b"\xff", b"a: [", b"a: 1\na: 2\n", b"- a", b"a: \x00", b"\tx: 1", b"resources: 5", b"a: " + b"[" * 50_000]
)
def test_what_is_no_config(desk: Desk, content: bytes) -> None:
    desk.write("config.yaml", content)
    assert "config.yaml" in desk.refused("render").err


def test_unquoted_hours_reach_sbatch_as_hours(desk: Desk) -> None:
    desk.write("config.yaml", "resources:\n  time: 1:30:00\n")
    assert "\n#SBATCH --time=01:30:00\n" in desk.run("render", "--to", "-").out


def test_an_accelerate_config_that_would_start_one_process(desk: Desk) -> None:
    desk.write("multi_gpu.yaml", "distributed_type: 'NO'\ngpu_ids: 0,1\n")
    said = desk.refused("render")
    assert said.lines[0] == "error: 2 problems in multi_gpu.yaml"
    assert said.lines[1].startswith("multi_gpu.yaml:1:1: distributed_type must be MULTI_GPU")


# ---- templates -----------------------------------------------------------------------------------------------------------------

TEMPLATES = [
    ("#!/bin/bash\n\n{{ acount | sh }}\n", "mine.j2:3: 'acount' is undefined"),
    ("#!/bin/bash\n{{ job.acount }}\n", "mine.j2:2: "),
    ("#!/bin/bash\n{% if %}\n", "mine.j2:2: "),
    ("#!/bin/bash\n{{ job | shell }}\n", "mine.j2:2: No filter named 'shell'"),
    ("#!/bin/bash\n{{ 1/0 }}\n", "mine.j2:2: division by zero"),
    ("#!/bin/bash\n{{ ''.__class__.__mro__ }}\n", "mine.j2:2: access to attribute '__class__'"),
    ("#!/bin/bash\n{% for i in range(10**9) %}x{% endfor %}\n", "mine.j2:2: Range too big"),
    ('#!/bin/bash\n{{ "\\0" | sh }}\n', "mine.j2:2: "),
    ('#!/bin/bash\n{% import "nope.j2" as x %}\n', "there is no template 'nope.j2'; known are "),
    ("echo {{ job.nodes }}\n", "template mine.j2 does not start with a #! line"),
    ("", "template mine.j2 does not start with a #! line"),
    ("\n#!/bin/bash\n", "template mine.j2 does not start with a #! line"),
    (b"\xff", "cannot read the template mine.j2"),
]


@pytest.mark.parametrize(("text", "words"), TEMPLATES, ids=[str(number) for number in range(len(TEMPLATES))])
def test_bad_templates(desk: Desk, text: str | bytes, words: str) -> None:
    desk.write("mine.j2", text)
    said = desk.refused("render", "--template", "mine.j2")
    assert words in said.err
    assert "mine.j2" in said.lines[-1]


@pytest.mark.parametrize("body", ['{% include "mine.j2" %}', "{{ 'x' * 10**12 }}"])
def test_templates_without_end(desk: Desk, body: str) -> None:
    desk.write("mine.j2", f"#!/bin/bash\n{body}\n")
    desk.refused("render", "--template", "mine.j2")


def test_a_macro_of_ones_own(desk: Desk) -> None:
    desk.write("templates/_macros.j2", "{{ nope }}")
    assert "_macros.j2:1: 'nope' is undefined" in desk.refused("render").err


# ---- files ---------------------------------------------------------------------------------------------------------------------


def test_a_file_of_ones_own_is_not_lost(desk: Desk) -> None:
    desk.write("sft.sbatch", "#!/bin/bash\n# years of work\n")
    assert desk.refused("render").lines[0] == "error: sft.sbatch exists, and hpctrain did not write it"
    assert "hpctrain did not write it" in desk.refused("submit", "--gpus", "2").err
    assert desk.run("render", "--force").code == 0
    made = render.read_header((desk.directory / "sft.sbatch").read_text())
    assert made is not None
    assert made.untouched


@pytest.mark.parametrize("edit", ["\n", "# note\n", "\udcff"])
def test_an_edit_is_not_lost(desk: Desk, edit: str) -> None:
    assert desk.run("render").code == 0
    assert desk.run("render", "--gpus", "2").code == 0  # untouched: rendering again is no loss
    with (desk.directory / "sft.sbatch").open("a", errors="surrogateescape") as stream:
        stream.write(edit)
    assert desk.refused("render").lines[0] == "error: sft.sbatch was edited after hpctrain wrote it"
    assert desk.run("render", "--force").code == 0


def test_a_directory_in_the_way(desk: Desk) -> None:
    (desk.directory / "sft.sbatch").mkdir()
    assert desk.refused("render").lines[0] == "error: sft.sbatch is a directory"


def test_a_file_where_the_logs_should_go(desk: Desk) -> None:
    desk.write("logs", "mine")
    said = desk.refused("render")
    assert "logs is a file, and the job writes its logs into a directory of that name" in said.lines[0]
    assert said.lines[-1].startswith("fix: mv ")


def test_a_relative_chdir_counts_from_here(desk: Desk) -> None:
    (desk.directory / "sub").mkdir()
    assert f"#SBATCH --chdir={desk.directory}/sub\n" in desk.run("render", "--chdir", "./sub/.", "--to", "-").out
    desk.write("file", "x")
    assert "is a file, not a directory" in desk.refused("render", "--chdir", "file").lines[0]


def test_bare_hpctrain_shows_the_help_and_no_error(desk: Desk) -> None:
    said = desk.run()
    assert said.code == 2
    assert said.err.startswith("Usage: hpctrain")


def test_a_script_in_the_wrong_place_is_named_in_the_fix(desk: Desk) -> None:
    assert desk.refused("render", "train.py").lines[-1] == "fix: hpctrain render --script train.py"
    assert desk.refused("render", "--nodes").lines[-1] == "fix: hpctrain render --help"
    assert desk.refused("submit", "--gpus", "0").lines[-1] == "fix: hpctrain submit --gpus 4"


@pytest.mark.parametrize("place", ["/proc/x.sbatch", "/nonexistent/x.sbatch"])
def test_a_place_that_cannot_be_written_leaves_nothing(desk: Desk, place: str) -> None:
    desk.refused("render", "--to", place, code=1)


def test_a_place_that_cannot_be_written(desk: Desk) -> None:
    said = desk.run("render", "--to", "/proc/x.sbatch")
    assert said.code == 1
    assert said.lines[0].startswith("error: cannot write ")


@pytest.fixture
def small_disk(desk: Desk) -> Iterator[Path]:
    """A file system of four pages, which is the current directory."""
    outside = desk.directory
    desk.go("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(desk.directory)], check=True)
    desk.patch.chdir(desk.directory)
    yield desk.directory
    desk.patch.chdir(outside)
    subprocess.run(["umount", str(outside / "disk")], check=True)


@as_root
@pytest.mark.parametrize("pages", [1, 2, 3, 4])
def test_a_full_disk_keeps_the_old_script_or_none(desk: Desk, small_disk: Path, pages: int) -> None:
    (small_disk / "fill").write_bytes(b"x" * 4096 * pages)
    said = desk.run("render")
    assert said.code == 1
    assert "No space left on device" in said.lines[0]
    assert said.lines[-1].startswith("fix: df -h ")
    assert {path.name for path in small_disk.iterdir()} <= {"fill", "logs", "multi_gpu.yaml"}
    shipped = small_disk / "multi_gpu.yaml"
    assert not shipped.exists() or "distributed_type: MULTI_GPU" in shipped.read_text()


@as_root
def test_a_full_disk_does_not_touch_what_is_there(desk: Desk, small_disk: Path) -> None:
    assert desk.run("render", "--launcher", "torchrun").code == 0
    old = (small_disk / "sft.sbatch").read_bytes()
    (small_disk / "fill").write_bytes(b"x" * 4096)
    desk.refused("render", "--launcher", "torchrun", "--gpus", "3", code=1)
    assert (small_disk / "sft.sbatch").read_bytes() == old


@as_root
def test_a_read_only_disk(desk: Desk, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert "Read-only file system" in desk.refused("render", code=1).lines[0]


@pytest.mark.parametrize("name", ["a\nb", "a\\b", "a\x1bb"])
def test_a_directory_that_no_directive_can_name(desk: Desk, name: str) -> None:
    desk.go(name)
    assert "cannot run in " in desk.refused("render").lines[0]


def test_a_directory_that_is_no_utf8(desk: Desk) -> None:
    desk.go("a\udcffb")
    assert desk.run("render").code == 0


@pytest.mark.parametrize("name", ["$(touch CANARY)", "'; touch CANARY; '", 'a "b" #c', "100%j", "é 😀", "-n"])
def test_a_directory_with_an_odd_name(desk: Desk, name: str) -> None:
    desk.go(name)
    assert desk.run("render", "--", "--x", "\udcff").code == 0
    made = render.read_header((desk.directory / "sft.sbatch").read_text())
    assert made is not None
    assert (made.untouched, made.directory, made.arguments) == (True, str(desk.directory), ("--", "--x", "\udcff"))
    assert subprocess.run(["bash", "-n", "sft.sbatch"], cwd=desk.directory).returncode == 0


def test_a_variable_that_an_option_has_replaced_is_not_in_the_header(desk: Desk) -> None:
    desk.set(HPCTRAIN_MEM="64G")
    assert desk.run("render", "--mem-per-cpu", "4G").code == 0
    made = render.read_header((desk.directory / "sft.sbatch").read_text())
    assert made is not None
    assert desk.run("render", *made.arguments).code == 0


def test_a_state_directory_that_cannot_be_made(desk: Desk) -> None:
    desk.program("sbatch", "echo 123")
    desk.run("render")
    desk.set(HPCTRAIN_STATE_DIR="/proc/x")
    said = desk.refused("submit", "--no-check", code=1)
    assert said.lines[0].startswith("error: cannot make /proc/x")
    assert "HPCTRAIN_STATE_DIR" in said.lines[-1]


# ---- real processes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["render", "--gpus", "0"], ["rendr"], ["submit", "nope.sbatch"]])
def test_the_installed_command(hpctrain: str, tmp_path: Path, words: list[str]) -> None:
    done = subprocess.run([hpctrain, *words], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.splitlines()[-1].startswith("fix: ")
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpctrain", "--debug", "render", "--gpus", "0"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_what_the_shipped_training_lacks_is_said_before_the_queue(desk: Desk) -> None:
    (desk.directory / "model").mkdir()
    for words, expected in (
        ((), ["--model_name_or_path FOLDER", "--dataset_name FOLDER"]),
        (("--", "--model_name_or_path", "model", "--dataset_name=none"), ["--dataset_name none is no folder here"]),
        (("--", "--dataset_name=model", "--model_name_or_path"), ["--model_name_or_path FOLDER"]),
        (("--script", "train.py"), []),
        (("--", "--config", "sft.yaml"), []),
    ):
        desk.write("train.py", "")
        said = desk.run("render", *words)
        assert said.code == 0, said.err
        notes = [line for line in said.lines if line.startswith("note: ")]
        assert len(notes) == len(expected)
        assert all(part in note for part, note in zip(expected, notes, strict=True))


@pytest.mark.parametrize("words", ["--help", "clusters show lumi_g", "docs"])
def test_a_reader_that_goes_away_is_no_error(words: str, hpctrain: str) -> None:
    """`hpctrain … | head -1` under pipefail; the pipe is closed before anything is written."""
    line = f"set -o pipefail; {hpctrain} {words} | true"
    for _ in range(3):  # whether the reader is gone before the first write is a matter of luck
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileExistsError(17, "File exists", "/a b"), "error: file exists\n/a b\nfix: ls -ld '/a b'"),
        (NotADirectoryError(20, "Not a directory", "/a/f/c"), "error: not a directory\n/a/f/c\nfix: namei -l /a/f/c"),
        (OSError(28, "No space left on device", "/a/c"), "error: no space left on device\n/a/c\nfix: df -h /a"),
    ],
)
def test_what_the_file_system_refuses_has_a_fix_that_fits(error: OSError, said: str) -> None:
    from hpctrain.cli import _explain

    assert _explain(error, []) == (said, 1)
