"""The table that array tasks read: bash itself says what becomes of a line, and nothing in a value
ever runs.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.config.arguments import argument_words, word
from hpctrain.config.sweep import (
    PointTable,
    Sweep,
    SweepPoint,
    canonical,
    expand,
    sweep_of_text,
    table,
)
from hpctrain.util.yaml12 import Plain

LIBRARY = Path(__file__).parents[3] / "templates" / "job.sh"
#: The job's own function takes the point, and then what it took is shown.
READ = """\
source "$1"
index=$2 HPCTRAIN_RUN_DIR=$PWD HPCTRAIN_ATTEMPT=1.0 command=(python train.py)
hpctrain_point "$3" points.tsv
printf '%s\\0' "$(<"$HPCTRAIN_POINT")"
if [ "$3" = environment ]; then env -0; else printf '%s\\0' "${command[@]}"; fi
"""
CANARIES = [
    "$(touch CANARY)",
    "`touch CANARY`",
    "; touch CANARY",
    "'; touch CANARY; '",
    '"; touch CANARY; "',
    "\ntouch CANARY\n",
    "a\tb",
    "\t",
    ") ; touch CANARY ; (",
    "& touch CANARY &",
    "| touch CANARY",
    "> CANARY",
    "${x:=$(touch CANARY)}",
    "\r\ntouch CANARY\r\n",
    "\\\ntouch CANARY",
    "\\",
    "\\n",
    "*",
    "~",
    "~/x",
    "[x]=1",
    "{a,b}",
    "!!",
    "-n",
    "--",
    "",
    " ",
    "#",
    "a=b",
    "\u2028\x85\x1b[2J",
    "\udcff",
    "é😀",
]
texts = (
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from(CANARIES)
    | st.tuples(st.sampled_from(CANARIES), st.sampled_from(CANARIES)).map("".join)
).filter(
    lambda text: text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == text
)
scalars = texts | texts.map(Plain) | (st.integers() | st.floats()).map(str).map(Plain)
values = (
    scalars
    | st.lists(scalars, max_size=3)
    | st.dictionaries(texts, scalars, max_size=2)
    | st.none()
)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
variables = st.from_regex(r"X_[A-Z0-9_]{1,6}", fullmatch=True)


def sweep_of(text: str) -> tuple[Sweep, list[SweepPoint]]:
    sweep = sweep_of_text(text, "points.yaml", again="hpctrain submit --dry-run")
    return sweep, expand(sweep)


def listed(points: list[dict[str, Any]], **more: Any) -> tuple[Sweep, list[SweepPoint]]:
    """Return a sweep of these points, past the checks of what people write."""
    each = tuple(tuple(point.items()) for point in points)
    return Sweep(list_=each, **more), [SweepPoint(index, point) for index, point in enumerate(each)]


def in_bash(made: PointTable, index: int, directory: Path, how: str = "arguments") -> list[bytes]:
    (directory / "points.tsv").write_bytes(made.text.encode("utf-8"))
    done = subprocess.run(
        ["bash", "-euc", READ, "read", str(LIBRARY), str(index), how],
        capture_output=True,
        cwd=directory,
        check=True,
    )
    assert done.stderr == b""
    assert {path.name for path in directory.iterdir()} == {"points.tsv", "point.json"}
    return done.stdout.split(b"\0")[:-1]


def raw(words: list[str]) -> list[bytes]:
    return [word.encode("utf-8", "surrogateescape") for word in words]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    points=st.lists(st.dictionaries(names, values, max_size=4), min_size=1, max_size=4),
    data=st.data(),
)
def test_bash_gets_each_value_as_it_is(
    points: list[dict[str, Any]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sweep, expanded = listed(points)
    made = table(sweep, expanded)
    assert made.text.count("\n") == len(points) == len(made.text.splitlines())
    index = data.draw(st.integers(0, len(points) - 1))
    first, *words = in_bash(made, index, tmp_path_factory.mktemp("sweep"))
    assert words == raw(
        [
            "python",
            "train.py",
            *argument_words(
                (name.removeprefix("training."), value) for name, value in points[index].items()
            ),
        ]
    )
    assert first.decode() == made.text.splitlines()[index].partition("\t")[0]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(point=st.dictionaries(variables, values, max_size=4))
def test_variables_arrive_as_they_are(
    point: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    sweep, expanded = listed([point], pass_="environment")
    _, *environment = in_bash(
        table(sweep, expanded), 0, tmp_path_factory.mktemp("sweep"), "environment"
    )
    found = dict(entry.split(b"=", 1) for entry in environment if entry.startswith(b"X_"))
    expected = {name: word(value) for name, value in point.items() if value is not None}
    assert found == dict(zip(raw(list(expected)), raw(list(expected.values())), strict=True))


def test_canaries_stay_words(tmp_path: Path) -> None:
    sweep, points = listed([{"a": CANARIES, "X": "".join(CANARIES)}])
    _, *words = in_bash(table(sweep, points), 0, tmp_path)
    assert words == raw(["python", "train.py", "--a", *CANARIES, "--X", "".join(CANARIES)])


def as_yaml(value: Any) -> Any:
    """Return a value of JSON as YAML gives it: truth values are `Plain` too."""
    if isinstance(value, bool):
        return Plain(str(value).lower())
    if isinstance(value, dict):
        return {key: as_yaml(item) for key, item in value.items()}
    return [as_yaml(item) for item in value] if isinstance(value, list) else value


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.dictionaries(names, values, max_size=4), min_size=1, max_size=3))
def test_points_are_read_back(points: list[dict[str, Any]]) -> None:
    sweep, expanded = listed(points)
    for line, point in zip(table(sweep, expanded).text.splitlines(), expanded, strict=True):
        back = json.loads(
            line.partition("\t")[0],
            parse_constant=pytest.fail,  # no NaN: JSON for every reader
            parse_float=Plain,
            parse_int=Plain,
        )
        # 007 is the number 7 in JSON, and 007 on the command line.
        assert {key: canonical(as_yaml(value)) for key, value in back.items()} == {
            key: canonical(value) for key, value in point.values
        }


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("values", ["--a true", "--a false", "--a no", "--a true"]),
        ("flags", ["--a", "", "--a no", "--a true"]),
    ],
)
def test_booleans_are_words_or_flags(setting: str, words: list[str]) -> None:
    sweep, points = sweep_of(
        f"booleans: {setting}\nlist: [{{a: true}}, {{a: False, b: x}}, {{a: no}}, {{a: 'true', b:"
        " y}]"
    )
    words[1], words[3] = f"{words[1]} --b x".strip(), f"{words[3]} --b y"
    assert [line.partition("\t")[2] for line in table(sweep, points).text.splitlines()] == words


def test_what_the_config_says_of_a_swept_argument_holds_where_a_point_is_silent() -> None:
    sweep, points = sweep_of("[{seed: 1}, {lr: 2}, {lr: null, dir: ~/x}]")
    made = table(sweep, points, training={"lr": Plain("9e-9"), "other": "x"}, home="/home/me")
    assert [line.partition("\t")[2] for line in made.text.splitlines()] == [
        "--seed 1 --lr 9e-9",
        "--lr 2",
        "--dir /home/me/x",
    ]


def test_keys_of_the_config_are_no_words_and_a_file_needs_none() -> None:
    sweep, points = sweep_of("grid: {resources.nodes: [2], seed: [1], training.script: [x]}")
    assert (
        table(sweep, points).text
        == '{"resources.nodes": 2, "seed": 1, "training.script": "x"}\t--seed 1 --script x\n'
    )
    sweep, points = sweep_of("pass: file\noption: config\ngrid: {seed: [1]}")
    assert table(sweep, points).text == '{"seed": 1}\t\n'


def test_a_point_without_variables_lists_none(tmp_path: Path) -> None:
    """`export` alone would write the whole environment into the log."""
    made = table(*listed([{}, {"X_A": "1"}], pass_="environment"))
    assert not any(
        entry.startswith(b"declare") for entry in in_bash(made, 0, tmp_path, "environment")
    )
    done = subprocess.run(
        ["bash", "-c", 'eval "export $(cut -f2 points.tsv | head -1)"'],
        capture_output=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout == b""


def test_equal_sweeps_share_a_table_and_others_do_not() -> None:
    one, same, other = (
        table(*sweep_of(text))
        for text in ("[{a: 1}, {a: 2}]", "grid: {a: [1, 2]}", "grid: {a: [2, 1]}")
    )
    assert one.name == same.name != other.name
