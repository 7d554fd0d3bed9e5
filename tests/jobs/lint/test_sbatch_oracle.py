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


@pytest.fixture(scope="module")
def lab() -> dict[str, str]:
    if not os.environ.get("SLURM_CONF"):
        pytest.skip("no lab: SLURM_CONF is not set")
    return {**os.environ, "SBATCH_ACCOUNT": "proj_b"}


@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_what_sbatch_says(name: str, lab: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    script.write_bytes(WRONG[name].encode())
    # Nothing is submitted.
    command = ["sbatch", "--test-only", str(script)]
    said = subprocess.run(command, env=lab, capture_output=True, text=True, timeout=600)
    assert (said.returncode != 0) == (name in REFUSED), said.stderr
    assert re.search(REFUSED.get(name, "to start at"), said.stderr), said.stderr
