"""What people write → points: their order, what is refused and where, and draws that are the same everywhere."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.config import sweep_file
from hpctrain.errors import UsageError
from hpctrain.jobs.sweep import Distribution, Point, Sweep, expand, groups
from hpctrain.jobs.sweep.draw import _value
from hpctrain.jobs.sweep.expand import MAX_POINTS
from hpctrain.jobs.sweep.group import MAX_GROUPS


def sweep_of(text: str | dict[str, Any] | list[Any], file: str = "points") -> Sweep:
    return sweep_file.of_text(text if isinstance(text, str) else json.dumps(text), file, again="hpctrain sweep plan")


def points_of(text: str | dict[str, Any] | list[Any]) -> list[dict[str, Any]]:
    points = expand(sweep_of(text))
    assert [point.index for point in points] == list(range(len(points)))
    return [dict(point.values) for point in points]


def refused(text: str | dict[str, Any] | list[Any], file: str = "points.yaml") -> list[str]:
    with pytest.raises(UsageError) as error:
        expand(sweep_of(text, file))
    assert error.value.fix
    return [error.value.what, *error.value.details]


names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(lambda name: name not in ("script", "array"))
scalars = st.integers(-99, 99) | st.sampled_from(["x", "a b", "é", ""]) | st.booleans()


def different(values: list[Any]) -> bool:
    return len({json.dumps(value) for value in values}) == len(values)


lists = (
    st.lists(scalars, min_size=1, max_size=4).filter(different).filter(lambda values: different([str(value).lower() for value in values]))
)


@settings(deadline=None)
@given(
    st.dictionaries(names.map("g_{}".format), lists, min_size=1, max_size=3),
    st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True),
)
def test_the_product_has_every_combination_once_and_the_last_key_varies_fastest(grid: dict[str, list[Any]], together: list[int]) -> None:
    document = {"grid": grid, "zip": {"z_1": together, "z_2": [str(value) for value in together]}, "list": [{"l": 1}, {"l": 2}]}
    expected = [
        (*combination, row, listed) for *combination, row, listed in itertools.product(*grid.values(), range(len(together)), (1, 2))
    ]
    found = points_of(document)
    assert [(*[point[key] for key in grid], point["z_1"], point["z_2"], point["l"]) for point in found] == [
        (*[written(value) for value in combination], str(together[row]), str(together[row]), str(listed))
        for *combination, row, listed in expected
    ]


def written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_words_stay_as_they_were_written_in_yaml_and_in_json() -> None:
    assert [point["x"] for point in points_of("grid: {x: [1e-5, 0.10, 007, yes, '1', ~, 1_000]}")] == [
        "1e-5",
        "0.10",
        "007",
        "yes",
        "1",
        None,
        "1_000",
    ]
    json_text = '[{"x": 1e-5}, {"x": 0.10}, {"x": true}, {"x": null}, {"x": "é\\ud83d\\ude00"}, {"x": NaN}]'
    assert [point["x"] for point in points_of(json_text)] == [
        "1e-5", "0.10", "true", None, "é😀", "NaN",
    ]  # fmt: skip


def test_a_bare_list_is_a_sweep_in_yaml_and_in_json() -> None:
    assert points_of('[{"model_dim": 240}, {"model_dim": 192, "layers": [1, 2]}]') == [
        {"model_dim": "240"},
        {"model_dim": "192", "layers": ["1", "2"]},
    ]
    assert points_of("# ours\n- model_dim: 240\n- {model_dim: 192, layers: [1, 2]}\n") == [
        {"model_dim": "240"},
        {"model_dim": "192", "layers": ["1", "2"]},
    ]


def test_exclude_drops_what_matches_all_of_its_keys_and_include_comes_last() -> None:
    found = points_of("grid: {lr: [1e-5, 3e-5], b: [1, 2, 3]}\nexclude: [{lr: 0.00001, b: '2'}, {b: 3}]\ninclude: [{lr: 9}]\n")
    assert [(point["lr"], point.get("b")) for point in found] == [("1e-5", "1"), ("3e-5", "1"), ("3e-5", "2"), ("9", None)]


def test_what_drops_nothing_or_comes_twice_is_named() -> None:
    assert refused("grid: {a: [1, 2]}\nexclude: [{a: 1}, {a: 3}]")[1:] == ["exclude: item 2: a=3"]
    assert refused("grid: {a: [1, 2]}\ninclude: [{a: 3}, {a: 2}]")[1:] == ["include: item 2 is the same as point 1: a=2"]
    assert refused("grid: {a: [1]}\nexclude: [{a: 1}]")[0] == "the sweep has no points: exclude drops all of them"
    assert refused([{"a": 1, "b": 2}, {"a": 2}, {"b": 2, "a": 1}], "p.json")[1:] == [
        "p.json:1:30: item 3 is the same point as item 1: b=2 a=1"
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
random: {count: 9, seed: x, values: {c: {choice: [1, 2]}, d: {uniform: [2, 1]}, e: {log_uniform: [0, 1]}, f: {normal: [0, 1]}}}
throttle: 0
pass: x
option: y
exclude: [{q: 1}, {}]
"""
    first, *lines = refused(text)
    assert first == "18 problems in points.yaml"
    assert [line.removeprefix("points.yaml:").partition(": ")[0] for line in lines] == [
        "1:1", "3:16", "4:3", "5:3", "6:14", "7:3", "8:1", "9:1", "9:17", "10:20", "10:63", "10:85", "10:107", "11:1", "12:1", "13:1",
        "14:12", "14:19",
    ]  # fmt: skip
    assert lines[1] == "points.yaml:3:16: grid.lr: item 3 is the same value as item 1: lr=1"
    assert "did you mean 'grid'" in lines[0]
    assert not any("aaaaaaaaaa" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"grid": {"lr": [1, 2,\n  2]}}', "p.json:2:3: grid.lr: item 3 is the same value as item 2: lr=2"),
        ('[{"a": 1},\n {"b c": 1}]', "p.json:2:3: item 2: b c is no key such as learning_rate or resources.nodes"),
        ('{"grid": {"a": [1], "a": [2]}}', "p.json:1:21: duplicate key 'a'; it is also at line 1"),
        ('[{"a": "x\\u0000"}]', "p.json:1:3: item 1: a holds a NUL character or half of a surrogate pair, which no command line can carry"),
        (
            '[{"a": ["\\ud800"]}]',
            "p.json:1:3: item 1: a holds a NUL character or half of a surrogate pair, which no command line can carry",
        ),
        ("[1,", "p.json:1:4: Expecting value"),
        ('{"list": []}', """p.json:1:2: list must be a list of points, such as [{"learning_rate": 1e-5, "seed": 1}], not an empty one"""),
        ("[]", """p.json:1:1: the sweep must be a list of points, such as [{"learning_rate": 1e-5, "seed": 1}], not an empty one"""),
        ("{}", "p.json:1:1: the sweep has no points: it needs grid, zip, list, random or include"),
        ("3", "p.json:1:1: the sweep must hold keys and values, or be a list of points, not '3'"),
        ('{"grid": {"seed": [1], "training.seed": [2]}}', "p.json:1:24: grid.training.seed is there twice, once with training. in front"),
        ('{"grid": {"a": [1]}, "list": [{"a": 2}]}', "p.json:1:22: list has a, which grid varies already"),
        ('{"grid": {"sweep.throttle": [1]}}', "p.json:1:11: grid.sweep.throttle cannot vary; "),
        (
            '{"grid": {"environment.env": [{"A": 1}], "environment.env.B": [2]}}',
            "p.json:1:1: the sweep varies environment.env and environment.env.B, ",
        ),
        ('{"pass": "environment", "grid": {"PATH": [1]}}', "p.json:1:1: the sweep has pass: environment, and PATH is set by Slurm"),
        (
            '{"pass": "environment", "grid": {"a.b": [1]}}',
            "p.json:1:1: the sweep has pass: environment, and a.b is no name of an environment variable",
        ),
        ('{"pass": "file", "booleans": "flags", "grid": {"a": [1]}}', "p.json:1:18: booleans is about arguments of the command line"),
    ],
)
def test_json_is_refused_with_its_places_too(text: str, said: str) -> None:
    _, *lines = refused(text, "p.json")
    assert len(lines) == 1
    assert lines[0].startswith(said), lines


@pytest.mark.parametrize(
    "text", ["", "a: [", "- [", "just words", "- 1\n- 2", "&a [*a]", "[" * 5000, "\x00", "- {a: 1, a: 2}", '{"a": ' * 3000]
)
def test_what_is_no_sweep_is_refused_in_the_style_of_the_house(text: str) -> None:
    for file in ("points.json", "points.yaml", "points"):
        refused(text, file)


KEYS = ["grid", "zip", "list", "random", "include", "exclude", "throttle", "pass", "values", "count", "seed", "a", "choice", "uniform"]


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)


@given(st.recursive(st.none() | st.text(max_size=5) | st.sampled_from(["grid", "list", "1", "true"]), nested, max_leaves=12))
@settings(max_examples=300, deadline=None)
def test_whatever_is_written_becomes_points_or_a_usage_error(value: Any) -> None:
    for text in (json.dumps(value), yaml.safe_dump(value, allow_unicode=True)):
        try:
            expand(sweep_of(text))
        except UsageError as error:
            error.render()


def test_too_many_points_are_refused_before_they_are_made() -> None:
    grid = {f"k{number}": list(range(100)) for number in range(8)}
    assert refused({"grid": grid})[0] == f"the sweep has {10**16} points, and more than {MAX_POINTS} are hardly meant"


RANDOM = {
    "lr": {"log_uniform": ["1e-5", "1e-3"]}, "wd": {"uniform": [0, "0.1"]}, "n": {"integer": [2, 8]}, "c": {"choice": ["a", [1, 2]]},
}  # fmt: skip


def test_random_draws_are_these_ones() -> None:
    """Pinned: another machine, another version of Python or of this package must not change a sweep that is under way."""
    found = points_of({"random": {"count": 3, "seed": 7, "values": RANDOM}})
    assert found == PINNED


PINNED = [
    {"lr": "5.0967e-05", "wd": "0.0581916", "n": "6", "c": "a"},
    {"lr": "0.000348987", "wd": "0.0935468", "n": "4", "c": ["1", "2"]},
    {"lr": "0.000118465", "wd": "0.0167923", "n": "6", "c": ["1", "2"]},
]


def test_random_draws_do_not_depend_on_the_hash_seed_or_on_the_order_of_keys() -> None:
    backwards = dict(reversed(RANDOM.items()))
    ours = points_of({"random": {"count": 20, "seed": 3, "values": RANDOM}})
    assert points_of({"random": {"count": 20, "seed": 3, "values": backwards}}) == ours
    assert points_of({"random": {"count": 20, "seed": 4, "values": RANDOM}}) != ours
    assert points_of({"random": {"count": 10, "seed": 3, "values": RANDOM}}) == ours[:10]  # a longer sweep begins as a shorter one does
    program = (
        "import sys; from hpctrain.config import sweep_file; from hpctrain.jobs.sweep import expand\n"
        "print([point.values for point in expand(sweep_file.of_text(sys.argv[1], 'x.json', again=''))])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program, json.dumps({"random": {"count": 20, "seed": 3, "values": RANDOM}})],
            env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert said == {f"{[tuple(point.items()) for point in ours]}\n"}


@given(st.integers(0, 10**18 - 1), st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.integers(-1000, 1000), st.integers(1, 1000))
@settings(max_examples=60, deadline=None)
def test_random_draws_stay_inside_their_bounds(seed: int, one: float, other: float, low: int, width: int) -> None:
    if one == other:
        return
    bounds = sorted((one, other))
    values = {"u": {"uniform": bounds}, "l": {"log_uniform": bounds}, "i": {"integer": [low, low + width]}}
    for point in points_of({"random": {"count": 20, "seed": seed, "values": values}}):
        assert bounds[0] <= float(point["u"]) <= bounds[1]
        assert bounds[0] <= float(point["l"]) <= bounds[1]
        assert low <= int(point["i"]) <= low + width


@pytest.mark.parametrize("kind", ["uniform", "log_uniform"])
def test_rounding_does_not_leave_the_bounds(kind: Literal["uniform", "log_uniform"]) -> None:
    bounds = Distribution(kind, ("0.1234564", "0.9876546"))
    assert [_value(bounds, 0), _value(bounds, 2**256 - 1)] == ["0.1234564", "0.9876546"]


def test_random_draws_spread_as_their_distributions_say() -> None:
    values = {"u": {"uniform": [0, 1]}, "l": {"log_uniform": ["1e-6", "1e-2"]}, "i": {"integer": [1, 4]}}
    found = points_of({"random": {"count": 2000, "seed": 1, "values": values}})
    for share in ([float(point["u"]) for point in found], [(math.log10(float(point["l"])) + 6) / 4 for point in found]):
        counts = [sum(tenth / 10 <= value < (tenth + 1) / 10 for value in share) for tenth in range(10)]
        assert min(counts) > 150  # 200 expected, standard deviation 13.4
        assert max(counts) < 250
    counts = [sum(point["i"] == str(number) for point in found) for number in range(1, 5)]
    assert min(counts) > 420


def test_few_different_values_are_drawn_without_repeating_and_too_many_are_refused() -> None:
    values = {"a": {"choice": ["x", "y", "z"]}, "b": {"integer": [1, 4]}}
    found = points_of({"random": {"count": 12, "values": values}})
    assert {(point["a"], point["b"]) for point in found} == set(itertools.product("xyz", "1234"))
    assert (
        "must be at most 12, because there are no more different points, not 13" in refused({"random": {"count": 13, "values": values}})[1]
    )


def test_points_that_set_the_same_of_the_config_share_a_script() -> None:
    sweep = sweep_of(
        "grid: {resources.nodes: [1, 2], launcher: [srun, torchrun], seed: [1, 2], training.script: [x]}\n"
        "exclude: [{seed: 2, launcher: srun}]"
    )
    assert sweep.config_keys == {"resources.nodes", "launcher"}
    found = groups(sweep, expand(sweep))
    assert [(group.data(), group.indices) for group in found] == [
        ({"resources": {"nodes": "1"}, "launcher": "srun"}, [0]), ({"resources": {"nodes": "1"}, "launcher": "torchrun"}, [1, 2]),
        ({"resources": {"nodes": "2"}, "launcher": "srun"}, [3]), ({"resources": {"nodes": "2"}, "launcher": "torchrun"}, [4, 5]),
    ]  # fmt: skip


def test_training_in_front_of_an_argument_says_nothing_new() -> None:
    assert points_of("grid: {training.seed: [1], training.script: [x], training.a.b: [2]}") == [
        {"seed": "1", "training.script": "x", "a.b": "2"}
    ]


def test_arguments_alone_need_one_script_and_many_scripts_are_refused() -> None:
    sweep = sweep_of({"grid": {"seed": list(range(500))}})
    assert [group.indices for group in groups(sweep, expand(sweep))] == [list(range(500))]
    many = sweep_of({"grid": {"environment.env.SEED": list(range(MAX_GROUPS + 1))}})
    with pytest.raises(UsageError, match="would need 201 scripts"):
        groups(many, expand(many))


def test_a_point_knows_its_values() -> None:
    point = Point(3, (("a", "1"), ("b", None)))
    assert (point.get("a"), point.get("b"), point.get("c")) == ("1", None, None)
