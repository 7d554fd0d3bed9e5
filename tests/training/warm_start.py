"""Starts a Python program in a process that has imported torch, transformers and TRL already: those
five seconds are no test's subject.

    python -S warm_start.py [-u] -m MODULE WORD... | -c CODE WORD... | FILE WORD...

asks the server (warm_server.py) at the socket WARM_START to fork. The child gets this process's
words, variables, directory, ignored signals and standard streams; this process hands signals on to
it, and ends as it ends. Where there is no server, or where a variable that the libraries read while
they are imported is not the server's, this process becomes that Python itself.
"""

import array
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

SOCKET, EARLY = "WARM_START", "WARM_EARLY"
#: Such variables may be read while the libraries are imported, but for the second row's:
#: torchrun's, and what is read when it is used.
_EARLY = (
    "OMP",
    "MKL",
    "CUDA",
    "HF_",
    "TRANSFORMERS",
    "PYTHON",
    "PYTORCH",
    "TORCH",
    "LD_",
    "ACCELERATE",
    "TRL",
    "BNB",
    "TOKENIZERS",
)
_LATE = (
    *("TORCHELASTIC_", "TORCH_NCCL_", "PYTHON_EXEC", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
    *("HF_HOME", "TORCHINDUCTOR_CACHE_DIR"),
    "HF_DATASETS_OFFLINE",  # of test_trackers.py, whose training loads no dataset
)
_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def early(environment: Mapping[str, str]) -> str:
    return json.dumps(
        {
            name: environment[name]
            for name in sorted(environment)
            if name.startswith(_EARLY) and not name.startswith(_LATE)
        }
    )


def be_python() -> NoReturn:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606


def main() -> NoReturn:
    words = sys.argv[2:] if sys.argv[1] == "-u" else sys.argv[1:]
    place = os.environ.get(SOCKET)
    if place is None or os.environ[EARLY] != early(os.environ):
        be_python()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        try:
            server.connect(place)
        except OSError:  # the server has been killed: it costs time, and nothing else
            be_python()
        ignored = [int(each) for each in _HANDED_ON if signal.getsignal(each) == signal.SIG_IGN]
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
        asked = {
            "words": words,
            "environment": dict(os.environ),
            "directory": str(Path.cwd()),
            "ignored": ignored,
        }
        text = json.dumps(asked).encode()
        server.sendmsg(
            [len(text).to_bytes(8, "big")],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))],
        )
        server.sendall(text)
        answers = server.makefile("r")
        child = int(answers.readline())
        for each in set(_HANDED_ON) - set(ignored):
            signal.signal(
                each, lambda number, _: os.kill(child, number)
            )  # not yet waited for: its number is no other's
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
        code = os.waitstatus_to_exitcode(int(answers.readline()))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
