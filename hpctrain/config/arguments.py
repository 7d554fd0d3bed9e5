"""The training script's arguments, interpreted as its parser would; values that only the parser can
determine stay unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hpctrain.config.spec import JobSpec
from hpctrain.util.secrets import looks_secret
from hpctrain.util.shell import options_of
from hpctrain.util.yaml12 import Plain, to_json_value

#: The value of an option without one, such as `--bf16`.
FLAG = "true"


class Arguments:
    """The options for `fit`, each as text; several values of one are joined by spaces."""

    def __init__(self, spec: JobSpec) -> None:
        self._values = {
            name: FLAG if value is True else value if isinstance(value, str) else " ".join(value)
            for name, value in options_of(spec.arguments).items()
        }
        #: Further options are in a file, which is not read here.
        self.incomplete = "config" in self._values
        #: hpctrain's own training runs, so the meaning of the arguments is known.
        self.ours = spec.script is None
        #: It is the SFT training.
        self.sft = self.ours and spec.task == "sft"

    def get(self, *names: str) -> str | None:
        """Return the value of the first of these options that is set."""
        return next((self._values[name] for name in names if name in self._values), None)

    def says(self, name: str) -> bool | None:
        """Return an option as a boolean; None if it is not set."""
        value = self._values.get(name)
        return None if value is None else value.lower() in {"true", "1", "yes", "y", "t", "on"}

    @property
    def names(self) -> tuple[str, ...]:
        """The options that are set."""
        return tuple(self._values)


def argument_words(values: Iterable[tuple[str, Any]]) -> list[str]:
    """Return `--key value` words as HfArgumentParser reads them: lists as several words, mappings
    as JSON; null omits the key.
    """
    words: list[str] = []
    for key, value in values:
        if value is None:
            continue
        words.append(f"--{key}")
        if isinstance(value, list):
            words.extend(word(item) for item in value)
        else:
            words.append(word(value))
    return words


def word(value: Any) -> str:
    """Return one value as one word: lists and mappings as JSON."""
    if isinstance(value, dict | list):
        return json.dumps(to_json_value(value), ensure_ascii=False)
    # YAML's spellings of booleans, in the form that every argument parser accepts.
    if isinstance(value, Plain) and value in ("True", "TRUE", "False", "FALSE"):
        return value.lower()
    return str(value)


def is_secret(key: str, value: Any) -> bool:
    """Whether a value, or one inside it, looks like a secret."""
    if isinstance(value, list):
        return any(is_secret(key, item) for item in value)
    if isinstance(value, dict):
        return any(is_secret(str(name), item) for name, item in value.items())
    return value is not None and looks_secret(key, str(value))


#: The versions that the table describes; others may accept more.
MADE_WITH = {"trl": "1.16", "transformers": "5.23"}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: The options of each type; options with fixed values are in _CHOICES.
_KINDS = {
    "int": _words("""
        data_seed dataloader_num_workers dataloader_prefetch_factor dataset_num_proc ddp_bucket_cap_mb ddp_timeout
        early_stopping_patience eval_accumulation_steps gradient_accumulation_steps local_rank lora_alpha lora_r max_events
        max_length max_steps memory_every pad_token_id per_device_eval_batch_size per_device_train_batch_size
        save_total_limit seed speed_every torch_empty_cache_steps
        """),  # noqa: E501
    "float": _words("""
        adam_beta1 adam_beta2 adam_epsilon early_stopping_threshold eval_delay eval_steps label_smoothing_factor learning_rate
        logging_steps lora_dropout max_grad_norm neftune_noise_alpha num_train_epochs router_aux_loss_coef
        save_steps warmup_steps weight_decay
        """),  # noqa: E501
    "bool": _words("""
        activation_checkpointing activation_offloading assistant_only_loss auto_find_batch_size average_tokens_across_devices
        batch_eval_metrics bf16 bf16_full_eval completion_only_loss dataloader_drop_last dataloader_in_order
        dataloader_persistent_workers dataloader_pin_memory dataset_streaming ddp_broadcast_buffers ddp_find_unused_parameters
        ddp_static_graph disable_tqdm do_eval do_predict do_train enable_jit_checkpoint eval_do_concat_batches eval_on_start
        eval_packing eval_use_gather_object evaluate_only fp16 fp16_full_eval from_scratch full_determinism
        gradient_checkpointing greater_is_better hub_always_push hub_private_repo ignore_bias_buffers ignore_data_skip
        include_num_input_tokens_seen load_best_model_at_end load_in_4bit load_in_8bit log_on_each_node logging_first_step
        logging_nan_inf_filter packing padding_free prediction_loss_only push_to_hub remove_unused_columns
        restore_callback_states_from_checkpoint resume_with_missing_state resume_with_other_data resume_with_other_world_size
        save_on_each_node save_only_model shuffle_dataset skip_memory_metrics stop_on_nan tf32
        torch_compile trust_remote_code use_bnb_nested_quant use_cache use_cpu use_dora use_liger_kernel use_peft use_rslora
        """),  # noqa: E501
    "alone": _words("""
        help no_average_tokens_across_devices no_dataloader_in_order no_dataloader_pin_memory no_eval_do_concat_batches
        no_gradient_checkpointing no_log_on_each_node no_logging_nan_inf_filter no_remove_unused_columns no_skip_memory_metrics
        no_stop_on_nan
        """),  # noqa: E501
    "other": _words("""
        accelerator_config activation_checkpointing_kwargs bnb_4bit_quant_storage chat_template_path class_names config
        dataset_config dataset_kwargs dataset_name dataset_test_split dataset_text_field dataset_train_split debug deepspeed
        eos_token fsdp fsdp_config gradient_checkpointing_kwargs hub_model_id hub_revision hub_token include_for_metrics
        init_from label_column label_names length_column_name liger_kernel_config lora_modules_to_save lora_target_modules
        lora_target_parameters lora_task_type lr_scheduler_kwargs metric_for_best_model model_init_kwargs model_name_or_path
        model_revision optim_args optim_target_modules output_dir pad_to_multiple_of pad_token parallelism_config project
        report_to resume_from_checkpoint run_name torch_compile_backend torch_compile_mode trackio_bucket_id trackio_space_id
        trackio_static_space_id trial
        """),  # noqa: E501
}
#: Options with fixed values.
_CHOICES = {
    "attn_implementation": "flash_attention_3 flash_attention_2 flex_attention sdpa eager",
    "bnb_4bit_quant_type": "fp4 nf4",
    "class_weights": "none balanced",
    "dataloader_multiprocessing_context": "fork spawn forkserver",
    "ddp_backend": "nccl gloo mpi xccl hccl cncl mccl",
    "dtype": "auto bfloat16 float16 float32",
    "eval_strategy": "no steps epoch",
    "logging_strategy": "no steps epoch",
    "hub_strategy": "end every_save checkpoint all_checkpoints",
    "log_level": "detail debug info warning error critical passive",
    "log_level_replica": "detail debug info warning error critical passive",
    "loss_type": "nll dft chunked_nll",
    "lr_scheduler_type": (
        """
        linear cosine cosine_with_restarts polynomial constant constant_with_warmup inverse_sqrt reduce_lr_on_plateau
        cosine_with_min_lr cosine_warmup_with_min_lr warmup_stable_decay greedy
    """
    ),
    "optim": (
        """
        adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adafactor adamw_anyprecision adamw_torch_4bit
        adamw_torch_8bit ademamix sgd adagrad adamw_bnb_8bit adamw_8bit ademamix_8bit lion_8bit lion_32bit paged_adamw_32bit
        paged_adamw_8bit paged_ademamix_32bit paged_ademamix_8bit paged_lion_32bit paged_lion_8bit rmsprop rmsprop_bnb
        rmsprop_bnb_8bit rmsprop_bnb_32bit galore_adamw galore_adamw_8bit galore_adafactor galore_adamw_layerwise
        galore_adamw_8bit_layerwise galore_adafactor_layerwise lomo adalomo grokadamw schedule_free_radam schedule_free_adamw
        schedule_free_sgd apollo_adamw apollo_adamw_layerwise stable_adamw
    """  # noqa: E501
    ),
    "packing_strategy": "bfd bfd_split wrapped",
    "save_strategy": "no steps epoch best",
    "train_sampling_strategy": "random sequential group_by_length batch_rebalance",
    "truncation_mode": "keep_end keep_start",
}
#: Options of only one task.
_ONLY = {
    "sft": _words("""
        activation_offloading assistant_only_loss chat_template_path completion_only_loss dataset_kwargs dataset_num_proc
        dataset_text_field eos_token eval_packing loss_type max_length model_init_kwargs no_gradient_checkpointing packing
        packing_strategy pad_to_multiple_of pad_token padding_free router_aux_loss_coef shuffle_dataset truncation_mode
        trust_remote_code
        """),  # noqa: E501
    "classify": _words("""
        class_names class_weights from_scratch label_column max_events pad_token_id
        """),
}
_TRUTH = _words("yes true t y 1 no false f n 0")  # string_to_bool of transformers' HfArgumentParser
#: Options and values that need a package outside hpctrain[train] → its module, and the argument for
#: pip (flash 3 is on no index). Source: transformers 5.23, trainer_optimizer.py;
#: hpctrain.training.preflight.rules and trackers.
_NEEDS = {
    ("attn_implementation", "flash_attention_2"): ("flash_attn", "flash-attn --no-build-isolation"),
    ("attn_implementation", "flash_attention_3"): ("flash_attn_interface", ""),
    ("use_liger_kernel", "true"): ("liger_kernel", "liger-kernel"),
    ("load_in_4bit", "true"): ("bitsandbytes", "bitsandbytes"),
    ("load_in_8bit", "true"): ("bitsandbytes", "bitsandbytes"),
    ("report_to", "wandb"): ("wandb", "wandb"),
    ("report_to", "mlflow"): ("mlflow", "mlflow-skinny"),
    **{
        ("optim", f"galore_{name}"): ("galore_torch", "galore-torch")
        for name in (
            "adamw",
            "adamw_8bit",
            "adafactor",
            "adamw_layerwise",
            "adamw_8bit_layerwise",
            "adafactor_layerwise",
        )
    },
    **{
        ("optim", name): ("bitsandbytes", "bitsandbytes")
        for name in (
            "adamw_bnb_8bit",
            "adamw_8bit",
            "paged_adamw_32bit",
            "paged_adamw_8bit",
            "ademamix",
            "ademamix_8bit",
            "paged_ademamix_32bit",
            "paged_ademamix_8bit",
            "lion_8bit",
            "lion_32bit",
            "paged_lion_32bit",
            "paged_lion_8bit",
            "rmsprop_bnb",
            "rmsprop_bnb_8bit",
            "rmsprop_bnb_32bit",
        )
    },
    **{
        ("optim", name): ("apollo_torch", "apollo-torch")
        for name in ("apollo_adamw", "apollo_adamw_layerwise")
    },
    **{
        ("optim", name): ("torchao", "torchao") for name in ("adamw_torch_4bit", "adamw_torch_8bit")
    },
    **{
        ("optim", f"schedule_free_{name}"): ("schedulefree", "schedulefree")
        for name in ("radam", "adamw", "sgd")
    },
    **{("optim", name): ("lomo_optim", "lomo-optim") for name in ("lomo", "adalomo")},
    ("optim", "grokadamw"): ("grokadamw", "grokadamw"),
    ("optim", "stable_adamw"): ("optimi", "torch-optimi"),
}


def exact(distributions: Mapping[str, str]) -> bool:
    """Whether an environment has the versions of the table, so that unlisted options are certain to
    fail.
    """
    return all(
        distributions.get(name, "").split(".")[:2] == version.split(".")
        for name, version in MADE_WITH.items()
    )


def known(task: str) -> frozenset[str]:
    """Return the options of a task's training, without leading dashes."""
    others = frozenset[str]().union(*(names for other, names in _ONLY.items() if other != task))
    return frozenset(_CHOICES).union(*_KINDS.values()) - others


def choices(name: str) -> tuple[str, ...]:
    """Return the fixed values of an option; empty if it accepts others."""
    return tuple(_CHOICES.get(name, "").split())


def expected(name: str, value: str) -> str | None:
    """Return the expected form of an option's value if it is invalid; None if it is valid, or
    unknown.
    """
    if value.lower() in ("none", "null"):  # some options accept it
        return None
    if name in _CHOICES:
        words = choices(name)
        return None if value in words else f"one of {', '.join(words)}"
    kind = next((kind for kind, names in _KINDS.items() if name in names), "other")
    if kind == "bool":
        return None if value.lower() in _TRUTH else "true or false"
    if kind not in ("int", "float"):
        return None
    try:
        (int if kind == "int" else float)(value)
    except ValueError:
        return "a whole number" if kind == "int" else "a number"
    return None


def needs(name: str, value: str) -> tuple[str, str] | None:
    """Return the module that a value of an option needs, and the argument for pip, if it is not
    part of hpctrain[train].
    """
    truth = (
        "true"
        if name in _KINDS["bool"] and value.lower() in ("yes", "t", "y", "1")
        else value.lower()
    )
    return _NEEDS.get((name, truth))
