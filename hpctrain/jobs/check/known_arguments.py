"""The options that the shipped trainings take, by task: so that a misspelt one is found before the queue, without importing torch.

Source: the parsers of hpctrain.training with trl 1.16 and transformers 5.23; tests/training/test_known_arguments.py compares.
"""

from __future__ import annotations

from collections.abc import Mapping

#: The releases that the table is of; others may take more.
MADE_WITH = {"trl": "1.16", "transformers": "5.23"}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMMON = _words(
    """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs adam_beta1 adam_beta2 adam_epsilon attn_implementation
    auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval bnb_4bit_quant_storage bnb_4bit_quant_type
    config data_seed dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor dataset_config dataset_name dataset_streaming
    dataset_test_split dataset_train_split ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters
    ddp_static_graph ddp_timeout debug deepspeed disable_tqdm do_eval do_predict do_train dtype early_stopping_patience
    early_stopping_threshold enable_jit_checkpoint eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_steps
    eval_strategy eval_use_gather_object evaluate_only fp16 fp16_full_eval fsdp fsdp_config full_determinism gradient_accumulation_steps
    gradient_checkpointing gradient_checkpointing_kwargs greater_is_better help hub_always_push hub_model_id hub_private_repo
    hub_revision hub_strategy hub_token ignore_bias_buffers ignore_data_skip include_for_metrics include_num_input_tokens_seen init_from
    label_names label_smoothing_factor learning_rate length_column_name liger_kernel_config load_best_model_at_end load_in_4bit
    load_in_8bit local_rank log_level log_level_replica log_on_each_node logging_first_step logging_nan_inf_filter logging_steps
    logging_strategy lora_alpha lora_dropout lora_modules_to_save lora_r lora_target_modules lora_target_parameters lora_task_type
    lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps memory_every metric_for_best_model model_name_or_path model_revision
    neftune_noise_alpha no_average_tokens_across_devices no_dataloader_in_order no_dataloader_pin_memory no_eval_do_concat_batches
    no_log_on_each_node no_logging_nan_inf_filter no_remove_unused_columns no_skip_memory_metrics no_stop_on_nan num_train_epochs optim
    optim_args optim_target_modules output_dir parallelism_config per_device_eval_batch_size per_device_train_batch_size
    prediction_loss_only project push_to_hub remove_unused_columns report_to restore_callback_states_from_checkpoint
    resume_from_checkpoint resume_with_missing_state resume_with_other_data resume_with_other_world_size resume_without_manifest
    run_name save_on_each_node save_only_model save_steps save_strategy save_total_limit seed skip_memory_metrics speed_every
    stop_on_nan tf32 torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps trackio_bucket_id trackio_space_id
    trackio_static_space_id train_sampling_strategy trial use_bnb_nested_quant use_cache use_cpu use_dora use_liger_kernel use_peft
    use_rslora warmup_steps weight_decay
    """
)
_ONLY = {
    "sft": _words(
        """
        activation_offloading assistant_only_loss chat_template_path completion_only_loss dataset_kwargs dataset_num_proc dataset_text_field
        eos_token eval_packing loss_type max_length model_init_kwargs no_gradient_checkpointing packing packing_strategy pad_to_multiple_of
        pad_token padding_free router_aux_loss_coef shuffle_dataset truncation_mode trust_remote_code
        """
    ),
    "classify": _words(
        """
        class_names class_weights from_scratch label_column max_events min_events pad_token_id random_truncation truncation_keeps
        """
    ),
}


def exact(distributions: Mapping[str, str]) -> bool:
    """Whether an environment has the releases that the table is of, so that what is not in it is refused there."""
    return all(distributions.get(name, "").split(".")[:2] == version.split(".") for name, version in MADE_WITH.items())


def known(task: str) -> frozenset[str]:
    """Return the options of the training of a task, without dashes in front."""
    return _COMMON | _ONLY[task]
