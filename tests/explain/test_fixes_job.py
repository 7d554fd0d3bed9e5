"""Fixes of time, of the job itself, and what is true of all of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from fixes_case import T0, config, new, sample, text, training

from hpctrain.explain.case import AttemptFact, Case
from hpctrain.explain.fixes import FIXES
from hpctrain.explain.model import Change
from hpctrain.scheduler.parse import duration, memory_size
from hpctrain.scheduler.parse.accounting import Account

# -- time --------------------------------------------------------------------------------------------------------------


def slow(**more: Any) -> Case:
    said: dict[str, Any] = {
        "config": config(), "step": 7000, "max_steps": 9000, "step_s": 2.0,
        "account": Account(job_id="7", scheduler="slurm", state="TIMEOUT", time_limit_s=4 * 3600),
        "attempts": (AttemptFact(name="7.0", started=T0, ended=T0 + 4 * 3600),),
    }  # fmt: skip
    return Case(**{**said, **more})


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
    assert new(FIXES["time_limit"](alone, {})) == {"resources.time": "05:00:00", "restart.mode": "requeue"}
    assert FIXES["time_limit"](slow(extra={"time_max_s": 4 * 3600}), {}) is None, "it has all there is, and goes on by itself"
    own = replace(capped, config=config(script="train.py"))
    assert new(FIXES["time_limit"](own, {})) == {"resources.time": "05:00:00"}
    assert "if your script resumes" in text(FIXES["time_limit"](own, {}))


@given(
    had=st.integers(60, 30 * 86_400), step=st.integers(0, 10**5), left=st.integers(1, 10**5), step_s=st.floats(0.001, 600),
    most=st.none() | st.integers(60, 60 * 86_400),
)  # fmt: skip
def test_a_limit_only_grows_and_stays_below_the_partitions(had: int, step: int, left: int, step_s: float, most: int | None) -> None:
    account = Account(job_id="7", scheduler="slurm", state="TIMEOUT", time_limit_s=had)
    case = slow(account=account, step=step, max_steps=step + left, step_s=step_s, extra={} if most is None else {"time_max_s": most})
    fixed = FIXES["time_limit"](case, {})
    for change in fixed.changes if fixed is not None else ():
        if change.key == "resources.time":
            seconds = duration.parse(str(change.new))
            assert seconds is not None
            assert had < seconds
            assert most is None or seconds <= most


def test_a_limit_that_is_refused_is_cut() -> None:
    said = config(resources={"time": 2 * 86_400}, restart={"mode": "off"})
    fixed = FIXES["time_max"](Case(config=said, extra={"time_max_s": 86_400}), {})
    assert text(fixed).splitlines()[0] == "--time 2-00:00:00 -> 1-00:00:00"
    assert new(fixed) == {"resources.time": "1-00:00:00", "restart.mode": "requeue"}
    assert FIXES["time_max"](Case(config=config(), extra={"time_max_s": 86_400}), {}) is None
    assert FIXES["time_max"](Case(config=config()), {}) is None


def test_saves_that_lose_less() -> None:
    fixed = FIXES["save_steps"](slow(step_s=20.0, config=training(save_steps="500")), {})
    assert new(fixed) == {"training.save_steps": 20}
    assert FIXES["save_steps"](slow(config=training(save_steps="100")), {}) is None, "every 200 s already"
    assert FIXES["save_steps"](slow(step_s=20.0, config=training(save_strategy="epoch")), {}) is None


# -- the job -----------------------------------------------------------------------------------------------------------


def test_a_node_is_left_out() -> None:
    assert new(FIXES["exclude_node"](Case(config=config()), {"node": "n3.cluster.example"})) == {"sbatch.exclude": "n3"}
    account = Account(job_id="7", scheduler="slurm", state="NODE_FAIL", failed_node="n3")
    assert text(FIXES["exclude_node"](Case(account=account), {})).startswith("--exclude=n3\n")
    held = Case(config=config(sbatch={"exclude": "n[1-2]"}))
    assert new(FIXES["exclude_node"](held, {"node": "n3"})) == {"sbatch.exclude": "n[1-2],n3"}
    assert FIXES["exclude_node"](held, {"node": "n2"}) is None
    assert FIXES["exclude_node"](Case(config=config()), {"node": "n3; rm -rf ~"}) is None


def test_processes_that_an_own_accelerate_config_holds_back() -> None:
    fixed = FIXES["world_size"](Case(config=config(accelerate_config="mine.yaml")), {"world_size": "1"})
    assert new(fixed) == {"accelerate_config": "multi_gpu.yaml"}
    assert "mine.yaml starts 1 processes, and the job has GPUs for 4" in text(fixed)
    assert FIXES["world_size"](Case(config=config()), {}) is None


def test_offline() -> None:
    online = Case(config=config(offline=False))
    assert new(FIXES["offline"](online, {"repo": "Qwen/Qwen2.5-0.5B"})) == {"offline": True}
    fixed = FIXES["offline"](Case(config=config()), {"repo": "Qwen/Qwen2.5-0.5B"})
    assert (text(fixed).splitlines()[0], new(fixed)) == ("on a login node: hf download Qwen/Qwen2.5-0.5B", {})
    assert FIXES["offline"](Case(config=config()), {"repo": "a b; reboot"}) is None


def test_a_port_that_is_taken() -> None:
    assert text(FIXES["port"](Case(config=config(), extra={"run": "sft-1"}), {"port": "20007"})).startswith("hpctrain resubmit sft-1\n")
    assert "SLURM_JOB_ID" in text(FIXES["port"](Case(), {}))


@pytest.mark.parametrize(("name", "known"), [("account", "accounts"), ("partition", "partitions"), ("qos", "qos")])
def test_what_slurm_lists(name: str, known: str) -> None:
    said = config(resources={name: "wrong"})
    one = Case(config=said, extra={known: ("wrong", "right")})
    assert (text(FIXES[name](one, {})).splitlines()[0], new(FIXES[name](one, {}))) == (
        f"--{name} wrong -> right",
        {f"resources.{name}": "right"},
    )
    two = Case(config=said, extra={known: ("right", "left")})
    assert (text(FIXES[name](two, {})).splitlines()[0], new(FIXES[name](two, {}))) == (f"--{name} one of: right, left", {})
    assert FIXES[name](Case(config=said), {}) is None


def test_the_networks_variables_are_those_of_the_profile() -> None:
    profile = {"name": "here", "network": {"interface": "hsn", "variables": {"NCCL_NET": "AWS Libfabric"}}}
    said = config(environment={"env": {"NCCL_SOCKET_IFNAME": "ib0"}})
    fixed = FIXES["nccl"](Case(config=said, extra={"profile": profile}), {})
    assert new(fixed) == {
        "environment.env.NCCL_SOCKET_IFNAME": "hsn", "environment.env.GLOO_SOCKET_IFNAME": "hsn",
        "environment.env.NCCL_NET": "AWS Libfabric",
    }  # fmt: skip
    assert new(FIXES["nccl"](Case(config=said), {})) == {"environment.env.NCCL_SOCKET_IFNAME": None}
    assert FIXES["nccl"](Case(config=config()), {}) is None


def test_another_learning_rate_is_another_training() -> None:
    fixed = FIXES["learning_rate"](Case(config=training(learning_rate="3e-4")), {})
    assert new(fixed) == {}
    assert text(fixed).splitlines() == [
        "learning_rate: 0.0003 -> 1e-4; another training, so another run: a checkpoint would bring its own learning rate along",
        "hpctrain submit --run-id NEW_NAME -- --learning_rate 1e-4",
    ]


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FIXES))
@pytest.mark.parametrize(
    "odd", [Case(), Case(config={}), Case(config={"training": None, "resources": 3}), Case(config=config(), fit={"layout": 3})]
)
def test_no_case_is_too_odd(name: str, odd: Case) -> None:
    fixed = FIXES[name](odd, {"node": "", "repo": "", "port": "x", "suggested": "many", "most": "never"})
    assert fixed is None or (fixed.text and all(change.old != change.new for change in fixed.changes))


@pytest.mark.parametrize("name", sorted(FIXES))
def test_a_fix_that_is_done_is_not_proposed_again(name: str) -> None:
    """Each fix, applied to the config, is followed by another step, or none, but not by itself."""
    base = training(dataloader_num_workers="8", save_steps="5000")
    base |= {
        "environment": {"env": {"NCCL_SOCKET_IFNAME": "ib0"}},
        "offline": False,
        "accelerate_config": "mine.yaml",
    }
    base["resources"] = {**base["resources"], "account": "a", "partition": "p", "qos": "q", "cpus_per_gpu": 1}
    extra = {"accounts": ("b",), "partitions": ("c",), "qos": ("d",), "time_max_s": 2 * 3600 if name == "time_max" else None}
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
        return memory_size.parse(str(change.new))
    if change.key == "resources.time":
        return duration.parse(str(change.new))
    return change.new if isinstance(change.new, bool) or change.new is None else str(change.new)
