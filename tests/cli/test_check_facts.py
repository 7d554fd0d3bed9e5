"""What `hpctrain check` looks at: models, datasets, environments, folders; real files, real
environments.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.checks import gather
from hpctrain.checks.job.context import PythonFacts, Surroundings
from hpctrain.config.spec import Container, JobSpec, Secret
from hpctrain.util import file_systems
from tests.cli.check_desk import JOB, document, ids, with_job
from tests.cli.conftest import Desk


@pytest.fixture
def project(desk: Desk) -> Desk:
    return with_job(desk)


def around(desk: Desk, **spec: Any) -> Surroundings:
    return gather.gather(JobSpec(job_name="x", chdir=str(desk.directory), **spec))


def python_of(desk: Desk, venv: str) -> PythonFacts:
    found = around(desk, venv=venv).python
    assert found is not None
    return found


def one(desk: Desk, id_: str, *words: str) -> dict[str, Any]:
    (found,) = (each for each in document(desk, *words)["findings"] if each["id"] == id_)
    return dict(found)


def model(desk: Desk, **changes: int) -> None:
    stored = Path(__file__).parents[1] / "fit/models/qwen3-0.6b/config.json"
    desk.write("model/config.json", json.dumps(json.loads(stored.read_text()) | changes))
    desk.write("model/tokenizer.json", "{}")
    desk.write("model/model.safetensors", weights("{}"))


def dataset(desk: Desk, *columns: str) -> None:
    desk.write("data/dataset_dict.json", '{"splits": ["train"]}')
    desk.write("data/train/state.json", '{"_data_files": [{"filename": "data-0.arrow"}]}')
    desk.write(
        "data/train/dataset_info.json", json.dumps({"features": {column: {} for column in columns}})
    )
    desk.write("data/train/data-0.arrow", b"")


def test_a_model_and_a_dataset_that_are_whole(project: Desk) -> None:
    model(project)
    dataset(project, "input_ids")
    words = ("--", "--model_name_or_path", "model", "--dataset_name", "data")
    project.write("config.yaml", "launcher: srun\n")
    assert not ids(project, *words) & {"model-folder", "dataset-folder"}
    dataset(project, "text")
    assert "is not tokenized" in one(project, "dataset-folder", *words)["what"]
    project.write(
        "model/model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )
    finding = one(project, "model-folder", *words)
    assert "git-lfs pointer" in finding["what"]
    assert finding["fix"] == f"git -C {project.directory}/model lfs pull"


@pytest.mark.parametrize(
    ("name", "content", "is_python"),
    [
        ("a.sh", "#!/bin/bash\nif true; then echo; fi\n", False),
        ("a.bin", b"\x7fELF\0\0", False),
        ("train", "#!/usr/bin/env python3\nprint()\n", True),
        ("a.py", "# -*- coding: latin-1 -*-\nx = '\xe9'\n", True),
    ],
)
def test_what_a_script_is(project: Desk, name: str, content: str | bytes, is_python: bool) -> None:
    project.write(name, content.encode("latin-1") if isinstance(content, str) else content)
    found = around(project, script=name)
    assert found.script
    assert (found.syntax is None) is is_python


def test_the_cache_of_the_hub(project: Desk) -> None:
    project.write("hub/models--org--one/snapshots/abc/config.json", "{}")

    def cached(name: str, **spec: Any) -> bool | None:
        words = ("--model_name_or_path", f"org/{name}")
        env = (("HF_HUB_CACHE", f"{project.directory}/hub"),)
        found = around(project, script="train.py", arguments=words, env=env, **spec).model
        assert found is not None
        return found.cached

    assert cached("one") is True
    assert cached("two") is False
    assert cached("two", modules=("cuda",)) is None


def venv(
    desk: Desk,
    name: str,
    *packages: str,
    torch: str | None = None,
    python: bytes = b"",
    version: str = "3.11",
) -> None:
    """A virtual environment as far as it is read: no pip is started."""
    desk.write(f"{name}/bin/activate", "")
    desk.write(f"{name}/bin/python", python)
    desk.write(
        f"{name}/pyvenv.cfg",
        f"home = {Path(sys.base_prefix) / 'bin'}\ninclude-system-site-packages = false\n",
    )
    for package in packages:
        desk.write(f"{name}/lib/python{version}/site-packages/{package}-1.0.dist-info/METADATA", "")
    if torch is not None:
        desk.write(f"{name}/lib/python{version}/site-packages/torch/version.py", torch)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            "chats.jsonl",
            (
                "hpctrain prepare chats.jsonl --model {model} --to chats, then: dataset_name: chats"
                " under training in config.yaml"
            ),
        ),
        (
            "my $(touch x).csv.gz",
            (
                "hpctrain prepare 'my $(touch x).csv.gz' --model {model} --to 'my $(touch x)',"
                " then: dataset_name: "
            ),
        ),
        (
            "raw/",
            (
                "hpctrain prepare raw/ --model {model} --to raw-prepared, then: dataset_name:"
                " raw-prepared under "
            ),
        ),
        ("chats", "hpctrain prepare chats --model {model} --to chats-prepared, then: "),
    ],
)
def test_of_raw_data_a_dataset_can_be_made(project: Desk, data: str, expected: str) -> None:
    project.write(data if not data.endswith("/") else f"{data}a.jsonl", '{"text": "hello"}\n')
    project.write("config.yaml", "launcher: srun\n")
    words = ["--", "--model_name_or_path", "m", "--dataset_name", data]
    finding = one(project, "dataset-folder", *words)
    assert finding["fix"].startswith(expected.format(model="m"))
    assert "hpctrain prepare DATA" in next(
        each["fix"]
        for each in document(project, *words[:-1], "nowhere")["findings"]
        if each["id"] == "dataset-folder"
    )


LIBRARIES = ("torch", "transformers", "trl", "accelerate", "datasets", "hpctrain")


def releases(desk: Desk) -> None:
    """Give the environment the releases that the table of arguments is of."""
    for name, version in (("trl", "1.16.0"), ("transformers", "5.23.0")):
        (
            desk.directory / f".venv/lib/python3.11/site-packages/{name}-1.0.dist-info/METADATA"
        ).unlink()
        (desk.directory / f".venv/lib/python3.11/site-packages/{name}-1.0.dist-info").rmdir()
        desk.write(f".venv/lib/python3.11/site-packages/{name}-{version}.dist-info/METADATA", "")


@pytest.mark.parametrize(
    ("words", "id_", "fix"),
    [
        (("--attn_implementation", "nope"), "argument-value", "attn_implementation"),
        (
            ("--attn_implementation", "kernels-community/flash-attn2"),
            "argument-value",
            "",
        ),  # the training downloads none
        (
            ("--attn_implementation", "flash_attention_2"),
            "environment-lacks",
            "pip install flash-attn",
        ),
        (
            ("--attn_implementation", "flash_attention_3"),
            "environment-lacks",
            "leave out attn_implementation",
        ),
        (("--attn_implementation", "sdpa"), None, ""),
        (("--optim", "adamw_bnb"), "argument-value", "adamw_bnb_8bit"),
        (("--optim", "galore_adamw"), "environment-lacks", "galore-torch"),
        (("--use_liger_kernel", "true"), "environment-lacks", "liger-kernel"),
        (("--use_liger_kernel", "false"), None, ""),
        (("--max_steps", "many"), "argument-value", "max_steps"),
    ],
)
def test_each_value_of_an_argument_and_what_it_needs(
    project: Desk, words: tuple[str, ...], id_: str | None, fix: str
) -> None:
    venv(project, ".venv", *LIBRARIES)
    project.write("config.yaml", "launcher: srun\nenvironment:\n  venv: .venv\n")
    both = ("argument-value", "environment-lacks")

    def found() -> list[tuple[str, str]]:
        return [
            (each["id"], each["level"])
            for each in document(project, "--", *words)["findings"]
            if each["id"] in both
        ]

    other = found()
    releases(project)
    assert found() == ([(id_, "error")] if id_ else [])
    # Of other releases, the table may not know all values; what is not installed is not there for
    # them either.
    assert other == ([(id_, "warning" if id_ == "argument-value" else "error")] if id_ else [])
    assert all(
        fix in each["fix"]
        for each in document(project, "--", *words)["findings"]
        if each["id"] in both
    )
    project.write(
        "config.yaml", "launcher: srun\n"
    )  # an environment that nobody named is not known
    assert "environment-lacks" not in ids(project, "--", *words)
    project.write("config.yaml", "launcher: srun\nscript: train.py\nenvironment:\n  venv: .venv\n")
    assert not set(both) & ids(
        project, "--", *words
    )  # a script of one's own means by it what it wants


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (
            "__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n",
            "cpu",
        ),
        (
            "__version__ = '2.9.0'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
            "cuda",
        ),
        ("__version__ = '2.9.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", "rocm"),
        (None, None),
    ],
)
def test_torchs_build_is_read_and_not_imported(
    project: Desk, text: str | None, build: str | None
) -> None:
    venv(project, "env", torch=text)
    assert python_of(project, "env").torch == build


def test_a_real_virtual_environment_is_whole(project: Desk) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "real"], cwd=project.directory, check=True
    )
    facts = python_of(project, "real")
    assert (facts.lacks, facts.version) == (None, sys.version_info[:2])
    assert facts.packages is not None
    assert "torch" not in facts.packages
    assert "environment-lacks" in ids(project, "--venv", "real")
    (project.directory / "real/bin/python").unlink()
    (project.directory / "real/bin/python").symlink_to("/gone/bin/python3")
    assert "environment-missing" in ids(project, "--venv", "real")


def test_what_is_missing_of_an_environment(project: Desk) -> None:
    assert "environment-missing" in ids(project, "--venv", "nope")
    (project.directory / "empty").mkdir()
    assert "lacks bin/activate" in one(project, "environment-missing", "--venv", "empty")["what"]
    assert "environment-missing" in ids(project, "--uv", ".")
    venv(project, ".venv", "torch")
    assert "environment-missing" not in ids(project, "--uv", ".")


def test_a_conda_environment_is_found_where_conda_writes_it_down(project: Desk) -> None:
    project.set(HOME=str(project.directory))
    project.write("forge/envs/train/conda-meta/history", "")
    project.write("forge/envs/train/bin/python", "")
    assert "environment-missing" in ids(project, "--conda", "train")
    project.write(".conda/environments.txt", f"{project.directory}/forge/envs/train\n")
    assert "environment-missing" not in ids(project, "--conda", "train")


def test_hooks_and_secrets(project: Desk) -> None:
    project.write(
        "config.yaml",
        JOB + "environment:\n  before: [setup.sh]\n  secrets: {HF_TOKEN: ./token, WANDB_API_KEY:"
        " environment}\n",
    )
    token = project.write("token", "hf_x\n")
    token.chmod(0o644)
    found = ids(project)
    assert {"hook-missing", "secret-file-open", "secret-missing"} <= found
    token.chmod(0o600)
    project.write("setup.sh", "true\n")
    project.set(WANDB_API_KEY="k")
    assert not ids(project) & {"hook-missing", "secret-file-open", "secret-missing"}


def test_a_container_and_its_binds(project: Desk) -> None:
    container = Container(
        engine="apptainer", image="x.sif", binds=("gone:/data", "$SCRATCH:/s", ".")
    )
    facts = around(project, container=container)
    assert facts.image
    assert not facts.image.exists
    assert [(bind.said, bind.exists) for bind in facts.binds] == [("gone", False), (".", True)]
    for engine, image in (("apptainer", "docker://x"), ("pyxis", "nvcr.io/x"), ("ce", "ngc")):
        registry = Container(engine=engine, image=image)  # type: ignore[arg-type]
        assert around(project, container=registry).image is None


def test_an_accelerate_config_of_ones_own(project: Desk) -> None:
    project.write("config.yaml", "script: train.py\naccelerate_config: mine.yaml\n")
    assert "accelerate-config" in ids(project)
    project.write("mine.yaml", "distributed_type: 'NO'\n")
    assert one(project, "accelerate-config")["evidence"].startswith("mine.yaml:1:1")
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


def test_the_quota_counts_where_it_leaves_less(
    project: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real `quota` program, of this test's own, says what quota(1) prints."""
    where = gather.path_facts(str(project.directory), "/")
    monkeypatch.setattr(gather, "_QUOTA_KINDS", frozenset({where.filesystem.kind}))
    row = f"{where.filesystem.mount} 1000 2000 3000 0 90 95 100 0"
    header = (
        "Disk quotas for user me (uid 1):\n Filesystem space quota limit grace files quota limit"
        " grace"
    )
    project.program("quota", f"cat <<'END'\n{header}\n{row}\nEND")
    output = around(project, script="train.py").output
    system = output and output.filesystem
    assert system
    assert (system.free, system.limit) == (2000 * 1024, "quota")
    project.program("quota", "sleep 60")
    monkeypatch.setattr(file_systems, "QUOTA_TIMEOUT_S", 0.2)
    output = around(project, script="train.py").output
    assert output
    assert output.filesystem
    assert output.filesystem.limit == "statvfs"


def test_a_job_for_another_machine(project: Desk) -> None:
    """Its directory is not here: a warning, and nothing is said about files that nobody can see."""
    found = document(
        project,
        "--chdir",
        "/leonardo_work/proj/sft",
        "--cluster",
        "leonardo",
        "--account",
        "EUHPC_A06_067",
    )
    assert {finding["id"] for finding in found["findings"] if finding["level"] == "error"} == set()
    assert "chdir-missing" in {finding["id"] for finding in found["findings"]}
    assert "files in /leonardo_work/proj/sft, which is not here" in found["not_checked"]


def test_secrets_of_the_caller_are_facts_without_values(project: Desk) -> None:
    project.set(MY_TOKEN="hf_verysecret")
    facts = around(project, secrets=(Secret(name="MY_TOKEN"),))
    assert facts.secrets[0].in_shell
    assert "verysecret" not in repr(facts)


# -- `hpctrain check` in folders that hold FIFOs, devices and garbage: it says what it can, a


def weights(header: str) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode()


@pytest.fixture
def folder(desk: Desk) -> Path:
    """A project with a whole model, a whole dataset and a virtual environment."""
    files: dict[str, str | bytes] = {
        "m/config.json": '{"model_type": "qwen3"}',
        "m/tokenizer.json": "{}",
        "m/model.safetensors": weights('{"w": {"shape": [3, 4]}}'),
        "d/state.json": '{"_data_files": [{"filename": "data.arrow"}]}',
        "d/data.arrow": "",
        "d/dataset_info.json": '{"features": {"input_ids": {}}}',
        "t.py": "print()\n",
        "v/bin/activate": "",
        "v/pyvenv.cfg": "home = /usr/bin\n",
        "v/lib/python3.11/site-packages/torch/version.py": "cuda = None\n",
    }
    for name, content in files.items():
        desk.write(name, content)
    return desk.directory


def gathered(folder: Path, **spec: Any) -> Surroundings:
    """Return what the readers found, none of which has given up."""
    skipped: list[str] = []
    found = gather.gather(JobSpec(job_name="a", chdir=str(folder), **spec), not_checked=skipped)
    assert skipped == []
    return found


def check(hpctrain: str, *words: str) -> tuple[int, str]:
    """Run the real command, with a memory limit: what reads a device to its end must not take the
    machine with it.
    """
    limited = [
        "bash",
        "-c",
        'ulimit -v 4000000; exec "$@"',
        "bash",
        hpctrain,
        "check",
        "--no-slurm",
        *words,
    ]
    done = subprocess.run(
        limited, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout + done.stderr


TRAINING = ("--", "--model_name_or_path", "m", "--dataset_name", "d")


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def zero(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [fifo, zero])
@pytest.mark.parametrize(
    "name", ["m/config.json", "m/model.safetensors", "d/dataset_info.json", "d/state.json"]
)
def test_no_check_waits_for_a_model_or_dataset_that_is_no_file(
    folder: Path, hpctrain: str, name: str, make: Callable[[Path], None]
) -> None:
    make(folder / name)
    code, said = check(hpctrain, *TRAINING)
    assert code == 1
    assert "mistake in hpctrain" not in said
    assert "not checked: the" not in said  # by its reader, not by the net under it


@pytest.mark.parametrize(
    "name", ["v/bin/python", "v/pyvenv.cfg", "v/lib/python3.11/site-packages/torch/version.py"]
)
def test_no_check_waits_for_an_environment_that_is_no_file(
    folder: Path, hpctrain: str, name: str
) -> None:
    fifo(folder / name)
    code, said = check(hpctrain, "--venv", "v", *TRAINING)
    assert code in (0, 1)
    assert "mistake in hpctrain" not in said


DEEP = "[" * 100_000
GARBAGE: list[tuple[str, str | bytes]] = [
    *(
        ("m/model.safetensors.index.json", text)
        for text in ('{"metadata": 5}', '{"weight_map": 5}', '{"weight_map": {"a": 5}}', DEEP)
    ),
    (
        "m/model.safetensors.index.json",
        '{"metadata": {"total_size": 1'
        + "0" * 4000
        + '}, "weight_map": {"a": "model.safetensors"}}',
    ),
    *(
        ("m/model.safetensors", weights(text))
        for text in (
            '{"a":5}',
            '{"a":{"shape":5}}',
            '{"a":{"shape":["x"]}}',
            '{"a":{"shape":[null]}}',
            '{"a":{"shape":[1e308,1e308]}}',
            json.dumps({"a": {"shape": ["9" * 5000]}}),
            '{"a":{"shape":[' + ",".join(["9" * 4000] * 4) + "]}}",
            '{"a":{"shape":[-3]}}',
            DEEP,
        )
    ),
    ("m/config.json", DEEP),
    ("m/config.json", '{"dtype": [], "quantization_config": 5}'),
    ("d/dataset_info.json", '{"features": 5}'),
    ("d/dataset_info.json", DEEP),
    ("d/state.json", '{"_data_files": 5}'),
    ("d/state.json", '{"_data_files": [5, {"filename": 5}]}'),
    ("d/dataset_dict.json", '{"splits": [null, "' + "x" * 300 + '", "a\\u0000b", "train"]}'),
]


@pytest.mark.parametrize(("name", "content"), GARBAGE, ids=lambda text: str(text)[:40])
def test_garbage_in_a_folder_is_no_bug_of_ours(
    folder: Path, name: str, content: str | bytes
) -> None:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    found = gathered(folder, arguments=TRAINING[1:])
    assert found.model is not None
    assert found.dataset is not None
    if "weight_map" in str(content) and "total_size" not in str(content):
        assert [one for one in found.model.problems if "weight_map" in one.what]
    if name.startswith("d/"):
        assert found.dataset.problems


@pytest.mark.parametrize(
    "text", ["-" * 100_000 + "1", "+".join(["1"] * 200_000)], ids=["memory", "recursion"]
)
def test_a_script_that_is_too_deep_to_compile(folder: Path, text: str) -> None:
    (folder / "t.py").write_text(text)
    assert gathered(folder, script="t.py").script is not None


@pytest.mark.parametrize("key", ["venv", "conda"])
def test_an_environment_of_a_user_that_is_not_there(folder: Path, key: str) -> None:
    assert not gathered(folder, **{key: "~nouser/x"}).python.prefix.exists


def test_a_bug_in_one_reader_leaves_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RecursionError("no end")

    monkeypatch.setattr(gather, "_model", broken)
    skipped: list[str] = []
    spec = JobSpec(job_name="a", chdir=str(folder), venv="v", arguments=TRAINING[1:])
    found = gather.gather(spec, not_checked=skipped)
    assert skipped == ["the model: RecursionError: no end"]
    assert found.model is None
    assert found.dataset is not None
    assert found.python is not None


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_bug_of_ours(folder: Path, hpctrain: str, closed: str) -> None:
    (folder / "x").write_text("#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=5\necho a\n")
    open_ = subprocess.run(
        [hpctrain, "lint", "x"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    done = subprocess.run(
        ["bash", "-c", f'exec "$@" {closed}', "bash", hpctrain, "lint", "x"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == open_.returncode
    assert "Traceback" not in done.stderr
    assert "mistake in hpctrain" not in done.stderr
    assert sys.stdin is not None
