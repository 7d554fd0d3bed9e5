"""How well the values of a profile are attested, and the profile as YAML that says so.

Pure, and free of pydantic: a list of all profiles needs no more than this.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.yaml12 import Plain

#: How well a value is attested, the best first, and how messages say it.
EVIDENCE = {
    "live": "Slurm said so just now",
    "documented": "the centre's own documentation",
    "reported": "a third party that cites or measures the centre",
    "seen": "seen in public job scripts of the centre's users",
    "recalled": "from memory, not verified: confirm it on site",
    "own": "a profile of your own, or of your site",
}
#: What says which cluster this is; no fact that needs evidence.
IDENTITY = ("name", "title", "centre", "docs")
KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a value comes from: a key of `EVIDENCE`, and the page, command or file."""

    level: str
    source: str

    def __str__(self) -> str:
        """Return `documented, https://…`."""
        return f"{self.level}, {self.source}"


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and value of everything that is neither keys and values nor a list; an empty one of these counts as a value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, str(index)))
    else:
        yield path, value


def tally(data: Mapping[str, Any], origins: Mapping[KeyPath, Evidence]) -> dict[str, int]:
    """Return how many values have each level of evidence, the best level first."""
    counts = Counter(origins[path].level for path, _ in leaves(data) if path and path[0] not in IDENTITY and path in origins)
    return {level: counts[level] for level in EVIDENCE if counts[level]}


def annotated(data: Mapping[str, Any], origins: Mapping[KeyPath, Evidence]) -> str:
    """Return the profile as YAML that reads back to the same values with the same evidence."""
    import yaml

    tree = _annotate(data, (), None, origins)
    return str(yaml.dump(tree, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=100))


def _annotate(value: Any, path: KeyPath, inherited: Evidence | None, origins: Mapping[KeyPath, Evidence]) -> Any:
    """Return `value` with `evidence` and `source` at the highest place where they hold for most of what is below."""
    if isinstance(value, dict):
        counts = Counter(origins[leaf] for leaf, _ in leaves(value, path) if leaf in origins)
        mostly = counts.most_common(1)[0][0] if counts else inherited
        # A section that said its own evidence, or is empty, says it again; so do those whose values have another one.
        own = origins.get(path, mostly) if path in origins or mostly != inherited else inherited
        note = {"evidence": own.level, "source": own.source} if own is not None and own != inherited else {}
        return note | {
            key: _plain(item) if (key in IDENTITY and not path) else _annotate(item, (*path, key), own, origins)
            for key, item in value.items()
        }
    own = origins.get(path, inherited)
    if isinstance(value, list):
        plain: Any = [_annotate(item, (*path, str(index)), own, origins) for index, item in enumerate(value)]
    else:
        plain = _plain(value)
    if own == inherited or own is None:
        return plain
    return {"value": plain, "evidence": own.level, "source": own.source}


def _plain(value: Any) -> Any:
    """Return a scalar as YAML writes it best: whole numbers and truth values plain, all else as the text that it is."""
    if not isinstance(value, str):
        return value
    if value in ("true", "false"):
        return value == "true"
    return int(value) if isinstance(value, Plain) and re.fullmatch("0|[1-9][0-9]{0,8}", value) else str(value)


def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes no aliases, which nobody can read."""

        def ignore_aliases(self, data: Any) -> bool:
            """Return True: everything is written out."""
            del data
            return True

    return Dumper
