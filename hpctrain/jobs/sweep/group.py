"""Which points share a script: those whose values for keys of config.yaml are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.jobs.sweep.model import Point, Sweep, Values, canonical_point, spoken

#: Each group is a script, and a submission, of its own.
MAX_GROUPS = 200


@dataclass(frozen=True, slots=True)
class Group:
    """Points that share a script.

    Attributes:
        overrides: the keys of config.yaml that these points set, such as `("resources.nodes", "2")`.
        points: in order; their indices count the whole sweep.
    """

    overrides: Values
    points: tuple[Point, ...]

    @property
    def indices(self) -> list[int]:
        """The indices of its points."""
        return [point.index for point in self.points]

    def data(self) -> dict[str, Any]:
        """Return the overrides nested like config.yaml."""
        nested: dict[str, Any] = {}
        for key, value in self.overrides:
            section = nested
            *outer, last = key.split(".")
            for name in outer:
                section = section.setdefault(name, {})
            section[last] = value
        return nested


def groups(sweep: Sweep, points: Sequence[Point]) -> list[Group]:
    """Return the groups of `points`, in the order of their first points.

    Raises:
        UsageError: more than `MAX_GROUPS`.
    """
    if not sweep.config_keys:
        return [Group((), tuple(points))] if points else []
    found: dict[frozenset[tuple[str, str | None]], tuple[Values, list[Point]]] = {}
    for point in points:
        overrides = tuple((key, value) for key, value in point.values if key in sweep.config_keys and value is not None)
        found.setdefault(canonical_point(overrides), (overrides, []))[1].append(point)
    if len(found) > MAX_GROUPS:
        raise UsageError(
            f"the sweep would need {len(found)} scripts, and {MAX_GROUPS} is the most",
            details=(f"each set of values for {', '.join(sorted(sweep.config_keys))} is a script of its own",),
            fix="let arguments of the training vary in place of keys of config.yaml; variables can, with: pass: environment",
        )
    return [Group(overrides, tuple(members)) for overrides, members in found.values()]


def title(group: Group) -> str:
    """Return `resources.nodes=2`, for tables and messages."""
    return spoken(group.overrides) if group.overrides else ""
