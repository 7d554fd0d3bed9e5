"""What is said of a statement, before it is laid out over its lines; small helpers for words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from hpctrain.jobs.explain_script.facts import Facts
from hpctrain.jobs.explain_script.read_shell import Word
from hpctrain.jobs.explain_script.rows import Row

#: What is written small wherever it stands.
_NAMES = {"sbatch", "srun", "scontrol", "hpctrain", "torchrun", "accelerate", "stdout", "stderr", "bash"}
_QUOTED = re.compile(r"\$?'([^']*)'|\$?\"((?:[^\"\\]|\\[\s\S])*)\"")


@dataclass(frozen=True, slots=True)
class Part:
    """A word or two of a line, and why they are there; `line` is theirs."""

    line: int
    what: str
    why: str
    source: str | None = None
    known: bool = True


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence on a statement, its source and section (None: that of what stands before), and what its words are for."""

    why: str
    source: str | None = None
    section: str | None = None
    parts: tuple[Part, ...] = ()
    known: bool = True

    def with_parts(self, parts: list[Part]) -> Said:
        """Return the same with further parts."""
        return replace(self, parts=(*self.parts, *parts))


@dataclass(frozen=True, slots=True)
class Here:
    """Where a command stands.

    Attributes:
        place: `batch` or `task`, as in `read_shell.Statement`.
        early: the outer shell expands its variables.
        stderr: its output goes to stderr.
        depth: commands that started this one, `srun` → `apptainer` → `torchrun`.
    """

    facts: Facts = field(default_factory=Facts)
    place: str = "batch"
    early: bool = False
    stderr: bool = False
    depth: int = 0

    @property
    def where(self) -> str:
        """On which machine, and how often."""
        if self.place == "task":
            return "in each task" if (self.facts.tasks_per_node or 2) > 1 else "once on each node"
        return "once, on the node of the job" if self.facts.nodes == 1 else "once, on the first node of the job"

    def phrases(self) -> dict[str, str]:
        """What can stand in every row."""
        idle = self.place == "batch" and self.facts.nodes is not None and self.facts.nodes > 1
        alone = "No srun stands in front, so the other nodes stay idle." if idle else ""
        return {**self.facts.phrases, "where": self.where, "alone": alone, "stream": "stderr" if self.stderr else "stdout",
                "whole": "the task" if self.place == "task" else "the job"}  # fmt: skip


def fill(row: Row, here: Here, **values: str) -> str:
    """Return the sentence of `row` with its places filled."""
    known = {"it": "", "value": "", "args": "", "trap": "", "code": "", "each": "", **here.phrases(), **values}
    return row.why.format_map(known).strip()


def say(row: Row, here: Here, **values: str) -> Said:
    """Return what `row` says."""
    return Said(fill(row, here, **values), row.source, row.section)


def bare(text: str) -> str:
    """Return a word without its quotes, for a sentence; nothing is expanded."""
    return _QUOTED.sub(lambda match: match[1] if match[1] is not None else match[2], text)


def shown(words: tuple[Word, ...] | list[Word], limit: int = 48) -> str:
    """Return words as they are written, on one line, cut where they are long."""
    text = " ".join(" ".join(word.text.split()) if not word.program or word.line == word.last else "'…'" for word in words)
    return text if len(text) <= limit else text[: limit - 2].rstrip() + " …"


def name_of(word: Word) -> str:
    """Return the name of a program, without its directory."""
    return bare(word.text).rpartition("/")[2]


def lower_first(text: str) -> str:
    """Return `text` for the middle of a sentence."""
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def upper_first(text: str) -> str:
    """Return `text` for the beginning of one; names stay as they are."""
    return text if text.partition(" ")[0] in _NAMES else text[:1].upper() + text[1:]
