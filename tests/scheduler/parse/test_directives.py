"""`#SBATCH` lines; against sbatch itself in tests/lab/test_oracles.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.slurm.notations import directives

printable = st.text(st.characters(exclude_categories=["Cc", "Cs"]))
HOSTILE = [
    "",
    " ",
    "'",
    '"',
    "\\",
    "a\\",
    "#",
    "a #b",
    "$(touch x)",
    "`x`",
    "%j",
    "a b",
    "é\u00a0\u2003",
    "--x",
    '\\"',
    "';\"#\\",
    "100%",
]


@given(printable | st.sampled_from(HOSTILE))
def test_a_quoted_value_is_one_word_and_comes_back(value: str) -> None:
    assert read(f"#SBATCH --comment={directives.quote(value)}") == {"comment": value}


@given(st.text())
def test_a_value_that_no_quoting_carries_is_refused(value: str) -> None:
    if any(character in value for character in "\n\r\t\0\x1f\x7f"):
        with pytest.raises(ValueError, match="control character"):
            directives.quote(value)


# Each tried on Slurm 22.05; tests/lab/test_oracles.py tries them again.
@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("--comment=glued", "glued"),
        (' --comment="a b"', "a b"),
        (" --comment='a\\b'", "ab"),
        (' --comment="a\\ b"', "a b"),
        (' --comment=a\\"b', 'a"b'),
        (" --comment=a#b", "a"),
        (" --comment=a\\#b", "a#b"),
        (' --comment="a#b" #c', "a#b"),
        (" --comment=a\u00a0b", "a\u00a0b"),
        (" --comment=a\v-H", "a"),
        (' --comment=""', ""),
    ],
)
def test_quoting(line: str, value: str) -> None:
    assert read(f"#SBATCH{line}")["comment"] == value


def read(*lines: str) -> dict[str, str | None]:
    return directives.last_values(directives.read("\n".join(["#!/bin/bash", *lines, ""])))


def test_where_the_directives_end() -> None:
    lines = [
        "#SBATCH -N2",
        "",
        " \t",
        "# comment",
        "\t# indented",
        " #SBATCH -t 9",
        "#sbatch -J lower",
        "##SBATCH -J double",
        "#SBATCH -t 5",
        "x=1",
    ]
    assert read(*lines, "#SBATCH -A late") == {"nodes": "2", "time": "5"}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("#SBATCH--comment=glued", {"comment": "glued"}),
        ("#SBATCH -o/dev/null -J x -t5", {"output": "/dev/null", "job-name": "x", "time": "5"}),
        ("#SBATCH -HJ abc", {"hold": None, "job-name": "abc"}),
        (
            "#SBATCH --requeue --exclusive --comment two",
            {"requeue": None, "exclusive": None, "comment": "two"},
        ),
        ("#SBATCH --nice --hold", {"nice": None, "hold": None}),
    ],
)
def test_options_are_read_as_sbatch_reads_them(line: str, values: dict[str, str | None]) -> None:
    assert read(line) == values


@pytest.mark.parametrize(
    "line",
    [
        "#SBATCH word",
        "#SBATCH --comment=a\\ b",
        "#SBATCH -N",
        "#SBATCH -Z",
        '#SBATCH --comment="open',
        "#SBATCH x\r",
    ],
)
def test_what_sbatch_refuses_is_refused(line: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not an option|needs a value|unknown option|unmatched|DOS"
    ):
        read(line)


@pytest.mark.parametrize("script", ["", "echo", " #!/bin/bash\n", "\ufeff#!/bin/bash\n"])
def test_without_a_shebang_it_is_no_batch_script(script: str) -> None:
    with pytest.raises(ValueError, match="#!"):
        directives.read(script)
