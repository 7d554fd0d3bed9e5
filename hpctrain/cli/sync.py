"""`hpctrain sync`: bring the project to the cluster."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from hpctrain.cli import sync_words
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.scheduler import remembered, remote
from hpctrain.scheduler.remembered import Remembered
from hpctrain.scheduler.remote import Connection
from hpctrain.sync import commands, destination, rules
from hpctrain.sync.changes import Outcome
from hpctrain.sync.commands import FarSide, Ssh
from hpctrain.sync.destination import Destination

#: rsync(1), EXIT VALUES: some files could not be read; some went away while it looked.
_SOME_FAILED, _SOME_VANISHED = 23, 24
#: In the first lines of every script that hpctrain renders.
_MADE, _HEAD_BYTES = b"\n# made by hpctrain ", 4096


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for: the project's directory, where it goes, and how."""

    project: Path
    known: Remembered
    target: Destination
    ssh: Ssh
    delete: bool
    adopt: bool

    def typed(self, *options: str) -> str:
        """Return the command that asks for the same destination, with other options."""
        words = ["hpctrain", "sync", str(self.target)]
        words += ["--port", str(self.ssh.port)] if self.ssh.port is not None else []
        words += ["--ssh-config", self.ssh.config] if self.ssh.config is not None else []
        return shell.join([*words, *options])


@click.command()
@click.argument("target", required=False, metavar="[HOST:PATH]")
@click.option("--dry-run", is_flag=True, help="Show what would be sent; send nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--delete", is_flag=True, help="Also remove there what is gone here, in a directory that sync has made.")
@click.option("--adopt", is_flag=True, help="Take over a directory that another project, or another machine, has synced to.")
@click.option("--port", type=click.IntRange(1, 65535), help="Of the ssh server; default: what ssh's configuration says.")
@click.option("--ssh-config", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="In place of ~/.ssh/config.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end.")
def command(
    *, target: str | None, dry_run: bool, yes: bool, delete: bool, adopt: bool, port: int | None, ssh_config: str | None, as_json: bool
) -> int:
    """Bring this project to the cluster, by rsync over ssh.

    The current directory goes into the directory PATH on HOST, without what .hpctrainignore and hpctrain leave out. It is first shown
    what would be sent. Without HOST:PATH, the last destination of this directory is used.

    \b
    hpctrain sync leonardo:/leonardo_work/proj_a/sft
    hpctrain sync --delete
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    project = Path.cwd()
    asked = _asked(project, target, port, ssh_config, delete=delete, adopt=adopt)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise UsageError("stdin is no terminal, so that nobody can be asked before files are sent", fix=asked.typed("--yes"))
    remote.require_programs()
    _tell(f"{project} to {asked.target}{'' if target else ' (the last destination of this directory)'}")
    with Connection(asked.target, asked.ssh, _tell) as connection:
        far = _look(asked, connection)
        rehearsed = _rehearse(asked, connection, far)
        sync_words.show(rehearsed, out=dry_run and not as_json)
        if dry_run:
            return _report(asked, rehearsed, rehearsed, dry_run=True, as_json=as_json)
        if rehearsed.changes and not yes and not click.confirm(sync_words.question(rehearsed, asked.target), err=True):
            _tell("nothing was sent")
            return 0
        done = _send(asked, connection, far, rehearsed)
    if done is None:
        _tell(f"interrupted; what is there is whole, and this goes on where it stopped: {asked.typed()}")
        return 130
    return _report(asked, done, rehearsed, dry_run=False, as_json=as_json)


def _report(asked: Asked, done: Outcome, rehearsed: Outcome, *, dry_run: bool, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(sync_words.as_json(done, rehearsed, asked.target, dry_run=dry_run)))
    else:
        click.echo(sync_words.result(done, asked.target, dry_run=dry_run))
    if dry_run:
        _tell(f"next: {asked.typed(*(['--delete'] if asked.delete else []), *(['--adopt'] if asked.adopt else []))}")
    else:
        # Two steps: a command behind `ssh HOST` runs in a shell that reads no profile, mostly without hpctrain on its PATH.
        login = shell.join([*asked.ssh.short_words(), asked.target.ssh_login])
        _tell(f"next: {login}, then there: cd {shell.quote(_for_cd(asked.target))} && hpctrain check")
    return 0


def _asked(project: Path, target: str | None, port: int | None, ssh_config: str | None, *, delete: bool, adopt: bool) -> Asked:
    if project in (Path.home(), Path("/")):
        raise UsageError(f"{project} is no project's directory", fix="cd into your project, then: hpctrain sync HOST:PATH")
    known = remembered.of(project)
    if target is None:
        if known.destination is None:
            raise UsageError(
                "this directory was not synced before, so say where it goes",
                fix=f"hpctrain sync HOST:/scratch/…/{destination.plain(project.name)}",
            )
        target, port, ssh_config = known.destination, port or known.port, ssh_config or known.ssh_config
    # Not the file itself: a symlink to a configuration may lead elsewhere tomorrow.
    config = None if ssh_config is None else str(Path(ssh_config).parent.resolve() / Path(ssh_config).name)
    where = destination.parse(target, project=project.name)
    return Asked(project, known, where, Ssh(port=port, config=config, ask=sys.stdin.isatty()), delete=delete, adopt=adopt)


def _look(asked: Asked, connection: Connection) -> FarSide:
    """Look at the far side, and refuse what must not be written to."""
    target, host = asked.target, asked.target.login
    answer = connection.run(commands.probe(target))
    far = commands.read_probe(answer.stdout)
    if far is None:
        said = (answer.stdout + answer.stderr).strip().splitlines()[:8]
        raise HpctrainError(
            f"{host} did not run a plain command", details=tuple(f"  {host} said: {sync_words.printable(line)}" for line in said),
            fix=f"{connection.ssh.typed(target, 'echo hello')}, until that prints hello",
        )  # fmt: skip
    if far.noise:
        first = sync_words.printable(far.noise.strip().partition("\n")[0])
        raise HpctrainError(
            f"your login shell on {host} prints something, which rsync takes for its partner's words", details=(f"  it says: {first}",),
            fix=f"change ~/.bashrc there until this prints nothing: {asked.ssh.typed(target, 'true')}",
        )  # fmt: skip
    if not far.has_rsync:
        raise HpctrainError(
            f"there is no rsync on {host}", details=("it is looked for on the PATH of a shell without a terminal",),
            fix=f"use your site's node for data transfer, or load rsync in ~/.bashrc there until this finds it: "
            f"{asked.ssh.typed(target, 'command -v rsync')}",
        )  # fmt: skip
    _judge(asked, far)
    return far


def _judge(asked: Asked, far: FarSide) -> None:
    """Refuse what must not be written to, and above all what must not be deleted from."""
    target = asked.target
    if far.is_home:
        raise UsageError(f"{target} is your login directory there", fix=f"hpctrain sync {target.login}:{shell.quote(asked.project.name)}")
    if far.state == "other":
        raise UsageError(f"{target} is no directory", fix="name another path")
    if not far.writable:
        where = (
            f"{target} cannot be written"
            if far.nearest is None
            else f"{target} cannot be made: {sync_words.printable(far.nearest)} cannot be written"
        )
        raise HpctrainError(where, fix=asked.ssh.typed(target, shell.join(["ls", "-ld", far.nearest or target.far_path])))
    if far.state == "marked" and not asked.adopt and far.marker.get("project") != asked.known.project:
        owner = f"{far.marker.get('machine', 'an unknown machine')}:{far.marker.get('directory', '?')}"
        raise UsageError(
            f"{target} belongs to another project", details=(f"  it was synced from {sync_words.printable(owner)}",),
            fix=f"take another path; or, if it is this project, moved or cloned: {asked.typed('--adopt', '--dry-run')}",
        )  # fmt: skip
    if far.state == "occupied" and (asked.delete or asked.adopt):
        what = "nothing is deleted there" if asked.delete else "it cannot be taken over"
        raise UsageError(
            f"{target} has files in it and no {rules.MARKER}, so that {what}",
            details=("sync marks directories that were new or empty when it first wrote to them",),
            fix=f"{asked.typed()}, which deletes nothing; or take a new directory",
        )
    if far.state == "occupied":
        _tell(f"note: {target} has files in it that hpctrain did not send; --delete will not work there")


def _rehearse(asked: Asked, connection: Connection, far: FarSide) -> Outcome:
    """Return what would be sent."""
    nothing = connection.directory / "nothing"
    nothing.mkdir()
    _write_rules(asked.project, far, connection.directory / "rules")
    owner = asked.known.project if far.state == "marked" and not asked.adopt else None
    target = (
        commands.to_nothing(str(nothing)) if far.state == "missing" else commands.to_far_side(connection.ssh, asked.target, project=owner)
    )
    outcome = Outcome()
    # In a directory of ours the trial also finds what is gone here, which costs nothing more.
    delete = asked.delete or owner is not None
    argv = commands.rsync(filter_file=str(connection.directory / "rules"), delete=delete, dry_run=True)
    finished = remote.stream([*argv, *target], lambda line: (outcome.read(line), None)[1])
    if finished.returncode not in (0, _SOME_FAILED, _SOME_VANISHED):
        raise remote.describe(finished, connection, again=asked.typed())
    if not asked.delete:
        outcome.keep_what_is_gone()
    outcome.rendered = _rendered(asked.project, outcome)
    outcome.notes += [line for line in finished.stderr.splitlines() if line.strip() and not line.startswith("rsync error:")]
    if outcome.total_files == 0:
        raise HpctrainError("there is nothing here to send", fix="cd into your project, then: hpctrain sync")
    return outcome


def _rendered(project: Path, outcome: Outcome) -> list[str]:
    """Return the scripts to be sent that hpctrain has made: their --chdir and their logs are paths of this machine."""
    found = []
    for change in outcome.sent:
        if change.path.endswith(".sbatch") and change.target is None:
            try:
                with (project / change.path).open("rb") as file:
                    made = _MADE in file.read(_HEAD_BYTES)
            except OSError:  # it went away, or its name is one that rsync writes in another way
                continue
            found += [change.path] if made else []
    return found


def _send(asked: Asked, connection: Connection, far: FarSide, rehearsed: Outcome) -> Outcome | None:
    """Send, and return what was sent; None when it was interrupted."""
    is_new = far.state in ("missing", "empty")
    if is_new or asked.adopt:
        marked = connection.run(commands.mark(asked.target, _marker(asked), adopt=asked.adopt and not is_new))
        if marked.returncode:
            said = tuple(f"  {asked.target.login} said: {line}" for line in marked.stderr.strip().splitlines())
            raise HpctrainError(
                f"cannot make {asked.target}", details=said, fix=f"name a path that you may write, or look again: {asked.typed()}"
            )
    ssh = asked.ssh
    remembered.keep(asked.project, Remembered(asked.known.project, str(asked.target), ssh.port, ssh.config))
    if not rehearsed.changes:
        return rehearsed
    owner = None if far.state == "occupied" else asked.known.project
    argv = commands.rsync(filter_file=str(connection.directory / "rules"), delete=asked.delete, dry_run=False)
    teller = sync_words.Teller(rehearsed.sent_bytes)
    try:
        finished = remote.stream([*argv, *commands.to_far_side(connection.ssh, asked.target, project=owner)], teller.read)
    except KeyboardInterrupt:
        return None
    finally:
        teller.close()
    if finished.returncode == _SOME_VANISHED:
        _tell("note: some files went away while they were sent; the next sync sends the rest")
    elif finished.returncode:
        raise remote.describe(finished, connection, again=asked.typed())
    return teller.outcome


def _write_rules(project: Path, far: FarSide, path: Path) -> None:
    """Write rsync's filter file: .hpctrainignore, the defaults, and the environments that are here, whatever their names."""
    try:
        ignore = (project / rules.IGNORE_FILE).read_bytes()
    except FileNotFoundError:
        ignore = b""
    inside = [found for depth in ("*", "*/*") for sign in ("pyvenv.cfg", "conda-meta") for found in project.glob(f"{depth}/{sign}")]
    environments = {str(found.parent.relative_to(project)) for found in inside}
    text = rules.filter_rules(
        ignore.decode("utf-8", "surrogateescape"), sorted(name for name in environments if name.isprintable()), far.environments
    )
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


def _for_cd(target: Destination) -> str:
    return target.far_path if target.path.startswith("-") else target.path


def _marker(asked: Asked) -> str:
    import platform

    directory = str(asked.project).encode("utf-8", "replace").decode("utf-8")
    return json.dumps({"schema": 1, "project": asked.known.project, "directory": directory, "machine": platform.node()})


def _tell(line: str) -> None:
    click.echo(line, err=True)
