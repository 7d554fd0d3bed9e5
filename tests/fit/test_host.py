"""Host memory of a node."""

from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.memory import CUDA, LAUNCHER, PIECE, PROCESS, host_memory

COUNT = 8 * 10**9


def least(**changes: object) -> int:
    return host_memory(COUNT, Layout(gpus_per_node=4, **changes)).least


def test_every_rank_loads_the_model_but_not_with_fsdp() -> None:
    assert least() == 4 * (PROCESS + COUNT * 4)
    assert least(weights="bfloat16") == 4 * (PROCESS + COUNT * 2)
    assert least(sharding="zero2") == least()
    assert least(sharding="fsdp") == 4 * PROCESS + COUNT * 4
    assert least(sharding="zero3") == 4 * PROCESS + PIECE
    assert least(quantization="4bit", lora=Lora(rank=8, targets=())) == 4 * (PROCESS + PIECE)


def test_the_parts_add_up() -> None:
    found = host_memory(COUNT, Layout(gpus_per_node=4))
    assert found.total == 4 * (PROCESS + CUDA + COUNT * 4) + LAUNCHER
    assert host_memory(COUNT, Layout(gpus_per_node=4), cuda=False).total == found.total - 4 * CUDA
    assert [part.name for part in found.certain] == ["processes", "model"]
