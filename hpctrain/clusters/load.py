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
        except (UsageError, re.error):
            continue
    return found


def _matches(
    known: Mapping[str, Any],
    environment: Mapping[str, str],
    cluster_name: str | None,
    hosts: tuple[str, ...],
) -> bool:
    names, patterns, variables = (known.get(key) for key in ("cluster_names", "hosts", "variables"))
    if (cluster_name or "").lower() in [name.lower() for name in _texts(names)]:
        return True
    pairs = [(pattern, host) for pattern in _texts(patterns) for host in hosts]
    if isinstance(variables, dict):
        pairs += [(str(value), environment.get(name, "")) for name, value in variables.items()]
    return any(re.fullmatch(pattern, text) for pattern, text in pairs)


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def read_source(name: str, environment: Mapping[str, str]) -> ProfileSource:
    """Return the profile called `name` as written.

    Raises:
        UsageError: there is none of that name, or a file is not YAML.
    """
    known = available(environment)
    path = known.get(canonical(name))
    if path is None:
        raise _unknown(name, known)
    text = yaml12.read_text(path, str(path), missing=f"ls -l {path}")
    return _ProfileFile(yaml12.load(text, str(path)), path).source


def _unknown(name: str, stacks: Mapping[str, Path]) -> UsageError:
    close = difflib.get_close_matches(canonical(name), stacks, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    known = f"known are {', '.join(sorted(stacks))}"
    return UsageError(
        f"there is no cluster profile {name!r}{hint}",
        details=(known,),
        fix=f"hpctrain clusters show {close[0]}" if close else "hpctrain clusters",
    )


class _ProfileFile:
    """Separates the content of a file from its evidence, which goes to `source.origins`."""

    def __init__(self, document: yaml12.YamlDocument, path: Path) -> None:
        self.source = ProfileSource(path)
        self.places = document.places
        data = dict(document.data)
        given = data.pop("sources", None) or {}
        if not isinstance(given, dict):
            self._problem(("sources",), "sources must hold keys and URLs")
            given = {}
        urls = {"docs": data.get("docs")} | given
        self.sources = {key: str(url) for key, url in urls.items() if isinstance(url, str)}
        self.source.places[()] = f"{path}:1:1"
        self.source.data = self._strip(data, (), (), Attestation("own", str(path)))
        # The default for the entire file: all values have their own by now.
        self.source.origins.pop((), None)

    def _strip(
        self, value: Any, raw: yaml12.NodePath, path: KeyPath, inherited: Attestation
    ) -> Any:
        """Return `value` without evidence; `raw` is its path in the file, `path` the one in the
        result.
        """
        if raw in self.places:
            self.source.places.setdefault(path, self.places[raw])
        if not isinstance(value, dict):
            self.source.origins[path] = inherited
            if not isinstance(value, list):
                return value
            return [
                self._strip(item, (*raw, str(index)), (*path, str(index)), inherited)
                for index, item in enumerate(value)
            ]
        evidence = self._evidence_of(value, raw, inherited)
        if "value" in value and value.keys() <= {"value", *_ANNOTATION}:
            return self._strip(value["value"], (*raw, "value"), path, evidence)
        rest = {key: item for key, item in value.items() if key not in _ANNOTATION}
        if evidence is not inherited or not rest:
            self.source.origins[path] = evidence
        return {
            key: self._strip(item, (*raw, key), (*path, key), evidence)
            for key, item in rest.items()
        }

    def _evidence_of(
        self, section: Mapping[str, Any], raw: yaml12.NodePath, inherited: Attestation
    ) -> Attestation:
        if not _ANNOTATION & section.keys():
            return inherited
        level = section.get("evidence") or inherited.level
        source = section.get("source") or inherited.source
        if level not in LEVELS:
            self._problem(
                (*raw, "evidence"),
                f"evidence must be one of {', '.join(LEVELS)}, not {str(level)[:60]!r}",
            )
            level = inherited.level
        is_known = isinstance(source, str) and (source in self.sources or re.search("[/ ]", source))
        if "source" in section and not is_known:
            message = f"source {source!r} is neither a URL nor a key of sources"
            self._problem((*raw, "source"), message)
            source = inherited.source
        return Attestation(str(level), self.sources.get(source, source))

    def _problem(self, raw: yaml12.NodePath, message: str) -> None:
        self.source.problems.append(f"{nearest(self.places, raw)}: {message}")


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
