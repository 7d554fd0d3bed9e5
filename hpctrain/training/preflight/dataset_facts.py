"""Statistics of a dataset's rows, and training defaults for datasets of `hpctrain prepare`, which
are not truncated or packed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.data import manifest as manifests
from hpctrain.data.manifest import DatasetManifest
from hpctrain.fit.training_options import rows_unasked
from hpctrain.training.preflight import text_config
from hpctrain.util import files

#: Number of rows to sample, evenly spaced.
SAMPLE = 512
BATCHES = ("per_device_train_batch_size", "per_device_eval_batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """Statistics of rows.

    Attributes:
        lengths: int64 array (rows,): tokens of each row, before truncation.
        sampled: number of sampled rows.
        tokens, trained: tokens in the sampled rows, and those that are unmasked in the loss.
        highest: their highest token id; -1 if there is none.
        used: token ids that occur in them.
        trained_ids: token ids that are unmasked in the loss.
        padded: tokens that the attention_mask excludes, but that are unmasked in the loss.
        vocabulary: rows of the model's embedding; None if unknown.
        eos: end-of-sequence ids; empty if unknown.
        prepared: `hpctrain prepare` wrote the dataset.
    """

    lengths: Any
    sampled: int
    tokens: int
    trained: int
    highest: int
    used: frozenset[int]
    trained_ids: frozenset[int]
    padded: int = 0
    vocabulary: int | None = None
    eos: frozenset[int] = frozenset()
    prepared: bool = False


def row_facts(asked: Any, dataset: Any) -> RowFacts:
    """Return the facts of a saved datasets.Dataset with `input_ids` and of the model's config.json."""
    import numpy as np

    names = dataset.column_names
    rows = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLE, len(dataset))).astype(int))
    sample = dataset.select(rows.tolist())
    ids = flat(sample, "input_ids")
    counts = np.ones(len(ids), dtype=bool)
    if "labels" in names:
        counts = flat(sample, "labels") != -100
    else:
        # As in SFTTrainer, with hpctrain's default of completion_only_loss.
        skipped = "completion_mask" if asked.completion_only_loss is False else None
        for name in {"completion_mask", "assistant_masks"} & set(names) - {skipped}:
            counts &= flat(sample, name) != 0
    padded = 0
    if "attention_mask" in names:
        padded = int((counts & (flat(sample, "attention_mask") == 0)).sum())
    folder = Path(asked.model_name_or_path)
    configs = [
        text_config(files.read_json(folder / name) or {})
        for name in ("config.json", "generation_config.json")
    ]
    ends = [each.get("eos_token_id") for each in configs]
    eos = [one for each in ends for one in (each if isinstance(each, list) else [each])]
    return RowFacts(
        lengths=lengths_of(dataset),
        sampled=len(rows),
        tokens=len(ids),
        trained=int(counts.sum()),
        highest=int(ids.max()) if len(ids) else -1,
        used=frozenset(np.unique(ids).tolist()),
        trained_ids=frozenset(np.unique(ids[counts]).tolist()),
        padded=padded,
        vocabulary=configs[0].get("vocab_size"),
        eos=frozenset(each for each in eos if isinstance(each, int)),
        prepared=read_manifest(asked.dataset_name) is not None,
    )


def lengths_of(dataset: Any, column: str = "input_ids") -> Any:
    """Return the length of each row's list in a column of a datasets.Dataset: an int64 array."""
    import pyarrow.compute as arrow

    lengths = arrow.list_value_length(dataset.data.column(column)).to_numpy().astype("int64")
    indices = dataset._indices  # set if rows are reordered or selected
    return lengths if indices is None else lengths[indices.column(0).to_numpy()]


def flat(dataset: Any, column: str) -> Any:
    """Return all numbers in a column of lists as a flat numpy array."""
    import pyarrow.compute as arrow

    table = dataset.select_columns([column]).with_format("arrow")[:]
    return arrow.list_flatten(table.column(column)).to_numpy()


def read_manifest(dataset: str | None) -> DatasetManifest | None:
    """Return the manifest of a dataset's directory; None if `hpctrain prepare` did not create it."""
    return manifests.read_manifest(Path(dataset)) if dataset else None


def prepared_defaults(manifest: DatasetManifest) -> dict[str, Any]:
    """Return defaults for unset options: rows are not truncated or packed again, and not padded
    unnecessarily.

    For long packed rows, the batch size is below TRL's 8; `hpctrain fit` uses the same number.
    """
    if not manifest.packed:
        return {"max_length": None, "train_sampling_strategy": "group_by_length"}
    return {
        "max_length": None,
        "padding_free": True,
        "train_sampling_strategy": "random",
        **dict.fromkeys(BATCHES, rows_unasked(manifest)),
    }
