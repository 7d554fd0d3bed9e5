"""Words that a line must hold so that a regex can match in it: what makes a search of gigabytes for hundreds of regexes fast. PURE.

Worked out of the parsed regex. All in lower case, because the search is: a word too many costs time, a word too few would lose a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

_parser: Any = re._parser  # type: ignore[attr-defined]

#: A line holds one of these words. One that ends with END is followed by no letter, digit or underscore.
Clause = frozenset[str]
END = "\0"
_OPEN = "\1"
_DIGITS = frozenset(range(ord("0"), ord("9") + 1))
#: Shorter words are in every second line.
MIN_LENGTH = 3
#: Alternatives of one word, of `oom[-_]kill` two.
_MAX_ALTERNATIVES = 256
#: What healthy logs are full of. A word that stands in here is the last choice.
_EVERYDAY = """{'loss': 1.0, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1} {"loss": 1.0, "grad_norm": 0.5, "learning_rate": 1e-05}
{'loss': '1.0', 'grad_norm': '0.5', 'learning_rate': '1e-05', 'epoch': '0.1'} train_runtime train_loss eval_loss rank: step:
epoch:
 10%|    | 10/100 [00:10<01:30,  1.20it/s] [rank0]: [default0]: 0: [speed] step=1/2 tokens/s=1 mfu=41.2% data_wait=0.3%
memory=1/2M host=1M eta=0:01:00
[memory] 2026-11-20t21:08:03.123z step=10 event=step host=node01 rank=3/8 local=3 | torch allocated=1m reserved=1m | gpu 3
"nvidia a100" gpu-5a
used=1/2m util=97% | process rss=1m children=1m | node used=1/2m | cgroup used=1/2m 2026-11-20 21:08:03,123 - info -
trainer.py:123 - warning:
userwarning: error:
 error
errors failed cuda time nccl info : loading checkpoint shards: the model of this is not for with and to torch file line
/lib/python3.11/site-packages/
"""


@lru_cache(maxsize=2000)
def clauses(pattern: str) -> tuple[Clause, ...]:
    """Return clauses that each line in which `pattern` matches fulfils, the best to search for first; none where none can be known.

    Raises:
        re.error: it is no regex.
    """
    _, found = _sequence(_parser.parse(pattern))
    found = [_least(_ended(text) for text in clause) for clause in found]
    usable = {clause for clause in found if all(len(word.rstrip(END)) >= MIN_LENGTH for word in clause)}
    return tuple(sorted(usable, key=lambda clause: (-worth(clause), sorted(clause))))


@lru_cache(maxsize=4000)
def tells_digits(pattern: str) -> bool:
    """Whether a regex may match a line, and not the same line with other digits of the same number.

    Raises:
        re.error: it is no regex.
    """
    return _tells(_parser.parse(pattern))


def _tells(nodes: Iterable[tuple[Any, Any]]) -> bool:
    return any(_node_tells(str(kind), value) for kind, value in nodes)


def _node_tells(kind: str, value: Any) -> bool:
    match kind:
        case "LITERAL" | "NOT_LITERAL":
            return value in _DIGITS
        case "IN":
            return not _has_all_or_none(value)
        case "SUBPATTERN":
            return _tells(value[3])
        case "ATOMIC_GROUP":
            return _tells(value)
        case "BRANCH":
            return any(map(_tells, value[1]))
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _tells(value[2])
        case "ASSERT" | "ASSERT_NOT":
            return _tells(value[1])
    return kind not in ("AT", "ANY", "NEGATE", "FAILURE", "CATEGORY")


def _has_all_or_none(items: Sequence[tuple[Any, Any]]) -> bool:
    """Whether a set of characters holds all digits, or none."""
    held: set[int] = set()
    for kind, value in items:
        match str(kind):
            case "LITERAL":
                held.add(value)
            case "RANGE":
                held.update(_DIGITS & set(range(value[0], value[1] + 1)))
            case "CATEGORY" if str(value) in ("CATEGORY_DIGIT", "CATEGORY_WORD", "CATEGORY_NOT_SPACE"):
                return True
    return not held & _DIGITS or held >= _DIGITS


def _ended(text: str) -> str:
    """Return a text with the mark of a word's end where that is its end, and nowhere else."""
    bare = text.replace(END, "").rstrip(_OPEN)
    return bare + END if text.endswith(END) and (bare[-1:].isalnum() or bare[-1:] == "_") else bare


def _least(words: Iterable[str]) -> Clause:
    """Return the words without those that hold another one."""
    found = set(words)
    return frozenset(word for word in found if not any(other != word and other in word for other in found))


def worth(clause: Iterable[str]) -> float:
    """Return how rare lines with one of the words are: by the shortest word, and how many there are; below 0 where one is everyday."""
    words = list(clause)
    return min(len(word) - (50 if _is_everyday(word) else 0) for word in words) - 0.02 * len(words)


def _is_everyday(word: str) -> bool:
    if not word.endswith(END):
        return word in _EVERYDAY
    return re.search(re.escape(word[:-1]) + r"(?!\w)", _EVERYDAY) is not None


def _sequence(nodes: Iterable[tuple[Any, Any]]) -> tuple[set[str], list[Clause]]:
    """Return what the nodes, one behind the other, can match, and clauses.

    Of the texts, one that ends with _OPEN is the beginning of what is matched; `_OPEN` alone says that nothing is known of it.
    """
    parts = [_node(node) for node in nodes]
    texts, found = _joined([texts for texts, _ in parts], split=False)
    if any(text.endswith(_OPEN) for part, _ in parts for text in part):  # `ab*cde`: what stands behind may say more
        found += _joined([part for part, _ in parts], split=True)[1]
    return texts, [*found, *(clause for _, inner in parts for clause in inner)]


def _joined(parts: list[set[str]], *, split: bool) -> tuple[set[str], list[Clause]]:
    """Return what texts, one behind the other, make; with `split`, none goes on where one of the next is only a beginning."""
    run = {""}
    first: set[str] | None = None
    found: list[Clause] = []
    for texts in parts:
        ends = _OPEN in texts or all(text.endswith(_OPEN) for text in run) or (split and any(text.endswith(_OPEN) for text in texts))
        if not ends and len(run) * len(texts) <= _MAX_ALTERNATIVES:
            run = {a if a.endswith(_OPEN) else a + b for a in run for b in texts}
            continue
        first = {_opened(text) for text in run} if first is None else first
        found += _clause(run)
        run = {""} if _OPEN in texts or (split and any(text.endswith(_OPEN) for text in texts)) else texts
    found += _clause(run)
    return (run if first is None else first), found


def _clause(run: set[str]) -> list[Clause]:
    return [frozenset(run)] if all(text not in ("", _OPEN) for text in run) else []


def _opened(text: str) -> str:
    return text.rstrip(_OPEN) + _OPEN


def _node(node: tuple[Any, Any]) -> tuple[set[str], list[Clause]]:
    kind, value = str(node[0]), node[1]
    match kind:
        case "LITERAL":
            return _character(value), []
        case "AT" if str(value) == "AT_BOUNDARY":
            return {END}, []
        case "AT" | "ASSERT" | "ASSERT_NOT":
            return {""}, []
        case "IN":
            return _set(value), []
        case "SUBPATTERN":
            return _sequence(value[3])
        case "ATOMIC_GROUP":
            return _sequence(value)
        case "BRANCH":
            return _branch(value[1])
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _repeat(*value)
    return {_OPEN}, []


def _character(code: int) -> set[str]:
    # What is no ASCII has several encodings, and several lower cases.
    return {chr(code).lower()} if code < 128 else {_OPEN}


def _set(items: Sequence[tuple[Any, Any]]) -> set[str]:
    if not all(str(kind) == "LITERAL" and code < 128 for kind, code in items):
        return {_OPEN}
    return {chr(code).lower() for _, code in items}


def _branch(branches: Sequence[Any]) -> tuple[set[str], list[Clause]]:
    parts = [_sequence(branch) for branch in branches]
    union = set().union(*(texts for texts, _ in parts))
    if not any(text.endswith(_OPEN) for text in union) and len(union) <= _MAX_ALTERNATIVES:
        return union, []
    # One of the best clauses of each branch: a word of the one, or a word of the other.
    best: set[str] = set()
    for _, inner in parts:
        if not inner:
            return {_OPEN}, []
        best |= max(inner, key=worth)
    return {_OPEN}, [frozenset(best)]


def _repeat(least: int, most: Any, item: Any) -> tuple[set[str], list[Clause]]:
    texts, found = _sequence(item)
    if least == 0:
        return {"", *(texts if most == 1 else map(_opened, texts))}, []
    return (texts if least == 1 and most == 1 else {_opened(text) for text in texts}), found
