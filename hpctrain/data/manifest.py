"""The manifest of a prepared dataset (sources, settings, counts), and the fingerprint of a
tokenizer, which shows whether a dataset was prepared with it.

Needs only the standard library: the login node's checks and the training read it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.util.stored import made, read_regular

#: The manifest's file name in the dataset's directory.
NAME = "hpctrain.json"
SCHEMA = 1
_MAX_BYTES = 50_000_000
#: Batch size for which the manifest contains the padding.
BATCH = 8
_SMALLEST_BOUND = 16

WHOLE = "tokenizer.json"
_MAX_TOKENIZER_BYTES = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One split of the dataset.

    Attributes:
        rows: as stored; packed rows if packed.
        examples: before packing.
        tokens: of all rows; `trained`: the unmasked ones of these.
        longest: tokens of the longest row.
        histogram: examples by length: `(most tokens, examples)`, bounds ascending.
        padded: padded tokens divided by real tokens in batches of 8 random rows, at least 1.0; for
            packed rows, capacity divided by real tokens.
    """

    rows: int
    examples: int
    tokens: int
    trained: int
    longest: int
    histogram: tuple[tuple[int, int], ...] = ()
    padded: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """The manifest of a prepared dataset.

    Attributes:
        sources: the files, with `path`, `bytes` and `mtime_ns`.
        form: `text`, `prompt-completion`, `messages`, `alpaca` or `classes`.
        columns: role to source column.
        loss_on: the unmasked tokens: `all`, `completion` or `assistant`; for classes, `label`.
        tokenizer: the fingerprint (`tokenizer_fingerprint`).
        tokenizer_name: where the tokenizer was loaded from.
        template: the sha256 of the chat template; None if none was applied.
        vocabulary: number of token ids, added tokens included.
        max_length: maximum tokens per row; None: no limit.
        packed: rows contain several examples, with lengths in `seq_lengths`.
        splits: by name.
        rows: rows read from all files.
        dropped: reason to number of dropped rows; `dropped_first`: reason to the first of them,
            `FILE:LINE: detail`.
        truncated: examples cut at `max_length`.
        context_turns: assistant turns that are masked because the template rewrites them.
        seed: of the split and of the order.
        digest: sha256 of the stored data; independent of the number of cores.
        labels: for classes, their names in the order of their ids.
        settings: all options, to reproduce the dataset.
    """

    sources: tuple[Mapping[str, Any], ...]
    form: str
    columns: Mapping[str, str]
    loss_on: str
    tokenizer: str
    tokenizer_name: str
    template: str | None
    vocabulary: int
    max_length: int | None
    packed: bool
    splits: Mapping[str, Split]
    rows: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    dropped_first: Mapping[str, str] = field(default_factory=dict)
    truncated: int = 0
    context_turns: int = 0
    seed: int = 0
    digest: str = ""
    labels: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, ensure_ascii=False, indent=1) + "\n"


def read_manifest(folder: Path) -> DatasetManifest | None:
    """Return the manifest in a dataset's directory; None if it is missing or of another schema."""
    try:  # not read_object: a seed may have more than 64 bits
        content = json.loads(read_regular(folder / NAME, _MAX_BYTES).decode())
    except (OSError, ValueError, RecursionError):
        return None
    is_ours = isinstance(content, dict) and content.get("schema") == SCHEMA
    return made(DatasetManifest, content) if is_ours else None


# -- statistics ------------------------------------------------------------------------------------


def histogram(lengths: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return examples by length, with bounds that double: `(most tokens, examples)`, without empty
    bounds at both ends.
    """
    found: Counter[int] = Counter()
    for length, count in lengths.items():
        found[max(_SMALLEST_BOUND, 1 << (length - 1).bit_length())] += count
    first, last = min(found, default=1), max(found, default=0)
    bounds = (first << step for step in range((last // first).bit_length()))
    return tuple((bound, found[bound]) for bound in bounds)


def expected_longest(lengths: Mapping[int, int], size: int) -> float:
    """Return the expected maximum length of `size` random examples, which is the padded length of
    such a batch.
    """
    total = sum(lengths.values())
    expected, below = 0.0, 0.0
    for length in sorted(lengths):
        upto = below + lengths[length] / total
        expected += length * (min(upto, 1.0) ** size - below**size)
        below = min(upto, 1.0)
    return expected


# -- the tokenizer ---------------------------------------------------------------------------------


def tokenizer_fingerprint(folder: Path) -> str | None:
    """Return the sha256, in hex, of the vocabulary, the merges and the added tokens in a
    directory's tokenizer.json; None if it cannot be read.

    Equal fingerprints mean that each id is the same token. It ignores the order of keys,
    formatting, and what does not change ids, such as the padding and truncation settings at the
    time of saving.
    """
    try:
        content = json.loads(read_regular(Path(folder) / WHOLE, _MAX_TOKENIZER_BYTES).decode())
        model, added = content["model"], content.get("added_tokens") or []
        merges = model.get("merges") or []
        ids = {
            # Unigram's vocabulary is a list of pairs; their positions are the ids.
            "vocab": model["vocab"],
            # "a b" in older files, ["a", "b"] in newer ones.
            "merges": [merge.split(" ") if isinstance(merge, str) else merge for merge in merges],
            "added": sorted([int(token["id"]), token["content"]] for token in added),
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return hashlib.sha256(json.dumps(ids, sort_keys=True).encode()).hexdigest()
