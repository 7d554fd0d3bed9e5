"""A desk for the tests of the command line: a directory, what is typed there, and what must be true
of every refusal.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpctrain.cli import main
from hpctrain.slurm import job_ids, query_cache
from tests import pasted


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


class Desk:
    """The directory where the commands are typed."""

    def __init__(
        self, directory: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.directory, self._capfd, self.patch = directory, capfd, monkeypatch
        monkeypatch.chdir(directory)

    def go(self, name: str) -> None:
        """Change to a directory, made when missing."""
        self.directory /= name
        self.directory.mkdir(exist_ok=True)
        self.patch.chdir(self.directory)

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self.patch.setenv(name, value)

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def program(self, names: str, body: str) -> None:
        """Put an executable in front of everything else on PATH, or one for each of several names."""
        for name in names.split():
            path = self.write(f"../programs/{name}", f"#!/bin/bash\n{body}\n")
            path.chmod(0o755)
        if not os.environ["PATH"].startswith(f"{path.parent}:"):
            self.patch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    def run(self, *words: str) -> Said:
        self._new_process()
        self._capfd.readouterr()
        self.patch.setattr(sys, "argv", ["hpctrain", *words])
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        self._new_process()
        said = self._capfd.readouterr()
        assert isinstance(ended.value.code, int)
        wrong = {each: pasted.wrong(each) for each in pasted.commands(said.err)}
        assert not any(wrong.values()), f"cannot be pasted: {wrong}"
        assert "this is a mistake in hpctrain" not in said.err
        assert "\x1b" not in said.out + said.err, "this is no terminal"
        if "--json" in words and said.out:  # of `watch`, each line is a document
            documents = said.out.splitlines() if words[0] == "watch" else [said.out]
            assert {json.loads(each)["schema"] for each in documents} == {1}
        return Said(ended.value.code, said.out, said.err)

    @staticmethod
    def _new_process() -> None:
        """Forget what a process keeps: each command is one of its own."""
        job_ids.this_cluster.cache_clear()
        query_cache.invalidate()
        query_cache._failures.clear()

    def refused(self, *words: str, code: int = 2) -> Said:
        """Run a command that must fail in the style of the house, and write nothing."""
        before = self.snapshot()
        said = self.run(*words)
        assert said.code == code, said.err
        assert any(line.startswith("error: ") for line in said.lines), said.err
        assert said.lines[-1].startswith(("fix: ", "hint: "))
        assert "Traceback" not in said.err
        assert said.out == ""
        assert self.snapshot() == before
        return said

    def outcomes(self) -> dict[str, list[str]]:
        """Return run → how each of its attempts ended."""
        return {
            run.name: [
                json.loads(end.read_text())["outcome"]
                for end in sorted(run.glob("attempts/*/end.json"))
            ]
            for run in sorted((self.directory / "runs").iterdir())
            if not run.name.startswith(".")
        }

    def snapshot(self) -> dict[str, tuple[int, bytes]]:
        """Return all files and directories with their contents."""
        return {
            str(path.relative_to(self.directory)): (
                path.lstat().st_mode,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in self.directory.rglob("*")
        }


@pytest.fixture
def desk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Desk:
    (tmp_path / "project").mkdir()
    return Desk(tmp_path / "project", capfd, monkeypatch)
