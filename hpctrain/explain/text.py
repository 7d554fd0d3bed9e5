"""The sentences of a rule, filled with the names and numbers of a job. PURE."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from hpctrain.jobs import shell

_PLACE = re.compile(r"(?<![$/\w{-])(RUN|JOBID|NODE|PATH|LOG)(?![\w=/])")
_NAME = re.compile(r"(?<!\$)\{([a-z_][a-z0-9_]*)\}")
#: Behind the end of a sentence, in front of the next.
_NEXT = re.compile(r"(?<=[.!?])\s+(?=[A-Z`{(\"'])")


def names(text: str) -> list[str]:
    """Return the names in a text."""
    return _NAME.findall(text)


def sentences(text: str, groups: Mapping[str, str], known: Collection[str]) -> str:
    """Return `text` with its names filled in: a sentence with one that is not known goes, but for the first, which says `unknown`.

    Args:
        text: of the rule.
        groups: name → value.
        known: names that may stand for something; any other `{word}` is text.
    """
    kept = []
    for number, sentence in enumerate(_NEXT.split(" ".join(text.split()))):
        missing = [name for name in _NAME.findall(sentence) if name in known and name not in groups]
        if not missing or number == 0:
            said = _filled(sentence, groups, known)
            # What is quoted at the end may have a full stop of its own.
            kept.append(said[:-1] if sentence.endswith("}.") and said[-2:-1] in tuple(".?!") else said)
    return " ".join(kept)


def lines(text: str, groups: Mapping[str, str], known: Collection[str]) -> str:
    """Return `text` with its names filled in, line by line; a line with a name that is not known goes."""
    kept = []
    for line in text.strip().splitlines():
        if all(name in groups for name in _NAME.findall(line) if name in known):
            kept.append(_filled(line.rstrip(), groups, known))
    return "\n".join(kept)


def filled_in(text: str, places: Mapping[str, str]) -> str:
    """Return a remedy with the words that a person would have to replace, such as RUN, replaced by `places`, quoted for a shell."""
    return _PLACE.sub(lambda match: shell.quote(places[match[1]]) if match[1] in places else match[0], text)


def _filled(text: str, groups: Mapping[str, str], known: Collection[str]) -> str:
    return _NAME.sub(lambda match: groups.get(match[1], f"(unknown {match[1]})") if match[1] in known else match[0], text)


def clock(at: float, zone_s: int) -> str:
    """Return seconds since the epoch as `2026-11-22T04:10:00` of a clock that is `zone_s` before UTC's."""
    from hpctrain.explain import facts_found

    return facts_found.clock(at + zone_s).removesuffix("Z")
