"""Close to a finding, on the right side of it; and the ways in which one thing is known from several places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from check_cases import CASES, KINDS, LARGE, ON_V100, gpus_of_partition, of_python
from check_scene import ARGUMENTS, GIB, PROFILE, SCRIPT, Scene, missing, nodes, partition

from hpctrain.clusters.live import Association
from hpctrain.jobs.check.surroundings import SecretFacts

MAKES: list[tuple[dict[str, Any], str]] = [({"venv": None, "modules": ("torch",)}, "modules"), ({"venv": None, "before": ("x",)}, "hooks")]


def the(scene: Scene, id_: str) -> Any:
    (found,) = (finding for finding in scene.findings() if finding.id == id_)
    return found


def test_all_gpus_of_whole_nodes_are_used() -> None:
    assert Scene(live=gpus_of_partition(exclusive=True)).findings() == []
    assert Scene(profile={"billing": {"unit": "node"}}, spec={"gpus_per_node": 2}).ids() == ["gpus-unused"]
    assert "gpus-unused" not in Scene(profile={"billing": {"unit": "share"}}, spec={"gpus_per_node": 2}).ids()


def test_fewer_nodes_are_typed_where_they_hold_the_job() -> None:
    found = the(CASES["gpus-unused"][1], "gpus-unused")
    assert found.what == "the job pays for 32 GPUs and uses 8: nodes come whole here"
    assert found.fix == "hpctrain render --nodes 2 --gpus 4"


def test_the_nodes_that_are_typed_are_allowed() -> None:
    scene = Scene(spec={"gpus_per_node": 8, "cpus_per_gpu": 8, "nodes": 40}, live=gpus_of_partition(nodes_max=64))
    assert the(scene, "gpus-per-node").fix == "hpctrain render --nodes 64 --gpus 4"


def test_a_slurm_that_shows_no_gpu_anywhere_says_nothing_about_gpus() -> None:
    bare = partition(nodes=(nodes(gpus=()),))
    assert Scene(live={"partitions": (bare,)}).findings() == []
    assert "gpus-per-node" in Scene(live={"partitions": (bare,)}, spec={"gpus_per_node": 5, "cpus_per_gpu": 8}).ids()


def test_of_cores_the_smaller_number_counts_and_of_gpus_slurms() -> None:
    kept = {"a100": {**PROFILE["nodes"]["a100"], "cpus": 56, "gpus": 2}}
    scene = Scene(spec={"cpus_per_task": 57}, profile={"nodes": kept})
    assert scene.ids() == ["cores-limit"]
    assert "gpus-per-node" not in scene.ids()
    assert "profile site" in the(scene, "cores-limit").evidence


def test_a_qos_that_only_a_profile_knows() -> None:
    assert Scene(spec={"qos": "lnog"}, live=None).ids() == ["qos-unknown"]
    found = the(Scene(spec={"qos": "lnog"}, live=None), "qos-unknown")
    assert (found.level, found.fix) == ("warning", "hpctrain render --qos long")
    assert Scene(spec={"qos": "lnog"}, live=None, profile={"qos": {}}).ids() == []


def test_the_qos_of_other_accounts_are_not_mine() -> None:
    associations = (Association(account="proj_a", qos=("long",)), Association(account="proj_b", qos=("normal",)))
    assert Scene(spec={"qos": "long"}, live={"associations": associations}).ids() == ["qos-unknown"]
    assert Scene(spec={"qos": "long", "account": "proj_a"}, live={"associations": associations}).ids() == []


@pytest.mark.parametrize(("count", "offered"), [(3, True), (4, False)])
def test_a_qos_with_more_time_is_offered_where_the_job_fits(count: int, offered: bool) -> None:
    found = the(Scene(spec={"time_s": 2 * 86_400, "nodes": count}, live=None), "time-limit")
    assert found.fix.endswith("; or keep the time with --qos long") is offered


def test_a_partition_that_takes_the_account_is_typed() -> None:
    closed = partition(allow_accounts=("proj_a",))
    open_ = partition(name="open", default=False, allow_accounts=("Proj_B",))
    down = partition(name="down", default=False, up=False)
    scene = Scene(live={"partitions": (closed, down, open_), "associations": (Association(account="proj_b", qos=("normal",)),)})
    assert the(scene, "account-not-allowed").fix == "hpctrain render --partition open"


def test_a_machine_of_another_kind_is_a_note_where_the_environment_does_not_say() -> None:
    arm = CASES["environment-architecture"][1].profile
    found = the(Scene(profile=arm, around=of_python(arch=None)), "environment-architecture")
    assert found.level == "note"
    assert Scene(profile=arm, around={**of_python(arch=None), "machine": "aarch64"}).ids() == []
    assert Scene(profile=arm, around={**of_python(arch=None), "machine": "arm64"}).ids() == []


@pytest.mark.parametrize(("spec", "why"), MAKES, ids=[why for _, why in MAKES])
def test_what_may_bring_a_launcher(spec: dict[str, Any], why: str) -> None:
    around = {"python": None, "launcher_on_path": None}
    assert "launcher-missing" not in Scene(spec=spec, around=around).ids()


def test_one_copy_of_the_model_has_to_fit_too() -> None:
    """8e9 x 4 bytes = 29.8 GiB and 1.8 GiB for four processes are certain; with CUDA's libraries it is 38.2 GiB, by estimate."""
    levels = []
    for size in (31, 32, 38, 39):
        found = Scene(spec={"mem_bytes": size * GIB, "sharding": "fsdp"}, around={"model": LARGE}).findings()
        levels.append([finding.level for finding in found if finding.id == "memory-too-small"])
    assert levels == [["error"], ["warning"], ["warning"], []]
    # ZeRO-3 loads in parts.
    assert "memory-too-small" not in Scene(spec={"mem_bytes": 14 * GIB, "sharding": "zero3"}, around={"model": LARGE}).ids()


def test_all_memory_of_a_node_that_is_ones_own() -> None:
    scene = CASES["memory-all"][1]
    assert "memory-all" not in replace(scene, spec={**scene.spec, "sbatch": (("exclusive", None),)}).ids()
    assert "memory-all" not in replace(scene, profile={"billing": {"unit": "node"}}).ids()
    assert the(scene, "memory-all").fix == "hpctrain render --mem 360G"


def test_room_for_one_checkpoint_and_not_for_two() -> None:
    scene = CASES["output-space"][1]
    output = scene.around["output"]
    one = replace(output, filesystem=replace(output.filesystem, free=8 * GIB))
    assert the(Scene(around={"output": one}), "output-space").level == "warning"
    assert Scene(around={"output": one}, spec={"arguments": (*ARGUMENTS, "--save_only_model", "true")}).ids() == []
    assert Scene(around={"output": one}, spec={"arguments": (*ARGUMENTS, "--use_peft", "true")}).ids() == []


def test_a_script_is_not_judged_by_the_arguments_of_ours() -> None:
    own: dict[str, Any] = {"script": "train.py", "arguments": ("--warmup_ratio", "1", "--save_strategy", "no")}
    assert Scene(spec=own, around={"script": SCRIPT, "model": None, "dataset": None}).findings() == []


@pytest.mark.parametrize(
    ("launcher", "signal", "kills"),
    [("srun", "USR1@60", False), ("srun", "B:USR1@60", True), ("torchrun", "10@60", True), ("accelerate", "SIGUSR2", True),
     ("accelerate", "B:TERM@60", False), ("accelerate", "R:USR1@60", True)],
)  # fmt: skip
def test_who_gets_the_signal(launcher: str, signal: str, kills: bool) -> None:
    assert ("signal-kills" in Scene(spec={"launcher": launcher, "sbatch": (("signal", signal),)}).ids()) is kills


def test_a_template_of_ones_own_may_trap_the_signal() -> None:
    assert "signal-kills" not in Scene(spec={"template": "mine.j2", "sbatch": (("signal", "B:USR1@60"),)}).ids()


@pytest.mark.parametrize(("size", "mode", "id_"), [(0, 0o600, "secret-missing"), (9, 0o400, None), (9, 0o700, "secret-file-open")])
def test_the_file_of_a_secret(size: int, mode: int, id_: str | None) -> None:
    token = CASES["secret-file-open"][1].around["secrets"][0].file
    ids = Scene(around={"secrets": (SecretFacts(name="HF_TOKEN", file=replace(token, size=size, mode=mode)),)}).ids()
    assert ids == ([id_] if id_ else [])


def test_a_secret_without_its_file() -> None:
    assert Scene(around={"secrets": (SecretFacts(name="HF_TOKEN", file=missing("/work/proj_b/t")),)}).ids() == ["secret-missing"]


def test_leaks_of_an_outer_job_alone_are_a_note() -> None:
    (found,) = Scene(around={"leaks": ("SLURM_JOB_ID", "SLURM_NTASKS")}).findings()
    assert (found.level, found.fix) == ("note", "unset SLURM_JOB_ID SLURM_NTASKS")
    assert "is inside a job" in found.what


@pytest.mark.parametrize("on", [{"spec": {"env": (("ACCELERATE_USE_CPU", "true"),)}}, {"variables": {"ACCELERATE_USE_CPU": "1"}}])
def test_a_training_on_the_cpu_needs_no_gpu_build(on: dict[str, Any]) -> None:
    around = {**of_python(torch="cpu"), **({"variables": on["variables"]} if "variables" in on else {})}
    assert Scene(spec=on.get("spec", {}), around=around).findings() == []


def test_a_wandb_that_is_told_to_be_online() -> None:
    arguments = (*ARGUMENTS, "--report_to", "wandb")
    assert Scene(spec={"arguments": arguments, "env": (("WANDB_MODE", "online"),)}).ids() == ["tracker-online"]
    assert "tracker-online" in Scene(spec={"arguments": arguments, "offline": False}).ids()
    assert Scene(spec={"arguments": arguments, "env": (("WANDB_MODE", "offline"),)}).ids() == []


def test_idle_features_and_or_are_not_counted_as_nodes() -> None:
    groups = (nodes(features=("a100", "nvme")), nodes(features=("a100",), gpus=(("a100", 8),), cpus=128))
    live = gpus_of_partition(nodes=groups)
    ask: dict[str, Any] = {"gpus_per_node": 8, "cpus_per_gpu": 8}
    assert "gpus-per-node" in Scene(spec={**ask, "constraint": "a100&nvme"}, live=live).ids()
    assert "gpus-per-node" not in Scene(spec={**ask, "constraint": "a100"}, live=live).ids()
    # Which of two kinds of nodes it will be is not known, so the larger one counts.
    assert "gpus-per-node" not in Scene(spec={**ask, "constraint": "nvme|a100"}, live=live).ids()


@pytest.mark.parametrize(
    ("constraint", "says"), [("h100", True), ("v100-32g|h100", False), ("h100|nvme", False), ("nvme", False), ("h100&nvme", True)]
)
def test_a_constraint_and_a_partition(constraint: str, says: bool) -> None:
    scene = Scene(spec={**ON_V100, "constraint": constraint}, profile=KINDS, live=None)
    assert ("constraint-partition" in scene.ids()) is says
    there = replace(scene, spec={"partition": "gpu_p6", "constraint": constraint})
    assert "constraint-partition" not in there.ids()
    if says:
        assert the(scene, "constraint-partition").fix == "hpctrain render --partition gpu_p6"
        assert the(replace(scene, level="seen"), "constraint-partition").level == "warning"


def test_too_many_cores_because_of_too_many_gpus_are_one_finding() -> None:
    assert Scene(spec={"gpus_per_node": 8, "cpus_per_gpu": 16}).ids() == ["gpus-per-node"]
    assert Scene(spec={"gpus_per_node": 8, "cpus_per_task": 128}).ids() == ["gpus-per-node", "cores-limit"]


def test_cores_for_each_gpu_are_shown_as_they_were_written() -> None:
    scene = Scene(spec={"cpus_per_gpu": 17}, origins={("resources", "cpus_per_gpu"): "config.yaml:9:3"})
    found = the(scene, "cores-limit")
    assert found.evidence.startswith("config.yaml:9:3: cpus_per_gpu: 17 x 4 GPUs, 1 task on each node; ")
    assert (found.file, found.line) == ("config.yaml", 9)
    assert "cpus_per_task 68" in the(Scene(spec={"cpus_per_task": 68}), "cores-limit").evidence


def test_a_classifier_is_told_its_own_option() -> None:
    arguments = (*ARGUMENTS, "--max_seq_length", "64")
    assert the(Scene(spec={"arguments": arguments, "task": "classify"}), "argument-removed").fix == "in its place: max_events"
    assert the(Scene(spec={"arguments": arguments}), "argument-removed").fix == "in its place: max_length"


@pytest.mark.parametrize("typed", [("--warmup_ratio", "0.1"), ("--warmup-ratio=0.1",)])
def test_what_was_typed_behind_dashes_is_said_to_stand_there(typed: tuple[str, ...]) -> None:
    scene = Scene(spec={"arguments": (*ARGUMENTS, *typed)}, arguments=typed, origins={("training",): "config.yaml:20:1"})
    assert the(scene, "argument-removed").evidence == "--warmup_ratio 0.1, behind --"
    assert the(replace(scene, arguments=()), "argument-removed").evidence == "config.yaml:20:1: warmup_ratio: 0.1"


def test_a_limit_of_a_qos_is_confirmed_by_the_command_that_shows_it() -> None:
    scene = Scene(spec={"qos": "long", "time_s": 5 * 86_400}, live=None, level="seen", profile={"partitions": {"gpu": {"nodes": "a100"}}})
    assert the(scene, "time-limit").evidence.endswith("; confirm with: sacctmgr -nP show qos long format=Name,MaxWall,MaxTRES")
    scene = Scene(spec={"time_s": 5 * 86_400}, live=None, level="seen")
    assert the(scene, "time-limit").evidence.endswith("; confirm with: scontrol show partition gpu")


@pytest.mark.parametrize(
    ("gpu", "asked", "says"),
    [("NVIDIA A100 custom", "h100", True), ("NVIDIA A100 custom", "a100_80gb", False), ("NVIDIA H100", "nvidia_h100_80gb_hbm3", False),
     ("AMD MI250X", "mi250", False), ("NVIDIA GH200", "h100", False), ("NVIDIA A100", "gpu", False), (None, "h100", False)],
)  # fmt: skip
def test_a_gpu_type_that_only_a_profile_can_judge(gpu: str | None, asked: str, says: bool) -> None:
    profile = {"nodes": {"a100": {**PROFILE["nodes"]["a100"], **({"gpu": gpu} if gpu else {})}}}
    scene = Scene(spec={"gpu_type": asked}, live=None, profile=profile)
    assert scene.ids() == (["gpu-type-unknown"] if says else [])
    if says:
        assert (the(scene, "gpu-type-unknown").level, the(scene, "gpu-type-unknown").fix) == ("warning", "hpctrain render --gpu-type a100")
    # Where Slurm shows GPUs, its own names count.
    assert Scene(spec={"gpu_type": "a100"}, profile={"nodes": {"a100": {**PROFILE["nodes"]["a100"], "gpu": "NVIDIA H100"}}}).ids() == []


@pytest.mark.parametrize("level", ["recalled", "documented"])
def test_a_partition_of_cpu_nodes(level: str) -> None:
    nodes_ = {**PROFILE["nodes"], "cpu": {"gpus": 0}}
    profile = {"nodes": nodes_, "partitions": {"cpu": {"nodes": "cpu"}, "debug": {"nodes": "a100"}, "gpu": {"nodes": "a100"}}}
    scene = Scene(spec={"partition": "cpu"}, profile=profile, live=None, level=level)
    found = the(scene, "gpus-per-node")
    assert found.level == ("warning" if level == "recalled" else "error")
    assert found.fix.endswith("hpctrain render --partition gpu")


def test_a_torch_for_the_cpu_needs_no_profile_to_be_wrong() -> None:
    assert the(Scene(around=of_python(torch="cpu"), profile=None), "torch-build").level == "warning"
    assert "torch-build" not in Scene(around=of_python(torch="rocm"), profile=None).ids()
    assert "torch-build" not in Scene(around=of_python(torch="cpu"), profile=None, local=True).ids()
    assert the(Scene(around=of_python(torch="cpu")), "torch-build").level == "error"


def test_no_partition_for_tests_is_typed_where_no_name_is_near() -> None:
    small, big = partition(name="zdebug", default=False), partition(name="accelerated", default=False)
    cpu = partition(name="zcpu", default=False, nodes=(nodes(gpus=()),))
    live = {"partitions": (small, cpu, big)}
    assert the(Scene(spec={"partition": "z"}, live=live), "partition-unknown").fix == "hpctrain render --partition accelerated"
    assert the(Scene(spec={"partition": "zdebg"}, live=live), "partition-unknown").fix == "hpctrain render --partition zdebug"
    assert the(Scene(spec={"partition": "z"}, live=None), "partition-unknown").fix == "hpctrain render --partition gpu"
