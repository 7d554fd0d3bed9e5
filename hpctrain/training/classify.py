"""Training of a classifier of timelines (sequences of events) or other sequences, run by hpctrain's
job scripts.

    accelerate launch --config_file multi_gpu.yaml -m hpctrain.training.classify --config c.yaml
    torchrun --standalone --nproc_per_node 4 -m hpctrain.training.classify --dataset_name D ...
    python -m hpctrain.training.classify --help

The options are the fields of TRL's ScriptArguments, transformers' TrainingArguments, TRL's
ModelConfig, and hpctrain's own (hpctrain/training/options.py, and below). The dataset has
`input_ids` and `label` (hpctrain/training/timelines.py).

Defaults that differ from transformers', in addition to those of all trainings (docs/training.md):
    eval_strategy                epoch
    save_strategy, save_steps    as eval_strategy, eval_steps
    load_best_model_at_end       on, if there is an evaluation at each save
    metric_for_best_model        eval_loss, which exists for all kinds of labels
    logging_steps                10
    lora_task_type               SEQ_CLS: the head is trained and saved with the adapter
    ddp_find_unused_parameters   off: every weight of a classifier is used
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hpctrain.data import manifest
from hpctrain.training import entry_point, timelines
from hpctrain.training.options import Options, Task
from hpctrain.training.preflight import Problem, usage_error
from hpctrain.training.process import say
from hpctrain.training.timelines import LOWER_IS_BETTER, NAMES


@dataclass
class ClassifyArguments:
    """hpctrain's options for training a classifier of timelines."""

    from_scratch: bool = field(
        default=False,
        metadata={
            "help": "Take only config.json from the model's directory, and start from random weights."
        },
    )
    label_column: str | None = field(
        default=None, metadata={"help": "The column of the labels. Default: label, or labels."}
    )
    class_names: list[str] | None = field(
        default=None,
        metadata={
            "help": (
                "Names of the classes in the order of their numbers. Default: from the dataset."
            )
        },
    )
    class_weights: str = field(
        default="none",
        metadata={
            "help": "none, or balanced: each class counts in the loss as if all had as many rows.",
            "choices": ["none", "balanced"],
        },
    )
    pad_token_id: int | None = field(
        default=None,
        metadata={
            "help": (
                "The padding id. Default: from the dataset, else from the model's config.json."
            )
        },
    )
    max_events: int | None = field(
        default=None,
        metadata={
            "help": "Keep only the last N events of a longer row, in training and evaluation."
        },
    )
    random_truncation: float = field(
        default=0.0,
        metadata={
            "help": (
                "Cut the end of a training row at random with this probability, differently in each"
                " epoch."
            )
        },
    )
    min_events: int = field(
        default=1,
        metadata={"help": "Minimum number of events of a row that is cut at random."},
    )


_UNSET = {"bf16", "load_best_model_at_end", "save_strategy", "save_steps"}


def main(argv: list[str] | None = None) -> NoReturn:
    """Train, and end the process; see `entry_point.main`."""
    entry_point.main(TASK, argv)


def _classes() -> tuple[type, ...]:
    from transformers import TrainingArguments
    from trl import ModelConfig, ScriptArguments

    return ScriptArguments, TrainingArguments, ModelConfig, ClassifyArguments


def _problems(asked: Any) -> Iterator[Problem]:
    if not 0 <= asked.random_truncation <= 1:
        yield Problem(
            f"--random_truncation is a probability, and {asked.random_truncation:g} is none",
            "use --random_truncation 0.5",
        )
    for name in ("min_events", "max_events"):
        if (value := getattr(asked, name)) is not None and value < 1:
            yield Problem(f"--{name} must be at least 1, not {value}", f"use --{name} 1")
    if asked.use_peft and asked.from_scratch:
        yield Problem(
            "--use_peft freezes the model, and --from_scratch makes one that has learned nothing",
            "use one of the two",
        )
    if asked.load_in_4bit or asked.load_in_8bit:
        yield Problem(
            "a classifier on a quantized base is not known here",
            "leave --load_in_4bit and --load_in_8bit out",
        )


def _prepare(asked: Any, train: Any, evaluation: Any) -> tuple[Any, Any]:
    """Read all data once, and return the splits as Timelines.

    Raises:
        UsageError: the data have problems; all in one error.
    """
    from hpctrain.training.classifier import Cut, Timelines

    splits = _splits(asked, train, evaluation)
    folder = Path(asked.dataset_name)
    known = manifest.read_manifest(folder)
    names = asked.class_names or (known.labels if known is not None else None)
    labels = timelines.labels_of(splits, _label_column(asked, splits), names=names)
    pad = timelines.padding_of(asked, folder, asked.model_name_or_path)
    scans = [timelines.scan(rows, pad, name) for name, rows in splits.items()]
    problems = list(labels.problems)
    problems += [
        Problem(what, "store rows of events, padded on the right or not at all")
        for each in scans
        for what in each.problems
    ]
    if problems := problems or _metric_problems(asked, labels):
        raise usage_error(problems)
    vocabulary = folder / timelines.VOCABULARY
    longest = max(max(each.lengths) for each in scans)
    facts = timelines.Facts(
        kind=labels.kind,
        names=labels.names,
        counts=timelines.counts_of(labels),
        pad=pad,
        longest=min(longest, asked.max_events or longest),
        highest=max(each.highest for each in scans),
        last=frozenset().union(*(each.last for each in scans)),
        vocabulary=known.vocabulary if known is not None else None,
        file=vocabulary if vocabulary.is_file() else None,
        rows=len(train),
    )
    cut = Cut(
        probability=asked.random_truncation,
        least=asked.min_events,
        most=asked.max_events,
        seed=asked.seed,
    )
    made = [
        Timelines(rows, facts, each.lengths, values, how)
        for rows, each, values, how in zip(
            splits.values(), scans, labels.values, (cut, Cut(most=asked.max_events)), strict=False
        )
    ]
    return made[0], made[1] if len(made) > 1 else None


def _splits(asked: Any, train: Any, evaluation: Any) -> dict[str, Any]:
    if evaluation is None:
        return {asked.dataset_train_split: train}
    if len(evaluation) == 0:
        fix = "use --dataset_test_split NAME, or --eval_strategy no"
        raise usage_error([Problem(f"the split '{asked.dataset_test_split}' has no rows", fix)])
    name = asked.dataset_test_split
    return {
        asked.dataset_train_split: train,
        name if name != asked.dataset_train_split else "evaluation": evaluation,
    }


def _label_column(asked: Any, splits: dict[str, Any]) -> str:
    names = (asked.label_column,) if asked.label_column else timelines.LABELS
    found = [
        next((name for name in names if name in rows.column_names), "") for rows in splits.values()
    ]
    wrong = [
        Problem(
            f"split '{split}' has no {asked.label_column or 'label'}; it has"
            f" {', '.join(rows.column_names)}",
            "use --label_column NAME",
        )
        for (split, rows), column in zip(splits.items(), found, strict=True)
        if not column
    ]
    if wrong:
        raise usage_error(wrong)
    return found[0]


def _metric_problems(asked: Any, labels: Any) -> list[Problem]:
    """Return the problems of --metric_for_best_model, which transformers reports only after the
    first epoch.
    """
    if asked.metric_for_best_model is None or asked.eval_strategy == "no":
        return []
    name, known = asked.metric_for_best_model.removeprefix("eval_"), NAMES[labels.kind]
    if name not in known:
        return [
            Problem(
                f"--metric_for_best_model {name} is not measured here; {', '.join(known)} are",
                f"use --metric_for_best_model {known[-1]}",
            )
        ]
    return []


def _defaults(asked: Any, *, cpu: bool, data: Any) -> dict[str, Any]:
    del cpu, data
    evaluates, by_steps = asked.eval_strategy != "no", asked.eval_strategy == "steps"
    strategy = asked.save_strategy or (asked.eval_strategy if evaluates else "epoch")
    between = int(asked.eval_steps or asked.logging_steps) if by_steps else 500
    steps = asked.save_steps or between
    together = strategy == "best" or (
        strategy == asked.eval_strategy and (not by_steps or steps % between == 0)
    )
    metric = (asked.metric_for_best_model or "loss").removeprefix("eval_")
    return {
        "save_strategy": strategy,
        "save_steps": steps,
        "load_best_model_at_end": evaluates and together,
        "metric_for_best_model": "eval_loss" if evaluates else None,
        "greater_is_better": metric not in LOWER_IS_BETTER,
        "ddp_find_unused_parameters": False,
    }


def _trainer(options: Options, survival: Any, callbacks: list[Any]) -> Any:
    from hpctrain.training import classifier
    from hpctrain.training.classifier import Collator

    (own,), training, facts = options.own, options.training, options.train_dataset.facts
    training.label_names = ["labels"]
    training.remove_unused_columns = False  # the rows hold nothing else
    model = classifier.load(options, facts)
    pad = model.config.get_text_config().pad_token_id
    if training.process_index == 0:
        for line in _lines(options, pad):
            say(line)
    return classifier.SurvivorClassifierTrainer(
        model=model,
        args=training,
        train_dataset=options.train_dataset,
        eval_dataset=options.eval_dataset,
        data_collator=Collator(pad=pad, floats=facts.kind != "single"),
        processing_class=classifier.tokenizer_of(options.weights.model or "", facts),
        compute_loss_func=classifier.loss_function(
            facts, weights=own.class_weights, smoothing=training.label_smoothing_factor
        ),
        compute_metrics=lambda evaluated: timelines.compute_metrics(
            facts.kind, evaluated.predictions, evaluated.label_ids
        ),
        preprocess_logits_for_metrics=classifier.first_output,
        callbacks=callbacks,
        vocabulary=facts.file,
        survival=survival,
    )


def _lines(options: Options, pad: int) -> list[str]:
    (own,), facts = options.own, options.train_dataset.facts
    shown = [f"{name} {count}" for name, count in zip(facts.names, facts.counts, strict=True)]
    classes = ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
    what = {"single": "classes: ", "multi": "labels, any of: ", "regression": "regression"}[
        facts.kind
    ]
    lines = [f"[train] {what}{classes} (of {facts.rows} training rows)"]
    lines.append(
        f"[train] rows of at most {facts.longest} events, batches padded on the right with {pad}"
    )
    if own.random_truncation > 0:
        lines.append(
            f"[train] {own.random_truncation:.0%} of the training rows are cut to their beginning, of"
            f" {own.min_events} events or more"
        )
    if missing := [
        name for name, count in zip(facts.names, facts.counts, strict=True) if count == 0
    ]:
        lines.append(
            f"warning: no training row has the class {', '.join(missing[:5])}: it cannot be learned"
        )
    return lines


TASK = Task(
    name="classify",
    classes=_classes,
    parser_defaults={
        "eval_strategy": "epoch",
        "logging_steps": 10,
        "lora_task_type": "SEQ_CLS",
        **dict.fromkeys(_UNSET),
    },
    problems=_problems,
    prepare=_prepare,
    defaults=_defaults,
    trainer=_trainer,
)

if __name__ == "__main__":
    main()
