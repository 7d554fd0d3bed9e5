"""Fixes: in the job's own numbers, never another training, never more than there is, never what the job has already."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fixes_case import GIB, config, new, sample, text, training

from hpctrain.explain.case import Case
from hpctrain.explain.fixes import FIXES
from hpctrain.explain.model import Change, Fix
from hpctrain.fit import memory
from hpctrain.fit.layout import Layout
from hpctrain.fit.shape import ModelShape, read_shape
from hpctrain.scheduler.parse import memory_size
from hpctrain.scheduler.parse.accounting import Account

MIB = 1 << 20
SHAPE = read_shape(
    {
        "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True,
    }
)  # fmt: skip


def fit_json(layout: Layout, *, gpu_bytes: int = 40 * GIB, shape: ModelShape = SHAPE) -> dict[str, Any]:
    return {
        "schema": 1,
        "layout": asdict(layout),
        "shape": asdict(shape),
        "gpu": "NVIDIA A100-SXM4-40GB",
        "gpu_bytes": gpu_bytes,
        "measured": None,
    }


# -- GPU memory --------------------------------------------------------------------------------------------------------


def test_half_the_micro_batch_where_nothing_is_measured() -> None:
    fixed = FIXES["gpu_batch"](Case(config=config()), {})
    assert text(fixed).splitlines()[0] == "per_device_train_batch_size: 4 -> 2, gradient_accumulation_steps: 8 -> 16"
    assert fixed == Fix(
        text=text(fixed),
        changes=(
            Change(key="training.per_device_train_batch_size", old="4", new=2),
            Change(key="training.gradient_accumulation_steps", old="8", new=16),
        ),
    )


def test_the_largest_micro_batch_that_fits_by_the_formula() -> None:
    """With room for exactly 6 of 16 rows and a little, 4 is the largest divisor of the batch that fits."""
    asked = Layout(gpus_per_node=4, micro_batch=16, accumulation=2, length=2048)
    room = int(memory.gpu_memory(SHAPE, replace(asked, micro_batch=6, accumulation=1)).total / 0.92)
    case = Case(config=training(per_device_train_batch_size="16", gradient_accumulation_steps="2"), fit=fit_json(asked, gpu_bytes=room))
    assert new(FIXES["gpu_batch"](case, {})) == {
        "training.per_device_train_batch_size": 4, "training.gradient_accumulation_steps": 8,
    }  # fmt: skip
    assert "the global batch stays 128 rows" in text(FIXES["gpu_batch"](case, {}))


def test_what_the_job_has_shown_counts_more_than_the_formula() -> None:
    """It ran out although the formula says that it fits: so it needs more, and 15 rows, which fit by the formula alone, are too many."""
    asked = Layout(gpus_per_node=4, micro_batch=16, accumulation=15, length=2048)
    room = int(memory.gpu_memory(SHAPE, asked).total * 1.5)
    said = training(per_device_train_batch_size="16", gradient_accumulation_steps="15")
    micro = new(FIXES["gpu_batch"](Case(config=said, fit=fit_json(asked, gpu_bytes=room)), {}))["training.per_device_train_batch_size"]
    assert 8 <= micro < 15
    assert memory.gpu_memory(SHAPE, replace(asked, micro_batch=micro)).total * 1.5 < 0.95 * room


def test_checkpointing_where_the_micro_batch_is_one() -> None:
    asked = Layout(gpus_per_node=4, micro_batch=1, accumulation=8, length=8192)
    assert memory.gpu_memory(SHAPE, replace(asked, checkpointing="full")).total < 0.7 * memory.gpu_memory(SHAPE, asked).total
    case = Case(
        config=training(per_device_train_batch_size="1"),
        fit=fit_json(asked, gpu_bytes=int(memory.gpu_memory(SHAPE, asked).total * 0.9)),
    )
    assert new(FIXES["gpu_batch"](case, {})) == {"training.activation_checkpointing": True}
    asked_off = replace(case, config=training(per_device_train_batch_size="1", gradient_checkpointing="false"))
    assert new(FIXES["gpu_batch"](asked_off, {})) == {"training.gradient_checkpointing": True}


def tight(step: int | None) -> Case:
    """Micro batch 1 with checkpointing, and weights that do not fit one GPU: only dividing them helps."""
    asked = Layout(gpus_per_node=4, micro_batch=1, accumulation=8, length=1024, checkpointing="full")
    room = int(memory.gpu_memory(SHAPE, asked).total * 0.8)
    return Case(config=training(per_device_train_batch_size="1"), fit=fit_json(asked, gpu_bytes=room), step=step)


def test_sharding_before_the_first_step_and_only_said_after_it() -> None:
    assert new(FIXES["gpu_batch"](tight(None), {})) == {"sharding": "fsdp"}
    later = FIXES["gpu_batch"](tight(300), {})
    assert new(later) == {}
    assert "cannot be resumed" in text(later)


def test_what_would_fit_where_nothing_does() -> None:
    asked = Layout(gpus_per_node=1, micro_batch=1, accumulation=8, length=1024, checkpointing="full")
    room = int(memory.gpu_memory(SHAPE, asked).total * 0.8)
    fixed = FIXES["gpu_batch"](Case(config=training(per_device_train_batch_size="1"), fit=fit_json(asked, gpu_bytes=room)), {})
    assert new(fixed) == {}
    assert "not even 1 with checkpointing" in text(fixed)
    assert "use_peft: true" in text(fixed)


def test_an_evaluation_that_does_not_fit_leaves_the_training_alone() -> None:
    samples = (sample(0, "train_begin"), sample(1, "first_step"), sample(100))
    said = training(eval_strategy="steps", eval_steps="100", per_device_eval_batch_size="16")
    assert new(FIXES["gpu_batch"](Case(config=said, samples=samples), {})) == {"training.per_device_eval_batch_size": 8}


def test_of_a_script_of_ones_own_it_is_only_said() -> None:
    fixed = FIXES["gpu_batch"](Case(config=config(script="train.py")), {})
    assert new(fixed) == {}
    assert "per_device_train_batch_size: 4 -> 2" in text(fixed)


_LAYOUTS = st.builds(
    Layout, micro_batch=st.integers(1, 24), accumulation=st.integers(1, 12), length=st.sampled_from([256, 1024, 4096]),
    checkpointing=st.sampled_from(["off", "full"]), gpus_per_node=st.sampled_from([1, 2, 8]),
    sharding=st.sampled_from(["ddp", "fsdp", "zero2"]),
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(asked=_LAYOUTS, part=st.floats(0.05, 1.5), known=st.booleans(), step=st.sampled_from([None, 40]))
def test_the_global_batch_never_changes(asked: Layout, part: float, known: bool, step: int | None) -> None:
    micro, accumulation, gpus, sharding = asked.micro_batch, asked.accumulation, asked.gpus_per_node, asked.sharding
    said = training(per_device_train_batch_size=str(micro), gradient_accumulation_steps=str(accumulation)) | {"sharding": sharding}
    room = int(memory.gpu_memory(SHAPE, asked).total * part)
    fixed = FIXES["gpu_batch"](Case(config=said, fit=fit_json(asked, gpu_bytes=room) if known else None, step=step, world_size=gpus), {})
    if fixed is None:
        return
    values = new(fixed)
    rows = values.get("training.per_device_train_batch_size", micro), values.get("training.gradient_accumulation_steps", accumulation)
    assert rows[0] * rows[1] == micro * accumulation
    assert rows[0] <= micro
    assert all(str(change.old).lower() != str(change.new).lower() for change in fixed.changes)
    assert not {"resources.nodes", "resources.gpus_per_node", "training.max_length", "training.learning_rate"} & set(values)


# -- fragmentation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "variable", "name"),
    [
        (None, None, "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.9.1+cu128", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.13.0+cu130", "PYTORCH_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        ("2.6.0", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    ],
)
def test_the_variable_that_this_torch_heeds(torch: str | None, variable: str | None, name: str) -> None:
    case = Case(config=config(), extra={"torch": torch} if torch else {})
    fixed = FIXES["fragmentation"](case, {"variable": variable} if variable else {})
    assert new(fixed) == {f"environment.env.{name}": "expandable_segments:True"}


def test_a_variable_that_is_set_already() -> None:
    held = config(environment={"env": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}})
    assert new(FIXES["fragmentation"](Case(config=held), {})) == {
        "environment.env.PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"
    }
    done = config(environment={"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}})
    assert FIXES["fragmentation"](Case(config=done), {}) is None


# -- the host ----------------------------------------------------------------------------------------------------------


def test_more_memory() -> None:
    fixed = FIXES["host_memory"](Case(config=config(), samples=(sample(),)), {})
    assert text(fixed).splitlines() == ["--mem 64G -> 96G", "the samples saw 63.5 GiB of 64.0 GiB"]
    assert new(fixed) == {"resources.mem": "96G"}


def test_memory_without_a_config_is_only_said() -> None:
    account = Account(job_id="7", scheduler="slurm", state="OUT_OF_MEMORY", memory_bytes=32 * GIB)
    fixed = FIXES["host_memory"](Case(account=account), {})
    assert (text(fixed).splitlines()[0], new(fixed)) == ("--mem 32G -> 48G", {})


def test_memory_for_each_core() -> None:
    said = config(resources={"nodes": 1, "gpus_per_node": 4, "mem_per_cpu": 4 * GIB})
    fixed = FIXES["host_memory"](Case(config=said, samples=(sample(),)), {})
    assert (text(fixed).splitlines()[0], new(fixed)) == ("--mem-per-cpu 4G -> 6G", {"resources.mem_per_cpu": "6G"})


def test_a_node_has_no_more_than_it_has() -> None:
    small = Case(config=training(dataloader_num_workers="8"), samples=(sample(),), node_memory_bytes=80 * GIB)
    assert text(FIXES["host_memory"](small, {})).splitlines()[0] == "--mem 64G -> 0"
    full = replace(small, node_memory_bytes=64 * GIB)
    assert new(FIXES["host_memory"](full, {})) == {"training.dataloader_num_workers": 4}
    no_workers = replace(full, config=config())
    assert new(FIXES["host_memory"](no_workers, {})) == {}
    assert "fsdp" in text(FIXES["host_memory"](no_workers, {}))


def test_a_leak_gets_what_it_needs_to_the_end() -> None:
    samples = tuple(
        sample(step, rss_mib=2000 + 50 * step, cgroup_used_mib=25_000 + 50 * step, cgroup_limit_mib=65_536)
        for step in (10, 100, 200, 400, 800)
    )
    fixed = FIXES["host_memory"](Case(config=config(), samples=samples, max_steps=1600), {})
    assert new(fixed) == {"resources.mem": "128G"}  # (25,000 + 50 x 1600) MiB and 15 %
    assert "a leak" in text(fixed)


@given(
    mem=st.integers(512, 400_000).map(lambda mib: mib * MIB), node=st.none() | st.integers(512, 500_000).map(lambda mib: mib * MIB),
    workers=st.integers(0, 16), used=st.integers(1, 600_000),
)  # fmt: skip
@example(mem=GIB, node=1_600 * MIB, workers=0, used=1)
def test_sizes_only_grow_and_stay_below_the_node(mem: int, node: int | None, workers: int, used: int) -> None:
    said = training(dataloader_num_workers=str(workers))
    said["resources"] = {**said["resources"], "mem": mem}
    seen = sample(cgroup_limit_mib=mem // MIB, cgroup_used_mib=used, node_total_mib=None, node_used_mib=None)
    fixed = FIXES["host_memory"](Case(config=said, samples=(seen,), node_memory_bytes=node), {})
    if fixed is None:
        return
    for change in fixed.changes:
        if change.key == "resources.mem":
            size = memory_size.parse(str(change.new))
            assert size == 0 or mem < size
            assert node is None or size <= node
        else:
            assert (change.key, int(str(change.new)) < workers) == ("training.dataloader_num_workers", True)


@pytest.mark.parametrize(
    ("resources", "workers", "first"),
    [
        ({"gpus_per_node": 4, "cpus_per_gpu": 2}, None, "--cpus-per-gpu 2 -> 8"),
        ({"gpus_per_node": 4, "cpus_per_task": 4}, "11", "--cpus-per-task 4 -> 48"),
        ({"gpus_per_node": 4, "cpus_per_task": 32}, None, None),
        ({"gpus_per_node": 4}, None, "--cpus-per-gpu 1 -> 8"),
    ],
)
def test_more_cores(resources: dict[str, Any], workers: str | None, first: str | None) -> None:
    account = Account(job_id="7", scheduler="slurm", state="RUNNING", cpus=4, n_nodes=1)
    said = training(dataloader_num_workers=workers) | {"resources": resources}
    fixed = FIXES["cpus"](Case(config=said, account=account), {})
    assert (None if fixed is None else fixed.text.splitlines()[0]) == first


def test_fewer_workers() -> None:
    said = training(dataloader_num_workers="8")
    assert new(FIXES["workers"](Case(config=said), {})) == {"training.dataloader_num_workers": 4}
    assert new(FIXES["workers"](Case(config=said), {"suggested": "1"})) == {"training.dataloader_num_workers": 1}
    assert FIXES["workers"](Case(config=config()), {}) is None
