"""The Trainer of a classifier, with its loss, metrics and data, and a variant that saves and
resumes.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    set_seed,
)

from hpctrain.errors import UsageError
from hpctrain.training import preflight
from hpctrain.training.merge import CLASSIFIER
from hpctrain.training.preflight import Problem
from hpctrain.training.survival.trainer import SurvivorMixin
from hpctrain.training.timelines import VOCABULARY, Facts, in_short
from hpctrain.util import shell


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How rows are truncated.

    Attributes:
        probability: probability of truncating a row to a beginning of random length.
        least: fewest events to keep.
        most: keep at most this many events of any row, the last ones, after the random truncation;
            None for no limit.
        seed: seed of the random lengths.
    """

    probability: float = 0.0
    least: int = 1
    most: int | None = None
    seed: int = 0

    def of(self, length: int, row: int, epoch: int) -> tuple[int, int]:
        """Return start and end of the events to keep, in a row of `length` events."""
        end = length
        if self.probability > 0:
            draw = random.Random(f"{self.seed}:{epoch}:{row}")  # noqa: S311 - not a secret
            if draw.random() < self.probability:
                end = draw.randint(min(self.least, length), length)
        return (0 if self.most is None else max(0, end - self.most)), end


class Timelines(Dataset):  # type: ignore[misc]  # torch is not there on the login node
    """A split with items `{"input_ids": [...], "labels": ...}`, without padding.

    Args:
        rows: the datasets.Dataset.
        facts: properties of the data (hpctrain/training/timelines.py).
        lengths: events of each row, without its padding.
        targets: labels of each row, as numbers.
        cut: the truncation.
    """

    def __init__(
        self, rows: Any, facts: Any, lengths: Sequence[int], targets: Sequence[Any], cut: Cut
    ) -> None:
        self.rows, self.facts, self.cut = rows, facts, cut
        self._lengths, self.targets = lengths, targets
        self._ids = rows.select_columns(["input_ids"]).with_format(None)
        # Persistent workers have a copy of this object, but share this value.
        self._epoch = torch.zeros(1, dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins."""
        self._epoch[0] = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        epoch = int(self._epoch[0])
        found = []
        for row, ids in zip(rows, self._ids[list(rows)]["input_ids"], strict=True):
            begin, end = self.cut.of(self._lengths[row], row, epoch)
            found.append({"input_ids": ids[begin:end], "labels": self.targets[row]})
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Collator:
    """Collates rows into a batch, padded on the right to the longest row. This suits decoders,
    which pool the last event before the padding, and encoders, which pool the first.

    Attributes:
        pad: the id of the padding.
        floats: labels are floating-point values, not classes.
    """

    pad: int
    floats: bool

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return input_ids and attention_mask (rows, longest), labels (rows,) or (rows, classes)."""
        ids = [torch.tensor(row["input_ids"], dtype=torch.long) for row in rows]
        batch = {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad),
            "attention_mask": pad_sequence(
                [torch.ones_like(each) for each in ids], batch_first=True
            ),
        }
        if "labels" in rows[0]:
            batch["labels"] = torch.tensor(
                [row["labels"] for row in rows], dtype=torch.float if self.floats else torch.long
            )
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
        what = f"{options.weights.model} cannot be loaded as a classifier"
        raise UsageError(
            what,
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
    problems = [] if own.from_scratch else list(_head_problems(config, facts, folder))
    problems += _data_problems(text, pad, facts, folder, from_scratch=own.from_scratch)
    if problems:
        raise preflight.usage_error(problems)
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
    base = "use --model_name_or_path FOLDER of the model that it was made from"
    are_named = any(name != f"LABEL_{number}" for number, name in enumerate(theirs))
    if len(theirs) != facts.outputs:
        counts = f"{len(theirs)} classes, and the data {facts.outputs}"
        yield Problem(f"the classifier in {folder} has {counts}", base)
    elif facts.names and are_named and theirs != facts.names:
        what = (
            f"the classes of {folder} are {in_short(theirs)}, and those of the data"
            f" {in_short(facts.names)}"
        )
        is_order = sorted(theirs) == sorted(facts.names)
        yield Problem(what, f"use --class_names {' '.join(theirs)}" if is_order else base)


def _data_problems(
    text: Any, pad: int | None, facts: Facts, folder: Any, *, from_scratch: bool
) -> Iterator[Problem]:
    other_pad, vocabulary = "use --pad_token_id N, an id that is not an event", text.vocab_size
    if pad is None:
        what = (
            "neither the model's config.json nor the dataset names the padding id; without one,"
            " a batch holds only one row"
        )
        yield Problem(what, other_pad)
    elif not 0 <= pad < vocabulary:
        known = f"the model knows the ids 0 to {vocabulary - 1}"
        yield Problem(f"the padding's id is {pad}, and {known}", other_pad)
    elif pad in facts.last:
        what = (
            f"rows end with the event {pad}, which is the padding's id too: the event before it"
            " would be read"
        )
        yield Problem(what, other_pad)
    if facts.highest >= vocabulary:
        grow = f"set vocab_size in {folder}/config.json to {facts.highest + 1}"
        yield Problem(
            f"the data has the event id {facts.highest}, and the model {vocabulary} ids",
            grow if from_scratch else "use another model, or its own tokenizer",
        )
    positions = getattr(text, "max_position_embeddings", None)
    if isinstance(positions, int) and "roberta" in str(getattr(text, "model_type", "")):
        positions -= (text.pad_token_id or 0) + 1  # its position ids start after the padding id
    if isinstance(positions, int) and 0 < positions < facts.longest:
        what = f"the longest row has {facts.longest} events, and the model {positions} positions"
        yield Problem(what, f"use --max_events {positions}, which keeps the last ones")


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
    kept = _weights(facts) if weights == "balanced" else None

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


def _weights(facts: Facts) -> torch.Tensor:
    """Return a weight for each class; for multi-label data, the weight of a 1 relative to a 0.

    A class without rows has weight 0.
    """
    counts = torch.tensor([max(1, count) for count in facts.counts], dtype=torch.float)
    if facts.kind == "multi":
        return (facts.rows - counts).clamp(min=1) / counts
    present = sum(count > 0 for count in facts.counts)
    return facts.rows / (present * counts)


def first_output(logits: Any, _labels: Any) -> Any:
    """Return only the logits of a model's outputs in an evaluation."""
    return logits[0] if isinstance(logits, tuple) else logits


class SurvivorClassifierTrainer(SurvivorMixin, Trainer):  # type: ignore[misc]  # transformers is not there on the login node
    """Trainer that stops by agreement and resumes, passes the epoch to the dataset, and saves the
    event vocabulary with the weights.

    Args:
        vocabulary: the file, or None.
    """

    def __init__(self, *args: Any, vocabulary: Path | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self._vocabulary = vocabulary

    def _run_epoch(self, **named: Any) -> Any:
        self.train_dataset.set_epoch(named["epoch"])
        return super()._run_epoch(**named)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        inner = self.accelerator.unwrap_model(self.model)
        if hasattr(
            inner, "peft_config"
        ):  # an adapter is saved without the model's config, which has the classes
            config = inner.get_base_model().config.to_json_string(use_diff=False)
            (Path(output_dir or self.args.output_dir) / CLASSIFIER).write_text(
                config, encoding="utf-8"
            )
        if self._vocabulary is not None:
            shutil.copyfile(self._vocabulary, Path(output_dir or self.args.output_dir) / VOCABULARY)
