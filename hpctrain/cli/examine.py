"""A job examined before it queues: the layers resolved, the site asked, the surroundings gathered, the rules applied.

`check` shows what comes of it; `submit` stops on its errors.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpctrain.cli import surroundings
from hpctrain.cli.job_options import Job, Request
from hpctrain.cli.job_scripts import Script, jobs_of, scripts_of
from hpctrain.config import files, layers
from hpctrain.config.fields import BY_PATH
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.jobs.check import check, refusal, show
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.finding import Finding

if TYPE_CHECKING:
    from hpctrain.clusters.live import LiveCluster
    from hpctrain.clusters.profile import Cluster

#: Scripts of one sweep that Slurm is asked about.
_MOST_TRIED = 5
#: Seconds for each question to Slurm; it is asked a handful, all at once.
DISCOVERY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What came of it.

    Attributes:
        cluster: the site's profile, with what Slurm says laid over it.
        checked, not_checked: what the job was held against, and what it was not and why.
        estimate: Slurm's own words on when the job would start.
        names: of the jobs of a sweep or of stages, where they differ.
    """

    job: Job
    cluster: Cluster | None
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]
    estimate: str | None = None
    names: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that keep the job from running, or from running right."""
        return tuple(finding for finding in self.findings if finding.level == "error")


class _Notes:
    """What was looked at and what was not, in the order in which it happened."""

    def __init__(self) -> None:
        self.checked: list[str] = ["config", "files", "environment"]
        self.not_checked: list[str] = []


def examine(asked: Request, *, slurm: bool = True, local: bool = False, test_only: bool = True) -> Examined:
    """Return what is wrong with the job of a request.

    Args:
        asked: what was typed.
        slurm: whether Slurm may be asked, where it is there.
        local: the job will run on this machine; nothing about a site matters.
        test_only: let Slurm itself judge the script, by `sbatch --test-only`.

    Raises:
        UsageError: all config errors at once.
    """
    jobs, notes = jobs_of(asked), _Notes()
    notes.not_checked += _no_config(asked)
    job = jobs[0][1]
    live = None if local else _live(slurm, notes)
    cluster = None if local else _cluster(job, live, notes)
    typed = _typed(asked)
    of_each: list[tuple[str, list[Finding]]] = []
    cases: list[Case] = []
    for name, each in jobs:
        around = surroundings.gather(each.spec, not_checked=notes.not_checked)
        if around.chdir is not None and not around.chdir.is_dir:
            notes.not_checked.append(f"files in {each.spec.chdir}, which is not here")
        cases.append(Case(each.spec, cluster, live, around, each.origins, typed, asked.arguments))
        said = check(
            each.spec, cluster=cluster, live=live, around=around, origins=each.origins, typed=typed, arguments=asked.arguments, local=local
        )
        of_each.append((name, said))
    notes.not_checked = list(dict.fromkeys(notes.not_checked))
    found = _together(of_each)
    estimate = None
    if live is not None and test_only:
        refused, estimate = _test_only(asked, cases[0], bool(found), notes)
        found = found + refused
    return Examined(
        job=job,
        cluster=cluster,
        findings=tuple(found),
        checked=tuple(notes.checked),
        not_checked=tuple(notes.not_checked),
        estimate=estimate,
        names=tuple(name for name, _ in jobs if name),
    )


def _no_config(asked: Request) -> list[str]:
    """Return that there is no job config where this is typed: the likeliest mistake is the directory."""
    if asked.config is not None or Path("config.yaml").exists():
        return []
    return [f"a config: there is no config.yaml in {Path.cwd()}; cd to the directory that has yours, or: hpctrain init"]


def _together(of_each: Sequence[tuple[str, list[Finding]]]) -> list[Finding]:
    """Return the findings of several jobs: what all of them have, once; what some have, with the name of the first of those."""
    counts: dict[Finding, list[str]] = {}
    for name, found in of_each:
        for finding in found:
            counts.setdefault(finding, []).append(name)
    return [
        finding if len(names) == len(of_each) else replace(finding, what=f"{names[0]}: {finding.what}")
        for finding, names in counts.items()
    ]  # fmt: skip


def before_submit(asked: Request, *, local: bool, as_it_is: str) -> None:
    """Hold a submission against the checks: warnings go to stderr in a line each, errors stop it.

    Raises:
        HpctrainError: something is wrong that keeps the job from running, or from running right.
    """
    examined = examine(asked, local=local, test_only=False)
    if examined.errors:
        for sentence in _no_config(asked):
            click.echo(f"note: {sentence}", err=True)
    _stop(examined.findings, as_it_is)


def text_before_submit(text: str, name: str, *, as_it_is: str, local: bool) -> None:
    """Hold a script that is somebody's own against `lint`, and its directives against the cluster of the config, if there is one.

    Raises:
        HpctrainError: something is wrong that keeps the job from running, or from running right.
    """
    from hpctrain.jobs.lint import lint

    found = lint(text, name)
    layers_ = files.gather(options={}, sbatch=(), config=None, directory=Path.cwd(), environment=os.environ)
    cluster = layers.written(layers_, ("cluster",))
    if isinstance(cluster, str) and not local:
        from hpctrain.clusters import load
        from hpctrain.jobs.check.script import check_script

        found += check_script(text, name, load.load(cluster, os.environ))
    _stop(found, as_it_is)


def _stop(findings: Sequence[Finding], as_it_is: str) -> None:
    """Say each warning in a line, and raise on errors; `as_it_is` submits in spite of them."""
    for finding in findings:
        if finding.level == "warning":
            click.echo(show.wrapped_line(finding, 80) if sys.stderr.isatty() else show.line(finding), err=True)
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return
    raise HpctrainError(
        f"not submitted: {show.counts(errors)} in the job",
        details=tuple(line for finding in errors for line in show.block(finding).splitlines()),
        fix=f"as above, then submit again; to submit as it is: {as_it_is}",
    )


def _live(slurm: bool, notes: _Notes) -> LiveCluster | None:
    """Return what Slurm says of itself; None where it is not there, or says nothing."""
    if not slurm:
        notes.not_checked.append("Slurm: --no-slurm")
        return None
    if shutil.which("sinfo") is None and shutil.which("scontrol") is None:
        notes.not_checked.append("Slurm: sinfo and scontrol are not on PATH")
        return None
    from hpctrain.scheduler import discover  # only now: it is a tenth of the time that a check without Slurm takes

    live = discover.discover(timeout=DISCOVERY_TIMEOUT_S)
    notes.not_checked += [f"Slurm: {sentence}" for sentence in live.silent]
    if live.partitions is None and live.associations is None and live.qos is None:
        return None
    notes.checked.append(f"Slurm{f' (cluster {live.cluster_name})' if live.cluster_name else ''}")
    return live


def _cluster(job: Job, live: LiveCluster | None, notes: _Notes) -> Cluster | None:
    """Return the profile of the job, else the one that knows this machine for its own, with what Slurm says laid over it."""
    cluster = job.cluster
    if cluster is None:
        from hpctrain.clusters import load

        names = load.detect(os.environ, cluster_name=live.cluster_name if live is not None else None, hosts=(os.uname().nodename,))
        cluster = load.load(names[0], os.environ) if len(names) == 1 else None
    if cluster is None:
        notes.not_checked.append("a cluster profile: none is named, and no profile knows this machine (--cluster NAME)")
    else:
        notes.checked.append(f"profile {cluster.profile.name}")
    if live is None:
        return cluster
    from hpctrain.clusters.merge import merge

    return merge(cluster, live)


def _typed(asked: Request) -> tuple[tuple[str, str], ...]:
    options = tuple((BY_PATH[path].option, value) for path, value in asked.options.items())
    config = (("--config", asked.config),) if asked.config else ()
    return (*options, *(("--sbatch", word) for word in asked.sbatch), *config)


def _test_only(asked: Request, case: Case, has_findings: bool, notes: _Notes) -> tuple[list[Finding], str | None]:
    """Return Slurm's own word on the script: a finding where it refuses, its estimate of the start where it does not."""
    from hpctrain.scheduler.slurm import SlurmScheduler

    if not SlurmScheduler.is_available():
        notes.not_checked.append("sbatch --test-only: sbatch is not on PATH")
        return [], None
    try:
        scripts = scripts_of(asked).scripts
    except UsageError:
        if not has_findings:
            raise
        notes.not_checked.append("sbatch --test-only: the script cannot be rendered before what is found is mended")
        return [], None
    if len(scripts) > _MOST_TRIED:
        notes.not_checked.append(f"sbatch --test-only: {len(scripts) - _MOST_TRIED} of {len(scripts)} scripts")
    said = []
    for script in scripts[:_MOST_TRIED]:
        try:
            said.append(_try(script))
        except SchedulerError as error:
            notes.not_checked.append(f"sbatch --test-only: {error.what}")
            return [], None
        except HpctrainError as error:
            notes.checked.append("sbatch --test-only")
            return [refusal.refused(case, error.details, error.fix)], None
    notes.checked.append("sbatch --test-only")
    return [], refusal.estimate(said[0])


def _try(script: Script) -> str:
    """Return Slurm's words on a script that is not written where the user would see it."""
    import tempfile

    from hpctrain.scheduler.slurm import SlurmScheduler

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{script.spec.job_name}.sbatch"
        path.write_text(script.text, encoding="utf-8", errors="surrogateescape")
        return SlurmScheduler().test_only(path)
