"""What came of a preparation: the manifest that is stored with it, and what is said about it. Arithmetic on counts alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpctrain.preparation.assemble import Counts
from hpctrain.preparation.manifest import Manifest, Split

_BATCH = 8
_SMALLEST_BOUND = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What `pipeline.prepare` gives back.

    Attributes:
        folder: the dataset.
        manifest: what is stored in it.
        seconds: that this command took; `working`: of these, from the start of the workers to the result in its place.
        tokenised: tokens that this command tokenised itself, and `tokenising` the seconds of it.
        pieces, reused: how many there were, and how many of them an earlier command had finished.
        there: the result was there already, made for the same request.
        workers: processes.
        peak_mib: most resident memory of all processes together that was seen; None where nothing was done.
    """

    folder: Path
    manifest: Manifest
    seconds: float
    working: float = 0.0
    tokenised: int = 0
    tokenising: float = 0.0
    pieces: int = 0
    reused: int = 0
    there: bool = False
    workers: int = 0
    peak_mib: int | None = None


def split_of(counts: Counts, *, capacity: int | None) -> Split:
    """Return what the manifest says of a split.

    Args:
        counts: of all its shards.
        capacity: tokens of a packed row; None where rows are not packed.
    """
    full = capacity * counts.rows if capacity is not None else round(expected_longest(counts.lengths, _BATCH) * counts.examples)
    return Split(
        rows=counts.rows,
        examples=counts.examples,
        tokens=counts.tokens,
        trained=counts.trained,
        longest=counts.longest,
        histogram=histogram(counts.lengths),
        padded=max(1.0, round(full / counts.tokens, 4)) if counts.tokens else 1.0,
    )


def histogram(lengths: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return examples by length, with bounds that double: `(most tokens, examples)`, from the first bound that has any to the last."""
    found: dict[int, int] = {}
    for length, count in lengths.items():
        bound = max(_SMALLEST_BOUND, 1 << (length - 1).bit_length())
        found[bound] = found.get(bound, 0) + count
    if not found:
        return ()
    bound, last = min(found), max(found)
    bounds = [bound << step for step in range((last // bound).bit_length())]
    return tuple((each, found.get(each, 0)) for each in bounds)


def expected_longest(lengths: Mapping[int, int], size: int) -> float:
    """Return how long the longest of `size` examples drawn at random is, on average: what a batch of them is padded to."""
    total = sum(lengths.values())
    expected, below = 0.0, 0.0
    for length in sorted(lengths):
        upto = below + lengths[length] / total
        expected += length * (min(upto, 1.0) ** size - below**size)
        below = min(upto, 1.0)
    return expected
