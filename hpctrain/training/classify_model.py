"""The classifier: loaded or made anew for the data's classes, and asked on which side its batches may be padded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.training import preflight
from hpctrain.training.classify_data import Facts, in_short
from hpctrain.training.classify_rows import Collator
from hpctrain.training.preflight import Problem

PROBLEM_TYPES = {"single": "single_label_classification", "multi": "multi_label_classification", "regression": "regression"}


def load(options: Any, facts: Facts) -> Any:
    """Return the model, with LoRA around it where that is asked for.

    Raises:
        UsageError: the model and the data do not go together; everything at once.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, set_seed

    (own,), model = options.own, options.model
    config = _config(options, facts)
    # The head begins at random, as all of a model from scratch does: from the seed, on all ranks alike.
    set_seed(options.training.seed)
    dtype = model.dtype if model.dtype in (None, "auto") else getattr(torch, model.dtype)
    named = {"attn_implementation": model.attn_implementation} if model.attn_implementation else {}
    try:
        if own.from_scratch:
            made = AutoModelForSequenceClassification.from_config(config, dtype=None if dtype == "auto" else dtype, **named)
        else:
            made = AutoModelForSequenceClassification.from_pretrained(
                options.weights.model, config=config, dtype=dtype, local_files_only=True, **named
            )
    except (ValueError, RuntimeError) as error:
        what = f"{options.weights.model} cannot be loaded as a classifier"
        raise UsageError(
            what, details=tuple(str(error).strip().splitlines()[:4]), fix=f"cat {shell.quote(options.weights.model)}/config.json"
        ) from error
    return _with_lora(made, options) if model.use_peft else made


def _config(options: Any, facts: Facts) -> Any:
    """Return the model's configuration for the data.

    Raises:
        UsageError: they do not go together.
    """
    from transformers import AutoConfig

    (own,), folder = options.own, options.weights.model
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    text = config.get_text_config()
    if own.from_scratch and facts.vocabulary is not None:
        config.vocab_size = text.vocab_size = facts.vocabulary
    pad = facts.pad if facts.pad is not None else text.pad_token_id
    problems = _head_problems(config, facts, folder, from_scratch=own.from_scratch)
    problems += _pad_problems(pad, text.vocab_size, facts) + _row_problems(text, facts, folder, from_scratch=own.from_scratch)
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


def _head_problems(config: Any, facts: Facts, folder: Any, *, from_scratch: bool) -> list[Problem]:
    """Return what is wrong where the model is a classifier already: its head stands for its own classes, in their order."""
    if from_scratch or not any("SequenceClassification" in name for name in config.architectures or ()):
        return []
    theirs = tuple(config.id2label[number] for number in sorted(config.id2label))
    base = "--model_name_or_path FOLDER of the model that it was made from"
    if len(theirs) != facts.outputs:
        return [Problem(f"the classifier in {folder} has {len(theirs)} classes, and the data {facts.outputs}", base)]
    named = facts.names and any(name != f"LABEL_{number}" for number, name in enumerate(theirs))
    if named and theirs != facts.names:
        what = f"the classes of {folder} are {in_short(theirs)}, and those of the data {in_short(facts.names)}"
        fix = f"--class_names {' '.join(theirs)}" if sorted(theirs) == sorted(facts.names) else base
        return [Problem(what, fix)]
    return []


def _pad_problems(pad: int | None, vocabulary: int, facts: Facts) -> list[Problem]:
    fix = "--pad_token_id N, an id that is no event"
    if pad is None:
        what = "neither the model's config.json nor the dataset says which id pads: without, a batch holds one row only"
        return [Problem(what, fix)]
    if not 0 <= pad < vocabulary:
        return [Problem(f"the padding's id is {pad}, and the model knows the ids 0 to {vocabulary - 1}", fix)]
    if pad in facts.last:
        return [Problem(f"rows end with the event {pad}, which is the padding's id too: the event before it would be read", fix)]
    return []


def _row_problems(text: Any, facts: Facts, folder: Any, *, from_scratch: bool) -> list[Problem]:
    problems = []
    if facts.highest >= text.vocab_size:
        fix = f"set vocab_size in {folder}/config.json to {facts.highest + 1}" if from_scratch else "another model, or its own tokenizer"
        problems.append(Problem(f"the data has the event id {facts.highest}, and the model {text.vocab_size} ids", fix))
    positions = getattr(text, "max_position_embeddings", None)
    if isinstance(positions, int) and "roberta" in str(getattr(text, "model_type", "")):
        positions -= (text.pad_token_id or 0) + 1  # its positions begin behind the padding's id
    if isinstance(positions, int) and 0 < positions < facts.longest:
        what = f"the longest row has {facts.longest} events, and the model {positions} positions"
        problems.append(Problem(what, f"--max_events {positions}, which keeps the last ones"))
    return problems


def _with_lora(model: Any, options: Any) -> Any:
    """Return the model frozen, with an adapter and a head that are trained in float32, as what is trained should be."""
    from peft import get_peft_model
    from trl import get_peft_config

    made = get_peft_model(model, get_peft_config(options.model))
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return made


# -- padding -----------------------------------------------------------------------------------------------------------


def takes_positions(model: Any) -> bool:
    """Say whether a model can be told the position of each event."""
    import inspect

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "position_ids" in inspect.signature(inner.forward).parameters


def padding_side(model: Any, *, pad: int, vocabulary: int) -> str:
    """Return the side on which batches may be padded: `left` if the model can bear it, else `right`.

    It is tried: two rows of different length, alone and in one batch, have to give the same. A decoder is read at its last event that is
    no padding, wherever that stands. BERT and its kind are read at the first column, which padding on the left would be.

    Raises:
        HpctrainError: neither side gives what the rows alone give.
    """
    import torch

    ids = [number for number in range(vocabulary) if number != pad]
    rows = [
        {"input_ids": [ids[(7 * place + 1) % len(ids)] for place in range(6)]},
        {"input_ids": [ids[3 * place % len(ids)] for place in (2, 0, 1)]},
    ]
    training, device = model.training, next(model.parameters()).device
    dtype = next(model.parameters()).dtype

    def logits(batch: dict[str, Any]) -> Any:
        # What is trained beside a frozen base in bfloat16 is float32: as in the training, autocast goes between them.
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            return model(**{name: value.to(device) for name, value in batch.items()}).logits.float()

    try:
        model.eval()
        with torch.no_grad():
            positions = takes_positions(model)
            alone = torch.cat([logits(_collator(pad, "right")([row])) for row in rows])
            scale = float((alone[0] - alone[1]).abs().max())
            off = {side: float((logits(_collator(pad, side, positions)(rows)) - alone).abs().max()) for side in ("left", "right")}
    finally:
        model.train(training)
    bound = scale * (1e-3 if dtype == torch.float32 else 0.2)
    found = next((side for side in ("left", "right") if off[side] < bound), None)
    if found is None:
        raise HpctrainError(
            f"{type(model).__name__} gives another answer for a row in a batch than for the row alone, whichever side is padded",
            details=(f"logits differ by {off['left']:.3g} (left) and {off['right']:.3g} (right); those of two rows by {scale:.3g}",),
            fix="--per_device_train_batch_size 1 --pad_token_id N with another id, or another model",
        )
    return found


def _collator(pad: int, side: str, positions: bool = False) -> Collator:
    return Collator(pad=pad, side=side, positions=positions, floats=False)


def tokenizer_of(folder: str, facts: Facts) -> Any:
    """Return the tokenizer that lies in a model's folder, to be saved with what is trained; timelines have a vocabulary instead."""
    if facts.file is not None or not any((Path(folder) / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)
