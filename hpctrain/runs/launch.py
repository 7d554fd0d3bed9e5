"""The record of a launch in `runs/.launches/TAG/`: one `hpctrain submit` of a run, a sweep or
stages, and all of its submissions.

    launch.json             what it is: tag, kind, name, the runs or the number of points;
                            written once
    config.json             the job config as resolved, and where each value came from; of a
                            stage, config.STAGE.json
    scripts/NAME.sbatch     what was submitted, or is to be: all scripts are kept before the
                            first one is sent
    parts/NAME.sbatch.json  what a script runs: its config, array, stage, dependencies and
                            chain; written before it is sent
    code.json, code.diff    the version of the code (hpctrain.runs.code)
    code -> ../../.code/DIGEST
                            the snapshot that the jobs run; relative, so that `runs/` can be moved
    submissions/TOKEN.json  one sbatch (hpctrain.slurm.ledger), with the script and the config
                            that belong to it
    deleted/RUN             a run that was deleted: its jobs say nothing about it any more
    TAG_INDEX.id            of a sweep: the run of a point, written by the job script

Launching a known tag again adds a submission to the record. A script or a config that differs from
the recorded one gets another name (`sft.2.sbatch`), which the submission contains. Changes need the
lock (`claim`).

An overlooked job could have its run removed. Therefore a submission that cannot be read counts as
never answered (`read_submissions`), and a job that does not state its runs counts for every run of
its launch.
"""

from __future__ import annotations

import itertools
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import layout, store
from hpctrain.runs.store import Run
from hpctrain.slurm import job_ids
from hpctrain.slurm.ledger import Submission
from hpctrain.slurm.notations import array as arrays
from hpctrain.util import files, stored

Kind = Literal["run", "sweep", "stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One script of a launch, submitted or not.

    Attributes:
        script: its file name in `scripts/`; `config`: its config's in the record.
        array: the indices, in Slurm's syntax; None for a single job.
        offset: added to an array index to get the index of the parameter combination.
        stage: the stage that it runs.
        dependencies: earlier stages and how they must end, such as `("train", "afterok")`.
        links: how many follow-up jobs a chain has.
        at: when it was first recorded, in seconds since the epoch.
        ignored: ids of `check` findings that the user accepted.
    """

    script: str
    config: str | None = None
    array: str | None = None
    offset: int = 0
    stage: str | None = None
    dependencies: tuple[tuple[str, str], ...] = ()
    links: int = 0
    at: float
    ignored: tuple[str, ...] = ()

    def run_ids(self, tag: str) -> dict[str, int | None]:
        """Return the ids of its runs in the launch `tag`, in order, each with its index in a sweep
        or an array; none for an invalid array.
        """
        if self.array is None:
            return {layout.run_id(tag, stage=self.stage): None}
        indices = (self.offset + task for task in arrays.known(self.array))
        return {layout.run_id(tag, stage=self.stage, index=index): index for index in indices}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch as recorded.

    Attributes:
        path: its directory.
        name: the job name.
        created: seconds since the epoch.
        cwd: the project directory, in which the jobs run.
        argv: the hpctrain command that launched it first.
        runs: ids of its runs; empty for a sweep, see `run_ids`.
        stages: names of the stages, for kind `stages`.
        points: number of parameter combinations, for kind `sweep`.
        table: file name of the combinations in `runs/.sweeps/`, for kind `sweep`.
        code: digest of the snapshot that its jobs run, or None.
        submissions: oldest first.
        parts: all scripts to submit, oldest first.
    """

    path: Path
    tag: str
    kind: Kind
    name: str
    created: float = 0.0
    cwd: str = ""
    argv: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    points: int | None = None
    table: str | None = None
    code: str | None = None
    submissions: tuple[Submission, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def run_ids(self) -> list[str]:
        """The ids of all its runs, started or not."""
        if self.kind == "sweep":
            return [layout.run_id(self.tag, index=index) for index in range(self.points or 0)]
        return list(self.runs)


def read_submissions(runs: Path, tag: str) -> tuple[Submission, ...]:
    """Return the submissions of a tag; a file that cannot be read becomes an unknown submission."""
    folder = f"{runs}/{layout.LAUNCHES}/{tag}/submissions"
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - as in store
    except OSError:
        return ()
    found = []
    for name in names:
        if name.endswith(".json") and name[0] != ".":
            token, record = name.removesuffix(".json"), files.read_json(Path(folder, name))
            one = stored.made(Submission, {**(record or {}), "token": token})
            one = one or Submission(token=token)
            job, cluster = store.job_id(one.job_id), job_ids.valid_cluster(one.cluster)
            found.append(replace(one, job_id=job, cluster=cluster))
    return tuple(found)


def jobs_of(run: Run, submissions: tuple[Submission, ...]) -> Iterator[str | None]:
    """Yield the jobs submitted for this run (slurm.job_ids), `123_4` for an array task; None for
    one without an id yet.
    """
    for each in submissions:
        if each.stage is not None and run.stage is not None and each.stage != run.stage:
            continue
        job = each.job_id
        if each.array is None or run.index is None:
            pass
        elif arrays.contains(each.array, task := run.index - (each.offset or 0)):
            job = None if job is None else f"{job}_{task}"
        elif each.offset is not None or task <= max(arrays.known(each.array), default=0):
            # else another array of a sweep too large for one array; its indices have an offset
            continue
        yield None if job is None else job_ids.of_record(job, each.cluster)


def every_job(runs: Path, run: Run) -> tuple[str, ...]:
    """Return the jobs of a run: those of its attempts, oldest first, then the others that were
    submitted for it.
    """
    submitted = jobs_of(run, read_submissions(runs, run.tag))
    return tuple(dict.fromkeys((*run.job_ids, *filter(None, submitted))))


SCHEMA = 1
_RECORD, _CODE, _SUBMISSIONS, SCRIPTS = "launch.json", "code", "submissions", "scripts"
#: Leaves space for `_STAGE` or `_INDEX` after a tag (layout.NAME allows 120 characters).
_LONGEST_NAME = 64


def new_tag(job_name: str, now: float, random: int) -> str:
    """Return a tag such as `sft-261121-031508-7f3a`.

    Args:
        job_name: truncated to 64 characters.
        now: seconds since the epoch; the tag has the local time.
        random: its lowest 16 bits distinguish launches within one second.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", job_name).lstrip("._-")[:_LONGEST_NAME] or "job"
    return f"{name}-{time.strftime('%y%m%d-%H%M%S', time.localtime(now))}-{random & 0xFFFF:04x}"


def launch_dir(runs: Path, tag: str) -> Path:
    """Return the directory of a launch in the directory `runs`.

    Raises:
        UsageError: `tag` is not a valid launch name.
    """
    if not layout.NAME.match(tag):
        raise UsageError(
            f"{tag!r} cannot be the name of a run",
            details=("it may have letters, digits and . _ -, and 120 of them",),
            hint=f"use --run-id {re.sub(r'[^A-Za-z0-9._-]+', '-', tag).strip('._-')[:100] or 'my-run'}",
        )
    return runs / layout.LAUNCHES / tag


@contextmanager
def claim(runs: Path, tag: str) -> Iterator[None]:
    """Lock the launch `tag` in the directory `runs` to change its record; the lock file exists only
    meanwhile.

    Raises:
        HpctrainError: another command holds it.
        OSError: the file system refuses.
    """
    path = runs / layout.LAUNCHES / f".lock-{tag}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with files.lock(path, stays=False):
            yield
    except files.Locked as error:
        raise HpctrainError(
            f"another command is submitting {tag}",
            hint="wait for it, then run: hpctrain runs list",
        ) from error


def create(
    runs: Path,
    tag: str,
    *,
    kind: Kind,
    name: str,
    now: float,
    cwd: str,
    version: str,
    argv: Sequence[str],
    stages: Sequence[str] = (),
    points: int | None = None,
    table: str | None = None,
) -> Launch:
    """Record a launch, or continue the one with this tag; the functions below add scripts, configs
    and code.

    Raises:
        UsageError: the tag belongs to a launch of another kind, or to a sweep over other
            parameters.
        OSError: the file system refuses.
    """
    directory = launch_dir(runs, tag)
    ids = [layout.run_id(tag, stage=stage) for stage in stages] if kind == "stages" else [tag]
    last = layout.run_id(tag, index=points - 1) if points else tag
    for run in [*ids, last]:
        launch_dir(runs, run)  # run ids must be valid names, too
    record = {
        "schema": SCHEMA,
        "tag": tag,
        "kind": kind,
        "name": name,
        "created": now,
        "cwd": cwd,
        "hpctrain": version,
        "argv": list(argv),
        "runs": [] if kind == "sweep" else ids,
        "stages": list(stages),
        "points": points,
        "table": table,
    }
    if not (directory / _RECORD).exists():
        directory.mkdir(parents=True, exist_ok=True)
        files.write_json(directory / _RECORD, record)
    known = load(runs, tag)
    if known is None:
        raise HpctrainError(
            f"{directory / _RECORD} cannot be read",
            hint=f"look at it, or use another name: --run-id {tag}-2",
        )
    problem = ""
    details: tuple[str, ...] = ()
    if known.kind != kind:
        words = {"run": "one run", "sweep": "a sweep", "stages": "stages"}
        problem = f"{tag} was launched as {words[known.kind]}, and this is {words[kind]}"
    elif kind == "sweep" and (known.table, known.points) != (table, points):
        problem = f"{tag} is a sweep over other points"
        details = (f"  its points: {known.points}, in {known.table}; these: {points}, in {table}",)
    if problem:
        raise UsageError(problem, details=details, hint=f"use another name: --run-id {tag}-2")
    if new := [stage for stage in stages if stage not in known.stages]:
        grown = files.read_json(directory / _RECORD) or record
        grown["stages"] = [*known.stages, *new]
        grown["runs"] = [*known.runs, *(layout.run_id(tag, stage=stage) for stage in new)]
        files.write_json(directory / _RECORD, grown)
    return load(runs, tag) or known


def add_script(runs: Path, tag: str, name: str, text: str) -> str:
    """Store a submitted script and return its file name, a new one if a different script has this
    name.
    """
    return keep(launch_dir(runs, tag) / SCRIPTS, name, text)


def add_config(
    runs: Path,
    tag: str,
    config: Mapping[str, Any],
    origins: Mapping[tuple[str, ...], str],
    *,
    stage: str | None = None,
) -> str:
    """Store a job config and return its file name, as `add_script` does.

    Args:
        runs: the directory `runs`.
        tag: the launch's tag.
        config: the resolved config, as JSON values.
        origins: config key with dots → where its value was set.
        stage: the stage that it belongs to.
    """
    value = {
        "schema": SCHEMA,
        "config": dict(config),
        "origins": {".".join(path): where for path, where in sorted(origins.items())},
    }
    name = f"config.{stage}.json" if stage else "config.json"
    return keep(launch_dir(runs, tag), name, files.json_text(value))


def set_code(runs: Path, tag: str, code: Mapping[str, Any], diff: str | None) -> None:
    """Record the code version, and point `code` to the snapshot that the launch's jobs run from now
    on.

    A previous version is kept as `code-DIGEST.json` and `code-DIGEST.diff`. Jobs resolve the
    snapshot when they start, so pending and requeued jobs of the launch run the new one, too. Call
    this only if the user requested it.

    Args:
        runs: the directory `runs`.
        tag: of the launch.
        code: the content of code.json; `digest` is the snapshot's.
        diff: the content of code.diff, or None.
    """
    directory = launch_dir(runs, tag)
    old = files.read_json(directory / "code.json")
    if old is not None and old.get("digest") != code.get("digest"):
        kept = f"code-{old.get('digest')}"
        keep(directory, f"{kept}.json", files.json_text(old))
        if (directory / "code.diff").exists():
            keep(
                directory,
                f"{kept}.diff",
                stored.read_regular(directory / "code.diff").decode("utf-8", "surrogateescape"),
            )
    if diff is None:
        (directory / "code.diff").unlink(missing_ok=True)
    else:
        files.write_text(directory / "code.diff", diff)
    files.write_json(directory / "code.json", dict(code))
    temporary = directory / f".code.{uuid.uuid4().hex}"
    temporary.symlink_to(Path("..", "..", layout.CODE, code["digest"]))
    temporary.replace(directory / _CODE)


def add_part(runs: Path, tag: str, part: Part) -> None:
    """Record a part of the launch; a script that is already recorded keeps its position."""
    if not part.script or Path(part.script).name != part.script or part.script.startswith("."):
        raise HpctrainError(f"{part.script!r} cannot be the name of a file of a launch")
    path = launch_dir(runs, tag) / "parts" / f"{part.script}.json"
    at = (_part(path) or part).at
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, {"schema": SCHEMA, **asdict(part), "at": at})


def submissions_dir(runs: Path, tag: str) -> Path:
    """Return the directory of a launch's submissions (slurm.ledger), one file each."""
    return launch_dir(runs, tag) / _SUBMISSIONS


def of_submission(record: str) -> tuple[Path, str] | None:
    """Return the runs directory and the tag of the launch that a submission's file belongs to; None
    for a script without a launch.
    """
    path = Path(record)
    is_launchs = path.parent.name == _SUBMISSIONS and path.parents[2].name == layout.LAUNCHES
    return (path.parents[3], path.parents[1].name) if is_launchs else None


def load(runs: Path, tag: str) -> Launch | None:
    """Return a launch; None if the tag has none, or its launch.json is not valid."""
    directory = runs / layout.LAUNCHES / tag
    record = files.read_json(directory / _RECORD) if layout.NAME.match(tag) else None
    launch = stored.made(Launch, {**(record or {}), "path": directory, "tag": tag})
    if launch is None:
        return None
    parts = [part for path in (directory / "parts").glob("*.json") if (part := _part(path))]
    link = directory / _CODE
    return replace(
        launch,
        code=link.readlink().name if link.is_symlink() else None,
        submissions=tuple(sorted(read_submissions(runs, tag), key=lambda one: (one.at, one.token))),
        parts=tuple(sorted(parts, key=lambda one: (one.at, one.script))),
    )


def tags(runs: Path) -> list[str]:
    """Return the tags of all launches, sorted."""
    try:
        with os.scandir(runs / layout.LAUNCHES) as entries:
            return sorted(entry.name for entry in entries if layout.NAME.match(entry.name))
    except OSError:
        return []


def deletion_path(runs: Path, tag: str, run: str) -> Path:
    """Return the file that records the deletion of a run, until it is submitted again."""
    return runs / layout.LAUNCHES / tag / "deleted" / run


def deleted_runs(runs: Path, tag: str) -> set[str]:
    """Return the ids of the runs that were deleted, and neither submitted nor started again."""
    recorded = (path.name for path in deletion_path(runs, tag, "").glob("*"))
    return {run for run in recorded if not (runs / run).exists()}


def _part(path: Path) -> Part | None:
    record = files.read_json(path)
    script = path.name.removesuffix(".json")
    return None if record is None else stored.made(Part, {**record, "script": script})


def keep(directory: Path, name: str, text: str) -> str:
    """Write `text` as `name`, or as NAME.2.SUFFIX and so on if that file has other content; return
    the name.
    """
    if Path(name).name != name or name.startswith("."):
        raise HpctrainError(f"{name!r} cannot be the name of a file of a launch")
    directory.mkdir(parents=True, exist_ok=True)
    stem, dot, suffix = name.rpartition(".")
    for count in itertools.count(1):
        numbered = f"{stem}.{count}{dot}{suffix}" if stem else f"{name}.{count}"
        path = directory / (name if count == 1 else numbered)
        if not path.exists():
            files.write_text(path, text)
        # Not read_text, which turns \r\n into \n: the script would differ from itself.
        if stored.read_regular(path) == text.encode("utf-8", "surrogateescape"):
            return path.name
    raise AssertionError  # itertools.count never ends
