"""`hpctrain init`: what it finds, what it asks, what it writes; Slurm is played by programs that
print what real ones once said.
"""

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import layers
from hpctrain.config.schema import Config
from hpctrain.util import yaml12
from tests.cli.conftest import Desk
from tests.cli.terminal import Terminal

RECORDED = Path(__file__).parents[1] / "clusters" / "recorded"
VERSIONS = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())
OWN = "title: Mine\ndetect: {cluster_names: [recorded]}\n"


def play_slurm(desk: Desk, version: str = "24.11") -> None:
    """Put programs in front that print what Slurm said; ours is the user of the recording."""
    folder = RECORDED / version
    desk.program("sinfo", f"cat '{folder}/nodes.txt'")
    desk.program(
        "scontrol",
        f'[ "$2" = config ] && cat "{folder}/config.txt" || cat "{folder}/partitions.txt"',
    )
    desk.program(
        "sbatch",
        "echo 'sbatch: Job 7 to start at 2026-01-02T03:04:05 using 8 processors on nodes n1 in"
        " partition gpu' >&2",
    )
    desk.program(
        "sacctmgr",
        f'case " $* " in *" qos "*) cat "{folder}/qos.txt" ;; *) cat "{folder}/users.txt" ;; esac',
    )


@pytest.fixture
def slurm(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a desk beside a login node's programs, with no environment active."""
    for name in ("VIRTUAL_ENV", "CONDA_DEFAULT_ENV", "SLURM_CLUSTER_NAME"):
        monkeypatch.delenv(name, raising=False)
    play_slurm(desk)
    return desk


def config_of(desk: Desk) -> Config:
    document = yaml12.load((desk.directory / "config.yaml").read_text(), "config.yaml")
    return layers.resolve([layers.from_document(document, "config.yaml")]).config


def lines_of(desk: Desk, key: str) -> str:
    text = re.sub(
        r"\n {32}# ", " ", (desk.directory / "config.yaml").read_text()
    )  # words that go on in the next line
    return next(line.strip() for line in text.splitlines() if line.strip().startswith(f"{key}:"))


def test_without_a_terminal_what_nobody_can_know_is_asked_for_at_once(slurm: Desk) -> None:
    said = slurm.refused("init", "--nodes", "2")
    assert "  --account proj_a | proj_b | proj_c" in said.lines
    assert any(line.startswith("  --partition ") and "gpu" in line for line in said.lines)
    assert any(line.startswith("  --gpu-type ") for line in said.lines)
    assert said.lines[-1].startswith(
        "fix: hpctrain init --nodes 2 --account proj_b --partition mixed --gpu-type a100"
    )
    assert slurm.run(*said.lines[-1].removeprefix("fix: hpctrain ").split()).code == 0
    assert config_of(slurm).resources.nodes == 2


def test_a_job_without_gpus_has_one_process_per_node(slurm: Desk) -> None:
    said = slurm.run("init", "--yes", "--partition", "gpu", "--nodes", "2", "--gpus", "0")
    assert said.code == 0
    assert "2 nodes x 1 process on the CPU = 2 processes" in said.lines


def test_the_best_is_taken_and_named(slurm: Desk) -> None:
    said = slurm.run("init", "--yes", "--partition", "gpu")
    assert (said.code, said.out) == (0, "config.yaml\n")
    assert "chosen: --account proj_b: your default account: sacctmgr" in said.lines
    assert "1 node x 4 GPUs = 4 processes" in said.lines
    assert said.lines[-1] == "next: hpctrain check"
    asked = config_of(slurm).resources
    assert (asked.account, asked.partition, asked.gpus_per_node, asked.nodes, asked.time) == (
        "proj_b",
        "gpu",
        4,
        1,
        3600,
    )
    assert (asked.gpu_directive, asked.gpu_type, asked.cpus_per_gpu) == ("gres", "a100", 16)
    # Its MaxMemPerNode of 500000M is less than the node's 515000M; a quarter of it goes with each
    # GPU.
    assert (asked.mem, asked.mem_per_gpu) == (None, 122 * 1024**3)
    assert lines_of(slurm, "account").endswith("# your default account: sacctmgr")
    assert lines_of(slurm, "partition").endswith("# 4 x a100, 1-00:00:00, 4 nodes; your option")
    assert lines_of(slurm, "mem_per_gpu").endswith("# MaxMemPerNode: scontrol show partition gpu")
    text = (slurm.directory / "config.yaml").read_text()
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_makes_a_config_that_renders(slurm: Desk, version: str) -> None:
    play_slurm(slurm, version)
    assert slurm.run("init", "--yes").code == 0
    assert slurm.run("render").code == 0
    script = (slurm.directory / "sft.sbatch").read_text()
    assert "#SBATCH --account=proj_b" in script
    assert "#SBATCH --gres=gpu:a100:4" in script  # the partition has several kinds


def test_every_answer_has_an_option(slurm: Desk) -> None:
    given = (
        "--account",
        "PROJ_B",
        "--partition",
        "gpu",
        "--qos",
        "long",
        "--gpus",
        "2",
        "--nodes",
        "3",
        "--time",
        "10:00:00",
        "--model",
        "my model #1",
        "--dataset",
        "data/x",
        "--venv",
        "~/env",
    )
    assert slurm.run("init", *given).code == 0
    config = config_of(slurm)
    asked = config.resources
    assert (asked.account, asked.partition, asked.qos, asked.gpus_per_node) == (
        "PROJ_B",
        "gpu",
        "long",
        2,
    )
    assert (asked.nodes, asked.time, config.environment.venv) == (3, 36000, "~/env")
    assert config.training == {"model_name_or_path": "my model #1", "dataset_name": "data/x"}
    assert asked.cpus_per_gpu == 16
    assert asked.mem_per_gpu == 122 * 1024**3
    for key in ("account", "qos", "gpus_per_node", "nodes", "time", "model_name_or_path", "venv"):
        assert lines_of(slurm, key).endswith("# your option"), key


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--time", "soon"), "time must be a time limit"),
        (("--account", "nosuch"), "proj_b  (default)"),
        (("--partition", "nosuch"), "gpu  (4 x a100, 1-00:00:00, 4 nodes)"),
        (("--partition", "closed"), "unknown partition"),
        (
            ("--partition", "debug", "--account", "proj_c"),
            "unknown partition",
        ),  # AllowAccounts
        (
            ("--partition", "course", "--account", "proj_b"),
            "unknown partition",
        ),  # DenyAccounts
        (("--cluster", "nosuch"), "there is no cluster profile 'nosuch'"),
        (("--venv", "a", "--conda", "b"), "conda"),
        (("--model", "a\nb: c"), "printable"),
        (("--venv", "\udcff"), "printable"),
    ],
)
def test_what_slurm_would_refuse_is_refused_here(
    slurm: Desk, words: tuple[str, ...], says: str
) -> None:
    said = slurm.refused(
        "init", "--yes", *(() if "--partition" in words else ("--partition", "gpu")), *words
    )
    assert says in said.err


def test_a_config_that_is_there_stays(slurm: Desk) -> None:
    slurm.write("config.yaml", "job_name: mine\n")
    assert slurm.refused("init", "--yes").lines[-1] == "fix: hpctrain init --yes --force"
    assert slurm.run("init", "--json").code == 0
    assert (slurm.directory / "config.yaml").read_text() == "job_name: mine\n"
    assert slurm.run("init", "--yes", "--force").code == 0
    assert config_of(slurm).job_name == "sft"
    (slurm.directory / "config.yaml").unlink()
    (slurm.directory / "config.yaml").symlink_to("nowhere")
    slurm.refused("init", "--yes")


def test_json_says_what_was_found_and_writes_nothing(slurm: Desk) -> None:
    before = slurm.snapshot()
    said = slurm.run("init", "--json")
    found: dict[str, Any] = json.loads(said.out)
    assert (said.code, found["schema"], found["cluster"], found["unanswered"]) == (0, 1, None, [])
    assert found["slurm"]["cluster_name"] == "recorded"
    assert found["slurm"]["partitions"][1]["time_max"] == 86400
    assert found["answers"]["resources.account"] == {
        "value": "proj_b",
        "from": "your default account: sacctmgr",
    }
    assert slurm.snapshot() == before


@pytest.mark.usefixtures("no_slurm")
def test_a_machine_without_slurm(desk: Desk) -> None:
    said = desk.run("init")
    assert (said.code, said.out) == (0, "config.yaml\n")
    assert said.lines[0].startswith("no cluster")
    assert config_of(desk).resources.partition is None
    assert desk.run("render").code == 0


@pytest.mark.usefixtures("no_slurm")
def test_a_profile_without_slurm(desk: Desk) -> None:
    said = desk.refused("init", "--cluster", "leonardo")  # whose account nobody can guess
    assert "  --account ACCOUNT" in said.lines
    assert desk.run("init", "--cluster", "Leonardo", "--account", "EUHPC_A06_067").code == 0
    config = config_of(desk)
    assert (config.cluster, config.resources.partition, config.resources.gpus_per_node) == (
        "leonardo",
        "boost_usr_prod",
        4,
    )
    assert config.resources.cpus_per_gpu is None  # the profile says it at every render
    assert (
        "documented"
        in lines_of(desk, "gpus_per_node") + (desk.directory / "config.yaml").read_text()
    )


def test_slurm_that_does_not_answer(slurm: Desk) -> None:
    slurm.program(
        "sinfo scontrol sacctmgr",
        "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1",
    )
    said = slurm.refused("init", "--yes", code=3)
    assert "Unable to contact slurm controller" in " ".join(said.err.split())
    assert max(len(line) for line in said.lines[1:-1]) <= 80
    assert slurm.run("init", "--no-slurm").lines[0].startswith("no cluster")
    said = slurm.run("init", "--cluster", "leonardo", "--account", "x", "--force")
    assert said.code == 0
    assert "only the profile is used" in " ".join(said.err.split())


def test_one_program_that_fails_is_named_and_the_rest_counts(slurm: Desk) -> None:
    slurm.program(
        "sacctmgr", "echo 'You are not running a supported accounting_storage plugin' >&2; exit 1"
    )
    said = slurm.run("init", "--partition", "gpu")
    assert said.code == 0
    assert "You are not running a supported accounting_storage plugin" in " ".join(said.err.split())
    assert max(len(line) for line in said.lines) <= 80
    assert config_of(slurm).resources.account is None
    assert "# account: my_project" in (slurm.directory / "config.yaml").read_text()


def test_the_profile_that_knows_the_machine_is_taken(slurm: Desk, tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    own = (
        "partitions: {gpu: {nodes: a}, batch: {}}\nnodes: {a: {gpus: 4, cpus: 48, memory:"
        " 400G}}\nmemory: {request: per-gpu}\n"
    )
    (tmp_path / "profiles" / "mine.yaml").write_text(
        OWN + own + "gpu_request: {dialect: gpus-per-node}\ndefaults: {partition: gpu}\n"
    )
    slurm.set(HPCTRAIN_CLUSTERS=str(tmp_path / "profiles"))
    assert slurm.run("init", "--yes").code == 0
    config = config_of(slurm)
    assert (config.cluster, config.resources.partition, config.resources.gpu_directive) == (
        "mine",
        "gpu",
        "gres",
    )
    text = (slurm.directory / "config.yaml").read_text()
    assert "# gpu_directive: gpus-per-node" in text
    assert "# cpus_per_gpu: 12" in text  # 48 of the node's 64, as the profile says
    assert slurm.run("render").code == 0
    assert "#SBATCH --gpus-per-node=4" in (slurm.directory / "sft.sbatch").read_text()


def test_variables_and_the_users_own_config_are_answers(slurm: Desk) -> None:
    user = Path(os.environ["XDG_CONFIG_HOME"]) / "hpctrain" / "config.yaml"
    user.parent.mkdir()
    user.write_text("resources: {account: proj_c}\n")
    slurm.set(HPCTRAIN_PARTITION="gpu")
    assert slurm.run("init").code == 0
    assert (config_of(slurm).resources.account, config_of(slurm).resources.partition) == (
        "proj_c",
        "gpu",
    )
    assert lines_of(slurm, "partition").endswith("HPCTRAIN_PARTITION")
    user.write_text("resources: {accont: x}\n")
    assert "accont" in slurm.refused("init", "--force").err


def test_what_lies_around_is_found(slurm: Desk) -> None:
    slurm.write("models/llama/config.json", "{}")
    slurm.write("models/llama/model.safetensors", "")
    slurm.write("data/pairs/dataset_dict.json", "{}")
    for name in ("state.json", "dataset_info.json"):
        slurm.write(f"data/pairs/train/{name}", "{}")
    slurm.write(".venv/bin/activate", "")
    assert slurm.run("init", "--yes").code == 0
    config = config_of(slurm)
    assert config.training == {"model_name_or_path": "models/llama", "dataset_name": "data/pairs"}
    assert config.environment.venv == ".venv"
    assert lines_of(slurm, "venv").endswith("# found here")


def test_the_environment_that_is_active_is_meant(slurm: Desk) -> None:
    slurm.write(".venv/bin/activate", "")
    slurm.write("../elsewhere/bin/activate", "")
    slurm.set(VIRTUAL_ENV=str(slurm.directory.parent / "elsewhere"))
    slurm.run("init", "--yes")
    assert config_of(slurm).environment.venv == str(slurm.directory.parent / "elsewhere")
    assert slurm.run("init", "--yes", "--force", "--conda", "train").code == 0
    assert (config_of(slurm).environment.conda, config_of(slurm).environment.venv) == (
        "train",
        None,
    )


def test_a_partition_that_wants_a_qos_gets_one(slurm: Desk) -> None:
    """The association's default QOS is normal, which this partition is made not to take."""
    text = (
        (RECORDED / "24.11" / "partitions.txt")
        .read_text()
        .replace("AllowQos=normal,dbg", "AllowQos=dbg,long")
    )
    slurm.write("../partitions.txt", text)
    slurm.program(
        "scontrol",
        f'[ "$2" = config ] && cat "{RECORDED}/24.11/config.txt" || cat'
        f' "{slurm.directory.parent}/partitions.txt"',
    )
    assert (
        "  --qos dbg | long"
        in slurm.refused("init", "--partition", "debug", "--account", "proj_b").lines
    )
    assert slurm.run("init", "--yes", "--partition", "debug").code == 0
    assert config_of(slurm).resources.qos == "dbg"


def asked(hpctrain: str, desk: Desk, *words: str) -> Terminal:
    """Return `hpctrain init` at a terminal of 80 columns."""
    return Terminal(hpctrain, "init", *words, cwd=desk.directory)


def answer(terminal: Terminal, question: str, text: str) -> None:
    terminal.until(question)
    terminal.type(text)


def test_ctrl_c_leaves_nothing(slurm: Desk, hpctrain: str) -> None:
    before = slurm.snapshot()
    terminal = asked(hpctrain, slurm)
    terminal.until("--account [proj_b]: ")
    for _ in range(2):  # Python sees one that comes just before the read only at the next key
        with contextlib.suppress(OSError):
            terminal.type("\x03")
        terminal.read()
    assert terminal.end() == 130
    assert slurm.snapshot() == before


def test_a_person_is_asked_only_where_several_answers_remain(slurm: Desk, hpctrain: str) -> None:
    terminal = asked(hpctrain, slurm, "--time", "2:00:00")
    answer(terminal, "--account [proj_b]: ", "1\n")  # proj_a, which has one partition
    terminal.until("next: hpctrain check")
    assert terminal.end() == 0
    config = config_of(slurm).resources
    assert (config.account, config.partition, config.gpus_per_node, config.nodes, config.time) == (
        "proj_a",
        "gpu",
        4,
        1,
        7200,
    )
    assert lines_of(slurm, "account").endswith("# your answer")
    assert max(len(line) for line in terminal.written.decode().splitlines()) <= 80


# -- `hpctrain init` with a profile and without Slurm: which nodes, which partition, how much
