"""Silent traps in the rows of a dataset are said where they are, and nowhere else."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.training.preflight import rules
from hpctrain.training.preflight.dataset_facts import RowFacts, row_facts

np = pytest.importorskip("numpy")  # the login node needs none
pytestmark = pytest.mark.torch
PLAIN: dict[str, Any] = {"packing": False, "packing_strategy": "bfd", "max_length": 64}


def rows(**more: Any) -> Any:
    facts = {
        "lengths": np.array([10, 20, 30]),
        "sampled": 3,
        "tokens": 60,
        "trained": 30,
        "highest": 50,
        "used": frozenset({1, 2, 50}),
        "trained_ids": frozenset({2}),
    }
    return RowFacts(**{**facts, **more})


ROWS: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"trained": 0}, "all labels are -100", {"trained": 1}),
    ({"vocabulary": 50}, "ends at 49", {"vocabulary": 51}),
    ({"padded": 15}, "25% of the tokens", {"padded": 0}),
    ({"options": {"max_length": 15}}, "2 of 3 rows", {"options": {"max_length": 30}}),
    ({"options": {"max_length": 15}}, "33.3%", {"options": {"max_length": None}}),
    (
        {"options": {"max_length": 15, "packing": True}},
        "33.3%",
        {"options": {"max_length": 15, "packing": True, "packing_strategy": "bfd_split"}},
    ),
    ({"tokens": 6000, "trained": 59}, "0.98%", {"tokens": 6000, "trained": 60}),
    ({"eos": frozenset({1})}, "never trained on", {"eos": frozenset({1, 2})}),
    ({"eos": frozenset({9})}, "none of 3 rows", {"eos": frozenset({9, 1})}),
    (
        {"eos": frozenset({9})},
        "none of 3 rows",
        {"eos": frozenset({9}), "prepared": True},
    ),
]


@pytest.mark.parametrize(("speaks", "word", "silent"), ROWS)
def test_rows(speaks: dict[str, Any], word: str, silent: dict[str, Any]) -> None:
    def said(given: dict[str, Any]) -> list[str]:
        options = SimpleNamespace(**{**PLAIN, **given.pop("options", {})})
        found = rows(**given)
        return [
            each.what for each in (*rules.row_problems(found), *rules.row_warnings(options, found))
        ]

    assert [word in what for what in said(dict(speaks))].count(True) == 1
    assert not any(word in what for what in said(dict(silent)))


def asked(model: Path, **more: Any) -> Any:
    return SimpleNamespace(
        model_name_or_path=str(model), completion_only_loss=None, dataset_name=None, **more
    )


def test_rows_are_looked_at_as_they_were_saved(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_dict(
        {
            "input_ids": [[1, 2, 3], [4, 5], [], [60, 6]],
            "labels": [[-100, 2, 3], [-100, -100], [], [-100, 6]],
            "attention_mask": [[1, 1, 0], [1, 1], [], [1, 1]],
        }
    )
    found = row_facts(asked(tmp_path), data)
    assert found.lengths.tolist() == [3, 2, 0, 2]
    assert (found.tokens, found.trained, found.highest) == (7, 3, 60)
    assert (found.trained_ids, found.padded) == ({2, 3, 6}, 1)
    turned = row_facts(asked(tmp_path), data.select([3, 0]))
    assert turned.lengths.tolist() == [2, 3]
    masked = datasets.Dataset.from_dict(
        {"input_ids": [[1, 2, 3]], "completion_mask": [[0, 1, 1]], "assistant_masks": [[1, 1, 0]]}
    )
    assert row_facts(asked(tmp_path), masked).trained == 1
    given = asked(tmp_path)
    given.completion_only_loss = False
    assert row_facts(given, masked).trained == 2
    # Facts that are unknown are no traps.
    assert (found.eos, found.vocabulary) == (frozenset(), None)
    (tmp_path / "config.json").write_text('{"vocab_size": 64, "eos_token_id": [61, 62]}')
    found = row_facts(given, masked)
    assert (found.eos, found.vocabulary) == ({61, 62}, 64)
