"""The real sbatch as the judge of the rules that say that sbatch refuses a script."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.jobs.lint import lint_corpus as corpus

pytestmark = [pytest.mark.slurm]

#: What sbatch of the lab (22.05) does with the wrong script of each id, in its own words.
REFUSED = {
    "dos-line-ends": "DOS line breaks",
    "no-shebang": "does not look like a batch script",
    "unknown-option": "unrecognized option|ambiguous|invalid option",
    "not-an-option": "Invalid directive found|is not a valid",
    "blank-around-equals": "is not a valid node count",
    "option-without-value": "requires an argument|Invalid",
    "mem-twice": "mutually exclusive",
    "cpus-per-gpu-and-task": "mutually exclusive",
    "invalid-time": "Invalid --time specification",
    "invalid-mem": "Invalid --mem specification",
    "ntasks-and-per-node-too-many": "node configuration is not available|Requested",
}
#: And what it takes without a word: that is why these are findings.
TAKEN = (
    "directive-after-command",
    "directive-indented",
    "directive-case",
    "directive-misspelt",
    "directive-twice",
    "short-option-equals",
    "two-gpu-dialects",
    "gpus-is-total",
    "array-output",
    "requeue-truncates",
    "signal-not-to-batch",
)


WRONG = {case.name: case.text for case in corpus.WRONG}


def judged(text: str, lab: dict[str, str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Ask sbatch what it thinks of a script; nothing is submitted."""
    script = directory / "job.sbatch"
    script.write_bytes(text.encode())
    return subprocess.run(
        ["sbatch", "--test-only", str(script)], env=lab, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def lab() -> dict[str, str]:
    if not os.environ.get("SLURM_CONF"):
        pytest.skip("no lab: SLURM_CONF is not set")
    return {**os.environ, "SBATCH_ACCOUNT": "proj_b"}


@pytest.mark.parametrize("name", REFUSED)
def test_sbatch_refuses_it(name: str, lab: dict[str, str], tmp_path: Path) -> None:
    said = judged(WRONG[name], lab, tmp_path)
    assert said.returncode != 0, said.stderr
    assert re.search(REFUSED[name], said.stderr), said.stderr


@pytest.mark.parametrize("name", TAKEN)
def test_sbatch_takes_it_without_a_word(name: str, lab: dict[str, str], tmp_path: Path) -> None:
    said = judged(WRONG[name], lab, tmp_path)
    assert said.returncode == 0, said.stderr
    assert "to start at" in said.stderr
