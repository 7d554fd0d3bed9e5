"""The server of warm_start.py, one for each worker of pytest: a Python with a training's libraries,
which forks.

    python warm_server.py SOCKET

writes a line as soon as it listens, and ends when its standard input does. The child of a client
that is gone is killed.
"""

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

MODULES = (
    "datasets",
    "peft",
    "torch.distributed.run",
    "transformers.models.llama.modeling_llama",
    "trl.trainer.sft_trainer",
    "hpctrain.training.classify",
    "hpctrain.training.loop",
    "hpctrain.training.sft",
)


def become(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the program that is asked for; in the child, from whose start on there is nothing of the
    server's but what it imported.
    """
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.closerange(3, 256)
    # The server's own may be files, in which a place can be looked up.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(each, signal.SIG_IGN if each in asked["ignored"] else signal.SIG_DFL)
    signal.signal(
        signal.SIGINT,
        signal.SIG_IGN if signal.SIGINT in asked["ignored"] else signal.default_int_handler,
    )
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None
    gc.unfreeze()
    code: object = 0
    first, *words = asked["words"]
    try:
        if first == "-m":
            sys.argv, sys.path[0] = words, asked["directory"]
            sys.modules.pop(words[0], None)  # it is run as __main__, not imported
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv, sys.path[0] = ["-c", *words[1:]], asked["directory"]
            sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(words[0], "<string>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102  # what `python -c` does
        else:
            sys.argv, sys.path[0] = [first, *words], str(Path(first).resolve().parent)
            runpy.run_path(first, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def received(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    streams = array.array("i")
    size, more, _, _ = client.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    streams.frombytes(more[0][2])
    with client.makefile("rb") as file:
        return json.loads(file.read(int.from_bytes(size, "big"))), streams.tolist()


def kill(child: int) -> None:
    """Kill a child that was not waited for yet, and what it has started: a launcher's processes, a
    data loader's workers.
    """
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet
        os.kill(child, signal.SIGKILL)


class Server:
    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.children: dict[int, socket.socket] = {}
        self.woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector = selectors.DefaultSelector()
        for each in (0, self.woken, listener):
            self.selector.register(each, selectors.EVENT_READ)

    def serve(self) -> None:
        """Fork for who comes, until standard input ends."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj == 0:
                    return self.stop()
                if key.fileobj == self.woken:
                    os.read(self.woken, 1024)
                    self.bury()
                elif key.fileobj is self.listener:
                    self.fork()
                elif key.data in self.children:  # nothing comes from a client but its end
                    kill(key.data)
                    self.selector.unregister(key.fileobj)

    def fork(self) -> None:
        client, _ = self.listener.accept()
        try:
            asked, streams = received(client)
        except (OSError, ValueError, IndexError):  # killed before it had said what it wants
            client.close()
            return
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            become(asked, streams)
        for each in streams:
            os.close(each)
        self.children[child] = client
        self.selector.register(client, selectors.EVENT_READ, child)
        with contextlib.suppress(OSError):  # killed meanwhile: its end is read next
            client.sendall(b"%d\n" % child)

    def bury(self) -> None:
        for child in list(self.children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                client = self.children.pop(child)
                try:
                    self.selector.unregister(client)
                    client.sendall(b"%d\n" % status)
                except (KeyError, OSError):  # gone before
                    pass
                client.close()

    def stop(self) -> None:
        for child in self.children:
            kill(child)


def main() -> None:
    from hpctrain.training import entry_point

    os.environ.update(entry_point.OFFLINE)  # as a training does before it imports anything
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(sys.argv[1])
        listener.listen(16)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        Server(listener).serve()


if __name__ == "__main__":
    main()
