"""Checks a job before it queues, for `hpctrain check`, submissions and the Python API.

The layers are resolved, the site is queried, the environment gathered, the rules applied. Last,
Slurm validates the scripts (`sbatch --test-only`).
"""

from __future__ import annotations

import os
import tempfile
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
from hpctrain.jobs.scripts import jobs_of, scripts_of
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
    job = jobs[0][1]
    checked, skipped = ["config", "files", "environment"], without_config(asked)
    live, cluster = None, None
    if not local:
        live = _live(slurm, skipped)
        checked += [f"Slurm (cluster {live.cluster_name})"] if live is not None else []
        cluster = profile_of(job, live.cluster_name if live is not None else None)
        if cluster is None:
            skipped.append(
                "a cluster profile: none is named, and no profile knows this machine (--cluster NAME)"
            )
        else:
            checked.append(f"profile {cluster.profile.name}")
        cluster = cluster if live is None else merge(cluster, live)
    options = [(BY_PATH[path].option, value) for path, value in asked.options.items()]
    options += [("--sbatch", word) for word in asked.sbatch]
    options += [("--config", asked.config)] if asked.config else []
    cases: list[Case] = []
    counts: dict[Finding, list[str]] = {}
    for name, each in jobs:
        around = gather.gather(each.spec, not_checked=skipped)
        if around.chdir is not None and not around.chdir.is_dir:
            skipped.append(f"files in {each.spec.chdir}, which is not here")
        case = Case(
            each.spec,
            cluster,
            live,
            around,
            each.origins,
            tuple(options),
            asked.arguments,
            local=local,
            varied=each.varied,
            verb=asked.verb if asked.verb.startswith("submit") else "render",
        )
        cases.append(case)
        for finding in check(case):
            counts.setdefault(finding, []).append(name)
    # Those of all jobs once, others with the name of the first job that has them.
    found = [
        each if len(names) == len(jobs) else replace(each, what=f"{names[0]}: {each.what}")
        for each, names in counts.items()
    ]
    ignored = [each for each in found if each.id in job.config.check.ignore]
    found, estimate = [each for each in found if each not in ignored], None
    if live is not None and test_only:
        verdict, estimate = _verdict(asked, found, cases[0], skipped)
        checked += ["sbatch --test-only"] if verdict is not None else []
        found = verdict if verdict is not None else found
    refused = [each for each in found if each.id in job.config.check.ignore]
    return JobCheck(
        job=job,
        cluster=cluster,
        findings=tuple(each for each in found if each not in refused),
        ignored=(*ignored, *refused),
        checked=tuple(checked),
        not_checked=tuple(dict.fromkeys(skipped)),
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


def _live(slurm: bool, skipped: list[str]) -> LiveCluster | None:
    if not slurm or not discover.is_available():
        skipped.append(f"Slurm: {'sinfo is not on PATH' if slurm else '--no-slurm'}")
        return None
    live = discover.discover(timeout=DISCOVERY_TIMEOUT_S)
    skipped += [f"Slurm: {sentence}" for sentence in live.silent]
    answers = (live.partitions, live.associations, live.qos)
    return live if any(each is not None for each in answers) else None


def profile_of(job: Job, cluster_name: str | None = None) -> Cluster | None:
    """Return the job's cluster profile, else the only one that matches this machine."""
    if job.cluster is not None:
        return job.cluster
    hosts = (os.uname().nodename,)
    names = load.detect(os.environ, cluster_name=cluster_name, hosts=hosts)
    return load.load(names[0], os.environ) if len(names) == 1 else None


#: Limit on scripts of one sweep that Slurm validates.
MOST_TRIED = 5


def _verdict(
    asked: Request, found: list[Finding], case: Case, skipped: list[str]
) -> tuple[list[Finding] | None, str | None]:
    """Return the findings, with Slurm's refusal added (None: it was not asked), and the estimated
    start if Slurm refuses nothing; writes only temporary files.
    """
    said: list[str] = []
    try:
        scripts = scripts_of(asked).scripts
        for script in scripts[:MOST_TRIED]:
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / f"{script.spec.job_name}.sbatch"
                path.write_text(script.text, encoding="utf-8", errors="surrogateescape")
                said.append(SlurmScheduler().test_only(path))
    except UsageError:
        if not found:
            raise
        skipped.append("sbatch --test-only: the script cannot be rendered before these are fixed")
        return None, None
    except SchedulerError as error:
        skipped.append(f"sbatch --test-only: {error.what}")
        return None, None
    except HpctrainError as error:
        return refusal.told(found, case, refusal.words(error.details)), None
    if len(scripts) > MOST_TRIED:
        left_out = len(scripts) - MOST_TRIED
        skipped.append(f"sbatch --test-only: {left_out} of {len(scripts)} scripts")
    return found, refusal.estimate(said[0])
