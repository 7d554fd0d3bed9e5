"""Windows and shards: every example once, on its side, in order; duplicates found in any number of passes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpctrain.preparation import duplicates, plan, tokenised

pytestmark = pytest.mark.torch  # numpy and pyarrow are of the [train] extra


def piece(folder: Path, number: int, examples: list[list[int]], split: str | None = None) -> plan.Stored:
    import numpy as np

    path = folder / f"{number}.arrow"
    with tokenised.writing(path) as batches:
        for ids in examples:
            batches.add(np.array(ids, dtype=np.int32), [1, len(ids)] if len(ids) > 1 else [])
    return plan.Stored(number, path, len(examples), split)


def walked(shards: tuple[plan.Shard, ...], pieces: list[plan.Stored], division: plan.Division) -> dict[str, list[tuple[int, int]]]:
    """Return (piece, example) of each split, in the order of its windows."""
    found: dict[str, list[tuple[int, int]]] = {}
    for shard in shards:
        for part in (part for window in shard.windows for part in window):
            taken = plan.chosen(tokenised.table(pieces[part.piece].path), part, division)
            found.setdefault(shard.split, []).extend((part.piece, part.start + place) for place in taken.nonzero()[0].tolist())
    return found


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.lists(st.integers(1, 40), max_size=30), min_size=1, max_size=5),
    target=st.integers(1, 200),
    percent=st.integers(0, 100),
)
def test_every_example_is_in_one_window(sizes: list[list[int]], target: int, percent: int, tmp_path: Path) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(plan, "WINDOW_TOKENS", target)
    patch.setattr(plan, "SHARD_TOKENS", 3 * target)
    chosen = random.Random(percent)
    pieces = [piece(tmp_path, n, [[chosen.randrange(500) for _ in range(size)] for size in of]) for n, of in enumerate(sizes)]
    division = plan.Division(seed=3, bound=(1 << 64) * percent // 100)
    shards = plan.shards(pieces, division, capacity=None)
    patch.undo()
    found = walked(shards, pieces, division)
    assert all(places == sorted(places) for places in found.values()), "not in order"
    everything = [(n, place) for n, of in enumerate(sizes) for place in range(len(of))]
    assert sorted(place for places in found.values() for place in places) == everything
    lengths = {(n, place): size for n, of in enumerate(sizes) for place, size in enumerate(of)}
    assert sum(lengths.values()) == sum(lengths[place] for places in found.values() for place in places)
    for shard in shards:
        assert shard.number < shard.of == sum(other.split == shard.split for other in shards)
        assert len(shard.windows) <= 3


def test_splits_of_the_source_are_kept(tmp_path: Path) -> None:
    pieces = [piece(tmp_path, 0, [[1, 2]], "train"), piece(tmp_path, 1, [[3, 4]], "test"), piece(tmp_path, 2, [[5, 6]], "train")]
    found = walked(plan.shards(pieces, plan.Division(seed=0), capacity=None), pieces, plan.Division(seed=0))
    assert found == {"train": [(0, 0), (2, 0)], "test": [(1, 0)]}


@pytest.mark.parametrize("at_once", [3, 1000])
def test_duplicates(at_once: int, tmp_path: Path) -> None:
    import numpy as np

    chosen = random.Random(1)
    contents = [[chosen.randrange(20)] * chosen.randint(2, 3) for _ in range(90)]
    pieces = [piece(tmp_path, n, contents[30 * n : 30 * n + 30]) for n in range(3)]
    count = duplicates.find(pieces, tmp_path / "d.npy", at_once=at_once)
    expected = [place for place, ids in enumerate(contents) if ids in contents[:place]]
    assert np.load(tmp_path / "d.npy").tolist() == expected
    assert count == len(expected) > 0
    division = plan.Division(seed=0, duplicates=str(tmp_path / "d.npy"))
    found = walked(plan.shards(pieces, division, capacity=None), pieces, division)
    assert [30 * n + place for n, place in found["train"]] == [place for place in range(90) if place not in expected]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([1, 3], [-100, 11, 12, -100]), ([1, 2, 2, 4], [-100, 11, 12, 13]), ([], [-100] * 4), ([3, 4], [-100, -100, -100, 13])],
)
def test_labels_of_spans(spans: list[int], expected: list[int]) -> None:
    """Two examples, one after the other; the second has the first's ids and spans."""
    import numpy as np

    arrays: list[Any] = [np.array(values, dtype=np.int64) for values in (2 * [10, 11, 12, 13], [0, 4], 2 * spans, 2 * [len(spans)])]
    assert tokenised.labels(arrays[0].astype(np.int32), *arrays[1:]).tolist() == 2 * expected
