"""What others know of the runs of a report: schedulers, the cluster's profile, the explanation. Asked once for all of them."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpctrain.cli import runs, runs_jobs, schedulers
from hpctrain.cli.report_chosen import Chosen
from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.explain.model import Explanation
from hpctrain.report import facts, ran_with
from hpctrain.report.facts import Facts, Given
from hpctrain.report.failures import NOT_READ
from hpctrain.runs import drop
from hpctrain.runs.store import Run
from hpctrain.scheduler.parse.accounting import Account

if TYPE_CHECKING:
    from hpctrain.clusters.live import LiveCluster
    from hpctrain.report.compare import Comparison

_EXPLAIN_S = 30.0
"""Seconds of reading logs of a sweep's failed runs, after which the others are left without a diagnosis."""
_MUCH = 50_000_000
"""Bytes of metrics and samples that take more than a second."""
_ASKED_S = 5.0
"""Seconds that Slurm may take to say what a partition is like."""


def of_run(chosen: Chosen) -> Facts:
    """Return what a report of one run shows."""
    _tell_of_long_reading(chosen)
    (given,) = _given(chosen.runs_dir, chosen.runs).values()
    return facts.gather(chosen.runs[0], chosen.runs_dir, given)


def of_several(chosen: Chosen, metric: str | None) -> Comparison:
    """Return what a report of several runs shows."""
    from hpctrain.report import compare

    _tell_of_long_reading(chosen)
    given = _given(chosen.runs_dir, chosen.runs)
    return compare.gather(
        chosen.runs, chosen.runs_dir, given, title=chosen.title, study=chosen.study, metric=metric,
        now=next(iter(given.values())).now, not_begun=chosen.not_begun,
    )  # fmt: skip


def _tell_of_long_reading(chosen: Chosen) -> None:
    """Say how much is to be read, where that takes some seconds."""
    size = 0
    for run in chosen.runs:
        for pattern in ("attempts/*/metrics.jsonl", "memory/rank-*.jsonl"):
            for path in (chosen.runs_dir / run.id).glob(pattern):
                with contextlib.suppress(OSError):
                    size += path.stat().st_size
    if size >= _MUCH:
        click.echo(f"note: reading {size / 1e6:.0f} MB of metrics and samples", err=True)


def _given(runs_dir: Path, chosen: Sequence[Run]) -> dict[str, Given]:
    now = time.time()
    survey = runs_jobs.survey(runs_dir, chosen)
    accounts, silent = _accounts(chosen)
    unanswered = survey.silent or silent
    said = runs.silence(unanswered) if unanswered is not None else None
    if said is not None:
        click.echo(f"note: {said}; what a scheduler would say is left out", err=True)
    found = {}
    until = time.monotonic() + _EXPLAIN_S
    unread = 0
    for run in chosen:
        state = survey.states[run.id]
        explanation, why = None, None
        if len(chosen) == 1:
            explanation, why = _explanation(runs_dir, run, None)
        elif state.word == "failed" and time.monotonic() < until:
            explanation, why = _explanation(runs_dir, run, accounts)
        elif state.word == "failed":
            unread, why = unread + 1, NOT_READ
        mine = tuple(account for job in run.job_ids for account in accounts if job in (account.job_id, account.slurm_job_id))
        found[run.id] = Given(
            state=state, owner=_owner(runs_dir / run.id), accounts=mine, explanation=explanation, unexplained=why, silent=said,
            whole_nodes=_whole_nodes(runs_dir, run, mine), now=now,
        )  # fmt: skip
    if unread:
        click.echo(f"note: the logs of {unread} failed runs were not read: the others took {_EXPLAIN_S:.0f} s", err=True)
    return found


def _owner(directory: Path) -> str:
    try:
        return drop.owner(directory.stat().st_uid)
    except OSError:
        return "-"


def _accounts(chosen: Sequence[Run]) -> tuple[list[Account], SchedulerError | None]:
    """Return the records of all jobs of the runs, by one question; and what kept it from being answered."""
    near = {attempt.job: attempt.started for run in chosen for attempt in run.attempts if attempt.job and attempt.started is not None}
    jobs = list(dict.fromkeys(job for run in chosen for job in run.job_ids))
    if not jobs:
        return [], None
    try:
        return schedulers.accounts(jobs, near=near), None
    except SchedulerError as error:
        return [], error


def _explanation(runs_dir: Path, run: Run, accounts: Sequence[Account] | None) -> tuple[Explanation | None, str | None]:
    """Return the diagnosis of a run; where it cannot be made, why."""
    try:
        from hpctrain.cli import explain_case

        return explain_case.explanation(run.id, runs_dir=runs_dir, accounts=accounts).explanation, None
    except HpctrainError as error:
        return None, f"No diagnosis: {error.what}."
    except Exception as error:  # a mistake there takes nobody's curves away; the page says it
        return None, f"No diagnosis: a mistake in hpctrain: {type(error).__name__}: {error}; hpctrain --debug explain {run.id} says where."


def _whole_nodes(runs_dir: Path, run: Run, accounts: Sequence[Account]) -> bool | None:
    """Return whether a job gets, and pays for, its nodes whole; None where that is not known, or the run was local.

    The site's profile says what is billed. Where it says nothing, Slurm says what is handed out.
    """
    if accounts and accounts[-1].scheduler == "local":
        return None
    config = ran_with.read(run, runs_dir).config or {}
    directives = config.get("sbatch")
    if isinstance(directives, Mapping) and directives.get("exclusive", "no") in (None, True, "", "true"):
        return True  # asked for: then no other job is on its nodes, and they are paid for
    resources = config.get("resources")
    partition = accounts[-1].partition if accounts else resources.get("partition") if isinstance(resources, Mapping) else None
    cluster = config.get("cluster")
    said = _profiled(cluster if isinstance(cluster, str) else None, str(partition)) if partition else None
    return _handed_out(str(partition)) if said is None and partition and accounts else said


@functools.cache
def _profiled(cluster: str | None, partition: str) -> bool | None:
    """Return what the cluster's profile says of a partition."""
    from hpctrain.clusters import load

    try:
        name = cluster or next(iter(load.detect(os.environ, cluster_name=None, hosts=(os.uname().nodename,))), None)
        profile = load.load(name, os.environ).profile if name else None
    except (HpctrainError, OSError):
        return None
    part = profile.partitions.get(partition) if profile is not None else None
    return part.whole_nodes if part is not None else None


@functools.cache
def _handed_out(partition: str) -> bool | None:
    """Return what Slurm says of a partition: OverSubscribe=EXCLUSIVE, or select/linear for all of them."""
    live = _live()
    part = live.partition(partition)
    return True if live.whole_nodes or (part is not None and part.exclusive) else None if part is None else part.exclusive


@functools.cache
def _live() -> LiveCluster:
    from hpctrain.scheduler import discover

    return discover.discover(timeout=_ASKED_S)
