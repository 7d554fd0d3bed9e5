"""The fixes of single jobs: what is changed, and what is only said."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpctrain.explain.fixes import FIXES
from hpctrain.explain.model import AttemptFact, Change, Fix, JobContext
from hpctrain.fit import memory
from hpctrain.fit.layout import Layout
from hpctrain.fit.shape import ModelShape, read_shape
from hpctrain.slurm.notations import units
from hpctrain.slurm.notations.records import JobRecord
from tests.explain.fixes_case import GIB, T0, config, new, sample, text, training

MIB = 1 << 20
SHAPE = read_shape(
    {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "tie_word_embeddings": True,
    }
)


def fit_json(
    layout: Layout, *, gpu_bytes: int = 40 * GIB, shape: ModelShape = SHAPE
) -> dict[str, Any]:
    return {
        "schema": 1,
        "layout": asdict(layout),
        "shape": asdict(shape),
        "gpu": "NVIDIA A100-SXM4-40GB",
        "gpu_bytes": gpu_bytes,
        "measured": None,
    }


# -- GPU memory ------------------------------------------------------------------------------------


def test_half_the_micro_batch_where_nothing_is_measured() -> None:
    fixed = FIXES["gpu_batch"](JobContext(config=config()), {})
    assert (
        text(fixed).splitlines()[0]
        == "per_device_train_batch_size: 4 -> 2, gradient_accumulation_steps: 8 -> 16"
    )
    assert fixed == Fix(
        text=text(fixed),
        changes=(
            Change(key="training.per_device_train_batch_size", old="4", new=2),
            Change(key="training.gradient_accumulation_steps", old="8", new=16),
        ),
    )


def test_the_largest_micro_batch_that_fits_by_the_formula() -> None:
    """With room for exactly 6 of 16 rows and a little, 4 is the largest divisor of the batch that
    fits.
    """
    asked = Layout(gpus_per_node=4, micro_batch=16, accumulation=2, length=2048)
    room = int(memory.gpu_memory(SHAPE, replace(asked, micro_batch=6, accumulation=1)).total / 0.92)
    case = JobContext(
        config=training(per_device_train_batch_size="16", gradient_accumulation_steps="2"),
        fit=fit_json(asked, gpu_bytes=room),
    )
    assert new(FIXES["gpu_batch"](case, {})) == {
        "training.per_device_train_batch_size": 4,
        "training.gradient_accumulation_steps": 8,
    }
    assert "the global batch stays 128 sequences" in text(FIXES["gpu_batch"](case, {}))


def test_checkpointing_where_the_micro_batch_is_one() -> None:
    asked = Layout(gpus_per_node=4, micro_batch=1, accumulation=8, length=8192)
    assert (
        memory.gpu_memory(SHAPE, replace(asked, checkpointing="full")).total
        < 0.7 * memory.gpu_memory(SHAPE, asked).total
    )
    case = JobContext(
        config=training(per_device_train_batch_size="1"),
        fit=fit_json(asked, gpu_bytes=int(memory.gpu_memory(SHAPE, asked).total * 0.9)),
    )
    assert new(FIXES["gpu_batch"](case, {})) == {"training.activation_checkpointing": True}
    asked_off = replace(
        case, config=training(per_device_train_batch_size="1", gradient_checkpointing="false")
    )
    assert new(FIXES["gpu_batch"](asked_off, {})) == {"training.gradient_checkpointing": True}


def tight(step: int | None) -> JobContext:
    """Micro batch 1 with checkpointing, and weights that do not fit one GPU: only dividing them
    helps.
    """
    asked = Layout(
        gpus_per_node=4, micro_batch=1, accumulation=8, length=1024, checkpointing="full"
    )
    room = int(memory.gpu_memory(SHAPE, asked).total * 0.8)
    return JobContext(
        config=training(per_device_train_batch_size="1"),
        fit=fit_json(asked, gpu_bytes=room),
        step=step,
    )


def test_sharding_before_the_first_step_and_only_said_after_it() -> None:
    assert new(FIXES["gpu_batch"](tight(None), {})) == {"sharding": "fsdp"}
    later = FIXES["gpu_batch"](tight(300), {})
    assert new(later) == {}
    assert "cannot be resumed" in text(later)


_LAYOUTS = st.builds(
    Layout,
    micro_batch=st.integers(1, 24),
    accumulation=st.integers(1, 12),
    length=st.sampled_from([256, 1024, 4096]),
    checkpointing=st.sampled_from(["off", "full"]),
    gpus_per_node=st.sampled_from([1, 2, 8]),
    sharding=st.sampled_from(["ddp", "fsdp", "zero2"]),
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    asked=_LAYOUTS, part=st.floats(0.05, 1.5), known=st.booleans(), step=st.sampled_from([None, 40])
)
def test_the_global_batch_never_changes(
    asked: Layout, part: float, known: bool, step: int | None
) -> None:
    micro, accumulation, gpus, sharding = (
        asked.micro_batch,
        asked.accumulation,
        asked.gpus_per_node,
        asked.sharding,
    )
    said = training(
        per_device_train_batch_size=str(micro), gradient_accumulation_steps=str(accumulation)
    ) | {"sharding": sharding}
    room = int(memory.gpu_memory(SHAPE, asked).total * part)
    fixed = FIXES["gpu_batch"](
        JobContext(
            config=said,
            fit=fit_json(asked, gpu_bytes=room) if known else None,
            step=step,
            world_size=gpus,
        ),
        {},
    )
    if fixed is None:
        return
    values = new(fixed)
    rows = (
        values.get("training.per_device_train_batch_size", micro),
        values.get("training.gradient_accumulation_steps", accumulation),
    )
    assert rows[0] * rows[1] == micro * accumulation
    assert rows[0] <= micro
    assert all(str(change.old).lower() != str(change.new).lower() for change in fixed.changes)
    assert not {
        "resources.nodes",
        "resources.gpus_per_node",
        "training.max_length",
        "training.learning_rate",
    } & set(values)


# -- fragmentation ---------------------------------------------------------------------------------


def test_a_variable_that_is_set_already() -> None:
    held = config(environment={"env": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}})
    assert new(FIXES["fragmentation"](JobContext(config=held), {})) == {
        "environment.env.PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"
    }
    done = config(environment={"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}})
    assert FIXES["fragmentation"](JobContext(config=done), {}) is None


# -- the host --------------------------------------------------------------------------------------


def test_more_memory() -> None:
    fixed = FIXES["host_memory"](JobContext(config=config(), samples=(sample(),)), {})
    assert text(fixed).splitlines() == ["--mem 64G -> 96G", "the samples saw 63.5 GiB of 64 GiB"]
    assert new(fixed) == {"resources.mem": "96G"}


def test_memory_for_each_core() -> None:
    said = config(resources={"nodes": 1, "gpus_per_node": 4, "mem_per_cpu": 4 * GIB})
    fixed = FIXES["host_memory"](JobContext(config=said, samples=(sample(),)), {})
    assert (text(fixed).splitlines()[0], new(fixed)) == (
        "--mem-per-cpu 4G -> 6G",
        {"resources.mem_per_cpu": "6G"},
    )


def test_a_node_has_no_more_than_it_has() -> None:
    small = JobContext(config=config(), samples=(sample(),), node_memory_bytes=80 * GIB)
    assert text(FIXES["host_memory"](small, {})).splitlines()[0] == "--mem 64G -> 0"
    assert FIXES["host_memory"](replace(small, node_memory_bytes=64 * GIB), {}) is None


@given(
    mem=st.integers(512, 400_000).map(lambda mib: mib * MIB),
    node=st.none() | st.integers(512, 500_000).map(lambda mib: mib * MIB),
    used=st.integers(1, 600_000),
)
@example(mem=GIB, node=1_600 * MIB, used=1)
@example(mem=3_414 * MIB, node=5_121 * MIB, used=1)
def test_sizes_only_grow_and_stay_below_the_node(mem: int, node: int | None, used: int) -> None:
    said = config()
    said["resources"] = {**said["resources"], "mem": mem}
    seen = sample(
        cgroup_limit_mib=mem // MIB, cgroup_used_mib=used, node_total_mib=None, node_used_mib=None
    )
    fixed = FIXES["host_memory"](
        JobContext(config=said, samples=(seen,), node_memory_bytes=node), {}
    )
    if fixed is None:
        return
    for change in fixed.changes:
        size = units.parse_memory(str(change.new))
        assert size == 0 or mem < size
        assert node is None or size <= node


# -- Fixes of time, of the job itself, and what is true of all of them


# -- time ------------------------------------------------------------------------------------------


def slow(**more: Any) -> JobContext:
    said: dict[str, Any] = {
        "config": config(),
        "step": 7000,
        "max_steps": 9000,
        "step_s": 2.0,
        "account": JobRecord(job_id="7", scheduler="slurm", state="TIMEOUT", time_limit_s=4 * 3600),
        "attempts": (AttemptFact(name="7.0", started=T0, ended=T0 + 4 * 3600),),
    }
    return JobContext(**{**said, **more})


def test_a_longer_time_limit() -> None:
    fixed = FIXES["time_limit"](slow(), {})
    # 4 h and 2000 steps of 2 s, a tenth more, in quarters of an hour
    assert text(fixed).splitlines()[0] == "--time 04:00:00 -> 05:45:00"
    assert new(fixed) == {"resources.time": "05:45:00"}
    doubled = FIXES["time_limit"](slow(step_s=None), {})
    assert new(doubled) == {"resources.time": "08:00:00"}
    assert "nothing says how many steps are left" in text(doubled)
    at_most = FIXES["time_limit"](slow(step_s=None, extra={"time_max_s": 5 * 3600}), {})
    assert new(at_most) == {"resources.time": "05:00:00"}
    assert FIXES["time_limit"](slow(step_s=None, extra={"time_max_s": 4 * 3600}), {}) is None


def test_a_partition_that_allows_no_more() -> None:
    capped = slow(extra={"time_max_s": 5 * 3600})
    assert new(FIXES["time_limit"](capped, {})) == {"resources.time": "05:00:00"}
    alone = replace(capped, config=config(restart={"mode": "off", "max": 10}))
    assert new(FIXES["time_limit"](alone, {})) == {
        "resources.time": "05:00:00",
        "restart.mode": "requeue",
    }
    assert FIXES["time_limit"](slow(extra={"time_max_s": 4 * 3600}), {}) is None, (
        "it has all there is, and goes on by itself"
    )
    own = replace(capped, config=config(script="train.py"))
    assert new(FIXES["time_limit"](own, {})) == {"resources.time": "05:00:00"}
    assert "your script must resume" in text(FIXES["time_limit"](own, {}))


@given(
    had=st.integers(60, 30 * 86_400),
    step=st.integers(0, 10**5),
    left=st.integers(1, 10**5),
    step_s=st.floats(0.001, 600),
    most=st.none() | st.integers(60, 60 * 86_400),
)
def test_a_limit_only_grows_and_stays_below_the_partitions(
    had: int, step: int, left: int, step_s: float, most: int | None
) -> None:
    account = JobRecord(job_id="7", scheduler="slurm", state="TIMEOUT", time_limit_s=had)
    case = slow(
        account=account,
        step=step,
        max_steps=step + left,
        step_s=step_s,
        extra={} if most is None else {"time_max_s": most},
    )
    fixed = FIXES["time_limit"](case, {})
    for change in fixed.changes if fixed is not None else ():
        if change.key == "resources.time":
            seconds = units.parse_time(str(change.new))
            assert seconds is not None
            assert had < seconds
            assert most is None or seconds <= most


def test_a_limit_that_is_refused_is_cut() -> None:
    said = config(resources={"time": 2 * 86_400}, restart={"mode": "off"})
    fixed = FIXES["time_max"](JobContext(config=said, extra={"time_max_s": 86_400}), {})
    assert text(fixed).splitlines()[0] == "--time 2-00:00:00 -> 1-00:00:00"
    assert new(fixed) == {"resources.time": "1-00:00:00", "restart.mode": "requeue"}
    assert FIXES["time_max"](JobContext(config=config(), extra={"time_max_s": 86_400}), {}) is None
    assert FIXES["time_max"](JobContext(config=config()), {}) is None


# -- the job ---------------------------------------------------------------------------------------


def test_a_node_is_left_out() -> None:
    assert new(
        FIXES["exclude_node"](JobContext(config=config()), {"node": "n3.cluster.example"})
    ) == {"sbatch.exclude": "n3"}
    account = JobRecord(job_id="7", scheduler="slurm", state="NODE_FAIL", failed_node="n3")
    assert text(FIXES["exclude_node"](JobContext(account=account), {})).startswith("--exclude=n3\n")
    held = JobContext(config=config(sbatch={"exclude": "n[1-2]"}))
    assert new(FIXES["exclude_node"](held, {"node": "n3"})) == {"sbatch.exclude": "n[1-2],n3"}
    assert FIXES["exclude_node"](held, {"node": "n2"}) is None
    assert FIXES["exclude_node"](JobContext(config=config()), {"node": "n3; rm -rf ~"}) is None


def test_offline() -> None:
    fixed = FIXES["offline"](JobContext(config=config()), {"repo": "Qwen/Qwen2.5-0.5B"})
    assert (text(fixed).splitlines()[0], new(fixed)) == (
        "on a login node: hf download Qwen/Qwen2.5-0.5B",
        {},
    )
    assert FIXES["offline"](JobContext(config=config()), {"repo": "a b; reboot"}) is None


# -- all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FIXES))
@pytest.mark.parametrize(
    "odd",
    [
        JobContext(),
        JobContext(config={}),
        JobContext(config={"training": None, "resources": 3}),
        JobContext(config=config(), fit={"layout": 3}),
    ],
)
def test_no_case_is_too_odd(name: str, odd: JobContext) -> None:
    fixed = FIXES[name](odd, {"node": "", "repo": "", "port": "x", "most": "never"})
    assert fixed is None or (
        fixed.text and all(change.old != change.new for change in fixed.changes)
    )


@pytest.mark.parametrize("name", sorted(FIXES))
def test_a_fix_that_is_done_is_not_proposed_again(name: str) -> None:
    """Each fix, applied to the config, is followed by another step, or none, but not by itself."""
    base = training(dataloader_num_workers="8", save_steps="5000")
    base |= {
        "environment": {"env": {"NCCL_SOCKET_IFNAME": "ib0"}},
        "offline": False,
        "accelerate_config": "mine.yaml",
    }
    base["resources"] = {
        **base["resources"],
        "account": "a",
        "partition": "p",
        "qos": "q",
        "cpus_per_gpu": 1,
    }
    extra = {
        "time_max_s": 2 * 3600 if name == "time_max" else None,
    }
    case = slow(config=base, samples=(sample(),), extra=extra)
    fixed = FIXES[name](case, {"node": "n7"})
    if fixed is None or not fixed.changes:
        return
    done: dict[str, Any] = {**base}
    for change in fixed.changes:
        section, _, rest = change.key.rpartition(".")
        holder: dict[str, Any] = done
        for part in section.split(".") if section else ():
            holder[part] = dict(holder.get(part) or {})
            holder = holder[part]
        holder[rest] = _as_kept(change)
    after = replace(case, config=done, account=None, samples=())
    again = FIXES[name](after, {"node": "n7"})
    assert again is None or again.changes != fixed.changes


def _as_kept(change: Change) -> Any:
    """Return a value as the config keeps it: bytes, seconds, words."""
    if change.key == "resources.mem":
        return units.parse_memory(str(change.new))
    if change.key == "resources.time":
        return units.parse_time(str(change.new))
    return change.new if isinstance(change.new, bool) or change.new is None else str(change.new)


def test_an_interface_that_a_node_lacks_is_no_longer_named() -> None:
    said = config(environment={"env": {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_DEBUG": "INFO"}})
    fixed = FIXES["interface"](JobContext(config=said), {})
    assert new(fixed) == {"environment.env.NCCL_SOCKET_IFNAME": None}
    assert FIXES["interface"](JobContext(config=config()), {}) is None
