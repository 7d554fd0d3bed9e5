"""Checks a job before it queues, for `hpctrain check`, submissions and the Python API.

The layers are resolved, the site is queried, the environment gathered, the rules applied. Last,
Slurm validates the scripts (`sbatch --test-only`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain.checks import gather
from hpctrain.checks.job import check, refusal
from hpctrain.checks.job.context import Case
from hpctrain.clusters import discover, load
from hpctrain.clusters.live import LiveCluster
from hpctrain.clusters.merge import merge
from hpctrain.clusters.profile import Cluster
from hpctrain.config.fields import BY_PATH
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.finding import Finding
from hpctrain.jobs.request import Job, Request
from hpctrain.jobs.scripts import Script, jobs_of, scripts_of
from hpctrain.slurm.client import SlurmScheduler

#: Seconds for each query of Slurm; a handful run concurrently.
DISCOVERY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheck:
    """The result of the check.

    Attributes:
        cluster: the site's profile, merged with Slurm's answers.
        ignored: findings that the user accepted by id.
        checked, not_checked: what the job was compared with, and what not and why.
        estimate: Slurm's message about the estimated start.
        names: of the jobs of a sweep or of stages, if they differ.
    """

    job: Job
    cluster: Cluster | None
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]
    ignored: tuple[Finding, ...] = ()
    estimate: str | None = None
    names: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that make the job fail or train incorrectly."""
        return tuple(finding for finding in self.findings if finding.level == "error")


@dataclass(slots=True)
class _CheckNotes:
    checked: list[str]
    not_checked: list[str]


def check_job(
    asked: Request, *, slurm: bool = True, local: bool = False, test_only: bool = True
) -> JobCheck:
    """Return the problems of the job in a request.

    Args:
        asked: the request.
        slurm: whether Slurm may be queried, if it is available.
        local: the job will run locally, so nothing about a site matters.
        test_only: let Slurm validate the script with `sbatch --test-only`.

    Raises:
        UsageError: all config errors at once.
    """
    jobs = jobs_of(asked)
    notes = _CheckNotes(["config", "files", "environment"], without_config(asked))
    job = jobs[0][1]
    live = None if local else _live(slurm, notes)
    cluster = None if local else _cluster(job, live, notes)
    cases: list[Case] = []
    for _, each in jobs:
        around = gather.gather(each.spec, not_checked=notes.not_checked)
        if around.chdir is not None and not around.chdir.is_dir:
            notes.not_checked.append(f"files in {each.spec.chdir}, which is not here")
        case = Case(each.spec, cluster, live, around, each.origins, _typed(asked), asked.arguments)
        verb = asked.verb if asked.verb.startswith("submit") else "render"
        cases.append(replace(case, local=local, varied=each.varied, verb=verb))
    found = _together([(name, check(case)) for (name, _), case in zip(jobs, cases, strict=True)])
    ignore, estimate = job.config.check.ignore, None
    ignored = [finding for finding in found if finding.id in ignore]
    found = [finding for finding in found if finding.id not in ignore]
    if live is not None and test_only:
        found, estimate = _verdict(asked, found, cases[0], notes)
    return JobCheck(
        job=job,
        cluster=cluster,
        findings=tuple(finding for finding in found if finding.id not in ignore),
        ignored=tuple(ignored) + tuple(finding for finding in found if finding.id in ignore),
        checked=tuple(notes.checked),
        not_checked=tuple(dict.fromkeys(notes.not_checked)),
        estimate=estimate,
        names=tuple(name for name, _ in jobs if name),
    )


def without_config(asked: Request) -> list[str]:
    """Return a note if there is no job config here: most likely this is the wrong directory."""
    if asked.config is not None or Path("config.yaml").exists():
        return []
    return [
        f"a config: there is no config.yaml in {Path.cwd()}; cd to the directory that has yours,"
        " or: hpctrain init"
    ]


def _together(of_each: Sequence[tuple[str, list[Finding]]]) -> list[Finding]:
    """Merge the findings of several jobs: those of all jobs once, others with the name of the first
    job that has them.
    """
    counts: dict[Finding, list[str]] = {}
    for name, found in of_each:
        for finding in found:
            counts.setdefault(finding, []).append(name)
    return [
        (
            finding
            if len(names) == len(of_each)
            else replace(finding, what=f"{names[0]}: {finding.what}")
        )
        for finding, names in counts.items()
    ]


def _live(slurm: bool, notes: _CheckNotes) -> LiveCluster | None:
    if not slurm:
        notes.not_checked.append("Slurm: --no-slurm")
        return None
    if shutil.which("sinfo") is None and shutil.which("scontrol") is None:
        notes.not_checked.append("Slurm: sinfo and scontrol are not on PATH")
        return None
    live = discover.discover(timeout=DISCOVERY_TIMEOUT_S)
    notes.not_checked += [f"Slurm: {sentence}" for sentence in live.silent]
    if live.partitions is None and live.associations is None and live.qos is None:
        return None
    notes.checked.append(f"Slurm{f' (cluster {live.cluster_name})' if live.cluster_name else ''}")
    return live


def profile_of(job: Job, cluster_name: str | None = None) -> Cluster | None:
    """Return the job's cluster profile, else the only one that matches this machine."""
    if job.cluster is not None:
        return job.cluster
    hosts = (os.uname().nodename,)
    names = load.detect(os.environ, cluster_name=cluster_name, hosts=hosts)
    return load.load(names[0], os.environ) if len(names) == 1 else None


def _cluster(job: Job, live: LiveCluster | None, notes: _CheckNotes) -> Cluster | None:
    cluster = profile_of(job, live.cluster_name if live is not None else None)
    if cluster is not None:
        notes.checked.append(f"profile {cluster.profile.name}")
    else:
        notes.not_checked.append(
            "a cluster profile: none is named, and no profile knows this machine (--cluster NAME)"
        )
    return cluster if live is None else merge(cluster, live)


def _typed(asked: Request) -> tuple[tuple[str, str], ...]:
    options = tuple((BY_PATH[path].option, value) for path, value in asked.options.items())
    config = (("--config", asked.config),) if asked.config else ()
    return (*options, *(("--sbatch", word) for word in asked.sbatch), *config)


def _verdict(
    asked: Request, found: list[Finding], case: Case, notes: _CheckNotes
) -> tuple[list[Finding], str | None]:
    """Return the findings, with Slurm's refusal added, and the estimated start if Slurm refuses
    nothing; writes only temporary files.
    """
    if not SlurmScheduler.is_available():
        notes.not_checked.append("sbatch --test-only: sbatch is not on PATH")
        return found, None
    try:
        scripts = scripts_of(asked).scripts
        accepted, said = _try(scripts[:MOST_TRIED])
    except UsageError:
        if not found:
            raise
        notes.not_checked.append(
            "sbatch --test-only: the script cannot be rendered before these findings are fixed"
        )
        return found, None
    except SchedulerError as error:
        notes.not_checked.append(f"sbatch --test-only: {error.what}")
        return found, None
    if len(scripts) > MOST_TRIED:
        left_out = len(scripts) - MOST_TRIED
        notes.not_checked.append(f"sbatch --test-only: {left_out} of {len(scripts)} scripts")
    notes.checked.append("sbatch --test-only")
    if accepted:
        return found, refusal.estimate(said[0])
    return refusal.told(found, case, refusal.words(said)), None


#: Limit on scripts of one sweep that Slurm validates.
MOST_TRIED = 5


def _try(scripts: tuple[Script, ...]) -> tuple[bool, tuple[str, ...]]:
    """Return whether Slurm accepts the scripts, and its messages, or the lines of the first error.

    Raises:
        SchedulerError: Slurm does not answer.
    """
    said: list[str] = []
    for script in scripts:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / f"{script.spec.job_name}.sbatch"
            path.write_text(script.text, encoding="utf-8", errors="surrogateescape")
            try:
                said.append(SlurmScheduler().test_only(path))
            except SchedulerError:
                raise
            except HpctrainError as error:
                return False, error.details
    return True, tuple(said)
