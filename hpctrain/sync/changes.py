"""What rsync prints, read: changes one by one (--out-format), files left out (--debug=FILTER), progress and totals."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from hpctrain.sync import rules

Kind = Literal["created", "changed", "deleted"]

#: Itemised change, size in bytes, and name (then ` -> target` for a symlink); the word in front is on no line of rsync's own.
OUT_FORMAT = "hpctrain: %i %l %n%L"
_CHANGE = re.compile(r"hpctrain: (?P<flags>\*deleting|[<>ch.][fdLDS]\S{9}) +(?P<size>\d+) (?P<name>.*)", re.DOTALL)
_HIDDEN = re.compile(r"\[sender\] hiding (?P<type>file|directory) (?P<name>.*) because of pattern ", re.DOTALL)
_PROGRESS = re.compile(r" *(\d+) +\d+% +\S+/s +\d+:\d\d:\d\d")
_SAID = re.compile(r"(skipping non-regular file|cannot delete non-empty directory: )")
_TOTALS = {
    "files": re.compile(r"Number of files: (\d+)"),
    "directories": re.compile(r"Number of files: .*\bdir: (\d+)"),
    "size": re.compile(r"Total file size: (\d+) bytes"),
    "wire": re.compile(r"Total bytes sent: (\d+)"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is, or would be, different on the far side.

    Attributes:
        kind: what happens to it.
        path: relative to the project; a directory ends with `/`.
        size_bytes: of a regular file, which may travel as a difference; 0 for anything else.
        target: of a symlink.
    """

    kind: Kind
    path: str
    size_bytes: int = 0
    target: str | None = None

    @property
    def is_directory(self) -> bool:
        """Say whether it is a directory."""
        return self.path.endswith("/")


@dataclass(slots=True)
class Outcome:
    """What one run of rsync did, or would do.

    Attributes:
        changes: in rsync's order.
        left_out: paths that the rules hide; a directory ends with `/`, and what it holds is not listed.
        notes: rsync's own words about what it could not send or delete.
        total_files: of the project, after the rules, without directories.
        total_bytes: their sizes.
        wire_bytes: what was sent over the network.
        gone: files of the far side that are gone here, where they are not to be deleted.
        rendered: scripts among those sent that hpctrain has made for this machine.
    """

    changes: list[Change] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    total_files: int = 0
    total_bytes: int = 0
    wire_bytes: int = 0
    gone: list[str] = field(default_factory=list)
    rendered: list[str] = field(default_factory=list)
    _directories: int = 0

    def read(self, line: str) -> Change | None:
        """Take one line of rsync's stdout, and return the change that it tells of."""
        if change := parse_change(line):
            self.changes.append(change)
            return change
        if hidden := _HIDDEN.match(line):
            self.left_out.append(hidden["name"] + ("/" if hidden["type"] == "directory" else ""))
        elif _SAID.match(line):
            self.notes.append(line)
        else:
            self._read_total(line)
        return None

    def _read_total(self, line: str) -> None:
        found = {name: int(match[1]) for name, pattern in _TOTALS.items() if (match := pattern.match(line))}
        self._directories = found.get("directories", self._directories)
        if "files" in found:
            self.total_files = found["files"] - self._directories
        self.total_bytes = found.get("size", self.total_bytes)
        self.wire_bytes = found.get("wire", self.wire_bytes)

    def of_kind(self, kind: Kind) -> list[Change]:
        """Return the changes of one kind."""
        return [change for change in self.changes if change.kind == kind]

    def keep_what_is_gone(self) -> None:
        """Take the deletions out of the changes, and remember their files as `gone`: a trial with --delete for a transfer without."""
        self.gone = [path for path in self.deleted if not path.endswith("/")]
        self.changes = [change for change in self.changes if change.kind != "deleted"]
        self.notes = [note for note in self.notes if not note.startswith("cannot delete")]

    @property
    def sent(self) -> list[Change]:
        """Return the files and symlinks that go over, new or changed."""
        return [change for change in self.changes if change.kind != "deleted" and not change.is_directory]

    @property
    def sent_bytes(self) -> int:
        """Return the sizes of the files that go over."""
        return sum(change.size_bytes for change in self.sent)

    @property
    def deleted(self) -> list[str]:
        """Return the paths that are removed on the far side."""
        return [change.path for change in self.of_kind("deleted")]

    @property
    def secrets(self) -> list[str]:
        """Return the paths that were left out because their names look like those of secrets."""
        return [path for path in self.left_out if rules.is_secret(path)]

    @property
    def leading_out(self) -> list[str]:
        """Return the symlinks, as `name -> target`, that are sent and point out of the project."""
        links = [(change.path, change.target) for change in self.sent if change.target is not None]
        return [f"{path} -> {target}" for path, target in links if _leads_out(path, target)]


def parse_change(line: str) -> Change | None:
    """Return the change in a line that OUT_FORMAT wrote, or None."""
    match = _CHANGE.fullmatch(line)
    if match is None:
        return None
    flags, name, target = match["flags"], match["name"], None
    if flags == "*deleting":
        return Change("deleted", name)
    type_ = flags[1]
    if name == "./" or (flags[0] == "." and type_ != "f"):
        return None  # the top itself; times of directories and symlinks
    if type_ == "L":
        name, _, target = name.partition(" -> ")
    kind: Kind = "created" if "+" in flags[2:] else "changed"
    # `.f`: the content is the same, its mode is not.
    return Change(kind, name, int(match["size"]) if type_ == "f" and flags[0] != "." else 0, target)


def parse_progress(line: str) -> int | None:
    """Return the bytes of files that are done, from a line of --info=progress2; None for any other line."""
    match = _PROGRESS.match(line)
    return int(match[1]) if match else None


def size(count: int) -> str:
    """Return bytes in the decimal units of disks and networks: `512 B`, `3.4 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.95:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def files(count: int) -> str:
    """Return `1 file`, `12 files`."""
    return f"{count:,} file{'' if count == 1 else 's'}"


def largest(changes: Iterable[Change], *, count: int = 3) -> list[tuple[str, int]]:
    """Return what weighs most at the top of the project, as (name, bytes), largest first."""
    weights: dict[str, int] = {}
    for change in changes:
        top, slash, _ = change.path.partition("/")
        weights[top + slash] = weights.get(top + slash, 0) + change.size_bytes
    return sorted(weights.items(), key=lambda item: -item[1])[:count]


def _leads_out(path: str, target: str) -> bool:
    if target.startswith("/"):
        return True
    landing = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return landing == ".." or landing.startswith("../")
