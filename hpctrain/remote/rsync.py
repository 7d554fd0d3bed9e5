"""HOST:PATH, the argv of ssh and rsync with the shell script for the far side, and parsers for
their output. Pure.

The login shell on the far side may be bash, csh or fish, so it gets one plain command: `sh -c
'script' sh 'argument'…`, on one line, without a single quote or an exclamation mark (which csh
expands even in quotes), with the arguments escaped for `printf %b`. The destination's path is
passed as such an argument, never through rsync's own quoting, which differs between versions: rsync
is started in the directory, and its destination is `.`.
"""

from __future__ import annotations

import json
import posixpath
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hpctrain.errors import UsageError
from hpctrain.remote import rules
from hpctrain.util import shell

_FORM = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.+-]*)@)?"
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\]):(?P<path>.*)",
    re.DOTALL | re.ASCII,
)
State = Literal["missing", "empty", "occupied", "marked", "other"]
Kind = Literal["created", "changed", "deleted"]

#: Itemized change, size in bytes, and name (then ` -> target` for a symlink); no line of rsync's
#: own has this prefix.
OUT_FORMAT = "hpctrain: %i %l %n%L"
_CHANGE = re.compile(
    r"hpctrain: (?P<flags>\*deleting|[<>ch.][fdLDS]\S{9}) +(?P<size>\d+) (?P<name>.*)", re.DOTALL
)
_HIDDEN = re.compile(
    r"\[sender\] hiding (?P<type>file|directory) (?P<name>.*) because of pattern ", re.DOTALL
)
_PROGRESS = re.compile(r" *[\d,]+ +\d+% +\S+/s +\d+:\d\d:\d\d")
_SAID = re.compile(r"(skipping non-regular file|cannot delete non-empty directory: )")
_TOTALS = {
    "files": re.compile(r"Number of files: (\d+)"),
    "directories": re.compile(r"Number of files: .*\bdir: (\d+)"),
    "size": re.compile(r"Total file size: (\d+) bytes"),
    "wire": re.compile(r"Total bytes sent: (\d+)"),
}
_PLAIN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-")
#: Unicode categories: control characters; bytes that are not UTF-8; other line separators.
_UNPRINTABLE = ("Cc", "Cs", "Zl", "Zp")
_BEGIN = "hpctrain-begin"
_PROBE = re.sub(
    r"\n *",
    " ",
    r"""
    d=$(printf %b "$1"); echo hpctrain-begin; if command -v rsync >/dev/null 2>&1; then echo rsync yes; fi;
    if [ -d "$d" ]; then
      if [ -w "$d" ] && [ -x "$d" ]; then echo writable yes; fi;
      if [ "$(cd "$d" && pwd -P)" = "$(cd && pwd -P)" ]; then echo home yes; fi;
      if [ -f "$d/.hpctrain-sync" ]; then echo state marked; printf "marker "; head -n 1 "$d/.hpctrain-sync";
        for p in "$d"/*/pyvenv.cfg "$d"/*/*/pyvenv.cfg "$d"/.[a-z]*/pyvenv.cfg "$d"/*/conda-meta "$d"/*/*/conda-meta; do
          if [ -e "$p" ]; then printf "environment %s\n" "${p#"$d"/}"; fi; done;
      elif n=$(ls -A "$d") && [ -z "$n" ]; then echo state empty; else echo state occupied; fi;
    elif [ -e "$d" ] || [ -L "$d" ]; then echo state other;
    else echo state missing; p=$d; until [ -e "$p" ] || [ -L "$p" ]; do p=$(dirname "$p"); done;
      if [ -d "$p" ] && [ -w "$p" ] && [ -x "$p" ]; then echo writable yes; else printf "nearest %s\n" "$p"; fi;
    fi; exit 0
    """,
).strip()
#: A marker is only written to an empty directory: files that were added since the probe are kept.
_MARK = (
    'd=$(printf %b "$1"); mkdir -p "$d" && cd "$d" || exit 1; '
    'n=$(ls -A) && [ -z "$n" ] || { echo "it is not empty any more" >&2; exit 1; }; '
    'printf "%b\\n" "$2" >.hpctrain-sync'
)
_ADOPT = 'cd "$(printf %b "$1")" && printf "%b\\n" "$2" >.hpctrain-sync'
_RSYNC = 'cd "$(printf %b "$1")" && shift && exec rsync "$@"'
#: Checked just before deleting: the directory must still belong to the project.
_RSYNC_OWN = (
    'cd "$(printf %b "$1")" && { grep -q -e "$2" .hpctrain-sync || { echo ".hpctrain-sync names'
    ' another project" >&2; exit 1; }; } && shift 2 && exec rsync "$@"'
)


@dataclass(frozen=True, slots=True)
class Destination:
    """A directory on another machine.

    Attributes:
        login: `host` or `user@host`, as rsync takes it: an IPv6 address in brackets. Never starts
            with a dash.
        path: as written, without trailing slashes; relative to the login directory unless it starts
            with `/`.
    """

    login: str
    path: str

    @property
    def ssh_login(self) -> str:
        """Return the login as ssh takes it: an IPv6 address without brackets."""
        return self.login.replace("[", "").replace("]", "")

    @property
    def far_path(self) -> str:
        """Return the path for programs on the far side: one that `cd`, `mkdir` and CDPATH cannot
        misinterpret.
        """
        return self.path if self.path.startswith("/") else f"./{self.path}"

    def __str__(self) -> str:
        """Return HOST:PATH, for messages and for parsing."""
        return f"{self.login}:{self.path}"


def parse_destination(text: str, *, project: str) -> Destination:
    """Parse HOST:PATH or USER@HOST:PATH; HOST may be an alias in ~/.ssh/config.

    Nothing in it is expanded on the far side: `$`, quotes and spaces are part of the name. `~/` is
    the login directory.

    Args:
        text: the argument.
        project: the name of the project's directory, for the fix.

    Raises:
        UsageError: the host or the directory is missing, or the path contains characters that a
            command line cannot hold.
    """
    match = _FORM.fullmatch(text)
    fix = f"hpctrain sync HOST:{shell.quote(plain_name(project))}"
    if match is None or "://" in text or match["path"].startswith(":"):
        raise UsageError(
            f"{text!r} is not HOST:PATH",
            details=(
                ("a host has letters, digits, '.', '_' and '-', and does not begin with '-'",)
                if ":" in text
                else ()
            ),
            hint=f"name the host: {fix}",
        )
    login = (f"{match['user']}@" if match["user"] else "") + match["host"]
    fix = fix.replace("HOST", login, 1)
    path = match["path"]
    strange = next((sign for sign in path if unicodedata.category(sign) in _UNPRINTABLE), None)
    if strange is not None:
        raise UsageError(f"the path in {text!r} holds the control character {strange!r}", fix=fix)
    path = path.removeprefix("~/").lstrip("/") if path.startswith("~/") else path
    path = path.rstrip("/") or path[:1]
    first = re.split(r"[^$~A-Za-z0-9_{}]", path)[0]
    if path.startswith("$") or (path.startswith("~") and path != "~"):
        raise UsageError(
            f"{first!r} is not expanded on {match['host']}; '~/' alone is",
            fix=f"ssh {login} {shell.quote(f'echo {first}')}",
            hint="use the path that this prints",
        )
    if path == "~" or posixpath.normpath(path or ".") in (".", "..", "/", "//"):
        raise UsageError(f"{text!r} names no directory of the project's own", fix=fix)
    return Destination(login, path)


def printable(text: str) -> str:
    """Return `text` on one line, without control characters; bytes that are not UTF-8 stay."""
    return "".join(
        sign if sign.isprintable() or 0xDC80 <= ord(sign) <= 0xDCFF else "?" for sign in text
    )


def plain_name(name: str) -> str:
    """Return a project's name with all characters that need quoting replaced."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "my_project"


@dataclass(frozen=True, slots=True)
class Ssh:
    """ssh options.

    Attributes:
        port: None for the one in ssh's configuration.
        config: a file that replaces ~/.ssh/config.
        ask: whether a user at a terminal can enter a password or a code.
        control_path: the socket of an open connection; None for the one in ssh's configuration.
    """

    port: int | None = None
    config: str | None = None
    ask: bool = False
    control_path: str | None = None

    def words(self) -> list[str]:
        """Return argv without the host."""
        # Override user settings that suit interactive sessions but break a transfer.
        options = [
            "ClearAllForwardings=yes",
            "RemoteCommand=none",
            "RequestTTY=no",
            "ServerAliveInterval=30",
        ]
        if not self.ask:
            options += ["BatchMode=yes", "ConnectTimeout=30"]
        if self.control_path is not None:
            options += [f"ControlPath={self.control_path}"]
        return [*self.short_words(), *(word for option in options for word in ("-o", option))]

    def short_words(self) -> list[str]:
        """Return argv for suggested commands."""
        words = ["ssh"]
        if self.config is not None:
            words += ["-F", self.config]
        if self.port is not None:
            words += ["-p", str(self.port)]
        return words

    def master(self, destination: Destination) -> list[str]:
        """Return the argv of the shared connection; it ends with its stdin, so that it never
        outlives hpctrain.
        """
        persist = ["-o", "ControlMaster=yes", "-o", "ControlPersist=no"]
        return [*self.words(), *persist, "--", destination.ssh_login, "cat >/dev/null"]

    def check(self, destination: Destination) -> list[str]:
        """Return the argv that checks whether a connection is already open."""
        return [*self.words(), "-O", "check", "--", destination.ssh_login]

    def run(self, destination: Destination, command: str) -> list[str]:
        """Return the argv that runs `command` over the shared connection."""
        return [*self.words(), "-o", "ControlMaster=no", "--", destination.ssh_login, command]

    def rsh(self) -> str:
        """Return the value of rsync's --rsh, which rsync splits by its own rules."""
        return " ".join(_rsync_word(word) for word in [*self.words(), "-o", "ControlMaster=no"])

    def typed(self, destination: Destination, command: str) -> str:
        """Return the suggested command that runs `command` on the host."""
        return shell.join([*self.short_words(), destination.ssh_login, command])


def probe(destination: Destination) -> str:
    """Return the command that inspects the destination without changing anything."""
    return _far(_PROBE, destination.far_path)


def mark(destination: Destination, marker: str, *, adopt: bool) -> str:
    """Return the command that marks an empty or missing directory as ours, or adopts one."""
    return _far(_ADOPT if adopt else _MARK, destination.far_path, marker)


@dataclass(frozen=True, slots=True)
class FarSide:
    """The state of the destination.

    Attributes:
        noise: output of the login shell before our own, which would break rsync.
        has_rsync: whether rsync is on PATH there.
        state: missing; a directory that is empty, has our marker, or contains other files; or not a
            directory.
        writable: whether it, or its nearest existing parent, is writable.
        nearest: that parent.
        is_home: whether it is the login directory.
        marker: the content of .hpctrain-sync; {} if it cannot be read.
        environments: directories in it with a Python or conda environment created there.
    """

    noise: str
    has_rsync: bool
    state: State
    writable: bool
    nearest: str | None
    is_home: bool
    marker: dict[str, Any]
    environments: tuple[str, ...] = ()


def read_probe(text: str) -> FarSide | None:
    """Parse the output of `probe`; None for anything else."""
    noise, begin, answer = text.partition(_BEGIN + "\n")
    pairs = [line.partition(" ")[::2] for line in answer.splitlines()]
    values = dict(pairs)
    found = [value for key, value in pairs if key == "environment"]
    state = next((known for known in get_args(State) if known == values.get("state")), None)
    if not begin or state is None:
        return None
    try:
        marker = json.loads(values.get("marker", "{}"))
    except ValueError:
        marker = {}
    return FarSide(
        noise=noise,
        has_rsync="rsync" in values,
        state=state,
        writable="writable" in values,
        nearest=values.get("nearest"),
        is_home="home" in values,
        marker=marker if isinstance(marker, dict) else {},
        environments=tuple(path.rpartition("/")[0] for path in found if path.isprintable()),
    )


def argv(*, filter_file: str, delete: bool, dry_run: bool) -> list[str]:
    """Return rsync's argv without source and destination.

    Modes: the source's with the far side's umask applied, keeping the executable bit. Owner and
    group are not sent, so that a project directory's setgid bit takes effect. Directory times are
    not set, because in a shared directory only their owner may set them.
    """
    words = [
        "rsync",
        "--recursive",
        "--links",
        "--times",
        "--omit-dir-times",
        "--omit-link-times",
        "--executability",
    ]
    words += [
        f"--partial-dir={rules.PARTIAL_DIRECTORY}",
        f"--filter=merge {filter_file}",
        f"--out-format={OUT_FORMAT}",
    ]
    words += ["--stats", "--no-human-readable", "--8-bit-output", "--outbuf=N"]
    words += ["--dry-run", "--debug=FILTER1"] if dry_run else ["--info=progress2"]
    return [*words, "--delete-delay"] if delete else words


def to_far_side(ssh: Ssh, destination: Destination, *, project: str | None) -> list[str]:
    """Return rsync's last arguments: transport, source and destination.

    Args:
        ssh: the ssh options.
        destination: the directory on the far side.
        project: the identity that the far side's marker must contain; None without a marker.
    """
    arguments = [destination.far_path] if project is None else [destination.far_path, project]
    program = _far(_RSYNC if project is None else _RSYNC_OWN, *arguments)
    return [f"--rsh={ssh.rsh()}", f"--rsync-path={program}", "--", "./", f"{destination.login}:."]


def _far(script: str, *arguments: str) -> str:
    return shell.join(["sh", "-c", script, "sh", *(_escaped(argument) for argument in arguments)])


def _escaped(argument: str) -> str:
    r"""Escape `argument` for `printf %b`, using only letters, digits and `\0ooo`, which every login
    shell passes on unchanged.
    """
    return "".join(
        chr(byte) if byte in _PLAIN_BYTES else f"\\0{byte:03o}" for byte in argument.encode()
    )


def _rsync_word(word: str) -> str:
    """Quote an argument inside --rsh: spaces separate, quotes protect, a doubled single quote is a
    literal one (rsync(1), --rsh).
    """
    plain = all(sign.isalnum() or sign in "-_./=:%@+," for sign in word)
    return word if plain else "'" + word.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class FileChange:
    """One difference on the far side, made or planned.

    Attributes:
        kind: what happens to it.
        path: relative to the project; a directory ends with `/`.
        size_bytes: for a regular file, of which rsync may send only a delta; 0 for anything else.
        target: the target of a symlink.
    """

    kind: Kind
    path: str
    size_bytes: int = 0
    target: str | None = None

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return self.path.endswith("/")


@dataclass(slots=True)
class RsyncOutcome:
    """What one run of rsync did, or would do.

    Attributes:
        changes: in rsync's order.
        left_out: paths excluded by the rules; a directory ends with `/`, and its content is not
            listed.
        notes: rsync's own messages about what it could not send or delete.
        totals: rsync's statistics: `files` (including directories), `directories` and `size`
            (bytes) of the project, after the rules; `wire`, the bytes sent over the network.
        gone: files on the far side that do not exist locally, if they are not to be deleted.
    """

    changes: list[FileChange] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)

    def read_line(self, line: str) -> FileChange | None:
        """Parse one line of rsync's stdout, and return the change that it reports."""
        change = parse_change(line)
        if change is not None:
            self.changes.append(change)
        elif hidden := _HIDDEN.match(line):
            self.left_out.append(hidden["name"] + ("/" if hidden["type"] == "directory" else ""))
        elif _SAID.match(line):
            self.notes.append(line)
        else:
            found = ((name, pattern.match(line)) for name, pattern in _TOTALS.items())
            self.totals.update({name: int(match[1]) for name, match in found if match})
        return change

    def keep_what_is_gone(self) -> None:
        """Move deleted files from the changes to `gone`: for a dry run with --delete before a
        transfer without it.
        """
        self.gone = [path for path in self.deleted if not path.endswith("/")]
        self.changes = [change for change in self.changes if change.kind != "deleted"]
        self.notes = [note for note in self.notes if not note.startswith("cannot delete")]

    @property
    def total_files(self) -> int:
        """The number of the project's files, after the rules, without directories."""
        return self.totals.get("files", 0) - self.totals.get("directories", 0)

    @property
    def sent(self) -> list[FileChange]:
        """The files and symlinks that are sent, new or changed."""
        return [
            change
            for change in self.changes
            if change.kind != "deleted" and not change.is_directory
        ]

    @property
    def sent_bytes(self) -> int:
        """The total size of the files that are sent."""
        return sum(change.size_bytes for change in self.sent)

    @property
    def deleted(self) -> list[str]:
        """The paths that are deleted on the far side."""
        return [change.path for change in self.changes if change.kind == "deleted"]

    @property
    def secrets(self) -> list[str]:
        """The paths excluded because their names suggest secrets."""
        return [path for path in self.left_out if rules.is_secret(path)]


def parse_change(line: str) -> FileChange | None:
    """Return the change in a line in OUT_FORMAT, or None."""
    match = _CHANGE.fullmatch(line)
    if match is None:
        return None
    flags, name, target = match["flags"], match["name"], None
    if flags == "*deleting":
        return FileChange("deleted", name)
    type_ = flags[1]
    if name == "./" or (flags[0] == "." and type_ != "f"):
        return None  # the top directory itself; times of directories and symlinks
    if type_ == "L":
        name, _, target = name.partition(" -> ")
    kind: Kind = "created" if "+" in flags[2:] else "changed"
    # `.f`: only the mode has changed.
    return FileChange(
        kind, name, int(match["size"]) if type_ == "f" and flags[0] != "." else 0, target
    )


def is_progress(line: str) -> bool:
    """Whether a line is output of --info=progress2."""
    return _PROGRESS.match(line) is not None


def largest(changes: Iterable[FileChange], *, count: int = 3) -> list[tuple[str, int]]:
    """Return the largest top-level entries, as (name, bytes), largest first."""
    weights: dict[str, int] = {}
    for change in changes:
        top, slash, _ = change.path.partition("/")
        weights[top + slash] = weights.get(top + slash, 0) + change.size_bytes
    return sorted(weights.items(), key=lambda item: -item[1])[:count]
