"""HOST:PATH and rules: what is taken, and what is refused before any program sees it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from hpctrain.errors import UsageError
from hpctrain.remote import rules, sync


@pytest.mark.parametrize(
    ("text", "login", "path"),
    [
        ("leo:/scratch/a", "leo", "/scratch/a"),
        ("me@login.leonardo.cineca.it:sft", "me@login.leonardo.cineca.it", "sft"),
        ("u100.1+x@h-1:/a/", "u100.1+x@h-1", "/a"),
        ("h:~/proj/x", "h", "proj/x"),
        ("[::1]:/a", "[::1]", "/a"),
    ],
)
def test_what_is_taken(text: str, login: str, path: str) -> None:
    found = sync.parse_destination(text)
    assert (found.login, found.path) == (login, path)
    assert sync.parse_destination(str(found)) == found  # as it is remembered


@pytest.mark.parametrize(
    "text",
    [
        "",
        "leo",
        "/local/path",
        ":path",
        "-oProxyCommand=x:/a",
        "-l@h:/a",
        "me@-h:/a",
        "a b:/x",
        "h;id:/x",
        "$(id):/x",
        "h\n:/x",
        "@h:/x",
        "rsync://h/x",
        "h::module",
        "ünï:/x",
        "me@you@h:/x",
        "h:",
        "h:/",
        "h:~",
        "h:~/",
        "h:.",
        "h:./",
        "h:a/..",
        "h:..",
        "h://",
        "h:a\nb",
        "h:a\x1bb",
        "h:a\x00",
        "h:\udcff",
        "h:a\u2028b",
        "h:\x85",
        "h:~you/x",
        "h:$SCRATCH/x",
        "h:${WORK}",
        "h:-rf",
        "h:a b",
        "h:it's",
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        sync.parse_destination(text)
    assert refused.value.fix or refused.value.hint
    assert "\n" not in refused.value.what
    assert refused.value.what.isprintable()


# -- What goes along: the rules, and the real git as the judge of .hpctrainignore


def sent(project: Path) -> set[str]:
    """Return the files that `hpctrain sync` sends."""
    names = sync._listed(project).decode().split("\0")
    return {name.removeprefix("./") for name in names} - {""}


def grow(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("x")


DEFAULT_LEFT_OUT = (
    ".git/HEAD",
    "sub/.git",
    ".venv/bin/python",
    "venv/x",
    ".pixi/x",
    "pkg/__pycache__/a.pyc",
    "a.pyc",
    ".mypy_cache/x",
    ".ruff_cache/x",
    ".pytest_cache/x",
    "node_modules/x",
    "logs/output.log",
    "runs/a/x",
    "wandb/x",
    "out/checkpoint-500/model.bin",
    "checkpoints/x",
    ".cache/x",
    ".hpctrain/x",
    ".hpctrain/sync",
    "big/.hpctrain-partial/x",
    "slurm-12.out",
    "strange/pyvenv.cfg",
    "strange/lib/x",
)
SECRET = (
    ".env",
    ".env.local",
    "certs/site.pem",
    "id_rsa",
    "keys/id_ed25519",
    ".netrc",
    ".hf_token",
    "a/secrets.yaml",
    ".ssh/config",
)
SENT = (
    "train.py",
    "config.yaml",
    ".gitignore",
    ".hpctrainignore",
    ".env.example",
    "data/x.arrow",
    "models/m/model.safetensors",
    "pkg/logs/handler.py",
    "pkg/runs/x.py",
    "checkpoint-notes.md",
    "env/reset.py",
    "id_rsa.pub",
    "-dash",
    "sft.sbatch",
)


def test_the_defaults(tmp_path: Path) -> None:
    project = tmp_path / "p"
    grow(project, *DEFAULT_LEFT_OUT, *SECRET, *SENT)
    assert sent(project) == set(SENT)


@pytest.mark.parametrize("name", SECRET)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert rules.is_secret(name if not name.startswith(".ssh") else ".ssh/")


@pytest.mark.parametrize("name", SENT)
def test_other_names_are_no_secrets(name: str) -> None:
    assert not rules.is_secret(name)


NAMES = (
    "a",
    "b.txt",
    "sub/a",
    "sub/b.txt",
    "sub/deep/a",
    "sub/deep/b.txt",
    "doc/frotz",
    "sub/doc/frotz",
    "a b",
    "#hash",
    "!bang",
    "x/y/z/a",
    "x/a",
    "foo/bar/baz/q",
    "foo/q",
    "[odd]",
    "back\\slash",
    "trail ",
    "data/1",
    "data/keep/2",
    "data/keep/3",
    "ünï",
    "star*",
)
IGNORES = {
    "comment and blank": "# a\n\n   \n",
    "floating": "a\n",
    "anchored": "/a\n",
    "directory only": "sub/\n",
    "a directory's name that is a file": "a/\n",
    "slash in the middle": "doc/frotz\n",
    "leading stars": "**/frotz\n",
    "leading stars and a path": "**/doc/frotz\n",
    "trailing stars": "sub/**\n",
    "stars between": "x/**/a\n",
    "wildcard": "*.txt\n",
    "one character": "?\n",
    "class": "[ab]*\n",
    "negated class": "[!a]\n",
    "negation": "*.txt\n!b.txt\n",
    "the last one wins": "!b.txt\n*.txt\n",
    "a directory emptied but for one": "data/*\n!data/keep/\ndata/keep/*\n!data/keep/2\n",
    "no way back into a hidden directory": "data/\n!data/keep/2\n",
    "escaped hash": "\\#hash\n",
    "escaped bang": "\\!bang\n",
    "hash in the middle": "a#b\n",
    "blank inside": "a b\n",
    "blanks at the end": "a   \n",
    "an escaped blank at the end": "trail\\ \n",
    "escaped brackets": "\\[odd\\]\n",
    "escaped star": "star\\*\n",
    "carriage returns": "a\r\nsub\r\n",
    "unicode": "ünï\n",
    "everything but": "/*\n!/sub/\n",
    "rsync's own words": "- a\n+ b.txt\n! \nP x\nmerge a\n",
}


@pytest.mark.parametrize("ignore", IGNORES.values(), ids=IGNORES.keys())
def test_hpctrainignore_means_what_gitignore_means(ignore: str, tmp_path: Path) -> None:
    project = tmp_path / "p"
    grow(project, *NAMES)
    # git as the judge: what it would list, were the lines in .gitignore.
    git = ["git", "-c", "core.excludesFile=/dev/null", "-C", str(project)]
    subprocess.run([*git, "init", "-q"], check=True)
    (project / ".git" / "info" / "exclude").write_bytes(ignore.encode())
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-standard"], check=True, capture_output=True
    ).stdout.decode()
    shutil.rmtree(project / ".git")
    (project / ".hpctrainignore").write_bytes(ignore.encode())
    assert sent(project) - {".hpctrainignore"} == set(listed.split("\0")) - {""}


def test_what_is_left_out_by_default_can_be_sent(tmp_path: Path) -> None:
    project = tmp_path / "p"
    grow(
        project,
        "logs/a",
        "train.py",
        "out/checkpoint-5/model.bin",
        ".env",
        "certs/site.pem",
        "certs/other.pem",
    )
    (project / ".hpctrainignore").write_text("!/logs/\n!checkpoint-*/\n")
    assert sent(project) == {
        ".hpctrainignore",
        "logs/a",
        "train.py",
        "out/checkpoint-5/model.bin",
    }


@pytest.mark.parametrize(
    ("ignore", "secrets"),
    [
        ("!*\n", set()),
        ("!*.pem\n", set()),
        ("!.env*\n", set()),
        ("!certs/site.pem\n", {"certs/site.pem"}),
        ("!.env\n", {".env"}),
        ("!.env  \n", {".env"}),
    ],
)
def test_a_secret_goes_along_only_by_its_full_name(
    ignore: str, secrets: set[str], tmp_path: Path
) -> None:
    project = tmp_path / "p"
    grow(project, "train.py", ".env", "certs/site.pem", "certs/other.pem")
    (project / ".hpctrainignore").write_text(ignore)
    assert sent(project) == {".hpctrainignore", "train.py"} | secrets


def test_an_environment_with_an_odd_name_is_left_out_alone(tmp_path: Path) -> None:
    project = tmp_path / "p"
    grow(project, "env[1]*/x", "env[1]*/pyvenv.cfg", "env1a/x", "back\\slash/conda-meta/x")
    assert sent(project) == {"env1a/x"}
