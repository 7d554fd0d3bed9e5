"""What the tests of fixes are made of: a config as it is kept, a sample, and what a fix says."""

from typing import Any

from hpctrain.explain.model import Fix
from hpctrain.memory.sample import Sample

GIB = 1 << 30
T0 = 1_795_000_000.0


def config(**more: Any) -> dict[str, Any]:
    """As runs/.launches/TAG/config.json holds it: training values as words, sizes in bytes, times
    in seconds.
    """
    said = {
        "script": None,
        "launcher": "accelerate",
        "sharding": "ddp",
        "accelerate_config": "multi_gpu.yaml",
        "offline": True,
        "restart": {"mode": "auto", "max": 10},
        "sbatch": {},
        "environment": {"env": {}},
        "resources": {
            "nodes": 1,
            "gpus_per_node": 4,
            "time": 4 * 3600,
            "mem": 64 * GIB,
            "mem_per_cpu": None,
            "cpus_per_task": None,
        },
        "training": {"per_device_train_batch_size": "4", "gradient_accumulation_steps": "8"},
    }
    return {**said, **more}


def training(**more: Any) -> dict[str, Any]:
    return config(
        training={"per_device_train_batch_size": "4", "gradient_accumulation_steps": "8", **more}
    )


def sample(step: int = 10, event: Any = "step", **more: Any) -> Sample:
    said: dict[str, Any] = {
        "time_ms": int((T0 + step) * 1000),
        "host": "n0",
        "rank": 0,
        "world_size": 4,
        "local_rank": 0,
        "cgroup_used_mib": 65_000,
        "cgroup_limit_mib": 65_536,
        "node_used_mib": 90_000,
        "node_total_mib": 256_000,
    }
    return Sample(step=step, event=event, **{**said, **more})


def new(fixed: Fix | None) -> dict[str, Any]:
    assert fixed is not None
    return {change.key: change.new for change in fixed.changes}


def text(fixed: Fix | None) -> str:
    return fixed.text
