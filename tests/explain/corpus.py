r"""Logs with the diagnoses that are expected of them: tests/corpus/explain, one file for each rule.

A file holds cases one after the other. `@case KIND NAME` begins one (fires, misses or healthy);
YAML follows, with where the log is from and what is expected; `@file NAME` begins a log, whose
bytes are the lines below, up to the next `@`. Control characters are written as \xNN in a log of
`@file NAME escaped`. One case by hand: `python tests/explain/corpus.py fires/RULE/NAME`.
"""

import atexit
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hpctrain.explain import engine
from hpctrain.explain import rules as failure_rules
from hpctrain.explain.model import AttemptFact, Explanation, FileFact, JobContext, ScanResult
from hpctrain.explain.rules import FailureRule
from hpctrain.logs import files, scan
from hpctrain.logs.files import LogFile
from hpctrain.memory.sample import Sample, parse_line
from hpctrain.slurm.notations.records import JobRecord, StepUsage

CORPUS = Path(__file__).parents[1] / "corpus" / "explain"
HEALTHY_LINES = CORPUS / "healthy-lines.txt"
_CASE = re.compile(rb"^@case (\w+) (.+)\n", re.MULTILINE)
_FILE = re.compile(rb"^@file (\S+)( escaped)?\n", re.MULTILINE)
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KEYS = {
    "origin",
    "record",
    "config",
    "samples",
    "attempts",
    "expect",
    "step",
    "max_steps",
    "step_s",
    "fit",
    "world_size",
    "gpus_per_node",
    "gpu_memory_bytes",
    "node_memory_bytes",
    "now",
    "extra",
    "unexplained",
}


@dataclass(frozen=True)
class Kept:
    """One case of the corpus."""

    kind: str
    rule: str | None
    name: str
    said: dict[str, Any]
    contents: tuple[tuple[str, bytes], ...]

    @property
    def path(self) -> Path:
        return _folder() / self.name

    @property
    def logs(self) -> list[Path]:
        """The case's logs, which are written at the first call."""
        paths = []
        for name, content in self.contents:
            path = self.path / name
            paths.append(path)
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return sorted(paths)


@cache
def _folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="hpctrain-corpus-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def rules() -> tuple[FailureRule, ...]:
    return failure_rules.shipped()


def _read(file: Path) -> Iterator[Kept]:
    _, *parts = _CASE.split(file.read_bytes())
    for kind, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        given, *logs = _FILE.split(text)
        said = yaml.load(given, LOADER) or {}  # noqa: S506 - both are safe loaders
        unknown = set(said) - KEYS
        assert not unknown, f"{file}, {name.decode()}: unknown keys {sorted(unknown)}"
        rule_name = None if kind == b"healthy" else file.stem
        yield Kept(
            kind=kind.decode(),
            rule=rule_name,
            name="/".join(filter(None, (kind.decode(), rule_name, name.decode()))),
            said=said,
            contents=tuple(
                (log.decode(), _unescaped(content) if escaped else content)
                for log, escaped, content in zip(logs[::3], logs[1::3], logs[2::3], strict=True)
            ),
        )


def _unescaped(content: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), content)


@cache
def cases() -> tuple[Kept, ...]:
    """Return every case: fires/RULE/CASE, misses/RULE/CASE, healthy/CASE."""
    files = [*CORPUS.glob("*.txt"), *CORPUS.glob("healthy/*.txt")]
    found = [kept for file in files if file.name != HEALTHY_LINES.name for kept in _read(file)]
    return tuple(sorted(found, key=lambda kept: (kept.kind, Path(kept.name))))


def log_files(paths: Sequence[Path]) -> tuple[LogFile, ...]:
    return files.of_paths(paths)


def case_of(kept: Kept, files: Sequence[LogFile]) -> JobContext:
    said = kept.said
    record = said.get("record")
    values = {
        key: said[key]
        for key in KEYS - {"origin", "record", "samples", "attempts", "expect", "unexplained"}
        if key in said
    }
    return JobContext(
        files=tuple(FileFact(name=file.name, size=file.path.stat().st_size) for file in files),
        account=_account(record) if record else None,
        attempts=tuple(AttemptFact(**attempt) for attempt in said.get("attempts") or ()),
        samples=tuple(_sample(line) for line in said.get("samples") or ()),
        **values,
    )


def explain(kept: Kept, files: Sequence[LogFile] | None = None) -> Explanation:
    """Return what the engine says of a case; of its logs, unless others are given."""
    files = log_files(kept.logs) if files is None else files
    scanned = scan.scan(files, rules())
    return judge(case_of(kept, files), scanned)


def judge(case: JobContext, scanned: ScanResult) -> Explanation:
    return engine.explain(
        case,
        scanned.hits,
        rules(),
        troubles=scanned.troubles,
        first_failed=scanned.first_failed,
        status=scanned.status,
    )


def differences(kept: Kept, said: Explanation) -> list[str]:
    """Return where the list of diagnoses is not the one that is expected."""
    expected = kept.said.get("expect") or []
    got = [diagnosis.id for diagnosis in said.diagnoses]
    wanted = [each["id"] for each in expected]
    if got != wanted:
        return [f"diagnoses are {got}, not {wanted}"]
    wrong = (
        []
        if kept.said.get("unexplained", "") in str(said.unexplained)
        else [f"another error is shown: {said.unexplained}"]
    )
    for each, diagnosis in zip(expected, said.diagnoses, strict=True):
        first = diagnosis.evidence[0] if diagnosis.evidence else None
        have = {
            "id": diagnosis.id,
            "certainty": diagnosis.certainty,
            "rank": diagnosis.rank,
            "node": diagnosis.node,
            "file": Path(first.file).name if first else None,
            "line": first.line if first else None,
        }
        unknown = set(each) - set(have)
        wrong += [f"{each['id']}: expect has unknown keys {sorted(unknown)}"] if unknown else []
        wrong += [
            f"{each['id']}: {key} is {have[key]!r}, not {each[key]!r}"
            for key in each
            if key in have and have[key] != each[key]
        ]
    return wrong


def _account(record: dict[str, Any]) -> JobRecord:
    given = dict(record)
    steps = tuple(StepUsage(**step) for step in given.pop("steps", ()))
    given.setdefault("job_id", "1234")
    given.setdefault("scheduler", "slurm")
    names = {field.name for field in fields(JobRecord)}
    assert set(given) <= names, f"record has unknown keys {sorted(set(given) - names)}"
    return JobRecord(**given, steps=steps)


def _sample(line: str) -> Sample:
    sample = parse_line(line)
    assert sample is not None, f"no sample: {line}"
    return sample


if __name__ == "__main__":
    for kept in (kept for kept in cases() if kept.name in sys.argv[1:]):
        answer = explain(kept)
        print(f"== {kept.name}")
        for diagnosis in answer.diagnoses:
            print(
                f"{diagnosis.id} [{diagnosis.certainty}] rank={diagnosis.rank}"
                f" node={diagnosis.node} since={diagnosis.since}"
            )
            print(
                f"  cause: {diagnosis.cause}\n  fix: {diagnosis.fix.text}\n  changes:"
                f" {diagnosis.fix.changes}"
            )
            for evidence in diagnosis.evidence:
                print(f"  {evidence.file}:{evidence.line}: {evidence.text}")
        for consequence in answer.consequences:
            print(
                f"also: {consequence.id} x{consequence.count} ranks={consequence.ranks} "
                f"{consequence.evidence.file}:{consequence.evidence.line}"
            )
        if answer.unexplained:
            print("unexplained:", *answer.unexplained.lines, sep="\n  ")
        print(*answer.history, sep="\n")
        print("differences:", differences(kept, answer))
