"""What people write → points: their order, what is refused and where, and draws that are the same
everywhere.
"""

import itertools
import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.config.sweep import (
    MAX_GROUPS,
    MAX_POINTS,
    Sweep,
    expand,
    groups,
    sweep_of_text,
)
from hpctrain.errors import UsageError


def sweep_of(text: str | dict[str, Any] | list[Any], file: str = "points") -> Sweep:
    return sweep_of_text(
        text if isinstance(text, str) else json.dumps(text), file, again="hpctrain submit --dry-run"
    )


def points_of(text: str | dict[str, Any] | list[Any]) -> list[dict[str, Any]]:
    points = expand(sweep_of(text))
    assert [point.index for point in points] == list(range(len(points)))
    return [dict(point.values) for point in points]


def refused(text: str | dict[str, Any] | list[Any], file: str = "points.yaml") -> list[str]:
    with pytest.raises(UsageError) as error:
        expand(sweep_of(text, file))
    assert error.value.fix or error.value.hint
    return [error.value.what, *error.value.details]


names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name not in ("script", "array")
)
scalars = st.integers(-99, 99) | st.sampled_from(["x", "a b", "é", ""]) | st.booleans()


def different(values: list[Any]) -> bool:
    return len({json.dumps(value) for value in values}) == len(values)


lists = (
    st.lists(scalars, min_size=1, max_size=4)
    .filter(different)
    .filter(lambda values: different([str(value).lower() for value in values]))
)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.dictionaries(names.map("g_{}".format), lists, min_size=1, max_size=3),
    st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True),
)
def test_the_product_has_every_combination_once_and_the_last_key_varies_fastest(
    grid: dict[str, list[Any]], together: list[int]
) -> None:
    document = {
        "grid": grid,
        "zip": {"z_1": together, "z_2": [str(value) for value in together]},
        "list": [{"l": 1}, {"l": 2}],
    }
    expected = [
        (*combination, row, listed)
        for *combination, row, listed in itertools.product(
            *grid.values(), range(len(together)), (1, 2)
        )
    ]
    found = points_of(document)
    assert [
        (*[point[key] for key in grid], point["z_1"], point["z_2"], point["l"]) for point in found
    ] == [
        (
            *[written(value) for value in combination],
            str(together[row]),
            str(together[row]),
            str(listed),
        )
        for *combination, row, listed in expected
    ]


def written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_words_stay_as_they_were_written_in_yaml_and_in_json() -> None:
    assert [
        point["x"] for point in points_of("grid: {x: [1e-5, 0.10, 007, yes, '1', ~, 1_000]}")
    ] == [
        "1e-5",
        "0.10",
        "007",
        "yes",
        "1",
        None,
        "1_000",
    ]
    json_text = (
        '[{"x": 1e-5}, {"x": 0.10}, {"x": true}, {"x": null}, {"x": "é\\ud83d\\ude00"}, {"x": NaN}]'
    )
    assert [point["x"] for point in points_of(json_text)] == [
        "1e-5",
        "0.10",
        "true",
        None,
        "é😀",
        "NaN",
    ]


def test_exclude_drops_what_matches_all_of_its_keys_and_include_comes_last() -> None:
    found = points_of(
        "grid: {lr: [1e-5, 3e-5], b: [1, 2, 3]}\nexclude: [{lr: 0.00001, b: '2'}, {b: 3}]\ninclude:"
        " [{lr: 9}]\n"
    )
    assert [(point["lr"], point.get("b")) for point in found] == [
        ("1e-5", "1"),
        ("3e-5", "1"),
        ("3e-5", "2"),
        ("9", None),
    ]


def test_what_drops_nothing_or_comes_twice_is_named() -> None:
    assert refused("grid: {a: [1, 2]}\nexclude: [{a: 1}, {a: 3}]")[1:] == ["exclude: item 2: a=3"]
    assert refused("grid: {a: [1, 2]}\ninclude: [{a: 3}, {a: 2}]")[1:] == [
        "combination 3 is the same as combination 1: a=2"
    ]
    assert (
        refused("grid: {a: [1]}\nexclude: [{a: 1}]")[0]
        == "the sweep has no combinations: exclude removes all of them"
    )
    assert refused([{"a": 1, "b": 2}, {"a": 2}, {"b": 2, "a": 1}], "p.json")[1:] == [
        "combination 2 is the same as combination 0: b=2 a=1"
    ]


def test_everything_that_is_wrong_is_said_at_once_with_its_place() -> None:
    text = """\
grd: {lr: [1]}
grid:
  lr: [1, 1.0, 1]
  --x: [2]
  resources: [1]
  hf_token: [hf_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]
  seed: 4
zip: {a: [1], b: [1, 2]}
list: [{lr: 3}, 7]
throttle: 0
pass: x
option: y
exclude: [{q: 1}, {}]
"""
    lines = refused(text)[1:]
    assert [line.removeprefix("points.yaml:").partition(": ")[0] for line in lines] == [
        "1:1",
        "4:3",
        "5:3",
        "6:3",
        "7:3",
        "8:1",
        "9:17",
        "10:1",
        "11:1",
    ]
    assert "did you mean 'grid'" in lines[0]
    assert not any("aaaaaaaaaa" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('[{"a": 1},\n {"b c": 1}]', "2:3", "item 2: b c is not a key"),
        ("[1,", "2:1", "while parsing"),
        ("{}", "1:1", "sweep has no combinations: it needs grid, zip, list or include"),
        ("3", "1:1", "sweep must hold keys and values, not '3'"),
        ('{"grid": {"seed": [1], "training.seed": [2]}}', "1:24", "training.seed is there twice"),
        ('{"grid": {"a": [1]}, "list": [{"a": 2}]}', "1:22", "list has a, which grid varies"),
        ('{"grid": {"sweep.throttle": [1]}}', "1:11", "sweep.throttle cannot vary"),
        ('{"pass": "environment", "grid": {"PATH": [1]}}', "1:1", "PATH is set by Slurm"),
        ('{"pass": "environment", "grid": {"a.b": [1]}}', "1:1", "a.b is not a name of an env"),
    ],
)
def test_json_is_refused_with_its_places_too(text: str, place: str, words: str) -> None:
    [line] = refused(text, "p.json")[1:]
    assert line.startswith(f"p.json:{place}: ")
    assert words in line


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "- [",
        "just words",
        "- 1\n- 2",
        "&a [*a]",
        "[" * 5000,
        "\x00",
        "- {a: 1, a: 2}",
        '{"a": ' * 3000,
    ],
)
def test_what_is_no_sweep_is_refused_in_the_style_of_the_house(text: str) -> None:
    for file in ("points.json", "points.yaml", "points"):
        refused(text, file)


KEYS = [
    "grid",
    "zip",
    "list",
    "include",
    "exclude",
    "throttle",
    "pass",
    "a",
]


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4
    )


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.sampled_from(["grid", "list", "1", "true"]),
        nested,
        max_leaves=12,
    )
)
@settings(max_examples=300, deadline=None)
def test_whatever_is_written_becomes_points_or_a_usage_error(value: Any) -> None:
    for text in (json.dumps(value), yaml.safe_dump(value, allow_unicode=True)):
        try:
            expand(sweep_of(text))
        except UsageError as error:
            error.render()


def test_too_many_points_are_refused_before_they_are_made() -> None:
    grid = {f"k{number}": list(range(100)) for number in range(8)}
    assert (
        refused({"grid": grid})[0]
        == f"the sweep has {10**16} combinations, and the limit is {MAX_POINTS}"
    )


def test_points_that_set_the_same_of_the_config_share_a_script() -> None:
    sweep = sweep_of(
        "grid: {resources.nodes: [1, 2], launcher: [srun, torchrun], seed: [1, 2], training.script:"
        " [x]}\nexclude: [{seed: 2, launcher: srun}]"
    )
    assert sweep.config_keys == {"resources.nodes", "launcher"}
    found = groups(sweep, expand(sweep))
    assert [(dict(group.overrides), group.indices) for group in found] == [
        ({"resources.nodes": "1", "launcher": "srun"}, [0]),
        ({"resources.nodes": "1", "launcher": "torchrun"}, [1, 2]),
        ({"resources.nodes": "2", "launcher": "srun"}, [3]),
        ({"resources.nodes": "2", "launcher": "torchrun"}, [4, 5]),
    ]


def test_arguments_alone_need_one_script_and_many_scripts_are_refused() -> None:
    sweep = sweep_of({"grid": {"seed": list(range(500))}})
    assert [group.indices for group in groups(sweep, expand(sweep))] == [list(range(500))]
    many = sweep_of({"grid": {"environment.env.SEED": list(range(MAX_GROUPS + 1))}})
    with pytest.raises(UsageError, match="would need 201 scripts"):
        groups(many, expand(many))
