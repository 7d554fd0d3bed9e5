"""A program on a pseudo-terminal, for tests that look at what its user would see."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from pathlib import Path

import pyte


class Terminal:
    """A program on a pseudo-terminal, and what the terminal shows."""

    def __init__(
        self,
        *words: str,
        columns: int = 80,
        rows: int = 24,
        cwd: Path = Path(),
        **variables: str,
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        self._seen = 0
        self.pid, self._file = pty.fork()
        if self.pid == 0:  # pragma: no cover - the child
            signal.signal(signal.SIGINT, signal.default_int_handler)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.chdir(cwd)
            os.execvpe(words[0], words, {**os.environ, "TERM": "xterm-256color", **variables})  # noqa: S606

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds: float = 0.2) -> bytes:
        """Take what is written within some time; nothing once the program has ended."""
        found = b""
        until = time.monotonic() + seconds
        while select.select([self._file], [], [], max(0.0, until - time.monotonic()))[0]:
            try:
                got = os.read(self._file, 65536)
            except OSError:
                break
            if not got:
                break
            found += got
        self.written += found
        self._stream.feed(found)
        return found

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def shows(self, part: str, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while part not in self.text:
            assert time.monotonic() < end, f"{part!r} is not in\n{self.text}"
            self.read()

    def until(self, words: str, seconds: float = 300) -> None:
        """Read until `words` have been written since the last call."""
        end, wanted = time.monotonic() + seconds, words.encode()
        while wanted not in self.written[self._seen :]:
            assert time.monotonic() < end, f"{words!r} is not in\n{self.written!r}"
            self.read()
        self._seen = self.written.index(wanted, self._seen) + len(wanted)

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def while_only_numbers_change(self, refreshes: int) -> bytes:
        """Return what is written in that many seconds in which no line comes or goes: a busy
        machine's are said for a while.
        """
        end = time.monotonic() + 300
        while time.monotonic() < end:
            before = re.sub(r"\d+", "N", self.text)
            written = self.read(refreshes)
            if written and re.sub(r"\d+", "N", self.text) == before:
                return written
        raise AssertionError(f"lines keep coming and going\n{self.text}")

    def interrupt(self) -> int:
        """Type Ctrl-C and return the exit status."""
        self.type("\x03")
        return self.end()

    def end(self) -> int:
        ended, last = 0, time.monotonic() + 300
        while not ended:
            assert time.monotonic() < last, f"it does not end\n{self.text}"
            self.read()
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        self.read()
        return os.waitstatus_to_exitcode(status)


def on_a_terminal(*words: str, cwd: Path = Path(), **variables: str) -> str:
    """Return what a command that ends well writes to a terminal of 80 columns."""
    terminal = Terminal(*words, cwd=cwd, **variables)
    assert terminal.end() == 0, terminal.text
    return terminal.written.decode().replace("\r\n", "\n")
