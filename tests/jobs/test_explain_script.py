"""Each line of a script gets its reason: ours without a gap, a stranger's without a guess, and no text at all makes it fail."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import any_job
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.jobs import shell
from hpctrain.jobs.explain_script import Line, explain, read_shell

GOLDENS = sorted((Path(__file__).parents[1] / "golden").glob("*/script*.sbatch"))


def script(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines])


def only(*lines: str) -> Line:
    """Return the last line of a script of these lines."""
    return explain(script(*lines))[-1]


def reasons(line: Line) -> str:
    return " | ".join([line.why or "", *(f"{part.what}: {part.why}" for part in line.parts)])


def unexplained(text: str) -> list[str]:
    return [f"{line.number}: {line.text}" for line in explain(text) if not line.is_explained]


# ---- scripts of ours -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.parent.name)
def test_every_line_of_a_golden_is_explained(golden: Path) -> None:
    text = golden.read_text()
    assert unexplained(text) == [], "give each a row in hpctrain/jobs/explain_script/*_rows.py"
    for line in explain(text):
        said = reasons(line)
        assert ": a setting for" not in f": {said[:1].lower()}{said[1:]}", f"a row in variable_rows.py for: {line.text}"
        assert "What it means is theirs to say" not in said, f"a row in variable_rows.py for: {line.text}"
        assert "Keeps a value as" not in said, f"a row in statement_rows.py for: {line.text}"
        assert "{" not in re.sub(r"\$\{|`[^`]*`|\{\"", "", said) or "{" in line.text, f"a place that was not filled: {said}"


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.parent.name)
def test_a_golden_has_the_headings_in_their_order(golden: Path) -> None:
    order = ["what this file is", "what is asked of Slurm", "where it runs", "where it logs", "the environment", "the run",
             "where the ranks meet", "the launch",
             "on each node", "the launch", "after the launch"]  # fmt: skip
    first_command = next(line.number for line in explain(golden.read_text()) if line.kind == "command")
    seen: list[str] = []
    for line in explain(golden.read_text()):
        if (not seen or seen[-1] != line.section) and line.number >= first_command:
            seen.append(line.section)
    rest = iter(order)
    assert all(section in rest for section in seen), seen
    assert "on each node" in seen


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(any_job.configs(), st.lists(any_job.word, max_size=4))
def test_every_line_of_any_script_that_hpctrain_renders_is_explained(config: dict[str, Any], words: list[str]) -> None:
    """Containers, secrets, hooks, sharding, each way to an environment; and values that try to end their quotes."""
    text = any_job.script_of(any_job.spec_of(config, words, "/srv/project"), words, "/srv/project")
    assert unexplained(text) == []
    assert "\n".join(line.text for line in explain(text)) == text


# ---- any text ------------------------------------------------------------------------------------------------------------------

PIECES = ["'", '"', "$(", ")", "${", "}", "`", "\\", "\n", "#", "#SBATCH ", "--nodes=2", "-N", " ", "<<EOF", "<<-'X'", "EOF", "\t", "srun ",
          "bash -c ", "accelerate launch ", "torchrun ", "python -m ", "a=(", "=", "export ", "unset ", "if ", "then", "fi", "for x in ",
          "do", "done", "case ", "esac", ";;", "{", "|", "&&", "&", ";", "$SLURM_PROCID", "SLURM_JOB_ID", "((", "))", "[[", "]]", ">&2",
          "2>",
          "\r\n", "--mem=" + "9" * 400, "--time=" + "9" * 5000, "--array=1-9%0", "set -", "trap ",
          "\u00b2", "\udcff", "é", "f() {", "-", "=="]  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PIECES), max_size=60).map("".join)))
def test_no_text_makes_it_fail_and_no_line_is_lost(text: str) -> None:
    lines = explain(text)
    assert "\n".join(line.text for line in lines) == text
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        assert line.section
        assert isinstance(line.to_json()["parts"], list)


@pytest.mark.slow
@settings(deadline=None)
@given(st.sampled_from(GOLDENS), st.data())
def test_half_a_script_is_no_problem(golden: Path, data: st.DataObject) -> None:
    text = golden.read_text()
    start, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 400))
    cut = text[:start] + text[start + length :]
    assert "\n".join(line.text for line in explain(cut)) == cut


@pytest.mark.parametrize("text", ["$(" * 5000, "a=(" * 5000, "srun " * 5000, "{ " * 5000, "bash -c '" * 50, '"$(' * 5000, "if " * 5000])
def test_deep_texts_do_not_exhaust_the_stack(text: str) -> None:
    assert explain(text)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=6))
def test_words_are_read_as_bash_reads_them(words: list[str]) -> None:
    """`shell.join` is checked against bash elsewhere; what it writes is one command of as many words."""
    (statement,) = read_shell.read(f"command {shell.join(words)}")
    (command,) = statement.commands
    assert [word.text for word in command.words] == ["command", *(shell.quote(word) for word in words)]
    assert statement.closed


# ---- directives ----------------------------------------------------------------------------------------------------------------

SAID = [
    ("--nodes=2", "Two nodes for this job"),
    ("-N 1", "One node for this job"),
    ("--nodes=2-4", "Two to four nodes"),
    ("--time=1-00:00:00", "At most 24 hours; then Slurm sends SIGTERM, and SIGKILL after KillWait (30 s unless the site says otherwise)"),
    ("-t 90", "At most 1 hour 30 minutes;"),
    ("--time=UNLIMITED", "No limit of its own"),
    ("--time=soon", "A time limit of `soon`"),
    ("--gres=gpu:4", "4 GPUs on each node (per node, not in total)"),
    ("--gres=gpu:a100:4(S:0),nvme:1", "4 GPUs of type a100 on each node (per node, not in total), and 1 of `nvme` on each node"),
    ("--gres=gpu", "1 GPU on each node"),
    ("--gpus-per-node=h100:8", "8 GPUs of type h100 on each node"),
    ("--gpus=16", "16 GPUs in total, over all nodes"),
    ("--mem=0", "All host memory on each node"),
    ("--mem=480G", "480 GiB of host memory on each node"),
    ("--mem=64000", "62.5 GiB of host memory"),
    ("--mem=" + "9" * 400, "of host memory on each node"),
    ("--cpus-per-task=32", "32 cores for each task"),
    ("--ntasks-per-node=1", "One task on each node"),
    ("--exclusive", "No other job shares its nodes"),
    ("--exclusive=user", "Only your own jobs share its nodes"),
    ("--constraint=a100&(nvme|ssd)", "Only nodes with a100 and (nvme or ssd)"),
    ("--partition=gpu,long", "`gpu` or `long`, whichever starts first"),
    ("--signal=B:USR1@120", "Sends SIGUSR1 to this script's shell alone (B:), 2 minutes before the time limit"),
    ("--signal=10", "Sends 10 to every task that srun has started"),
    ("--array=0-9:3,20%2", "An array: 5 jobs of this one script, with the numbers 0-9:3,20, at most 2 at a time"),
    ("--dependency=afterok:12:13", "Starts when job 12 and 13 has ended well"),
    ("--dependency=singleton", "one at a time"),
    ("--mail-type=END,FAIL", "Mails you when it ends and when it fails"),
    ("--output=%x-%j.out", "%x is the job's name, %j is the job's number"),
    ("--output=log.txt", "with no %j, every job of this script writes to the same file"),
    ("--open-mode=append", "A job that is requeued writes on"),
    ("--open-mode=truncate", "Each start empties the log"),
    ("--export=NONE", "None of your shell's variables come along"),
    ("--comment='a $b'", "A remark"),
    ("--account=$PROJECT", "sbatch expands no variables"),
    ("--nodes='2", "sbatch refuses this line: unmatched"),
    ("nodes=2", "sbatch refuses this line: 'nodes=2' is no option"),
    ("", "Asks for nothing"),
]


@pytest.mark.parametrize(("directive", "said"), SAID)
def test_values_are_said_in_words(directive: str, said: str) -> None:
    line = only(f"#SBATCH {directive}")
    assert said in (line.why or ""), line.why
    assert line.kind == "directive"
    assert line.known


def test_the_product_is_said_where_it_is_known() -> None:
    assert "2 nodes x 4 GPUs = 8" in (only("#SBATCH --nodes=2", "#SBATCH --gres=gpu:a100:4").why or "")
    assert "2 nodes x 4 GPUs = 8" in (only("#SBATCH --nodes=2", "#SBATCH --gpus-per-node=4").why or "")


def test_several_options_on_a_line_are_said_one_by_one() -> None:
    line = only("#SBATCH -N 2 -p gpu --requeue")
    assert [part.what for part in line.parts] == ["--nodes=2", "--partition=gpu", "--requeue"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["echo hello", "#SBATCH --nodes=2"], "Too late: sbatch stops reading options at the first command (line 2)"),
        ([" #SBATCH --nodes=2"], "at the very beginning of the line"),
        (["#sbatch --nodes=2"], "in capitals"),
        (["# SBATCH --nodes=2"], "no blank behind the #"),
        (["##SBATCH --nodes=2"], "Switched off"),
    ],
)
def test_what_only_looks_like_a_directive_is_called_a_comment(lines: list[str], said: str) -> None:
    assert said in (only(*lines).why or "")


def test_of_two_equal_options_the_last_one_counts() -> None:
    lines = explain(script("#SBATCH --nodes=2", "#SBATCH -N 4", "echo"))
    assert "line 3 says --nodes again" in (lines[1].why or "")
    assert "Four nodes" in (lines[2].why or "")


def test_an_option_that_nobody_knows_is_said_to_be_unknown() -> None:
    line = only("#SBATCH --site-plugin=3")
    assert not line.is_explained
    assert "no words for --site-plugin" in (line.why or "")


def test_a_script_that_sbatch_refuses_is_said_to_be_one() -> None:
    assert "sbatch refuses a script whose first line" in reasons(explain("echo hello")[0])
    assert "dos2unix" in reasons(explain("#!/bin/bash\r\necho\r\n")[0])
    assert "login shell" in reasons(explain("#!/bin/bash -l\n")[0])


# ---- commands ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("srun -n 4 -c $SLURM_CPUS_PER_TASK -K1 -lu ./a.out", "-c $SLURM_CPUS_PER_TASK: 32 cores for each task"),
        ("srun --kill-on-bad-exit=0 a", "the others go on"),
        ("srun --kill-on-bad-exit a", "the others are ended too"),
        ("module purge", "Unloads all modules"),
        ("set -x", "-x: each command is written to the log"),
        ("set +e", "+e: switched off: a command that fails"),
        ("exit 0", "exit code 0: COMPLETED"),
        ("exit 3", "exit code 3: FAILED"),
        ("train | tee log", "| tee log: gets what the command before it writes, and writes what it reads into a file too"),
        ("unset CUDA_VISIBLE_DEVICES", "forgets CUDA_VISIBLE_DEVICES"),
        ("srun torchrun --nnodes $SLURM_NNODES t.py", "--nnodes $SLURM_NNODES: the number of nodes: $SLURM_NNODES (here 2)"),
        ("MASTER_PORT=29500", "A fixed one is taken when two jobs share a node"),
        ("MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)", "The name of the job's first node"),
        ("threads=$((SLURM_CPUS_PER_TASK / 4))", "32 cores / 4 = 8 for each"),
        ("export NCCL_IB_DISABLE=1 FOO=2", "FOO=2: hands the variable FOO"),
        ("python -m torch.distributed.run --standalone --nproc-per-node=4 t.py", "--nproc-per-node=4: processes on each node: 4"),
        ("apptainer exec --nv image.sif python t.py", "--nv: NVIDIA's driver libraries"),
        ('LAUNCHER="accelerate launch --num_processes 8"', "--num_processes 8: the TOTAL number"),
        ("sleep 5 &", "&: in the background"),
        ("trap 'kill $pid' USR1", "on USR1 it runs: 'kill $pid'"),
        ("[ -f a ] && echo yes", "&& echo yes: if that succeeds"),
        ("echo hello >&2", "stderr log"),
        ("while read -r line; do", "as long as this succeeds"),
        ('echo "no end', "never closed"),
    ],
)
def test_what_is_said_of_a_command(statement: str, said: str) -> None:
    line = only("#SBATCH --nodes=2", "#SBATCH --cpus-per-task=32", statement)
    assert said.lower() in reasons(line).lower(), reasons(line)


@pytest.mark.parametrize("command", ["./prepare.sh --x", "my-tool", "srun --no-such-option=3 true", "my-tool | sort", "echo a; my-tool"])
def test_what_nobody_knows_is_not_guessed(command: str) -> None:
    assert unexplained(script(command)) == [f"2: {command}"]
    assert only("./a-command-of-mine").known is False


def test_python_without_srun_is_said_to_leave_the_other_nodes_idle() -> None:
    assert "the other nodes stay idle" in reasons(only("#SBATCH --nodes=2", "python train.py"))
    assert "idle" not in reasons(only("#SBATCH --nodes=1", "python train.py"))
    assert "idle" not in reasons(only("#SBATCH --nodes=2", "srun python train.py"))


def test_arguments_of_a_stranger_are_only_said_to_be_those_of_transformers_with_an_if() -> None:
    assert "where that takes transformers' options" in reasons(only("srun python mine.py --learning_rate 1e-5"))
    assert "where that" not in reasons(only("srun python -m hpctrain.training.sft --learning_rate 1e-5"))
    assert "for the script, which alone knows it" in reasons(only("srun python mine.py --epochs 3"))


RANK = [
    ("srun echo $SLURM_PROCID", "0 for all"),
    ("srun bash -c 'echo $SLURM_PROCID'", "each task has its own"),
    ('srun bash -c "echo $SLURM_PROCID"', "0 for all"),
    ('srun bash -c "echo \\$SLURM_PROCID"', "each task has its own"),
    ("srun bash -c 'echo '\\''$SLURM_PROCID'\\'", ""),
    ("srun bash -c 'printf %s\\\\ $SLURM_PROCID'", "each task has its own"),
    ('srun bash -c "printf %s\\\\\\\\ $SLURM_PROCID" x', "0 for all"),
    ("echo '$SLURM_PROCID'", ""),
]


@pytest.mark.parametrize(("command", "said"), RANK)
def test_who_expands_the_rank_is_what_bash_does(command: str, said: str, tmp_path: Path) -> None:
    """The claim is compared with bash: a stand-in for srun runs the command as task 7, in a batch shell that is task 0."""
    stand_in = tmp_path / "srun"
    stand_in.write_text('#!/bin/sh\nSLURM_PROCID=7 exec "$@"\n')
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", command], env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_PROCID": "0"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip(" \\\n") == {"0 for all": "0", "each task has its own": "7", "": "$SLURM_PROCID"}[said]
    found = [part.why for part in only(command).parts if part.what == "$SLURM_PROCID"]
    assert [said in why for why in found] == ([True] if said else [])


def test_the_rank_is_explained_on_the_line_where_it_stands() -> None:
    lines = explain(script("srun torchrun \\", "  --nnodes 2 \\", '  --node_rank "$SLURM_NODEID" \\', "  train.py"))
    assert ["$SLURM_NODEID" in reasons(line) and "0 for all" in reasons(line) for line in lines] == [False, False, False, True, False]
    assert "--nnodes 2: the number of nodes" in reasons(lines[2])


def test_lines_belong_to_what_they_continue() -> None:
    text = script(
        "for i in 1 2; do", "  if true; then", "    cat <<'END'", "done", "$x", "END", "  fi", "done",
        'case "$1" in', "  a|b) echo one ;;", "  *)", "    echo two", "    ;;", "esac", "f() {", "  hostname", "}", "f",
    )  # fmt: skip
    lines = explain(text)
    why = {line.number: line.why or "" for line in lines}
    assert [line.kind for line in lines[4:7]] == ["text", "text", "text"]
    assert "it stays as it stands" in why[5]
    assert why[8] == "Ends the `if` of line 3."
    assert why[9] == "Ends the `for` of line 2."
    assert "pattern of the `case` of line 10" in why[11]
    assert "pattern of the `case` of line 10" in why[12]
    assert why[15] == "Ends the `case` of line 10."
    assert why[18] == "Ends the function of line 16."
    assert why[19] == "Calls the function `f` of line 16."
    assert unexplained(text) == []


def test_variables_of_slurm_are_explained_where_they_are_first_used_with_the_number_of_this_job() -> None:
    lines = explain(script("#SBATCH --cpus-per-task=7", "echo $SLURM_CPUS_PER_TASK", "echo ${SLURM_CPUS_PER_TASK}"))
    assert "here 7" in reasons(lines[2])
    assert "here 7" not in reasons(lines[3])


@pytest.mark.parametrize("words", ["$(scontrol show hostnames $SLURM_JOB_NODELIST)", '"$(hostname)"', "`hostname`"])
def test_what_a_command_prints_is_no_script(words: str) -> None:
    for launcher in ("srun torchrun train.py", "srun accelerate launch train.py"):
        line = explain(script(f"nodes=({words})", launcher))[1]
        assert not re.search("the script that it runs|which alone knows it", reasons(line))
        assert "what this command prints" in reasons(line)
    assert "what this command prints" in reasons(only(f"srun python {words} --lr 1"))


def test_mkdir_has_its_option_in_the_sentence_and_not_in_the_name() -> None:
    assert only("mkdir -p logs").why == "Makes the directory `logs` and those above it; one that is there is no error."
