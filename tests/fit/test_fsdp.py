"""What FSDP2 holds: the formula beside torch's own FSDP2, with fake tensors and a fake process
group.
"""

import dataclasses

import pytest

from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.memory import CUBLAS, gpu_memory
from hpctrain.fit.shape import read_shape

#: Wide layers and few words: the peak is in a layer, where nearly all that comes and goes is
#: FSDP2's.
WIDE = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
WORDS = {**WIDE, "vocab_size": 48000}
TIED = {**WORDS, "tie_word_embeddings": True}
LAYOUT = Layout(micro_batch=1, length=256, gpus_per_node=8, sharding="fsdp")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA = {"lora": Lora(rank=16, targets=ALL), "weights": "bfloat16"}
CASES = {
    f"{name}, {checkpointing}, {accumulation} accumulated": (
        WIDE,
        {**how, "checkpointing": checkpointing, "accumulation": accumulation},
    )
    for name, how in {"full": {}, "lora": LORA}.items()
    for checkpointing in ("off", "full")
    for accumulation in (1, 4)
} | {
    "two processes, many words": (WORDS, {"gpus_per_node": 2, "checkpointing": "full"}),
    "two processes, tied": (TIED, {"gpus_per_node": 2}),
    "lora, tied": (TIED, {**LORA, "checkpointing": "full"}),
    "lora of fp32": (WORDS, {**LORA, "weights": "float32", "gpus_per_node": 2}),
    "bf16 weights, held in fp32": (WIDE, {"weights": "bfloat16"}),
    "no autocast": (WIDE, {"compute": None, "gpus_per_node": 2}),
    "all logits": (WORDS, {"loss": "logits"}),
    "classifier": (WIDE, {"loss": "classes", "evaluation": 2}),
}


def predicted(config, layout):
    labels = 2 if layout.loss == "classes" else 0
    return (
        gpu_memory(read_shape(config, labels=labels), layout).allocated - CUBLAS
    )  # no kernel runs, so nobody took a workspace


@pytest.mark.torch
@pytest.mark.parametrize("name", CASES)
def test_within_5_percent_of_the_tracker(name):
    from fit_tracked import tracked

    config, changes = CASES[name]
    layout = dataclasses.replace(LAYOUT, **changes)
    assert abs(predicted(config, layout) / tracked(config, layout).peak - 1) <= 0.05


@pytest.mark.torch
def test_what_is_trained_is_divided():
    from fit_tracked import tracked

    found, shape = tracked(WIDE, LAYOUT), read_shape(WIDE)
    assert found.parts["Optstate"] == pytest.approx(
        8 * shape.parameters / 8, rel=0.01
    )  # weights are gathered, states never are
