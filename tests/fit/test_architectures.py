"""Architectures whose layers are not Llama's: the formula within 5 % of torch's MemTracker, where
the peak is in a layer.
"""

import dataclasses

import pytest

from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.memory import CUBLAS, gpu_memory
from hpctrain.fit.shape import read_shape

#: Few words, so that the peak is in a layer and not in the loss.
SIZES = {
    "vocab_size": 2000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
NEOX = {"num_key_value_heads": 8, "hidden_dropout": 0.0, "attention_dropout": 0.0}
GPT2 = {
    "n_inner": 1024,
    "n_embd": 512,
    "n_layer": 2,
    "n_head": 8,
    "n_positions": 4096,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
PHI = {"num_key_value_heads": 8}
MIXTRAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3_MOE = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "head_dim": 64,
}
LAYOUT = Layout(micro_batch=4, length=1024)
BF16 = dataclasses.replace(LAYOUT, weights="bfloat16", compute=None)
LORA = dataclasses.replace(
    LAYOUT, weights="bfloat16", lora=Lora(rank=8, targets=("q_proj", "v_proj"), dropout=True)
)
#: OLMo's layer norm and rotary positions are computed in float32, GPT-NeoX has attention and MLP
#: side by side.
CASES = {
    "olmo2": (SIZES, BF16),
    "gpt_neox": (SIZES | NEOX, LAYOUT),
    "gpt2": (SIZES | GPT2, LAYOUT),
    "phi": (SIZES | PHI, LAYOUT),
    "mixtral": (SIZES | MIXTRAL, LAYOUT),
    "mixtral, checkpointing": (
        SIZES | MIXTRAL,
        dataclasses.replace(LAYOUT, checkpointing="full", micro_batch=8),
    ),
    "qwen3_moe, LoRA": (SIZES | QWEN3_MOE, LORA),
    "qwen3_moe, LoRA, checkpointing": (
        SIZES | QWEN3_MOE,
        dataclasses.replace(LORA, checkpointing="full", micro_batch=8),
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", CASES)
def test_within_5_percent_of_the_tracker(name):
    from fit_tracked import tracked

    sizes, layout = CASES[name]
    config = {"model_type": name.partition(",")[0], **sizes}
    predicted = (
        gpu_memory(read_shape(config), layout).allocated - CUBLAS
    )  # no kernel runs, so nobody took a workspace
    assert predicted == pytest.approx(tracked(config, layout).peak, rel=0.05)
