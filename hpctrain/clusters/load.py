"""Cluster profiles from their files: those that come with hpctrain, a site's, and the user's own.

A profile is YAML of the form that `clusters.profile` describes. On top of it:

- Any mapping may carry `evidence:` (how well attested) and `source:` (a URL, a key of the profile's `sources:`, or `docs`). They hold
  for everything below that says nothing itself. A single value may be written `{value: 4, evidence: seen, source: docs}`.
- `extends: NAME` lays the profile over another one; a `null` takes a value away. With its own name it extends the profile that it
  would otherwise hide.

Reads files, and nothing else: the environment is handed in.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hpctrain import yaml12
from hpctrain.clusters.evidence import Evidence
from hpctrain.errors import UsageError
from hpctrain.yaml12 import Place

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster

SHIPPED = Path(__file__).parent
#: Of `evidence:` in a file, the best first; `evidence.EVIDENCE` says what they mean.
LEVELS = ("documented", "reported", "seen", "recalled", "own")
_ANNOTATION = {"evidence", "source"}
KeyPath = tuple[str, ...]
#: More than any file that a person writes.
_MAX_BYTES = 4_000_000


def is_dir(path: str | Path) -> bool:
    """Whether that is a directory; of a name that is too long, or under a directory that is closed, Path.is_dir would raise."""
    return _is(stat.S_ISDIR, path)


def is_file(path: str | Path) -> bool:
    """Whether that is a regular file, or a link to one; raises nothing."""
    return _is(stat.S_ISREG, path)


def _is(kind: Callable[[int], bool], path: str | Path) -> bool:
    try:
        return kind(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a file to read; a FIFO would keep the caller waiting, and a device has no end.

    Raises:
        OSError: it is not there, cannot be read, or is not a regular file.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):  # first, as opening a device may already do something
            raise OSError(0, "it is not a regular file", str(path))
        opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except ValueError as error:  # a NUL in the name
        raise OSError(0, "it is no name of a file", str(path)) from error
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):  # it was, a moment ago
        opened.close()
        raise OSError(0, "it is not a regular file", str(path))
    return opened


def read_regular(path: str | Path, limit: int) -> bytes:
    """Return what a regular file holds.

    Args:
        path: of the file; links are followed.
        limit: bytes; a larger file is not read.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger.
    """
    with open_regular(path) as opened:
        content = opened.read(limit + 1)
    if len(content) > limit:
        raise OSError(0, f"it is larger than {limit / 1e6:g} MB", str(path))
    return content


@dataclass(slots=True)
class Read:
    """A profile before it is checked: what is written, without the evidence; and by path, where it is written and how well attested.

    Attributes:
        data: nested like the file, values as `yaml12` gives them.
        origins: evidence of every value, and of each section that says its own.
        places: of every key.
        problems: messages with their places.
        files: that the profile is made of, the weakest first.
    """

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Evidence] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def place(self, path: KeyPath) -> Place | None:
        """Return where `path`, or the nearest section around it, is written."""
        return next((self.places[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.places), None)


def available(environment: Mapping[str, str]) -> dict[str, Path]:
    """Return the profiles by name: the shipped ones, then those in $HPCTRAIN_CLUSTERS, then the user's; the last of a name wins."""
    return {name: files[-1] for name, files in _stacks(environment).items()}


def directories(environment: Mapping[str, str]) -> list[Path]:
    """Return the directories that may hold profiles, the weakest first; whether they exist or not.

    $HPCTRAIN_CLUSTERS is a list as $PATH is: of two sites' profiles with one name, the first wins.
    """
    site = [Path(entry) for entry in environment.get("HPCTRAIN_CLUSTERS", "").split(os.pathsep) if entry]
    base = environment.get("XDG_CONFIG_HOME") or (f"{environment['HOME']}/.config" if environment.get("HOME") else None)
    return [SHIPPED, *reversed(site), *([Path(base) / "hpctrain" / "clusters"] if base else [])]


def canonical(name: str) -> str:
    """Return `name` as profiles are called: `Jean-Zay` is jean_zay."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def load(name: str, environment: Mapping[str, str]) -> Cluster:
    """Return the profile called `name`, checked.

    Raises:
        UsageError: there is none of that name, or it is wrong: all problems, each with its place.
    """
    from hpctrain.clusters.problems import check
    from hpctrain.clusters.profile import Cluster

    found = read(name, environment)
    return Cluster(check(found, canonical(name)), found.origins)


def detect(environment: Mapping[str, str], *, cluster_name: str | None, hosts: tuple[str, ...]) -> list[str]:
    """Return the names of the profiles that know this machine for theirs.

    Args:
        environment: for the variables that a site sets, and for where profiles are.
        cluster_name: ClusterName of Slurm, where that is known.
        hosts: names of this machine, such as those of `hostname` and `hostname -f`.

    A profile that cannot be read knows no machine; `load` says what is wrong with it.
    """
    import re

    found = []
    for name, path in available(environment).items():
        try:
            known = _how_to_detect(name, path, environment)
        except UsageError:
            continue
        names, patterns, variables = (known.get(key) for key in ("cluster_names", "hosts", "variables"))
        try:
            if (
                (cluster_name or "").lower() in [known_name.lower() for known_name in _texts(names)]
                or any(re.fullmatch(pattern, host) for pattern in _texts(patterns) for host in hosts)
                or (isinstance(variables, dict) and any(re.fullmatch(str(p), environment.get(v, "")) for v, p in variables.items()))
            ):
                found.append(name)
        except re.error:
            continue
    return found


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _how_to_detect(name: str, path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return `detect:` of a profile; only that part of the file is read where nothing else can have a say in it."""
    import re

    text = _text(path)
    part = re.search(r"^detect:.*?(?=^[^\s#]|\Z)", text, re.MULTILINE | re.DOTALL)
    if re.search(r"""^(\{|['"]?extends\b|['"]detect|---|%)""", text, re.MULTILINE):
        detect = read(name, environment).data.get("detect")
    elif part is None:
        return {}
    else:
        detect = _Stripped(yaml12.load(part[0], str(path)), path).read.data.get("detect")
    return detect if isinstance(detect, dict) else {}


def read(name: str, environment: Mapping[str, str]) -> Read:
    """Return the profile called `name` as it is written, with what it extends.

    Raises:
        UsageError: there is none of that name, or a file is no YAML.
    """
    stacks = _stacks(environment)
    wanted = canonical(name)
    if wanted not in stacks:
        raise _unknown(name, stacks)
    return _Reader(stacks).read(wanted, len(stacks[wanted]) - 1)


def _stacks(environment: Mapping[str, str]) -> dict[str, list[Path]]:
    """Return the files of each name, the weakest first."""
    stacks: dict[str, list[Path]] = {}
    for directory in directories(environment):
        for path in sorted(directory.glob("*.yaml")):
            stacks.setdefault(canonical(path.stem), []).append(path)
    return stacks


def _unknown(name: str, stacks: Mapping[str, list[Path]]) -> UsageError:
    import difflib

    close = difflib.get_close_matches(canonical(name), stacks, n=1, cutoff=0.5)
    if not close:  # a part of the name, such as `clariden`
        close = [known for known in stacks if len(canonical(name)) > 2 and canonical(name) in known][:1]
    hint = f"; did you mean {close[0]!r}?" if close else ""
    known = f"known are {', '.join(sorted(stacks))}"
    return UsageError(
        f"there is no cluster profile {name!r}{hint}",
        details=(known,),
        fix=f"hpctrain clusters show {close[0]}" if close else "hpctrain clusters",
    )


class _Reader:
    """Reads a profile and what it extends; knows what is being read, so that a loop is seen."""

    def __init__(self, stacks: Mapping[str, list[Path]]) -> None:
        self.stacks = stacks
        self.open: list[Path] = []

    def read(self, name: str, level: int) -> Read:
        path = self.stacks[name][level]
        self.open.append(path)
        document = yaml12.load(_text(path), str(path))
        stripped = _Stripped(document, path)
        base = self._base(document.data.get("extends"), name, level, stripped.read)
        self.open.pop()
        return _laid_over(base, stripped.read)

    def _base(self, extends: Any, name: str, level: int, read: Read) -> Read:
        """Return the profile that this one extends; an empty one where it extends none, or none that can be."""
        if extends is None:
            return Read()
        place = read.places["extends",]
        if not isinstance(extends, str):
            read.problems.append(f"{place}: extends must be the name of a cluster profile")
            return Read()
        wanted = canonical(extends)
        below = level - 1 if wanted == name else len(self.stacks.get(wanted, ())) - 1
        if below < 0:
            known = f"there is no other profile {wanted!r}" if wanted == name else _unknown(extends, self.stacks).what
            read.problems.append(f"{place}: extends: {known}")
        elif self.stacks[wanted][below] in self.open:
            chain = " extends ".join(str(path) for path in [*self.open, self.stacks[wanted][below]])
            read.problems.append(f"{place}: extends goes in a circle: {chain}")
        else:
            return self.read(wanted, below)
        return Read()


def _text(path: Path) -> str:
    try:
        return read_regular(path, _MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}", fix=f"ls -l {path}") from error


class _Stripped:
    """A file without its evidence, which goes to `read.origins`."""

    def __init__(self, document: yaml12.Document, path: Path) -> None:
        self.shipped = path.parent == SHIPPED
        self.read = Read(files=[path])
        self.document = document
        self.sources = self._sources(document.data)
        data = {key: value for key, value in document.data.items() if key not in ("sources", "extends")}
        own = Evidence("own", str(path))
        self.read.places[()] = document.places.get((), Place(str(path), 1, 1))
        if "extends" in document.data:
            self.read.places["extends",] = document.places["extends",]
        stripped = self._strip(data, (), (), own)
        self.read.data = stripped if isinstance(stripped, dict) else {}
        self.read.origins.pop((), None)  # of the whole file: everything has its own by now

    def _sources(self, data: Mapping[str, Any]) -> dict[str, str]:
        sources = data.get("sources")
        if sources is not None and not isinstance(sources, dict):
            self._problem(("sources",), "sources must hold keys and URLs")
            sources = None
        known = {key: str(value) for key, value in (sources or {}).items() if isinstance(value, str)}
        docs = data.get("docs")
        return ({"docs": str(docs)} if isinstance(docs, str) else {}) | known

    def _strip(self, value: Any, raw: yaml12.Path, path: KeyPath, inherited: Evidence) -> Any:
        """Return `value` without evidence. `raw` is where it stands in the file, `path` in what is returned."""
        if isinstance(value, dict):
            evidence = self._evidence_of(value, raw, inherited)
            if "value" in value and value.keys() <= {"value", *_ANNOTATION}:
                return self._strip(value["value"], (*raw, "value"), path, evidence)
            rest = {key: item for key, item in value.items() if key not in _ANNOTATION}
            if evidence is not inherited or not rest:
                self.read.origins[path] = evidence
            return {key: self._item(item, (*raw, key), (*path, key), evidence) for key, item in rest.items()}
        self.read.origins[path] = inherited
        if isinstance(value, list):
            return [self._item(item, (*raw, index), (*path, str(index)), inherited) for index, item in enumerate(value)]
        return value

    def _item(self, value: Any, raw: yaml12.Path, path: KeyPath, inherited: Evidence) -> Any:
        if raw in self.document.places:
            self.read.places[path] = self.document.places[raw]
        return self._strip(value, raw, path, inherited)

    def _evidence_of(self, section: Mapping[str, Any], raw: yaml12.Path, inherited: Evidence) -> Evidence:
        if not _ANNOTATION & section.keys():
            return inherited
        level, source = section.get("evidence") or inherited.level, section.get("source") or inherited.source
        if level not in LEVELS:
            self._problem((*raw, "evidence"), f"evidence must be one of {', '.join(LEVELS)}, not {str(level)[:60]!r}")
            level = inherited.level
        if not isinstance(source, str):
            self._problem((*raw, "source"), "source must be a URL or a key of sources")
            source = inherited.source
        if "source" in section and source not in self.sources and "/" not in source and " " not in source:
            self._problem((*raw, "source"), f"source {source!r} is neither a URL nor a key of sources")
        return Evidence(str(level), self.sources.get(source, source))

    def _problem(self, raw: yaml12.Path, message: str) -> None:
        places = self.document.places
        place = next((places[raw[:end]] for end in range(len(raw), -1, -1) if raw[:end] in places), "")
        self.read.problems.append(f"{place}: {message}")


def _laid_over(base: Read, top: Read) -> Read:
    """Return `base` with `top` over it: sections are merged, everything else replaced, and taken away where `top` has null."""
    merged = Read(dict(base.data), dict(base.origins), dict(base.places), base.problems + top.problems, base.files + top.files)

    def drop(path: KeyPath) -> None:
        for known in (merged.origins, merged.places):
            for each in [each for each in known if each[: len(path)] == path]:
                del known[each]

    def lay(target: dict[str, Any], source: Mapping[str, Any], prefix: KeyPath) -> None:
        for key, value in source.items():
            path = (*prefix, key)
            if isinstance(value, dict) and isinstance(target.get(key), dict):
                target[key] = dict(target[key])
                lay(target[key], value, path)
            elif value is None and key in target:
                drop(path)
                del target[key]
                gone.add(path)
            else:
                drop(path)
                target[key] = value

    gone: set[KeyPath] = set()
    lay(merged.data, top.data, ())
    merged.origins |= {path: evidence for path, evidence in top.origins.items() if path not in gone}
    merged.places |= {path: place for path, place in top.places.items() if path not in gone}
    return merged
