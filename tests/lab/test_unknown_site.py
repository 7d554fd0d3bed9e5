"""A site that no profile knows, and that refuses in words of its own: typed GPUs, no requeue,
project and time required.
"""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import layers
from hpctrain.config.schema import Config
from hpctrain.util import yaml12
from tests.lab.typist import HPCTRAIN, Typist

pytestmark = [pytest.mark.slurm, pytest.mark.extended]

SITE = "unknown_site"
LAB = str(Path(__file__).with_name("lab"))
#: What the site says to a job that asks for GPUs without a type, then to one that may be requeued,
#: then to one without an account.
SAID = (
    "Please use --gres=gpu:a100:N (N = 1 to 4)",
    "Requeue is not permitted on this cluster",
    "--account=<project>",
)
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


def config_of(typist: Typist) -> Config:
    document = yaml12.load((typist.directory / "config.yaml").read_text(), "config.yaml")
    return layers.resolve([layers.from_document(document, "config.yaml")]).config


def refusals(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in found["findings"] if finding["id"] == "slurm-refuses"]


def test_one_check_finds_all_refusals_in_the_sites_words_and_the_keys_that_they_mean(
    typist: Typist,
) -> None:
    (typist.directory / "config.yaml").write_text(BARE)
    found = refusals(typist.check("--job-name", "mine"))
    assert len(found) == len(SAID)
    for finding, words, key in zip(
        found, SAID, ("gpu_type: a100", "restart: {mode: chain}", "account: p_default"), strict=True
    ):
        assert words in finding["evidence"]
        assert key in finding["reason"]
        assert "Unspecified" not in finding["evidence"]
        assert "/tmp/" not in finding["fix"]
    (fix,) = {finding["fix"] for finding in found}
    assert "--job-name mine" in fix, "the user's options stay"
    assert typist.test_only(*shlex.split(fix)[2:]).returncode == 0


def test_submit_names_a_command_that_slurm_takes(
    typist: Typist,
) -> None:
    (typist.directory / "config.yaml").write_text(BARE)
    for words in (("submit", "--no-check"),):
        refused = typist.type(HPCTRAIN, *words)
        assert refused.returncode == 1
        assert all(each in refused.stderr for each in SAID)
        fix = refused.stderr.splitlines()[-1].removeprefix("fix: ")
        assert fix.startswith(f"hpctrain {' '.join(words)} ")
    taken = typist.type(HPCTRAIN, *shlex.split(fix)[1:])
    assert taken.returncode == 0, taken.stderr


def test_init_writes_what_the_site_wants_and_slurm_takes_the_job(typist: Typist) -> None:
    (typist.directory / "config.yaml").unlink()
    done = typist.type(HPCTRAIN, "init", "--yes")
    assert done.returncode == 0, done.stderr
    assert config_of(typist).resources.gpu_type == "a100"
    assert config_of(typist).restart.mode == "chain"
    assert typist.test_only().returncode == 0
