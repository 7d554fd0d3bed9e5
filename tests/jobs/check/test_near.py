"""Close to a finding, on the right side of it; and the ways in which one thing is known from
several places.
"""

from dataclasses import replace
from typing import Any

import pytest

from hpctrain.checks.job.context import FolderProblem, SecretFacts
from hpctrain.clusters.live import Association, LiveQos
from tests.jobs.check.check_cases import CASES, LARGE, MODEL, ONE_ACCOUNT, gpus_of_partition
from tests.jobs.check.check_cases import of_python as python
from tests.jobs.check.check_scene import (
    ARGUMENTS,
    GIB,
    PROFILE,
    SCRIPT,
    Near,
    Scene,
    missing,
    nodes,
    partition,
    path,
)

BARE = {"partitions": (partition(nodes=(nodes(gpus=()),)),)}
EIGHT: dict[str, Any] = {"gpus_per_node": 8, "cpus_per_gpu": 8}
LUMI: dict[str, Any] = {
    "profile": {"nodes": {"a100": {"gpus": 8, "vendor": "rocm", "cpus": 56, "memory": "480G"}}},
    "live": None,
    "around": {"python": None},
}
OUTPUT = CASES["output-space"][1].around["output"]
ONE = {"output": replace(OUTPUT, filesystem=replace(OUTPUT.filesystem, free=8 * GIB))}
TOKEN = CASES["secret-file-open"][1].around["secrets"][0].file
MINE = (
    Association(account="proj_a", qos=("long",)),
    Association(account="proj_b", qos=("normal",)),
)
GROUPS = gpus_of_partition(
    nodes=(
        nodes(features=("a100", "nvme")),
        nodes(features=("a100",), gpus=(("a100", 8),), cpus=128),
    )
)
H100 = gpus_of_partition(nodes=(nodes(), nodes(features=("h100",), gpus=(("h100", 8),), cpus=128)))
NO_QOS: dict[str, Any] = {"spec": {"qos": "lnog"}, "live": None}
CORES = {("resources", "cpus_per_gpu"): "config.yaml:9:3"}
RATIO: dict[str, Any] = {
    "spec": {"arguments": (*ARGUMENTS, "--warmup_ratio", "0.1")},
    "origins": {("training",): "config.yaml:20:1"},
}
QOS_LIMIT: dict[str, Any] = {
    "live": None,
    "level": "seen",
    "profile": {"partitions": {"gpu": {"nodes": "a100"}}},
}
TESTS = {
    "partitions": (
        partition(name="zdebug", default=False),
        partition(name="zcpu", default=False, nodes=(nodes(gpus=()),)),
        partition(name="accelerated", default=False),
    )
}
DELTA: dict[str, Any] = {"profile": {"memory": {"default_per_cpu": "1000M"}}, "live": None}


def arguments(*words: str) -> dict[str, Any]:
    return {"arguments": (*ARGUMENTS, *words)}


def gpu(name: str) -> dict[str, Any]:
    return {"nodes": {"a100": {**PROFILE["nodes"]["a100"], "gpu": name}}}


S = Scene
NEAR = [
    # GPUs and cores
    Near(why="whole nodes", scene=S(live=gpus_of_partition(exclusive=True)), only=()),
    Near(
        why="the profile bills nodes",
        scene=S(profile={"billing": {"unit": "node"}}, spec={"gpus_per_node": 2}),
        only=("gpus-unused",),
    ),
    Near(
        why="the profile bills shares",
        scene=S(profile={"billing": {"unit": "share"}}, spec={"gpus_per_node": 2}),
        lacks="gpus-unused",
    ),
    Near(
        why="fewer nodes hold the job",
        scene=CASES["gpus-unused"][1],
        has="gpus-unused",
        what="32",
        fix="hpctrain render --nodes 2 --gpus 4",
    ),
    Near(
        why="the nodes that are typed are allowed",
        scene=S(spec={**EIGHT, "nodes": 40}, live=gpus_of_partition(nodes_max=64)),
        has="gpus-per-node",
        fix="hpctrain render --nodes 64 --gpus 4",
    ),
    Near(why="Slurm shows no GPU anywhere", scene=S(live=BARE), only=()),
    Near(
        why="Slurm shows no GPU, and the profile fewer",
        scene=S(live=BARE, spec={"gpus_per_node": 5, "cpus_per_gpu": 8}),
        has="gpus-per-node",
    ),
    Near(
        why="of cores the smaller number counts",
        scene=S(
            spec={"cpus_per_task": 57},
            profile={"nodes": {"a100": {**PROFILE["nodes"]["a100"], "cpus": 56}}},
        ),
        only=("cores-limit",),
        evidence="profile site",
    ),
    Near(
        why="of GPUs Slurm's",
        scene=S(profile={"nodes": {"a100": {**PROFILE["nodes"]["a100"], "gpus": 2}}}),
        only=(),
    ),
    Near(
        why="LUMI keeps eight cores of each node",
        scene=S(spec={**EIGHT, "venv": None}, **LUMI),
        only=("cores-limit",),
        fix="hpctrain render --cpus-per-task 56",
    ),
    Near(
        why="as many cores as LUMI gives",
        scene=S(spec={"gpus_per_node": 8, "cpus_per_gpu": 7, "venv": None}, **LUMI),
        only=(),
    ),
    Near(
        why="srun counts the cores of all its tasks",
        scene=S(spec={"launcher": "srun", "cpus_per_gpu": 16}),
        only=(),
    ),
    Near(
        why="srun counts the cores of a task",
        scene=S(spec={"launcher": "srun", "cpus_per_task": 17}),
        only=("cores-limit",),
    ),
    Near(
        why="too many cores because of too many GPUs",
        scene=S(spec={"gpus_per_node": 8, "cpus_per_gpu": 16}),
        only=("gpus-per-node",),
    ),
    Near(
        why="too many cores, and too many GPUs",
        scene=S(spec={"gpus_per_node": 8, "cpus_per_task": 128}),
        only=("gpus-per-node", "cores-limit"),
    ),
    Near(
        why="cores for each GPU are shown as they were written",
        scene=S(spec={"cpus_per_gpu": 17}, origins=CORES),
        has="cores-limit",
        evidence="config.yaml:9:3: cpus_per_gpu: 17 x 4 GPUs, 1 task on each node; ",
    ),
    Near(
        why="cores of a task are shown as they were written",
        scene=S(spec={"cpus_per_task": 68}),
        has="cores-limit",
        evidence="cpus_per_task 68",
    ),
    Near(
        why="a partition without GPUs",
        scene=S(live={"partitions": (*BARE["partitions"], partition(name="real", default=False))}),
        has="gpus-per-node",
        what="has 0",
        fix="sinfo",
    ),
    # nodes with features
    Near(
        why="nodes with the feature have the GPUs",
        scene=S(spec={**EIGHT, "constraint": "h100"}, live=H100),
        only=(),
    ),
    Near(
        why="nodes with the feature have fewer GPUs",
        scene=S(spec={**EIGHT, "constraint": "a100"}, live=H100),
        has="gpus-per-node",
    ),
    Near(
        why="nodes with both features have fewer GPUs",
        scene=S(spec={**EIGHT, "constraint": "a100&nvme"}, live=GROUPS),
        has="gpus-per-node",
    ),
    Near(
        why="some nodes with the feature have the GPUs",
        scene=S(spec={**EIGHT, "constraint": "a100"}, live=GROUPS),
        lacks="gpus-per-node",
    ),
    Near(
        why="of two kinds of nodes the larger one counts",
        scene=S(spec={**EIGHT, "constraint": "nvme|a100"}, live=GROUPS),
        lacks="gpus-per-node",
    ),
    Near(
        why="Slurm's own names of GPUs count",
        scene=S(spec={"gpu_type": "a100"}, profile=gpu("NVIDIA H100")),
        only=(),
    ),
    # memory and disk
    Near(  # 4 processes x (0.44 + 29.8) GiB
        why="every rank loads the model",
        scene=S(spec={"mem_bytes": 100 * GIB}, around={"model": LARGE}),
        has="memory-too-small",
        what="the processes need 121 GiB",
    ),
    Near(
        why="with fsdp one rank loads the model",
        scene=S(spec={"mem_bytes": 100 * GIB, "sharding": "fsdp"}, around={"model": LARGE}),
        lacks="memory-too-small",
    ),
    Near(
        why="ZeRO-3 loads in parts",
        scene=S(spec={"mem_bytes": 14 * GIB, "sharding": "zero3"}, around={"model": LARGE}),
        lacks="memory-too-small",
    ),
    Near(
        why="all memory is enough",
        scene=S(spec={"mem_bytes": 0}, around={"model": LARGE}),
        lacks="memory-too-small",
    ),
    Near(
        why="a model of unknown size is not guessed",
        scene=S(spec={"mem_bytes": 3 * GIB}, around={"model": replace(MODEL, config=None)}),
        lacks="memory-too-small",
    ),
    Near(  # with CUDA's libraries, and a quarter to spare
        why="Delta gives 1000 MB for each core",
        scene=S(spec={"mem_bytes": None, "cpus_per_gpu": 1}, **DELTA),
        only=("memory-too-small",),
        level="error",
        evidence="1000M x 4 cores",
        fix="--mem 22G",
    ),
    Near(
        why="Delta gives 1000 MB for each of many cores",
        scene=S(spec={"mem_bytes": None, "cpus_per_gpu": 16}, **DELTA),
        only=(),
    ),
    Near(
        why="room for one checkpoint and not for two",
        scene=S(around=ONE),
        has="output-space",
        level="warning",
    ),
    Near(
        why="room for two models without their optimizer",
        scene=S(around=ONE, spec=arguments("--save_only_model", "true")),
        only=(),
    ),
    Near(
        why="room for two adapters",
        scene=S(around=ONE, spec=arguments("--use_peft", "true")),
        only=(),
    ),
    # partition, QOS, account
    Near(why="a QOS that no profile knows", scene=S(**NO_QOS, profile={"qos": {}}), only=()),
    Near(
        why="the QOS of another account",
        scene=S(spec={"qos": "long"}, live={"associations": MINE}),
        only=("qos-unknown",),
    ),
    Near(
        why="the QOS of this account",
        scene=S(spec={"qos": "long", "account": "proj_a"}, live={"associations": MINE}),
        only=(),
    ),
    Near(
        why="the account of other nodes",
        scene=replace(
            CASES["account-nodes"][1],
            spec={"account": "abc@v100", "partition": None, "qos": None, "constraint": "h100"},
        ),
        has="account-nodes",
        what="h100 nodes are paid by an account that ends in @h100, not 'abc@v100'",
    ),
    Near(
        why="the default account makes a missing one a warning",
        scene=S(
            spec={"account": None}, live={"default_account": "proj_b", "associations": ONE_ACCOUNT}
        ),
        only=("account-missing",),
        level="warning",
        what="your default account is proj_b",
    ),
    Near(
        why="accounting did not answer",
        scene=S(spec={"account": "proj_z", "qos": "long"}, live={"associations": None}),
        only=(),
    ),
    Near(why="accounts have no case", scene=S(spec={"account": "PROJ_B"}), only=()),
    Near(
        why="the rest of the command stays",
        scene=S(
            spec={"account": "porj_b"},
            typed=(("--nodes", "2"), ("--account", "porj_b"), ("--sbatch", "comment=a b")),
            arguments=("--x", "1"),
            origins={("resources", "account"): "--account"},
        ),
        only=("account-unknown",),
        evidence="--account porj_b; sacctmgr lists for you: proj_a, proj_b",
        fix="hpctrain render --nodes 2 --sbatch 'comment=a b' --account proj_b -- --x 1",
    ),
    Near(
        why="a partition for tests where its name is near",
        scene=S(spec={"partition": "zdebg"}, live=TESTS),
        has="partition-unknown",
        fix="hpctrain render --partition zdebug",
    ),
    # limits
    Near(
        why="Slurm's longer limit wins over the profile's",
        scene=S(spec={"time_s": 2 * 86_400}, live=gpus_of_partition(time_max=3 * 86_400)),
        lacks="time-limit",
    ),
    Near(
        why="Slurm's shorter limit wins over the profile's",
        scene=S(spec={"time_s": 3600}, live=gpus_of_partition(time_max=1800)),
        only=("time-limit",),
        what="time 01:00:00, and partition gpu allows 00:30:00",
        evidence="scontrol show partition gpu",
    ),
    Near(
        why="the tightest limit is named and typed",
        scene=S(
            spec={"qos": "long", "nodes": 1, "time_s": 5 * 86_400},
            live=gpus_of_partition(time_max=7 * 86_400),
        ),
        only=("time-limit",),
        what="time 5-00:00:00, and QOS long allows 4-00:00:00",
        fix="time: 4-00:00:00 in config.yaml:8, or: hpctrain render --time 4-00:00:00",
    ),
    Near(
        why="an association with a limit of its own",
        scene=S(
            live={"associations": (Association(account="proj_b", qos=("normal",), time_max=3600),)}
        ),
        only=("time-limit",),
        what="time 04:00:00, and account proj_b allows 01:00:00",
    ),
    Near(
        why="a QOS with a least number of nodes",
        scene=S(
            spec={"qos": "big", "nodes": 64},
            profile={"qos": {"big": {"nodes_min": 65}}},
            live=None,
        ),
        only=("nodes-limit",),
        what="64 nodes, and QOS big allows 65 at least",
        fix="hpctrain render --nodes 65",
    ),
    Near(
        why="several partitions are not judged by one",
        scene=S(spec={"partition": "gpu,debug", "time_s": 3600}, live={"max_array_size": 5}),
        lacks="time-limit",
    ),
    Near(
        why="each of several partitions has to exist",
        scene=S(spec={"partition": "gpu,nope"}),
        has="partition-unknown",
    ),
    Near(
        why="a QOS without a limit",
        scene=S(live={"qos": (LiveQos(name="normal"),)}),
        lacks="gpus-limit",
    ),
    Near(
        why="a limit of a QOS is confirmed by sacctmgr",
        scene=S(spec={"qos": "long", "time_s": 5 * 86_400}, **QOS_LIMIT),
        has="time-limit",
        evidence="; confirm with: sacctmgr show qos long",
    ),
    # the environment
    Near(
        why="modules may bring a launcher",
        scene=S(
            spec={"venv": None, "modules": ("torch",)},
            around={"python": None, "launcher_on_path": None},
        ),
        lacks="launcher-missing",
    ),
    Near(
        why="hooks may bring a launcher",
        scene=S(
            spec={"venv": None, "before": ("x",)},
            around={"python": None, "launcher_on_path": None},
        ),
        lacks="launcher-missing",
    ),
    Near(
        why="a torch for the CPU without a profile",
        scene=S(around=python(torch="cpu"), profile=None),
        has="torch-build",
        level="warning",
    ),
    Near(
        why="a torch for the CPU with a profile",
        scene=S(around=python(torch="cpu")),
        has="torch-build",
        level="error",
    ),
    Near(
        why="a torch for other GPUs without a profile",
        scene=S(around=python(torch="rocm"), profile=None),
        lacks="torch-build",
    ),
    Near(
        why="a torch for the CPU on this machine",
        scene=S(around=python(torch="cpu"), profile=None, local=True),
        lacks="torch-build",
    ),
    Near(
        why="a config that asks for the CPU",
        scene=S(spec={"env": (("ACCELERATE_USE_CPU", "true"),)}, around=python(torch="cpu")),
        only=(),
    ),
    Near(
        why="a shell that asks for the CPU",
        scene=S(
            around={**python(torch="cpu"), "variables": {"ACCELERATE_USE_CPU": "1"}},
        ),
        only=(),
    ),
    Near(
        why="a secret without its file",
        scene=S(
            around={
                "secrets": (SecretFacts(name="HF_TOKEN", file=missing("/work/proj_b/t")),),
            }
        ),
        only=("secret-missing",),
    ),
    Near(
        why="a link out of /tmp is shared",
        scene=S(around={"chdir": path("/tmp/x", real="/work/proj_b/x")}),
        only=(),
    ),
    # arguments
    Near(
        why="a script is not judged by the arguments of ours",
        scene=S(
            spec={
                "script": "train.py",
                "arguments": ("--warmup_ratio", "1", "--save_strategy", "no"),
            },
            around={"script": SCRIPT, "model": None, "dataset": None},
        ),
        only=(),
    ),
    Near(
        why="no script reads a pointer of git-lfs",
        scene=S(
            spec={"script": "train.py"},
            around={
                "script": SCRIPT,
                "model": replace(
                    MODEL, problems=(FolderProblem(what="a pointer", fix="x", cause="lfs"),)
                ),
            },
        ),
        has="model-folder",
        level="error",
        fix="git -C /work/proj_b/sft/models/m lfs pull",
    ),
    Near(
        why="a template of one's own may trap the signal",
        scene=S(spec={"template": "mine.j2", "sbatch": (("signal", "B:USR1@60"),)}),
        lacks="signal-kills",
    ),
    Near(
        why="a template of one's own may take any argument",
        scene=S(spec={**arguments("--adam_beta3", "0.9"), "template": "mine.j2"}),
        lacks="argument-unknown",
    ),
    Near(
        why="an argument of the config",
        scene=S(**RATIO),
        has="argument-removed",
        evidence="config.yaml:20:1: warmup_ratio: 0.1",
    ),
    Near(
        why="an argument after --",
        scene=S(**RATIO, arguments=("--warmup_ratio", "0.1")),
        has="argument-removed",
        evidence="--warmup_ratio 0.1, after --",
    ),
]


@pytest.mark.parametrize("near", NEAR, ids=lambda near: near.why)
def test_near(near: Near) -> None:
    near.look()


def test_what_is_certain_of_the_model_in_memory_is_an_error() -> None:
    """8e9 x 4 bytes = 29.8 GiB and 1.8 GiB for four processes are certain; with CUDA's libraries it
    is 38.2 GiB, by estimate.
    """
    levels = []
    for size in (31, 32, 38, 39):
        spec = {"mem_bytes": size * GIB, "sharding": "fsdp"}
        found = Scene(spec=spec, around={"model": LARGE}).findings()
        levels.append([finding.level for finding in found if finding.id == "memory-too-small"])
    assert levels == [["error"], ["warning"], ["warning"], []]


@pytest.mark.parametrize(
    ("launcher", "signal", "kills"),
    [
        ("srun", "USR1@60", False),
        ("srun", "B:USR1@60", True),
        ("torchrun", "10@60", True),
        ("accelerate", "SIGUSR2", True),
        ("accelerate", "B:TERM@60", False),
        ("accelerate", "R:USR1@60", True),
    ],
)
def test_who_gets_the_signal(launcher: str, signal: str, kills: bool) -> None:
    spec = {"launcher": launcher, "sbatch": (("signal", signal),)}
    assert ("signal-kills" in Scene(spec=spec).ids()) is kills


@pytest.mark.parametrize(
    ("mode", "found"), [(0o400, []), (0o600, []), (0o700, ["secret-file-open"])]
)
def test_the_file_of_a_secret(mode: int, found: list[str]) -> None:
    secret = SecretFacts(name="HF_TOKEN", file=replace(TOKEN, mode=mode))
    assert Scene(around={"secrets": (secret,)}).ids() == found


@pytest.mark.parametrize("level", ["recalled", "documented"])
def test_a_partition_of_cpu_nodes(level: str) -> None:
    nodes_ = {"cpu": "cpu", "debug": "a100", "gpu": "a100"}
    profile = {
        "nodes": {**PROFILE["nodes"], "cpu": {"gpus": 0}},
        "partitions": {name: {"nodes": nodes} for name, nodes in nodes_.items()},
    }
    Near(
        why="",
        scene=Scene(spec={"partition": "cpu"}, profile=profile, live=None, level=level),
        has="gpus-per-node",
        level="warning" if level == "recalled" else "error",
    ).look()
