"""A script that hpctrain did not write, held against a profile."""

import pytest

from hpctrain.checks.job.script import IDS, check_script
from hpctrain.clusters import load

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
#SBATCH --account=abc@h100
#SBATCH --constraint=h100
srun python train.py
"""


def found(text: str, cluster: str = "jean_zay") -> list[tuple[str, int | None]]:
    every = check_script(text, "old.sbatch", load.load(cluster, {}))
    findings = [finding for finding in every if finding.id in IDS]  # the others are lint's
    assert all(finding.file == "old.sbatch" and "old.sbatch" in finding.fix for finding in findings)
    return [(finding.id, finding.line) for finding in findings]


@pytest.mark.parametrize(
    "text",
    [
        SCRIPT,
        SCRIPT.replace("#SBATCH --gres=gpu:4\n", ""),
        '#!/bin/bash\n#SBATCH --comment="open\n',
    ],
    ids=["right", "without GPUs", "what sbatch would not read is left to lint"],
)
def test_nothing_is_found(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gpu:4", "gpu:8", ("gpus-per-node", 4)),
        ("01:00:00", "400:00:00\n#SBATCH --qos=qos_gpu_h100-t4", ("time-limit", 5)),
        ("#SBATCH --constraint=h100\n", "", ("account-nodes", 6)),
        ("--gres=gpu:4", "--gpus-per-node=5", ("gpus-per-node", 4)),
    ],
)
def test_what_contradicts_the_site(old: str, new: str, expected: tuple[str, int]) -> None:
    assert expected in found(SCRIPT.replace(old, new))


def test_what_is_missing_stands_at_the_first_line() -> None:
    assert ("directive-required", 1) in found(
        "#!/bin/bash\n#SBATCH --partition=gh\npython x.py\n", "tacc_vista"
    )


def test_a_port_is_no_matter_where_the_site_hands_out_whole_nodes() -> None:
    text = "#!/bin/bash\n#SBATCH --time=1:00\nexport MASTER_PORT=29500\nsrun python t.py\n"
    ports = {
        name: "fixed-port" in {one.id for one in check_script(text, "x", load.load(name, {}))}
        for name in ("frontier", "jean_zay")
    }
    assert ports == {"frontier": False, "jean_zay": True}
