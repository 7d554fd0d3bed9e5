"""Resolve words to runs and jobs, by the same rules for every command.

A word is matched in this order: a run's id; a job id (`22`, `22_4`, `22_[4-9]`, `22@lab7`), which
is resolved to its run if it has one; a launch's tag, for all its runs; points of a launch
(`TAG_[4-9]`); a glob over run ids; the prefix of one run's id; a job's name. Commands that delete
accept neither prefixes nor globs that the user did not write.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.jobs import schedulers
from hpctrain.local import jobs as local_jobs
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.runs import launch, layout, store
from hpctrain.runs.launch import Launch, Part
from hpctrain.runs.store import Listing, Run
from hpctrain.slurm import job_ids, ledger
from hpctrain.slurm.base import ASK_EVERY_S
from hpctrain.slurm.job_ids import JobId
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations import states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util.shell import quote
from hpctrain.util.text import is_number

#: The most tasks that one word may name if each is looked up: Slurm's default MaxArraySize.
_MOST_TASKS = 1001
_AGE = re.compile(r"([0-9]{1,9})([smhdw])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_POINT = re.compile(r"_[0-9]+\Z")
#: `TAG_[4-9]` and `TAG_4-9` are points; `TAG_[12]` is a glob.
_POINTS = re.compile(r"(?P<tag>.+)_(?P<indices>\[?[0-9]+[-,][0-9,:%-]*\]?)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target of a command.

    Attributes:
        run: the run, started or not; None for a job without a run here.
        job: the job id, if there is no run.
    """

    run: Run | None = None
    job: str | None = None


def resolve(words: Sequence[str], runs_dir: Path) -> list[Target]:
    """Return the targets of the words, each once, in their order; runs need not have started.

    Raises:
        UsageError: words that match nothing, all at once; or a prefix of several runs.
        SchedulerError: Slurm does not answer, and a word may name a Slurm job.
    """
    listing = _listing(runs_dir)
    found: dict[str | None, Target] = {}
    unknown: list[str] = []
    for word in words:
        targets = [Target(run=run) for run in runs_of(word, listing, started=False)]
        is_job = JobId.parse(word) is not None
        if not targets and not is_job and len(_begun(word, listing)) > 1:
            raise _unknown_runs([word], listing)
        if not targets:
            with suppress(UsageError):
                records, _ = jobs([word], listing.path)
                named = records if is_job else [newest(records)]
                targets = [_target_of(record, listing) for record in named]
        for target in targets:
            found[target.run.id if target.run is not None else target.job] = target
        unknown += [] if targets else [word]
    if unknown:
        raise UsageError(
            f"there is no run or job {', '.join(map(repr, unknown))}",
            fix=layout.in_runs_dir("hpctrain runs list", runs_dir),
            hint="or look at the jobs: hpctrain ps",
        )
    return list(found.values())


def newest_target(runs_dir: Path) -> Target:
    """Return this project's newest run; without one, the newest job.

    Raises:
        UsageError: there are no jobs and no runs.
    """
    listing = _listing(runs_dir)
    if listing.runs:
        return Target(run=newest_run(listing))
    every = [record for record in schedulers.all_jobs()[0] if record.state != states.UNKNOWN]
    if not every:
        raise UsageError("no jobs or runs found", fix="hpctrain submit")
    return _target_of(newest(every), listing)


def _listing(runs_dir: Path) -> Listing:
    try:
        return store.list_runs(runs_dir)
    except (OSError, ValueError):
        return Listing(path=runs_dir)


def existing_runs(runs_dir: Path) -> Listing:
    """Return the runs in `runs_dir`.

    Raises:
        UsageError: there is no such directory.
        HpctrainError: it is not a directory, or cannot be read.
    """
    try:
        return store.list_runs(runs_dir)
    except FileNotFoundError as error:
        raise UsageError(
            f"no such directory: {runs_dir}",
            details=(f"looked in {Path.cwd()}",),
            hint="go to the directory where you submit, or use --runs-dir DIRECTORY",
        ) from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise HpctrainError(
            f"cannot read {runs_dir}: {reason}", fix=f"ls -ld {quote(runs_dir)}"
        ) from error


def _target_of(record: JobRecord, listing: Listing) -> Target:
    job = JobId.parse(record.job_id)
    runs = runs_of_job(job, listing, started=False) if job is not None else []
    return Target(run=runs[0]) if len(runs) == 1 else Target(job=record.job_id)


# Runs in a directory of runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A selection of runs. All kinds of criteria have to match; of several words of one kind, one
    has to.

    Attributes:
        words: see the module.
        older_than_s: seconds since `Run.since`.
    """

    words: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    older_than_s: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there are no criteria, which selects all runs."""
        return self == RunFilter()

    def choose(
        self, listing: Listing, now: float, *, whole: bool = False, started: bool = True
    ) -> list[Run]:
        """Return the runs that match everything but the state, in their order; `now` is seconds
        since the epoch.

        Raises:
            UsageError: see `select_runs`, also for `whole` and `started`.
        """
        runs: Iterable[Run] = listing.runs
        if self.words:
            runs = select_runs(self.words, listing, whole=whole, started=started)
        least = self.older_than_s
        return [
            run
            for run in runs
            if (not self.stages or run.stage in self.stages)
            # a run of unknown age is not older
            and (least is None or (run.since is not None and now - run.since > least))
        ]

    def has(self, state: str) -> bool:
        """Whether a run in that state matches."""
        return not self.states or state in self.states


def parse_age(text: str) -> int:
    """Return the seconds in `90s`, `30m`, `12h`, `7d` or `2w`.

    Raises:
        ValueError: the text has another form.
    """
    found = _AGE.match(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is not an age; write a whole number with s, m, h, d or w, such as 7d"
        )
    return int(found[1]) * _SECONDS[found[2]]


def runs_of(word: str, listing: Listing, *, started: bool = True, whole: bool = False) -> list[Run]:
    """Return the runs of a listing that a word matches, if any.

    Args:
        word: see the module; job names are not considered.
        listing: the existing runs.
        started: only existing runs; otherwise also the runs of a launch that never started.
        whole: do not accept a prefix, because the runs will be deleted.
    """
    points = _POINTS.match(word)
    tag = points["tag"] if points else word
    runs = list(listing.runs)
    if not started:
        runs += _not_started(listing, {tag, word.rpartition("_")[0]})
    exact = [run for run in runs if run.id == word]
    if exact:
        return exact
    job = JobId.parse(word)
    if job is not None:
        return runs_of_job(job, listing, started=started)
    tagged = sorted((run for run in runs if run.tag == tag), key=lambda run: run.index or 0)
    if points and tagged:
        indices = arrays.known(points["indices"])
        return [run for run in tagged if run.index in indices]
    if any(sign in word for sign in "*?["):
        return [run for run in listing.runs if fnmatch.fnmatch(run.id, word)]
    begun = _begun(word, listing)
    return tagged or (begun if len(begun) == 1 and not whole else [])


def launched_runs(runs: Path, whole: Launch) -> tuple[list[Run], list[Run]]:
    """Return the runs of a launch, started or not, without deleted ones, and a sweep's points never
    submitted.
    """
    indices: dict[str, int | None] = dict.fromkeys(whole.run_ids)
    if whole.kind == "sweep":
        indices = {run: index for index, run in enumerate(whole.run_ids)}
    elif whole.kind == "run":  # with `array:`, each task is a run
        covered = {run: at for part in whole.parts for run, at in part.run_ids(whole.tag).items()}
        indices = dict(sorted(covered.items(), key=lambda item: item[1] or 0)) or indices
    known: list[Run] = []
    never: list[Run] = []
    deleted = launch.deleted_runs(runs, whole.tag)
    for name in (each for each in indices if each not in deleted):
        run = store.run_of_launch(
            runs,
            name,
            tag=whole.tag,
            name=whole.name,
            created=whole.created,
            stage=name.removeprefix(f"{whole.tag}_") if whole.kind == "stages" else None,
            index=indices[name],
        )
        submitted = run.attempts or any(is_for(part, run) for part in whole.parts)
        (known if submitted or whole.kind != "sweep" else never).append(run)
    return known, never


def is_for(part: Part, run: Run) -> bool:
    """Whether a script of a launch covers this run."""
    if run.stage is not None or part.stage is not None:
        return run.stage == part.stage
    if part.array is None or run.index is None:
        return part.array is None and run.index is None
    return arrays.contains(part.array, run.index - part.offset)


def _not_started(listing: Listing, tags: Iterable[str]) -> list[Run]:
    known = {run.id for run in listing.runs}
    launches = [whole for tag in tags if (whole := launch.load(listing.path, tag)) is not None]
    found = [
        run for whole in launches for both in launched_runs(listing.path, whole) for run in both
    ]
    return [run for run in found if run.id not in known]


def _begun(word: str, listing: Listing) -> list[Run]:
    """Return the runs of which a word is the prefix, but not the point `_2` of `_2499`."""
    return [
        run
        for run in listing.runs
        if word and run.id.startswith(word) and len(word) <= len(_POINT.sub("_", run.id))
    ]


def select_runs(
    words: Sequence[str], listing: Listing, *, whole: bool = False, started: bool = True
) -> list[Run]:
    """Return the runs that the words match, in the order of the listing.

    Args:
        words: see the module; job names are not considered.
        listing: the existing runs.
        whole: do not accept a prefix, because the targets will be deleted.
        started: only runs of the listing; otherwise also those of a launch that never started.

    Raises:
        UsageError: words that match no run, or are the prefix of several: all at once.
    """
    found: dict[str, Run] = {}
    unknown = []
    for word in words:
        runs = runs_of(word, listing, whole=whole, started=started)
        found.update({run.id: run for run in runs})
        if not runs and (JobId.parse(word) or not any(sign in word for sign in "*?[")):
            unknown.append(word)
    if unknown:
        raise _unknown_runs(unknown, listing)
    here = [found.pop(run.id) for run in listing.runs if run.id in found]
    return [*here, *found.values()]


def _unknown_runs(words: Sequence[str], listing: Listing) -> UsageError:
    problems = []
    for word in words:
        begun = _begun(word, listing)
        what = f"there is no run {word!r}"
        if begun:
            more = f" and {len(begun) - 3} more" if len(begun) > 3 else ""
            what = f"{word!r} is only a prefix of {', '.join(run.id for run in begun[:3])}{more}"
        elif JobId.parse(word) is not None:
            what = f"there is no run of a job {word!r} in {listing.path}"
        problems.append(what)
    fix = layout.in_runs_dir("hpctrain runs list --all", listing.path)
    return UsageError(problems[0], details=tuple(problems[1:]), fix=fix)


def newest_run(listing: Listing) -> Run:
    """Return the run that changed last.

    Raises:
        UsageError: there are no runs.
    """
    if not listing.runs:
        raise UsageError(f"there are no runs in {listing.path}", fix="hpctrain submit")
    return max(listing.runs, key=lambda run: (run.since or 0.0, run.id))


def one_run(word: str, listing: Listing) -> Run:
    """Return the run that a word matches, even one that never started.

    Raises:
        UsageError: there is none, or there are several.
    """
    runs = select_runs([word], listing, started=False)
    if len(runs) == 1:
        return runs[0]
    some = ", ".join(sorted(run.id for run in runs)[:3])
    raise UsageError(
        f"{word!r} stands for {len(runs)} runs: {some}" if runs else f"there is no run {word!r}",
        fix=layout.in_runs_dir("hpctrain runs list --all", listing.path),
    )


def runs_of_job(job: JobId, listing: Listing, *, started: bool = True) -> list[Run]:
    """Return the runs of a job, an array or tasks of one.

    Args:
        job: the job id.
        listing: the existing runs.
        started: only existing runs; otherwise also runs of a launch that have no directory yet.
    """
    number = JobId(job.number, cluster=job.cluster)
    submitted = {}
    for tag in launch.tags(listing.path):
        read = launch.read_submissions(listing.path, tag)
        if any(each.job is not None and number.covers(each.job) for each in read):
            submitted[tag] = read
    runs = [*listing.runs, *([] if started else _not_started(listing, submitted))]
    return [
        run
        for run in runs
        if any(
            each is not None and job.covers(each)
            for each in (*run.job_ids, *launch.jobs_of(run, submitted.get(run.tag, ())))
        )
    ]


# Jobs of the schedulers.


def jobs(
    words: Sequence[str],
    runs_dir: Path = Path(layout.RUNS),
    *,
    fresh: bool = False,
    patience_s: float | None = None,
) -> tuple[list[JobRecord], SchedulerError | None]:
    """Return the jobs that the words match (without words, all), and Slurm's error if only local
    jobs could be listed.

    Slurm is not queried if every word is a local job: an unresponsive controller costs minutes.

    Args:
        words: ids, runs, tags and points, or job names, which match every job of that name.
        runs_dir: the directory of all runs.
        fresh: bypass the cache, for callers that act on the answer.
        patience_s: timeout of each query, if shorter than the default.

    Raises:
        UsageError: words that match no job.
        SchedulerError: Slurm does not answer, and a word may name a Slurm job.
    """
    ids = [job for word in words for job in job_ids_of(word, runs_dir) or [word]]
    if ids and all(schedulers.owner(job).name == LocalScheduler.name for job in ids):
        return _select_jobs(words, LocalScheduler().status(), runs_dir), None
    known, silent = schedulers.all_jobs(fresh=fresh, patience_s=patience_s)
    if silent is None:
        return (_select_jobs(words, known, runs_dir) if words else known), None
    local = [record for record in known if not words or {record.job_id, record.name} & set(words)]
    names = {name for record in local for name in (record.job_id, record.name)}
    if not local or not set(words) <= names:
        # Never act silently on only some of the words.
        raise schedulers.no_answer(silent) from silent
    return local, silent


def _select_jobs(
    words: Sequence[str], known: Sequence[JobRecord], runs_dir: Path
) -> list[JobRecord]:
    chosen: dict[str, JobRecord] = {}
    unknown: list[str] = []
    available = {scheduler.name for scheduler in schedulers.available()}
    for word in words:
        job = JobId.parse(word)
        found = _matching(word, known) or [record for record in known if record.name == word]
        ids = [] if found else (_tasks(job) if job else []) or job_ids_of(word, runs_dir)
        found = found or [record for id_ in ids for record in _matching(id_, known)]
        # Neither squeue nor the last day of accounting lists it: query older jobs by id.
        older = [
            id_ for id_ in (ids if job else ids[-1:]) if schedulers.owner(id_).name in available
        ]
        if older and not found:  # all are tasks of one job: one query
            owner = schedulers.owner(older[0])
            # A job submitted manually a moment ago is not in the cache.
            found = owner.status(older, max_age_s=ASK_EVERY_S) or owner.status(older)
        chosen.update({record.job_id: record for record in found})
        unknown += [] if found else [word]
    if unknown:
        raise _unknown_jobs(unknown, runs_dir)
    return list(chosen.values())


def _unknown_jobs(words: Sequence[str], runs_dir: Path) -> HpctrainError:
    named = ", ".join(repr(word) for word in words)
    silent = schedulers.accounting_trouble()
    for word in words:
        for job in job_ids_of(word, runs_dir) or [word]:
            if job_ids.split(job)[1] is not None:
                return schedulers.refusal([job])
            if silent is not None and JobId.parse(job) and schedulers.owner(job).name == "slurm":
                # Only accounting can confirm that a job never existed.
                return SchedulerError(
                    f"whether there is a job {named} is not known",
                    details=(
                        f"  {silent}",
                        "slurmctld shows none, but forgets a job some minutes after its end; try"
                        " again when sacct answers",
                    ),
                    fix="sacct",
                )
    return UsageError(f"there is no job {named}", fix="hpctrain ps")


def _matching(word: str, known: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the records of a job, an array or tasks of it; a record of several waiting tasks is
    narrowed to the matching ones.
    """
    job = JobId.parse(word)
    if job is None or job.cluster is not None:
        # Such as 123+1, part of a heterogeneous job.
        return [record for record in known if record.job_id == word]
    found = []
    for record in (each for each in known if job.covers(each.job_id)):
        number, _, rest = record.job_id.partition("_")
        theirs = arrays.known(rest)  # empty for a list that squeue has truncated
        both = sorted(set(job.tasks.indices) & set(theirs)) if job.tasks is not None else theirs
        if is_number(rest) or len(both) == len(theirs):
            found.append(record)
        else:
            name = str(both[0]) if len(both) == 1 else f"[{arrays.compress(both)}]"
            found.append(replace(record, job_id=f"{number}_{name}"))
    return found


def _tasks(job: JobId) -> list[str]:
    """Return the individual ids in `123_[4-9]`; for other job ids, the id itself."""
    if job.cluster is not None:
        return []
    if job.tasks is None:
        return [job.number]
    return [f"{job.number}_{index}" for index in job.tasks.indices[:_MOST_TASKS]]


def job_ids_of(name: str, runs_dir: Path) -> list[str]:
    """Return the job ids of a run, of points or of a complete launch, the newest last."""
    whole = launch.load(runs_dir, name)
    if whole is not None:
        return [each.job for each in whole.submissions if each.job is not None]
    runs = []
    if JobId.parse(name) is None:  # the launch record may list jobs that the run directory lacks
        runs = runs_of(name, Listing(path=runs_dir), started=False)
    if not runs and layout.NAME.match(name) and (run := store.read_run(runs_dir, name)) is not None:
        runs = [run]
    return list(dict.fromkeys(job for each in runs for job in launch.every_job(runs_dir, each)))


def newest(known: Sequence[JobRecord]) -> JobRecord:
    """Return the job that started last; a waiting job counts as later.

    Raises:
        HpctrainError: there are no jobs.
    """
    left = [record for record in known if record.state != states.UNKNOWN]
    # Waiting array tasks are one record, `123_[4-9]`, and have no log.
    left = [record for record in left if "[" not in record.job_id] or left
    if not left:
        raise HpctrainError("no job of yours is known here", fix="hpctrain submit")
    # A job canceled before its start has no start time and no log either.
    left = [record for record in left if record.start is not None or not record.is_final] or left
    return max(
        left,
        key=lambda record: (
            record.start or ("" if record.is_final else "~"),
            len(record.job_id),
            record.job_id,
        ),
    )


# The run directories of jobs, in any project.


def run_dirs(known: Iterable[JobRecord]) -> dict[str, Path]:
    """Return job id → run directory, from the launch records, else from the attempts in ./runs; for
    several tasks in one record, the launch's name there.
    """
    records, here = list(known), Path(layout.RUNS).absolute()
    numbers = {record.job_id.partition("_")[0]: record for record in records}
    comments = {
        number: each.comment for number, each in numbers.items() if each.scheduler == "slurm"
    }
    launched = {
        number: launch.of_submission(sent.record)
        for number, sent in ledger.of_jobs(comments).items()
    }
    for number in numbers.keys() - comments.keys():
        job = local_jobs.find(number)
        # the tag is the first argument of its script
        if job is not None and job.plan.arguments and layout.NAME.match(job.plan.arguments[0]):
            runs = Path(job.plan.submit_dir or job.plan.chdir) / layout.RUNS
            launched[number] = (runs, job.plan.arguments[0])
    found: dict[str, Path] = {}
    for record in records:
        of = launched.get(record.job_id.partition("_")[0])
        run_dir = _of_launch(*of, record.job_id) if of is not None else None
        if run_dir is not None:
            found[record.job_id] = run_dir
    rest = {record.job_id for record in records} - found.keys()
    for run in _listing(here).runs if rest and here.is_dir() else ():
        found.update({job: here / run.id for job in run.job_ids if job in rest})
    return found


def _of_launch(runs: Path, tag: str, job: str) -> Path | None:
    number, _, task = job.partition("_")
    whole = launch.load(runs, tag)
    if whole is None:
        return runs / tag if (runs / tag).is_dir() else None
    submission = next((each for each in reversed(whole.submissions) if each.job == number), None)
    if submission is None:
        return None
    index = None
    if is_number(task) and submission.array is not None:
        index = int(task) + (submission.offset or 0)
    return runs / layout.run_id(tag, stage=submission.stage, index=index)
