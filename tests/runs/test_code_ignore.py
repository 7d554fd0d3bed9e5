"""Patterns in gitignore's notation, held against git itself and against the rules of `hpctrain sync`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpctrain.cli import code
from hpctrain.runs.code_ignore import Patterns
from hpctrain.sync import rules

#: Few letters, so that patterns and names meet often; ASCII, because `?` is a byte to git and a character here.
PARTS = ["a", "b", "ab", "a.b", ".a", "b c", "[a]", "a*"]
PATHS = [f"{first}/{second}/{third}" for first in PARTS[:6] for second in PARTS[:5] for third in PARTS]
PATHS += [f"{name}0" for name in PARTS] + [f"a1/{name}" for name in PARTS]
PATTERN = (
    st.lists(st.sampled_from([*"ab*?./!# ", "**", "**/", "/**", "[a]", "[!a]", "[a-b]", "\\", "[", "0"]), max_size=7)
    .map("".join)
    .filter(
        # Two stars beside something else are two single ones, says gitignore(5), and git 2.39 makes an exception behind literal text.
        lambda line: not re.search(r"[^/!]\*\*|\*\*[^/]", line)
    )
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a git work tree with a file at each of PATHS."""
    directory = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "-q", directory], check=True)
    for path in PATHS:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).touch()
    return directory


@settings(max_examples=120, deadline=None)
@example(lines=["a", "!a/b"])
@example(lines=["a", "!/**"])
@example(lines=["*", "!*/", "!a.b"])
@example(lines=["/a/**", "a/**/b", "**/b", "**"])
@example(lines=["a/", "!ab", "ab "])
@example(lines=["[]a]", "[^b]/", "\\!a", "\\#", "a\\ ", "[a"])
@given(lines=st.lists(PATTERN, max_size=4))
def test_what_is_left_out_is_what_git_ignores(tree: Path, lines: list[str]) -> None:
    (tree / ".git" / "info" / "exclude").write_text("\n".join(lines) + "\n")
    listed = subprocess.run(["git", "-C", tree, "ls-files", "-o", "-z", "--exclude-standard"], capture_output=True, check=True).stdout
    patterns = Patterns(lines)
    assert {path for path in PATHS if not patterns.leave_out(path)} == set(listed.decode().rstrip("\0").split("\0")) - {""}


IGNORE = "data/\n*.bin\n!keep.bin\n/top.txt\nsub/deep/\n!outputs/\n!.env.local\n\\#odd\n"
FILES = [
    "train.py", "pkg/a.py", "pkg/__pycache__/a.pyc", "data/x", "pkg/data/y", "w.bin", "keep.bin", "top.txt", "sub/top.txt", "sub/deep/z",
    "outputs/o", "runs/r/x", "logs/l", "wandb/w", "pkg/wandb/w", ".venv/pyvenv.cfg", ".venv/x", "env/pyvenv.cfg", "env/lib/x.py",
    "conda/conda-meta/x", "conda/y", ".env", ".env.local", ".env.example", "pkg/id_rsa", "key.pem", "checkpoint-10/x", "checkpoints/x",
    "slurm-1.out", "#odd", "notes.md", ".gitignore", "é/ü.py", "a b/c d.py",
]  # fmt: skip


def test_without_git_a_snapshot_holds_what_sync_sends(tmp_path: Path) -> None:
    project, there = tmp_path / "project", tmp_path / "there"
    for name in [*FILES, ".hpctrainignore"]:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    (project / ".hpctrainignore").write_text(IGNORE)
    there.mkdir()
    (tmp_path / "rules").write_text(rules.filter_rules(IGNORE, ["env", "conda", ".venv"]))
    subprocess.run(["rsync", "-a", f"--filter=merge {tmp_path / 'rules'}", f"{project}/", f"{there}/"], check=True)
    sent = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert {"outputs/o", ".env.local", ".env.example", "keep.bin"} <= sent, "the test tells little otherwise"

    taken = code.snapshot(project, project / "runs")

    # Of the far side, sync knows a directory that is ours by its name alone; nobody's jobs write into it here.
    assert {entry.path for entry in taken.entries} == sent
