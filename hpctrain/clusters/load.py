"""Load cluster profiles: built-in ones, a site's, and the user's own.

A profile is YAML as described by `clusters.profile`, and any mapping may contain `evidence:` (how
well attested) and `source:` (a URL, a key of the profile's `sources:`, or `docs`). They apply to
everything below without its own. A single value may be written as `{value: 4, evidence: seen,
source: docs}`.

Only reads files: the environment is an argument.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.errors import UsageError
from hpctrain.util import yaml12
from hpctrain.util.schema import KeyPath, nearest

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster

#: Levels of evidence, the best first, and their wording in messages.
EVIDENCE = {
    "live": "reported by Slurm just now",
    "documented": "the center's own documentation",
    "reported": "a third party that cites or measures the center",
    "seen": "seen in public job scripts of the center's users",
    "recalled": "from memory, not verified: confirm it on site",
    "own": "a custom profile, yours or your site's",
}
#: Fields that identify the cluster, and need no evidence.
IDENTITY = ("name", "title", "centre", "docs")
SHIPPED = Path(__file__).parent
#: Valid values of `evidence:` in a file.
LEVELS = tuple(level for level in EVIDENCE if level != "live")
_ANNOTATION = {"evidence", "source"}


def is_dir(path: str | Path) -> bool:
    """Whether it is a directory; unlike Path.is_dir, it does not raise for an overlong name."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: str | Path) -> bool:
    """Whether it is a regular file, or a symlink to one; never raises."""
    return os.path.isfile(path)  # noqa: PTH113


@dataclass(frozen=True, slots=True)
class Attestation:
    """The origin of a value: a key of `EVIDENCE`, and the page, command or file."""

    level: str
    source: str

    def __str__(self) -> str:
        """Return `documented, https://…`."""
        return f"{self.level}, {self.source}"


@dataclass(slots=True)
class ProfileSource:
    """A profile before validation: its content without the evidence, and the place and evidence of
    each path.

    Attributes:
        data: nested like the file, values as `yaml12` returns them.
        origins: evidence of every value, and of each section with its own.
        places: the place of every key.
        problems: messages with their places.
    """

    path: Path
    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Attestation] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def available(environment: Mapping[str, str]) -> dict[str, Path]:
    """Return the profiles by name: the built-in ones, those in $HPCTRAIN_CLUSTERS, and the user's;
    the last one of each name overrides the others.
    """
    found: dict[str, Path] = {}
    for directory in directories(environment):
        found |= {canonical(path.stem): path for path in sorted(directory.glob("*.yaml"))}
    return found


def directories(environment: Mapping[str, str]) -> list[Path]:
    """Return the directories that may contain profiles, existing or not, lowest precedence first.

    $HPCTRAIN_CLUSTERS is a list like $PATH: of two sites' profiles with one name, the first is
    used.
    """
    site = [
        Path(entry) for entry in environment.get("HPCTRAIN_CLUSTERS", "").split(os.pathsep) if entry
    ]
    base = environment.get("XDG_CONFIG_HOME") or (
        f"{environment['HOME']}/.config" if environment.get("HOME") else None
    )
    return [SHIPPED, *reversed(site), *([Path(base) / "hpctrain" / "clusters"] if base else [])]


def canonical(name: str) -> str:
    """Return `name` in the form of profile names: `Jean-Zay` becomes jean_zay."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def load(name: str, environment: Mapping[str, str]) -> Cluster:
    """Return the validated profile called `name`.

    Raises:
        UsageError: there is none of that name, or it is invalid: all problems, each with its place.
    """
    from hpctrain.clusters.profile import Cluster, checked

    found = read_source(name, environment)
    return Cluster(checked(found, canonical(name)), found.origins)


def detect(
    environment: Mapping[str, str], *, cluster_name: str | None, hosts: tuple[str, ...]
) -> list[str]:
    """Return the names of the profiles that match this machine.

    Args:
        environment: for the variables that a site sets, and the directories of profiles.
        cluster_name: Slurm's ClusterName, if known.
        hosts: names of this machine, such as those of `hostname` and `hostname -f`.

    A profile that cannot be read matches nothing; `load` reports its problems.
    """
    found = []
    for name in available(environment):
        try:
            known = read_source(name, environment).data.get("detect")
            if isinstance(known, dict) and _matches(known, environment, cluster_name, hosts):
                found.append(name)
        except (UsageError, re.error, TypeError, AttributeError):  # not a valid profile
            continue
    return found


def _matches(
    known: Mapping[str, Any],
    environment: Mapping[str, str],
    cluster_name: str | None,
    hosts: tuple[str, ...],
) -> bool:
    names, patterns = (known.get(key) or [] for key in ("cluster_names", "hosts"))
    if (cluster_name or "").lower() in [str(name).lower() for name in names]:
        return True
    pairs = [(str(pattern), host) for pattern in patterns for host in hosts]
    variables = known.get("variables") or {}
    pairs += [(str(value), environment.get(name, "")) for name, value in variables.items()]
    return any(re.fullmatch(pattern, text) for pattern, text in pairs)


def read_source(name: str, environment: Mapping[str, str]) -> ProfileSource:
    """Return the profile called `name` as written.

    Raises:
        UsageError: there is none of that name, or a file is not YAML.
    """
    known = available(environment)
    path = known.get(canonical(name))
    if path is None:
        close = difflib.get_close_matches(canonical(name), known, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(
            f"there is no cluster profile {name!r}{hint}",
            details=(f"known are {', '.join(sorted(known))}",),
            fix=f"hpctrain clusters show {close[0]}" if close else "hpctrain clusters",
        )
    text = yaml12.read_text(path, str(path), missing=f"ls -l {path}")
    return _source(yaml12.load(text, str(path)), path)


def _source(document: yaml12.YamlDocument, path: Path) -> ProfileSource:
    """Return the content of a file, separated from its evidence, which goes to `origins`."""
    source, data = ProfileSource(path), dict(document.data)
    given = data.pop("sources", None) or {}
    if not isinstance(given, dict):
        place = nearest(document.places, ("sources",))
        source.problems.append(f"{place}: sources must hold keys and URLs")
        given = {}
    urls = {"docs": data.get("docs"), **given}
    known = {key: str(url) for key, url in urls.items() if isinstance(url, str)}

    def problem(raw: yaml12.NodePath, message: str) -> None:
        source.problems.append(f"{nearest(document.places, raw)}: {message}")

    def attestation(
        section: Mapping[str, Any], raw: yaml12.NodePath, above: Attestation
    ) -> Attestation:
        level, page = section.get("evidence", above.level), section.get("source", above.source)
        if level not in LEVELS:
            wanted = f"evidence must be one of {', '.join(LEVELS)}"
            problem((*raw, "evidence"), f"{wanted}, not {str(level)[:60]!r}")
        if str(page) not in known and not re.search("[/ ]", str(page)):
            problem((*raw, "source"), f"source {page!r} is neither a URL nor a key of sources")
        return Attestation(str(level), known.get(str(page), str(page)))

    def strip(value: Any, raw: yaml12.NodePath, at: KeyPath, above: Attestation) -> Any:
        """Return `value` without evidence; `raw` is its path in the file, `at` the one in the
        result.
        """
        if raw in document.places:
            source.places.setdefault(at, document.places[raw])
        if isinstance(value, dict) and _ANNOTATION & value.keys():
            above = source.origins[at] = attestation(value, raw, above)
            if "value" in value and value.keys() <= {"value", *_ANNOTATION}:
                return strip(value["value"], (*raw, "value"), at, above)
            value = {key: item for key, item in value.items() if key not in _ANNOTATION}
        if isinstance(value, dict) and value:
            return {key: strip(item, (*raw, key), (*at, key), above) for key, item in value.items()}
        source.origins[at] = above
        if not isinstance(value, list):
            return value
        return [
            strip(item, (*raw, str(index)), (*at, str(index)), above)
            for index, item in enumerate(value)
        ]

    source.places[()] = f"{path}:1:1"
    source.data = strip(data, (), (), Attestation("own", str(path)))
    source.origins.pop((), None)  # the default for the entire file: all values have their own now
    return source


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and value of all scalars, and of empty mappings and lists."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, str(index)))
    else:
        yield path, value


def tally(data: Mapping[str, Any], origins: Mapping[KeyPath, Attestation]) -> dict[str, int]:
    """Return how many values have each level of evidence, the best level first."""
    counts = Counter(
        origins[path].level
        for path, _ in leaves(data)
        if path and path[0] not in IDENTITY and path in origins
    )
    return {level: counts[level] for level in EVIDENCE if counts[level]}
