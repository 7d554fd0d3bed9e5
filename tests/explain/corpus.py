"""Logs with what is to be said of them: tests/corpus/explain. One case by hand: `python tests/explain/corpus.py DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hpctrain.explain import engine, rule
from hpctrain.explain.case import AttemptFact, Case, FileFact
from hpctrain.explain.hit import Scanned
from hpctrain.explain.model import Explanation
from hpctrain.explain.rule import Rule
from hpctrain.logs import found, scan
from hpctrain.logs.model import LogFile
from hpctrain.memory.sample import Sample, parse_line
from hpctrain.scheduler.parse.accounting import Account, Step

CORPUS = Path(__file__).parents[1] / "corpus" / "explain"
#: There are 1500 files to read before the first test.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KEYS = {"origin", "record", "config", "samples", "attempts", "expect", "step", "max_steps", "step_s", "fit", "world_size", "gpus_per_node",
        "gpu_memory_bytes", "node_memory_bytes", "now", "extra", "unexplained"}  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """One folder of the corpus."""

    path: Path
    kind: str
    rule: str | None
    said: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(CORPUS))

    @property
    def logs(self) -> list[Path]:
        return sorted(file for file in self.path.rglob("*") if file.is_file() and file.name != "case.yaml")


def rules() -> tuple[Rule, ...]:
    return rule.shipped()


def read(path: Path) -> Kept:
    kind, *rest = path.relative_to(CORPUS).parts
    file = path / "case.yaml"
    said = yaml.load(file.read_text(), LOADER) if file.exists() else {}  # noqa: S506 - both are safe loaders
    unknown = set(said) - KEYS
    assert not unknown, f"{file}: unknown keys {sorted(unknown)}"
    return Kept(path, kind, rest[0] if kind != "healthy" else None, said)


@cache
def cases() -> tuple[Kept, ...]:
    """Return every case: fires/RULE/CASE, misses/RULE/CASE, healthy/CASE."""
    paths = [*CORPUS.glob("fires/*/*"), *CORPUS.glob("misses/*/*"), *CORPUS.glob("healthy/*")]
    return tuple(read(path) for path in sorted(paths) if path.is_dir())


def log_files(paths: Sequence[Path]) -> tuple[LogFile, ...]:
    return found.of_paths(paths)


def case_of(kept: Kept, files: Sequence[LogFile]) -> Case:
    said = kept.said
    record = said.get("record")
    values = {key: said[key] for key in KEYS - {"origin", "record", "samples", "attempts", "expect", "unexplained"} if key in said}
    return Case(
        files=tuple(FileFact(name=file.name, rank=file.rank, node=file.node, size=file.path.stat().st_size) for file in files),
        account=_account(record) if record else None,
        attempts=tuple(AttemptFact(**attempt) for attempt in said.get("attempts") or ()),
        samples=tuple(_sample(line) for line in said.get("samples") or ()), **values,
    )  # fmt: skip


def explain(kept: Kept, files: Sequence[LogFile] | None = None) -> Explanation:
    """Return what the engine says of a case; of its logs, unless others are given."""
    files = log_files(kept.logs) if files is None else files
    scanned = scan.scan(files, rules(), processes=1)
    return judge(case_of(kept, files), scanned)


def judge(case: Case, scanned: Scanned) -> Explanation:
    return engine.explain(
        case, scanned.hits, rules(), troubles=scanned.troubles, first_failed=scanned.first_failed, status=scanned.status
    )  # fmt: skip


def differences(kept: Kept, said: Explanation) -> list[str]:
    """Return where the list of diagnoses is not the one that is expected."""
    expected = kept.said.get("expect") or []
    got = [diagnosis.id for diagnosis in said.diagnoses]
    wanted = [each["id"] for each in expected]
    if got != wanted:
        return [f"diagnoses are {got}, not {wanted}"]
    wrong = []
    for each, diagnosis in zip(expected, said.diagnoses, strict=True):
        first = diagnosis.evidence[0] if diagnosis.evidence else None
        have = {
            "id": diagnosis.id, "certainty": diagnosis.certainty, "rank": diagnosis.rank, "node": diagnosis.node,
            "file": Path(first.file).name if first else None, "line": first.line if first else None,
        }  # fmt: skip
        unknown = set(each) - set(have)
        wrong += [f"{each['id']}: expect has unknown keys {sorted(unknown)}"] if unknown else []
        wrong += [f"{each['id']}: {key} is {have[key]!r}, not {each[key]!r}" for key in each if key in have and have[key] != each[key]]
    return wrong


def _account(record: dict[str, Any]) -> Account:
    given = dict(record)
    steps = tuple(Step(**step) for step in given.pop("steps", ()))
    given.setdefault("job_id", "1234")
    given.setdefault("scheduler", "slurm")
    names = {field.name for field in fields(Account)}
    assert set(given) <= names, f"record has unknown keys {sorted(set(given) - names)}"
    return Account(**given, steps=steps)


def _sample(line: str) -> Sample:
    sample = parse_line(line)
    assert sample is not None, f"no sample: {line}"
    return sample


if __name__ == "__main__":
    for word in sys.argv[1:]:
        kept = read(Path(word).resolve())
        answer = explain(kept)
        print(f"== {kept.name}")
        for diagnosis in answer.diagnoses:
            print(f"{diagnosis.id} [{diagnosis.certainty}] rank={diagnosis.rank} node={diagnosis.node} since={diagnosis.since}")
            print(f"  cause: {diagnosis.cause}\n  fix: {diagnosis.fix.text}\n  changes: {diagnosis.fix.changes}")
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
