"""The probes of places: file systems and quotas, the network switched off, Slurm, a node."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.clusters.live import Association, LiveCluster, LivePartition
from hpctrain.doctor import login
from hpctrain.doctor.facts import DoctorContext
from hpctrain.training.preflight import node_check
from hpctrain.util.file_systems import FileSystem, Quota, file_system, quota_of
from hpctrain.util.process import Finished
from tests.doctor.clusters import cluster

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


G = 1 << 30
DISK = FileSystem(mount="/home", kind="nfs4", free=90 * G)
QUOTA = Quota(used=10 * G, limit=50 * G, files=10, files_limit=100, command="quota")


@pytest.mark.parametrize(
    ("disk", "quota", "id_"),
    [
        (DISK, QUOTA, "ok"),
        (None, None, "ok"),
        (DISK, replace(QUOTA, used=99 * G, limit=0, files_limit=0), "ok"),
        (replace(DISK, free=G), QUOTA, "warning doctor-disk-full"),
        (DISK, replace(QUOTA, used=46 * G), "warning doctor-quota"),
        (DISK, replace(QUOTA, used=50 * G), "error doctor-quota"),
        (DISK, replace(QUOTA, files=95), "warning doctor-quota"),
        (DISK, replace(QUOTA, files=100), "error doctor-quota"),
    ],
)
def test_room_and_quotas(
    context: Callable[..., DoctorContext],
    monkeypatch: pytest.MonkeyPatch,
    disk: FileSystem | None,
    quota: Quota | None,
    id_: str,
) -> None:
    monkeypatch.setattr(login, "file_system", lambda path: disk)
    monkeypatch.setattr(login, "quota_of", lambda system: quota)
    (found,) = login.quotas(context())
    ids = sorted({finding.id for finding in found.findings})
    assert " ".join([found.word, *ids]) == id_


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
    (found,) = login.offline(context(spec={"arguments": arguments}))
    assert (found.word, found.sentence) == ("unknown", f"not tried: {said}")


def test_the_libraries_and_proxies_are_offline() -> None:
    assert login._OFFLINE["https_proxy"] == "http://127.0.0.1:9"
    assert login._OFFLINE["HF_HUB_OFFLINE"] == "1"


class Answer:
    """What a program answers instead of a real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stdout = self.stderr = ""
        monkeypatch.setattr(login, "run_limited", self.run)

    def run(self, argv: list[str], **_: object) -> Finished:
        return Finished(tuple(argv), 0, self.stdout, self.stderr)


NAMED = ("--model_name_or_path=m", "--dataset_name=d")


def test_what_starts_without_a_network(
    context: Callable[..., DoctorContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    Answer(monkeypatch)
    (found,) = login.offline(context(spec={"arguments": NAMED}))
    assert found.word == "ok"
    assert login.offline(context(quick=True))[0].word == "unknown"


@pytest.mark.parametrize(
    ("said", "id_"),
    [
        ("error: unknown option --learnig_rate; did you mean --learning_rate?", "doctor-start"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "doctor-start"),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
            "doctor-offline",
        ),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "doctor-offline"),
        ("OSError: [Errno 101] Network is unreachable", "doctor-offline"),
        (
            (
                "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in"
                " the disk cache"
            ),
            "doctor-offline",
        ),
    ],
)
def test_only_a_failure_of_the_network_is_called_one(
    context: Callable[..., DoctorContext], monkeypatch: pytest.MonkeyPatch, said: str, id_: str
) -> None:
    answer = Answer(monkeypatch)
    answer.stdout, answer.stderr = "HPCTRAIN-OFFLINE failed imports\n", f"{said}\n"
    ((finding,),) = [each.findings for each in login.offline(context(spec={"arguments": NAMED}))]
    assert (finding.id, finding.level) == (id_, "error")
    assert said in finding.evidence
    online = context(spec={"arguments": NAMED}, cluster=cluster(internet={"compute": "yes"}))
    assert login.offline(online)[0].word == ("warning" if id_ == "doctor-offline" else "error")


# -- Slurm -----------------------------------------------------------------------------------------

LIVE = LiveCluster(
    partitions=(LivePartition(name="a"), LivePartition(name="b")),
    associations=(Association(account="p1"), Association(account="p2")),
)


@pytest.mark.parametrize(
    ("live", "word", "id_"),
    [
        (LIVE, "ok", None),
        (replace(LIVE, associations=None), "ok", None),
        (replace(LIVE, associations=()), "warning", "doctor-no-account"),
        (LiveCluster(silent=("Connection refused",)), "error", "doctor-slurm-silent"),
        (LiveCluster(), "error", "doctor-slurm-silent"),
    ],
)
def test_slurm_and_the_accounts(
    context: Callable[..., DoctorContext],
    monkeypatch: pytest.MonkeyPatch,
    live: LiveCluster,
    word: str,
    id_: str | None,
) -> None:
    monkeypatch.setattr(login.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(login.discover, "discover", lambda timeout: live)
    profile, found = login.slurm(context(cluster=cluster()))
    assert (found.word, [finding.id for finding in found.findings]) == (word, [id_] if id_ else [])
    assert profile.sentence == "x: X; nodes with 4 GPUs A100"
    if live is LIVE:
        assert found.sentence == "Slurm, 2 partitions; your accounts: p1, p2"


def test_without_slurm_the_clusters_that_match_are_named(
    context: Callable[..., DoctorContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login.shutil, "which", lambda name: None)
    monkeypatch.setattr(login.load, "detect", lambda *_, **__: ["leonardo"])
    found = login.slurm(context())
    assert [each.word for each in found] == ["unknown", "unknown"]
    assert "--cluster leonardo" in found[0].sentence


# -- a node ----------------------------------------------------------------------------------------


def test_reading_and_writing_are_tried_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/part.arrow").write_bytes(bytes(5))
    before = sorted(tmp_path.rglob("*"))
    write, read, error_of = node_check.write_to, node_check.read_from, node_check.error_of
    assert error_of(read, str(tmp_path / "data")) is None
    assert error_of(write, str(tmp_path / "runs/sft-1/checkpoints")) is None
    assert error_of(write, str(tmp_path / "data/part.arrow/out")) == "Not a directory"
    assert error_of(write, "/proc/sys")
    assert error_of(read, str(tmp_path / "nowhere")) == "it contains no file"
    assert sorted(tmp_path.rglob("*")) == before
