"""The repairs: safe for bash, done once, and only where the finding stands."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import lint_corpus as corpus
import pytest

from hpctrain.jobs.lint import RULES, fix, lint

FIXABLE = [file for file in corpus.WRONG if fix(corpus.text_of(file), file.name).ids]


def bash_reads(text: str) -> bool:
    return subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True).returncode == 0


@pytest.mark.parametrize("file", FIXABLE, ids=lambda file: file.stem)
def test_a_repair_is_safe(file: Path) -> None:
    text = corpus.text_of(file)
    fixed = fix(text, file.name)
    assert fixed.text != text
    assert bash_reads(fixed.text)
    assert fix(fixed.text, file.name) == type(fixed)(fixed.text, ()), "a second time changes nothing"
    found = lint(text, file.name)
    after = {(one.id, one.line) for one in lint(fixed.text, file.name)}
    changed = changed_lines(text, fixed.text)
    assert changed <= {one.line for one in found if RULES[one.id].fixes} or "dos-line-ends" in fixed.ids
    if text.count("\n") == fixed.text.count("\n"):
        for one in found:
            if one.line in changed and one.id in fixed.ids:
                assert (one.id, one.line) not in after
    assert {id_ for id_, _ in after} <= {one.id for one in found}, "a repair brings no new finding"


def changed_lines(before: str, after: str) -> set[int]:
    matcher = difflib.SequenceMatcher(None, before.split("\n"), after.split("\n"), autojunk=False)
    return {line + 1 for tag, start, end, _, _ in matcher.get_opcodes() if tag != "equal" for line in range(start, end)}


@pytest.mark.parametrize("file", [*corpus.CORRECT, *corpus.GOLDEN], ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_correct_script_stays_as_it_is(file: Path) -> None:
    text = corpus.text_of(file)
    assert fix(text, file.name).text == text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("srun bash -c \"torchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a t.py\"", "--node_rank \\$SLURM_NODEID"),
        ("srun bash <<EOF\ntorchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a t.py\nEOF", "--node_rank \\$SLURM_NODEID"),
        ("export MASTER_PORT=29500", "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))"),
        ("time srun -l python t.py", 'time srun --cpus-per-task="$SLURM_CPUS_PER_TASK" -l python t.py'),
        ("x=$(scontrol show hostnames $SLURM_JOB_NODELIST)", 'x=$(scontrol show hostnames "$SLURM_JOB_NODELIST")'),
        ("set -u; echo $((SLURM_RESTART_COUNT + 1))", "$((${SLURM_RESTART_COUNT:-0} + 1))"),
        ("if [ $SLURM_RESTART_COUNT -gt 1 ]; then exit; fi", "[ ${SLURM_RESTART_COUNT:-0} -gt 1 ]"),
        ("srun -c 4 -K 1 python t.py", "srun -c 4 --kill-on-bad-exit=1 python t.py"),
        (". activate nlp || exit", 'source "$(conda info --base)/etc/profile.d/conda.sh" && conda activate nlp || exit'),
        ("NCCL_BLOCKING_WAIT=1 PYTHONBUFFERED=1 python t.py", "TORCH_NCCL_BLOCKING_WAIT=1 PYTHONUNBUFFERED=1 python t.py"),
    ],
)  # fmt: skip
def test_what_a_repair_writes(before: str, after: str) -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=4 --time=10\nmodule load conda\n"
    fixed = fix(f"{head}{before}\n", "x")
    assert after in fixed.text
    assert fixed.text.startswith(head)
    assert bash_reads(fixed.text)


@pytest.mark.parametrize(
    "text",
    [
        "srun bash -c 'export MASTER_PORT=29500; python t.py'",  # inside another shell's quotes
        'srun bash -c "x=$SLURM_PROCID; echo \'a\' > $x"; R=$SLURM_NODEID; srun bash -c "python t.py $R"',  # the value came from elsewhere
        "echo `scontrol show hostnames $SLURM_JOB_NODELIST`",  # quotes inside backticks may end others
        "export NCCL_BLOCKING_WAIT=1 TORCH_NCCL_BLOCKING_WAIT=0",  # both are set
        "export TORCH_NCCL_TRACE_BUFFER_SIZE=10",  # an older PyTorch knows this name alone
        'set -u; export NCCL_BLOCKING_WAIT=1; echo "$NCCL_BLOCKING_WAIT"',  # the reader of the old name would find none
        "export PYTHONBUFFERED=1; python t.py --unbuffered=${PYTHONBUFFERED:-0}",
        "export MASTER_PORT=29500; python t.py --init tcp://$MASTER_ADDR:29500",  # both must have the same number
        "cat > f <<EOF\na\r\nEOF",  # mixed line ends: those in the heredoc may be meant
        "printf 'GET /\r\n\r\n' | cat",
        "x=$(printf 'GET /\r\n\r\n')",
    ],
)
def test_what_is_not_certainly_safe_is_left_alone(text: str) -> None:
    script = f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=10\n{text}\n"
    fixed = fix(script, "x", frozenset(RULES) - {"rank-expanded-early"} if "PROCID" not in text else None)
    if "R=$SLURM_NODEID" in text:
        assert "R=$SLURM_NODEID; srun" in fixed.text
    else:
        assert fixed.text == script
    assert bash_reads(fixed.text)


def test_only_the_chosen_repairs_are_made() -> None:
    text = "#!/bin/bash\n#SBATCH --time=1\nexport PYTHONBUFFERED=1 # hpctrain: ignore=pythonbuffered\nexport NCCL_BLOCKING_WAIT=1\n"
    assert fix(text, "x", frozenset({"old-nccl-name"})).text == text.replace("NCCL_B", "TORCH_NCCL_B")
    assert fix(text, "x", frozenset({"pythonbuffered"})).text == text
    assert fix(text, "x").text == text.replace("NCCL_B", "TORCH_NCCL_B")


def test_mixed_line_ends_outside_quotes_are_repaired() -> None:
    text = "#!/bin/bash\n#SBATCH --time=1\r\necho 'a'\r\n"
    assert fix(text, "x").text == text.replace("\r", "")
