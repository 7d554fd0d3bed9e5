"""What `hpctrain check` looks at: models, datasets, environments, folders; real files, real environments."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from check_desk import JOB, document, ids, with_job

from hpctrain.cli import surroundings
from hpctrain.jobs.spec import Container, JobSpec, Secret

if TYPE_CHECKING:
    from conftest import Desk


@pytest.fixture
def project(desk: Desk) -> Desk:
    return with_job(desk)


def safetensors(shape: list[int], dtype: str = "F32") -> bytes:
    """The header of a file of weights; the checks read no further."""
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}}).encode()
    return struct.pack("<Q", len(header)) + header


def model(desk: Desk, shape: list[int]) -> None:
    desk.write("model/config.json", '{"model_type": "qwen3"}')
    desk.write("model/tokenizer.json", "{}")
    desk.write("model/model.safetensors", safetensors(shape))


def dataset(desk: Desk, *columns: str) -> None:
    desk.write("data/dataset_dict.json", '{"splits": ["train"]}')
    desk.write("data/train/state.json", '{"_data_files": [{"filename": "data-0.arrow"}]}')
    desk.write("data/train/dataset_info.json", json.dumps({"features": {column: {} for column in columns}}))
    desk.write("data/train/data-0.arrow", b"")


def test_a_model_and_a_dataset_that_are_whole(project: Desk) -> None:
    model(project, [1000, 10])
    dataset(project, "input_ids")
    words = ("--", "--model_name_or_path", "model", "--dataset_name", "data")
    project.write("config.yaml", "launcher: srun\n")
    assert not ids(project, *words) & {"model-folder", "dataset-folder"}
    dataset(project, "text")
    (finding,) = (finding for finding in document(project, *words)["findings"] if finding["id"] == "dataset-folder")
    assert "is not tokenised" in finding["what"]
    project.write("model/model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (finding,) = (finding for finding in document(project, *words)["findings"] if finding["id"] == "model-folder")
    assert "git-lfs pointer" in finding["what"]
    assert finding["fix"] == f"git -C {project.directory}/model lfs pull"


def test_the_parameters_are_counted_in_the_headers(project: Desk) -> None:
    """20 000 x 400 000 = 8e9 parameters: too large for one 64 GB GPU, whatever the size of the file."""
    project.write("config.yaml", "launcher: srun\nresources: {gpus_per_node: 4}\n")
    dataset(project, "input_ids")
    words = ("--cluster", "leonardo", "--", "--model_name_or_path", "model", "--dataset_name", "data")
    model(project, [20_000, 400_000])
    found = {finding["id"]: finding for finding in document(project, *words)["findings"]}
    assert "8.00 billion parameters x 16 bytes" in found["gpu-memory"]["evidence"]
    assert "one checkpoint is 89.4 GiB" in found["output-space"]["what"] or "output-space" not in found
    model(project, [20_000, 4_000])
    assert "gpu-memory" not in ids(project, *words)


def test_an_index_tells_the_parameters_where_there_are_many_files(project: Desk) -> None:
    project.write("model/config.json", '{"dtype": "bfloat16"}')
    project.write("model/model.safetensors.index.json", '{"metadata": {"total_size": 16000000000}, "weight_map": {}}')
    for number in range(20):
        project.write(f"model/model-{number}.safetensors", b"")
    facts = surroundings.gather(JobSpec(job_name="x", chdir=str(project.directory), arguments=("--model_name_or_path", "model")))
    assert facts.model is not None
    assert facts.model.parameters == 8_000_000_000


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.ipynb", '{"cells": []}', "notebook"), ("a.sh", "#!/bin/bash\ntrue\n", "shell"), ("a.bin", b"\x7fELF\0\0", "binary"),
        ("a.yaml", "x: 1\n", "other"), ("train", "#!/usr/bin/env python3\nprint()\n", "python"), ("a.py",
        "# -*- coding: latin-1 -*-\nx = '\xe9'\n", "python"),
    ],
)  # fmt: skip
def test_what_a_script_is(project: Desk, name: str, content: str | bytes, kind: str) -> None:
    project.write(name, content.encode("latin-1") if isinstance(content, str) else content)
    facts = surroundings.gather(JobSpec(job_name="x", chdir=str(project.directory), script=name))
    assert facts.script is not None
    assert (facts.script.looks_like, facts.script.syntax) == (kind, None)


def venv(desk: Desk, name: str, *packages: str, torch: str | None = None, python: bytes = b"", version: str = "3.11") -> None:
    """A virtual environment as far as it is read: no pip is started."""
    desk.write(f"{name}/bin/activate", "")
    desk.write(f"{name}/bin/python", python)
    desk.write(f"{name}/pyvenv.cfg", f"home = {Path(sys.base_prefix) / 'bin'}\ninclude-system-site-packages = false\n")
    for package in packages:
        desk.write(f"{name}/lib/python{version}/site-packages/{package}-1.0.dist-info/METADATA", "")
    if torch is not None:
        desk.write(f"{name}/lib/python{version}/site-packages/torch/version.py", torch)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("chats.jsonl", "hpctrain prepare chats.jsonl --model {model} --to chats, then: dataset_name: chats under training in config.yaml"),
        ("my $(touch x).csv.gz", "hpctrain prepare 'my $(touch x).csv.gz' --model {model} --to 'my $(touch x)', then: dataset_name: "),
        ("raw/", "hpctrain prepare raw/ --model {model} --to raw-prepared, then: dataset_name: raw-prepared under "),
        ("chats", "hpctrain prepare chats --model {model} --to chats-prepared, then: "),
    ],
)
def test_of_raw_data_a_dataset_can_be_made(project: Desk, data: str, expected: str) -> None:
    project.write(data if not data.endswith("/") else f"{data}a.jsonl", '{"text": "hello"}\n')
    project.write("config.yaml", "launcher: srun\n")
    words = ["--", "--model_name_or_path", "m", "--dataset_name", data]
    (finding,) = (finding for finding in document(project, *words)["findings"] if finding["id"] == "dataset-folder")
    assert finding["fix"].startswith(expected.format(model="m"))
    assert "hpctrain prepare DATA" in next(
        each["fix"] for each in document(project, *words[:-1], "nowhere")["findings"] if each["id"] == "dataset-folder"
    )


def test_the_releases_of_the_libraries_are_read(project: Desk) -> None:
    venv(project, ".venv", "trl", "transformers", "torch")
    facts = surroundings.gather(JobSpec(job_name="x", chdir=str(project.directory), venv=".venv"))
    assert facts.python is not None
    assert facts.python.distributions == {"trl": "1.0", "transformers": "1.0"}
    project.write(".venv/lib/python3.11/site-packages/trl-1.16.0.dist-info/METADATA", "")
    facts = surroundings.gather(JobSpec(job_name="x", chdir=str(project.directory), venv=".venv"))
    assert facts.python is not None
    assert facts.python.distributions == {"transformers": "1.0"}


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, machine) + bytes(44)


CPU_TORCH = "__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA_TORCH = "__version__ = '2.9.0'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
ROCM_TORCH = "__version__ = '2.9.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n"


@pytest.mark.parametrize(("text", "build"), [(CPU_TORCH, "cpu"), (CUDA_TORCH, "cuda"), (ROCM_TORCH, "rocm"), (None, None)])
def test_torchs_build_is_read_and_not_imported(project: Desk, text: str | None, build: str | None) -> None:
    venv(project, "env", torch=text)
    facts = surroundings.gather(JobSpec(job_name="x", chdir=str(project.directory), venv="env"))
    assert facts.python is not None
    assert facts.python.torch == build


@pytest.mark.parametrize(("machine", "found"), [(62, True), (183, False), (None, False)])
def test_the_architecture_of_an_environment(project: Desk, machine: int | None, found: bool) -> None:
    """tacc_vista's nodes are aarch64; what is no ELF file has no architecture."""
    venv(project, "env", "torch", python=elf(machine) if machine else b"#!/bin/sh\n")
    words = ("--venv", "env", "--cluster", "tacc_vista", "--account", "X", "--level", "warning")
    assert ("environment-architecture" in ids(project, *words)) is found


def test_a_real_virtual_environment_is_whole(project: Desk) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "real"], cwd=project.directory, check=True)
    facts = surroundings.gather(JobSpec(job_name="x", chdir=str(project.directory), venv="real")).python
    assert facts is not None
    assert facts.prefix is not None
    assert (facts.activates, facts.home_exists, facts.version) == (True, True, sys.version_info[:2])
    assert facts.arch == os.uname().machine
    assert facts.packages is not None
    assert "torch" not in facts.packages
    config = project.directory / "real/pyvenv.cfg"
    config.write_text(config.read_text().replace("home = ", "home = /gone"))
    assert "environment-broken" in ids(project, "--venv", "real")
    assert "environment-lacks" in ids(project, "--venv", "real")


def test_what_is_missing_of_an_environment(project: Desk) -> None:
    assert "environment-missing" in ids(project, "--venv", "nope")
    (project.directory / "empty").mkdir()
    found = document(project, "--venv", "empty")["findings"]
    assert [f["what"] for f in found if f["id"] == "environment-missing"] == ["empty is no venv environment: bin/activate is not there"]
    assert "environment-missing" in ids(project, "--uv", ".")
    venv(project, ".venv", "torch")
    assert "environment-missing" not in ids(project, "--uv", ".")


def test_a_conda_environment_is_found_where_conda_writes_it_down(project: Desk) -> None:
    project.set(HOME=str(project.directory))
    project.write("forge/envs/train/conda-meta/history", "")
    assert "environment-missing" in ids(project, "--conda", "train")
    project.write(".conda/environments.txt", f"{project.directory}/forge/envs/train\n")
    assert "environment-missing" not in ids(project, "--conda", "train")


def test_newer_python_than_ours_is_not_judged_by_ours(project: Desk) -> None:
    project.write("train.py", "x = (\n")
    venv(project, "old", "torch", version="3.11")
    venv(project, "new", "torch", version="3.99")
    assert "script-syntax" in ids(project, "--venv", "old")
    assert "script-syntax" not in ids(project, "--venv", "new")


def test_hooks_secrets_and_leaks(project: Desk) -> None:
    project.write("config.yaml", JOB + "environment:\n  before: [setup.sh]\n  secrets: {HF_TOKEN: ./token, WANDB_API_KEY: environment}\n")
    project.set(SBATCH_ACCOUNT="x", PET_NNODES="3")
    token = project.write("token", "hf_x\n")
    token.chmod(0o644)
    found = ids(project)
    assert {"hook-missing", "secret-file-open", "secret-missing", "shell-leaks"} <= found
    token.chmod(0o600)
    project.write("setup.sh", "true\n")
    project.set(WANDB_API_KEY="k")
    assert not ids(project) & {"hook-missing", "secret-file-open", "secret-missing"}


def test_a_container_and_its_binds(project: Desk) -> None:
    container = Container(engine="apptainer", image="x.sif", binds=("gone:/data", "$SCRATCH:/s", "."))
    facts = surroundings.gather(JobSpec(job_name="x", chdir=str(project.directory), container=container))
    assert facts.image is not None
    assert not facts.image.exists
    assert [(bind.said, bind.exists) for bind in facts.binds] == [("gone", False), (".", True)]
    for engine, image in (("apptainer", "docker://x"), ("pyxis", "nvcr.io/x"), ("ce", "ngc")):
        assert surroundings.gather(JobSpec(job_name="x", chdir="/", container=Container(engine=engine, image=image))).image is None  # type: ignore[arg-type]


def test_an_accelerate_config_of_ones_own(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\naccelerate_config: mine.yaml\n")
    assert "accelerate-config" in ids(project)
    project.write("mine.yaml", "distributed_type: 'NO'\n")
    (finding,) = (finding for finding in document(project)["findings"] if finding["id"] == "accelerate-config")
    assert finding["evidence"].startswith("mine.yaml:1:1")
    project.write("mine.yaml", "distributed_type: MULTI_GPU\n")
    assert "accelerate-config" not in ids(project)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(project: Desk) -> None:
    project.directory.chmod(0o500)
    try:
        assert "chdir-not-writable" in ids(project)
    finally:
        project.directory.chmod(0o700)


def test_an_output_that_is_a_file(project: Desk) -> None:
    project.write("out", "")
    assert "output-not-writable" in ids(project, "--", "--output_dir", "out")
    assert "output-not-writable" not in ids(project, "--", "--output_dir", "out2/deep")


def test_a_full_memory_file_system_holds_no_checkpoint(project: Desk) -> None:
    """/dev/shm is real and small; a model of 10^12 parameters is larger than any of it."""
    model(project, [1_000_000, 1_000_000])
    dataset(project, "input_ids")
    project.write("config.yaml", "launcher: srun\n")
    words = ("--", "--model_name_or_path", "model", "--dataset_name", "data", "--output_dir", "/dev/shm/hpctrain-check")
    found = {finding["id"]: finding for finding in document(project, *words)["findings"]}
    assert "/dev/shm" in found["output-space"]["evidence"]
    assert "/dev/shm" in found["path-not-shared"]["what"]


def test_the_quota_counts_where_it_leaves_less(project: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real `quota` program, of this test's own, says what quota(1) prints."""
    where = surroundings.path_facts(str(project.directory), "/")
    assert where.filesystem is not None
    monkeypatch.setattr(surroundings, "_QUOTA_KINDS", frozenset({where.filesystem.kind}))
    mount = where.filesystem.mount
    row = f"{mount} 1000 2000 3000 0 90 95 100 0"
    header = "Disk quotas for user me (uid 1):\n Filesystem space quota limit grace files quota limit grace"
    project.program("quota", f"cat <<'END'\n{header}\n{row}\nEND")
    facts = surroundings.gather(JobSpec(job_name="x", chdir=str(project.directory), script="train.py"))
    assert facts.output is not None
    assert facts.output.filesystem is not None
    system = facts.output.filesystem
    assert (system.free, system.free_files, system.limit) == (2000 * 1024, 10, "quota")
    assert "output-files" in ids(project)
    project.program("quota", "sleep 60")
    monkeypatch.setattr(surroundings, "QUOTA_TIMEOUT_S", 0.2)
    assert "output-files" not in ids(project)


def test_a_job_for_another_machine(project: Desk) -> None:
    """Its directory is not here: a warning, and nothing is said about files that nobody can see."""
    found = document(project, "--chdir", "/leonardo_work/proj/sft", "--cluster", "leonardo", "--account", "EUHPC_A06_067")
    assert {finding["id"] for finding in found["findings"] if finding["level"] == "error"} == set()
    assert "chdir-missing" in {finding["id"] for finding in found["findings"]}
    assert "files in /leonardo_work/proj/sft, which is not here" in found["not_checked"]


def test_secrets_of_the_caller_are_facts_without_values(project: Desk) -> None:
    project.set(MY_TOKEN="hf_verysecret")
    facts = surroundings.gather(JobSpec(job_name="x", chdir=str(project.directory), secrets=(Secret(name="MY_TOKEN"),)))
    assert facts.secrets[0].in_shell
    assert "verysecret" not in repr(facts)
