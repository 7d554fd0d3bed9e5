"""What is wrong with a profile, said so that a person can mend it: every problem at once, each with its place."""

from __future__ import annotations

import difflib
import re
import types
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic import ValidationError

from hpctrain.clusters.evidence import leaves
from hpctrain.clusters.profile import Profile
from hpctrain.errors import UsageError
from hpctrain.fieldtypes import Section
from hpctrain.yaml12 import problems_in

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from hpctrain.clusters.load import KeyPath, Read


def check(read: Read, name: str) -> Profile:
    """Return the profile of what was read.

    Raises:
        UsageError: all its problems.
    """
    problems = list(read.problems)
    written = read.data.get("name")
    if isinstance(written, str) and written != name and len(read.files) == 1:
        problems.append(f"{read.place(('name',))}: name must be that of the file, {name}, not {written!r}")
    problems += [f"{read.place(path)}: {_unknown_key(path)}" for path, value in leaves(read.data) if value is None and not _known(path)]
    try:
        profile = Profile.model_validate(read.data | {"name": name})
    except ValidationError as error:
        # What a profile that cannot be found would have had is not missing.
        lost = ("extends",) in read.places and bool(read.problems)
        problems += [_sentence(each, read) for each in error.errors() if not (lost and each["type"] == "missing")]
    else:
        problems += _loose_ends(profile, read)
        if not problems:
            return profile
    file = read.files[-1]
    lines = sorted(problems, key=_line)
    raise UsageError(problems_in(len(lines), str(file)), details=tuple(lines), fix=f"edit {file}, then run: hpctrain clusters show {name}")


def _line(problem: str) -> tuple[str, int, int]:
    """Return what sorts problems from top to bottom."""
    place = re.match(r"(.*?):([0-9]+):([0-9]+): ", problem)
    return (place[1], int(place[2]), int(place[3])) if place else ("", 0, 0)


def _sentence(details: ErrorDetails, read: Read) -> str:
    path = tuple(str(part) for part in details["loc"])
    place = read.place(path)
    if details["type"] == "missing":
        return f"{place}: {path[-1]} is missing{f' in {chr(46).join(path[:-1])}' if path[:-1] else ''}"
    if details["type"] == "extra_forbidden":
        return f"{place}: {_unknown_key(path)}"
    spoken = f"{path[-2]}: item {int(path[-1]) + 1}" if len(path) > 1 and path[-1].isdecimal() else path[-1] if path else "the profile"
    message = details["msg"]
    if details["type"] == "dict_type":
        message = "must hold names, and keys and values for each"
    return f"{place}: {spoken} {message}"


def _unknown_key(path: KeyPath) -> str:
    """Return the sentence on a key that no section has, with the nearest known one: here, else elsewhere."""
    here = _section_at(path[:-1])
    word, section = path[-1], ".".join(path[:-1])
    what = f"unknown key {word!r}" + (f" in {section}" if section else "")
    known = list(here.model_fields) if here is not None else []
    for close in difflib.get_close_matches(word, known, n=1, cutoff=0.6):
        return f"{what}; did you mean {close!r}?"
    for name in Profile.model_fields:
        other = _section_at((name, "*")) or _section_at((name,))
        if other is not None and other is not here and word in other.model_fields:
            return f"{what}; it belongs in {name}"
    return f"{what}; known are {', '.join(known)}"


def _known(path: KeyPath) -> bool:
    """Return whether there is such a key; pydantic is not told of those that hold nothing."""
    here = _section_at(path[:-1])
    return here is None or path[-1] in here.model_fields


def _section_at(path: KeyPath) -> type[Section] | None:
    """Return the type of the section at `path`, any name standing for a name of the user's."""
    kind: Any = Profile
    for part in path:
        if isinstance(kind, type) and issubclass(kind, Section):
            if part not in kind.model_fields:
                return None
            kind = _bare(kind.model_fields[part].annotation)
        elif get_origin(kind) in (dict, tuple):
            kind = _bare([each for each in get_args(kind) if each is not Ellipsis][-1])
        else:
            return None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _bare(annotation: Any) -> Any:
    """Return `annotation` without `| None` and what Annotated carries."""
    while True:
        if hasattr(annotation, "__metadata__"):
            annotation = annotation.__origin__
        elif get_origin(annotation) in (Union, types.UnionType):
            annotation = next(each for each in get_args(annotation) if each is not type(None))
        else:
            return annotation


def _loose_ends(profile: Profile, read: Read) -> list[str]:
    """Return what names a partition, a QOS or a kind of node that the profile does not have."""
    kinds: list[tuple[KeyPath, str | None, str]] = [
        (("partitions", name, "nodes"), partition.nodes, "nodes") for name, partition in profile.partitions.items()
    ]
    kinds += [(("defaults", "nodes"), profile.defaults.nodes, "nodes")]
    if profile.partitions:
        kinds.append((("defaults", "partition"), profile.defaults.partition, "partitions"))
    if profile.qos:
        kinds.append((("defaults", "qos"), profile.defaults.qos, "qos"))
    found = []
    for path, name, table in kinds:
        known = getattr(profile, table)
        if name is not None and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(known) or 'none'}"
            found.append(f"{read.place(path)}: {'.'.join(path)} names {name!r}, which is not in {table}{hint}")
    return found
