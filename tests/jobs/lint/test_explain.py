"""What is said of each line of a script: ours without a gap, general shell not at all."""

import re
import subprocess
from pathlib import Path

import pytest

from hpctrain.checks.script import explanations
from hpctrain.checks.script.explain import ScriptLine, explain
from tests.jobs.lint import lint_corpus as corpus

GOLDENS = sorted((corpus.TESTS / "golden").glob("*/script*.sbatch"))
#: Of a script of ours: what only the shell means, values of messages, and the training's own words.
_NOTHING_TO_SAY = re.compile(
    r"\s*(?:fi|done|\}|else|esac|\)|'|;;|completed \| .*\)|\"\$.*|--?\w.*|[^\s-]\S*)?\s*\Z"
)


def script(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines])


def only(*lines: str) -> ScriptLine:
    """Return the last line of a script of these lines."""
    return explain(script(*lines))[-1]


def reasons(line: ScriptLine) -> str:
    return " | ".join(note.shown for note in line.notes)


def gaps(text: str) -> list[str]:
    return [
        f"{line.number}: {line.text}"
        for line in explain(text)
        if line.kind in ("shebang", "directive", "command")
        and not line.notes
        and not _NOTHING_TO_SAY.match(line.text)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.parent.name)
def test_every_line_that_hpctrain_wrote_is_explained(golden: Path) -> None:
    text = golden.read_text()
    assert gaps(text) == [], "give each a line in hpctrain/checks/script/explanations.py"
    assert all(line.to_json()["known"] for line in explain(text))
    sections = list(dict.fromkeys(line.section for line in explain(text)))
    assert sections[:2] == ["what this file is", "what is requested from Slurm"]
    assert explain(text)[-1].section == "after the launch"
    assert "on each node" in sections


@pytest.mark.parametrize(
    ("directive", "said"),
    [
        ("--nodes=2", "2 nodes for this job"),
        ("-N 1", "1 node for this job"),
        ("--time=1-00:00:00", "At most 24 h; then Slurm sends SIGTERM"),
        ("--time=UNLIMITED", "Only the partition's time limit"),
        ("--time=soon", "A time limit of `soon`"),
        ("--gres=gpu:4", "4 GPUs on each node (per node, not in total)"),
        ("--gres=gpu:a100:4(S:0),nvme:1", "4 GPUs of type a100 and `nvme:1` on each node"),
        ("--gres=gpu", "1 GPU on each node"),
        ("--gpus=16", "16 GPUs in total, over all nodes"),
        ("--mem=0", "All host memory on each node"),
        ("--mem=" + "9" * 400, "of host memory on each node"),
        ("--exclusive=user", "Only your own jobs share its nodes"),
        ("--signal=B:USR1@120", "Sends SIGUSR1 to this script's shell alone (B:), 2 min before"),
        ("--dependency=afterok:12:13", "Waits for `afterok:12:13`"),
        ("--mail-type=END,FAIL", "Mails you on: END,FAIL"),
        ("--open-mode=append", "A job that is requeued continues its log"),
    ],
)
def test_values_are_said_in_words(directive: str, said: str) -> None:
    line = only(f"#SBATCH {directive}")
    assert said in reasons(line)
    assert (line.kind, line.to_json()["known"]) == ("directive", True)


def test_directives_know_each_other() -> None:
    product = "2 nodes x 4 GPUs = 8"
    for request in ("--gres=gpu:a100:4", "--gpus-per-node=4"):
        assert product in reasons(only("#SBATCH --nodes=2", f"#SBATCH {request}"))
    several = only("#SBATCH -N 2 -p gpu --requeue")
    assert [note.what for note in several.notes] == ["--nodes=2", "--partition=gpu", "--requeue"]


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    for text in ("#SBATCH --site-plugin=3", "srun --no-such-option=3 true"):
        line = only(text)
        assert not line.to_json()["known"]
        assert "no description of" in reasons(line)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("srun -c $SLURM_CPUS_PER_TASK ./a", "-c $SLURM_CPUS_PER_TASK: 32 cores"),
        ("srun -n 4 -K1 -lu ./a", "-n 4: 4 tasks"),
        ("srun --kill-on-bad-exit=0 a", "the others continue"),
        ("srun --kill-on-bad-exit a", "the others are ended too"),
        ("srun torchrun --nnodes $SLURM_NNODES t.py", "number of nodes: $SLURM_NNODES (here 2)"),
        ("python -m torch.distributed.run --nproc-per-node=4 t.py", "processes on each node: 4"),
        ('L="accelerate launch --num_processes 8"; srun $L t.py', "--num_processes 8: the TOTAL"),
        ('A=(--nnodes 2 --max-restarts 3 t.py); torchrun "${A[@]}"', "--max-restarts 3: how often"),
    ],
)
def test_options_of_srun_and_the_launchers(command: str, said: str) -> None:
    line = only("#SBATCH --nodes=2", "#SBATCH --cpus-per-task=32", command)
    assert said in reasons(line), reasons(line)


@pytest.mark.parametrize(
    "command",
    [
        "shift 2",
        '[[ -z "$1" ]] && exit 1',
        "hostname -i",
        "export NCCL_SOCKET_IFNAME=^docker",
        "module load cuda",
        "set -x",
        "for i in 1 2; do echo $i; done",
        "./a-command-of-mine --nodes 2",
        "ended completed",
    ],
)
def test_nothing_is_said_of_general_shell(command: str) -> None:
    line = only("#SBATCH --nodes=2", command)
    assert (line.kind, line.notes) == ("command", [])


def test_an_option_is_explained_on_its_own_line() -> None:
    lines = explain(script("srun torchrun \\", "  --nnodes 2 \\", '  --role "$X" \\', "  train.py"))
    assert [[note.what for note in line.notes] for line in lines[1:]] == [
        ["srun", "torchrun"],
        ["--nnodes 2"],
        ['--role "$X"'],
        [],
    ]


def test_headings_of_a_foreign_script() -> None:
    text = script(
        "#SBATCH --nodes=2",
        "# remark",
        "srun hostname",
        "module load x",
        "",
        "srun bash -c '",
        "  torchrun --standalone t.py",
        "'",
        "echo done",
    )
    assert [(line.kind, line.section) for line in explain(text)] == [
        ("shebang", "what this file is"),
        ("directive", "what is requested from Slurm"),
        ("comment", "the launch"),
        ("command", "the launch"),
        ("command", "the environment"),
        ("blank", "the launch"),
        ("command", "the launch"),
        ("command", "on each node"),
        ("command", "the launch"),
        ("command", "after the launch"),
    ]


# ---- the tables ----------------------------------------------------------------------------------


@pytest.mark.slurm
def test_every_option_of_the_real_sbatch_and_srun_has_an_entry() -> None:
    both = {**explanations.DIRECTIVES, **explanations.SRUN}
    for program, table in (("sbatch", explanations.DIRECTIVES), ("srun", both)):
        page = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
        options = set(re.findall(r"^ +(?:-\w, )?--([a-z][\w-]+)", page.stdout, re.MULTILINE))
        assert len(options) > 60
        assert sorted(options - set(table)) == []
