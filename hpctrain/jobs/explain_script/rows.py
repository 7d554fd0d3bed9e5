"""What a row of the tables says: a sentence, where it is known from, and under which heading a reader finds it."""

from __future__ import annotations

from dataclasses import dataclass

HEADER = "what this file is"
ASKED = "what is asked of Slurm"
PLACE = "where it runs"
LOGS = "where it logs"
ENVIRONMENT = "the environment"
RUN = "the run"
MEET = "where the ranks meet"
LAUNCH = "the launch"
NODE = "on each node"
END = "after the launch"
OWN = "your own commands"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that can stand in a script.

    Attributes:
        why: what it does, and what happens without it. `{it}` is the value in words, `{value}` the value as it is written; the numbers of
            the script's own directives are `{nodes}`, `{gpus}`, `{cores}`, `{tasks}` and `{processes}`, always phrases such as `2 nodes`.
        source: the man page or manual that says so.
        section: the heading; None: that of the line before.
        reading: the function of `readings` that puts the value into words; None: the value as it is.
        flag: of an option: it takes no value.
    """

    why: str
    source: str
    section: str | None = None
    reading: str | None = None
    flag: bool = False
