"""Versions and what packages demand of each other: the part of PEP 440 that the demands of the training's libraries use. Pure."""

from __future__ import annotations

import re

_DEMAND = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?(?P<bounds>[^)]*)\)?$")
_BOUND = re.compile(r"^\s*(>=|<=|==|!=|~=|>|<)\s*([^\s,]+)\s*$")


def parse(text: str) -> tuple[int, ...]:
    """Return the release numbers of a version: `2.13.0+cpu` is (2, 13, 0); those of a pre-release are its release's."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def demand(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return name and bounds of a demand such as `transformers>=4.56.2,!=4.60`; bounds that cannot be read are left out."""
    match = _DEMAND.match(text.strip())
    if match is None:
        return text.strip(), ()
    bounds = [_BOUND.match(bound) for bound in match["bounds"].split(",")]
    return match["name"].lower(), tuple((bound[1], bound[2]) for bound in bounds if bound)


def satisfies(version: str, bounds: tuple[tuple[str, str], ...]) -> bool:
    """Return whether `version` is within all bounds; releases are compared, so 5.0rc1 counts as 5.0."""
    return all(_one(parse(version), operator, wanted) for operator, wanted in bounds)


def _one(version: tuple[int, ...], operator: str, wanted: str) -> bool:
    if operator in ("==", "!=") and wanted.endswith(".*"):
        prefix = parse(wanted[:-2])
        return ((version + (0,) * len(prefix))[: len(prefix)] == prefix) == (operator == "==")
    bound = parse(wanted)
    length = max(len(version), len(bound))
    have, want = version + (0,) * (length - len(version)), bound + (0,) * (length - len(bound))
    match operator:
        case ">=":
            return have >= want
        case "<=":
            return have <= want
        case ">":
            return have > want
        case "<":
            return have < want
        case "==":
            return have == want
        case "!=":
            return have != want
        case _:  # ~=: this release or a later one of the same series
            return have >= want and have[: len(bound) - 1] == bound[:-1]
