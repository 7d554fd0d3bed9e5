"""What a report in characters must not break: commands."""

from __future__ import annotations

import pytest

from hpctrain.explain import rule
from hpctrain.jobs.typed import is_command
from hpctrain.report.compare_text import fix_lines
from tests.report.test_idle import judge, samples

LONG = "hpctrain submit --run-id NEW_NAME --nodes 4 --gpus 8 --time 2-00:00:00 -- --learning_rate 3e-05 --gradient_accumulation_steps 16"


def test_a_long_command_stays_one_line() -> None:
    assert fix_lines(f"another training, so another run\n{LONG}", "    ") == ["    fix: another training, so another run", f"      {LONG}"]
    assert fix_lines(LONG, "    ") == ["    fix:", f"      {LONG}"]


def test_words_are_wrapped_and_a_command_among_them_is_not() -> None:
    said = (
        f"nothing of what is asked for is used by the job that you have here, so ask for less of it: {LONG}, or leave it as it is and wait"
    )
    lines = fix_lines(said, "    ")
    assert [line for line in lines if LONG in line], lines
    assert all(len(line) <= 80 for line in lines if LONG not in line)
    assert " ".join(line.strip() for line in lines) == f"fix: {said}"


def test_what_orders_a_terminal_about_is_written_out() -> None:
    assert fix_lines("hpctrain logs \x1b[2J", "") == ["fix:", "  hpctrain logs \\x1b[2J"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("hpctrain render", True),
        ("NCCL_DEBUG=INFO srun x", True),
        ("export A=b", True),
        ("OMP_NUM_THREADS=1", True),
        ("./tell.sh", True),
        ("Look at the first error.", False),
        ("OMP_NUM_THREADS: 8 -> 2, or hpctrain submit --cpus-per-gpu 8", False),
        ("pipes are broken", False),
    ],
)
def test_what_is_a_command(line: str, said: bool) -> None:
    assert is_command(line) is said


def test_every_command_of_every_remedy_is_whole() -> None:
    for each in rule.shipped():
        wanted = [line.strip() for line in each.remedy.split("\n") if "hpctrain " in line]
        shown = [line.strip().removeprefix("fix: ") for line in fix_lines(each.remedy, "    ")]
        for line in wanted:
            if is_command(line):
                assert line in shown, each.id


def test_the_commands_of_idle_gpus_are_whole() -> None:
    config = {"training": {"dataloader_num_workers": 4}}
    found = judge(samples(ranks=1, of_rank={}), gpus_per_node=8, cpus_per_node=4, data_wait=0.5, config=config, threads=8)
    commands = 0
    for each in found:
        for command in each.fix.split("hpctrain ")[1:]:
            commands += 1
            text = f"hpctrain {command.split(',')[0].split(';')[0]}".rstrip()
            assert any(text in line for line in fix_lines(each.fix, "    ", 40)), each
    assert commands
