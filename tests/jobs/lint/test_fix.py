"""The repairs: safe for bash, done once, and only where the finding stands."""

import subprocess

import pytest

from hpctrain.checks.script import RULES, fix, lint
from tests.jobs.lint import lint_corpus as corpus

FIXABLE = [case for case in corpus.WRONG if fix(case.text, case.file).ids]


def bash_reads(text: str) -> bool:
    return subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True).returncode == 0


@pytest.mark.parametrize("case", FIXABLE, ids=corpus.name)
def test_a_repair_is_safe(case: corpus.Case) -> None:
    fixed = fix(case.text, case.file)
    assert bash_reads(fixed.text)
    assert fix(fixed.text, case.file).ids == (), "a second time changes nothing"
    found, after = lint(case.text, case.file), lint(fixed.text, case.file)
    assert len(after) < len(found)
    assert {one.id for one in after} <= {one.id for one in found}, "it brings no new finding"


@pytest.mark.parametrize("case", [*corpus.CORRECT, *corpus.GOLDEN], ids=corpus.name)
def test_a_correct_script_stays_as_it_is(case: corpus.Case) -> None:
    assert fix(case.text, case.file).text == case.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            'srun bash -c "torchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a t.py"',
            "--node_rank \\$SLURM_NODEID",
        ),
        (
            (
                "srun bash <<EOF\ntorchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a"
                " t.py\nEOF"
            ),
            "--node_rank \\$SLURM_NODEID",
        ),
        ("export MASTER_PORT=29500", "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 9000))"),
        (
            "time srun -l python t.py",
            'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"\nmodule load conda\ntime srun -l',
        ),
        ("srun -c 4 -K 1 python t.py", "srun -c 4 --kill-on-bad-exit=1 python t.py"),
        (
            "PYTHONBUFFERED=1 python t.py",
            "PYTHONUNBUFFERED=1 python t.py",
        ),
    ],
)
def test_what_a_repair_writes(before: str, after: str) -> None:
    head = (
        "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --cpus-per-task=4 --gres=gpu:1 -t10\nmodule"
        " load conda\n"
    )
    fixed = fix(f"{head}{before}\n", "x")
    assert after in fixed.text
    assert fixed.text.startswith(head.partition("module")[0])
    assert bash_reads(fixed.text)


@pytest.mark.parametrize(
    "text",
    [
        "srun bash -c 'export MASTER_PORT=29500; python t.py'",  # inside another shell's quotes
        (  # the value came from elsewhere
            'srun bash -c "x=$SLURM_PROCID; echo \'a\' > $x"; R=$SLURM_NODEID; srun bash -c "python'
            ' t.py $R"'
        ),
        "export PYTHONBUFFERED=1; python t.py --unbuffered=${PYTHONBUFFERED:-0}",
        # both must have the same number
        "export MASTER_PORT=29500; python t.py --init tcp://$MASTER_ADDR:29500",
        "cat > f <<EOF\na\r\nEOF",  # mixed line ends: those in the heredoc may be meant
        "printf 'GET /\r\n\r\n' | cat",
        "x=$(printf 'GET /\r\n\r\n')",
    ],
)
def test_what_is_not_certainly_safe_is_left_alone(text: str) -> None:
    script = f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=10\n{text}\n"
    fixed = fix(
        script, "x", frozenset(RULES) - {"rank-expanded-early"} if "PROCID" not in text else None
    )
    if "R=$SLURM_NODEID" in text:
        assert "R=$SLURM_NODEID; srun" in fixed.text
    else:
        assert fixed.text == script
    assert bash_reads(fixed.text)


def test_only_the_chosen_repairs_are_made() -> None:
    text = (
        "#!/bin/bash\n#SBATCH --time=1\nexport PYTHONBUFFERED=1 # hpctrain:"
        " ignore=pythonbuffered\nexport MASTER_PORT=29500\n"
    )
    port = text.replace("29500", "$((20000 + SLURM_JOB_ID % 9000))")
    assert fix(text, "x", frozenset({"fixed-port"})).text == port
    assert fix(text, "x", frozenset({"pythonbuffered"})).text == text
    assert fix(text, "x").text == port
