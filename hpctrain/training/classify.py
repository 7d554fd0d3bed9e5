"""Training of a classifier of timelines (sequences of events) or other sequences, run by hpctrain's
job scripts.

    accelerate launch --config_file multi_gpu.yaml -m hpctrain.training.classify --config c.yaml
    torchrun --standalone --nproc_per_node 4 -m hpctrain.training.classify --dataset_name D ...
    python -m hpctrain.training.classify --help

The options are the fields of TRL's ScriptArguments, transformers' TrainingArguments, TRL's
ModelConfig, and hpctrain's own (hpctrain/training/options.py, and below). The dataset has
`input_ids` and `label` (hpctrain/training/classifier.py).

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
from functools import partial
from typing import Any, NoReturn

from hpctrain.training import entry_point
from hpctrain.training.options import Options, Task
from hpctrain.training.preflight import Problem, usage_error
from hpctrain.training.process import say

#: Metrics in addition to `loss`; a regression has none.
METRICS = ("accuracy", "f1_macro", "auroc")


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


def main(argv: list[str] | None = None) -> NoReturn:
    """Train, and end the process; see `entry_point.main`."""
    entry_point.main(TASK, argv)


def _classes() -> tuple[type, ...]:
    from transformers import TrainingArguments
    from trl import ModelConfig, ScriptArguments

    return ScriptArguments, TrainingArguments, ModelConfig, ClassifyArguments


def _problems(asked: Any) -> Iterator[Problem]:
    if asked.max_events is not None and asked.max_events < 1:
        yield Problem(
            f"--max_events must be at least 1, not {asked.max_events}", "use --max_events 1"
        )
    known = ("loss", *METRICS)  # transformers checks after the first epoch only
    if (asked.metric_for_best_model or "loss").removeprefix("eval_") not in known:
        yield Problem(
            f"--metric_for_best_model {asked.metric_for_best_model} is not measured here;"
            f" {', '.join(known)} are",
            "use --metric_for_best_model auroc",
        )
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


def _prepare(asked: Any, train: Any, evaluation: Any) -> tuple[Any, Any, Any]:
    splits = {asked.dataset_train_split: train}
    if evaluation is not None:
        name = asked.dataset_test_split
        splits["evaluation" if name in splits else name] = evaluation
    if evaluation is not None and len(evaluation) == 0:
        raise usage_error(
            [
                Problem(
                    f"the split '{asked.dataset_test_split}' has no rows",
                    "use --dataset_test_split NAME, or --eval_strategy no",
                )
            ]
        )
    from hpctrain.training import classifier

    facts, made = classifier.read(asked, splits)
    return made[0], made[1] if len(made) > 1 else None, facts


def _defaults(asked: Any, **_: Any) -> dict[str, Any]:
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
        "greater_is_better": metric != "loss",
        "ddp_find_unused_parameters": False,
    }


def _trainer(options: Options, survival: Any, callbacks: list[Any]) -> Any:
    from hpctrain.training import classifier

    (own,), training, facts = options.own, options.training, options.facts
    training.label_names = ["labels"]
    training.remove_unused_columns = False  # the rows hold nothing else
    model = classifier.load(options, facts)
    pad = model.config.get_text_config().pad_token_id
    if training.process_index == 0:
        for line in classifier.lines(facts, pad):
            say(line)
    return classifier.SurvivorClassifierTrainer(
        model=model,
        args=training,
        train_dataset=options.train_dataset,
        eval_dataset=options.eval_dataset,
        data_collator=partial(classifier.collate, pad=pad),
        processing_class=classifier.tokenizer_of(options.weights.model or "", facts),
        compute_loss_func=classifier.loss_function(
            facts, weights=own.class_weights, smoothing=training.label_smoothing_factor
        ),
        compute_metrics=lambda evaluated: classifier.compute_metrics(
            facts.kind, evaluated.predictions, evaluated.label_ids
        ),
        preprocess_logits_for_metrics=classifier.first_output,
        callbacks=callbacks,
        vocabulary=facts.file,
        survival=survival,
    )


TASK = Task(
    name="classify",
    classes=_classes,
    parser_defaults={
        "eval_strategy": "epoch",
        "logging_steps": 10,
        "lora_task_type": "SEQ_CLS",
        **dict.fromkeys(("bf16", "load_best_model_at_end", "save_strategy", "save_steps")),
    },
    problems=_problems,
    prepare=_prepare,
    defaults=_defaults,
    trainer=_trainer,
)

if __name__ == "__main__":
    main()
