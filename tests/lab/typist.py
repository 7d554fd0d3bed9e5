"""Somebody who types `hpctrain` and Slurm's commands on a login node of the lab."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))


class Typist:
    """Somebody at the keyboard of a login node. The lab's GPUs are files that only Slurm counts, so
    that the training uses the CPU.
    """

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = {
            **environment,
            "ACCELERATE_USE_CPU": "true",
            "HPCTRAIN_STATE_DIR": os.environ["HPCTRAIN_STATE_DIR"],
            "PATH": f"{Path(HPCTRAIN).parent}:{environment['PATH']}",
        }

    def type(
        self, *words: str, code: int | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Type a command, whose exit code must be `code`; None: any."""
        done = subprocess.run(
            words,
            cwd=self.directory,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )
        said = f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert code is None or done.returncode == code, said
        return done

    def check(self, *words: str) -> dict[str, Any]:
        done = self.type(HPCTRAIN, "check", "--json", *words)
        assert done.returncode in (0, 1), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def test_only(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Let the real sbatch judge the script that `render` writes."""
        rendered = self.type(HPCTRAIN, "render", "--to", "job.sbatch", "--force", *words)
        assert rendered.returncode == 0, rendered.stderr
        return self.type("sbatch", "--test-only", "job.sbatch")
