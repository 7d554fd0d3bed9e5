"""Silent traps that the options, config.json and the dataset's columns show, before anything is loaded.

A rule takes `Asked` and returns a Problem or None. ERRORS keep a training from beginning; WARNINGS are said and the training goes on.
Pure. docs/training.md has the same rules as a table: symptom, what is said, fix.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpctrain.preparation.manifest import Manifest
from hpctrain.training.kernels import Machine
from hpctrain.training.preflight import Problem, text_config
from hpctrain.training.prepared import asked_length

#: Options that the libraries had once, and what says the same now. transformers 5.23, trl 1.16.
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
#: Columns that look like a mask and are not read by SFTTrainer.
_MASKS = {"attention_mask", "completion_mask", "assistant_masks"}
DEFAULT_LEARNING_RATE = 2e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is known before anything is loaded.

    Attributes:
        options: every option, by attribute.
        config: the model's config.json.
        columns: of the training split.
        manifest: of a dataset that `hpctrain prepare` made.
        here: what the process can compute with.
        world: number of processes.
        sharding: the job's.
    """

    options: Any
    config: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ("input_ids",)
    manifest: Manifest | None = None
    here: Machine = field(default_factory=lambda: Machine(gpu=False))
    world: int = 1
    sharding: str = ""

    @property
    def skips(self) -> bool:
        """SFTTrainer is told to leave the dataset as it is."""
        asked = self.options.dataset_kwargs
        try:
            found = json.loads(asked) if isinstance(asked, str) else asked
        except ValueError:
            return False
        return bool((found or {}).get("skip_prepare_dataset"))

    @property
    def text(self) -> Mapping[str, Any]:
        """The part of config.json about text."""
        return text_config(self.config)


Rule = Callable[[Asked], Problem | None]

# -- packing, padding, length ------------------------------------------------------------------------------------------


def packing_skipped(asked: Asked) -> Problem | None:
    """TRL packs while it prepares; told not to prepare, it packs nothing, and says nothing."""
    if asked.options.packing and asked.skips:
        return Problem("--packing true packs nothing with skip_prepare_dataset", "leave --dataset_kwargs out, or: hpctrain prepare --pack")
    return None


def packing_twice(asked: Asked) -> Problem | None:
    """TRL drops seq_lengths when it packs, so that the examples of a row would see each other."""
    if asked.options.packing and asked.manifest is None and "seq_lengths" in asked.columns:
        return Problem(
            "--packing true, and the dataset is packed already (seq_lengths): rows would be taken for examples", "--packing false"
        )
    return None


def length_skipped(asked: Asked) -> Problem | None:
    """TRL cuts while it prepares."""
    if asked.skips and asked_length(asked.options) is not None:
        what = f"--max_length {asked.options.max_length} cuts nothing with skip_prepare_dataset"
        return Problem(what, "leave --dataset_kwargs out, or --max_length")
    return None


def length_padding_free(asked: Asked) -> Problem | None:
    """TRL does not cut in this mode, and refuses it when the model is already loaded."""
    opt = asked.options
    if opt.padding_free and not opt.packing and asked_length(opt) is not None and not (asked.manifest and asked.manifest.packed):
        what = f"--padding_free true cuts nothing, and --max_length {opt.max_length} was asked for"
        return Problem(what, "hpctrain prepare --max-length N, and leave --max_length out; or --packing true")
    return None


def packed_apart(asked: Asked) -> Problem | None:
    """Rows with seq_lengths, padded: no kernel would keep their examples apart."""
    if "seq_lengths" in asked.columns and asked.options.padding_free is False:
        return Problem(
            "the dataset is packed (seq_lengths), and --padding_free false lets its examples see each other", "--padding_free true"
        )
    return None


def beyond_positions(asked: Asked) -> Problem | None:
    """Positions that the model never saw: nonsense, or an index error on the GPU."""
    most = asked.text.get("max_position_embeddings") or asked.text.get("n_positions")
    split = asked.manifest.splits.get(asked.options.dataset_train_split) if asked.manifest is not None else None
    longest = asked_length(asked.options)
    if split is not None and not (asked.manifest and asked.manifest.packed):
        longest = min(longest or split.longest, split.longest)
    elif asked.options.packing or split is not None:
        return None  # positions begin anew with each example
    if isinstance(most, int) and longest is not None and longest > most:
        what = f"rows of up to {longest} tokens, and the model has positions for {most} (max_position_embeddings)"
        return Problem(what, f"--max_length {most}, or raise max_position_embeddings in its config.json (with rope_scaling) knowingly")
    return None


def wrapped_packing(asked: Asked) -> Problem | None:
    """The one strategy whose examples see each other."""
    if asked.options.packing and asked.options.packing_strategy == "wrapped":
        return Problem("--packing_strategy wrapped lets the examples of a row see each other, and cuts them", "--packing_strategy bfd")
    return None


# -- what is trained on ------------------------------------------------------------------------------------------------


def mask_off(asked: Asked) -> Problem | None:
    """completion_only_loss false: the mask is there, and all is trained on."""
    if "completion_mask" in asked.columns and "labels" not in asked.columns and asked.options.completion_only_loss is False:
        what = "the dataset has a completion_mask, and --completion_only_loss false trains on the prompts too"
        return Problem(what, "leave --completion_only_loss out")
    return None


def mask_missing(asked: Asked) -> Problem | None:
    """completion_only_loss true without anything to go by: TRL trains on all, without a word."""
    if asked.options.completion_only_loss and not {"completion_mask", "labels"} & set(asked.columns):
        what = "--completion_only_loss true, and the dataset has neither labels nor a completion_mask: all of it would be trained on"
        return Problem(what, "hpctrain prepare --loss-on completion ...")
    return None


def mask_under_labels(asked: Asked) -> Problem | None:
    """Labels win over every mask, without a word."""
    masks = {"completion_mask", "assistant_masks"} & set(asked.columns)
    if masks and "labels" in asked.columns:
        what = f"the dataset has labels, so that its {' and '.join(sorted(masks))} {'is' if len(masks) == 1 else 'are'} not looked at"
        return Problem(what, f"dataset.remove_columns('{min(masks)}'), or remove labels")
    return None


def mask_unknown(asked: Asked) -> Problem | None:
    """A mask by another name than TRL's is dropped with the other columns."""
    found = sorted(name for name in asked.columns if "mask" in name.lower() and name not in _MASKS)
    if found and "labels" not in asked.columns:
        right = "assistant_masks" if "assist" in found[0] else "completion_mask"
        return Problem(
            f"the column {found[0]} is not looked at: SFTTrainer reads {right}", f"dataset.rename_column('{found[0]}', '{right}')"
        )
    return None


def assistant_tokenised(asked: Asked) -> Problem | None:
    """TRL masks by the chat template while it tokenises; of tokens it cannot."""
    if asked.options.assistant_only_loss and asked.manifest is None:
        what = "--assistant_only_loss true needs conversations, and the dataset is tokenised"
        return Problem(what, "hpctrain prepare --loss-on assistant ..., and leave --assistant_only_loss out")
    return None


# -- precision, memory, weights ----------------------------------------------------------------------------------------


def float32_base(asked: Asked) -> Problem | None:
    """A frozen base in float32 takes twice the memory and learns nothing for it."""
    opt = asked.options
    if opt.use_peft and asked.here.gpu and opt.bf16 and opt.dtype == "float32":
        return Problem("LoRA's frozen base is loaded in float32: twice the memory, and nothing is learned from it", "leave --dtype out")
    return None


def half_weights(asked: Asked) -> Problem | None:
    """Trained weights in 16 bits: small updates round to nothing."""
    opt = asked.options
    stored = str(asked.config.get("dtype") or asked.config.get("torch_dtype") or "bfloat16")
    dtype = str(stored if opt.dtype == "auto" else opt.dtype)
    if not opt.use_peft and dtype in {"bfloat16", "float16"}:
        return Problem(
            f"all weights are trained in {dtype}: an update below 1/256 of a weight is lost", "leave --dtype out: float32, with bf16"
        )
    return None


def quantized(asked: Asked) -> Problem | None:
    """What QLoRA needs, before a model of many gigabytes is read."""
    opt = asked.options
    word = "--load_in_4bit" if opt.load_in_4bit else "--load_in_8bit"
    if not (opt.load_in_4bit or opt.load_in_8bit):
        return None
    if opt.load_in_4bit and opt.load_in_8bit:
        return Problem("--load_in_4bit and --load_in_8bit exclude each other", "leave one of them out")
    if "bitsandbytes" not in asked.here.installed:
        return Problem(f"{word} needs bitsandbytes, which is not installed", "pip install bitsandbytes")
    if not opt.use_peft:
        return Problem(f"{word} freezes the weights, and nothing else is there to train", "--use_peft true")
    if asked.sharding == "fsdp" and opt.load_in_4bit and opt.bnb_4bit_quant_storage not in {None, "bfloat16", "float16", "float32"}:
        what = f"FSDP cannot divide weights kept as {opt.bnb_4bit_quant_storage}"
        return Problem(what, "leave --bnb_4bit_quant_storage out")
    return None


def without_peft(asked: Asked) -> Problem | None:
    """LoRA without its library."""
    if asked.options.use_peft and "peft" not in asked.here.installed:
        return Problem("--use_peft needs peft, which is not installed", "pip install peft")
    return None


def learning_rate_of_full(asked: Asked) -> Problem | None:
    """TRL's default is for full weights; adapters hardly move with it."""
    if asked.options.use_peft and asked.options.learning_rate == DEFAULT_LEARNING_RATE:
        what = f"LoRA with a learning rate of {DEFAULT_LEARNING_RATE:g}, which is TRL's default for full weights"
        return Problem(what, "--learning_rate 2e-4")
    return None


def hub_kernels(asked: Asked) -> Problem | None:
    """Kernels of the hub are code that nobody here has read, and need a network."""
    given = asked.options.model_init_kwargs
    if "use_kernels" in (given or ()):
        return Problem("model_init_kwargs use_kernels fetches kernels from the hub", "--use_liger_kernel true, with liger-kernel installed")
    return None


# -- the course of it --------------------------------------------------------------------------------------------------


def batch_size_alone(asked: Asked) -> Problem | None:
    """Each rank would shrink its own batch, without telling the others."""
    if asked.options.auto_find_batch_size and asked.world > 1:
        what = "--auto_find_batch_size shrinks the batch of each process by itself: they would wait for each other"
        return Problem(what, "hpctrain fit, and --per_device_train_batch_size N")
    return None


def half_twice(asked: Asked) -> Problem | None:
    """The libraries say it too, after everything was loaded, and without a fix."""
    if asked.options.fp16 and asked.options.bf16:
        return Problem("--fp16 true and --bf16 true exclude each other", "leave --fp16 out")
    return None


def tokens_per_rank(asked: Asked) -> Problem | None:
    """Averaged per rank, a token of a rank with few of them counts more."""
    if asked.options.average_tokens_across_devices is False and asked.world > 1:
        what = "--average_tokens_across_devices false: tokens of a rank with few trained ones count more than others"
        return Problem(what, "leave --average_tokens_across_devices out")
    return None


def nan_hidden(asked: Asked) -> Problem | None:
    """A NaN is logged as a loss of 0.0 by transformers."""
    if asked.options.logging_nan_inf_filter:
        return Problem("--logging_nan_inf_filter true logs a loss that is NaN as 0.0", "leave --logging_nan_inf_filter out")
    return None


def never_evaluated(asked: Asked) -> Problem | None:
    """eval_steps without a strategy evaluates never."""
    if asked.options.eval_steps is not None and str(getattr(asked.options.eval_strategy, "value", asked.options.eval_strategy)) == "no":
        return Problem(f"--eval_steps {asked.options.eval_steps:g} evaluates nothing: eval_strategy is no", "--eval_strategy steps")
    return None


ERRORS: tuple[Rule, ...] = (
    packing_skipped, packing_twice, length_skipped, length_padding_free, packed_apart, beyond_positions, mask_missing,
    assistant_tokenised, quantized, without_peft, hub_kernels, half_twice, batch_size_alone,
)  # fmt: skip
WARNINGS: tuple[Rule, ...] = (
    wrapped_packing, mask_off, mask_under_labels, mask_unknown, float32_base, half_weights, learning_rate_of_full, tokens_per_rank,
    nan_hidden, never_evaluated,
)  # fmt: skip


def apply(rules: tuple[Rule, ...], asked: Asked) -> list[Problem]:
    """Return what the rules find."""
    return [found for rule in rules if (found := rule(asked)) is not None]
