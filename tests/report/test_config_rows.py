"""What a report says of the config is what a person would write into one."""

from __future__ import annotations

from hpctrain.report import facts


def test_time_and_memory_have_their_units() -> None:
    values = {"resources": {"time": 5400, "mem": 64 * 1024**3, "mem_per_cpu": None, "nodes": 2}, "training": {"time": 7}}
    paths = ("resources.time", "resources.mem", "resources.mem_per_cpu", "resources.nodes", "training.time")
    rows = facts._config(values, dict.fromkeys(paths, "config.yaml:1:1"))
    assert [value for _, value, _ in rows][:2] == ["01:30:00", "64G"]
    assert [value for _, value, _ in rows][3:] == ["2", "7"]
