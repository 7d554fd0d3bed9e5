"""Training a classifier of timelines (rows of events) or of other sequences, as hpctrain's job scripts run it.

    accelerate launch --config_file multi_gpu.yaml -m hpctrain.training.classify --config classify.yaml
    torchrun --standalone --nproc_per_node 4 -m hpctrain.training.classify --model_name_or_path M --dataset_name D
    python -m hpctrain.training.classify --help

The options are the fields of TRL's ScriptArguments, transformers' TrainingArguments, TRL's ModelConfig, and our own
(hpctrain/training/arguments.py, classify_arguments.py). The dataset has `input_ids` and `label` (hpctrain/training/classify_data.py).

Defaults that differ from transformers', besides those of all trainings (hpctrain/training/rails.py):
    eval_strategy           epoch
    save_strategy           as eval_strategy; with --eval_strategy steps, save_steps is eval_steps
    load_best_model_at_end  on, where something is evaluated at each save: the final weights are the best ones
    metric_for_best_model   eval_loss, which has a value for all kinds of labels and for each evaluation; --metric_for_best_model auroc
    logging_steps           10
    lora_task_type          SEQ_CLS: the head is trained and saved beside the adapter
    ddp_find_unused_parameters   off: every weight of a classifier is used
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from hpctrain.preparation import manifest
from hpctrain.training import rails
from hpctrain.training.classify_arguments import ClassifyArguments
from hpctrain.training.classify_metrics import LOWER_IS_BETTER, NAMES
from hpctrain.training.options import Options
from hpctrain.training.preflight import Problem, model_needs, usage_error
from hpctrain.training.starting import weights_to_start_from
from hpctrain.training.task import Task

_UNSET = {"bf16", "load_best_model_at_end", "save_strategy", "save_steps"}


def main(argv: list[str] | None = None) -> NoReturn:
    """Train, and end the process; see `rails.main`."""
    rails.main(TASK, argv)


def _classes() -> tuple[type, ...]:
    from transformers import TrainingArguments
    from trl import ModelConfig, ScriptArguments

    return ScriptArguments, TrainingArguments, ModelConfig, ClassifyArguments


def _model_needs(asked: Any) -> frozenset[str]:
    return model_needs("classify", from_scratch=asked.from_scratch)


def _problems(asked: Any) -> list[Problem]:
    found = []
    if not 0 <= asked.random_truncation <= 1:
        found.append(Problem(f"--random_truncation is a probability, and {asked.random_truncation:g} is none", "--random_truncation 0.5"))
    found += [
        Problem(f"--{name} must be at least 1, not {value}", f"--{name} 1")
        for name in ("min_events", "max_events")
        if (value := getattr(asked, name)) is not None and value < 1
    ]
    if not 0 <= asked.label_smoothing_factor < 1:
        what = f"--label_smoothing_factor must be at least 0 and below 1, not {asked.label_smoothing_factor:g}"
        found.append(Problem(what, "--label_smoothing_factor 0.1"))
    if asked.use_peft and asked.from_scratch:
        found.append(Problem("--use_peft freezes the model, and --from_scratch makes one that has learned nothing", "one of the two"))
    if asked.use_peft and asked.lora_task_type != "SEQ_CLS":
        found.append(Problem(f"--lora_task_type {asked.lora_task_type} is not that of a classifier", "leave it out: it is SEQ_CLS"))
    if asked.load_in_4bit or asked.load_in_8bit:
        found.append(Problem("a classifier on a quantised base is not known here", "leave --load_in_4bit and --load_in_8bit out"))
    return found


def _prepare(asked: Any, train: Any, evaluation: Any) -> tuple[Any, Any]:
    """Read all of the data once, and return the splits as Timelines.

    Raises:
        UsageError: with everything that is wrong with the data.
    """
    from hpctrain.training import classify_data
    from hpctrain.training.classify_rows import Timelines

    splits = _splits(asked, train, evaluation)
    folder = Path(asked.dataset_name)
    known = manifest.read(folder)
    names = asked.class_names or (known.labels if known is not None else None)
    labels = classify_data.labels_of(splits, _label_column(asked, splits), names=names)
    pad = classify_data.padding_of(asked, folder, weights_to_start_from(asked)[0].model)
    scans = [classify_data.scan(rows, pad, name) for name, rows in splits.items()]
    problems = list(labels.problems)
    problems += [Problem(what, "rows of events, padded on the right or not at all") for each in scans for what in each.problems]
    if problems := problems or _metric_problems(asked, labels):
        raise usage_error(problems)
    vocabulary = folder / classify_data.VOCABULARY
    longest = max(int(each.lengths.max()) for each in scans)
    facts = classify_data.Facts(
        kind=labels.kind, names=labels.names, counts=classify_data.counts_of(labels), pad=pad,
        longest=min(longest, asked.max_events or longest), highest=max(each.highest for each in scans),
        last=frozenset().union(*(each.last for each in scans)), vocabulary=known.vocabulary if known is not None else None,
        file=vocabulary if vocabulary.is_file() else None, rows=len(train),
    )  # fmt: skip
    made = [
        Timelines(rows, facts, each.lengths.tolist(), values, cut)
        for rows, each, values, cut in zip(splits.values(), scans, labels.values, _cuts(asked), strict=False)
    ]
    return made[0], made[1] if len(made) > 1 else None


def _splits(asked: Any, train: Any, evaluation: Any) -> dict[str, Any]:
    """Return the splits by name, the training split first; the two may be the same one."""
    if evaluation is None:
        return {asked.dataset_train_split: train}
    if len(evaluation) == 0:
        fix = "--dataset_test_split NAME, or --eval_strategy no"
        raise usage_error([Problem(f"the split '{asked.dataset_test_split}' has no rows", fix)])
    name = asked.dataset_test_split
    return {asked.dataset_train_split: train, name if name != asked.dataset_train_split else "evaluation": evaluation}


def _cuts(asked: Any) -> tuple[Any, Any]:
    """Return what stays of the rows in training, and in evaluation."""
    from hpctrain.training.classify_rows import Cut

    window = asked.truncation_keeps == "window"
    cut = Cut(probability=asked.random_truncation, least=asked.min_events, window=window, most=asked.max_events, seed=asked.seed)
    return cut, Cut(most=asked.max_events)


def _label_column(asked: Any, splits: dict[str, Any]) -> str:
    from hpctrain.training import classify_data

    found = {split: classify_data.column_of(rows, asked.label_column) for split, rows in splits.items()}
    wrong = [
        Problem(
            f"split '{split}' has no {asked.label_column or 'label'}; it has {', '.join(splits[split].column_names)}", "--label_column NAME"
        )
        for split, column in found.items()
        if column is None
    ]
    if wrong:
        raise usage_error(wrong)
    return str(next(iter(found.values())))


def _metric_problems(asked: Any, labels: Any) -> list[Problem]:
    """Return what is wrong with --metric_for_best_model, of which transformers complains after the first epoch."""
    if asked.metric_for_best_model is None or asked.eval_strategy == "no":
        return []
    name, known = asked.metric_for_best_model.removeprefix("eval_"), NAMES[labels.kind]
    if name not in known:
        return [
            Problem(f"--metric_for_best_model {name} is not measured here; {', '.join(known)} are", f"--metric_for_best_model {known[-1]}")
        ]
    if name == "auroc" and len({str(value) for value in labels.values[-1]}) < 2:
        return [Problem("AUROC has no value: all rows of the evaluation have one label", "--metric_for_best_model loss")]
    return []


def _defaults(asked: Any, *, cpu: bool, data: Any) -> dict[str, Any]:
    """Return our defaults for what was not asked for; the module's docstring lists them."""
    del cpu, data
    evaluates, by_steps = asked.eval_strategy != "no", asked.eval_strategy == "steps"
    strategy = asked.save_strategy or (asked.eval_strategy if evaluates else "epoch")
    between = int(asked.eval_steps or asked.logging_steps) if by_steps else 500
    steps = asked.save_steps or between
    together = strategy == "best" or (strategy == asked.eval_strategy and (not by_steps or steps % between == 0))
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
    from hpctrain.training import classify_model, classify_trainer
    from hpctrain.training.classify_rows import Collator

    (own,), training, facts = options.own, options.training, options.train_dataset.facts
    training.label_names = ["labels"]
    training.remove_unused_columns = False  # the rows hold nothing else
    model = classify_model.load(options, facts)
    pad, vocabulary = (getattr(model.config.get_text_config(), name) for name in ("pad_token_id", "vocab_size"))
    side = classify_model.padding_side(model, pad=pad, vocabulary=vocabulary)
    return classify_trainer.SurvivorClassifierTrainer(
        model=model,
        args=training,
        train_dataset=options.train_dataset,
        eval_dataset=options.eval_dataset,
        data_collator=Collator(pad=pad, side=side, positions=classify_model.takes_positions(model), floats=facts.kind != "single"),
        processing_class=classify_model.tokenizer_of(options.weights.model or "", facts),
        compute_loss_func=classify_trainer.loss_function(facts, weights=own.class_weights, smoothing=training.label_smoothing_factor),
        compute_metrics=classify_trainer.metrics_function(facts),
        preprocess_logits_for_metrics=classify_trainer.first_output,
        callbacks=[classify_trainer.Notes(_lines(options, side, pad)), *callbacks],
        vocabulary=facts.file,
        survival=survival,
    )


def _lines(options: Options, side: str, pad: int) -> list[str]:
    """Return what the log says of the data."""
    from hpctrain.training.classify_data import like_classes

    (own,), facts = options.own, options.train_dataset.facts
    shown = [f"{name} {count}" for name, count in zip(facts.names, facts.counts, strict=True)]
    classes = ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
    what = {"single": "classes: ", "multi": "labels, any of: ", "regression": "regression"}[facts.kind]
    lines = [f"[train] {what}{classes} (of {facts.rows} training rows)"]
    lines.append(f"[train] rows of at most {facts.longest} events, batches padded on the {side} with {pad}")
    if own.random_truncation > 0:
        where = "their beginning" if own.truncation_keeps == "start" else "a window"
        lines.append(f"[train] {own.random_truncation:.0%} of the training rows are cut to {where}, of {own.min_events} events or more")
    if missing := [name for name, count in zip(facts.names, facts.counts, strict=True) if count == 0]:
        lines.append(f"warning: no training row has the class {', '.join(missing[:5])}: it cannot be learned")
    if facts.kind == "regression" and (numbers := like_classes(options.train_dataset.targets)):
        lines.append(f"warning: the labels are numbers with a fraction, and all are whole: {', '.join(map(str, numbers))}")
        lines.append("fix: for classes, store them as whole numbers or words; a regression is what this trains")
    return lines


TASK = Task(
    module="hpctrain.training.classify",
    classes=_classes,
    parser_defaults={"eval_strategy": "epoch", "logging_steps": 10, "lora_task_type": "SEQ_CLS", **dict.fromkeys(_UNSET)},
    problems=_problems,
    prepare=_prepare,
    defaults=_defaults,
    trainer=_trainer,
    model_needs=_model_needs,
)

if __name__ == "__main__":
    main()
