"""`hpctrain check` on a real Slurm: it says beforehand what sbatch then says, and what it lets
through, sbatch takes.
"""

import json
import shlex
from pathlib import Path

import pytest

from tests.lab.typist import HPCTRAIN, Typist

pytestmark = pytest.mark.slurm

GOOD = (
    "--account",
    "proj_b",
    "--partition",
    "boost_usr_prod",
    "--nodes",
    "2",
    "--gpus",
    "4",
    "--cpus-per-task",
    "16",
    "--mem",
    "4G",
)
#: What is wrong → the finding, and a word of what sbatch says about the same job.
WRONG = [
    (("--account", "proj_c"), "account-unknown", "Invalid account"),
    (("--time", "2-00:00:00"), "time-limit", "Requested time limit is invalid"),
    (("--partition", "debug", "--time", "11"), "time-limit", "Requested time limit is invalid"),
    (("--gpus", "5"), "gpus-per-node", "Requested node configuration is not available"),
    (
        ("--nodes", "3"),
        "nodes-limit",
        "Node count specification invalid|Requested node configuration|More processors requested",
    ),
    (
        ("--cpus-per-task", "17"),
        "cores-limit",
        "CPU count per node|Requested node configuration|More processors requested",
    ),
    (("--mem", "9G"), "memory-limit", "Memory specification|Requested node configuration"),
    (("--partition", "gpux"), "partition-unknown", "invalid partition|Invalid partition"),
    (("--qos", "nope"), "qos-unknown", "Invalid qos"),
    (("--constraint", "h100"), "slurm-refuses", "Invalid feature"),
    (("--array", "0-1001"), "slurm-refuses", "Invalid job array specification"),
]


@pytest.fixture
def typist(tmp_path: Path, lab_env: dict[str, str]) -> Typist:
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "config.yaml").write_text("script: train.py\nlauncher: torchrun\n")
    return Typist(tmp_path, lab_env)


def with_changes(changes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the good options with these in place of theirs."""
    words = dict(zip(GOOD[::2], GOOD[1::2], strict=True)) | dict(
        zip(changes[::2], changes[1::2], strict=True)
    )
    return tuple(word for pair in words.items() for word in pair)


def test_what_is_right_is_taken_by_slurm_with_an_estimate(typist: Typist) -> None:
    found = typist.check(*GOOD)
    assert found["counts"]["error"] == 0, found["findings"]
    assert "to start at" in found["start_estimate"]
    assert "sbatch --test-only" in found["checked"]
    assert "Slurm (cluster lab)" in found["checked"]
    assert typist.test_only(*GOOD).returncode == 0
    said = typist.type(HPCTRAIN, "check", *GOOD)
    assert said.returncode == 0
    assert "Slurm says: Job " in said.stdout
    assert (
        typist.type("squeue", "-h", "--me", "-o", "%j %Z").stdout.count(str(typist.directory)) == 0
    )


@pytest.mark.parametrize(
    ("changes", "id_", "words"), WRONG, ids=[" ".join(changes) for changes, _, _ in WRONG]
)
def test_what_sbatch_refuses_check_has_said_before(
    typist: Typist, changes: tuple[str, ...], id_: str, words: str
) -> None:
    import re

    options = with_changes(changes)
    errors = [
        finding for finding in typist.check(*options)["findings"] if finding["level"] == "error"
    ]
    (found,) = (finding for finding in errors if finding["id"] == id_)
    refused = typist.test_only(*options)
    assert refused.returncode != 0
    assert re.search(words, refused.stderr), refused.stderr
    # One fault is one finding: the rule's, with Slurm's own word on it.
    assert (
        refused.stderr.strip().splitlines()[-1].partition("allocation failure: ")[2]
        in found["evidence"]
    )
    assert [finding["id"] for finding in errors if finding["id"] == "slurm-refuses"] in ([], [id_])


@pytest.mark.parametrize(
    ("changes", "id_", "words"), WRONG[:4], ids=[id_ for _, id_, _ in WRONG[:4]]
)
def test_the_fix_can_be_typed_and_then_slurm_takes_the_job(
    typist: Typist, changes: tuple[str, ...], id_: str, words: str
) -> None:
    options = with_changes(changes)
    (finding,) = (finding for finding in typist.check(*options)["findings"] if finding["id"] == id_)
    command = finding["fix"].partition("; or ")[0]
    assert command.startswith("hpctrain render ")
    check = command.replace("hpctrain render ", f"{HPCTRAIN} check --json ")
    done = typist.type("bash", "-c", check)
    found = json.loads(done.stdout)
    assert (done.returncode, found["counts"]["error"]) == (0, 0), found["findings"]
    assert typist.test_only(*command.split()[2:]).returncode == 0


def test_submit_stops_before_slurm_is_asked(typist: Typist) -> None:
    refused = typist.type(HPCTRAIN, "submit", *with_changes(("--account", "proj_c")))
    assert refused.returncode == 1
    assert "error account-unknown: " in refused.stderr
    assert "sacctmgr lists for you: " in refused.stderr
    assert "sbatch said" not in refused.stderr
    assert not (typist.directory / "sft.sbatch").exists()
    as_it_is = refused.stderr.rpartition("to submit unchanged: hpctrain ")[2]
    anyway = typist.type(HPCTRAIN, *shlex.split(as_it_is))
    assert anyway.returncode == 1
    assert "sbatch said" in anyway.stderr
    assert "Invalid account" in anyway.stderr
    assert "\nfix: sacctmgr" in anyway.stderr


def test_a_good_job_is_submitted_and_its_warnings_are_short(typist: Typist) -> None:
    done = typist.type(HPCTRAIN, "submit", "--parsable", *GOOD, "--time", "1")
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    assert job_id.isdigit()
    assert typist.type("scancel", job_id).returncode == 0
    assert all(
        len(line.split("; fix: ")) == 2
        for line in done.stderr.splitlines()
        if line.startswith("warning ")
    )
