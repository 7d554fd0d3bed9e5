"""The real sbatch as the judge of the rules that say that sbatch refuses a script."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import lint_corpus as corpus
import pytest

pytestmark = [pytest.mark.slurm]

#: What sbatch of the lab (22.05) does with the wrong script of each id, in its own words.
REFUSED = {
    "dos-line-ends": "DOS line breaks",
    "no-shebang": "does not look like a batch script",
    "directive-quote": "Unmatched",
    "unknown-option": "unrecognized option|ambiguous|invalid option",
    "site-option": "unrecognized option",
    "not-an-option": "Invalid directive found|is not a valid",
    "blank-around-equals": "is not a valid node count",
    "option-without-value": "requires an argument|Invalid",
    "flag-with-value": "doesn't allow an argument",
    "mem-twice": "mutually exclusive",
    "cpus-per-gpu-and-task": "mutually exclusive",
    "gpus-per-task-without-tasks": "without either --gpus or -n/--ntasks",
    "invalid-time": "Invalid --time specification",
    "invalid-mem": "Invalid --mem specification",
    "invalid-signal": "Invalid --signal specification",
    "gpu-value-gres": "Invalid generic resource",
    "ntasks-and-per-node-too-many": "node configuration is not available|Requested",
}
#: And what it takes without a word: that is why these are findings.
TAKEN = (
    "directive-after-command", "directive-indented", "directive-case", "directive-space", "directive-misspelt", "directive-hash",
    "directive-continued", "directive-twice", "short-option-equals", "two-gpu-dialects", "exclusive-without-mem", "gpus-is-total",
    "missing-time", "mail-user-without-type", "array-output", "requeue-truncates", "signal-not-to-batch", "packjob",
)  # fmt: skip


def judged(script: Path, lab: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Ask sbatch what it thinks of `script`; nothing is submitted."""
    return subprocess.run(["sbatch", "--test-only", str(script)], env=lab, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def lab() -> dict[str, str]:
    if not os.environ.get("SLURM_CONF"):
        pytest.skip("no lab: SLURM_CONF is not set")
    return {**os.environ, "SBATCH_ACCOUNT": "proj_b"}


@pytest.mark.parametrize("name", REFUSED)
def test_sbatch_refuses_it(name: str, lab: dict[str, str]) -> None:
    said = judged(Path(corpus.TESTS, "corpus/lint/wrong", f"{name}.sbatch"), lab)
    assert said.returncode != 0, said.stderr
    assert re.search(REFUSED[name], said.stderr), said.stderr


@pytest.mark.parametrize("name", TAKEN)
def test_sbatch_takes_it_without_a_word(name: str, lab: dict[str, str]) -> None:
    said = judged(Path(corpus.TESTS, "corpus/lint/wrong", f"{name}.sbatch"), lab)
    assert said.returncode == 0, said.stderr
    assert "to start at" in said.stderr


@pytest.mark.parametrize("file", corpus.CORRECT, ids=lambda file: file.stem)
def test_sbatch_can_read_the_correct_scripts(file: Path, lab: dict[str, str], tmp_path: Path) -> None:
    """Site names, and what the lab has not (plugins, large nodes), are taken out; the rest sbatch must be able to parse."""
    lines = corpus.text_of(file).split("\n")
    names = ("account", "A ", "partition", "p ", "constraint", "container-", "nice", "exclude", "gres=gpu:a", "gres=gpu:2,nvme", "part=")
    kept = [line for line in lines if not re.match(rf"#SBATCH -{{1,2}}({'|'.join(names)})", line)]
    script = tmp_path / "job.sbatch"
    script.write_text("\n".join(kept))
    said = judged(script, lab)
    impossible = r"allocation failure|node configuration is not available|Memory|More processors|Batch job submission failed"
    assert said.returncode == 0 or re.search(impossible, said.stderr), said.stderr
    assert not re.search(r"unrecognized|Invalid directive|Unmatched|requires an argument|Invalid --", said.stderr), said.stderr
