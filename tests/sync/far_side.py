"""A real sshd on loopback with its own keys, port and configuration, and the desk from which it is
reached.

Each Host is one alias of one ssh configuration. What tells hosts apart is the command that its key
forces: it sets the login directory and the PATH, and may print a greeting or lack rsync, as sites
do.
"""

from __future__ import annotations

import fcntl
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cli import conftest
from tests.cli.conftest import Said
from tests.waiting import wait_until

PACKAGES = {
    "rsync": "rsync",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
SERVER = ("rsync", "ssh", "ssh-keygen", "sshd")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tree(directory: Path) -> set[str]:
    """Return the files below a directory."""
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if not path.is_dir() or path.is_symlink()
    }


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def missing_programs(*names: str) -> str | None:
    """Install what is missing where that does no harm, and return what is missing still, in words.

    Root installs by apt-get, as the Slurm lab does; but not where systemd runs, unless the tests
    are required: the package would start an ssh server for all the world.
    """
    if sys.platform == "win32":
        return "there is no sshd on Windows"
    with Path(f"/tmp/hpctrain-apt-{os.geteuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test workers want the same
        missing = [name for name in names if program(name) is None]
        packages = sorted({PACKAGES[name] for name in missing})
        required = os.environ.get("CI") or os.environ.get("HPCTRAIN_REQUIRE_LAB")
        if (
            missing
            and os.geteuid() == 0
            and program("apt-get")
            and (required or not Path("/run/systemd/system").exists())
        ):
            install = [
                "apt-get",
                "-o",
                "DPkg::Lock::Timeout=120",
                "install",
                "--yes",
                "--quiet",
                "--no-install-recommends",
                *packages,
            ]
            for argv in (install, ["apt-get", "update", "--quiet"], install):
                done = subprocess.run(
                    argv,
                    env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr,
                    timeout=600,
                )
                if argv is install and done.returncode == 0:
                    break
        missing = [name for name in names if program(name) is None]
    return f"no {', '.join(missing)}: apt-get install {' '.join(packages)}" if missing else None


def free_port() -> int:
    """Return a port that no outgoing connection takes before sshd does: they get lower ones."""
    for port in random.sample(range(61000, 65536), 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no port is free")


class Server:
    """sshd, from `with` to its end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "ssh config"
        self._count = 0
        self._daemon: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def __enter__(self) -> Server:
        self.key("host_key")
        known = (self.directory / "host_key.pub").read_text()
        (self.directory / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {known}")
        (self.directory / "authorized_keys").touch(mode=0o600)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(
                mode=0o755, exist_ok=True
            )  # sshd's own, which its package makes at boot
        here = self.directory
        (here / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey"
            f" {here}/host_key\nAuthorizedKeysFile {here}/authorized_keys\nPidFile"
            " none\nStrictModes no\nUsePAM no\nPasswordAuthentication"
            " no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel INFO\n"
        )
        self.config.touch()
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        sshd = program("sshd")
        assert sshd is not None
        argv = [sshd, "-D", "-e", "-f", str(self.directory / "sshd_config")]
        with (self.directory / "sshd.log").open("ab") as log:
            self._daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._listens, "sshd listens")

    def _listens(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, (self.directory / "sshd.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(timeout=600)
            self._daemon = None

    def key(self, name: str) -> Path:
        path = self.directory / name
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path],
            check=True,
        )
        return path

    def host(self, home: Path, *, before: str = "") -> Host:
        """Return a new alias with this login directory; `before` is shell that runs at each login."""
        home.mkdir(parents=True, exist_ok=True)
        self._count += 1
        alias = f"far{self._count}"
        key = self.key(alias)
        words = (
            f"cd {shlex.quote(str(home))}; HOME=$PWD; PATH={SYSTEM_PATH};"
            f" export HOME PATH; {before} exec sh -c "
        )
        forced = (words + '"$SSH_ORIGINAL_COMMAND"').replace("\\", "\\\\").replace('"', '\\"')
        with (self.directory / "authorized_keys").open("a") as keys:
            keys.write(f'command="{forced}" {key.with_suffix(".pub").read_text()}')
        with self.config.open("a") as config:
            config.write(
                f'Host {alias}\n HostName 127.0.0.1\n Port {self.port}\n IdentityFile "{key}"\n'
                f' IdentitiesOnly yes\n IdentityAgent none\n UserKnownHostsFile "{self.directory}/known_hosts"\n'
                " GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking ask\n"
            )
        return Host(self, alias, home)


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that ssh knows as `alias`; its files are here."""

    server: Server
    alias: str
    home: Path


class Desk(conftest.Desk):
    """The project's directory, and the commands that are typed there, each in a process of its own,
    without a terminal.
    """

    def sync(self, *words: str) -> Said:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("hpctrain")), "sync", *words],
            cwd=self.directory,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            timeout=600,
        )
        said = Said(
            done.returncode,
            done.stdout.decode("utf-8", "surrogateescape"),
            done.stderr.decode("utf-8", "surrogateescape"),
        )
        assert "Traceback" not in said.err
        assert "this is a mistake in hpctrain" not in said.err
        return said

    def refused(self, *words: str, code: int = 2) -> Said:
        """Type a command that must fail in the style of the house."""
        said = self.sync(*words)
        assert said.code == code, said
        assert any(line.startswith("error: ") for line in said.lines), said.err
        assert said.lines[-1].startswith(("fix: ", "hint: ")), said.err
        assert said.out == ""
        return said
