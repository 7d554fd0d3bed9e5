"""The words that are run: ssh, rsync, and the few lines of shell for the far side; and the far side's answer, read.

The far side's login shell may be bash, csh or fish, so that what it sees is one plain command: `sh -c 'script' sh 'argument'…`, on
one line, without a single quote or an exclamation mark (which csh expands even in quotes), the arguments escaped for `printf %b`. The
path of the destination reaches it as such an argument, never through rsync's own quoting, which is different in every version: rsync is
started in the directory, and its destination is `.`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpctrain.jobs import shell
from hpctrain.sync import changes, rules
from hpctrain.sync.destination import Destination

State = Literal["missing", "empty", "occupied", "marked", "other"]

_PLAIN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-")
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
#: A new marker is only made where nothing is: whoever has put something there since the probe keeps it.
_MARK = (
    'd=$(printf %b "$1"); mkdir -p "$d" && cd "$d" || exit 1; '
    'n=$(ls -A) && [ -z "$n" ] || { echo "it is not empty any more" >&2; exit 1; }; '
    'printf "%b\\n" "$2" >.hpctrain-sync'
)
_ADOPT = 'cd "$(printf %b "$1")" && printf "%b\\n" "$2" >.hpctrain-sync'
_RSYNC = 'cd "$(printf %b "$1")" && shift && exec rsync "$@"'
#: Just before anything is deleted, the directory must still be the project's.
_RSYNC_OWN = (
    'cd "$(printf %b "$1")" && { grep -q -e "$2" .hpctrain-sync || { echo ".hpctrain-sync names another project" >&2; exit 1; }; } '
    '&& shift 2 && exec rsync "$@"'
)


@dataclass(frozen=True, slots=True)
class Ssh:
    """How ssh is called.

    Attributes:
        port: None is what ssh's configuration says.
        config: a file in place of ~/.ssh/config.
        ask: whether somebody at a terminal can be asked for a password or a code.
        control_path: the socket of a connection that is open already; None is what the configuration says.
    """

    port: int | None = None
    config: str | None = None
    ask: bool = False
    control_path: str | None = None

    def words(self) -> list[str]:
        """Return the program and its options, without the host."""
        # What a user's configuration may ask for in a session at the keyboard, and breaks a transfer.
        options = ["ClearAllForwardings=yes", "RemoteCommand=none", "RequestTTY=no", "ServerAliveInterval=30"]
        if not self.ask:
            options += ["BatchMode=yes", "ConnectTimeout=30"]
        if self.control_path is not None:
            options += [f"ControlPath={self.control_path}"]
        return [*self.short_words(), *(word for option in options for word in ("-o", option))]

    def short_words(self) -> list[str]:
        """Return what a person would type."""
        words = ["ssh"]
        if self.config is not None:
            words += ["-F", self.config]
        if self.port is not None:
            words += ["-p", str(self.port)]
        return words

    def master(self, destination: Destination) -> list[str]:
        """Return the argv of the connection that others share; it ends with its stdin, so that it never outlives hpctrain."""
        persist = ["-o", "ControlMaster=yes", "-o", "ControlPersist=no"]
        return [*self.words(), *persist, "--", destination.ssh_login, "cat >/dev/null"]

    def check(self, destination: Destination) -> list[str]:
        """Return the argv that asks whether a connection is open already."""
        return [*self.words(), "-O", "check", "--", destination.ssh_login]

    def run(self, destination: Destination, command: str) -> list[str]:
        """Return the argv that runs `command` over the shared connection."""
        return [*self.words(), "-o", "ControlMaster=no", "--", destination.ssh_login, command]

    def rsh(self) -> str:
        """Return the value of rsync's --rsh, whose words rsync splits by rules of its own."""
        return " ".join(_rsync_word(word) for word in [*self.words(), "-o", "ControlMaster=no"])

    def typed(self, destination: Destination, command: str) -> str:
        """Return the line with which a person runs `command` there."""
        return shell.join([*self.short_words(), destination.ssh_login, command])


def probe(destination: Destination) -> str:
    """Return the command that looks at the destination and changes nothing."""
    return _far(_PROBE, destination.far_path)


def mark(destination: Destination, marker: str, *, adopt: bool) -> str:
    """Return the command that makes an empty or missing directory the project's, or takes one over."""
    return _far(_ADOPT if adopt else _MARK, destination.far_path, marker)


@dataclass(frozen=True, slots=True)
class FarSide:
    """What the far side says of the destination.

    Attributes:
        noise: what its login shell printed before our own words, which rsync would stumble over.
        has_rsync: whether rsync is on PATH there.
        state: missing; a directory that is empty, has our marker, or has other things in it; or no directory.
        writable: whether it, or the nearest directory above that exists, can be written.
        nearest: that directory above.
        is_home: it is the login directory.
        marker: what .hpctrain-sync holds; {} where it cannot be read.
        environments: directories in it that hold a Python or conda environment, made there.
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
    """Read the answer to `probe`, or return None where it is none."""
    noise, begin, answer = text.partition(_BEGIN + "\n")
    found = [line.removeprefix("environment ") for line in answer.splitlines() if line.startswith("environment ")]
    pairs = {line.partition(" ")[0]: line.partition(" ")[2] for line in answer.splitlines()}
    state = next((known for known in ("missing", "empty", "occupied", "marked", "other") if known == pairs.get("state")), None)
    if not begin or state is None:
        return None
    try:
        marker = json.loads(pairs.get("marker", "{}"))
    except ValueError:
        marker = {}
    return FarSide(
        noise=noise, has_rsync="rsync" in pairs, state=state, writable="writable" in pairs, nearest=pairs.get("nearest"),
        is_home="home" in pairs, marker=marker if isinstance(marker, dict) else {},
        environments=tuple(path.rpartition("/")[0] for path in found if path.isprintable()),
    )  # fmt: skip


def rsync(*, filter_file: str, delete: bool, dry_run: bool) -> list[str]:
    """Return rsync's argv without source and destination.

    Modes: the source's, less the far side's umask, with the executable bit kept; not the owner, and not the group, so that a project
    directory's setgid bit rules. Times of directories are left alone, because in a shared directory only their owner may set them.
    """
    words = ["rsync", "--recursive", "--links", "--times", "--omit-dir-times", "--omit-link-times", "--executability"]
    words += [f"--partial-dir={rules.PARTIAL_DIRECTORY}", f"--filter=merge {filter_file}", f"--out-format={changes.OUT_FORMAT}"]
    words += ["--stats", "--no-human-readable", "--8-bit-output", "--outbuf=N"]
    words += ["--dry-run", "--debug=FILTER1"] if dry_run else ["--info=progress2"]
    return [*words, "--delete-delay"] if delete else words


def to_far_side(ssh: Ssh, destination: Destination, *, project: str | None) -> list[str]:
    """Return rsync's last words: how to reach the far side, from where, to where.

    Args:
        ssh: how.
        destination: where.
        project: the identity that the far side's marker must have; None where there is no marker.
    """
    arguments = [destination.far_path] if project is None else [destination.far_path, project]
    program = _far(_RSYNC if project is None else _RSYNC_OWN, *arguments)
    return [f"--rsh={ssh.rsh()}", f"--rsync-path={program}", "--", "./", f"{destination.login}:."]


def to_nothing(empty_directory: str) -> list[str]:
    """Return rsync's last words for a trial against a directory that does not exist yet."""
    return ["--", "./", f"{empty_directory}/"]


def _far(script: str, *arguments: str) -> str:
    return shell.join(["sh", "-c", script, "sh", *(_escaped(argument) for argument in arguments)])


def _escaped(argument: str) -> str:
    r"""Return what `printf %b` turns into `argument`: letters, digits and `\0ooo`, which no login shell takes for anything else."""
    return "".join(chr(byte) if byte in _PLAIN_BYTES else f"\\0{byte:03o}" for byte in argument.encode())


def _rsync_word(word: str) -> str:
    """Quote a word for --rsh: spaces separate, a quote protects, a doubled single quote stands for one (rsync(1), --rsh)."""
    return word if _is_plain(word) else "'" + word.replace("'", "''") + "'"


def _is_plain(word: Sequence[str] | str) -> bool:
    return all(character.isalnum() or character in "-_./=:%@+," for character in word)
