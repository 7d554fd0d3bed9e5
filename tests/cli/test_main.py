"""The command line as a whole: its first page, groups, and `--quiet`."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.cli import GROUPS, VERBS
from hpctrain.clusters import load
from hpctrain.jobs import header
from tests.cli.conftest import Desk
from tests.runs import checkpoint_maker


def test_alone_it_shows_the_groups_and_the_first_step(desk: Desk) -> None:
    said = desk.run()
    assert (said.code, said.err) == (0, "")
    assert all(f"\n{title}:\n" in said.out for title in GROUPS)
    assert said.out.splitlines()[-1] == "next: hpctrain init"
    assert max(map(len, said.out.splitlines())) <= 80
    desk.write("config.yaml", "job_name: x\n")
    assert desk.run().out.splitlines()[-1] == "next: hpctrain check"
    (desk.directory / "runs").mkdir()
    assert desk.run().out.splitlines()[-1] == "next: hpctrain watch"
    assert desk.run("--help").out in said.out
    assert len(VERBS) <= 20


@pytest.mark.usefixtures("no_slurm")
def test_quiet_leaves_out_notes_and_next_steps(desk: Desk) -> None:
    desk.write("train.py", "")
    words = ("render", "--script", "train.py")
    assert "next: " in desk.run(*words).err
    for quiet in (("--quiet", *words), (*words, "--quiet")):
        said = desk.run(*quiet)
        assert (said.code, said.out) == (0, "sft.sbatch\n")
        assert "next: " not in said.err
        assert "note: " not in said.err
    assert desk.refused("--quiet", "render", "--nodes", "x").lines[-1].startswith("fix: ")


@pytest.mark.usefixtures("no_slurm")
def test_a_standing_note_is_said_once_in_a_project(desk: Desk) -> None:
    desk.write("train.py", "")
    words = ("submit", "--dry-run", "--script", "train.py")
    assert [desk.run(*words).err.count("sbatch is not on PATH") for _ in range(2)] == [1, 0]


def test_a_shell_completes_runs_partitions_accounts_and_clusters(desk: Desk, hpctrain: str) -> None:
    (desk.directory / "runs" / "sft-1").mkdir(parents=True)
    desk.program("sinfo", "printf 'boost\\nbatch\\nother\\n'")
    desk.program("sacctmgr", "printf 'my_project\\n'")

    def completed(typed: str) -> list[str]:
        said = subprocess.run(
            [hpctrain],
            env={
                **os.environ,
                "_HPCTRAIN_COMPLETE": "bash_complete",
                "COMP_WORDS": f"hpctrain {typed}",
                "COMP_CWORD": str(len(typed.split())),
            },
            cwd=desk.directory,
            capture_output=True,
            text=True,
            check=True,
        )
        return [line.rpartition(",")[2] for line in said.stdout.splitlines()]

    assert completed("watch sft") == ["sft-1"]
    assert completed("render --cluster leo") == ["leonardo"]
    assert completed("render --partition b") == ["batch", "boost"]
    assert completed("submit --account my") == ["my_project"]
    assert completed("resub") == ["resubmit"]


# -- What somebody new does in the first hour, wrongly: no command that is offered then may f


#: Fails as long as the config says so, and says what it got.
TRAIN = "import sys\nprint(sys.argv[1:])\nsys.exit(3 if '--fail' in sys.argv else 0)\n"


@pytest.mark.usefixtures("no_slurm")
def test_what_a_stale_script_offers_still_goes_on_with_the_run(desk: Desk) -> None:
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", "script: train.py\nlauncher: srun\n")
    assert desk.run("render").code == 0
    desk.write("config.yaml", "script: train.py\nlauncher: srun\nresources: {time: 10}\n")
    said = desk.refused("submit", "--local", "--run-id", "r1")
    assert said.lines[-2] == "fix: hpctrain render && hpctrain submit --local --run-id r1"
    offered = "hint: or submit the script as it is: hpctrain submit --local --run-id r1 "
    assert said.lines[-1].startswith(offered)


@pytest.mark.usefixtures("no_slurm")
def test_a_script_of_another_config_is_not_rendered_from_none(desk: Desk) -> None:
    desk.write("train.py", TRAIN)
    desk.write("own.yaml", "script: train.py\nlauncher: srun\n")
    assert desk.run("render", "--config", "own.yaml").code == 0
    said = desk.refused("submit", "--local", "-t", "5")
    assert said.lines[-1] == "fix: hpctrain submit --local --time 5 --config own.yaml"


@pytest.mark.usefixtures("no_slurm")
def test_an_option_is_never_the_value_of_another(desk: Desk) -> None:
    said = desk.run("prepare", "--demo", "--force")
    assert said.code == 2
    assert "--demo" in said.err
    assert "--force" in said.err
    assert not list(desk.directory.iterdir())
    desk.write("train.py", TRAIN)
    rendered = desk.run(
        "render",
        "--script",
        "train.py",
        "--to",
        "-",
        "--",
        "--model",
        "--help",
        "--nodes",
        "--time",
    )
    assert rendered.code == 0, rendered.err
    assert "--model --help --nodes --time" in rendered.out


# -- Whatever a person types or has lying about: a clear error with a fix, the right exit cod


# ---- options -------------------------------------------------------------------------------------

OPTIONS = [
    (["--gpus", "65"], "--gpus must be between 0 and 64, not 65"),
    (["--gpus", "-1"], "--gpus must be between 0 and 64, not -1"),
    (["--gpus-per-node", "four"], "--gpus must be a whole number, not 'four'"),
    (
        ["--nodes", "99999999999999999999"],
        "--nodes must be between 1 and 10000, not 99999999999999999999",
    ),
    (["-N", "2-4"], "--nodes must be a whole number, not '2-4'"),
    (["--cpus-per-task", "1e3"], "--cpus-per-task must be a whole number, not '1e3'"),
    (["--job-name", "a\nb"], r"--job-name must be one line without control characters, not 'a\nb'"),
    (["--job-name", "it's"], "--job-name must be 1 to 64 of the characters"),
    (
        ["--account", "$(touch CANARY)"],
        "--account must be letters, digits and . _ - , : + @, not '$(touch CANARY)'",
    ),
    (["--partition", "é"], "--partition must be letters"),
    (["--qos", "#"], "--qos must be letters"),
    (["--reservation", "100%"], "--reservation must be letters"),
    (["--constraint", "a;b"], "--constraint must be feature names"),
    (["--time", "1h"], "--time must be a time limit in one of Slurm's forms"),
    (["--time", "0"], "--time must be more than 0"),
    (["--mem", "1.5G"], "--mem must be a whole number with K, M, G or T"),
    (
        ["--launcher", "torchrunn"],
        "--launcher must be 'accelerate', 'torchrun' or 'srun', not 'torchrunn'",
    ),
    (["--gpu-directive", "gpu"], "--gpu-directive must be 'gres'"),
    (["--offline", "perhaps"], "--offline must be true or false, not 'perhaps'"),
    (
        ["--chdir", "-here"],
        (
            "--chdir must not start with a dash, because programs would take it for an option, not"
            " '-here'"
        ),
    ),
    (["--template", "nope.j2"], "there is no template 'nope.j2'"),
    (["--config", "nope.yaml"], "there is no file nope.yaml"),
    (["--sbatch", "gpus=4"], "--sbatch: 'gpus' in sbatch must not be here"),
    (["--sbatch", "gpus-per-nod=4"], "--sbatch: 'gpus-per-nod' in sbatch must not be here"),
    (["--sbatch", "=x"], "--sbatch: '' in sbatch is not a long option name"),
    (["--sbatch", "comment=a\nb"], "--sbatch: 'comment' in sbatch must be one line"),
    (["--sbatch", "test-only"], "use hpctrain check"),
    (["--conda", "a", "--venv", "b"], "--venv: venv and conda are mutually exclusive"),
    (["--gpu", "4"], "no such option"),
    (["train.py"], "unexpected argument"),
    (["--nodes"], "requires an argument"),
]


@pytest.mark.parametrize(
    ("words", "sentence"),
    OPTIONS,
    ids=[" ".join(words).replace("\n", "\\n") for words, _ in OPTIONS],
)
@pytest.mark.parametrize("verb", ["render", "submit"])
def test_bad_options(desk: Desk, verb: str, words: list[str], sentence: str) -> None:
    if (verb, words) != ("submit", ["train.py"]):  # submit takes a script
        assert sentence in desk.refused(verb, *words).err


def test_all_bad_options_at_once(desk: Desk) -> None:
    said = desk.refused(
        "render",
        "--gpus",
        "65",
        "--nodes",
        "x",
        "--time",
        "y",
        "--sbatch",
        "nodes=2",
        "--job-name",
        "",
    )
    assert said.lines[0] == "error: 5 problems in the options"
    assert said.lines[-1] == "fix: hpctrain render --help"


def test_bad_variables(desk: Desk) -> None:
    desk.set(HPCTRAIN_GPUS="65", HPCTRAIN_MEM="$(free)")
    said = desk.refused("render", "--nodes", "2")
    assert said.lines[1:3] == [
        "HPCTRAIN_GPUS: gpus_per_node must be between 0 and 64, not 65",
        "HPCTRAIN_MEM: mem must be a whole number with K, M, G or T, such as 64G, not '$(free)'",
    ]


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("submti --nodes 2 -- --x 1", "submit --nodes 2 -- --x 1"),
        ("runs shw sft-1", "runs show sft-1"),
        ("runs qqq", "runs --help"),
        ("runs show --qqq", "runs show --help"),
        ("render train.py", "render --script train.py"),
        ("submit --nodez=2 -- --nodez 3", "submit --nodes=2 -- --nodez 3"),
        ("submit --max_steps 4 --gpus 0", "submit --gpus 0 -- --max_steps 4"),
        ("render --lr=1 -N 2 --tags a b -- --x 1", "render -N 2 -- --lr=1 --tags a b --x 1"),
        ("submit --run_id r", "submit --run-id r"),
    ],
)
def test_a_typo_keeps_the_rest_of_the_command(desk: Desk, typed: str, fix: str) -> None:
    assert desk.refused(*typed.split()).lines[-1] == f"fix: hpctrain {fix}"


@pytest.mark.parametrize(
    "words",
    [["--json"], ["submit", "."], ["submit", "--to", "-"]],
)
def test_bad_commands(desk: Desk, words: list[str]) -> None:
    desk.refused(*words)


# ---- config files --------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["render", "submit", "cancel"])
def test_a_bad_config_is_told_of_whole(desk: Desk, verb: str) -> None:
    desk.program("squeue sacct scontrol sbatch", "true")
    desk.write("config.yaml", "resources:\n  gpus_per_nod: 4\n  nodes: 0\nlauncher: torchrunn\n")
    said = desk.refused(verb)
    assert said.lines[:4] == [
        "error: 3 problems in config.yaml",
        "config.yaml:2:3: unknown key 'gpus_per_nod' in resources; did you mean 'gpus_per_node'?",
        "config.yaml:3:3: nodes must be between 1 and 10000, not 0",
        "config.yaml:4:1: launcher must be 'accelerate', 'torchrun' or 'srun', not 'torchrunn'",
    ]
    assert said.lines[-1].startswith("hint: edit config.yaml, then run: ")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"a: [",
        b"a: 1\na: 2\n",
        b"- a",
        b"a: \x00",
        b"\tx: 1",
        b"resources: 5",
    ],
)
def test_what_is_no_config(desk: Desk, content: bytes) -> None:
    desk.write("config.yaml", content)
    assert "config.yaml" in desk.refused("render").err


def test_unquoted_hours_reach_sbatch_as_hours(desk: Desk) -> None:
    desk.write("config.yaml", "resources:\n  time: 1:30:00\n")
    assert "\n#SBATCH --time=01:30:00 " in desk.run("render", "--to", "-").out


# ---- templates -----------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("text", "words"), TEMPLATES, ids=[str(number) for number in range(len(TEMPLATES))]
)
def test_bad_templates(desk: Desk, text: str | bytes, words: str) -> None:
    desk.write("mine.j2", text)
    said = desk.refused("render", "--template", "mine.j2")
    assert words in said.err
    assert "mine.j2" in said.lines[-1]


def test_the_path_of_a_template_is_quoted_in_what_to_type(desk: Desk) -> None:
    desk.write("a b; c.j2", b"\xff")
    assert desk.refused("render", "--template", "a b; c.j2").lines[-1] == "fix: ls -l 'a b; c.j2'"


@pytest.mark.parametrize("body", ['{% include "mine.j2" %}', "{{ 'x' * 10**12 }}"])
def test_templates_without_end(desk: Desk, body: str) -> None:
    desk.write("mine.j2", f"#!/bin/bash\n{body}\n")
    desk.refused("render", "--template", "mine.j2")


def test_a_macro_of_ones_own(desk: Desk) -> None:
    desk.write("templates/_macros.j2", "{{ nope }}")
    assert "_macros.j2:1: 'nope' is undefined" in desk.refused("render").err


# ---- files ---------------------------------------------------------------------------------------


def test_a_file_of_ones_own_is_not_lost(desk: Desk) -> None:
    desk.write("sft.sbatch", "#!/bin/bash\n# years of work\n")
    assert (
        desk.refused("render").lines[0] == "error: sft.sbatch exists, and hpctrain did not write it"
    )
    assert "hpctrain did not write it" in desk.refused("submit", "--gpus", "2").err
    assert desk.run("render", "--force").code == 0
    made = header.read_header((desk.directory / "sft.sbatch").read_text())
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


@pytest.mark.parametrize("place", ["/proc/x.sbatch", "/nonexistent/x.sbatch"])
def test_a_place_that_cannot_be_written_leaves_nothing(desk: Desk, place: str) -> None:
    desk.refused("render", "--to", place, code=1)


@pytest.fixture
def small_disk(desk: Desk) -> Iterator[Path]:
    """A file system of ten pages, which is the current directory."""
    outside = desk.directory
    with checkpoint_maker.small_disk(outside / "disk", "40k") as disk:
        desk.go("disk")
        yield disk
        desk.patch.chdir(outside)


@pytest.mark.parametrize("pages", [1, 2, 3, 4])
def test_a_full_disk_keeps_the_old_script_or_none(desk: Desk, small_disk: Path, pages: int) -> None:
    (small_disk / "fill").write_bytes(b"x" * 4096 * (6 + pages))
    said = desk.run("render")
    assert said.code == 1
    assert "No space left on device" in said.lines[0]
    assert said.lines[-1].startswith("fix: df -h ")
    assert {path.name for path in small_disk.iterdir()} <= {"fill", "logs", "multi_gpu.yaml"}
    shipped = small_disk / "multi_gpu.yaml"
    assert not shipped.exists() or "distributed_type: MULTI_GPU" in shipped.read_text()


def test_a_read_only_disk(desk: Desk, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert "Read-only file system" in desk.refused("render", code=1).lines[0]


@pytest.mark.parametrize("name", ["a\nb", "a\\b", "a\x1bb"])
def test_a_directory_that_no_directive_can_name(desk: Desk, name: str) -> None:
    desk.go(name)
    assert "cannot run in " in desk.refused("render").lines[0]


@pytest.mark.parametrize(
    "name", ["$(touch CANARY)", "'; touch CANARY; '", 'a "b" #c', "100%j", "é 😀", "-n"]
)
def test_a_directory_with_an_odd_name(desk: Desk, name: str) -> None:
    desk.go(name)
    assert desk.run("render", "--", "--x", "\udcff").code == 0
    made = header.read_header((desk.directory / "sft.sbatch").read_text())
    assert (made.untouched, made.directory, made.arguments) == (
        True,
        str(desk.directory),
        ("--", "--x", "\udcff"),
    )
    assert subprocess.run(["bash", "-n", "sft.sbatch"], cwd=desk.directory).returncode == 0


# ---- real processes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["render", "--gpus", "65"], ["rendr"], ["submit", "nope.sbatch"]]
)
def test_the_installed_command(hpctrain: str, tmp_path: Path, words: list[str]) -> None:
    done = subprocess.run([hpctrain, *words], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.splitlines()[-1].startswith(("fix: ", "hint: "))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["--help", "clusters show lumi_g", "explain --list"])
def test_a_reader_that_goes_away_is_no_error(words: str, hpctrain: str) -> None:
    """`hpctrain … | head -1` under pipefail; the pipe is closed before anything is written."""
    line = f"set -o pipefail; {hpctrain} {words} | true"
    for _ in range(3):  # whether the reader is gone before the first write is a matter of luck
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            FileExistsError(17, "File exists", "/a b"),
            "error: file exists\n/a b\nfix: ls -ld '/a b'",
        ),
        (
            OSError(28, "No space left on device", "/a/c"),
            "error: no space left on device\n/a/c\nfix: df -h /a",
        ),
    ],
)
def test_what_the_file_system_refuses_has_a_fix_that_fits(error: OSError, said: str) -> None:
    from hpctrain.cli import _explain

    assert _explain(error, []) == (said, 1)


# -- `hpctrain clusters`: the list, the page of one cluster, and a cluster of one's own from


TIGER = """\
title: Tiger
docs: https://tiger.example/docs
detect: {variables: {SITE: tiger}}
partitions:
  gpu: {nodes: h100, time_max: 2-00:00:00, default: true}
  long_name_of_a_partition_that_nobody_types: {nodes_max: 2}
nodes:
  h100: {gpus: 4, gpu: NVIDIA H100, cpus: 96, memory: 1T}
gpu_request: {dialect: gres, type: h100}
account: {required: true, list_command: {value: my_projects, evidence: documented, source: docs}}
traps: [the queue is long on Mondays]
"""


@pytest.fixture
def tiger(desk: Desk) -> Desk:
    """Add one file to the user's directory: all that a new cluster needs."""
    desk.set(XDG_CONFIG_HOME=str(desk.directory.parent / "config"))
    desk.write("../config/hpctrain/clusters/tiger.yaml", TIGER)
    return desk


def test_the_list(desk: Desk) -> None:
    said = desk.run("clusters")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].split() == ["NAME", "TITLE", "GPUS", "PARTITIONS"]
    assert len(lines) == 20
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line for line in lines[1:]}
    assert rows.keys() == load.available({}).keys()
    assert "3 A100 +1" in rows["tacc_lonestar6"]
    assert "boost_usr_prod" in rows["leonardo"]
    assert "matches no profile" in said.err


def test_the_list_as_json(tiger: Desk) -> None:
    said = json.loads(tiger.run("clusters", "--json").out)
    found = {cluster["name"]: cluster for cluster in said["clusters"]}
    assert len(found) == 20
    assert found["tiger"]["shipped"] is False
    assert found["tiger"]["file"].endswith("hpctrain/clusters/tiger.yaml")
    assert found["tiger"]["nodes"] == {"h100": {"gpus": 4, "gpu": "NVIDIA H100"}}
    assert found["leonardo"]["shipped"] is True
    assert found["leonardo"]["default_partition"] == "boost_usr_prod"
    assert list(found["leonardo"]["evidence"]) == ["documented", "reported", "seen", "recalled"]
    assert found["jean_zay"]["detected"] is False


def test_a_profile_that_is_wrong_does_not_hide_the_others(tiger: Desk) -> None:
    tiger.write("../config/hpctrain/clusters/lion.yaml", "titel: Lion\n")
    said = tiger.run("clusters")
    assert said.code == 2
    assert len(said.out.splitlines()) == 21
    assert "lion.yaml:1:1: unknown key 'titel'; did you mean 'title'?" in said.err
    assert said.lines[-1].startswith(("fix: ", "hint: "))
    tiger.refused("clusters", "show", "lion")


def test_the_page_as_json(desk: Desk) -> None:
    said = json.loads(desk.run("clusters", "show", "lumi-g", "--json").out)
    assert said["name"] == "lumi_g"
    assert said["profile"]["memory"]["per_gpu"] == 60 << 30
    assert said["profile"]["partitions"]["dev-g"]["time_max"] == 3 * 3600
    assert said["evidence"]["/partitions/dev-g/time_max"] == {
        "level": "documented",
        "source": "https://github.com/Lumi-supercomputer/lumi-userguide",
    }
    assert [Path(file).name for file in said["files"]] == ["lumi_g.yaml"]


def test_what_is_refused(tiger: Desk) -> None:
    assert "did you mean 'leonardo'?" in tiger.refused("clusters", "show", "leonrado").lines[0]
    assert (
        tiger.refused("clusters", "show", "leonrado").lines[-1]
        == "fix: hpctrain clusters show leonardo"
    )
    tiger.refused("clusters", "--json", "show", "tiger")
    tiger.refused("clusters", "shwo", "tiger")
    tiger.refused("clusters", "show")
