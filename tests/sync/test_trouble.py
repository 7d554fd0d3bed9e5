"""`hpctrain sync` when something is in the way: a broken connection, a missing program, a closed
door, and somebody at the terminal.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

#: Each test runs several commands over several ssh sessions.
from tests.cli.terminal import Terminal
from tests.sync.far_side import MARKER, PASSPHRASE, SYSTEM_PATH, Desk, Host, Server, tree
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def slow_rsync(desk: Desk, pid_file: Path) -> None:
    """Let rsync send 4 MB each second, and write down the process that does."""
    real = shutil.which("rsync")
    desk.program(
        "rsync",
        f"case \" $* \" in *' --info=progress2 '*) echo $$ > {pid_file} ;; esac\nexec {real}"
        ' --bwlimit=4m "$@"',
    )


def begun(directory: Path) -> bool:
    """Say whether a part of big.bin has arrived."""
    return any(path.stat().st_size > 2_000_000 for path in directory.glob(".big.bin.*"))


@pytest.mark.parametrize(
    "how", ["rsync killed", "hpctrain interrupted", "hpctrain killed", "connection lost"]
)
def test_an_interrupted_transfer_goes_on(how: str, desk: Desk, far: Host, tmp_path: Path) -> None:
    content = os.urandom(16_000_000)
    desk.write("big.bin", content)
    pid_file = tmp_path / "pid"
    slow_rsync(desk, pid_file)
    work = far.home / "work"
    argv = desk.argv(f"{far.alias}:work", *far.options, "--yes")
    with subprocess.Popen(
        argv,
        cwd=desk.project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as first:
        wait_until(lambda: begun(work))
        if how == "rsync killed":
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        elif how == "connection lost":
            sessions = subprocess.run(
                ["pgrep", "-s", str(first.pid), "-x", "ssh"],
                capture_output=True,
                text=True,
                check=True,
            )
            subprocess.run(
                ["kill", "-KILL", *sessions.stdout.split()], capture_output=True
            )  # one may end with another
        else:
            first.send_signal(signal.SIGINT if how == "hpctrain interrupted" else signal.SIGKILL)
        out, err = first.communicate(timeout=60)
    assert out == b""
    assert (
        first.returncode
        == {
            "rsync killed": 1,
            "hpctrain interrupted": 130,
            "hpctrain killed": -9,
            "connection lost": 3,
        }[how]
    ), err
    if how != "hpctrain killed":
        assert f"hpctrain sync {far.alias}:work".encode() in err
    # The part lies out of sight, under a name that no glob of a script finds, and nothing
    # half-written has the real name.
    wait_until((work / ".hpctrain-partial" / "big.bin").exists)
    assert {path.name for path in work.iterdir()} == {MARKER, ".hpctrain-partial"}
    wait_until(
        lambda: not subprocess.run(["pgrep", "-s", str(first.pid)], capture_output=True).stdout
    )  # nobody is left over

    second = desk.sync("--yes", "--json")
    assert second.code == 0, second.err
    assert second.json["sent"] == 1
    assert second.json["wire_bytes"] < 14_500_000
    assert (work / "big.bin").read_bytes() == content
    assert {path.name for path in work.iterdir()} == {MARKER, "big.bin"}


class TestUnreachable:
    def test_sshd_is_down(
        self, desk: Desk, new_server: Callable[[], Server], tmp_path: Path
    ) -> None:
        server = new_server()
        host = server.host(tmp_path / "home")
        desk.write("train.py")
        assert desk.sync(f"{host.alias}:work", *host.options, "--yes").code == 0
        server.stop()
        said = desk.refused("--yes", code=3)
        assert f"error: cannot reach {host.alias}" in said.err
        assert "Connection refused" in said.err
        assert said.err.splitlines()[-1].startswith(
            f"fix: ssh -F {tmp_path}".replace("-F ", "-F '")
        )

    def test_no_such_host(self, desk: Desk, far: Host) -> None:
        desk.write("train.py")
        said = desk.refused("no-such-host.invalid:work", *far.options, "--yes", code=3)
        assert "Could not resolve hostname" in said.err

    def test_a_key_that_is_not_taken(
        self, desk: Desk, new_server: Callable[[], Server], tmp_path: Path
    ) -> None:
        server = new_server()
        host = server.host(tmp_path / "home")
        (server.directory / "authorized_keys").write_text("")
        desk.write("train.py")
        said = desk.refused(f"{host.alias}:work", *host.options, "--yes", code=3)
        assert "Permission denied" in said.err
        assert "stdin is not a terminal" in said.err

    def test_a_host_key_that_changed(
        self, desk: Desk, far: Host, new_server: Callable[[], Server], tmp_path: Path
    ) -> None:
        server = new_server()
        host = server.host(tmp_path / "home")
        other = (far.server.directory / "host_key.pub").read_text()
        (server.directory / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {other}")
        desk.write("train.py")
        said = desk.refused(f"{host.alias}:work", *host.options, "--yes", code=3)
        assert "Host key verification failed" in said.err

    def test_a_port_that_does_not_answer(self, desk: Desk, far: Host) -> None:
        desk.write("train.py")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            said = desk.refused(
                f"{far.alias}:work",
                *far.options,
                "--yes",
                "--port",
                str(free.getsockname()[1]),
                code=3,
            )
        assert "Connection refused" in said.err

    def test_the_port_is_remembered(self, desk: Desk, far: Host) -> None:
        text = far.server.config.read_text().replace(f" Port {far.server.port}", " Port 9")
        config = far.server.directory / "it's another config"
        config.write_text(text)
        desk.write("train.py")
        said = desk.sync(
            f"{far.alias}:work",
            "--ssh-config",
            str(config),
            "--port",
            str(far.server.port),
            "--yes",
        )
        assert said.code == 0, said.err
        assert desk.sync("--yes").code == 0


def test_no_rsync_there(desk: Desk, far: Host, tmp_path: Path) -> None:
    programs = tmp_path / "few"
    programs.mkdir()
    for name in ("sh", "ls", "cat", "head", "dirname", "mkdir", "grep", "pwd"):
        if real := shutil.which(name, path=SYSTEM_PATH):
            (programs / name).symlink_to(real)
    host = far.server.host(tmp_path / "bare", path=str(programs))
    desk.write("train.py")
    said = desk.refused(f"{host.alias}:work", *host.options, "--yes", code=1)
    assert f"there is no rsync on {host.alias}" in said.err
    assert list(host.home.iterdir()) == []


@pytest.mark.parametrize("absent", ["rsync", "ssh"])
def test_a_program_is_missing_here(
    absent: str, desk: Desk, far: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "few").mkdir()
    for name in {"rsync", "ssh"} - {absent}:
        (tmp_path / "few" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path / "few"))
    desk.write("train.py")
    said = desk.refused(f"{far.alias}:work", *far.options, "--yes", code=1)
    assert f"{absent} is not on PATH of this machine" in said.err


@pytest.mark.parametrize(
    "version",
    [
        "rsync  version 2.6.9  protocol version 29",
        "rsync  version 3.0.9  protocol",
        "openrsync: protocol version 29\nrsync version 3.2 compatible",
    ],
)
def test_an_rsync_that_is_too_old(version: str, desk: Desk, far: Host) -> None:
    desk.program("rsync", f"printf '%s\\n' '{version}'")
    desk.write("train.py")
    said = desk.refused(f"{far.alias}:work", *far.options, "--yes", code=1)
    assert version.partition("\n")[0] in said.err


def test_a_destination_that_cannot_be_written(desk: Desk, far: Host, tmp_path: Path) -> None:
    # Root may write anywhere, unless the capability is taken from it.
    shell = "sh" if os.geteuid() else "setpriv --bounding-set=-dac_override,-dac_read_search sh"
    host = far.server.host(tmp_path / "guarded", shell=shell)
    desk.write("train.py")
    (host.home / "shut").mkdir(mode=0o555)
    said = desk.refused(f"{host.alias}:shut", *host.options, "--yes", code=1)
    assert f"{host.alias}:shut cannot be written" in said.err
    said = desk.refused(f"{host.alias}:shut/new/deep", *host.options, "--yes", code=1)
    assert f"{host.alias}:shut/new/deep cannot be made: ./shut cannot be written" in said.err
    (host.home / "file").write_text("x")
    desk.refused(f"{host.alias}:file", *host.options, "--yes", code=2)
    desk.refused(f"{host.alias}:file/below", *host.options, "--yes", code=1)
    # A part that cannot be written: the rest goes over, and rsync's own words are shown.
    assert desk.sync(f"{host.alias}:open", *host.options, "--yes").code == 0
    (host.home / "open" / "data").mkdir(mode=0o555)
    desk.write("data/x")
    desk.write("more.py")
    said = desk.refused("--yes", code=1)
    assert "Permission denied" in said.err
    assert tree(host.home / "open") == {"train.py", "more.py"}


def test_a_file_that_cannot_be_read_here(desk: Desk, far: Host) -> None:
    if os.geteuid() == 0:
        desk.program(
            "rsync",
            f"exec setpriv --bounding-set=-dac_override,-dac_read_search {shutil.which('rsync')}"
            ' "$@"',
        )
    desk.write("train.py")
    desk.write("closed.py").chmod(0)
    said = desk.refused(f"{far.alias}:work", *far.options, "--yes", code=1)
    assert "closed.py" in said.err
    assert tree(far.home / "work") == {"train.py"}


def test_a_shell_that_talks(desk: Desk, far: Host, tmp_path: Path) -> None:
    host = far.server.host(tmp_path / "chatty", before="echo Welcome to the cluster;")
    desk.write("train.py")
    said = desk.refused(f"{host.alias}:work", *host.options, "--yes", code=1)
    assert "Welcome to the cluster" in said.err
    assert list(host.home.iterdir()) == []


def test_an_account_that_runs_no_commands(desk: Desk, far: Host, tmp_path: Path) -> None:
    host = far.server.host(
        tmp_path / "sftp", before="cat >/dev/null & echo This account is for sftp only; exit 1;"
    )
    desk.write("train.py")
    said = desk.refused(f"{host.alias}:work", *host.options, "--yes", code=1)
    assert "This account is for sftp only" in said.err or "cannot reach" in said.err


def test_the_home_directory_is_no_project(
    desk: Desk, far: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.write("train.py")
    desk.refused(f"{far.alias}:{far.home}", *far.options, "--yes", code=2)
    assert list(far.home.iterdir()) == []
    monkeypatch.setenv("HOME", str(desk.project))
    assert (
        "is not a project directory"
        in desk.refused(f"{far.alias}:work", *far.options, "--yes", code=2).err
    )


def test_rsync_variables_of_the_user_change_nothing(
    desk: Desk, far: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSYNC_RSH", "/nowhere/ssh")
    monkeypatch.setenv("RSYNC_PARTIAL_DIR", "elsewhere")
    desk.write("train.py")
    assert desk.sync(f"{far.alias}:work", *far.options, "--yes").code == 0


class TestAtATerminal:
    def test_it_asks_for_the_passphrase_once_then_for_consent(
        self, desk: Desk, far: Host, tmp_path: Path
    ) -> None:
        host = far.server.host(tmp_path / "locked", passphrase=PASSPHRASE, known=False)
        desk.write("train.py")
        before = far.server.logins()
        terminal = Terminal(*desk.argv(f"{host.alias}:work", *host.options), cwd=desk.project)
        terminal.until("(yes/no/[fingerprint])?")
        terminal.type("yes\n")
        terminal.until("Enter passphrase for key")
        terminal.type(f"{PASSPHRASE}\n")
        terminal.until(f"send 1 file, 8 B to {host.alias}:work? [y/N]: ")
        assert not (host.home / "work").exists()
        terminal.type("y\n")
        assert terminal.end() == 0
        assert terminal.written.decode().count("Enter passphrase") == 1
        assert far.server.logins() == before + 1
        assert tree(host.home / "work") == {"train.py"}
        assert f"sent 1 file, 8 B to {host.alias}:work" in terminal.written.decode()

    def test_no_is_no(self, desk: Desk, far: Host) -> None:
        desk.write("train.py")
        terminal = Terminal(*desk.argv(f"{far.alias}:work", *far.options), cwd=desk.project)
        terminal.until("[y/N]: ")
        terminal.type("\n")
        assert terminal.end() == 0
        assert "nothing was sent" in terminal.written.decode()
        assert list(far.home.iterdir()) == []

    def test_a_connection_that_is_open_is_used(self, desk: Desk, far: Host, tmp_path: Path) -> None:
        with far.server.config.open("a") as config:
            config.write(
                f"Host {far.alias}\n ControlMaster auto\n ControlPath"
                f" /tmp/hpctrain-test-{os.getpid()}-%C\n"
            )
        ssh = ["ssh", "-F", str(far.server.config)]
        subprocess.run(
            [*ssh, "-o", "ControlPersist=60", "-fN", far.alias],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            before = far.server.logins()
            desk.write("train.py")
            assert desk.sync(f"{far.alias}:work", *far.options, "--yes").code == 0
            assert far.server.logins() == before
            assert (
                subprocess.run([*ssh, "-O", "check", far.alias], capture_output=True).returncode
                == 0
            )  # and it stays open
        finally:
            subprocess.run([*ssh, "-O", "exit", far.alias], capture_output=True)

    def test_the_progress_is_one_line_and_ctrl_c_keeps_the_part(
        self, desk: Desk, far: Host, tmp_path: Path
    ) -> None:
        desk.write("big.bin", os.urandom(16_000_000))
        slow_rsync(desk, tmp_path / "pid")
        terminal = Terminal(
            *desk.argv(f"{far.alias}:work", *far.options, "--yes"), cwd=desk.project
        )
        terminal.until("B/s")
        wait_until(lambda: begun(far.home / "work"))
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "interrupted; complete files stay" in terminal.written.decode()
        wait_until((far.home / "work/.hpctrain-partial/big.bin").exists)
        progress = terminal.written.decode()[terminal.written.decode().index("B/s") :].split(
            "interrupted"
        )[0]
        assert "\n" not in progress.rstrip()
        assert "\x1b" not in terminal.written.decode()
        assert all(len(line) < 80 for line in progress.split("\r"))
