"""Checks a job before it queues, for `hpctrain check`, submissions and the Python API.

The layers are resolved, the site is queried, the environment gathered, the rules applied. Last,
Slurm validates the scripts (`sbatch --test-only`): after each refusal again, with the changes that
it calls for, until Slurm accepts them or the message names nothing that can be changed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpctrain.checks import gather
from hpctrain.checks.job import check, refusal
from hpctrain.checks.job.context import Case, Surroundings
from hpctrain.checks.job.refusal import Refusal
from hpctrain.clusters import discover, load
from hpctrain.clusters.live import LiveCluster
from hpctrain.clusters.merge import merge
from hpctrain.clusters.profile import Cluster
from hpctrain.config.fields import BY_PATH
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.finding import Finding
from hpctrain.jobs import header
from hpctrain.jobs.request import Job, Request, parse_request
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
    """What was checked and what was not, in order."""

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
    """Return Slurm's answers; None if it is missing or does not answer."""
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
    """Return the findings, with Slurm's refusals added, and the estimated start if Slurm refuses
    nothing.
    """
    try:
        verdict = ask_slurm(asked, case)
    except UsageError:
        if not found:
            raise
        notes.not_checked.append(
            "sbatch --test-only: the script cannot be rendered before these findings are fixed"
        )
        return found, None
    notes.not_checked += [f"sbatch --test-only: {sentence}" for sentence in verdict.not_checked]
    notes.checked += ["sbatch --test-only"] if verdict.taken or verdict.refusals else []
    return refusal.told(found, case, verdict.refusals, taken=verdict.taken), verdict.estimate


def refused(error: HpctrainError, text: str, asked: Request) -> HpctrainError:
    """Return the error for a script that Slurm refused, with what Slurm's message means for the
    config that the script was rendered from.

    Args:
        error: what the scheduler raised.
        text: of the script; a script that hpctrain did not write, or that was edited, is not
            explained.
        asked: the subcommand of the suggested command, and options beyond those of the script.
    """
    made = header.read_header(text)
    if made is None or not made.untouched or made.directory != str(Path.cwd()):
        return error
    notes = _CheckNotes([], [])
    try:
        rendered = parse_request(made.arguments)
        asked = replace(rendered, options={**rendered.options, **asked.options}, verb=asked.verb)
        job = jobs_of(asked)[0][1]
        live = _live(True, notes)
        case = Case(
            job.spec,
            _cluster(job, live, notes),
            live,
            Surroundings(),
            job.origins,
            _typed(asked),
            asked.arguments,
        )
        return explained(asked, case, error)
    except UsageError:  # the config has changed since
        return error


#: Limit on scripts of one sweep that Slurm validates.
MOST_TRIED = 5
#: Limit on refusals of one job; each costs a further query of slurmctld.
_MOST_REFUSALS = 6


@dataclass(slots=True)
class SlurmVerdict:
    """Slurm's verdict on a job.

    Attributes:
        refusals: in Slurm's order, each made with the changes of the previous ones applied.
        taken: whether Slurm accepts the job with all these changes.
        estimate: its message about the estimated start of the unchanged job.
        not_checked: what was not tested, and why.
    """

    refusals: list[Refusal] = field(default_factory=list)
    taken: bool = False
    estimate: str | None = None
    not_checked: tuple[str, ...] = ()


def ask_slurm(asked: Request, case: Case) -> SlurmVerdict:
    """Return Slurm's verdict on the job of a request; writes only temporary files.

    Raises:
        UsageError: the script cannot be rendered.
    """
    if not SlurmScheduler.is_available():
        return SlurmVerdict(not_checked=("sbatch is not on PATH",))
    scripts = scripts_of(asked).scripts
    left_out = len(scripts) - MOST_TRIED
    verdict = SlurmVerdict(
        not_checked=(f"{left_out} of {len(scripts)} scripts",) if left_out > 0 else ()
    )
    options = dict(asked.options)
    while True:
        try:
            refused, said = _try(scripts[:MOST_TRIED])
        except SchedulerError as error:
            verdict.not_checked = (error.what,)
            return verdict
        if refused is None:
            verdict.taken = True
            verdict.estimate = refusal.estimate(said[0]) if not verdict.refusals else None
            return verdict
        words, last = refusal.words(said), verdict.refusals[-1:]
        if last and words == last[0].words:  # the change did not address this refusal
            break
        changes = refusal.changes(words, replace(case, spec=refused.spec))
        verdict.refusals.append(Refusal(words, changes))
        if not changes or len(verdict.refusals) > _MOST_REFUSALS:
            break
        options |= dict(changes)
        try:
            scripts = scripts_of(replace(asked, options=options)).scripts
        except UsageError:  # conflicts with the job's other options
            break
    # The last refusal's changes were not tested, or do not help.
    verdict.refusals[-1] = Refusal(verdict.refusals[-1].words)
    return verdict


def _try(scripts: tuple[Script, ...]) -> tuple[Script | None, tuple[str, ...]]:
    """Return the first script that Slurm refuses, with the lines of the error; if it accepts all,
    None and its messages.

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
                return script, error.details
    return None, tuple(said)


def explained(asked: Request, case: Case, error: HpctrainError) -> HpctrainError:
    """Return the error for a refused submission, with what Slurm's message means for the config and
    a command that Slurm accepts.
    """
    verdict = ask_slurm(asked, case)
    refusals = verdict.refusals or [Refusal(refusal.words(error.details))]
    found = refusal.told([], case, refusals, taken=verdict.taken, verb=asked.verb)
    lines = [
        line
        for number, each in enumerate(found)
        for line in ([f"  then {each.evidence}"] if number else []) + [f"  {each.reason}"]
    ]
    said, remedy = (*error.details, *lines), found[0].fix
    if ", then: " in remedy:
        return HpctrainError(error.what, details=said, hint=remedy)
    return HpctrainError(error.what, details=said, fix=remedy)
