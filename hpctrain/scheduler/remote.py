"""Another machine, by ssh: one connection that several programs share, and a program whose output is read while it runs.

Whoever logs in with a one-time code types it once: the first ssh stays, and the others go through its socket (ControlMaster). ssh asks
for passwords, codes and unknown host keys at the terminal itself (/dev/tty), which is why nothing here takes the terminal from it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO

from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.jobs import shell
from hpctrain.scheduler import process
from hpctrain.scheduler.process import Finished
from hpctrain.sync.commands import Ssh
from hpctrain.sync.destination import Destination

#: --info=progress2 and --outbuf came with it (rsync's NEWS, 3.1.0). macOS has had 2.6.9 and openrsync.
_OLDEST_RSYNC = (3, 1)
_ANSWER_S = 60.0
#: Without a terminal nobody can press Ctrl-C.
_CONNECT_S = 90.0
#: How long ssh's words wait: what it says as it gives up belongs into the error, what it says while it waits has to be read now.
_HOLD_S = 0.5
_LOOK_S = 0.05
_END_S = 10.0
_SSH_FAILED = 255


class UnreachableError(SchedulerError):
    """The other machine cannot be reached, or the connection to it broke."""


def require_programs() -> None:
    """Look for ssh and rsync on this machine.

    Raises:
        HpctrainError: one is missing, or rsync is older than 3.1.
    """
    for name, package in (("ssh", "openssh-client"), ("rsync", "rsync")):
        if shutil.which(name) is None:
            raise HpctrainError(f"{name} is not on PATH of this machine", fix=f"sudo apt-get install {package}, or: brew install {name}")
    said = process.run(["rsync", "--version"], timeout=_ANSWER_S).stdout
    match = re.search(r"^rsync +version v?(\d+)\.(\d+)", said, re.MULTILINE)
    if match is None or said.startswith("openrsync") or (int(match[1]), int(match[2])) < _OLDEST_RSYNC:
        first = said.partition("\n")[0].strip() or "nothing"
        raise HpctrainError(
            "rsync on this machine is older than 3.1, or another program of that name",
            details=(f"  rsync --version says: {first}",),
            fix="brew install rsync, then open a new terminal",
        )


class Connection:
    """An open ssh connection, as a context manager.

    Args:
        destination: whose login is used.
        ssh: how ssh is called.
        say: gets ssh's own words while it waits for somebody at the terminal.

    Attributes:
        ssh: how to call ssh so that it goes through this connection.
        directory: of this process alone (mode 0700), gone at the end.
    """

    def __init__(self, destination: Destination, ssh: Ssh, say: Callable[[str], None]) -> None:
        self.destination, self.ssh, self._say = destination, ssh, say
        # A socket's path has at most 104 bytes, and ssh adds 17: a job's or macOS's TMPDIR may be too long.
        short = "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it
        self.directory = Path(tempfile.mkdtemp(prefix="hpctrain-", dir=short if os.access(short, os.W_OK) else None))
        self._master: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Connection:
        """Connect.

        Raises:
            UnreachableError: with ssh's own words.
        """
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connection and remove the private directory."""
        self.close()

    def close(self) -> None:
        """Close the connection; called twice, nothing happens."""
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
        finished = process.run(self.ssh.run(self.destination, command), timeout=_ANSWER_S, environment=surroundings())
        if finished.returncode == _SSH_FAILED:
            raise self.unreachable(finished.stderr)
        return finished

    def unreachable(self, said: str) -> UnreachableError:
        """Return the error for an ssh that failed, with its own words."""
        lines = tuple(f"  ssh said: {line.strip()}" for line in said.splitlines() if line.strip())[-8:]
        if not self.ssh.ask and "ermission denied" in said:
            lines = (*lines, "  stdin is no terminal, so that ssh could ask nobody for a password or a code")
        return UnreachableError(
            f"cannot reach {self.destination.login}", details=lines, fix=f"{self.ssh.typed(self.destination, 'true')}, until that works"
        )

    def _connect(self) -> None:
        # Where the user's own configuration shares a connection, and one is open, no second code is asked for.
        if process.run(self.ssh.check(self.destination), timeout=_ANSWER_S, environment=surroundings()).returncode == 0:
            return
        socket = self.directory / "c"
        self.ssh = replace(self.ssh, control_path=str(socket))
        master = subprocess.Popen(
            self.ssh.master(self.destination),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=surroundings(),
        )  # fmt: skip
        self._master = master
        heard = _Heard(master.stderr, self._say if self.ssh.ask else None)
        started = time.monotonic()
        while not socket.exists():
            if master.poll() is not None:
                raise self.unreachable(heard.rest())
            if not self.ssh.ask and time.monotonic() - started > _CONNECT_S:
                raise self.unreachable(f"no connection within {_CONNECT_S:g} s")
            heard.pass_on()
            time.sleep(_LOOK_S)


class _Heard:
    """What a program says on stderr, collected by a thread."""

    def __init__(self, stream: IO[bytes] | None, say: Callable[[str], None] | None) -> None:
        self._lines: list[tuple[float, str]] = []
        self._stream, self._say, self._passed_on = stream, say, 0
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        for line in self._stream or ():
            self._lines.append((time.monotonic(), line.decode("utf-8", "replace").rstrip("\r\n")))

    def pass_on(self) -> None:
        """Say what was heard a moment ago."""
        while self._say and self._passed_on < len(self._lines) and time.monotonic() - self._lines[self._passed_on][0] > _HOLD_S:
            self._say(self._lines[self._passed_on][1])
            self._passed_on += 1

    def rest(self) -> str:
        """Return all that was heard and not said."""
        self._thread.join(timeout=1)
        return "\n".join(line for _, line in self._lines[self._passed_on :])


def stream(argv: Sequence[str], on_line: Callable[[str], None]) -> Finished:
    r"""Run `argv` to its end and hand on each line of its stdout at once; a line ends with `\n` or `\r`.

    Names that are no UTF-8 arrive with surrogates. Returns how the program ended; its stdout is not kept. On Ctrl-C, or whatever
    `on_line` raises, the program gets SIGINT and the time to put its files away.
    """
    with tempfile.TemporaryFile() as errors:
        program = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=surroundings()
        )  # fmt: skip
        try:
            _hand_on(program, on_line)
            code = program.wait()
        except BaseException:
            _end(program, gently=False)
            raise
        errors.seek(0)
        return Finished(tuple(argv), code, "", errors.read().decode("utf-8", "replace"))


def _hand_on(program: subprocess.Popen[bytes], on_line: Callable[[str], None]) -> None:
    assert program.stdout is not None  # noqa: S101 - for the type checker: it was asked for
    left = b""
    with program.stdout as source:
        while new := os.read(source.fileno(), 1 << 16):
            *lines, left = re.split(rb"[\r\n]", left + new)
            for line in lines:
                on_line(line.decode("utf-8", "surrogateescape"))
    if left:
        on_line(left.decode("utf-8", "surrogateescape"))


def _end(program: subprocess.Popen[bytes], *, gently: bool) -> None:
    """Wait for a program that is about to end; help it where it is not."""
    for signal_number in (None if gently else signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if program.poll() is None and signal_number is not None:
            program.send_signal(signal_number)
        try:
            program.wait(timeout=_END_S if signal_number else _END_S / 5)
        except subprocess.TimeoutExpired:
            continue
        return


def surroundings() -> dict[str, str]:
    """Return the environment for ssh and rsync: no orders of the user's to rsync, whose words are read here, in English."""
    environment = {name: value for name, value in process.clean(os.environ).items() if not name.startswith("RSYNC_")}
    return environment | {"LC_ALL": "C"}


def describe(finished: Finished, connection: Connection, *, again: str) -> HpctrainError:
    """Return the error for an rsync that failed; `again` is the command that goes on."""
    said = [line.strip() for line in finished.stderr.splitlines() if line.strip()]
    if finished.returncode < 0:
        said.append(f"rsync was ended by signal {-finished.returncode}")
    lost = finished.returncode in (10, 12, 30, 35, _SSH_FAILED)  # rsync(1), EXIT VALUES: the stream broke, or nothing came for too long
    words = tuple(
        f"  rsync said: {line}" for line in (said if len(said) <= 12 else [*said[:6], f"... {len(said) - 12} more ...", *said[-6:]])
    )
    if any("No space left" in line or "quota exceeded" in line.lower() for line in said):
        where = shell.join(["df", "-h", connection.destination.far_path])
        return HpctrainError(
            f"{connection.destination.login} has no room left", details=words, fix=connection.ssh.typed(connection.destination, where)
        )
    if lost:
        return UnreachableError(
            f"the connection to {connection.destination.login} broke", details=words, fix=f"{again}  # goes on where it stopped"
        )
    what = f"not everything could be sent to {connection.destination}"
    return HpctrainError(what, details=words, fix=f"mend what rsync names, then: {again}")
