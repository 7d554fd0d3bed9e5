"""Whether what a log tells of was got over: by the steps behind it, or by what closes a program that did what it was to do. PURE.

A line that was got over for sure is no cause. One that perhaps was is evidence of a failure only where that is known, and nothing better is
there. A healthy job is full of such lines: downloads that were tried again, an adapter that is left out, one step of NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from hpctrain.explain.hit import Hit, Trouble
from hpctrain.explain.rule import Rule

#: Steps behind an error, and the training got over it: for sure, and perhaps. Other ranks may write a few before they wait for a dead one.
SURVIVED, LITTLE = 20, 3
#: Bytes that may have been held back: Python keeps 8 KiB of what goes to a file, and writes them when it ends, behind its traceback.
_HELD_BACK = 16 << 10
#: Lines from the head of a traceback to what a rule knows of it.
_WITHIN = 60
#: The first frame of an error that nobody caught: it ended its process, though the output that was held back came behind it.
_UNCAUGHT = re.compile(r", in (?:<module>|_run_module_as_main)\s*$")
_CAUGHT = re.compile(r"^ +File .*, in (?!<module>|_run_module|_bootstrap|_wrap|wrapper|\w*worker|run\b|main\b|<lambda>|__?\w*call)\w+\s*$")
#: A line that tells of something that broke; what it tells of may have been got over.
_ERROR = re.compile(r"(?i)error|exception|traceback|fatal|abort|killed|fail|\braise\b")
#: Slurm writes "error:" in front of what it does to a job.
_NOTICE = re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON ")


class Over(IntEnum):
    """How sure it is that something was got over."""

    NO = 0
    PERHAPS = 1
    SURELY = 2


def of(each: Hit | Trouble, *, numbers: bool = False, uncaught: bool = False, caught: bool = False) -> Over:
    """Return whether one line, or one error, was got over.

    Args:
        each: what was found.
        numbers: it tells of NaN: a training that is complete may have trained with it to its end.
        uncaught: it is of an error that nobody caught; a little behind it may be of before.
        caught: it is of an error that somebody has caught: one step will do.
    """
    if each.steps_after >= SURVIVED or (each.done_after == "complete" and not numbers):
        return Over.PERHAPS if uncaught and 0 < each.bytes_after <= _HELD_BACK else Over.SURELY
    perhaps = each.steps_after >= (1 if caught else LITTLE) or (each.done_after == "zero" and not numbers)
    return Over.PERHAPS if perhaps and not uncaught else Over.NO


def tracebacks(troubles: Iterable[Trouble]) -> dict[str, list[Trouble]]:
    """Return the tracebacks of each file: a job of hundreds of ranks has thousands, and as many lines."""
    found: dict[str, list[Trouble]] = {}
    for each in troubles:
        if each.traceback:
            found.setdefault(each.file, []).append(each)
    return found


def of_hits(rule: Rule, hits: Iterable[Hit], by_file: Mapping[str, Sequence[Trouble]]) -> Over:
    """Return whether all lines of a rule were got over; `by_file`: `tracebacks`."""
    hits = list(hits)
    # A training goes on in the time that a notice of its end leaves it.
    first = hits[0].evidence.text
    if rule.area in ("time", "end") and (_NOTICE.search(first) or _ERROR.search(first) is None):
        return Over.NO
    own = [(hit, [each for each in by_file.get(hit.evidence.file, ()) if stands_in(hit, each)]) for hit in hits]
    # A number that is wrong stays, until steps without it come; an error that was raised for it is one like others.
    numbers = rule.area == "numbers" and _ERROR.search(first) is None
    return min(
        of(hit, numbers=numbers, uncaught=any(map(is_uncaught, shown)), caught=bool(shown) and all(map(is_caught, shown)))
        for hit, shown in own
    )


def of_trouble(each: Trouble) -> Over:
    """Return whether an error was got over."""
    return of(each, uncaught=is_uncaught(each), caught=is_caught(each))


def is_uncaught(each: Trouble) -> bool:
    """Whether an error is a traceback from the first line of a program on."""
    return each.traceback and any(_UNCAUGHT.search(line) for line in each.lines[1:3])


def is_caught(each: Trouble) -> bool:
    """Whether an error is a traceback that begins within a program, where somebody caught it, and in no process or thread of its own."""
    return each.traceback and len(each.lines) > 1 and _CAUGHT.search(each.lines[1]) is not None


def stands_in(hit: Hit, trouble: Trouble) -> bool:
    """Whether a line is of an error: near its head, and of no other rank."""
    if trouble.file != hit.evidence.file or not trouble.line <= hit.order[1] <= trouble.line + _WITHIN:
        return False
    return trouble.rank is None or trouble.rank == hit.rank
