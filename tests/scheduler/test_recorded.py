"""What the programs of other Slurm versions printed, in the words in which hpctrain asked them
(recorded/slurm-*, of which only paths were changed), and what is read in it: parsed.json beside them,
compared whole.

20.11.4 is Debian 11's; the others are those of other Debian releases: the rough lab's two
nodes, and jobs of which some have ended, one runs and some wait.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hpctrain.clusters import discover
from hpctrain.slurm.notations import records

RECORDED = Path(__file__).with_name("recorded")
VERSIONS = ("slurm-20.11", "slurm-24.11", "slurm-26.05")
CLUSTER = ("nodes", "partitions", "config", "users", "qos")


def read(version: str) -> dict[str, Any]:
    """Return what is read in the texts of a version: the status and the accounts of each job by each
    program, and the cluster.
    """
    texts = {path.stem: path.read_text() for path in (RECORDED / version).glob("*.txt")}
    fields = records.fields_of(texts.get("sacct-helpformat") or texts["helpformat"])
    shown = records.parse_scontrol_jobs(texts.get("scontrol-jobs") or texts["scontrol"])
    found: dict[str, Any] = {
        "fields that sacct lacks": sorted(set(records.FIELDS) - set(fields)),
        "squeue": records.parse_squeue(texts["squeue"]),
        "accounts of sacct": records.newest(records.parse_sacct(texts["sacct"], fields)),
        "accounts of scontrol": [records.from_scontrol(each) for each in shown],
        "cluster": [discover.from_texts({name: texts[name] for name in CLUSTER if name in texts})],
    }
    plain = {
        key: [each if isinstance(each, str) else _known(asdict(each)) for each in value]
        for key, value in found.items()
    }
    return dict(json.loads(json.dumps(plain)))


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(each) for key, each in value.items() if each not in (None, (), [])}
    return [_known(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("version", VERSIONS)
def test_what_each_version_printed_is_read(version: str, request: pytest.FixtureRequest) -> None:
    golden = RECORDED / version / "parsed.json"
    found = read(version)
    if request.config.getoption("--update-golden"):
        golden.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == json.loads(golden.read_text()), "write it with: pytest --update-golden"
