"""What others know of the runs of a report: schedulers, the cluster's profile, the explanation. Asked once for all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctrain.cli import runs, runs_jobs, schedulers
from hpctrain.cli.report_chosen import Chosen
from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.explain.model import Explanation
from hpctrain.report import facts
from hpctrain.report.facts import Facts, Given
from hpctrain.runs import drop, layout, store
from hpctrain.runs.store import Run
from hpctrain.scheduler.parse.accounting import Account

if TYPE_CHECKING:
    from hpctrain.report.compare import Comparison

_EXPLAINED = 12
"""Runs of a sweep whose logs are read for a diagnosis."""


def of_run(chosen: Chosen) -> Facts:
    """Return what a report of one run shows."""
    (given,) = _given(chosen.runs_dir, chosen.runs).values()
    return facts.gather(chosen.runs[0], chosen.runs_dir, given)


def of_several(chosen: Chosen, metric: str | None) -> Comparison:
    """Return what a report of several runs shows."""
    from hpctrain.report import compare

    given = _given(chosen.runs_dir, chosen.runs)
    return compare.gather(
        chosen.runs, chosen.runs_dir, given, title=chosen.title, study=chosen.study, metric=metric,
        now=next(iter(given.values())).now,
    )  # fmt: skip


def _given(runs_dir: Path, chosen: Sequence[Run]) -> dict[str, Given]:
    now = time.time()
    survey = runs_jobs.survey(runs_dir, chosen)
    accounts, silent = _accounts(chosen)
    unanswered = survey.silent or silent
    said = runs.silence(unanswered) if unanswered is not None else None
    if said is not None:
        click.echo(f"note: {said}; what a scheduler would say is left out", err=True)
    found = {}
    explained = 0
    for run in chosen:
        state = survey.states[run.id]
        explanation, why = None, None
        if (len(chosen) == 1 or state.word == "failed") and explained < _EXPLAINED:
            explained += 1
            explanation, why = _explanation(runs_dir, run)
        mine = tuple(account for job in run.job_ids for account in accounts if job in (account.job_id, account.slurm_job_id))
        found[run.id] = Given(
            state=state, owner=_owner(runs_dir / run.id), accounts=mine, explanation=explanation, unexplained=why, silent=said,
            whole_nodes=_whole_nodes(runs_dir, run, mine), now=now,
        )  # fmt: skip
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


def _explanation(runs_dir: Path, run: Run) -> tuple[Explanation | None, str | None]:
    """Return the diagnosis of a run; where it cannot be made, why."""
    try:
        from hpctrain.cli import explain_case

        return explain_case.explanation(run.id, runs_dir=runs_dir).explanation, None
    except HpctrainError as error:
        return None, f"No diagnosis: {error.what}."
    except Exception as error:  # a mistake there takes nobody's curves away; the page says it
        return None, f"No diagnosis: a mistake in hpctrain: {type(error).__name__}: {error}; hpctrain --debug explain {run.id} says where."


def _whole_nodes(runs_dir: Path, run: Run, accounts: Sequence[Account]) -> bool | None:
    """Return whether the site bills whole nodes, as its profile says; None where that is not known, or the run was local."""
    from hpctrain.clusters import load

    if accounts and accounts[-1].scheduler == "local":
        return None
    config = _config(runs_dir, run)
    resources = config.get("resources")
    partition = accounts[-1].partition if accounts else resources.get("partition") if isinstance(resources, Mapping) else None
    try:
        name = config.get("cluster") or next(iter(load.detect(os.environ, cluster_name=None, hosts=(os.uname().nodename,))), None)
        profile = load.load(str(name), os.environ).profile if name else None
    except (HpctrainError, OSError):
        return None
    part = profile.partitions.get(str(partition)) if profile is not None and partition else None
    return part.whole_nodes if part is not None else None


def _config(runs_dir: Path, run: Run) -> dict[str, Any]:
    launch = runs_dir / layout.LAUNCHES / run.tag
    for path in (launch / f"config.{run.stage}.json", launch / "config.json"):
        value = (store.read_object(str(path)) or {}).get("config")
        if isinstance(value, dict):
            return value
    return {}
