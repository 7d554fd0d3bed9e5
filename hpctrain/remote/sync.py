"""Upload a project directory to the cluster with rsync over ssh: a dry run, then the transfer.

Both use one ssh connection (ControlMaster), so that one-time codes are entered once. ssh asks on
the terminal itself. The login shell on the other machine may be any: paths consist of characters
that none of them changes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.remote import rules
from hpctrain.util import process, shell, stored
from hpctrain.util.files import write_text
from hpctrain.util.text import is_number

#: The last destination of a project, in its directory.
_LAST = Path(".hpctrain") / "sync"
_DESTINATION = re.compile(
    r"(?P<login>(?:[\w.+-]+@)?(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+\])):(?P<path>(?!//)(?:~/)?[\w./+@=][\w./+@=-]*)",
    re.ASCII,
)
_SSH_FAILED = 255
#: rsync(1), EXIT VALUES: an error of the socket, a timeout; ssh's own exit code.
_LOST = (10, 30, 35, _SSH_FAILED)
_VANISHED = 24
#: Modes: the executable bit is kept, the rest follows the umask there. Owner and group are not
#: sent, so that a project directory's setgid bit takes effect.
_RSYNC = (
    "rsync",
    "--from0",
    "--ignore-missing-args",  # a file that was listed, and removed since
    "--links",
    "--times",
    "--omit-dir-times",
    "--executability",
    f"--partial-dir={rules.PARTIAL_DIRECTORY}",
)


@dataclass(frozen=True, slots=True)
class Destination:
    """A directory on another machine.

    Attributes:
        login: `host` or `user@host`, as rsync takes it.
        path: relative to the login directory, unless it starts with `/`.
    """

    login: str
    path: str

    def __str__(self) -> str:
        """Return HOST:PATH."""
        return f"{self.login}:{self.path}"


def parse_destination(text: str) -> Destination:
    """Parse HOST:PATH or USER@HOST:PATH; HOST may be an alias in ~/.ssh/config.

    Raises:
        UsageError: it has another form, or is not a directory of the project's own.
    """
    match = _DESTINATION.fullmatch(text)
    path = match["path"].removeprefix("~/") if match else ""
    if (
        match is None
        or match["login"].startswith("-")
        or os.path.normpath(path) in ("/", ".", "..")
    ):
        raise UsageError(
            f"{text!r} is not HOST:PATH",
            details=(
                "PATH is a directory of the project's own, of letters, digits and _ . / + @ = -;"
                " nothing in it is expanded",
            ),
            hint="name it: hpctrain sync HOST:/scratch/my_group/my_project",
        )
    return Destination(match["login"], path.rstrip("/"))


def destination(project: Path, text: str | None) -> Destination:
    """Return the destination in `text`, else the project's last one.

    Raises:
        UsageError: it is invalid, or there is none.
    """
    if project in (Path.home(), Path("/")):
        raise UsageError(
            f"{project} is not a project directory",
            hint="cd into your project, then run: hpctrain sync HOST:PATH",
        )
    if text is not None:
        return parse_destination(text)
    try:
        return parse_destination(stored.read_text(project / _LAST).strip())
    except FileNotFoundError:
        raise UsageError(
            "no sync destination set for this directory",
            hint="name it: hpctrain sync HOST:/scratch/my_group/my_project",
        ) from None


class Transfer:
    """The upload of one project over one ssh connection."""

    def __init__(self, project: Path, target: Destination, rsh: str, listed: Path) -> None:
        self.project, self.target, self.rsh, self.listed = project, target, rsh, listed

    def preview(self) -> list[tuple[str, int]]:
        """Return the files that would be sent, with their sizes in bytes.

        Raises:
            HpctrainError: rsync failed.
        """
        done = self._rsync("--dry-run", "--out-format=%l %n", stdout=subprocess.PIPE)
        lines = (
            line.partition(" ") for line in done.stdout.decode("utf-8", "replace").splitlines()
        )
        # Other lines: warnings about what is neither a file nor a link.
        return [
            (name, int(size))
            for size, _, name in lines
            if is_number(size) and name and not name.endswith("/")
        ]

    def send(self) -> None:
        """Send the files, and record the destination; rsync shows its progress on a terminal.

        Raises:
            HpctrainError: rsync failed.
        """
        (self.project / _LAST).parent.mkdir(exist_ok=True)
        write_text(self.project / _LAST, f"{self.target}\n")
        self._rsync(*["--info=progress2"] * sys.stderr.isatty(), stdout=sys.stderr.fileno())

    def _rsync(self, *options: str, stdout: int) -> subprocess.CompletedProcess[bytes]:
        # `cd` of a path with a slash ignores CDPATH, and prints nothing.
        path = self.target.path if self.target.path.startswith("/") else f"./{self.target.path}"
        far = f"--rsync-path=mkdir -p {path} && cd {path} && rsync"
        words = (*_RSYNC, f"--files-from={self.listed}", f"--rsh={self.rsh}", far, *options)
        done = subprocess.run(
            [*words, "./", f"{self.target.login}:."],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            cwd=self.project,
            env=process.clean(os.environ),
            check=False,
        )
        if done.returncode not in (0, _VANISHED):
            kind = SchedulerError if done.returncode in _LOST else HpctrainError
            raise kind(
                f"rsync to {self.target} ended with exit code {done.returncode}",
                fix=f"hpctrain sync {self.target}",
                hint="fix what ssh or rsync names above; complete files stay, and the next sync"
                " continues",
            )
        return done


@contextmanager
def connected(project: Path, target: Destination) -> Iterator[Transfer]:
    """Open the transfer of a project; its ssh connection is closed at the end.

    Raises:
        HpctrainError: rsync or ssh is not installed.
        SchedulerError: ssh cannot connect.
    """
    for name in ("ssh", "rsync"):
        if shutil.which(name) is None:
            raise HpctrainError(
                f"{name} is not on PATH of this machine",
                hint=f"install it: sudo apt-get install {name}, or: brew install {name}",
            )
    login = target.login.replace("[", "").replace("]", "")
    # /tmp: TMPDIR may be longer than a socket's path can be.
    with tempfile.TemporaryDirectory(prefix="hpctrain-", dir="/tmp") as directory:
        path = Path(directory) / "files"
        path.write_bytes(_listed(project))
        if _ssh("-O", "check", login):  # a connection of the user's own is open
            yield Transfer(project, target, "ssh", path)
            return
        shared = ("-o", f"ControlPath={directory}/%C")
        words = ("ssh", "-o", "ControlMaster=auto", "-o", "ControlPersist=600", *shared)
        # Connected before rsync starts: of a refused connection, rsync's exit code may be 12, too.
        made = subprocess.run(
            [*words, login, "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if made.returncode == _SSH_FAILED:
            raise SchedulerError(
                f"no ssh connection to {target.login}", fix=shell.join(("ssh", login))
            )
        try:
            yield Transfer(project, target, " ".join(words), path)
        finally:
            _ssh(*shared, "-O", "exit", login)


def _ssh(*words: str) -> bool:
    done = subprocess.run(["ssh", *words], capture_output=True, check=False)
    return done.returncode == 0


def _listed(project: Path) -> bytes:
    """Return the files to send, as rsync's --files-from reads them.

    Raises:
        OSError: a directory or .hpctrainignore cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    ignored = rules.read_ignored(project)
    left_out = rules.patterns(ignored, rules.NOT_SENT, (*rules.REMADE, *rules.PRODUCTS))
    return b"".join(os.fsencode(f"./{path}\0") for path in rules.walk(project, left_out, refuse))
