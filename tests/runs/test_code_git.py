"""The code of a project with git: what is taken, what is left out, which version it is."""

import subprocess
from pathlib import Path

import pytest

from hpctrain.jobs import project_code
from hpctrain.jobs import project_code as code
from hpctrain.remote import sync
from hpctrain.remote.rules import Patterns
from hpctrain.runs.code import Snapshot

TOKEN = "hf_" + "aB3" * 12


class Repository:
    """A git repository with one commit."""

    def __init__(self, path: Path, files: dict[str, str | bytes]) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.write(files)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")

    def git(self, *words: str) -> str:
        identity = (
            "-c",
            "user.name=A",
            "-c",
            "user.email=a@example.org",
            "-c",
            "protocol.file.allow=always",
            "-c",
            "commit.gpgsign=false",
        )
        return subprocess.run(
            ["git", *identity, "-C", self.path, *words], check=True, capture_output=True, text=True
        ).stdout

    def write(self, files: dict[str, str | bytes]) -> None:
        for name, content in files.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_bytes(
                content.encode() if isinstance(content, str) else content
            )

    def snapshot(self, below: str = "") -> Snapshot:
        return project_code.snapshot(self.path / below, self.path / below / "runs")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(
        tmp_path / "repository",
        {
            "train.py": "x = 1\n",
            "pkg/a.py": "a\n",
            "gone.py": "g\n",
            "image.png": bytes(range(256)),
            ".gitignore": "data/\n*.ckpt\n",
        },
    )


def names(snapshot: Snapshot) -> set[str]:
    return set(snapshot.entries)


def test_the_work_tree_as_it_is(repository: Repository) -> None:
    commit = repository.git("rev-parse", "HEAD").strip()
    clean = repository.snapshot()
    assert names(clean) == {"train.py", "pkg/a.py", "gone.py", "image.png", ".gitignore"}
    assert (
        clean.version.commit,
        clean.version.branch,
        clean.as_json()["dirty"],
        clean.version.diff,
    ) == (
        commit,
        "main",
        False,
        None,
    )

    (repository.path / "gone.py").unlink()
    repository.write(
        {
            "train.py": "x = 2\n",
            "new.py": "n",
            "data/corpus": "d",
            "w.ckpt": "w",
            "runs/r/run.json": "{}",
            "logs/l": "l",
            "image.png": b"\0\1",
            "env/pyvenv.cfg": "",
            "env/lib/m.py": "",
            "wandb/x": "",
            "sft.sbatch": "#!/bin/bash\n",
        }
    )
    dirty = repository.snapshot()
    assert names(dirty) == {"train.py", "pkg/a.py", "new.py", "image.png", ".gitignore"}
    assert dirty.version.untracked == ("new.py",)
    assert (dirty.version.commit, dirty.as_json()["dirty"]) == (commit, True)
    assert dirty.version.diff is not None
    assert "-x = 1\n+x = 2\n" in dirty.version.diff
    assert "Binary files a/image.png and b/image.png differ" in dirty.version.diff
    assert dirty.path is not None
    assert (dirty.path / "train.py").read_text() == "x = 2\n"
    record = dirty.as_json()
    assert (record["commit"], record["branch"], record["dirty"], record["digest"]) == (
        commit,
        "main",
        True,
        dirty.digest,
    )


def test_the_diff_makes_the_work_tree_again(repository: Repository, tmp_path: Path) -> None:
    repository.write({"train.py": "x = 2\nÿ\n", "pkg/a.py": "b\n"})
    (repository.path / "gone.py").unlink()
    diff = repository.snapshot().version.diff
    subprocess.run(["git", "clone", "-q", repository.path, tmp_path / "again"], check=True)
    subprocess.run(["git", "-C", tmp_path / "again", "apply"], input=diff, text=True, check=True)
    assert (tmp_path / "again" / "train.py").read_text() == "x = 2\nÿ\n"
    assert (tmp_path / "again" / "pkg" / "a.py").read_text() == "b\n"
    assert not (tmp_path / "again" / "gone.py").exists()


def test_a_project_below_the_top(repository: Repository) -> None:
    repository.write({"pkg/new.py": "", "pkg/runs/r/x.py": ""})
    assert names(repository.snapshot("pkg")) == {"a.py", "new.py"}


def test_submodules_and_nested_repositories(repository: Repository, tmp_path: Path) -> None:
    Repository(tmp_path / "library", {"lib.py": "l\n", ".gitignore": "*.log\n"})
    repository.git("submodule", "add", "-q", str(tmp_path / "library"), "libs/library")
    repository.git("commit", "-q", "-m", "second")
    repository.write(
        {"libs/library/more.py": "", "libs/library/x.log": "", "libs/library/lib.py": "changed\n"}
    )
    Repository(repository.path / "cloned", {"c.py": "c", "deep/d.py": ""})
    snapshot = repository.snapshot()
    assert names(snapshot) >= {
        "libs/library/lib.py",
        "libs/library/more.py",
        "libs/library/.gitignore",
        "cloned/c.py",
        "cloned/deep/d.py",
    }
    assert not [
        name for name in names(snapshot) if ".git/" in name or name.endswith((".log", "/.git"))
    ]
    assert snapshot.version.diff is not None
    assert "+changed" in snapshot.version.diff
    empty = tmp_path / "not-initialised"
    subprocess.run(["git", "clone", "-q", repository.path, empty], check=True)
    assert "train.py" in names(project_code.snapshot(empty, empty / "runs"))


def test_secrets_stay_out_of_files_and_diffs(repository: Repository) -> None:
    repository.write({"secrets.env": "PASSWORD=old\n", "deploy/my.key": "old\n"})
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "oh dear")
    repository.write(
        {
            "secrets.env": "PASSWORD=new\n",
            "deploy/my.key": "brand-new\n",
            "train.py": f"token = '{TOKEN}'\n",
            ".env": "X=1",
        }
    )
    snapshot = repository.snapshot()
    assert not names(snapshot) & {"secrets.env", "deploy/my.key", ".env"}
    assert {one.path for one in snapshot.skipped} == {"secrets.env", "deploy/my.key", ".env"}
    assert snapshot.version.diff is not None
    assert "PASSWORD" not in snapshot.version.diff
    assert "brand-new" not in snapshot.version.diff
    assert TOKEN not in snapshot.version.diff
    assert "+token = 'hf_…'" in snapshot.version.diff


def test_where_git_cannot_be_asked(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repository.write({"data/corpus": "d"})
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    snapshot = repository.snapshot()
    assert names(snapshot) == {
        "train.py",
        "pkg/a.py",
        "gone.py",
        "image.png",
        ".gitignore",
        "data/corpus",
    }
    assert (snapshot.version.commit, snapshot.version.notes) == (None, ("git is not on PATH",))
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "git").write_text(
        "#!/bin/sh\necho 'fatal: detected dubious ownership in repository' >&2\nexit 128\n"
    )
    (broken / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken}:/bin:/usr/bin")
    assert repository.snapshot().version.notes == (
        "git said: fatal: detected dubious ownership in repository",
    )


# -- Patterns in gitignore's notation, compared with git and with `hpctrain sync`


@pytest.mark.parametrize(
    "lines",
    [
        ["a", "!a/b"],
        ["*", "!*/", "!a.b"],
        ["/a/**"],
        ["a/**/b", "**/b"],
        ["a/", "!ab", "ab "],
        ["[^b]/", "[a-b]?.b", "a?b"],
        ["/b c/", "*.b", "# no", ""],
        ["\\!a", "\\#x", "a\\*"],
    ],
)
def test_what_is_left_out_is_what_git_ignores(tmp_path: Path, lines: list[str]) -> None:
    parts = ["a", "b", "ab", "a.b", ".a", "b c", "a*", "!a", "#x"]
    paths = [f"{one}/{two}/{three}" for one in parts for two in parts[:4] for three in parts[:5]]
    paths += [f"{name}0" for name in parts] + [f"c/{name}" for name in parts]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / ".git" / "info" / "exclude").write_text("\n".join(lines) + "\n")
    words = ["git", "-C", tmp_path, "ls-files", "-o", "-z", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True, check=True).stdout.decode()
    patterns = Patterns(lines)
    assert {path for path in paths if not patterns.leave_out(path)} == set(
        listed.rstrip("\0").split("\0")
    ) - {""}


IGNORE = "data/\n*.bin\n!keep.bin\n/top.txt\nsub/deep/\n!outputs/\n!.env.local\n\\#odd\n"
FILES = [
    "train.py",
    "pkg/a.py",
    "pkg/__pycache__/a.pyc",
    "data/x",
    "pkg/data/y",
    "w.bin",
    "keep.bin",
    "top.txt",
    "sub/top.txt",
    "sub/deep/z",
    "outputs/o",
    "runs/r/x",
    "logs/l",
    "wandb/w",
    "pkg/wandb/w",
    ".venv/pyvenv.cfg",
    ".venv/x",
    "env/pyvenv.cfg",
    "env/lib/x.py",
    "conda/conda-meta/x",
    "conda/y",
    ".env",
    ".env.local",
    ".env.example",
    "pkg/id_rsa",
    "key.pem",
    "checkpoint-10/x",
    "checkpoints/x",
    "slurm-1.out",
    "#odd",
    "notes.md",
    ".gitignore",
    "é/ü.py",
    "a b/c d.py",
]


def test_without_git_a_snapshot_holds_what_sync_sends(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in [*FILES, ".hpctrainignore"]:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    (project / ".hpctrainignore").write_text(IGNORE)
    listed = sync._listed(project).decode().split("\0")
    sent = {name.removeprefix("./") for name in listed} - {""}
    assert {
        "outputs/o",
        ".env.local",
        ".env.example",
        "keep.bin",
    } <= sent, "the test tells little otherwise"

    taken = code.snapshot(project, project / "runs")
    assert set(taken.entries) == sent
