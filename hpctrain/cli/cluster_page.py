"""What is known of a cluster as text: each value with how well it is attested, and the sources at the end."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from hpctrain.clusters.evidence import EVIDENCE, IDENTITY, Evidence, KeyPath, leaves, tally

if TYPE_CHECKING:
    from hpctrain.clusters.load import Read
    from hpctrain.clusters.profile import Profile

#: Sections that hold one section for each name.
TABLES = ("partitions", "qos", "nodes", "storage")
CONFIRM = "For a value that is reported, seen or recalled, this may be no more than the page on which to confirm it."
_COLOURS = {"documented": "green", "reported": "cyan", "seen": "yellow", "recalled": "red", "own": "blue"}


class Page:
    """A profile as lines of at most `width` columns, but for words longer than that."""

    def __init__(self, found: Read, profile: Profile, *, width: int, colour: bool) -> None:
        self.found, self.profile, self.width, self.colour = found, profile, width, colour
        self.sources: dict[str, int] = {}

    def lines(self) -> Iterator[str]:
        """Yield the page, line by line."""
        yield self._bold(f"{self.profile.name}: {self.profile.title}")
        yield from (line for line in (self.profile.centre, self.profile.docs) if line)
        for section in type(self.profile).model_fields:
            value = self.found.data.get(section)
            if section in IDENTITY or section == "traps" or value in (None, {}, []):
                continue
            if section in TABLES:
                yield from ("", self._bold(section), *self._table(section, value))
            elif isinstance(value, dict):
                yield from ("", self._bold(section), *self._section(section, value))
            else:
                yield from ("", self._bold(section), *self._row("", [_spoken("", str(value))], self._evidence((section,)), 2))
        yield from self._traps()
        yield from self._unknown()
        yield from self._footnotes()

    def _table(self, section: str, table: dict[str, Any]) -> Iterator[str]:
        """Yield a few lines for each name: its values, those of the same evidence together."""
        indent = min(max(len(name) for name in table) + 4, 26)
        for name, row in table.items():
            yield from self._grouped(f"  {name}", list(self._entries(row or {}, (section, name))), (section, name), indent)

    def _section(self, section: str, values: dict[str, Any]) -> Iterator[str]:
        """Yield a few lines for each key."""
        indent = min(max(len(key) for key in values) + 4, 26)
        for key, value in values.items():
            path = (section, key)
            if key in ("forbidden", "discouraged"):  # sentences, of which each has its own line
                title = f"  {key}"
                for option, words in value.items():
                    yield from self._row(title, [f"{option}: {words}"], self._evidence((*path, option)), indent)
                    title = ""
                continue
            entries = list(self._entries(value, path)) if isinstance(value, dict) else list(self._entries({key: value}, (section,)))
            yield from self._grouped(f"  {key}", entries, path, indent)

    def _entries(self, values: dict[str, Any], prefix: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
        """Yield the values of a section, those of a list together where they have the same evidence."""
        for key, value in values.items():
            path = (*prefix, key)
            if isinstance(value, dict):
                yield from self._entries(value, path)
            elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
                for index, item in enumerate(value):
                    yield (*path, str(index)), " ".join(_spoken(" ".join(deep), each) for deep, each in leaves(item)) + ";"
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    yield (*path, str(index)), item
            elif value is not None:
                yield path, value

    def _grouped(self, title: str, entries: list[tuple[KeyPath, Any]], path: KeyPath, indent: int) -> Iterator[str]:
        """Yield the entries below `path`, those of the same evidence in one paragraph."""
        groups: dict[Evidence, dict[str, list[str]]] = {}
        for where, value in entries or [(path, None)]:
            words = [part for part in where[len(path) :] if not part.isdecimal()]
            groups.setdefault(self._evidence(where), {}).setdefault(" ".join(words), []).append(str(value or ""))
        equals = "=" if path[-1] in ("variables", "default") else " "
        for evidence, values in groups.items():
            yield from self._row(
                title, [_spoken(key, " ".join(each).rstrip(";"), equals) for key, each in values.items()], evidence, indent
            )
            title = ""

    def _row(self, title: str, values: list[str], evidence: Evidence, indent: int) -> Iterator[str]:
        """Yield title, values and, at the right of the first line that has room, the evidence."""
        tag = f"{evidence.level} [{self.sources.setdefault(evidence.source, len(self.sources) + 1)}]"
        room = self.width - indent - 16
        glued = (value if len(value) > room else value.replace(" ", "\0") if len(value) < room // 2 else value for value in values)
        wrapped = textwrap.wrap(", ".join(glued), room, break_long_words=False, break_on_hyphens=False) or ["known to exist"]
        if len(title) >= indent:  # a long name has a line of its own
            yield title
            title = ""
        lines = [(title if number == 0 else "").ljust(indent) + line.replace("\0", " ") for number, line in enumerate(wrapped)]
        place = next((number for number, line in enumerate(lines) if len(line) + 1 + len(tag) <= self.width), None)
        if place is None:
            place = len(lines)
            lines.append("")
        for number, line in enumerate(lines):
            gap = " " * (self.width - len(line) - len(tag))
            yield f"{line}{gap}{click.style(tag, fg=_COLOURS.get(evidence.level)) if self.colour else tag}" if number == place else line

    def _traps(self) -> Iterator[str]:
        traps = self.found.data.get("traps") or []
        if not traps:
            return
        yield from ("", self._bold("traps"))
        for index, trap in enumerate(traps):
            yield from self._row("  -", [trap], self._evidence(("traps", str(index))), 4)

    def _unknown(self) -> Iterator[str]:
        missing = unknown(self.profile)
        if missing:
            yield from ("", self._bold("unknown"))
            yield from textwrap.wrap("; ".join(missing), self.width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)

    def _footnotes(self) -> Iterator[str]:
        yield from ("", self._bold("evidence"))
        counts = tally(self.found.data, self.found.origins)
        total = sum(counts.values())
        for level, count in counts.items():
            yield f"  {level:<11} {count:>3} of {total}: {EVIDENCE[level]}"
        yield from ("", self._bold("sources"))
        yield from (f"  [{number}] {source}" for source, number in self.sources.items())
        if counts.keys() & {"reported", "seen", "recalled"}:
            yield from textwrap.wrap(CONFIRM, self.width, initial_indent="  ", subsequent_indent="  ")

    def _evidence(self, path: KeyPath) -> Evidence:
        origins = self.found.origins
        return next((origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in origins), Evidence("own", "-"))

    def _bold(self, text: str) -> str:
        return click.style(text, bold=True) if self.colour else text


def _spoken(key: str, value: str, equals: str = " ") -> str:
    """Return `time_max 24:00:00`, `whole_nodes`, `not whole_nodes`, or the value alone where it needs no key."""
    if key in ("", "note"):
        return {"true": "yes", "false": "no"}.get(value, value)
    if value in ("true", "false") and equals == " ":
        return key if value == "true" else f"not {key}"
    return f"{key}{equals}{value}" if value else key


def unknown(profile: Profile) -> list[str]:
    """Return what a job would want to know, and the profile does not say."""
    asked = [
        ("the partition that a job goes to", profile.defaults.partition or any(each.default for each in profile.partitions.values())
            or any(shape.select.constraint for shape in profile.nodes.values())),
        ("whether an account is needed", profile.account.required is not None),
        ("the GPU directive", profile.gpu_request.dialect is not None),
        ("memory of a job that asks for none", profile.memory.default_per_cpu or profile.memory.default_per_node or profile.memory.request),
        ("whether compute nodes reach the internet", profile.internet.compute),
        ("the network interface", profile.network.interface),
        ("kinds of nodes", profile.nodes),
        ("highest array index", profile.slurm.max_array_size),
        ("Slurm's version", profile.slurm.version),
        ("when scratch files are purged", any(each.purge_days for each in profile.storage.values())),
    ]  # fmt: skip
    found = [what for what, known in asked if not known]
    for name, partition in profile.partitions.items():
        if partition.nodes and partition.time_max is None and not partition.time_by_nodes:
            found.append(f"time limit of {name}")
    for name, shape in profile.nodes.items():
        missing = [key for key in ("cpus", "memory", "gpu_memory") if getattr(shape, key) is None]
        if missing and shape.gpus:
            found.append(f"{' and '.join(missing)} of nodes {name}")
    return found
