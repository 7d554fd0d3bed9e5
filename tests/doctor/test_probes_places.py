"""The probes of places, on this machine: file systems, the network switched off, a node."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.doctor import environment
from hpctrain.doctor.facts import DoctorContext
from hpctrain.training.preflight import node_check
from hpctrain.util.file_systems import FileSystem, file_system, quota_of

# -- storage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/proc", "/dev/shm", "/usr/bin/env"])
def test_the_file_system_is_what_findmnt_says(path: str) -> None:
    said = subprocess.run(
        ["findmnt", "-n", "-o", "FSTYPE", "-T", path], capture_output=True, text=True, check=True
    )
    assert file_system(path).kind == said.stdout.split()[-1]


@pytest.mark.parametrize(
    ("kind", "said", "used"),
    [
        ("nfs4", " Filesystem blocks quota\n nas:/h 100* 90 100 5 7 0 0 0", 102400),
        # It breaks the line after a long path.
        ("lustre", "/mnt/h\n    100* 90 0 - 7 0 0 -", 102400),
        ("nfs4", "Disk quotas for user ada (uid 1000): none", None),
        ("nfs4", "nas:/h 100", None),
    ],
)
def test_the_quota_programs_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str, used: int | None
) -> None:
    path = tmp_path / "bin" / ("lfs" if kind == "lustre" else "quota")
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    found = quota_of(FileSystem(mount="/mnt/h", kind=kind, device="nas:/h", free=0))
    assert (found.used if found else None) == used
    if found is not None:
        assert (found.limit, found.files, found.files_limit) == (
            (90 if kind == "lustre" else 100) * 1024,
            7,
            0,
        )


# -- the network switched off ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the job names no model and no dataset yet"),
        (("--model_name_or_path", "m"), "the job names no dataset yet"),
        (("--dataset-name=d",), "the job names no model yet"),
    ],
)
def test_what_is_not_named_is_said(
    context: Callable[..., DoctorContext], arguments: tuple[str, ...], said: str
) -> None:
    assert environment.offline(context(spec={"arguments": arguments})).skipped == said


def test_the_libraries_and_proxies_are_offline(
    context: Callable[..., DoctorContext], tmp_path: Path
) -> None:
    (tmp_path / "says.py").write_text(
        "import os, sys\nsys.exit(os.environ['https_proxy'] + os.environ['HF_HUB_OFFLINE'])\n"
    )
    (tmp_path / "train.py").write_text("import says\n")
    facts = environment.offline(context(spec={"venv": sys.prefix, "script": "train.py"}))
    assert facts.failed == "import says"
    assert facts.messages == ("SystemExit: http://127.0.0.1:91",)


# -- a node ----------------------------------------------------------------------------------------


def test_reading_and_writing_are_tried_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/part.arrow").write_bytes(bytes(5))
    before = sorted(tmp_path.rglob("*"))
    for found in (
        node_check.try_reading(str(tmp_path / "data")),
        node_check.try_writing(str(tmp_path / "runs/sft-1/checkpoints")),
    ):
        assert found["error"] is None
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert node_check.try_writing(str(tmp_path / "file/out"))["error"] == "Not a directory"
    assert node_check.try_writing("/proc/sys")["error"]
    assert node_check.try_reading(str(tmp_path / "nowhere"))["error"] == "it contains no file"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_cores_are_those_of_taskset() -> None:
    code = (
        "import json\nfrom hpctrain.training.preflight import node_check\n"
        "print(json.dumps(node_check.process_facts({'SLURM_CPUS_PER_TASK': '4'})))"
    )
    core = str(min(os.sched_getaffinity(0)))
    done = subprocess.run(
        ["taskset", "-c", core, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'"cpus": "{core}", "cpus_per_task": 4' in done.stdout


def test_the_facts_of_a_node() -> None:
    assert node_check.node_facts({"SLURM_GPUS_ON_NODE": "2"}) == {
        "cores": os.cpu_count(),
        "gpus_given": 2,
    }
