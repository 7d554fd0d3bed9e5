"""`hpctrain sync` with a real sshd on loopback and the real rsync."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sync.far_side import MARKER, Desk, Host, tree

#: Each test runs several commands over several ssh sessions.
pytestmark = pytest.mark.slow


def test_first_and_second_sync(desk: Desk, far: Host) -> None:
    desk.write("train.py", "print('trained')\n")
    desk.write("data/rows.jsonl", "{}\n" * 1000)
    first = desk.sync(f"{far.alias}:work/sft", *far.options, "--yes", "--json")
    assert first.code == 0, first.err
    assert first.json["sent"] == 2
    assert first.json["bytes"] == 17 + 3000
    assert first.json["destination"] == f"{far.alias}:work/sft"
    assert first.json["deleted"] == []
    assert tree(far.home / "work" / "sft") == {"train.py", "data/rows.jsonl"}
    assert (far.home / "work/sft/train.py").read_text() == "print('trained')\n"

    second = desk.sync("--yes", "--json")  # the destination and the options of ssh are remembered
    assert second.code == 0, second.err
    assert (second.json["sent"], second.json["bytes"], second.json["wire_bytes"]) == (0, 0, 0)
    assert "the last destination" in second.err

    desk.write("train.py", "print('trained better')\n")
    third = desk.sync("--yes")
    assert third.out == f"sent 1 file, 24 B to {far.alias}:work/sft\n"
    assert "sent train.py\n" in third.err
    assert "rows.jsonl" not in third.err


def test_the_next_command_works(desk: Desk, far: Host) -> None:
    desk.write("train.py")
    path = "my $(touch canary) 'work'"
    said = desk.sync(f"{far.alias}:{path}", *far.options, "--yes")
    login, _, there = said.err.splitlines()[-1].removeprefix("next: ").partition(", then there: ")
    assert there.endswith(" && hpctrain check")
    # What a person does at the prompt: log in, and type the rest there.
    typed = there.replace("hpctrain check", "ls -a")
    shown = subprocess.run(
        [*shlex.split(login), "bash", "-s"], input=typed, capture_output=True, text=True, check=True
    )
    assert MARKER in shown.stdout.splitlines()
    assert not list(far.home.parent.rglob("canary"))


def test_a_dry_run_shows_and_sends_nothing(desk: Desk, far: Host) -> None:
    for number in range(25):
        desk.write(f"data/{number:02}")
    desk.write("logs/out")
    said = desk.sync(f"{far.alias}:work", *far.options, "--dry-run")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == "the project: 25 files, 200 B"
    assert "left out: logs/" in lines
    assert "new: 25 files, 200 B" in lines
    assert "  data/19" in lines
    assert "  data/20" not in lines
    assert "  and 5 more" in lines
    assert lines[-1] == f"would send 25 files, 200 B to {far.alias}:work"
    assert list(far.home.iterdir()) == []
    assert desk.refused(code=2).err.startswith("error: no sync destination set")


def test_without_a_terminal_it_wants_yes(desk: Desk, far: Host) -> None:
    desk.write("train.py")
    before = far.server.logins()
    said = desk.refused(f"{far.alias}:work", *far.options, code=2)
    assert said.err.splitlines()[-1].endswith("--yes")
    assert far.server.logins() == before
    assert list(far.home.iterdir()) == []


def test_ignore_rules_and_secrets(desk: Desk, far: Host) -> None:
    for name in (
        "train.py",
        "notes/a.txt",
        "notes/keep.txt",
        "logs/out",
        ".env",
        "certs/site.pem",
        ".git/HEAD",
        "myenv/pyvenv.cfg",
        "myenv/bin/x",
    ):
        desk.write(name)
    desk.write(".hpctrainignore", "*.txt\n!keep.txt\n")
    said = desk.sync(f"{far.alias}:work", *far.options, "--yes", "--json")
    assert said.code == 0, said.err
    assert tree(far.home / "work") == {"train.py", "notes/keep.txt", ".hpctrainignore"}
    assert sorted(said.json["secrets_left_out"]) == [".env", "certs/site.pem"]
    assert "look like those of secrets: " in said.err


ODD_NAMES = (
    "sp ace",
    "'quote'",
    '"double"',
    "$(touch canary)",
    "`touch canary`",
    "; touch canary;",
    "-rf",
    "--delete",
    "ünïcödé",
    "#hash",
    "!bang",
    "a\\b",
    "*",
    "[x]",
    "new\nline",
    "tab\there",
    "trailing ",
    " -> arrow",
    "~",
    "&",
    "|",
    "a:b",
    "C:\\x",
)


def test_names_arrive_as_they_are(desk: Desk, far: Host) -> None:
    for name in ODD_NAMES:
        desk.write(name)
        desk.write(f"{name} dir/inside")
    (desk.project / os.fsdecode(b"no utf-8 \xff")).write_text("x")
    said = desk.sync(f"{far.alias}:work", *far.options, "--yes", "--json")
    assert said.code == 0, said.err
    assert said.json["sent"] == 2 * len(ODD_NAMES) + 1
    assert tree(far.home / "work") == tree(desk.project)
    assert not list(desk.project.parent.rglob("canary"))
    assert desk.sync("--yes", "--json").json["sent"] == 0


#: Those that a destination's path may have; control characters, variables and ~ are refused before.
ODD_PATHS = [name for name in ODD_NAMES if name.isprintable() and not name.startswith(("~", "$"))]

ALL_PATHS = "/".join(["up", *ODD_PATHS, "$(touch canary)"])


@pytest.mark.parametrize(
    "path",
    ["-rf", "; touch canary;", "`touch canary`", "*", "!bang", "a\\b", "trailing ", ALL_PATHS],
)
def test_a_path_is_a_name_and_nothing_else(path: str, desk: Desk, far: Host) -> None:
    desk.write("train.py")
    said = desk.sync("--yes", *far.options, "--", f"{far.alias}:{path}")
    assert said.code == 0, said.err
    assert tree(far.home) == {f"{path}/train.py", f"{path}/{MARKER}"}
    assert not list(desk.project.parent.rglob("canary"))
    assert desk.sync("--yes", "--delete", "--json").json["sent"] == 0
    assert tree(far.home) == {f"{path}/train.py", f"{path}/{MARKER}"}


@pytest.mark.parametrize(
    "host",
    [
        "-oProxyCommand=touch canary",
        "x;touch canary",
        "$(touch canary)",
        "x -oProxyCommand=touch\tcanary",
        "`touch canary`",
    ],
)
def test_a_host_is_a_name_and_nothing_else(host: str, desk: Desk, far: Host) -> None:
    desk.write("train.py")
    desk.refused("--yes", *far.options, "--", f"{host}:work", code=2)
    assert not list(desk.project.parent.rglob("canary"))


@pytest.mark.usefixtures("_tcsh")
@pytest.mark.parametrize("shell", ["bash", "dash", "tcsh", *filter(shutil.which, ("fish", "zsh"))])
def test_the_login_shell_there_may_be_any(
    shell: str, desk: Desk, far: Host, tmp_path: Path
) -> None:
    host = far.server.host(tmp_path / shell, shell=shell)
    desk.write("train.py")
    path = "it's a $HOME `x` !y"
    assert desk.sync(f"{host.alias}:{path}", *host.options, "--yes").code == 0
    assert desk.sync("--yes", "--delete").code == 0
    assert tree(host.home / path) == {"train.py"}


class TestDelete:
    def test_what_is_gone_here_goes_there(self, desk: Desk, far: Host) -> None:
        for name in ("train.py", "old.py", "olddir/a", "olddir/b"):
            desk.write(name)
        assert desk.sync(f"{far.alias}:work", *far.options, "--yes").code == 0
        (desk.project / "old.py").unlink()
        shutil.rmtree(desk.project / "olddir")
        assert desk.sync("--yes").code == 0
        assert tree(far.home / "work") == {"train.py", "old.py", "olddir/a", "olddir/b"}
        shown = desk.sync("--delete", "--dry-run")
        assert "  old.py" in shown.out.splitlines()
        assert tree(far.home / "work") == {"train.py", "old.py", "olddir/a", "olddir/b"}
        said = desk.sync("--delete", "--yes", "--json")
        assert sorted(said.json["deleted"]) == ["old.py", "olddir/", "olddir/a", "olddir/b"]
        assert tree(far.home / "work") == {"train.py"}
        assert (far.home / "work" / MARKER).exists()

    def test_what_was_made_there_stays_there(self, desk: Desk, far: Host) -> None:
        desk.write("train.py")
        desk.write("logs/here.log")
        assert desk.sync(f"{far.alias}:work", *far.options, "--yes").code == 0
        made = (
            "logs/out.log",
            "runs/a/state.json",
            "out/checkpoint-500/model.bin",
            ".env",
            "myenv/pyvenv.cfg",
            "myenv/bin/python",
            ".venv/x",
            "sft.sbatch",
            "slurm-1.out",
            "wandb/x",
            "pkg/__pycache__/x.pyc",
        )
        for name in made:
            (far.home / "work" / name).parent.mkdir(parents=True, exist_ok=True)
            (far.home / "work" / name).write_text("there")
        (far.home / "work" / "extra.py").write_text("there")
        said = desk.sync("--delete", "--yes", "--json")
        assert said.code == 0, said.err
        assert said.json["deleted"] == ["extra.py"]
        assert tree(far.home / "work") == {"train.py", *made}
        # Not even where the project sends its own again.
        desk.write(".hpctrainignore", "!/logs/\n!checkpoint-*/\n")
        assert desk.sync("--delete", "--yes", "--json").json["deleted"] == []
        assert tree(far.home / "work") == {"train.py", "logs/here.log", ".hpctrainignore", *made}

    def test_a_directory_of_somebody_else_is_not_touched(self, desk: Desk, far: Host) -> None:
        desk.write("train.py")
        (far.home / "theirs").mkdir()
        (far.home / "theirs" / "thesis.tex").write_text("precious")
        said = desk.refused(f"{far.alias}:theirs", *far.options, "--delete", "--yes", code=2)
        assert "nothing is deleted there" in said.err
        assert tree(far.home / "theirs") == {"thesis.tex"}
        desk.refused(f"{far.alias}:theirs", *far.options, "--adopt", "--yes", code=2)
        said = desk.sync(f"{far.alias}:theirs", *far.options, "--yes")
        assert said.code == 0
        assert "note: " in said.err
        assert not (far.home / "theirs" / MARKER).exists()
        desk.refused("--delete", "--yes", code=2)
        assert tree(far.home / "theirs") == {"thesis.tex", "train.py"}

    def test_the_directory_of_another_project_is_refused_until_it_is_adopted(
        self, desk: Desk, far: Host, tmp_path: Path
    ) -> None:
        desk.write("train.py")
        assert desk.sync(f"{far.alias}:work", *far.options, "--yes").code == 0
        desk.project = desk.project.rename(tmp_path / "moved")
        desk.write("other.py")
        for more in ((), ("--delete",), ("--dry-run",)):
            said = desk.refused(f"{far.alias}:work", *far.options, "--yes", *more, code=2)
            assert f"{tmp_path}/project" in said.err
        assert tree(far.home / "work") == {"train.py"}
        (desk.project / "train.py").unlink()
        assert desk.sync(f"{far.alias}:work", *far.options, "--adopt", "--dry-run").code == 0
        desk.refused(f"{far.alias}:work", *far.options, "--yes", code=2)
        assert (
            desk.sync(f"{far.alias}:work", *far.options, "--adopt", "--delete", "--yes").code == 0
        )
        assert tree(far.home / "work") == {"other.py"}
        assert desk.sync("--delete", "--yes").code == 0

    @pytest.mark.parametrize("marker", ["", "no json", "[]", '{"project": 3}', "{}"])
    def test_a_marker_that_says_nothing_is_not_ours(
        self, marker: str, desk: Desk, far: Host
    ) -> None:
        desk.write("train.py")
        (far.home / "work").mkdir()
        (far.home / "work" / MARKER).write_text(marker)
        (far.home / "work" / "thesis.tex").write_text("precious")
        desk.refused(f"{far.alias}:work", *far.options, "--delete", "--yes", code=2)
        assert tree(far.home / "work") == {"thesis.tex"}

    def test_the_marker_is_read_again_just_before(self, desk: Desk, far: Host) -> None:
        desk.write("train.py")
        assert desk.sync(f"{far.alias}:work", *far.options, "--yes").code == 0
        (far.home / "work" / "thesis.tex").write_text("precious")
        marker = far.home / "work" / MARKER
        # The rehearsal passes; before rsync is started for good, the directory becomes another
        # project's.
        desk.program(
            "rsync",
            f"case \" $* \" in *' --info=progress2 '*) echo '{{}}' > {marker} ;; esac\nexec"
            f' {shutil.which("rsync")} "$@"',
        )
        said = desk.sync("--delete", "--yes")
        assert said.code != 0
        assert ".hpctrain-sync names another project" in said.err
        assert (far.home / "work" / "thesis.tex").exists()


def test_an_empty_project_deletes_nothing(desk: Desk, far: Host) -> None:
    desk.write("train.py")
    assert desk.sync(f"{far.alias}:work", *far.options, "--yes").code == 0
    (desk.project / "train.py").unlink()
    said = desk.refused("--delete", "--yes", code=1)
    assert "nothing here to send" in said.err
    assert tree(far.home / "work") == {"train.py"}


def test_modes_and_symlinks(desk: Desk, far: Host, tmp_path: Path) -> None:
    host = far.server.host(tmp_path / "strict", before="umask 027;")
    desk.write("run.sh").chmod(0o755)
    desk.write("train.py").chmod(0o664)
    (desk.project / "link").symlink_to("train.py")
    (desk.project / "out").symlink_to("/nowhere/model")
    said = desk.sync(f"{host.alias}:work", *host.options, "--yes")
    assert said.code == 0, said.err
    work = host.home / "work"
    assert (work / "run.sh").stat().st_mode & 0o777 == 0o750
    assert (work / "train.py").stat().st_mode & 0o777 == 0o640
    assert work.stat().st_mode & 0o777 == 0o750
    assert (work / "link").readlink() == Path("train.py")
    assert (work / "out").readlink() == Path("/nowhere/model")
    assert desk.sync("--yes", "--json").json["sent"] == 0
    (desk.project / "train.py").chmod(0o775)
    assert desk.sync("--yes", "--json").json == desk_json(
        changed=1, sent=1, destination=f"{host.alias}:work", total=4, size=16 + 8 + 14
    )
    assert (work / "train.py").stat().st_mode & 0o777 == 0o750


def desk_json(
    *, changed: int, sent: int, destination: str, total: int, size: int
) -> dict[str, object]:
    """Return the whole of --json, but for what the wire carried."""

    class Anything:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, int)

        __hash__ = None  # type: ignore[assignment]

    return {
        "schema": 1,
        "destination": destination,
        "dry_run": False,
        "sent": sent,
        "bytes": 0,
        "wire_bytes": Anything(),
        "created": 0,
        "changed": changed,
        "deleted": [],
        "gone_here": [],
        "secrets_left_out": [],
        "total_files": total,
        "total_bytes": size,
    }


def test_without_delete_it_says_what_is_gone_here(desk: Desk, far: Host) -> None:
    for name in ("train.py", "gone.txt", "old/a", "old/b"):
        desk.write(name)
    first = desk.sync(f"{far.alias}:work", *far.options, "--yes")
    assert "gone here" not in first.err
    (desk.project / "gone.txt").unlink()
    said = desk.sync("--yes")
    assert said.code == 0, said.err
    assert "1 file there is gone here: gone.txt; hpctrain sync --delete" in said.err.splitlines()
    assert said.out == f"nothing to send: {far.alias}:work is up to date\n"
    assert (far.home / "work/gone.txt").exists()
    shutil.rmtree(desk.project / "old")
    desk.write("new.py")
    more = desk.sync("--yes", "--json")
    assert sorted(more.json["gone_here"]) == ["gone.txt", "old/a", "old/b"]
    assert (more.json["deleted"], more.json["sent"]) == ([], 1)
    assert (far.home / "work/old/a").exists()
    done = desk.sync("--delete", "--yes", "--json")
    assert (done.json["gone_here"], tree(far.home / "work")) == ([], {"train.py", "new.py"})


def test_without_a_destination_it_names_a_place_that_is_not_home(desk: Desk, far: Host) -> None:
    desk.write("train.py")
    assert (
        desk.refused(code=2).err.splitlines()[-1]
        == "hint: name it: hpctrain sync HOST:/scratch/…/project"
    )
