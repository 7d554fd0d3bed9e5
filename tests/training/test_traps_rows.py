"""Silent traps in the rows of a dataset are said where they are, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy")  # the login node needs none
pytestmark = pytest.mark.torch
PLAIN: dict[str, Any] = {"packing": False, "packing_strategy": "bfd", "max_length": 64}


def rows(options: dict[str, Any] | None = None, **more: Any) -> Any:
    from hpctrain.training.row_facts import RowFacts
    from hpctrain.training.traps_rows import Rows

    facts = {
        "lengths": np.array([10, 20, 30]), "sampled": 3, "tokens": 60, "trained": 30, "highest": 50, "used": frozenset({1, 2, 50}),
        "trained_ids": frozenset({2}),
    }  # fmt: skip
    given = {name: more.pop(name) for name in list(more) if name in ("vocabulary", "eos", "prepared", "columns")}
    return Rows(options=SimpleNamespace(**{**PLAIN, **(options or {})}), facts=RowFacts(**{**facts, **more}), **given)


ROWS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("nothing_trained", {"trained": 0}, "all labels are -100", {"trained": 1}),
    ("ids_beyond", {"vocabulary": 50}, "ends at 49", {"vocabulary": 51}),
    ("padding_trained", {"padded": 15}, "25% of the tokens", {"padded": 0}),
    ("rows_cut", {"options": {"max_length": 15}}, "2 of 3 rows", {"options": {"max_length": 30}}),
    ("rows_cut", {"options": {"max_length": 15}}, "33.3%", {"options": {"max_length": None}}),
    (
        "rows_cut",
        {"options": {"max_length": 15, "packing": True}},
        "33.3%",
        {"options": {"max_length": 15, "packing": True, "packing_strategy": "bfd_split"}},
    ),
    ("little_trained", {"tokens": 6000, "trained": 59}, "0.98%", {"tokens": 6000, "trained": 60}),
    ("end_masked", {"eos": frozenset({1})}, "never trained on", {"eos": frozenset({1, 2})}),
    ("end_missing", {"eos": frozenset({9})}, "none of 3 rows", {"eos": frozenset({9, 1})}),
    ("end_missing", {"eos": frozenset({9})}, "none of 3 rows", {"eos": frozenset({9}), "prepared": True}),
    (
        "packing_nothing",
        {"options": {"packing": True, "max_length": 19}, "lengths": np.array([10, 20, 30])},
        "next to nothing",
        {"options": {"packing": True, "max_length": 21}, "lengths": np.array([10, 20, 30])},
    ),
]


@pytest.mark.parametrize(("rule", "speaks", "word", "silent"), ROWS)
def test_rows(rule: str, speaks: dict[str, Any], word: str, silent: dict[str, Any]) -> None:
    from hpctrain.training import traps_rows

    found = getattr(traps_rows, rule)(rows(**speaks))
    assert found is not None
    assert word in found.what
    assert found.fix
    assert getattr(traps_rows, rule)(rows(**silent)) is None


def test_every_rule_of_rows_is_in_the_table() -> None:
    from hpctrain.training import traps_rows

    assert {rule.__name__ for rule in (*traps_rows.ERRORS, *traps_rows.WARNINGS)} == {row[0] for row in ROWS}


def test_rows_are_looked_at_as_they_were_saved() -> None:
    import datasets

    from hpctrain.training.row_facts import look

    data = datasets.Dataset.from_dict(
        {
            "input_ids": [[1, 2, 3], [4, 5], [], [60, 6]],
            "labels": [[-100, 2, 3], [-100, -100], [], [-100, 6]],
            "attention_mask": [[1, 1, 0], [1, 1], [], [1, 1]],
        }
    )
    found = look(data, completion_only=False)
    assert (found.lengths.tolist(), found.longest, found.tokens, found.trained, found.highest) == ([3, 2, 0, 2], 3, 7, 3, 60)
    assert (found.trained_ids, found.padded, found.last) == ({2, 3, 6}, 1, {3, 5, 6})
    assert found.over(2) == (1, 1)
    turned = look(data.select([3, 0]), completion_only=False)
    assert turned.lengths.tolist() == [2, 3]
    masked = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3]], "completion_mask": [[0, 1, 1]], "assistant_masks": [[1, 1, 0]]})
    assert look(masked, completion_only=True).trained == 1
    assert look(masked, completion_only=False).trained == 2
