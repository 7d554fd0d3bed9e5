"""Helpers of facts and fixes: values of the case, and how they are displayed. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hpctrain.config.spec import SIZES
from hpctrain.explain.model import AttemptFact, Certainty, Change, Evidence, Fix, JobContext, Scalar
from hpctrain.memory.sample import Sample
from hpctrain.slurm.notations import states, units
from hpctrain.util.text import is_number

MIB, GIB = 1 << 20, 1 << 30
SAMPLES, METRICS, SACCT, CONFIG, LOGS = "samples", "metrics", "sacct", "config", "logs"
_MOST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a fact has found.

    Attributes:
        groups: names for the rule's sentences; facts.py lists those of each fact.
        evidence: the strongest first; `file` is samples, metrics, sacct, config or logs, `line`
            None.
        rank, node: where it began; None if unknown, or if it affects all of them.
        at: when it began, seconds since the epoch.
        attempt: the affected attempt.
        certainty: overrides the rule's certainty if this proof is stronger; None keeps it.
    """

    groups: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[Evidence, ...]
    rank: int | None = None
    node: str | None = None
    at: float | None = None
    attempt: str | None = None
    certainty: Certainty | None = None


def evidence(file: str, text: str) -> Evidence:
    """Return evidence that is not a line of a file."""
    return Evidence(
        file=file, line=None, text=text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"
    )


def groups(**values: object) -> dict[str, str]:
    """Return the known groups, as text."""
    return {name: str(value) for name, value in values.items() if value is not None}


# -- text ------------------------------------------------------------------------------------------


def clock(at: float, zone_s: int | None = None) -> str:
    """Format seconds since the epoch as `2026-11-22T04:10:00Z`; with `zone_s`, in a clock that many
    seconds ahead of UTC, without the `Z`.
    """
    shown = datetime.fromtimestamp(int(at) + (zone_s or 0), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return shown if zone_s is not None else f"{shown}Z"


def some(values: Iterable[object], most: int = 6) -> str:
    """Join values to a list, truncated if it is long."""
    words = [str(value) for value in values]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def where(sample: Sample) -> str:
    """Describe where and when a sample was taken."""
    return (
        f"rank {sample.rank} on {sample.host}, step {sample.step}, {clock(sample.time_ms / 1000)}"
    )


# -- the case --------------------------------------------------------------------------------------


def last_attempt(case: JobContext) -> AttemptFact | None:
    """Return the newest start of the job."""
    return case.attempts[-1] if case.attempts else None


def began(case: JobContext) -> float | None:
    """Return when the newest start began."""
    last = last_attempt(case)
    if last is not None and last.started is not None:
        return last.started
    return case.account.started if case.account is not None else None


def is_over(case: JobContext) -> bool:
    """Whether the job has ended, as far as is known."""
    if case.account is not None:
        return states.is_final(case.account.state)
    last = last_attempt(case)
    return last is not None and last.ended is not None


def ended(case: JobContext) -> float | None:
    """Return when the newest start ended; for a running job, when it was checked."""
    last, account = last_attempt(case), case.account
    known = [
        at
        for at in (last.ended if last else None, account.ended if account else None)
        if at is not None
    ]
    if known:
        return max(known)
    if (
        account is not None
        and account.started is not None
        and account.elapsed_s is not None
        and is_over(case)
    ):
        return account.started + account.elapsed_s
    return None if is_over(case) or case.account is None else case.now


def current(case: JobContext) -> tuple[Sample, ...]:
    """Return the samples of the newest start, sorted by time."""
    since, ordered = began(case), sorted(case.samples, key=lambda sample: sample.time_ms)
    if len(case.attempts) < 2 or since is None:
        return tuple(ordered)
    return tuple(sample for sample in ordered if sample.time_ms / 1000 >= since - 60)


def by_rank(samples: Sequence[Sample]) -> dict[int, list[Sample]]:
    """Return rank → its samples, sorted by time."""
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.rank, []).append(sample)
    return dict(sorted(found.items()))


def newest(samples: Sequence[Sample]) -> dict[int, Sample]:
    """Return rank → its last sample."""
    return {rank: found[-1] for rank, found in by_rank(samples).items()}


def setting(case: JobContext, *path: str) -> Any:
    """Return the job config's value at a path; None if it is not set, or the config is unknown."""
    value: Any = case.config
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def whole(value: object) -> int | None:
    """Parse an integer from the config or a group of a signature; None for anything else."""
    if isinstance(value, bool):
        return None
    text = str(value).strip()
    return int(text) if is_number(text) else None


def processes_asked(case: JobContext) -> int | None:
    """Return the requested number of processes according to the config: one per GPU, or per node on
    the CPU.
    """
    nodes, gpus = (
        whole(setting(case, "resources", "nodes")),
        whole(setting(case, "resources", "gpus_per_node")),
    )
    return nodes * (gpus or 1) if nodes and gpus is not None else case.world_size


Groups = Mapping[str, str]

#: Keys that are options of both sbatch and hpctrain.
_OPTIONS = {
    "resources.mem": "--mem",
    "resources.mem_per_cpu": "--mem-per-cpu",
    "resources.time": "--time",
    "resources.nodes": "--nodes",
    "resources.gpus_per_node": "--gpus",
    "resources.cpus_per_task": "--cpus-per-task",
    "resources.cpus_per_gpu": "--cpus-per-gpu",
    "resources.partition": "--partition",
    "resources.account": "--account",
    "resources.qos": "--qos",
    "restart.mode": "--restart",
}


def change(case: JobContext, key: str, new: Scalar) -> Change:
    """Return a change of a key from its config value, or from None if it is not set."""
    old = setting(case, *path_of(key))
    is_plain = old is None or isinstance(old, str | int | float | bool)
    return Change(key=key, old=old if is_plain else str(old), new=new)


def path_of(key: str) -> tuple[str, ...]:
    """Split a key into its path; everything after `environment.env` and `sbatch` is one key."""
    for section in ("environment.env.", "sbatch.", "training."):
        if key.startswith(section):
            return (*section.rstrip(".").split("."), key.removeprefix(section))
    return tuple(key.split("."))


def is_ours(case: JobContext) -> bool:
    """Whether the training is hpctrain's own, so that the meaning of its options is known."""
    return case.config is not None and setting(case, "script") is None


def kept(case: JobContext, *changes: Change) -> tuple[Change, ...]:
    """Return the changes that `--apply-fix` can make: none without a config, and none without
    effect.
    """
    return (
        ()
        if case.config is None
        else tuple(each for each in changes if str(each.old).lower() != str(each.new).lower())
    )


def told(each: Change) -> str:
    """Format a change as the user types it: `--mem 64G -> 96G`, `per_device_train_batch_size: 4 ->
    2`.
    """
    option, old, new = _OPTIONS.get(each.key), shown(each.key, each.old), shown(each.key, each.new)
    if option is not None:
        return f"{option} {old} -> {new}" if each.old is not None else f"{option} {new}"
    name = each.key.removeprefix("training.")
    return f"{name}: {old} -> {new}"


def shown(key: str, value: Scalar) -> str:
    """Format a config value: sizes and times in Slurm's notation, None as `not set`."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    size = whole(value)
    if key.partition("resources.")[2] in SIZES and size is not None:
        return units.format_memory(size)
    if key == "resources.time" and size is not None:
        return units.format_time(size)
    return str(value)


def fix(first: str, *changes: Change, more: str = "") -> Fix:
    """Return a fix: the action in the first line, an explanation in the second."""
    return Fix(text=f"{first}\n{more}" if more else first, changes=changes)
