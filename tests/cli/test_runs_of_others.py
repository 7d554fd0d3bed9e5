"""`hpctrain runs drop` where runs belong to somebody else, or cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))
import make

NOBODY = 65534


class TestSomebodyElse:
    """Runs that this user may not remove, or not all of."""

    @pytest.fixture
    def project(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="hpctrain-") as folder:
            Path(folder).chmod(0o777)
            yield Path(folder)
            subprocess.run(["chmod", "-R", "u+rwX", folder])

    def type(self, project: Path, hpctrain: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Type a command as somebody who is not root."""
        state = project / "state"
        state.mkdir(exist_ok=True)
        state.chmod(0o777)
        # What root has kept closed, Python itself perhaps, may be read, and nothing more.
        caps = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        other = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *caps) if os.geteuid() == 0 else ()
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(state), "HPCTRAIN_STATE_DIR": str(state)}
        argv = [*other, sys.executable, "-P", "-m", "hpctrain", "runs", *words]
        return subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    def give(self, path: Path) -> None:
        if os.geteuid() == 0:
            for each in (path, *path.rglob("*")):
                os.chown(each, NOBODY, NOBODY, follow_symlinks=False)

    def test_each_is_named_the_others_go_and_the_code_is_1(self, project: Path, hpctrain: str) -> None:
        runs = project / "runs"
        for name in ("a", "b", "closed", "deep"):
            make.attempt(make.run(runs, name), outcome="completed")
            (runs / name / "checkpoints" / "checkpoint-1").mkdir(parents=True)
            (runs / name / "checkpoints" / "checkpoint-1" / "model").write_text("x")
        self.give(runs)
        (runs / "closed").chmod(0o555)
        (runs / "deep" / "checkpoints" / "checkpoint-1").chmod(0o555)
        done = self.type(project, hpctrain, "drop", "*", "--yes")
        assert done.returncode == 1, done.stderr
        assert {path.name for path in runs.glob("*")} == {"closed", "deep"}
        assert {path.name for path in runs.glob(".dropp*")} == set()
        assert (runs / "deep" / "checkpoints" / "checkpoint-1" / "model").exists()
        assert (runs / "closed" / "attempts" / "123.0" / "end.json").exists()
        assert "error: 2 runs cannot be removed" in done.stderr
        assert "closed: runs/closed is not writable for you; it belongs to" in done.stderr
        assert "deep: runs/deep/checkpoints/checkpoint-1 is not writable for you" in done.stderr
        assert done.stderr.splitlines()[-1] == "fix: ls -ld runs/closed"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_another_users_runs_in_a_shared_directory(self, project: Path, hpctrain: str) -> None:
        runs = project / "runs"
        for name in ("mine", "theirs", "theirs-open"):
            make.attempt(make.run(runs, name), outcome="completed")
        self.give(runs / "mine")
        for path in (runs / "theirs-open", *(runs / "theirs-open").rglob("*")):
            path.chmod(0o777)
        runs.chmod(0o1777)  # as /tmp
        done = self.type(project, hpctrain, "drop", "*", "--yes")
        assert done.returncode == 1, done.stderr
        assert {path.name for path in runs.glob("*")} == {"theirs", "theirs-open"}
        assert len(list((runs / "theirs-open").rglob("*.json"))) == 3
        assert "theirs-open: runs lets only owners remove, and this belongs to root" in done.stderr
        runs.chmod(0o755)
        listing = self.type(project, hpctrain, "list")
        assert (listing.returncode, len(listing.stdout.splitlines())) == (0, 3)
        closed = self.type(project, hpctrain, "drop", "theirs-open", "--yes")
        assert "runs is not writable for you; it belongs to root" in closed.stderr

    def test_a_link_is_not_followed(self, project: Path, hpctrain: str) -> None:
        make.attempt(make.run(project / "scratch", "a"), outcome="completed")
        (project / "runs").mkdir()
        (project / "runs" / "a").symlink_to(project / "scratch" / "a")
        self.give(project)
        done = self.type(project, hpctrain, "drop", "a", "--yes")
        assert done.returncode == 1
        assert "is a link to" in done.stderr
        assert (project / "scratch" / "a" / "run.json").exists()
