"""Silent pitfalls of the libraries, reported as errors before a training begins or as warnings when
it does; docs/training.md lists all of them. Immediate failures are left to the libraries.

`option_problems` and `row_problems` run before anything is loaded, `check_trainer` between building
the Trainer and its first step.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpctrain.data.manifest import DatasetManifest, tokenizer_fingerprint
from hpctrain.training.preflight import (
    Problem,
    columns,
    is_default,
    kernels,
    split_folders,
    text_config,
    usage_error,
)
from hpctrain.training.preflight.dataset_facts import RowFacts, read_manifest, row_facts
from hpctrain.training.preflight.kernels import Machine
from hpctrain.util import files

#: Options that were removed from the libraries, and their replacements. transformers 5.23, trl
#: 1.16.
REMOVED: Mapping[str, str] = {
    "warmup_ratio": "--warmup_steps 0.1 (below 1 it is a ratio)",
    "overwrite_output_dir": "leave it out: a run directory is never overwritten",
    "evaluation_strategy": "--eval_strategy",
    "logging_dir": "--report_to tensorboard writes into the run directory",
    "no_cuda": "--use_cpu",
    "group_by_length": "--train_sampling_strategy group_by_length",
    "include_tokens_per_second": "leave it out: the log has tokens/s",
    "max_seq_length": "--max_length",
    "dataset_batch_size": "leave it out",
    "save_safetensors": "leave it out: weights are always saved as safetensors",
    "fp16_backend": "--fp16",
    "half_precision_backend": "--fp16 or --bf16",
    "use_mps_device": "leave it out",
    "include_inputs_for_metrics": "--include_for_metrics inputs",
    "ray_scope": "hpctrain tune",
    "push_to_hub_token": "--hub_token",
    "jit_mode_eval": "--torch_compile",
    "use_ipex": "leave it out",
    "tokenizer": "the tokenizer is read from --model_name_or_path",
    "torch_dtype": "--dtype",
}
DEFAULT_LEARNING_RATE = 2e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionFacts:
    """Facts that are known before anything is loaded.

    Attributes:
        options: all options, as attributes.
        config: the model's config.json.
        columns: the training split's columns.
        manifest: of a dataset created by `hpctrain prepare`.
        here: the process's compute capabilities.
        world: number of processes.
        sharding: the job's sharding.
    """

    options: Any
    config: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ("input_ids",)
    manifest: DatasetManifest | None = None
    here: Machine = field(default_factory=lambda: Machine(gpu=False))
    world: int = 1
    sharding: str = ""


def option_facts(asked: Any) -> OptionFacts:
    """Return the facts for the option rules; reads config.json and the dataset's metadata, imports
    torch.
    """
    dataset, model = asked.dataset_name, asked.model_name_or_path
    parts = (split_folders(Path(dataset)) if dataset else None) or {}
    part = parts.get(asked.dataset_train_split, parts.get(""))
    return OptionFacts(
        options=asked,
        config=(files.read_json(Path(model) / "config.json") if model else None) or {},
        columns=tuple(columns(part)) if part is not None else ("input_ids",),
        manifest=read_manifest(dataset),
        here=kernels.machine(cpu=bool(asked.use_cpu)),
        world=int(os.environ.get("WORLD_SIZE") or 1),
        sharding=os.environ.get("HPCTRAIN_SHARDING", ""),
    )


def option_problems(facts: OptionFacts) -> Iterator[Problem]:
    """Yield problems that prevent the training from starting, before anything is loaded."""
    opt, manifest = facts.options, facts.manifest
    if opt.auto_find_batch_size and facts.world > 1:
        yield Problem(
            "--auto_find_batch_size shrinks the batch of each process on its own: they would wait"
            " for each other",
            "use --per_device_train_batch_size N; hpctrain fit says which",
        )
    if opt.completion_only_loss and not {"completion_mask", "labels"} & set(facts.columns):
        yield Problem(
            "--completion_only_loss true, and the dataset has neither labels nor a completion_mask:"
            " all of it would be trained on",
            "run: hpctrain prepare --loss-on completion ...",
        )
    yield from _length_problems(facts)
    if manifest is None:
        return
    name, model = opt.dataset_name, opt.model_name_or_path
    if opt.completion_only_loss and manifest.loss_on != "completion":
        yield Problem(
            f"--completion_only_loss true does nothing: the dataset '{name}' says itself which"
            f" tokens are trained on ({manifest.loss_on})",
            "run: hpctrain prepare --loss-on completion ...",
        )
    if manifest.form == "classes":
        yield Problem(f"the dataset '{name}' has classes, not text to learn", "use --task classify")
    theirs = tokenizer_fingerprint(Path(model)) if model else None
    if theirs is not None and theirs != manifest.tokenizer:
        yield Problem(
            f"the dataset '{name}' was prepared with another tokenizer ({manifest.tokenizer_name})"
            f" than that of the model '{model}': its token ids mean something else there",
            f"run: hpctrain prepare --model {model} ...",
        )


def _length_problems(facts: OptionFacts) -> Iterator[Problem]:
    opt, manifest = facts.options, facts.manifest
    length = None if is_default(opt.max_length) else int(opt.max_length)
    split = manifest.splits.get(opt.dataset_train_split) if manifest is not None else None
    if "seq_lengths" in facts.columns or (manifest and manifest.packed):
        if opt.packing:  # TRL drops seq_lengths when it packs
            yield Problem(
                "--packing true, and the dataset is packed already: its rows would be taken for"
                " examples",
                "use --packing false",
            )
        if opt.padding_free is False:
            yield Problem(
                "the dataset is packed, and --padding_free false lets its examples attend to each"
                " other",
                "use --padding_free true",
            )
        if length is not None and split is not None and length < split.longest:
            yield Problem(
                f"--max_length {length}, and rows of the dataset '{opt.dataset_name}' are packed"
                f" to {split.longest} tokens: cut, they lose examples",
                "leave --max_length out, or run: hpctrain prepare --max-length N",
            )
        return  # in packed rows, positions restart with each example
    config = text_config(facts.config)
    positions = config.get("max_position_embeddings") or config.get("n_positions")
    longest = None if opt.packing else length
    if split is not None:
        longest = min(length or split.longest, split.longest)
    if longest is not None and isinstance(positions, int) and longest > positions:
        yield Problem(  # nonsense, or an index error on the GPU
            f"rows of up to {longest} tokens, and the model has positions for {positions}"
            " (max_position_embeddings)",
            f"use --max_length {positions}, or raise max_position_embeddings in its config.json"
            " (with rope_scaling) knowingly",
        )


def option_warnings(facts: OptionFacts) -> Iterator[Problem]:
    """Yield warnings about the options."""
    opt = facts.options
    dtype = str(opt.dtype)
    if dtype == "auto":
        dtype = str(facts.config.get("dtype") or facts.config.get("torch_dtype") or "bfloat16")
    if not opt.use_peft and dtype in {"bfloat16", "float16"}:
        yield Problem(
            f"all weights are trained in {dtype}: an update below 1/256 of a weight is lost",
            "leave --dtype out: float32, with bf16",
        )
    if opt.use_peft and opt.learning_rate == DEFAULT_LEARNING_RATE:
        yield Problem(
            f"LoRA with a learning rate of {DEFAULT_LEARNING_RATE:g}, which is TRL's default for"
            " full weights",
            "use --learning_rate 2e-4",
        )


# -- the rows --------------------------------------------------------------------------------------

#: A smaller fraction of unmasked tokens is more likely a wrong mask than intended.
FEW = 0.01


def row_problems(facts: RowFacts) -> Iterator[Problem]:
    """Yield problems in a split's rows that prevent the training from starting."""
    if facts.tokens and facts.trained == 0:  # the loss would be 0 / 0, or 0
        yield Problem(
            f"no token of {facts.sampled} rows is trained on: all labels are -100",
            "run: hpctrain prepare --show 3 ...",
        )
    if facts.vocabulary is not None and facts.highest >= facts.vocabulary:
        yield Problem(  # otherwise an index error on the GPU without details
            f"the dataset has the token id {facts.highest}, and the model's embedding ends at"
            f" {facts.vocabulary - 1}",
            "tokenize with the model's own tokenizer: hpctrain prepare --model FOLDER ...",
        )
    if facts.padded:
        yield Problem(
            f"{facts.padded / facts.tokens:.0%} of the tokens are padding that would be trained on:"
            " the dataset's attention_mask is not read",
            "save the rows without padding, or with labels of -100 there",
        )


def row_warnings(opt: Any, facts: RowFacts) -> Iterator[Problem]:
    """Yield warnings about the rows."""
    most, lengths = opt.max_length, facts.lengths
    many = int((lengths > most).sum()) if most is not None else 0
    if many and (not opt.packing or opt.packing_strategy == "bfd"):
        beyond = int((lengths[lengths > most] - most).sum())
        yield Problem(
            f"{many} of {len(lengths)} rows are longer than max_length {most} and are cut:"
            f" {beyond / int(lengths.sum()):.1%} of all tokens",
            f"use --max_length {int(lengths.max())}",
        )
    share = facts.trained / max(facts.tokens, 1)
    if 0 < share < FEW:
        yield Problem(
            f"only {share:.2%} of the tokens are trained on",
            "look at the mask: hpctrain prepare --show 3 ...",
        )
    ends = facts.eos & facts.used
    if ends and facts.trained and not ends & facts.trained_ids:
        yield Problem(
            "the end of an answer (eos) is in the rows and never trained on: the model will not"
            " learn to stop",
            "do not mask the pad token by its id where it is eos too; hpctrain prepare keeps"
            " the end",
        )
    if facts.eos and not ends and not facts.prepared:
        yield Problem(
            f"none of {facts.sampled} rows has the end of an answer (eos): the model will not"
            " learn to stop",
            "add tokenizer.eos_token to each answer; hpctrain prepare does",
        )


# -- after the Trainer is built --------------------------------------------------------------------


def check_trainer(trainer: Any, options: Any) -> list[Problem]:
    """Return warnings about an SFTTrainer before its first step.

    Raises:
        UsageError: the training would be wrong.
    """
    model = trainer.model
    inner = type(model.get_base_model() if hasattr(model, "get_base_model") else model)
    if trainer.padding_free and "position_ids" not in inspect.signature(inner.forward).parameters:
        problem = Problem(
            f"{inner.__name__} takes no position_ids: examples in one row would attend to each"
            " other",
            "use --packing false --padding_free false, with a dataset that is not packed",
        )
        raise usage_error([problem])
    asked = SimpleNamespace(**vars(options.script) | vars(options.model) | vars(options.training))
    rows = row_facts(asked, options.train_dataset)
    return [*option_warnings(option_facts(asked)), *row_warnings(asked, rows)]
