"""ZeRO: the formula beside what real trainings with DeepSpeed held.

The figures are what bench/fit/zero.py printed on 2026-11-22 on a machine with 2 cores and
no GPU, with DeepSpeed 0.19.8, torch 2.13.0+cpu, transformers 5.23.0 and accelerate 1.15.0's config:
Llama with 29.5 million parameters, one row of 8 tokens, AdamW (fused), two or four processes of
gloo; bytes of all tensors that lived on rank 0, by torch's dispatcher and weak references to each
storage, in the third step. The copy that gloo makes of what it reduces is left out. "few":
DeepSpeed's buckets made small, so that the model is large beside them, as models on GPUs are.
"""

import pytest

from hpctrain.fit import memory, sharding
from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.shape import read_shape

SHAPE = read_shape(
    {
        "model_type": "llama",
        "vocab_size": 4096,
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    }
)
#: reduce_bucket_size, stage3_prefetch_bucket_size, stage3_max_live_parameters and
#: stage3_max_reuse_distance, sub_group_size.
FEW = sharding.Settings(bucket=2_000_000, prefetch=400_000, reuse=4_000_000, group=3_000_000)
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA = {"lora": Lora(rank=16, targets=ALL), "weights": "bfloat16"}
#: (layout, buckets made small, the peaks of forward pass, backward pass and optimizer's step)
MEASURED = {
    "stage 2": ({"sharding": "zero2"}, False, (237_855_672, 1_294_999_380, 354_522_960)),
    "stage 2, accumulated": (
        {"sharding": "zero2", "accumulation": 2},
        False,
        (267_879_352, 1_325_023_060, 354_522_960),
    ),
    "stage 3": ({"sharding": "zero3"}, False, (1_355_542_861, 1_300_795_645, 1_324_499_173)),
    "stage 3, accumulated": (
        {"sharding": "zero3", "accumulation": 2},
        False,
        (1_355_542_861, 1_300_795_645, 1_324_499_173),
    ),
    "stage 2, few": ({"sharding": "zero2"}, True, (237_855_672, 275_697_496, 354_522_960)),
    "stage 2, few, accumulated": (
        {"sharding": "zero2", "accumulation": 2},
        True,
        (267_879_352, 305_721_176, 354_522_960),
    ),
    "stage 2, few, LoRA": (
        {"sharding": "zero2", **LORA},
        True,
        (70_709_160, 75_492_964, 73_991_520),
    ),
    "stage 2, few, float32": (
        {"sharding": "zero2", "compute": None},
        True,
        (298_037_176, 371_451_736, 414_046_544),
    ),
    "stage 2, few, 4 processes": (
        {"sharding": "zero2", "gpus_per_node": 4},
        True,
        (149_355_960, 172_049_816, 207_185_488),
    ),
    "stage 3, few": ({"sharding": "zero3"}, True, (253_286_109, 255_649_581, 258_191_893)),
    "stage 3, few, checkpointing": (
        {"sharding": "zero3", "checkpointing": "full"},
        True,
        (252_050_461, 255_657_837, 258_191_893),
    ),
    "stage 3, few, LoRA": (
        {"sharding": "zero3", **LORA},
        True,
        (63_923_005, 62_461_741, 49_758_325),
    ),
    "stage 3, few, float32": (
        {"sharding": "zero3", "compute": None},
        True,
        (329_291_869, 334_266_541, 315_127_733),
    ),
    "stage 3, few, 4 processes": (
        {"sharding": "zero3", "gpus_per_node": 4},
        True,
        (135_286_485, 137_649_957, 140_190_717),
    ),
}


@pytest.fixture
def buckets(monkeypatch):
    """Set DeepSpeed's numbers."""
    return lambda settings: monkeypatch.setattr(sharding, "SETTINGS", settings)


def predicted(layout):
    stays = (
        memory.weights_bytes(SHAPE, layout)
        + memory.optimizer_bytes(SHAPE, layout)
        + memory.buffer_bytes(SHAPE, layout)
    )
    moments = memory.moments(SHAPE, layout)
    return [stays + sum(moments[name].values()) for name in ("forward", "backward", "optimizer")]


@pytest.mark.parametrize("name", MEASURED)
def test_the_peak_is_within_5_percent_of_a_real_training(name, buckets):
    how, few, measured = MEASURED[name]
    buckets(FEW if few else sharding.Settings())
    found = predicted(
        Layout(**{"micro_batch": 1, "length": 8, "gpus_per_node": 2, "loss": "logits", **how})
    )
    assert max(found) == pytest.approx(max(measured), rel=0.05)
    assert found == [pytest.approx(each, rel=0.055) for each in measured]


def test_what_stays_is_what_stayed():
    """Between two steps: weights, their float32 copy, the optimizer's states, and of stage 3 the
    bucket and the gradients' part.
    """
    two, three = (Layout(gpus_per_node=2, sharding=sharding) for sharding in ("zero2", "zero3"))
    for layout, stayed in ((two, 235_999_560), (three, 1_236_016_845)):
        gradients = memory.gradient_bytes(SHAPE, layout) if layout.sharding == "zero3" else 0
        of = memory.weights_bytes, memory.optimizer_bytes, memory.buffer_bytes
        assert sum(each(SHAPE, layout) for each in of) + gradients == pytest.approx(
            stayed, rel=0.001
        )


@pytest.mark.parametrize(
    ("tied", "expected"),
    [
        (False, [170, 350, 350, 350, 230, 230]),
        # The embeddings are the head's, which stay gathered until the end of the backward pass.
        (True, [150, 250, 330, 330, 210, 210]),
    ],
)
def test_the_buffers_of_stage_3_at_each_position_of_the_backward_pass(tied, expected, buckets):
    buckets(sharding.Settings(bucket=60, prefetch=20, reuse=70, group=30))
    layer, head = sharding.Unit(100, 100), sharding.Unit(30, 30)
    table = sharding.Unit(0, 0) if tied else sharding.Unit(50, 50)
    sharder = sharding.ZeroThreeSharder(
        processes=2,
        width=2,
        widens=2,
        layers=4,
        layer=layer,
        head=head,
        table=table,
        tied=tied,
        accumulates=False,
    )
    assert [sharder.backward(position) for position in range(6)] == expected
