"""One ssh connection to another machine, shared by several programs, and reading a program's output
while it runs.

Users with one-time codes enter only one: the first ssh stays open, and the others use its socket
(ControlMaster). ssh asks for passwords, codes and unknown host keys on the terminal itself
(/dev/tty), so nothing here may take the terminal from it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.remote.rsync import Destination, Ssh
from hpctrain.util import process, shell
from hpctrain.util.process import Finished

#: The first with --info=progress2 and --outbuf (rsync's NEWS, 3.1.0). macOS has shipped 2.6.9 and
#: openrsync.
_OLDEST_RSYNC = (3, 1)
_ANSWER_S = 60.0
#: Needed without a terminal, where Ctrl-C is not available.
_CONNECT_S = 90.0
_LOOK_S = 0.05
_END_S = 10.0
_SSH_FAILED = 255


class UnreachableError(SchedulerError):
    """The other machine cannot be reached, or the connection to it broke."""


def require_programs() -> None:
    """Check that ssh and rsync are installed locally.

    Raises:
        HpctrainError: one is missing, or rsync is older than 3.1.
    """
    for name, package in (("ssh", "openssh-client"), ("rsync", "rsync")):
        if shutil.which(name) is None:
            raise HpctrainError(
                f"{name} is not on PATH of this machine",
                hint=f"install it: sudo apt-get install {package}, or: brew install {name}",
            )
    said = process.run(["rsync", "--version"], timeout=_ANSWER_S).stdout
    match = re.search(r"^rsync +version v?(\d+)\.(\d+)", said, re.MULTILINE)
    if (
        match is None
        or said.startswith("openrsync")
        or (int(match[1]), int(match[2])) < _OLDEST_RSYNC
    ):
        first = said.partition("\n")[0].strip() or "nothing"
        raise HpctrainError(
            "the local rsync is older than 3.1, or another program of that name",
            details=(f"  rsync --version says: {first}",),
            hint="install another (on a Mac: brew install rsync), then open a new terminal",
        )


class Connection:
    """An open ssh connection, as a context manager.

    Args:
        destination: the host to log in to.
        ssh: the ssh options.

    Attributes:
        ssh: the ssh options that use this connection.
        directory: private to this process (mode 0700), deleted at the end.
    """

    def __init__(self, destination: Destination, ssh: Ssh) -> None:
        self.destination, self.ssh = destination, ssh
        # A socket path is limited to 104 bytes, and ssh adds 17: TMPDIR of a job or of macOS may be
        # too long.
        short = "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it
        self.directory = Path(
            tempfile.mkdtemp(prefix="hpctrain-", dir=short if os.access(short, os.W_OK) else None)
        )
        self._master: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Connection:
        """Connect.

        Raises:
            UnreachableError: with ssh's own output.
        """
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection and remove the private directory."""
        self.close()

    def close(self) -> None:
        """Close the connection; may be called twice."""
        master, self._master = self._master, None
        if master is not None:
            if master.stdin is not None:
                master.stdin.close()  # its `cat` ends, and with it the connection
            _end(master, gently=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, command: str) -> Finished:
        """Run a command in the login shell of the other machine and return how it ended.

        Raises:
            UnreachableError: ssh itself failed.
        """
        finished = process.run(
            self.ssh.run(self.destination, command), timeout=_ANSWER_S, environment=surroundings()
        )
        if finished.returncode == _SSH_FAILED:
            raise self.unreachable(finished.stderr)
        return finished

    def unreachable(self, said: str) -> UnreachableError:
        """Return the error for a failed ssh, with its own output."""
        lines = tuple(f"  ssh said: {line.strip()}" for line in said.splitlines() if line.strip())[
            -8:
        ]
        if not self.ssh.ask and "ermission denied" in said:
            lines = (
                *lines,
                "  stdin is not a terminal, so ssh could not ask for a password or a code",
            )
        return UnreachableError(
            f"cannot reach {self.destination.login}",
            details=lines,
            fix=self.ssh.typed(self.destination, "true"),
        )

    def _connect(self) -> None:
        # If the user's own configuration already shares a connection, no second code is needed.
        if (
            process.run(
                self.ssh.check(self.destination), timeout=_ANSWER_S, environment=surroundings()
            ).returncode
            == 0
        ):
            return
        socket = self.directory / "c"
        self.ssh = replace(self.ssh, control_path=str(socket))
        with tempfile.TemporaryFile() as errors:
            master = subprocess.Popen(
                self.ssh.master(self.destination),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                # The user reads ssh's prompts on the terminal.
                stderr=None if self.ssh.ask else errors,
                env=surroundings(),
            )
            self._master = master
            started = time.monotonic()
            while not socket.exists():
                if master.poll() is not None:
                    errors.seek(0)
                    raise self.unreachable(errors.read().decode("utf-8", "replace"))
                if not self.ssh.ask and time.monotonic() - started > _CONNECT_S:
                    raise self.unreachable(f"no connection within {_CONNECT_S:g} s")
                time.sleep(_LOOK_S)


def stream(argv: Sequence[str], on_line: Callable[[str], object]) -> Finished:
    r"""Run `argv` to its end and pass on each line of its stdout at once; lines end with `\n` or
    `\r`.

    Names that are not UTF-8 contain surrogates. Returns the exit status and stderr; stdout is not
    kept. On Ctrl-C, or any exception from `on_line`, the program gets SIGINT and time to store
    partial files.
    """
    with tempfile.TemporaryFile() as errors:
        program = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=surroundings(),
        )
        assert program.stdout is not None  # noqa: S101 - for the type checker: stdout is a pipe
        try:
            # Universal newlines: each rewritten progress line counts as a line, too.
            with open(
                program.stdout.fileno(), encoding="utf-8", errors="surrogateescape", closefd=False
            ) as lines:
                for line in lines:
                    on_line(line.rstrip("\n"))
            code = program.wait()
        except BaseException:
            _end(program, gently=False)
            raise
        finally:
            program.stdout.close()
        errors.seek(0)
        return Finished(tuple(argv), code, "", errors.read().decode("utf-8", "replace"))


def _end(program: subprocess.Popen[bytes], *, gently: bool) -> None:
    for signal_number in (None if gently else signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if program.poll() is None and signal_number is not None:
            program.send_signal(signal_number)
        try:
            program.wait(timeout=_END_S if signal_number else _END_S / 5)
        except subprocess.TimeoutExpired:
            continue
        return


def surroundings() -> dict[str, str]:
    """Return the environment for ssh and rsync: without the user's RSYNC_* variables, and in
    English, because their output is parsed.
    """
    environment = {
        name: value
        for name, value in process.clean(os.environ).items()
        if not name.startswith("RSYNC_")
    }
    return environment | {"LC_ALL": "C"}


def describe(finished: Finished, connection: Connection, *, again: str) -> HpctrainError:
    """Return the error for a failed rsync; `again` is the command that continues."""
    said = [line.strip() for line in finished.stderr.splitlines() if line.strip()]
    if finished.returncode < 0:
        said.append(f"rsync was ended by signal {-finished.returncode}")
    lost = finished.returncode in (
        10,
        12,
        30,
        35,
        _SSH_FAILED,
    )  # rsync(1), EXIT VALUES: broken stream, or timeout
    words = tuple(
        f"  rsync said: {line}"
        for line in (
            said if len(said) <= 12 else [*said[:6], f"... {len(said) - 12} more ...", *said[-6:]]
        )
    )
    if any("No space left" in line or "quota exceeded" in line.lower() for line in said):
        where = shell.join(["df", "-h", connection.destination.far_path])
        return HpctrainError(
            f"{connection.destination.login} has no space left",
            details=words,
            fix=connection.ssh.typed(connection.destination, where),
        )
    if lost:
        return UnreachableError(
            f"the connection to {connection.destination.login} broke",
            details=words,
            fix=again,
            hint="that continues where it stopped",
        )
    what = f"not everything could be sent to {connection.destination}"
    return HpctrainError(what, details=words, hint=f"fix what rsync names, then run: {again}")
