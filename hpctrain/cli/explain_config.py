"""The config that a run's newest start was submitted with, and what the cluster says of the limits that it ran into."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpctrain.clusters.live import LiveCluster
from hpctrain.errors import HpctrainError
from hpctrain.explain.case import Case
from hpctrain.runs import launch, layout, store
from hpctrain.runs.launch import Submission
from hpctrain.runs.store import Run
from hpctrain.scheduler.parse import array, states
from hpctrain.scheduler.parse.accounting import Account

_TIMEOUT_S = 5.0
#: What ended, or holds, a job whose fix depends on what the cluster gives: only then Slurm is asked for its partitions.
_OF_LIMITS = frozenset({"TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"}) | states.WAITING


def of_run(run_dir: Path, run: Run) -> Mapping[str, Any] | None:
    """Return the job config of the newest submission, with what was typed behind `--`, and a sweep's point, in its training; or None."""
    whole = launch.load(run_dir.parent, run.tag)
    sent = [each for each in whole.submissions if each.stage == run.stage and _covers(each, run.index)] if whole is not None else []
    place = run_dir.parent / layout.LAUNCHES / run.tag
    newest = max(sent, key=lambda each: each.at, default=None)
    named = [place / newest.config] if newest is not None and newest.config else []
    stage = [place / f"config.{run.stage}.json"] if run.stage else []
    for path in (*named, run_dir / "config.json", *stage, place / "config.json"):
        config = (store.read_object(str(path)) or {}).get("config")
        if isinstance(config, dict):
            script = place / "scripts" / newest.script if newest is not None and newest.script else run_dir / "script.sbatch"
            training = {**(config.get("training") or {}), **_typed(_arguments(script)), **_point(run_dir)}
            return {**config, "training": training}
    return None


def _covers(submission: Submission, index: int | None) -> bool:
    if index is None or submission.array is None:
        return True
    try:
        return index - submission.offset in array.parse(submission.array).indices
    except ValueError:
        return True


def _arguments(script: Path) -> Sequence[str]:
    """Return the words behind `--` that a script was made with."""
    from hpctrain.cli.job_options import parse_request
    from hpctrain.jobs import render

    try:
        made = render.read_header(script.read_text(errors="replace"))
        return parse_request(made.arguments).arguments if made is not None else ()
    except (OSError, ValueError, HpctrainError):
        return ()


def _typed(arguments: Sequence[str]) -> dict[str, str]:
    """Return the options among words: `--name value` and `--name=value`; one without a value is true."""
    found: dict[str, str] = {}
    for number, each in enumerate(arguments):
        name, equals, value = each.partition("=")
        if name.startswith("--") and len(name) > 2:
            follows = arguments[number + 1] if number + 1 < len(arguments) else "--"
            found[name[2:].replace("-", "_")] = value if equals else "true" if follows.startswith("--") else follows
    return found


def _point(run_dir: Path) -> dict[str, Any]:
    said = store.read_object(str(run_dir / "point.json")) or {}
    return {str(name).removeprefix("training."): value for name, value in said.items() if isinstance(value, str | int | float | bool)}


# -- the cluster -------------------------------------------------------------------------------------------------------


def with_cluster(case: Case) -> Case:
    """Return the case with what the profile that the config names, and, of a job that met a limit, Slurm itself, say of its partition."""
    extra = {**case.extra, **_people(case.account)}
    name = (case.config or {}).get("cluster")
    partition = case.account.partition if case.account is not None else None
    partition = partition or ((case.config or {}).get("resources") or {}).get("partition")
    case = replace(case, extra=extra)
    if isinstance(name, str) and name:
        case = _with_profile(case, name, partition)
    if case.account is not None and case.account.scheduler == "slurm" and case.account.state in _OF_LIMITS:
        case = _with_live(case, partition)
    return case


def _people(account: Account | None) -> dict[str, Any]:
    """Return who the owner of the job is, and who cancelled it."""
    import pwd

    found: dict[str, Any] = {}
    if account is None or account.cancelled_by is None:
        return found
    with contextlib.suppress(KeyError, OverflowError):
        found["canceller"] = pwd.getpwuid(account.cancelled_by).pw_name
    with contextlib.suppress(KeyError):
        found["owner_uid"] = pwd.getpwnam(account.user or "").pw_uid
    return found


def _with_profile(case: Case, name: str, partition: object) -> Case:
    from hpctrain.clusters import load

    try:
        profile = load.load(name, os.environ).profile
    except HpctrainError:
        return case
    extra: dict[str, Any] = {**case.extra, "profile": json.loads(profile.model_dump_json())}
    known = profile.partitions.get(str(partition)) if partition is not None else None
    shape = profile.nodes.get(known.nodes) if known is not None and known.nodes is not None else None
    if known is not None and known.time_max:
        extra["time_max_s"] = known.time_max
    if shape is not None and shape.cpus:
        extra["cpus_per_node"] = shape.cpus
    return replace(
        case, extra=extra, gpu_memory_bytes=case.gpu_memory_bytes or (shape.gpu_memory if shape else None),
        node_memory_bytes=case.node_memory_bytes or (shape.memory if shape and not shape.memory_installed else None),
    )  # fmt: skip


def _with_live(case: Case, partition: object) -> Case:
    from hpctrain.scheduler import discover

    if not discover.is_available():
        return case
    live = discover.discover(timeout=_TIMEOUT_S)
    extra = dict(case.extra)
    known = next((each for each in live.partitions or () if each.name == partition), None)
    shapes = known.nodes if known is not None else ()
    if known is not None and known.time_max:
        extra["time_max_s"] = known.time_max
    if cpus := [shape.cpus for shape in shapes if shape.cpus]:
        extra["cpus_per_node"] = min(cpus)
    memory = [shape.memory for shape in shapes if shape.memory]
    return replace(case, extra=extra | _allowed(live), node_memory_bytes=case.node_memory_bytes or min(memory, default=None))


def _allowed(live: LiveCluster) -> dict[str, tuple[str, ...]]:
    """Return what the user may name: accounts, partitions that are up, and QOS; what Slurm did not say is left out."""
    found = {
        "accounts": live.accounts,
        "partitions": None if live.partitions is None else tuple(each.name for each in live.partitions if each.up is not False),
        "qos": None if live.associations is None else tuple(dict.fromkeys(name for each in live.associations for name in each.qos)),
    }
    return {name: values for name, values in found.items() if values}
