"""A classifier of timelines: the reading of its dataset, its rows and batches, its model, loss and
metrics, and the Trainer that saves and resumes.

Columns of the dataset: `input_ids`, event ids per row, padded on the right or not at all;
`attention_mask`, if the padding has no id of its own; `label` or `labels`: a class by its number or
name, a list of 0 and 1 (any of several classes), or a number with a fraction (regression).
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    set_seed,
)

from hpctrain.data import manifest
from hpctrain.errors import UsageError
from hpctrain.training.merge import CLASSIFIER
from hpctrain.training.preflight import Problem, usage_error
from hpctrain.training.survival.trainer import SurvivorMixin
from hpctrain.util import files, shell

#: In a dataset's and a model's directory: the id of each event, written by
#: hpctrain/data/timelines.py.
VOCABULARY = "vocabulary.json"

Floats = NDArray[np.floating[Any]]


def compute_metrics(kind: str, logits: Floats, labels: NDArray[Any]) -> dict[str, float]:
    """Return the metrics of an evaluation.

    Args:
        kind: `single` (one class of several), `multi` (any of several), or `regression`.
        logits: (rows, classes).
        labels: (rows,) class numbers; for `multi` (rows, classes) with 0 and 1.
    """
    if kind == "regression":
        return {}
    logits = np.asarray(logits, dtype=np.float64)
    columns = range(logits.shape[1])
    if kind == "multi":
        scores, predicted, actual = logits, logits > 0, labels > 0
        counted = list(columns)
    else:
        # Log-odds instead of probabilities, which would tie at 1.0.
        others = [
            np.logaddexp.reduce(np.delete(logits, column, axis=1), axis=1) for column in columns
        ]
        scores = logits - np.stack(others, axis=1)
        predicted = logits.argmax(axis=1)[:, None] == np.arange(len(columns))
        actual = labels[:, None] == np.arange(len(columns))
        counted = [each for each in columns if (predicted | actual)[:, each].any()]
    both, either = (predicted & actual).sum(axis=0), predicted.sum(axis=0) + actual.sum(axis=0)
    f1 = 2 * both / np.maximum(either, 1)
    found = {
        "accuracy": float((predicted == actual).all(axis=1).mean()),
        "f1_macro": float(f1[counted].mean()),
    }
    areas = [auroc(scores[:, each], actual[:, each]) for each in columns]
    known = [area for area in areas if area is not None]
    return {**found, "auroc": float(np.mean(known))} if known else found


def auroc(scores: Floats, positive: NDArray[Any]) -> float | None:
    """Return the probability that a positive row scores above a negative one, ties counting half;
    None if either is missing.

    Args:
        scores: (rows,) the higher, the more positive.
        positive: (rows,) of bool.
    """
    above = int(positive.sum())
    below = int(positive.size - above)
    if above == 0 or below == 0:
        return None
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # ties share the mean of their ranks
    return float((ranks[positive].sum() - above * (above + 1) / 2) / (above * below))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Properties of the data.

    Attributes:
        kind: `single`, `multi` or `regression`.
        names: class names, in the order of their numbers; empty for a regression.
        counts: training rows of each class.
        pad: the padding id, if set by the options or the dataset.
        longest: number of events in the longest row of all splits, after truncation.
        highest: the highest event id.
        last: event ids at the end of rows.
        vocabulary: number of event ids, if in the dataset's manifest.
        file: the vocabulary's file, if there is one.
        rows: number of training rows.
    """

    kind: str
    names: tuple[str, ...]
    counts: tuple[int, ...]
    pad: int | None
    longest: int
    highest: int
    last: frozenset[int]
    vocabulary: int | None
    file: Path | None
    rows: int


def read(asked: Any, splits: Mapping[str, Any]) -> tuple[Facts, list[Any]]:
    """Read all data once.

    Args:
        asked: the options.
        splits: datasets by name, the training split first.

    Returns:
        The facts, and each split with the columns `input_ids`, without padding, and `labels`.

    Raises:
        UsageError: the data have problems; all in one error.
    """
    folder, train = Path(asked.dataset_name), next(iter(splits.values()))
    known = manifest.read_manifest(folder)
    column = asked.label_column or ("labels" if "labels" in train.column_names else "label")
    problems = [
        Problem(
            f"split '{split}' has no {column}; it has {', '.join(rows.column_names)}",
            "use --label_column NAME",
        )
        for split, rows in splits.items()
        if column not in rows.column_names
    ]
    if problems:
        raise usage_error(problems)
    names = asked.class_names or (known.labels if known is not None else None)
    kind, classes, values = labels_of(splits, column, names, problems)
    best = (asked.metric_for_best_model or "loss").removeprefix("eval_")
    if kind == "regression" and best != "loss":  # transformers fails after the first epoch only
        problems.append(
            Problem(
                f"--metric_for_best_model {best} is not measured of a regression",
                "use --metric_for_best_model loss",
            )
        )
    pad = padding_of(asked, known)
    scans = [scan(rows, pad, split, problems) for split, rows in splits.items()]
    if problems:
        raise usage_error(problems)
    longest = max(longest for longest, _, _ in scans)
    counts: Iterable[Any] = ()
    if kind == "single":
        counts = np.bincount(values[0], minlength=len(classes))
    elif kind == "multi":
        counts = np.sum(values[0], axis=0)
    vocabulary = folder / VOCABULARY
    facts = Facts(
        kind=kind,
        names=classes,
        counts=tuple(int(each) for each in counts),
        pad=pad,
        longest=min(longest, asked.max_events or longest),
        highest=max(highest for _, highest, _ in scans),
        last=frozenset().union(*(last for _, _, last in scans)),
        vocabulary=known.vocabulary if known is not None else None,
        file=vocabulary if vocabulary.is_file() else None,
        rows=len(train),
    )
    made = [
        rows.select_columns(_event_columns(rows))
        .add_column("labels", labels)
        .with_transform(unpadded(pad, asked.max_events))
        for rows, labels in zip(splits.values(), values, strict=True)
    ]
    return facts, made


def padding_of(asked: Any, known: manifest.DatasetManifest | None) -> int | None:
    """Return the padding id, from the options, the dataset's manifest or the model's config.json."""
    if asked.pad_token_id is not None:
        return int(asked.pad_token_id)
    said = known.settings.get("pad_token_id") if known is not None else None
    if said is None and asked.model_name_or_path is not None:
        said = (files.read_json(Path(asked.model_name_or_path) / "config.json") or {}).get(
            "pad_token_id"
        )
    return said if isinstance(said, int) else None


# -- events ----------------------------------------------------------------------------------------


def _event_columns(rows: Any) -> list[str]:
    return [name for name in ("input_ids", "attention_mask") if name in rows.column_names]


def _real(batch: Mapping[str, Any], pad: int | None) -> list[NDArray[Any]]:
    if "attention_mask" in batch:
        return [np.flatnonzero(mask) for mask in batch["attention_mask"]]
    return [np.flatnonzero(np.asarray(ids) != pad) for ids in batch["input_ids"]]


def unpadded(
    pad: int | None, most: int | None
) -> Callable[[dict[str, list[Any]]], dict[str, list[Any]]]:
    """Return a transform of batches that removes the padding, and keeps at most the last `most`
    events.
    """

    def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        found = []
        for ids, real in zip(batch["input_ids"], _real(batch, pad), strict=True):
            end = int(real[-1]) + 1
            found.append(ids[max(0, end - most) if most else 0 : end])
        kept = {"labels": batch["labels"]} if "labels" in batch else {}
        return {"input_ids": found, **kept}

    return transform


def scan(
    rows: Any, pad: int | None, split: str, problems: list[Problem]
) -> tuple[int, int, frozenset[int]]:
    """Read all events of a split, and append what is wrong with them to `problems`.

    Args:
        rows: a datasets.Dataset with `input_ids` and optionally `attention_mask`.
        pad: the padding id; without a mask, trailing ones are padding.
        split: its name, for messages.
        problems: what is wrong so far.

    Returns:
        The length of the longest row, the highest event id, the ids at the end of rows.
    """
    longest, highest, last, wrong = 0, -1, set[int](), Counter[str]()
    columns = rows.select_columns(_event_columns(rows)).with_format("numpy")
    for batch in columns.iter(1000):
        masks = batch.get("attention_mask", batch["input_ids"])
        for ids, mask, real in zip(batch["input_ids"], masks, _real(batch, pad), strict=True):
            if not len(real) or len(mask) != len(ids):
                wrong["have no events, or an attention_mask of another length"] += 1
                continue
            end = int(real[-1]) + 1
            if ("attention_mask" in batch and len(real) != end) or real[0] > 0:
                wrong["are not padded on the right"] += 1
            if ids[:end].min() < 0:
                wrong["have a negative event id"] += 1
            longest, highest = max(longest, end), max(highest, int(ids[:end].max()))
            last.add(int(ids[end - 1]))
    problems += [
        Problem(
            f"{count} of {len(rows)} rows of split '{split}' {what}",
            "store rows of events, padded on the right or not at all",
        )
        for what, count in wrong.items()
    ]
    return longest, highest, frozenset(last)


# -- labels ----------------------------------------------------------------------------------------


def labels_of(
    splits: Mapping[str, Any], column: str, names: Sequence[str] | None, problems: list[Problem]
) -> tuple[str, tuple[str, ...], list[list[Any]]]:
    """Return the kind, the class names, and the labels of each split as numbers; append what is
    wrong with them to `problems`.

    Args:
        splits: datasets by name, the training split first.
        column: the label column.
        names: class names, if set by the options or the manifest.
        problems: what is wrong so far.
    """
    raw = {split: list(rows.with_format(None)[column]) for split, rows in splits.items()}
    train = next(iter(raw.values()))
    first = next((value for value in train if value is not None), None)
    features = next(iter(splits.values())).features
    names = tuple(names or getattr(features[column], "names", None) or ())
    number: dict[Any, int] = {}
    if not isinstance(first, int | float | str | list):
        problems.append(
            Problem(
                f"labels like {first!r} are none of a class, a list of 0 and 1, and a number",
                "use --label_column NAME",
            )
        )
        return "single", (), []
    if isinstance(first, float):
        kind, names, wanted = "regression", (), "finite number, nor -100, which stands for none"
    elif isinstance(first, list):
        kind, names = "multi", names or tuple(str(place) for place in range(len(first)))
        wanted = f"list of 0 and 1 for {len(names)} classes"
    else:
        kind, present = "single", {value for value in train if value is not None}
        if isinstance(first, str):
            names = names or tuple(sorted(present))
            number = {name: place for place, name in enumerate(names)}
        else:
            names = names or tuple(str(each) for each in range(int(max(present)) + 1))
            number = {place: place for place in range(len(names))}
        wanted = f"class; the classes are {in_short(names)}"
    if len(names) == 1:
        problems.append(
            Problem(
                f"all rows have one label, {names[0]}: there is nothing to tell apart",
                "use --label_column NAME",
            )
        )
    for split, values in raw.items():
        bad = sorted({str(each) for each in values if not _fits(each, kind, names, number)})
        if bad:
            problems.append(
                Problem(
                    f"split '{split}' has labels that are no {wanted}: {in_short(bad)}",
                    "use --label_column NAME, use --class_names NAME ..., or leave these rows out",
                )
            )
    if problems:
        return kind, names, []
    if kind == "single":
        raw = {split: [number[value] for value in values] for split, values in raw.items()}
    elif kind == "multi":
        raw = {split: [[float(one) for one in each] for each in raw[split]] for split in raw}
    return kind, names, list(raw.values())


def _fits(value: Any, kind: str, names: Sequence[str], number: Mapping[Any, int]) -> bool:
    if kind == "single":
        return value in number
    if kind == "multi":
        return (
            isinstance(value, list)
            and len(value) == len(names)
            and all(one in (0, 1) for one in value)
        )
    return value is not None and math.isfinite(value) and value != -100


def lines(facts: Facts, pad: int) -> Iterator[str]:
    """Yield lines about the data for the log."""
    shown = [f"{name} {count}" for name, count in zip(facts.names, facts.counts, strict=True)]
    kinds = {"single": "classes: ", "multi": "labels, any of: ", "regression": "regression"}
    yield (f"[train] {kinds[facts.kind]}{in_short(shown)} (of {facts.rows} training rows)")
    yield f"[train] rows of at most {facts.longest} events, batches padded on the right with {pad}"
    if missing := [
        name for name, count in zip(facts.names, facts.counts, strict=True) if count == 0
    ]:
        yield (
            f"warning: no training row has the class {', '.join(missing[:5])}: it cannot be learned"
        )


def in_short(names: Iterable[object]) -> str:
    """Return class names for an error message, shortened if there are many."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")


# -- batches, model, loss ---------------------------------------------------------------------------


def collate(rows: Sequence[Mapping[str, Any]], *, pad: int) -> dict[str, torch.Tensor]:
    """Return a batch, padded on the right to the longest row: input_ids and attention_mask
    (rows, longest), labels (rows,) or (rows, classes).

    This suits decoders, which pool the last event before the padding, and encoders, which pool the
    first.
    """
    ids = [torch.tensor(row["input_ids"], dtype=torch.long) for row in rows]
    batch = {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad),
        "attention_mask": pad_sequence([torch.ones_like(each) for each in ids], batch_first=True),
    }
    if "labels" in rows[0]:
        batch["labels"] = torch.tensor([row["labels"] for row in rows])
    return batch


PROBLEM_TYPES = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}


def load(options: Any, facts: Facts) -> Any:
    """Return the model, with LoRA if requested.

    Raises:
        UsageError: the model and the data do not match; all problems in one error.
    """
    (own,), model = options.own, options.model
    config = _config(options, facts)
    # The head, or an entire model from scratch, is initialized from the seed, equally on all ranks.
    set_seed(options.training.seed)
    dtype = model.dtype if model.dtype in (None, "auto") else getattr(torch, model.dtype)
    named = {"attn_implementation": model.attn_implementation} if model.attn_implementation else {}
    try:
        if own.from_scratch:
            made = AutoModelForSequenceClassification.from_config(
                config, dtype=None if dtype == "auto" else dtype, **named
            )
        else:
            made = AutoModelForSequenceClassification.from_pretrained(
                options.weights.model, config=config, dtype=dtype, local_files_only=True, **named
            )
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"{options.weights.model} cannot be loaded as a classifier",
            details=tuple(str(error).strip().splitlines()[:4]),
            fix=f"cat {shell.quote(options.weights.model)}/config.json",
        ) from error
    adapter = options.peft_config()
    return made if adapter is None else _with_lora(made, adapter)


def _config(options: Any, facts: Facts) -> Any:
    (own,), folder = options.own, options.weights.model
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    text = config.get_text_config()
    if own.from_scratch and facts.vocabulary is not None:
        config.vocab_size = text.vocab_size = facts.vocabulary
    pad = facts.pad if facts.pad is not None else text.pad_token_id
    if problems := [
        *([] if own.from_scratch else _head_problems(config, facts, folder)),
        *_data_problems(text, pad, facts, folder),
    ]:
        raise usage_error(problems)
    if facts.names:
        config.id2label = dict(enumerate(facts.names))
        config.label2id = {name: number for number, name in enumerate(facts.names)}
    else:
        config.num_labels = 1
    config.problem_type = PROBLEM_TYPES[facts.kind]
    config.pad_token_id = text.pad_token_id = pad
    config.use_cache = text.use_cache = False
    return config


def _head_problems(config: Any, facts: Facts, folder: Any) -> Iterator[Problem]:
    if not any("SequenceClassification" in name for name in config.architectures or ()):
        return
    theirs = tuple(config.id2label[number] for number in sorted(config.id2label))
    are_named = any(name != f"LABEL_{number}" for number, name in enumerate(theirs))
    if len(theirs) != max(1, len(facts.names)) or (
        facts.names and are_named and theirs != facts.names
    ):
        is_order = sorted(theirs) == sorted(facts.names)
        yield Problem(
            f"the classes of {folder} are {in_short(theirs)}, and those of the data"
            f" {in_short(facts.names) or 'numbers'}",
            f"use --class_names {' '.join(theirs)}"
            if is_order
            else "use --model_name_or_path FOLDER of the model that it was made from",
        )


def _data_problems(text: Any, pad: int | None, facts: Facts, folder: Any) -> Iterator[Problem]:
    vocabulary, wrong = text.vocab_size, None
    if pad is None:
        wrong = (
            "neither the model's config.json nor the dataset names the padding id; without one,"
            " a batch holds only one row"
        )
    elif not 0 <= pad < vocabulary:
        wrong = f"the padding's id is {pad}, and the model knows the ids 0 to {vocabulary - 1}"
    elif pad in facts.last:
        wrong = (
            f"rows end with the event {pad}, which is the padding's id too: the event before it"
            " would be read"
        )
    if wrong:
        yield Problem(wrong, "use --pad_token_id N, an id that is not an event")
    if facts.highest >= vocabulary:
        yield Problem(
            f"the data has the event id {facts.highest}, and the model {vocabulary} ids",
            "use another model, its own tokenizer, or with --from_scratch a larger vocab_size in"
            f" {folder}/config.json",
        )
    positions = getattr(text, "max_position_embeddings", None)
    if isinstance(positions, int) and "roberta" in str(getattr(text, "model_type", "")):
        positions -= (text.pad_token_id or 0) + 1  # its position ids start after the padding id
    if isinstance(positions, int) and 0 < positions < facts.longest:
        yield Problem(
            f"the longest row has {facts.longest} events, and the model {positions} positions",
            f"use --max_events {positions}, which keeps the last ones",
        )


def _with_lora(model: Any, adapter: Any) -> Any:
    from peft import get_peft_model

    made = get_peft_model(model, adapter)
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return made


def tokenizer_of(folder: str, facts: Facts) -> Any:
    """Return the tokenizer in a model's directory, to save it with the weights; timelines have a
    vocabulary instead.
    """
    if facts.file is not None or not any(
        (Path(folder) / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")
    ):
        return None
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def loss_function(facts: Facts, *, weights: str, smoothing: float) -> Callable[..., torch.Tensor]:
    """Return Trainer's compute_loss_func: the same for all models, in float32.

    With several micro batches per step, or several processes, each row has the same weight, even if
    the last micro batches are smaller.

    Args:
        facts: properties of the data.
        weights: `none`, or `balanced`: a class with half as many rows counts twice; the mean weight
            of a training row is 1.
        smoothing: label smoothing, 0 to 1.
    """
    # A class without rows has weight 0; for multi-label data, it is that of a 1 relative to a 0.
    counts, kept = torch.tensor([max(1, each) for each in facts.counts], dtype=torch.float), None
    if weights == "balanced" and facts.kind == "multi":
        kept = (facts.rows - counts).clamp(min=1) / counts
    elif weights == "balanced":
        kept = facts.rows / (sum(each > 0 for each in facts.counts) * counts)

    def compute(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = (outputs["logits"] if isinstance(outputs, dict) else outputs[0]).float()
        weight = None if kept is None else kept.to(logits.device)
        if facts.kind == "regression":
            each = (logits.reshape(-1) - labels.reshape(-1)) ** 2
        elif facts.kind == "multi":
            target = labels * (1 - smoothing) + smoothing / 2
            each = functional.binary_cross_entropy_with_logits(
                logits, target, reduction="none", pos_weight=weight
            )
        else:
            each = functional.cross_entropy(
                logits, labels, reduction="none", label_smoothing=smoothing
            )
            each = each if weight is None else each * weight[labels]
        return each.sum() / (each.numel() if num_items_in_batch is None else num_items_in_batch)

    return compute


def first_output(logits: Any, _labels: Any) -> Any:
    """Return only the logits of a model's outputs in an evaluation."""
    return logits[0] if isinstance(logits, tuple) else logits


class SurvivorClassifierTrainer(SurvivorMixin, Trainer):  # type: ignore[misc]  # transformers is not there on the login node
    """Trainer that stops by agreement and resumes, and saves the event vocabulary with the weights.

    Args:
        vocabulary: the file, or None.
    """

    def __init__(self, *args: Any, vocabulary: Path | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self._vocabulary = vocabulary

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        folder = Path(output_dir or self.args.output_dir)
        inner = self.accelerator.unwrap_model(self.model)
        # An adapter is saved without the model's config, which has the classes.
        if hasattr(inner, "peft_config"):
            config = inner.get_base_model().config.to_json_string(use_diff=False)
            (folder / CLASSIFIER).write_text(config, encoding="utf-8")
        if self._vocabulary is not None:
            shutil.copyfile(self._vocabulary, folder / VOCABULARY)
