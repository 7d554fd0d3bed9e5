"""Silent traps: what the libraries do without a word, as errors before a training begins and warnings when it does.

The rules lie in traps_asked.py (options, config.json, columns), traps_rows.py (the data), and here (the Trainer that was built).
`problems_of_asked` and `problems_of_rows` come before anything is loaded, `check` after the Trainer is built, before its first step.
docs/training.md has all of them as a table.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpctrain.training import kernels, prepared, traps_asked, traps_rows
from hpctrain.training.preflight import Problem, columns, json_object, split_folders, text_config
from hpctrain.training.row_facts import RowFacts, look

#: Layers that carry a state from token to token, by config.json's layer_types; they need kernels of their own to forget it.
_STATEFUL = {"linear_attention", "mamba", "mamba2", "conv", "recurrent"}
_UNTRAINED = 1e-6
"""No value of a trained embedding is this small in all of its places."""


def asked_facts(asked: Any) -> traps_asked.Asked:
    """Return what the rules of options look at; reads config.json and the dataset's description, imports torch."""
    dataset, model = asked.dataset_name, asked.model_name_or_path
    parts = (split_folders(Path(dataset)) if dataset else None) or {}
    part = parts.get(asked.dataset_train_split, parts.get(""))
    return traps_asked.Asked(
        options=asked,
        config=(json_object(Path(model) / "config.json") if model else None) or {},
        columns=tuple(columns(part)) if part is not None else ("input_ids",),
        manifest=prepared.read(dataset),
        here=kernels.machine(cpu=bool(asked.use_cpu)),
        world=int(os.environ.get("WORLD_SIZE") or 1),
        sharding=os.environ.get("HPCTRAIN_SHARDING", ""),
    )


def problems_of_asked(facts: traps_asked.Asked) -> list[Problem]:
    """Return what keeps the training from beginning, of all that is known before anything is loaded."""
    found = traps_asked.apply(traps_asked.ERRORS, facts)
    return found + (prepared.problems(facts.options, facts.manifest) if facts.manifest is not None else [])


def problems_of_rows(asked: Any, dataset: Any) -> list[Problem]:
    """Return what keeps the training from beginning, of the rows of a split."""
    return traps_rows.apply(traps_rows.ERRORS, _rows(asked, dataset))


def _rows(asked: Any, dataset: Any) -> traps_rows.Rows:
    names = tuple(dataset.column_names)
    given = asked.completion_only_loss
    only = "completion_mask" in names and "labels" not in names if given is None else bool(given)
    model = asked.model_name_or_path
    return traps_rows.Rows(
        options=asked,
        facts=look(dataset, completion_only=only),
        columns=names,
        vocabulary=prepared.vocabulary_of(model),
        eos=_ends(model),
        prepared=prepared.read(asked.dataset_name) is not None,
    )


def _ends(model: str | None) -> frozenset[int]:
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        content = (json_object(Path(model) / name) if model else None) or {}
        ids = text_config(content).get("eos_token_id")
        found |= {each for each in (ids if isinstance(ids, list) else [ids]) if isinstance(each, int)}
    return frozenset(found)


# -- after the Trainer is built ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A Trainer that was built, with what was asked for, and what its rows are like."""

    trainer: Any
    options: Any
    rows: traps_rows.Rows

    @property
    def facts(self) -> RowFacts:
        """The facts of the rows."""
        return self.rows.facts

    @property
    def inner(self) -> Any:
        """The model without LoRA's wrapping."""
        model = self.trainer.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model


Rule = Callable[[Built], Problem | None]


def eager_by_accident(built: Built) -> Problem | None:
    """A matrix of length x length for each head, which nobody asked for."""
    if kernels.attention_of(built.trainer) != "eager" or built.options.attn_implementation == "eager":
        return None
    return Problem("the model computes attention eagerly, and nobody asked for it", "--attn_implementation sdpa (or eager, knowingly)")


def nothing_trainable(built: Built) -> Problem | None:
    """LoRA's target modules match nothing that gets gradients."""
    if any(parameter.requires_grad for parameter in built.trainer.model.parameters()):
        return None
    return Problem("no parameter of the model is trained", "--lora_target_modules all-linear")


def packed_nothing(built: Built) -> Problem | None:
    """Packing was asked for and no row was packed."""
    args = built.trainer.args
    if args.packing and args.packing_strategy != "wrapped" and "seq_lengths" not in built.trainer.train_dataset.column_names:
        return Problem("--packing true has packed nothing", "hpctrain prepare --pack ...")
    return None


def pad_beyond(built: Built) -> Problem | None:
    """A pad token that was added to the tokenizer alone: an index error at the first batch that is padded."""
    pad, rows = getattr(built.trainer.processing_class, "pad_token_id", None), _embedding_rows(built)
    if pad is None or rows is None or pad < rows or built.trainer.padding_free:
        return None
    return Problem(
        f"the pad token's id is {pad}, and the model's embedding ends at {rows - 1}", "set the tokenizer's pad_token to a token it had"
    )


def not_apart(built: Built) -> Problem | None:
    """A model that takes no position_ids cannot know where an example ends."""
    if not getattr(built.trainer, "padding_free", False):
        return None
    named = inspect.signature(type(built.inner).forward).parameters
    if "position_ids" in named:
        return None
    what = f"{type(built.inner).__name__} takes no position_ids: examples in one row would see each other"
    return Problem(what, "--packing false --padding_free false, with a dataset that is not packed")


def state_carried(built: Built) -> Problem | None:
    """Mamba and its like carry a state over the end of an example, unless their kernels are installed."""
    config = built.trainer.model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ()) & _STATEFUL
    if getattr(built.trainer, "padding_free", False) and layers:
        what = f"layers of the kind {', '.join(sorted(layers))} may carry their state from one packed example to the next"
        return Problem(what, "--packing false, or install causal-conv1d and flash-linear-attention, which heed seq_idx")
    return None


def foreign_code(built: Built) -> Problem | None:
    """Code that came with the model makes its own masks."""
    if getattr(built.trainer, "padding_free", False) and not type(built.inner).__module__.startswith("transformers."):
        return Problem("nobody knows whether this model's own code keeps packed examples apart", "--packing false --padding_free false")
    return None


def tokenizer_larger(built: Built) -> Problem | None:
    """Tokens that the tokenizer can make and the model cannot read."""
    rows = _embedding_rows(built)
    tokenizer = built.trainer.processing_class
    if rows is None or not hasattr(tokenizer, "__len__") or len(tokenizer) <= rows:
        return None
    what = f"the tokenizer has {len(tokenizer)} tokens and the model's embedding {rows} rows: the last ones are an index error"
    return Problem(what, "model.resize_token_embeddings(len(tokenizer)) and save both, or the model's own tokenizer")


def untrained_tokens(built: Built) -> Problem | None:
    """Chat tokens of a base model: there, never trained, and LoRA leaves them as they are."""
    import torch

    embedding = built.inner.get_input_embeddings()
    weight: Any = getattr(embedding, "weight", None)
    special = set(getattr(built.trainer.processing_class, "added_tokens_decoder", ())) & built.facts.used
    plain = isinstance(weight, torch.Tensor) and type(weight.data) is torch.Tensor and not weight.is_meta and weight.ndim == 2
    if not plain or not special or any(parameter.requires_grad for parameter in embedding.parameters()):
        return None
    ids = sorted(each for each in special if each < weight.shape[0])
    found = [number for number in ids if float(weight[number].abs().max()) < _UNTRAINED]
    seen: dict[bytes, int] = {}
    for number in ids:
        key = weight[number].detach().float().cpu().numpy().tobytes()
        found += [seen[key], number] if key in seen else []
        seen.setdefault(key, number)
    if not found:
        return None
    names = ", ".join(built.trainer.processing_class.convert_ids_to_tokens(sorted(set(found)))[:3])
    what = f"the embeddings of {names} look untrained (zero, or equal), the data uses them, and LoRA does not train embeddings"
    return Problem(what, "--lora_modules_to_save embed_tokens lm_head, or start from the chat model")


def rows_dropped(built: Built) -> Problem | None:
    """TRL leaves out rows in which max_length leaves nothing to train on."""
    before, after = len(built.options.train_dataset), len(built.trainer.train_dataset)
    if built.trainer.args.packing or after >= before:
        return None
    return Problem(f"{before - after} of {before} rows are left out: cut at max_length, nothing to train on is left", "--max_length (more)")


def less_than_a_step(built: Built) -> Problem | None:
    """So few (packed) rows that not every process has one in the first step."""
    args, rows = built.trainer.args, len(built.trainer.train_dataset)
    step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    if rows >= step:
        return None
    return Problem(
        f"an epoch has {rows} rows, and a step takes {step}", "--per_device_train_batch_size or --gradient_accumulation_steps (less)"
    )


def _embedding_rows(built: Built) -> int | None:
    return getattr(built.trainer.model.config.get_text_config(), "vocab_size", None)


ERRORS: tuple[Rule, ...] = (eager_by_accident, nothing_trainable, packed_nothing, pad_beyond, not_apart)
WARNINGS: tuple[Rule, ...] = (state_carried, foreign_code, tokenizer_larger, untrained_tokens, rows_dropped, less_than_a_step)


def check(trainer: Any, options: Any) -> tuple[list[Problem], list[Problem]]:
    """Return what is wrong with a Trainer that was built, and what a person should know before its first step.

    Args:
        trainer: an SFTTrainer.
        options: hpctrain.training.options.Options.

    Returns:
        Problems, with which it must not train; warnings.
    """
    asked = everything(options)
    facts, rows = asked_facts(asked), _rows(asked, options.train_dataset)
    built = Built(trainer=trainer, options=SimpleNamespace(**vars(asked), train_dataset=options.train_dataset), rows=rows)
    wrong = [found for rule in ERRORS if (found := rule(built)) is not None]
    warned = traps_asked.apply(traps_asked.WARNINGS, facts) + traps_rows.apply(traps_rows.WARNINGS, rows)
    return wrong, warned + [found for rule in WARNINGS if (found := rule(built)) is not None]


def everything(options: Any) -> SimpleNamespace:
    """Return all options of a training in one namespace, as they are after the defaults."""
    found: dict[str, Any] = {}
    for part in (options.script, options.model, options.training):
        found |= vars(part)
    return SimpleNamespace(**found)
