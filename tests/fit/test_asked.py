"""A training's options -> its layout; and what is taken where nothing is asked, held against TRL
and hpctrain's own training.
"""

from dataclasses import replace

import pytest

from hpctrain.fit import memory, training_options
from hpctrain.fit.layout import Layout
from hpctrain.fit.shape import lora_targets
from hpctrain.util import shell
from tests.fit.fit_models import Data, Split, shape

SMALL = shape("qwen3-0.6b")
ALL = tuple(lora_targets(SMALL, "all-linear"))


def layout(*words: str, **changes: object) -> Layout:
    where = {"nodes": 1, "gpus_per_node": 1, "sharding": "ddp", "shape": SMALL} | changes
    return training_options.layout_of(shell.options_of(words), **where)


def test_nothing_asked_is_what_the_training_takes() -> None:
    assert layout() == Layout(
        micro_batch=8,
        length=1024,
        accumulation=1,
        weights="float32",
        compute="bfloat16",
        loss="fused",
    )


def test_without_bf16_or_without_a_gpu_it_trains_in_float32() -> None:
    assert layout(bf16=False).compute is None
    assert layout(cuda=False).compute is None
    assert layout("--fp16", "true").compute == "float16"
    assert layout("--bf16", "false").compute is None


@pytest.mark.torch
@pytest.mark.slow
def test_the_defaults_are_trls() -> None:
    from dataclasses import fields

    from trl import ModelConfig, SFTConfig

    said = {each.name: each.default for cls in (SFTConfig, ModelConfig) for each in fields(cls)}
    assert said["per_device_train_batch_size"] == training_options.MICRO_BATCH
    assert said["max_length"] == training_options.MAX_LENGTH
    assert said["lora_r"] == training_options.LORA_RANK
    assert said["lora_dropout"] == training_options.LORA_DROPOUT
    assert said["optim"] == training_options.OPTIMIZER
    assert said["gradient_accumulation_steps"] == 1
    assert (said["packing"], said["padding_free"], said["loss_type"], said["packing_strategy"]) == (
        False,
        False,
        "nll",
        "bfd",
    )
    assert (said["use_peft"], said["load_in_4bit"], said["load_in_8bit"]) == (False, False, False)


def test_words_and_typed_values_say_the_same() -> None:
    words = (
        "--per_device_train_batch_size",
        "4",
        "--use-peft",
        "true",
        "--lora_r=8",
        "--lora_target_modules",
        "q_proj",
        "v_proj",
    )
    typed = {
        "per_device_train_batch_size": 4,
        "use_peft": True,
        "lora_r": 8,
        "lora_target_modules": ["q_proj", "v_proj"],
    }
    where = {"nodes": 2, "gpus_per_node": 4, "sharding": "fsdp", "shape": SMALL}
    assert training_options.layout_of(
        shell.options_of(words), **where
    ) == training_options.layout_of(typed, **where)
    assert training_options.layout_of(typed, **where).lora.targets == ("q_proj", "v_proj")


def test_lora_has_a_bfloat16_base_and_all_linear_is_written_out() -> None:
    found = layout("--use_peft", "true", "--lora_target_modules", "all-linear")
    assert found.weights == "bfloat16"
    assert found.lora.targets == ALL
    assert found.lora.rank == 16
    assert found.lora.dropout
    assert layout("--use_peft", "true", bf16=False).weights == "float32"
    assert layout("--use_peft", "true", "--lora_dropout", "0").lora.dropout is False


@pytest.mark.parametrize(
    ("words", "field_", "value"),
    [
        (("--dtype", "bfloat16"), "weights", "bfloat16"),
        (("--torch_dtype", "torch.float16"), "weights", "float16"),
        (("--loss_type", "dft"), "loss", "fused"),
        (("--label_smoothing_factor", "0.1"), "loss", "logits"),
        (("--loss_type", "dft", "--label_smoothing_factor", "0.1"), "loss", "fused"),
        (("--loss_type", "chunked_nll"), "loss", "fused"),
        (("--attn_implementation", "flash_attention_2"), "attention", "flash"),
        (("--attn_implementation", "kernels-community/flash-attn2"), "attention", "flash"),
        (("--attn_implementation", "flex_attention"), "attention", "flex"),
        (("--attn_implementation", "eager"), "attention", "eager"),
        (("--optim", "OptimizerNames.ADAMW_8BIT"), "optimizer", "adamw_8bit"),
        (("--load_in_4bit", "--use_peft"), "quantization", "4bit"),
        (("--gradient_checkpointing", "true"), "checkpointing", "full"),
        (("--activation_checkpointing",), "checkpointing", "full"),
        (("--packing", "true"), "padding_free", True),
        (("--packing", "--packing_strategy", "wrapped"), "padding_free", False),
        (("--max_length", "4096"), "length", 4096),
        (("--gradient_accumulation_steps=4",), "accumulation", 4),
    ],
)
def test_each_option_counts(words: tuple[str, ...], field_: str, value: object) -> None:
    assert getattr(layout(*words), field_) == value


def test_checkpointing_is_on_where_it_is_needed_and_nobody_said() -> None:
    without = memory.gpu_memory(SMALL, layout()).total
    assert layout(gpu_bytes=without).checkpointing == "off"
    assert layout(gpu_bytes=without - 1).checkpointing == "full"
    assert layout().checkpointing == "off"
    assert layout("--gradient_checkpointing", "false", gpu_bytes=1).checkpointing == "off"
    assert training_options.needs_checkpointing(
        SMALL, replace(layout(), checkpointing="full"), without - 1
    )
    assert training_options.checkpointing_asked({"gradient_checkpointing": None}) is None


def test_rows_of_a_prepared_dataset_are_as_long_as_they_are() -> None:
    assert layout(dataset=Data()).length == 700
    assert layout("--max_length", "512", dataset=Data()).length == 512
    assert layout("--max_length", "2000", dataset=Data()).length == 700
    assert layout(dataset=Data(splits={"train": Split(3000)}, max_length=4096)).length == 3000
    packed = layout(dataset=Data(packed=True, max_length=4096, splits={"train": Split(4000)}))
    assert (packed.length, packed.padding_free) == (4096, True)
    assert layout("--packing", "true", dataset=Data()).length == 1024
    assert layout("--packing", "true", dataset=Data(max_length=2048)).length == 2048
    assert (
        layout("--packing", "true", "--max_length", "512", dataset=Data(max_length=2048)).length
        == 512
    )
    assert (
        layout("--dataset_train_split", "mine", dataset=Data(splits={"mine": Split(77)})).length
        == 77
    )


@pytest.mark.parametrize(
    ("length", "rows"),
    [(4096, 2), (2048, 4), (1500, 5), (32768, 1), (1024, 8), (256, 8), (None, 8)],
)
def test_long_packed_rows_are_fewer_to_a_pass_where_nobody_says(
    length: int | None, rows: int
) -> None:
    """Eight rows of 4096 would be 32,768 tokens a pass, four times what TRL's defaults mean."""
    data = Data(packed=True, max_length=length)
    assert layout(dataset=data).micro_batch == rows
    assert layout("--per_device_train_batch_size", "8", dataset=data).micro_batch == 8
    assert layout(dataset=replace(data, packed=False)).micro_batch == 8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--use_liger_kernel",), "use_liger_kernel is not counted"),
        (("--torch_compile", "true"), "torch_compile is not counted"),
        (("--deepspeed", "ds.json"), "DeepSpeed config"),
        (("--activation_offloading", "true"), "the GPU needs less, and the node more"),
        (("--fsdp_config", '{"offload_params": true}'), "fsdp_config is not read"),
        (("--config", "sft.yaml"), "--config is not read"),
    ],
)
def test_what_the_formula_does_not_follow_is_said(words: tuple[str, ...], said: str) -> None:
    (found,) = training_options.uncounted(shell.options_of(words))
    assert said in found
    assert (
        training_options.uncounted(
            shell.options_of(["--use_liger_kernel", "false", "--torch_compile", "false"])
        )
        == ()
    )


def test_an_evaluation_of_the_sft_training_counts_where_it_is_asked_for() -> None:
    assert layout("--eval_strategy", "steps").evaluation == 8
    assert layout("--eval_strategy", "steps", "--per_device_eval_batch_size", "3").evaluation == 3
    large = layout(
        "--eval_strategy",
        "epoch",
        "--per_device_eval_batch_size",
        "64",
        "--per_device_train_batch_size",
        "1",
    )
    assert memory.gpu_memory(SMALL, large).moment == "an evaluation"
