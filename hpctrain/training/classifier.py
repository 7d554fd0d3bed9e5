"""The model of a classifier, its loss, its batches, and the Trainer that saves and resumes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
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
    if problems := [
        *([] if own.from_scratch else _head_problems(config, facts, folder)),
        *_data_problems(text, pad, facts, folder),
    ]:
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
