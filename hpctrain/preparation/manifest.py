"""The manifest of a prepared dataset: what it was made of, by which rules, and what came of it.

Light: the login node's checks and the training read it, with nothing but the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.clusters.load import read_regular

NAME = "hpctrain.json"
"""The manifest's file, in the folder of the dataset."""
SCHEMA = 1
_MAX_BYTES = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One split of the dataset.

    Attributes:
        rows: as they are stored: packed rows, where rows were packed.
        examples: before packing.
        tokens: of all rows; `trained`: of these, the ones that the loss looks at.
        longest: tokens of the longest row.
        histogram: examples by length: `(most tokens, examples)`, the bounds rising.
        padded: tokens that a batch of 8 rows of random order holds for each of its own, at least 1.0; of packed rows, tokens a full row
            would hold for each that it holds.
    """

    rows: int
    examples: int
    tokens: int
    trained: int
    longest: int
    histogram: tuple[tuple[int, int], ...] = ()
    padded: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """See the module.

    Attributes:
        sources: the files, with `path`, `bytes` and `sha256` (or `mtime_ns` where a file is too large to be read twice).
        form: `text`, `prompt-completion`, `messages` or `alpaca`, or `classes`.
        columns: which column of the source was taken for what.
        loss_on: `all`, `completion` or `assistant`: the tokens that are trained on; of classes, `label`.
        tokenizer: the fingerprint (`tokenizer_fingerprint`).
        tokenizer_name: where the tokenizer was read.
        template: the sha256 of the chat template; None where none was applied.
        vocabulary: number of token ids, added tokens included.
        max_length: tokens of a row at most; None: no bound.
        packed: rows hold several examples, and `seq_lengths` says where they begin.
        splits: by name.
        rows: that were read, in all files.
        dropped: reason to count, of rows that are left out; `dropped_first`: reason to the first of them, `FILE:LINE: detail`.
        truncated: examples that were cut at `max_length`.
        context_turns: turns of the assistant that are not trained on, because the template shows them otherwise than they were written.
        specials: special token to the rows that write it in their text; `specials_first`: to the first of these, `FILE:LINE`.
        seed: of the split and of the order.
        digest: sha256 over what is stored: equal for equal data, however many cores made it.
        labels: of classes, their names in the order of their numbers.
        settings: all options, for whoever makes it again.
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
    specials: Mapping[str, int] = field(default_factory=dict)
    specials_first: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    digest: str = ""
    labels: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, ensure_ascii=False, indent=1) + "\n"


def read(folder: Path) -> Manifest | None:
    """Return the manifest of a dataset's folder; None where there is none, or none that is understood."""
    try:
        content = json.loads(read_regular(folder / NAME, _MAX_BYTES).decode())
        if content.pop("schema") != SCHEMA:
            return None
        splits = {name: _split(values) for name, values in content.pop("splits").items()}
        listed: dict[str, Any] = {name: tuple(content.pop(name)) for name in ("sources", "labels")}
        return Manifest(splits=splits, **listed, **content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _split(values: Mapping[str, Any]) -> Split:
    return Split(**{**values, "histogram": tuple((int(most), int(examples)) for most, examples in values["histogram"])})
