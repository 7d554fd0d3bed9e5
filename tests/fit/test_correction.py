"""What the user's own runs say of further ones."""

from dataclasses import asdict, replace

import pytest

from hpctrain.fit.correction import NONE, Factor, correction
from hpctrain.fit.layout import Layout, Lora

FULL = Layout(gpus_per_node=4)


def record(layout: Layout = FULL, memory: float = 1.0, speed: float = 1.0, **changes: object) -> dict[str, object]:
    return {
        "schema": 1, "layout": asdict(layout), "shape": {}, "gpu": "NVIDIA A100-SXM-64GB", "cluster": "leonardo",
        "predicted": {"total": 50e9, "allocated": 40e9, "parts": {}, "tokens_per_s": 1000.0},
        "measured": {"allocated": 40e9 * memory, "reserved": 45e9, "used": None, "host": 1, "tokens_per_s": 1000.0 * speed, "rank": 0},
    } | changes  # fmt: skip


def learnt(*records: dict[str, object], cluster: str | None = "leonardo", gpu: str = "NVIDIA A100 SXM 64GB"):
    return correction(records, clusters=(cluster,), gpu=gpu)


def test_the_median_of_the_runs_of_a_kind_corrects_it() -> None:
    found = learnt(record(memory=1.0, speed=0.5), record(memory=1.1, speed=0.6), record(memory=1.5, speed=0.9))
    assert found.of_memory(FULL) == Factor(pytest.approx(1.1), 3)
    assert found.of_speed(FULL) == Factor(pytest.approx(0.6), 3)
    assert found.of_memory(FULL).words == "corrected by 3 of your runs here: x1.10"


def test_another_size_of_the_same_kind_is_corrected_too() -> None:
    found = learnt(record(memory=1.1))
    assert found.of_memory(replace(FULL, nodes=2, micro_batch=1, length=4096, accumulation=3)).runs == 1


@pytest.mark.parametrize(
    "other",
    [
        {"sharding": "fsdp"},
        {"checkpointing": "full"},
        {"weights": "bfloat16"},
        {"lora": Lora(rank=8, targets=("q_proj",))},
        {"loss": "logits"},
    ],
)
def test_another_kind_is_not(other: dict[str, object]) -> None:
    found = learnt(record(memory=1.1))
    assert found.of_memory(replace(FULL, **other)) == Factor(1.0, 0)


def test_other_clusters_and_other_gpus_do_not_count() -> None:
    assert learnt(record(memory=1.1), cluster="jureca").memory == {}
    assert learnt(record(memory=1.1), gpu="NVIDIA H100 SXM").memory == {}
    assert learnt(record(memory=1.1, cluster=None)).memory == {}
    assert learnt(record(memory=1.1, cluster=None), cluster=None).of_memory(FULL).runs == 1
    assert learnt(record(memory=1.1, gpu="NVIDIA A100 SXM 64GB")).of_memory(FULL).runs == 1


@pytest.mark.parametrize(
    "broken",
    [
        {}, {"cluster": "leonardo"}, record(measured=None), record(predicted={}), {**record(), "layout": []}, record(gpu=7),
        record(measured=[1]),
        record(measured={"allocated": None, "tokens_per_s": None}), record(measured={"allocated": "4", "tokens_per_s": True}),
        record(measured={"allocated": float("nan"), "tokens_per_s": float("inf")}), record(memory=100, speed=0.001),
        record(predicted={"allocated": 0, "tokens_per_s": 0}),
    ],
)  # fmt: skip
def test_what_is_no_record_is_left_out(broken: dict[str, object]) -> None:
    found = correction([broken], clusters=("leonardo",), gpu="NVIDIA A100 SXM 64GB")
    assert (found.memory, found.speed) == ({}, {})


def test_nothing_known_changes_nothing() -> None:
    assert NONE.of_memory(FULL).factor == NONE.of_speed(FULL).factor == 1.0
