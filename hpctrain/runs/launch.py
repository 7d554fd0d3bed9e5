"""The record of a launch, `runs/.launches/TAG/`: one `hpctrain submit` of a run, a sweep or stages, and what was submitted for it since.

    launch.json                  what it is: tag, kind, name, the runs or the number of points; written once
    config.json                  the job config as resolved, and where each value came from; of a stage, config.STAGE.json
    scripts/NAME.sbatch          what was submitted, or is to be: all scripts are kept before the first one is sent
    parts/NAME.sbatch.json       what a script stands for: its config, array, stage, dependencies and chain; written before it is sent
    code.json, code.diff         the version of the code (hpctrain.runs.code)
    code -> ../../.code/DIGEST   the snapshot that the jobs run; relative, so that `runs/` can be moved
    submissions/TOKEN.json       one sbatch: its words, its job id, the script and the config that belong to it
    TAG_INDEX.id                 of a sweep: the run of a point, written by the job script
    ends/CALL/                   of a sweep: how its points ended, and what was told of it (hpctrain.runs.ends), written by the job script

A tag that is known is launched again: the record grows by another submission. What differs from what is there, a script or a config,
gets a name of its own (`sft.2.sbatch`), and the submission names it. Several processes may write at once.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import files, layout
from hpctrain.runs.launch_record import Kind, Launch, Part, Submission

__all__ = [
    "Kind", "Launch", "Part", "Submission", "add_config", "add_part", "add_script", "add_submission", "create", "drop_submission",
    "launch_dir", "load", "new_tag", "run_dirs_for", "script_path", "set_code", "tags",
]  # fmt: skip
SCHEMA = 1
_RECORD, _CODE, _SUBMISSIONS, _SCRIPTS, _PARTS = "launch.json", "code", "submissions", "scripts", "parts"
#: What is left for `_STAGE` or `_INDEX` behind a tag (layout.NAME allows 120 characters).
_LONGEST_NAME = 64


def new_tag(job_name: str, now: float, random: int) -> str:
    """Return a tag such as `sft-261121-031508-7f3a`.

    Args:
        job_name: cut to 64 characters.
        now: seconds since the epoch; the tag says them in this machine's time zone, as people do.
        random: its lowest 16 bits tell two launches of one second apart.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", job_name).lstrip("._-")[:_LONGEST_NAME] or "job"
    return f"{name}-{time.strftime('%y%m%d-%H%M%S', time.localtime(now))}-{random & 0xFFFF:04x}"


def launch_dir(runs: Path, tag: str) -> Path:
    """Return the directory of a launch in the directory `runs`.

    Raises:
        UsageError: `tag` is no name that a launch can have.
    """
    if not layout.NAME.match(tag):
        raise UsageError(
            f"{tag!r} cannot be the name of a run", details=("it may have letters, digits and . _ -, and 120 of them",),
            fix=f"--run-id {re.sub(r'[^A-Za-z0-9._-]+', '-', tag).strip('._-')[:100] or 'my-run'}",
        )  # fmt: skip
    return runs / layout.LAUNCHES / tag


def create(
    runs: Path, tag: str, *, kind: Kind, name: str, now: float, cwd: str, version: str, argv: Sequence[str],
    stages: Sequence[str] = (), points: int | None = None, table: str | None = None,
) -> Launch:  # fmt: skip
    """Record a launch, or go on with the one of that tag; scripts, configs and code are added to it by the functions below.

    Raises:
        UsageError: the tag belongs to a launch of another kind, or to a sweep over other points.
        OSError: the file system refuses.
    """
    directory = launch_dir(runs, tag)
    ids = [] if kind == "sweep" else [layout.run_id(tag, stage=stage) for stage in stages] if kind == "stages" else [tag]
    for run in [*ids, *([layout.run_id(tag, index=points - 1)] if points else [])]:
        launch_dir(runs, run)  # is a name too
    record = {
        "schema": SCHEMA, "tag": tag, "kind": kind, "name": name, "created": now, "cwd": cwd, "hpctrain": version, "argv": list(argv),
        "runs": ids, "stages": list(stages), "points": points, "table": table,
    }  # fmt: skip
    if not (directory / _RECORD).exists():
        directory.mkdir(parents=True, exist_ok=True)
        if _exclusively(directory / _RECORD, _json(record)):
            return _loaded(directory, record)
    known = load(runs, tag)
    if known is None:
        raise HpctrainError(f"{directory / _RECORD} cannot be read", fix=f"look at it, or take another name: --run-id {tag}-2")
    _go_on(known, record)
    return load(runs, tag) or known


def _go_on(known: Launch, record: dict[str, Any]) -> None:
    """Hold a launch against the one that has its tag already."""
    fix = f"take another name: --run-id {known.tag}-2"
    if known.kind != record["kind"]:
        words = {"run": "one run", "sweep": "a sweep", "stages": "stages"}
        raise UsageError(f"{known.tag} was launched as {words[known.kind]}, and this is {words[record['kind']]}", fix=fix)
    if known.kind == "sweep" and (known.table, known.points) != (record["table"], record["points"]):
        raise UsageError(
            f"{known.tag} is a sweep over other points",
            details=(f"  its points: {known.points}, in {known.table}; these: {record['points']}, in {record['table']}",),
            fix=fix,
        )
    if new := [stage for stage in record["stages"] if stage not in known.stages]:
        grown = files.read_json(known.path / _RECORD) or record
        grown["stages"] = [*known.stages, *new]
        grown["runs"] = [*known.runs, *(layout.run_id(known.tag, stage=stage) for stage in new)]
        files.write_json(known.path / _RECORD, grown)


def add_script(runs: Path, tag: str, name: str, text: str) -> str:
    """Keep a script that is submitted, and return the name that it got: another one where a script of that name says something else."""
    return _keep(launch_dir(runs, tag) / _SCRIPTS, name, text)


def script_path(runs: Path, tag: str, name: str) -> Path:
    """Return where a script is that `add_script` has kept under `name`: nobody writes it again."""
    return launch_dir(runs, tag) / _SCRIPTS / name


def add_config(runs: Path, tag: str, config: Mapping[str, Any], origins: Mapping[tuple[str, ...], str], *, stage: str | None = None) -> str:
    """Keep a job config, and return the name of its file, as `add_script` does.

    Args:
        runs: the directory `runs`.
        tag: of the launch.
        config: as resolved, as JSON values.
        origins: config path → where its value was written; a path is written with dots.
        stage: whose config it is.
    """
    value = {"schema": SCHEMA, "config": dict(config), "origins": {".".join(path): where for path, where in sorted(origins.items())}}
    return _keep(launch_dir(runs, tag), f"config.{stage}.json" if stage else "config.json", _json(value))


def set_code(runs: Path, tag: str, code: Mapping[str, Any], diff: str | None, *, snapshot: str | None) -> None:
    """Record the version of the code, and point `code` to the snapshot that the launch's jobs run from now on.

    A version that was recorded before is kept as `code-DIGEST.json` and `code-DIGEST.diff`. Jobs find the snapshot when they start, so
    that a job of the launch that waits, or is requeued, takes the new one too: only for who has asked for that.

    Args:
        runs: the directory `runs`.
        tag: of the launch.
        code: what becomes code.json.
        diff: what becomes code.diff; None where there is nothing to show.
        snapshot: its digest; None leaves the launch without one.
    """
    directory = launch_dir(runs, tag)
    old = files.read_json(directory / "code.json")
    if old is not None and old.get("digest") != code.get("digest"):
        kept = f"code-{old.get('digest') or old.get('commit') or 'unknown'}"
        _keep(directory, f"{kept}.json", _json(old))
        if (directory / "code.diff").exists():
            _keep(directory, f"{kept}.diff", _text_of(directory / "code.diff"))
    if diff is None:
        (directory / "code.diff").unlink(missing_ok=True)
    else:
        files.write_text(directory / "code.diff", diff)
    files.write_json(directory / "code.json", dict(code))
    link = directory / _CODE
    if snapshot is None:
        link.unlink(missing_ok=True)
    else:
        temporary = directory / f".code.{uuid.uuid4().hex}"
        temporary.symlink_to(Path("..", "..", layout.CODE, snapshot))
        temporary.replace(link)


def add_part(runs: Path, tag: str, part: Part) -> None:
    """Record what a script of the launch stands for; the same script again keeps its place among the parts."""
    if not part.script or Path(part.script).name != part.script or part.script.startswith("."):
        raise HpctrainError(f"{part.script!r} cannot be the name of a file of a launch")
    path = launch_dir(runs, tag) / _PARTS / f"{part.script}.json"
    known = _part(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, {"schema": SCHEMA, **asdict(part), "at": known.at if known is not None else part.at})


def add_submission(runs: Path, tag: str, submission: Submission) -> None:
    """Record a submission; the same token again adds the job id that was not known yet.

    Raises:
        HpctrainError: a submission of that token has another job id.
    """
    path = launch_dir(runs, tag) / _SUBMISSIONS / f"{submission.token}.json"
    if not layout.NAME.match(submission.token):
        raise HpctrainError(f"{submission.token!r} cannot be the name of a submission")
    known = _submission(path)
    if known is not None and known.job_id is not None and known.job_id != submission.job_id:
        raise HpctrainError(f"the submission {submission.token} of {tag} is job {known.job_id} already, and not {submission.job_id}")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, {"schema": SCHEMA, **asdict(submission)})


def drop_submission(runs: Path, tag: str, token: str) -> None:
    """Forget a submission that the scheduler refused."""
    (launch_dir(runs, tag) / _SUBMISSIONS / f"{token}.json").unlink(missing_ok=True)


def load(runs: Path, tag: str) -> Launch | None:
    """Return a launch; None where there is none of that tag, or its launch.json says something else."""
    if not layout.NAME.match(tag):
        return None
    directory = runs / layout.LAUNCHES / tag
    record = files.read_json(directory / _RECORD)
    return None if record is None or record.get("kind") not in get_args(Kind) else _loaded(directory, record)


def tags(runs: Path) -> list[str]:
    """Return the tags of all launches, in order."""
    try:
        with os.scandir(runs / layout.LAUNCHES) as entries:
            return sorted(entry.name for entry in entries if layout.NAME.match(entry.name))
    except OSError:
        return []


def run_dirs_for(runs: Path, launch: Launch) -> list[Path]:
    """Return the directories of all runs that a launch stands for, whether they are there or not."""
    return [layout.run_dir(runs, run) for run in launch.run_ids]


def _loaded(directory: Path, record: dict[str, Any]) -> Launch:
    points = record.get("points")
    launch = Launch(
        path=directory, tag=directory.name, kind=record["kind"], name=str(record.get("name", "")), cwd=str(record.get("cwd", "")),
        created=_number(record.get("created")), version=str(record.get("hpctrain", "")), argv=_words(record.get("argv")),
        runs=_words(record.get("runs")), stages=_words(record.get("stages")), points=points if isinstance(points, int) else None,
        table=_word(record.get("table")), code=_code(directory),
    )  # fmt: skip
    found = [read for path in sorted((directory / _SUBMISSIONS).glob("*.json")) if (read := _submission(path)) is not None]
    parts = [part for path in (directory / _PARTS).glob("*.json") if (part := _part(path)) is not None]
    return replace(
        launch,
        submissions=tuple(sorted(found, key=lambda one: (one.at, one.token))),
        parts=tuple(sorted(parts, key=lambda one: (one.at, one.script))),
    )


def _part(path: Path) -> Part | None:
    said = files.read_json(path)
    if said is None:
        return None
    offset, links, dependencies = said.get("offset"), said.get("links"), said.get("dependencies")
    pairs = [_words(pair) for pair in dependencies] if isinstance(dependencies, list) else []
    return Part(
        script=path.name.removesuffix(".json"), config=_word(said.get("config")), array=_word(said.get("array")),
        offset=offset if isinstance(offset, int) else 0, stage=_word(said.get("stage")),
        dependencies=tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2), links=links if isinstance(links, int) else 0,
        at=_number(said.get("at")),
    )  # fmt: skip


def _submission(path: Path) -> Submission | None:
    said = files.read_json(path)
    if said is None:
        return None
    optional = ("job_id", "cluster", "script", "config", "array", "dependency", "stage")
    offset = said.get("offset")
    return Submission(
        offset=offset if isinstance(offset, int) else 0, call=_word(said.get("call")) or "",
        token=path.stem, argv=_words(said.get("argv")), at=_number(said.get("at")), command=_words(said.get("command")),
        scheduler="local" if said.get("scheduler") == "local" else "slurm", **{name: _word(said.get(name)) for name in optional},
    )  # fmt: skip


def _code(directory: Path) -> str | None:
    try:
        return (directory / _CODE).readlink().name
    except OSError:
        return None


def _keep(directory: Path, name: str, text: str) -> str:
    """Write `text` under `name`, or under NAME.2.SUFFIX and so on where a file of that name holds something else; return the name."""
    if Path(name).name != name or name.startswith("."):
        raise HpctrainError(f"{name!r} cannot be the name of a file of a launch")
    directory.mkdir(parents=True, exist_ok=True)
    stem, dot, suffix = name.rpartition(".")
    count, tried = 1, name
    while not _exclusively(directory / tried, text):
        if _text_of(directory / tried) == text:
            break
        count += 1
        tried = f"{stem}.{count}{dot}{suffix}" if stem else f"{name}.{count}"
    return tried


def _exclusively(path: Path, text: str) -> bool:
    """Write a file, whole, where there is none; say whether it was this call that did."""
    if path.exists():
        return False
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    files.write_text(temporary, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: the last of two that write in the same instant wins
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _text_of(path: Path) -> str:
    # Not read_text: it would turn \r\n into \n, and a script into one that differs from itself.
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, Iterable) and not isinstance(value, str) else ()


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
