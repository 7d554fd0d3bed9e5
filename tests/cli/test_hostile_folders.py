"""`hpctrain check` in folders that hold FIFOs, devices and garbage: it says what it can, and hangs nowhere."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.cli import surroundings
from hpctrain.jobs.spec import Container, JobSpec

OURS = "model_name_or_path: m\n  dataset_name: d\n"


def weights(header: str) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a whole model, a whole dataset and a virtual environment."""
    files: dict[str, str | bytes] = {
        "m/config.json": '{"model_type": "qwen3"}', "m/tokenizer.json": "{}", "m/model.safetensors": weights('{"w": {"shape": [3, 4]}}'),
        "d/state.json": '{"_data_files": [{"filename": "data.arrow"}]}', "d/data.arrow": "",
        "d/dataset_info.json": '{"features": {"input_ids": {}}}', "t.py": "print()\n",
        "v/bin/activate": "", "v/pyvenv.cfg": "home = /usr/bin\n", "v/lib/python3.11/site-packages/torch/version.py": "cuda = None\n",
    }  # fmt: skip
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(hpctrain: str, *words: str) -> tuple[int, str]:
    """Run the real command, with a memory limit: what reads a device to its end must not take the machine with it."""
    limited = ["bash", "-c", 'ulimit -v 4000000; exec "$@"', "bash", hpctrain, "check", "--no-slurm", *words]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


TRAINING = ("--", "--model_name_or_path", "m", "--dataset_name", "d")


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def zero(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [fifo, zero])
@pytest.mark.parametrize("name", ["m/config.json", "m/model.safetensors", "d/dataset_info.json", "d/state.json"])
def test_no_check_waits_for_a_model_or_dataset_that_is_no_file(
    folder: Path, hpctrain: str, name: str, make: Callable[[Path], None]
) -> None:
    make(folder / name)
    code, said = check(hpctrain, *TRAINING)
    assert code == 1
    assert "mistake in hpctrain" not in said
    assert "not checked: the" not in said  # by its reader, not by the net under it


@pytest.mark.parametrize("name", ["v/bin/python", "v/pyvenv.cfg", "v/lib/python3.11/site-packages/torch/version.py"])
def test_no_check_waits_for_an_environment_that_is_no_file(folder: Path, hpctrain: str, name: str) -> None:
    fifo(folder / name)
    code, said = check(hpctrain, "--venv", "v", *TRAINING)
    assert code in (0, 1)
    assert "mistake in hpctrain" not in said


def test_no_check_waits_for_a_script_an_accelerate_config_or_a_profile_that_is_no_file(
    folder: Path, hpctrain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.yaml", "s.py", "clusters/y.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        os.mkfifo(folder / name)
    code, said = check(hpctrain, "--script", "s.py")
    assert "mistake in hpctrain" not in said
    code, said = check(hpctrain, "--launcher", "accelerate", "--accelerate-config", "a.yaml", *TRAINING)
    assert code == 1
    assert "it is not a regular file" in said
    monkeypatch.setenv("HPCTRAIN_CLUSTERS", str(folder / "clusters"))
    code, said = check(hpctrain, *TRAINING)  # looks which profile knows this machine
    assert "mistake in hpctrain" not in said
    code, said = check(hpctrain, "--cluster", "y", *TRAINING)
    assert code == 2
    assert "it is not a regular file" in said


DEEP = "[" * 100_000
GARBAGE: list[tuple[str, str | bytes]] = [
    *(("m/model.safetensors.index.json", text) for text in ('{"metadata": 5}', '{"weight_map": 5}', '{"weight_map": {"a": 5}}', DEEP)),
    ("m/model.safetensors.index.json", '{"metadata": {"total_size": 1' + "0" * 4000 + '}, "weight_map": {"a": "model.safetensors"}}'),
    *(("m/model.safetensors", weights(text)) for text in (
        '{"a":5}', '{"a":{"shape":5}}', '{"a":{"shape":["x"]}}', '{"a":{"shape":[null]}}', '{"a":{"shape":[1e308,1e308]}}',
        json.dumps({"a": {"shape": ["9" * 5000]}}), '{"a":{"shape":[' + ",".join(["9" * 4000] * 4) + "]}}", '{"a":{"shape":[-3]}}', DEEP,
    )),
    ("m/config.json", DEEP), ("m/config.json", '{"dtype": [], "quantization_config": 5}'),
    ("d/dataset_info.json", '{"features": 5}'), ("d/dataset_info.json", DEEP), ("d/state.json", '{"_data_files": 5}'),
    ("d/state.json", '{"_data_files": [5, {"filename": 5}]}'),
    ("d/dataset_dict.json", '{"splits": [null, "' + "x" * 300 + '", "a\\u0000b", "train"]}'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), GARBAGE, ids=lambda text: str(text)[:40])
def test_garbage_in_a_folder_is_no_bug_of_ours(folder: Path, name: str, content: str | bytes) -> None:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    skipped: list[str] = []
    spec = JobSpec(job_name="a", chdir=str(folder), arguments=TRAINING[1:])
    found = surroundings.gather(spec, quotas=False, not_checked=skipped)
    assert skipped == []
    assert found.model is not None
    assert found.dataset is not None
    if name == "m/model.safetensors":
        assert found.model.parameters is None
    if "weight_map" in str(content) and "total_size" not in str(content):
        assert [what for what, _ in found.model.problems if "weight_map" in what]
    if name.startswith("d/"):
        assert found.dataset.problems


def test_a_command_says_what_is_wrong_with_garbage(folder: Path, hpctrain: str) -> None:
    (folder / "m/model.safetensors.index.json").write_text('{"weight_map": 5}')
    (folder / "d/dataset_info.json").write_text('{"features": 5}')
    code, said = check(hpctrain, *TRAINING)
    assert code == 1
    assert "weight_map" in said
    assert "damaged" in said


@pytest.mark.parametrize("text", ["-" * 100_000 + "1", "+".join(["1"] * 200_000)], ids=["memory", "recursion"])
def test_a_script_that_is_too_deep_to_compile(folder: Path, text: str) -> None:
    (folder / "t.py").write_text(text)
    skipped: list[str] = []
    found = surroundings.gather(JobSpec(job_name="a", chdir=str(folder), script="t.py"), quotas=False, not_checked=skipped)
    assert skipped == []
    assert found.script is not None


@pytest.mark.parametrize("key", ["venv", "conda"])
def test_an_environment_of_a_user_that_is_not_there(folder: Path, key: str) -> None:
    skipped: list[str] = []
    found = surroundings.gather(JobSpec(job_name="a", chdir=str(folder), **{key: "~nouser/x"}), quotas=False, not_checked=skipped)
    assert skipped == []
    assert found.python is not None
    assert found.python.prefix is not None
    assert not found.python.prefix.exists


def test_paths_of_a_user_that_is_not_there(folder: Path) -> None:
    skipped: list[str] = []
    spec = JobSpec(
        job_name="a", chdir=str(folder), script="x" * 300, arguments=("--output_dir", "~nouser/x"),
        container=Container(engine="apptainer", image="~nouser/i.sif", binds=("~nouser/x:/x",)),
    )  # fmt: skip
    found = surroundings.gather(spec, quotas=False, not_checked=skipped)
    assert skipped == []
    assert found.output is not None
    assert found.output.said == "~nouser/x"
    assert len(found.binds) == 1
    assert found.script is not None
    assert not found.script.where.exists


@pytest.mark.parametrize("kind", ["dangling", "directory"])
def test_weights_that_are_no_file(folder: Path, kind: str) -> None:
    path = folder / "m/model.safetensors"
    path.unlink()
    path.symlink_to("gone") if kind == "dangling" else path.mkdir()
    skipped: list[str] = []
    found = surroundings.gather(JobSpec(job_name="a", chdir=str(folder), arguments=TRAINING[1:]), quotas=False, not_checked=skipped)
    assert skipped == []
    assert found.model is not None
    assert any("model.safetensors" in what and "not a regular file" in what for what, _ in found.model.problems)


def test_an_environment_of_garbage(folder: Path) -> None:
    (folder / "v/lib/python3.11/site-packages/torch/version.py").write_bytes(b"\xff\xfe\ncuda = '12.8'\n")
    (folder / "v/lib/python3.12").mkdir()
    (folder / "v/lib/python3.12/site-packages").write_text("no directory")
    skipped: list[str] = []
    found = surroundings.gather(JobSpec(job_name="a", chdir=str(folder), venv="v"), quotas=False, not_checked=skipped)
    assert skipped == []
    assert found.python is not None
    assert (found.python.torch, found.python.version) == ("cuda", (3, 11))


def test_a_bug_in_one_reader_leaves_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RecursionError("no end")

    monkeypatch.setattr(surroundings.surroundings_files, "model_facts", broken)
    skipped: list[str] = []
    spec = JobSpec(job_name="a", chdir=str(folder), venv="v", arguments=TRAINING[1:])
    found = surroundings.gather(spec, quotas=False, not_checked=skipped)
    assert skipped == ["the model: RecursionError: no end"]
    assert found.model is None
    assert found.dataset is not None
    assert found.python is not None


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_bug_of_ours(folder: Path, hpctrain: str, closed: str) -> None:
    (folder / "x").write_text("#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=5\necho a\n")
    open_ = subprocess.run([hpctrain, "lint", "x"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    done = subprocess.run(["bash", "-c", f'exec "$@" {closed}', "bash", hpctrain, "lint", "x"], capture_output=True, text=True)
    assert done.returncode == open_.returncode
    assert "Traceback" not in done.stderr
    assert "mistake in hpctrain" not in done.stderr
    assert sys.stdin is not None
