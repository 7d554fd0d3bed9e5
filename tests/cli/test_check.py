"""`hpctrain check` and the checks of `submit`: real files, real environments, stub programs for Slurm."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpctrain.cli import surroundings
from hpctrain.jobs.check import IDS
from hpctrain.jobs.spec import Container, JobSpec, Secret

if TYPE_CHECKING:
    from conftest import Desk

#: A job that needs nothing but a script; PATH has its launcher.
JOB = "script: train.py\nlauncher: srun\nresources:\n  cpus_per_task: 4\n"
SINFO = "gpu*|up|1-00:00:00|01:00:00|1-64|EXCLUSIVE|"


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("train.py", "print('trained')\n")
    desk.write("config.yaml", JOB)
    return desk


def document(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run("check", "--json", "--no-slurm", *words)
    found: dict[str, Any] = json.loads(said.out)
    assert found["schema"] == 1
    assert said.code == (1 if found["counts"]["error"] else 0)
    return found


def ids(desk: Desk, *words: str) -> set[str]:
    return {finding["id"] for finding in document(desk, *words)["findings"]}


def shared(found: set[str]) -> set[str]:
    """Without what is true of a test's directory."""
    return found - {"path-not-shared"}


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


# -- what is shown ------------------------------------------------------------------------------------------------------


def test_nothing_wrong_is_said_with_what_was_and_was_not_checked(project: Desk) -> None:
    said = project.run("check", "--no-slurm", "--level", "error")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("1 node x 1 GPU = 1 process: ")
    assert "checked: config, files, environment" in lines
    assert "not checked: Slurm: --no-slurm" in lines
    assert "a cluster profile: none is named" in said.out
    assert said.err == "next: hpctrain submit\n"


def test_a_block_has_what_evidence_reason_and_fix_in_eighty_columns(project: Desk) -> None:
    project.write("train.py", "def broken(:\n    pass\n")
    said = project.run("check", "--no-slurm")
    assert said.code == 1
    text = said.out
    assert "error script-syntax: " in text
    assert "  seen: train.py:1:12: " in text
    assert "  why:  every process ends at once with SyntaxError\n" in text
    assert "  fix:  edit train.py, then: python3 -m py_compile train.py\n" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_json_has_every_key_and_the_place_in_the_file(project: Desk) -> None:
    project.write("config.yaml", JOB + "  time: 3-00:00:00\n")
    found = document(project, "--cluster", "leonardo", "--account", "EUHPC_A06_067")
    assert found["cluster"] == "leonardo"
    assert found["job"] == {"name": "sft", "nodes": 1, "gpus_per_node": 1, "processes": 1}
    (limit,) = (finding for finding in found["findings"] if finding["id"] == "time-limit")
    assert (limit["file"], limit["line"], limit["column"]) == ("config.yaml", 5, 3)
    assert limit["docs"] == "docs/findings/time-limit.md"
    assert "config.yaml:5:3: time: 3-00:00:00; profile leonardo: " in limit["evidence"]
    assert found["counts"]["error"] >= 1
    assert found["start_estimate"] is None
    assert {finding["id"] for finding in found["findings"]} <= set(IDS)


def test_the_level_hides_findings_and_changes_no_exit_code(project: Desk) -> None:
    project.write("train.py", "(\n")
    words = ("check", "--no-slurm", "--cluster", "leonardo", "--account", "EUHPC_A06_067")
    assert "note single-process" in project.run(*words).out
    said = project.run(*words, "--level", "error")
    assert "note single-process" not in said.out
    assert "1 note" in said.out
    assert said.code == 1


def test_show_origin_says_which_layer_won_and_over_what(project: Desk) -> None:
    project.set(HPCTRAIN_NODES="3")
    project.write("config.yaml", JOB + "  nodes: 2\nenvironment:\n  env: {MY_PASSWORD: hunter2}\n")
    said = project.run("check", "--no-slurm", "--show-origin", "--nodes", "4")
    assert "resources.nodes = 4   --nodes   (over HPCTRAIN_NODES, config.yaml:5:3)\n" in said.out
    assert "resources.time = 01:00:00   default\n" in said.out
    assert "MY_PASSWORD" in said.out
    assert "hunter2" not in said.out
    values = {value["key"]: value for value in document(project, "--show-origin")["values"]}
    assert values["resources.nodes"] == {"key": "resources.nodes", "value": 3, "origin": "HPCTRAIN_NODES", "over": ["config.yaml:5:3"]}


def test_a_profiles_value_says_so_as_origin(project: Desk) -> None:
    values = {value["key"]: value for value in document(project, "--cluster", "frontier", "--show-origin")["values"]}
    assert values["resources.gpu_directive"]["value"] == "none"
    assert values["resources.gpu_directive"]["origin"].startswith("profile frontier: documented")


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("train.py",), "fix: hpctrain check --script train.py"),
        (("x.sbatch",), "fix: hpctrain lint x.sbatch"),
        (("a.yaml", "--config", "b.yaml"), "fix: hpctrain check a.yaml"),
        (("nope.yaml",), "fix: --config with one of: ls *.yaml; without --config, ./config.yaml is read"),
    ],
)
def test_what_is_no_job_config_is_a_usage_error(project: Desk, words: tuple[str, ...], fix: str) -> None:
    assert project.refused("check", *words).lines[-1] == fix


def test_a_wrong_config_is_a_config_error(project: Desk) -> None:
    project.write("config.yaml", JOB + "  tiem: 5\n")
    assert "unknown key 'tiem'" in project.refused("check").err


def test_a_config_may_be_named(project: Desk) -> None:
    project.write("other.yaml", JOB.replace("train.py", "gone.py"))
    found = document(project, "other.yaml")
    (finding,) = (finding for finding in found["findings"] if finding["id"] == "script-missing")
    assert finding["evidence"] == "other.yaml:1:1: script: gone.py"
    assert "--config other.yaml" in finding["fix"]


def test_nothing_is_written(project: Desk) -> None:
    before = project.snapshot()
    project.run("check", "--no-slurm", "--cluster", "jean_zay")
    assert project.snapshot() == before


# -- what is looked at --------------------------------------------------------------------------------------------------


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


# -- Slurm, by stub programs --------------------------------------------------------------------------------------------


def slurm(desk: Desk, sbatch: str) -> None:
    for name in ("sinfo", "scontrol", "sacctmgr", "squeue", "sacct"):
        desk.program(name, "echo 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2; exit 1")
    desk.program("sbatch", sbatch)


def test_a_slurm_that_does_not_answer_is_not_checked_against(project: Desk) -> None:
    slurm(project, "exit 1")
    found = json.loads(project.run("check", "--json").out)
    said = [sentence for sentence in found["not_checked"] if sentence.startswith("Slurm")]
    assert said == ["Slurm: it does not answer (sinfo: slurm_load_ctl_conf error: Unable to contact slurm controller)"]
    assert not any(sentence.startswith("Slurm") for sentence in found["checked"])


def test_one_program_that_does_not_answer_is_named_without_its_format(project: Desk) -> None:
    slurm(project, "exit 1")
    project.program("scontrol", '[ "$2" = config ] && echo "ClusterName = lab" || echo "PartitionName=gpu State=UP"')
    found = json.loads(project.run("check", "--json").out)
    said = [sentence for sentence in found["not_checked"] if sentence.startswith("Slurm")]
    failed = "slurm_load_ctl_conf error: Unable to contact slurm controller"
    assert said == [f"Slurm: {name}: {failed}" for name in ("sinfo", "sacctmgr show user", "sacctmgr show qos")]


def test_submit_stops_on_errors_and_shows_them_whole(project: Desk) -> None:
    calls = project.directory.parent / "called"
    slurm(project, f"touch {calls}; echo 7")
    assert project.run("render").code == 0
    project.write("train.py", "(\n")
    said = project.run("submit")
    assert said.code == 1
    assert not calls.exists()
    assert "error: not submitted: 1 error in the job\n" in said.err
    assert "error script-syntax: " in said.err
    assert said.lines[-1] == "fix: as above, then submit again; to submit as it is: hpctrain submit --no-check"
    assert project.run("submit", "--no-check").code == 0
    assert calls.exists()


def test_submit_shows_warnings_in_a_line_each_and_goes_on(project: Desk) -> None:
    slurm(project, "echo 7")
    project.set(SBATCH_QOS="x")
    assert project.run("render").code == 0
    said = project.run("submit", "--parsable")
    assert (said.code, said.out) == (0, "7\n")
    assert sum(line.startswith("warning shell-leaks: ") for line in said.lines) == 1
    assert "note single-process" not in said.err


def test_a_script_of_ones_own_is_judged_by_its_text_alone(project: Desk) -> None:
    slurm(project, "echo 7")
    assert project.run("render").code == 0
    project.write("train.py", "(\n")
    project.write("own.sbatch", "#!/bin/bash\ntrue\n")
    assert project.run("submit", "own.sbatch").code == 0
    assert "script-syntax" in project.refused("submit", "sft.sbatch", code=1).err
    script = project.directory / "sft.sbatch"
    script.write_text(script.read_text() + "# mine\n")
    assert project.run("submit").code == 0


@pytest.mark.usefixtures("no_slurm")
def test_here_nothing_about_a_cluster_is_checked(project: Desk) -> None:
    project.write("config.yaml", JOB + "  time: 100-00:00:00\n")
    assert project.run("render", "--cluster", "leonardo").code == 0
    assert "time-limit" in ids(project, "--cluster", "leonardo")
    said = project.run("submit", "--cluster", "leonardo")
    assert "time-limit" not in said.err
    assert "path-not-shared" not in said.err


def test_heavy_packages_stay_out(project: Desk, hpctrain: str) -> None:
    code = (
        "import sys\nfrom hpctrain.cli import main\ntry: main(['check', '--no-slurm', '--cluster', 'leonardo'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'rich', 'datasets', 'accelerate', 'trl', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
