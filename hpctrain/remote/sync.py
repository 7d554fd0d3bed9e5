"""Upload a project directory to the cluster: inspect the far side, do a dry run, send.

A small file per project directory in `state_dir()/sync` stores its last destination, and the
identity that marks it on the far side.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.remote import connection as remote
from hpctrain.remote import rsync, rules
from hpctrain.remote.connection import Connection
from hpctrain.remote.rsync import Destination, FarSide, RsyncOutcome, Ssh, printable
from hpctrain.util import files, shell
from hpctrain.util.files import state_dir

#: rsync(1), EXIT VALUES: some files could not be read; some vanished during the transfer.
_SOME_FAILED, _SOME_VANISHED = 23, 24


@dataclass(frozen=True, slots=True)
class KnownProject:
    """The stored state of a project directory.

    Attributes:
        identity: created once; also in the far side's marker.
        destination: HOST:PATH of the last sync; None before the first.
        port: the ssh port of the last sync.
        ssh_config: the ssh configuration file of the last sync.
    """

    identity: str
    destination: str | None = None
    port: int | None = None
    ssh_config: str | None = None


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A requested sync: the project's directory, the destination, and the options."""

    project: Path
    known: KnownProject
    target: Destination
    ssh: Ssh
    delete: bool = False
    adopt: bool = False

    def command(self, *options: str) -> str:
        """Return the command for the same destination, with other options."""
        words = ["hpctrain", "sync", str(self.target)]
        words += ["--port", str(self.ssh.port)] if self.ssh.port is not None else []
        words += ["--ssh-config", self.ssh.config] if self.ssh.config is not None else []
        return shell.join([*words, *options])


def request(
    project: Path,
    target: str | None,
    *,
    port: int | None = None,
    ssh_config: str | None = None,
    delete: bool = False,
    adopt: bool = False,
    ask: bool = False,
) -> SyncRequest:
    """Return the requested sync; without `target`, to the last destination of this directory.

    Args:
        project: the directory.
        target: HOST:PATH.
        port: the port of the ssh server.
        ssh_config: a file that replaces ~/.ssh/config.
        delete: delete files there that no longer exist locally.
        adopt: take over a directory that another project has synced to.
        ask: whether a user at a terminal can enter a password or a code.

    Raises:
        UsageError: there is no project or no destination, or the destination is invalid.
    """
    if project in (Path.home(), Path("/")):
        raise UsageError(
            f"{project} is not a project directory",
            hint="cd into your project, then run: hpctrain sync HOST:PATH",
        )
    known = known_project(project)
    if target is None:
        if known.destination is None:
            raise UsageError(
                "no sync destination set for this directory",
                hint=f"name it: hpctrain sync HOST:/scratch/…/{rsync.plain_name(project.name)}",
            )
        target = known.destination
        port, ssh_config = port or known.port, ssh_config or known.ssh_config
    if ssh_config is not None:
        # Not the resolved file: a symlink to a configuration may point elsewhere later.
        ssh_config = str(Path(ssh_config).parent.resolve() / Path(ssh_config).name)
    where = rsync.parse_destination(target, project=project.name)
    ssh = Ssh(port=port, config=ssh_config, ask=ask)
    return SyncRequest(project, known, where, ssh, delete=delete, adopt=adopt)


def look(request: SyncRequest, connection: Connection, say: Callable[[str], None]) -> FarSide:
    """Return the state of the destination; `say` receives notes.

    Raises:
        HpctrainError: it is not writable, or files in it must not be deleted.
    """
    target, host = request.target, request.target.login
    answer = connection.run(rsync.probe(target))
    far = rsync.read_probe(answer.stdout)
    if far is None:
        printed = (answer.stdout + answer.stderr).strip().splitlines()[:8]
        raise HpctrainError(
            f"{host} did not run a plain command",
            details=tuple(f"  {host} said: {printable(line)}" for line in printed),
            fix=connection.ssh.typed(target, "echo hello"),
            hint="that must print hello, and nothing else",
        )
    if far.noise:
        first = printable(far.noise.strip().partition("\n")[0])
        raise HpctrainError(
            f"your login shell on {host} prints something, which rsync takes for its partner's"
            " words",
            details=(f"  it prints: {first}",),
            hint=(
                "change ~/.bashrc there until this prints nothing:"
                f" {request.ssh.typed(target, 'true')}"
            ),
        )
    if not far.has_rsync:
        raise HpctrainError(
            f"there is no rsync on {host}",
            details=("it is looked for on the PATH of a shell without a terminal",),
            hint=(
                "use your site's node for data transfer, or load rsync in ~/.bashrc there until"
                f" this finds it: {request.ssh.typed(target, 'command -v rsync')}"
            ),
        )
    _refuse_what_is_not_ours(request, far)
    if far.state == "occupied":
        say(
            f"note: {target} has files in it that hpctrain did not send; --delete will not work"
            " there"
        )
    return far


def _refuse_what_is_not_ours(request: SyncRequest, far: FarSide) -> None:
    target = request.target
    if far.is_home:
        raise UsageError(
            f"{target} is your login directory there",
            fix=f"hpctrain sync {target.login}:{shell.quote(request.project.name)}",
        )
    if far.state == "other":
        raise UsageError(f"{target} is not a directory", hint="name another path")
    if not far.writable:
        where = f"{target} cannot be written"
        if far.nearest is not None:
            where = f"{target} cannot be made: {printable(far.nearest)} cannot be written"
        listing = shell.join(["ls", "-ld", far.nearest or target.far_path])
        raise HpctrainError(where, fix=request.ssh.typed(target, listing))
    identity = far.marker.get("project")
    if far.state == "marked" and not request.adopt and identity != request.known.identity:
        machine = far.marker.get("machine", "an unknown machine")
        owner = printable(f"{machine}:{far.marker.get('directory', '?')}")
        raise UsageError(
            f"{target} belongs to another project",
            details=(f"  it was synced from {owner}",),
            hint=(
                "take another path; or, if it is this project, moved or cloned:"
                f" {request.command('--adopt', '--dry-run')}"
            ),
        )
    if far.state == "occupied" and (request.delete or request.adopt):
        what = "nothing is deleted there" if request.delete else "it cannot be taken over"
        raise UsageError(
            f"{target} has files in it and no {rules.MARKER}, so that {what}",
            details=("sync marks directories that were new or empty when it first wrote to them",),
            hint=f"without deleting: {request.command()}; or take a new directory",
        )


def rehearse(request: SyncRequest, connection: Connection, far: FarSide) -> RsyncOutcome:
    """Return what would be sent.

    Raises:
        HpctrainError: rsync failed, or there is nothing to send.
    """
    _write_rules(request.project, far, _rules_file(connection))
    owner = request.known.identity if far.state == "marked" and not request.adopt else None
    if far.state == "missing":
        nothing = connection.directory / "nothing"
        nothing.mkdir()
        target = ["--", "./", f"{nothing}/"]
    else:
        target = rsync.to_far_side(connection.ssh, request.target, project=owner)
    # In our own directory, the dry run also finds locally deleted files, at no extra cost.
    delete = request.delete or owner is not None
    argv = rsync.argv(filter_file=str(_rules_file(connection)), delete=delete, dry_run=True)
    outcome = RsyncOutcome()
    finished = remote.stream([*argv, *target], outcome.read_line)
    if finished.returncode not in (0, _SOME_FAILED, _SOME_VANISHED):
        raise remote.describe(finished, connection, again=request.command())
    if not request.delete:
        outcome.keep_what_is_gone()
    said = [line for line in finished.stderr.splitlines() if line.strip()]
    outcome.notes += [line for line in said if not line.startswith("rsync error:")]
    if outcome.total_files == 0:
        raise HpctrainError(
            "there is nothing here to send", hint="cd into your project, then run: hpctrain sync"
        )
    return outcome


def send(
    request: SyncRequest, connection: Connection, far: FarSide, on_line: Callable[[str], None]
) -> bool:
    """Send the files; return whether any vanished meanwhile. `on_line` receives rsync's lines.

    Raises:
        HpctrainError: rsync failed.
        KeyboardInterrupt: the transfer was interrupted; files already sent are complete, and the
            next call continues.
    """
    owner = None if far.state == "occupied" else request.known.identity
    argv = rsync.argv(
        filter_file=str(_rules_file(connection)), delete=request.delete, dry_run=False
    )
    target = rsync.to_far_side(connection.ssh, request.target, project=owner)
    finished = remote.stream([*argv, *target], on_line)
    if finished.returncode not in (0, _SOME_VANISHED):
        raise remote.describe(finished, connection, again=request.command())
    return finished.returncode == _SOME_VANISHED


def prepare(request: SyncRequest, connection: Connection, far: FarSide) -> None:
    """Create or mark the destination if necessary, and store it for this directory.

    Raises:
        HpctrainError: it cannot be created.
    """
    is_new = far.state in ("missing", "empty")
    if is_new or request.adopt:
        marker = {
            "schema": 1,
            "project": request.known.identity,
            "directory": _as_text(request.project),
            "machine": platform.node(),
        }
        adopt = request.adopt and not is_new
        command = rsync.mark(request.target, json.dumps(marker), adopt=adopt)
        marked = connection.run(command)
        if marked.returncode:
            printed = marked.stderr.strip().splitlines()
            raise HpctrainError(
                f"cannot make {request.target}",
                details=tuple(f"  {request.target.login} said: {line}" for line in printed),
                hint=f"name a path that you may write, or look again: {request.command()}",
            )
    path = _known_file(request.project)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    known = {
        "schema": 1,
        "directory": _as_text(request.project.resolve()),
        "project": request.known.identity,
        "destination": str(request.target),
        "port": request.ssh.port,
        "ssh_config": request.ssh.config,
    }
    files.write_json(path, known)


def _rules_file(connection: Connection) -> Path:
    return connection.directory / "rules"


def _write_rules(project: Path, far: FarSide, path: Path) -> None:
    """Write rsync's filter file: .hpctrainignore, the defaults, and the local environments,
    regardless of their names.
    """
    try:
        ignore = (project / rules.IGNORE_FILE).read_bytes()
    except FileNotFoundError:
        ignore = b""
    patterns = ("*/pyvenv.cfg", "*/conda-meta", "*/*/pyvenv.cfg", "*/*/conda-meta")
    inside = [found.parent for pattern in patterns for found in project.glob(pattern)]
    environments = {str(directory.relative_to(project)) for directory in inside}
    text = rules.filter_rules(
        ignore.decode("utf-8", "surrogateescape"),
        sorted(name for name in environments if name.isprintable()),
        far.environments,
    )
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


def known_project(directory: Path) -> KnownProject:
    """Return the stored state of `directory`, or a new identity."""
    known = files.read_json(_known_file(directory))
    if known is None:
        return KnownProject(uuid.uuid4().hex)
    return KnownProject(known["project"], known["destination"], known["port"], known["ssh_config"])


def _known_file(directory: Path) -> Path:
    name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:24]
    return state_dir() / "sync" / f"{name}.json"


def _as_text(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")
