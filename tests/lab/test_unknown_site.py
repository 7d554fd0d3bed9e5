"""A site that no profile knows, and that refuses in words of its own: typed GPUs, no requeue,
project and time required.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.typist import HPCTRAIN, Typist

pytestmark = [pytest.mark.slurm, pytest.mark.extended]

SITE = "unknown_site"
LAB = str(Path(__file__).with_name("lab"))
#: What the site says to a job that asks for GPUs without a type.
SAID = "Please use --gres=gpu:a100:N (N = 1 to 4)"
BARE = "script: train.py\nlauncher: torchrun\nrestart: {mode: requeue}\n"


@pytest.fixture(scope="module")
def played(lab_env: dict[str, str]) -> Iterator[dict[str, str]]:
    where = ["--dir", str(Path(lab_env["SLURM_CONF"]).parent.parent)]
    before = subprocess.run(
        [sys.executable, LAB, "sites", *where], capture_output=True, text=True, check=True
    ).stdout
    done = subprocess.run(
        [sys.executable, LAB, "play", SITE, *where], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    yield {**lab_env, "SLURM_CONF": done.stdout.strip().removeprefix("export SLURM_CONF=")}
    if f"{SITE}  played" not in before:
        subprocess.run(
            [sys.executable, LAB, "unplay", SITE, *where], capture_output=True, check=True
        )


@pytest.fixture
def typist(tmp_path: Path, played: dict[str, str]) -> Typist:
    return Typist(tmp_path, played)


def refusals(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in found["findings"] if finding["id"] == "slurm-refuses"]


def test_a_refusal_is_quoted_in_the_sites_words(typist: Typist) -> None:
    (typist.directory / "config.yaml").write_text(BARE)
    (finding,) = refusals(typist.check())
    assert SAID in finding["evidence"]
    assert "Unspecified" not in finding["evidence"]
    refused = typist.type(HPCTRAIN, "submit", "--no-check")
    assert refused.returncode == 1
    assert SAID in refused.stderr
