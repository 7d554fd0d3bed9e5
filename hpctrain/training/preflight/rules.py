"""Silent pitfalls of the libraries, reported as errors before a training begins or as warnings when
it does; docs/training.md lists all of them. Immediate failures are left to the libraries. And the
defaults that depend on the dataset and the machine.

`option_problems` and `row_problems` run before anything is loaded, `check_trainer` between building
the Trainer and its first step.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpctrain.data import manifest as manifests
from hpctrain.fit.training_options import rows_unasked
from hpctrain.training.preflight import (
    Problem,
    columns,
    is_default,
    split_folders,
    text_config,
    usage_error,
)
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


# -- the machine -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The compute capabilities of this process.

    Attributes:
        gpu: it trains on a GPU.
        capability: CUDA compute capability; None on other GPUs and on the CPU.
        flash: flash-attn 2 is installed.
    """

    gpu: bool
    capability: tuple[int, int] | None = None
    flash: bool = False

    @property
    def bf16(self) -> bool:
        """Whether it has kernels for bfloat16; AMD GPUs are not checked."""
        return self.gpu and (self.capability is None or self.capability >= (8, 0))


def machine(*, cpu: bool) -> Machine:
    """Return the capabilities of this process; imports torch."""
    if cpu:
        return Machine(gpu=False)
    import torch

    flash = importlib.util.find_spec("flash_attn") is not None
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Machine(gpu=True, flash=flash)
    # Not device 0, on which every rank would allocate memory.
    own = int(os.environ.get("LOCAL_RANK") or 0)
    capability = torch.cuda.get_device_capability(own if own < torch.cuda.device_count() else 0)
    return Machine(gpu=True, capability=capability, flash=flash)


def choose(here: Machine, config: Mapping[str, Any], *, apart: bool, half: bool) -> str | None:
    """Return the default attention implementation of a training; None leaves it to transformers.

    Args:
        here: the capabilities of the process.
        config: the model's config.json; imports transformers.
        apart: several examples are in one row (packing, padding-free) and must not attend to each
            other. sdpa then computes the full (rows x length) squared matrix with a mask; flash and
            flex skip what is masked.
        half: attention is computed in bfloat16 or float16, which flash requires.
    """
    import transformers

    names, text = config.get("architectures"), text_config(config)
    model = getattr(transformers, str(names[0]), None) if names else None
    # For these models, transformers downloads another kernel from the hub instead (gpt-oss).
    own = getattr(model, "_compatible_flash_implementations", None)
    has_flash = getattr(model, "_supports_flash_attn", False) and own is None
    small_heads = (text.get("head_dim") or 0) <= 256
    if here.flash and here.bf16 and half and has_flash and small_heads:
        return "flash_attention_2"
    # sdpa does not cap scores, as some models do.
    needs_flex = apart or text.get("attn_logit_softcapping") is not None
    if here.gpu and needs_flex and getattr(model, "_supports_flex_attn", False):
        return "flex_attention"
    return None


def attention_of(trainer: Any) -> str:
    """Return the attention implementation of a Trainer's model, as transformers names it."""
    config = trainer.model.config.get_text_config()
    return str(getattr(config, "_attn_implementation", None) or "unknown")


def half(args: Any) -> bool:
    """Return whether attention is computed in 16 bits, by autocast or because of the weights'
    dtype.
    """
    dtype = str(getattr(args, "dtype", None) or "")
    return bool(args.bf16 or args.fp16) or dtype.removeprefix("torch.") in {"bfloat16", "float16"}


# -- the options -----------------------------------------------------------------------------------


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
    manifest: manifests.DatasetManifest | None = None
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
        here=machine(cpu=bool(asked.use_cpu)),
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
    theirs = manifests.tokenizer_fingerprint(Path(model)) if model else None
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


def read_manifest(dataset: str | None) -> manifests.DatasetManifest | None:
    """Return the manifest of a dataset's directory; None if `hpctrain prepare` did not create it."""
    return manifests.read_manifest(Path(dataset)) if dataset else None


def prepared_defaults(manifest: manifests.DatasetManifest) -> dict[str, Any]:
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
        raise usage_error(
            [
                Problem(
                    f"{inner.__name__} takes no position_ids: examples in one row would attend to"
                    " each other",
                    "use --packing false --padding_free false, with a dataset that is not packed",
                )
            ]
        )
    asked = SimpleNamespace(**vars(options.script) | vars(options.model) | vars(options.training))
    return [
        *option_warnings(option_facts(asked)),
        *row_warnings(asked, row_facts(asked, options.train_dataset)),
    ]
