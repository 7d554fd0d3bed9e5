"""A command in a text can be copied and still is one."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.explain import rules
from hpctrain.util import typed

WORDS = st.lists(st.text(alphabet="abcxyz-/=$.&|", min_size=1, max_size=30), max_size=30)


@given(WORDS, st.sampled_from([40, 72, 80]))
def test_a_command_that_is_cut_is_the_same_command(words: list[str], width: int) -> None:
    command = shlex.join(["hpctrain", "render", "--sbatch", "comment=two words", *words])
    lines = typed.cut(command, width, indent=2, hang=4)
    assert "\n".join(lines).replace("\\\n", "").split() == command.split()
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert not lines[-1].endswith(" \\")
    assert all(len(line) <= width or len(line.split()) <= 3 for line in lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "time: 1-00:00:00 in my_long_config_name.yaml:8, or: hpctrain render --time 1-00:00:00",
            [
                "  fix:  time: 1-00:00:00 in my_long_config_name.yaml:8, or:",
                "        hpctrain render --time 1-00:00:00",
            ],
        ),
        (
            (
                "make it there: srun --pty bash, then: rm -r .venv && python3 -m venv .venv &&"
                " .venv/bin/pip install 'hpctrain[train]'"
            ),
            [
                "  fix:  make it there: srun --pty bash, then:",
                "        rm -r .venv && python3 -m venv .venv && .venv/bin/pip install \\",
                "          'hpctrain[train]'",
            ],
        ),
        (
            "hpctrain render --sbatch signal=TERM@120, which the launchers hand on to the training",
            [
                "  fix:  hpctrain render --sbatch signal=TERM@120, which the launchers hand on to",
                "        the training",
            ],
        ),
        (
            (
                "/work/proj_b/sft/.venv/bin/pip install --force-reinstall torch --index-url"
                " https://example.org/whl/cu126 (AMD: rocm6.4)"
            ),
            [
                "  fix:  /work/proj_b/sft/.venv/bin/pip install --force-reinstall torch \\",
                "          --index-url https://example.org/whl/cu126 (AMD: rocm6.4)",
            ],
        ),
        (
            (
                "hpctrain prepare chats.jsonl --model m --to chats, then: dataset_name: chats under"
                " training in config.yaml"
            ),
            [
                "  fix:  hpctrain prepare chats.jsonl --model m --to chats, then:",
                "        dataset_name: chats under training in config.yaml",
            ],
        ),
        ("leave the node's constraint out", ["  fix:  leave the node's constraint out"]),
    ],
)
def test_a_fix_is_laid_out(text: str, expected: list[str]) -> None:
    assert typed.filled("  fix:  ", text, 80, hang=8) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("find . -name '*.pt'", True),
        ("find out which rank it was", False),
        ("kill %1", True),
        ("make it there", False),
        ("make -C build", True),
        ("set -x", True),
        ("set the number of workers", False),
        ("head -n 3 FILE", True),
        ("ps -u $USER", True),
        ("dmesg -T | grep Xid", True),
        ("HF_HOME=/scratch/hf python train.py", True),
        ("/opt/tools/look --all", True),
        ("/data/x.jsonl is cut off in its last line", False),
        ("hpctrain: nothing to do", False),
    ],
)
def test_a_word_that_is_a_program_too_is_a_command_in_front_of_an_argument(
    line: str, said: bool
) -> None:
    assert typed.is_command(line) is said


def test_the_last_line_of_every_remedy_is_a_command() -> None:
    assert [
        each.id
        for each in rules.shipped()
        if (last := each.remedy.strip().splitlines()[-1]) != "{fix}"  # the program's own
        and not typed.is_command(last)
    ] == []
