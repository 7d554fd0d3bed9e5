"""The memory formula: within 5 % of torch's MemTracker, and sane where no tracker has run."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.fit.activations import is_masked
from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.memory import CUBLAS, gpu_memory
from hpctrain.fit.shape import FAMILIES, read_shape

LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
QWEN3 = {
    **LLAMA,
    "model_type": "qwen3",
    "vocab_size": 70000,
    "head_dim": 128,
    "tie_word_embeddings": True,
    "num_hidden_layers": 3,
}
QWEN2 = {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA = Lora(rank=16, targets=ALL, dropout=True)
SHAPE = read_shape(LLAMA)
LARGE = read_shape(
    {
        **LLAMA,
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    }
)
#: A small vocabulary, so that the peak is in a layer and not in the loss.
FEW_WORDS = {**LLAMA, "vocab_size": 2000}
QV = Lora(rank=8, targets=("q_proj", "v_proj"), dropout=True)
CHECKPOINTED = {
    "lora on q and v": Layout(
        micro_batch=8, length=1024, weights="bfloat16", lora=QV, checkpointing="full"
    ),
    "lora on down, dropout": Layout(
        micro_batch=8,
        length=1024,
        weights="bfloat16",
        lora=Lora(rank=8, targets=("down_proj",), dropout=True),
        checkpointing="full",
    ),
    "lora on up": Layout(
        micro_batch=8,
        length=1024,
        weights="bfloat16",
        lora=Lora(rank=8, targets=("up_proj",)),
        checkpointing="full",
    ),
    "bf16 weights": Layout(
        micro_batch=8, length=1024, weights="bfloat16", compute=None, checkpointing="full"
    ),
}


#: The models and layouts that are tracked here; many more in docs/fit-accuracy.md.
_MOE = {
    **FEW_WORDS,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
}
MIXTRAL = {**_MOE, "model_type": "mixtral", "num_local_experts": 8}
QWEN3_MOE = {
    **_MOE,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "moe_intermediate_size": 256,
    "head_dim": 64,
}
TRACKED = {
    "full": (LLAMA, Layout(micro_batch=1, length=2048)),
    "mask": (LLAMA, Layout(micro_batch=2, length=1024)),
    "padding-free": (QWEN3, Layout(micro_batch=2, length=512, padding_free=True)),
    "checkpointing": (QWEN3, Layout(micro_batch=2, length=2048, checkpointing="full")),
    "bf16 weights": (QWEN2, Layout(micro_batch=1, length=4096, weights="bfloat16", compute=None)),
    "lora": (QWEN3, Layout(micro_batch=1, length=4096, weights="bfloat16", lora=LORA)),
    "lora of fp32": (
        LLAMA,
        Layout(
            micro_batch=1, length=1024, lora=dataclasses.replace(LORA, targets=("q_proj", "v_proj"))
        ),
    ),
    "lora, checkpointing": (
        LLAMA,
        Layout(micro_batch=1, length=8192, weights="bfloat16", lora=LORA, checkpointing="full"),
    ),
    "accumulation": (LLAMA, Layout(micro_batch=1, length=1024, accumulation=4)),
    "logits": (LLAMA, Layout(micro_batch=1, length=1024, loss="logits")),
    "eager": (QWEN2, Layout(micro_batch=1, length=512, attention="eager")),
    "no fused optimizer": (LLAMA, Layout(micro_batch=1, length=128, optimizer="adamw_torch")),
    "sgd": (LLAMA, Layout(micro_batch=1, length=128, optimizer="sgd")),
    "norms after": (
        {**FEW_WORDS, "model_type": "gemma2", "head_dim": 64},
        Layout(micro_batch=4, length=1024, weights="bfloat16", compute=None),
    ),
    "packed": ({**FEW_WORDS, "model_type": "phi3", "pad_token_id": 0}, Layout(micro_batch=4)),
    "mixtral": (MIXTRAL, Layout(micro_batch=4, length=1024)),
    "mixtral, checkpointing": (
        MIXTRAL,
        Layout(micro_batch=8, length=1024, checkpointing="full"),
    ),
    "qwen3_moe, LoRA": (
        QWEN3_MOE,
        Layout(
            micro_batch=4,
            length=1024,
            weights="bfloat16",
            lora=Lora(rank=8, targets=("q_proj", "v_proj"), dropout=True),
        ),
    ),
    **{f"checkpointing, {name}": (FEW_WORDS, each) for name, each in CHECKPOINTED.items()},
}


@pytest.mark.torch
@pytest.mark.parametrize("name", TRACKED)
def test_within_5_percent_of_the_tracker(name):
    from fit_tracked import tracked

    config, layout = TRACKED[name]
    peak = tracked(config, layout).peak
    predicted = (
        gpu_memory(read_shape(config), layout).allocated - CUBLAS
    )  # no kernel runs, so nobody took a workspace
    assert abs(predicted / peak - 1) <= 0.05, f"predicted {predicted:,}, tracked {peak:,}"


@pytest.mark.parametrize("checkpointing", ["off", "full"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_known_architecture_is_worked_out(name, checkpointing):
    """Two parameters that become ready at once, such as a bias and a weight, have an order too."""
    config = {**LLAMA, "model_type": name, "num_hidden_layers": 2, "num_key_value_heads": 12}
    config |= {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    found = gpu_memory(
        read_shape(config), Layout(micro_batch=2, length=256, checkpointing=checkpointing)
    )
    assert found.total > 16 * read_shape(config).parameters


LAYOUTS = st.builds(
    Layout,
    nodes=st.integers(1, 4),
    gpus_per_node=st.integers(1, 8),
    micro_batch=st.integers(1, 16),
    length=st.sampled_from((128, 512, 1000, 2048)),
    accumulation=st.integers(1, 3),
    sharding=st.sampled_from(("ddp", "fsdp", "zero2", "zero3")),
    checkpointing=st.sampled_from(("off", "full")),
    weights=st.sampled_from(("float32", "bfloat16")),
    compute=st.sampled_from(("bfloat16", None)),
    lora=st.sampled_from(
        (None, LORA, dataclasses.replace(LORA, targets=("q_proj",), dropout=False))
    ),
    attention=st.sampled_from(("sdpa", "flash", "eager")),
    loss=st.sampled_from(("fused", "logits")),
    optimizer=st.sampled_from(
        (
            "adamw_torch_fused",
            "adamw_torch",
            "adamw_8bit",
            "paged_adamw_8bit",
            "sgd",
            "adafactor",
            "lion_32bit",
        )
    ),
    padding_free=st.booleans(),
)
PROPERTY = settings(max_examples=60, deadline=None)


def allocated(layout, shape=SHAPE):
    return gpu_memory(shape, layout).allocated


@PROPERTY
@given(LAYOUTS)
def test_the_parts_add_up_and_none_is_negative(layout):
    found = gpu_memory(SHAPE, layout)
    assert all(part.bytes >= 0 for part in found.parts)
    assert sum(part.bytes for part in found.parts) == found.total == found.reserved + found.context
    assert found.allocated <= found.reserved


def test_the_memory_of_the_run_that_was_measured_on_a_gpu():
    """Qwen3 0.6B, 8 packed rows of 1024 with flex attention on an H100."""
    results = Path(__file__).parents[2] / "bench" / "gpu" / "results" / "smoke.json"
    found = json.loads(results.read_text())["measurements"]["report"]["result"]["measured"]
    shape = read_shape(
        {
            "model_type": "qwen3",
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
            "max_position_embeddings": 8192,
        }
    )
    layout = Layout(
        length=1024,
        micro_batch=8,
        attention="flex",
        padding_free=True,
    )
    predicted = gpu_memory(shape, layout)
    assert predicted.allocated == pytest.approx(found["allocated"], rel=0.01)
    assert predicted.reserved == pytest.approx(found["reserved"], rel=0.02)
    assert predicted.total == pytest.approx(found["used"], rel=0.02)


def part(name, shape=LARGE, **changes):
    return {
        each.name: each.bytes
        for each in gpu_memory(shape, Layout(micro_batch=1, length=512, **changes)).parts
    }[name]


def test_a_mask_is_needed_by_rows_of_different_lengths_and_by_rows_laid_end_to_end():
    assert not is_masked(Layout(micro_batch=1))
    assert is_masked(Layout(micro_batch=2))
    assert is_masked(Layout(micro_batch=1, padding_free=True))
    assert not is_masked(Layout(micro_batch=8, padding_free=True, attention="flash"))


def test_the_moment_is_said():
    assert gpu_memory(SHAPE, Layout(micro_batch=8)).moment == "the backward pass"
    assert (
        gpu_memory(SHAPE, Layout(micro_batch=1, length=128, optimizer="adamw_torch")).moment
        == "the optimizer's step"
    )


def test_nccl_takes_memory_beside_torchs_more_of_it_between_nodes():
    processes = ({}, {"gpus_per_node": 2}, {"nodes": 2})
    alone, within, between = (gpu_memory(SHAPE, Layout(**each)).context for each in processes)
    assert alone < within < between
