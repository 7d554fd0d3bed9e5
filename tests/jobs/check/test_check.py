"""The rules: each finds what it is there for, stays silent a hair's breadth away, and never guesses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from check_cases import CASES, LARGE, MODEL, ONE_ACCOUNT, gpus_of_partition
from check_scene import ARGUMENTS, AROUND, GIB, LIVE, PYTHON, SPEC, Scene, nodes, partition

from hpctrain.clusters.live import Association, LiveCluster, LiveQos
from hpctrain.jobs.check import IDS, check, refusal, show
from hpctrain.jobs.check.case import Case, closest
from hpctrain.jobs.check.surroundings import Surroundings
from hpctrain.jobs.finding import Finding
from hpctrain.jobs.spec import JobSpec, Study


def test_a_job_with_nothing_wrong_has_no_findings() -> None:
    assert Scene().findings() == []
    assert Scene(live=None).findings() == []
    assert Scene(profile=None).findings() == []
    assert Scene(local=True).findings() == []


@pytest.mark.parametrize("id_", IDS)
def test_each_finding_is_made_and_not_made(id_: str) -> None:
    if id_ == "slurm-refuses":
        return  # Slurm's word, below
    level, there, not_there = CASES[id_]
    found = [finding for finding in there.findings() if finding.id == id_]
    assert found, there.ids()
    assert {finding.level for finding in found} == {level}
    assert id_ not in not_there.ids()


@pytest.mark.parametrize("id_", CASES)
def test_the_case_of_a_finding_has_no_other_errors(id_: str) -> None:
    """Near misses are near to one thing: they have no errors of their own, and what fires fires alone."""
    _, there, not_there = CASES[id_]
    assert [finding for finding in not_there.findings() if finding.level == "error"] == []
    # chdir and account rules speak of one thing from two sides.
    assert {finding.id for finding in there.findings() if finding.level == "error"} <= {id_}


def test_no_rule_knows_an_id_that_is_not_listed() -> None:
    seen = {finding.id for _, *scenes in CASES.values() for scene in scenes for finding in scene.findings()}
    assert seen <= set(IDS)
    assert set(CASES) | {"slurm-refuses"} == set(IDS)


@pytest.mark.parametrize("id_", CASES)
def test_a_finding_is_whole(id_: str) -> None:
    for finding in CASES[id_][1].findings():
        assert all((finding.what, finding.evidence, finding.reason, finding.fix)), finding
        assert "\n" not in finding.what + finding.evidence + finding.reason + finding.fix
        assert not finding.what.endswith(".")
        assert "None" not in finding.what + finding.evidence + finding.fix, finding
        assert "NAME" not in finding.what


@pytest.mark.parametrize("id_", CASES)
def test_nothing_is_found_in_what_nobody_knows(id_: str) -> None:
    """The same job where no profile, no Slurm and no file is known: at most what the job itself says is found."""
    case = CASES[id_][1]
    found = check(replace(SPEC, **case.spec), cluster=None, live=None, around=Surroundings(), origins={})
    from_the_job_alone = {
        "argument-removed", "argument-unknown", "no-checkpoints", "signal-kills", "tune-no-evaluation", "secret-in-config", "push-to-hub",
        "cores-few", "dataset-folder", "launcher-missing", "adapter-not-asked",
    }  # fmt: skip
    assert {finding.id for finding in found} <= from_the_job_alone, found


@pytest.mark.parametrize(
    "other",
    [
        {"around": {"python": None}},
        {"around": {"python": replace(PYTHON, distributions={"trl": "1.17.0", "transformers": "5.23.1"})}},
        {"around": {"python": replace(PYTHON, distributions={"trl": "1.16.0", "transformers": "5.230.0"})}},
        {"around": {"python": replace(PYTHON, distributions={"trl": "1.16.0"})}},
        {"spec": {"modules": ("python/3.12",)}},
    ],
)
def test_libraries_of_another_release_may_take_more_options(other: dict[str, dict[str, Any]]) -> None:
    spec = {"arguments": (*ARGUMENTS, "--adam_beta3", "0.9"), **other.get("spec", {})}
    found = [each for each in Scene(spec=spec, around=other.get("around", {})).findings() if each.id == "argument-unknown"]
    assert [each.level for each in found] == ["warning"]
    assert found[0].what == "the training knows no adam_beta3 with trl 1.16 and transformers 5.23"
    assert found[0].reason.endswith(", unless its libraries know more")


@pytest.mark.parametrize(
    ("name", "id_"), [("learnig_rate", "argument-unknown"), ("learnig-rate", "argument-unknown"), ("warmup-ratio", "argument-removed")]
)
def test_what_a_study_searches_is_an_argument_of_the_training(name: str, id_: str) -> None:
    """Misspelt, every trial would stop when it reads its arguments: a whole array in the queue for nothing."""
    spec = {"study": Study(name="s", file="s.json", keys=("learning-rate", name)), "array": "0-3%2"}
    scene = Scene(spec={**spec, "arguments": (*ARGUMENTS, "--eval_strategy", "epoch")})
    assert scene.ids() == [id_]
    assert [each.evidence for each in scene.findings()] == [f"{name} searched (default)"]
    assert {each.fix.partition(": ")[0] for each in scene.findings()} == {"in its place"}


def test_an_adapter_that_a_study_searches_and_nobody_asked_for() -> None:
    """All trials would train all weights, and lora_r would change nothing."""
    spec = {"study": Study(name="s", file="s.json", keys=("lora-r",)), "array": "0-3%2"}
    spec["arguments"] = (*ARGUMENTS, "--eval_strategy", "epoch")
    assert Scene(spec=spec).ids() == ["adapter-not-asked"]
    spec["arguments"] += ("--use_peft", "true")
    assert Scene(spec=spec).ids() == []
    points = {("sweep", "grid"): "config.yaml:9:3"}  # which may say use_peft
    assert Scene(spec={"arguments": (*ARGUMENTS, "--lora_r", "16")}, origins=points).ids() == []


def test_a_template_of_ones_own_may_give_the_arguments_to_anything() -> None:
    assert "argument-unknown" not in Scene(spec={"arguments": (*ARGUMENTS, "--adam_beta3", "0.9"), "template": "mine.j2"}).ids()


FROM_THE_PROFILE = [
    "gpu-dialect", "module-purge", "path-not-mounted", "directive-forbidden", "environment-architecture", "container-gpu", "torch-build",
    "gpu-memory", "tracker-online", "account-nodes", "qos-missing", "directive-required",
]  # fmt: skip


@pytest.mark.parametrize("id_", FROM_THE_PROFILE)
@pytest.mark.parametrize("level", ["seen", "recalled"])
def test_what_was_only_seen_or_remembered_is_no_error(id_: str, level: str) -> None:
    found = [finding for finding in replace(CASES[id_][1], level=level).findings() if finding.id == id_]
    assert {finding.level for finding in found} == {"warning"}


# -- Slurm's word against the profile's ---------------------------------------------------------------------------------


def test_slurm_wins_over_the_profile() -> None:
    assert "time-limit" not in Scene(spec={"time_s": 2 * 86_400}, live=gpus_of_partition(time_max=3 * 86_400)).ids()
    (found,) = Scene(spec={"time_s": 3600}, live=gpus_of_partition(time_max=1800)).findings()
    assert (found.id, found.what) == ("time-limit", "time 01:00:00 is more than partition gpu allows: 00:30:00")
    assert "scontrol show partition gpu" in found.evidence


def test_the_tightest_limit_is_named_and_typed() -> None:
    (found,) = Scene(spec={"qos": "long", "nodes": 1, "time_s": 5 * 86_400}, live=gpus_of_partition(time_max=7 * 86_400)).findings()
    assert found.what == "time 5-00:00:00 is more than QOS long allows: 4-00:00:00"
    assert found.fix == "time: 4-00:00:00 in config.yaml:8, or: hpctrain render --time 4-00:00:00"
    assert (found.file, found.line, found.column) == ("config.yaml", 8, 3)


@pytest.mark.parametrize(("count", "hours", "fits"), [(91, 2, True), (91, 3, False), (92, 6, True), (183, 7, False), (184, 12, True)])
def test_a_limit_that_depends_on_the_number_of_nodes(count: int, hours: int, fits: bool) -> None:
    bins = [{"nodes_min": 1, "time_max": "02:00:00"}, {"nodes_min": 92, "time_max": "06:00:00"}, {"nodes_min": 184, "time_max": "12:00:00"}]
    scene = Scene(
        spec={"nodes": count, "time_s": hours * 3600}, profile={"partitions": {"gpu": {"nodes": "a100", "time_by_nodes": bins}}}, live=None
    )
    assert ("time-limit" not in scene.ids()) is fits


def test_an_association_with_a_limit_of_its_own() -> None:
    association = Association(account="proj_b", qos=("normal",), time_max=3600)
    (found,) = Scene(live={"associations": (association,)}).findings()
    assert found.what == "time 04:00:00 is more than account proj_b allows: 01:00:00"


def test_a_qos_with_a_least_number_of_nodes() -> None:
    scene = Scene(spec={"qos": "big", "nodes": 64}, profile={"qos": {"big": {"nodes_min": 65}}}, live=None)
    (found,) = scene.findings()
    assert found.what == "64 nodes, and QOS big allows 65 at least"
    assert found.fix == "hpctrain render --nodes 65"


def test_a_longer_partition_is_offered() -> None:
    long = partition(name="long", default=False, time_max=7 * 86_400)
    (found,) = Scene(spec={"time_s": 2 * 86_400}, live={"partitions": (partition(), long)}).findings()
    assert found.fix.endswith("; or keep the time in another partition: --partition long")


def test_several_partitions_are_not_judged_by_one() -> None:
    assert "time-limit" not in Scene(spec={"partition": "gpu,debug", "time_s": 3600}, live={"max_array_size": 5}).ids()
    assert "partition-unknown" in Scene(spec={"partition": "gpu,nope"}).ids()


@pytest.mark.parametrize("account", ["proj_b", "Proj_B", "PROJ_B"])
def test_accounts_are_compared_as_slurm_does(account: str) -> None:
    assert Scene(spec={"account": account}).findings() == []


def test_the_nearest_of_ones_own_accounts_is_typed_and_the_rest_of_the_command_stays() -> None:
    scene = Scene(
        spec={"account": "porj_b"}, typed=(("--nodes", "2"), ("--account", "porj_b"), ("--sbatch", "comment=a b")), arguments=("--x", "1"),
        origins={("resources", "account"): "--account"},
    )  # fmt: skip
    (found,) = scene.findings()
    assert found.evidence == "--account porj_b; sacctmgr lists for you: proj_a, proj_b"
    assert found.fix == "hpctrain render --nodes 2 --sbatch 'comment=a b' --account proj_b -- --x 1"


def test_a_default_account_makes_a_missing_one_a_warning() -> None:
    (found,) = Scene(spec={"account": None}, live={"default_account": "proj_b", "associations": ONE_ACCOUNT}).findings()
    assert (found.id, found.level) == ("account-missing", "warning")
    assert "your default account is proj_b" in found.what


def test_accounting_that_did_not_answer_is_no_reason_for_a_finding() -> None:
    assert Scene(spec={"account": "proj_z", "qos": "long"}, live={"associations": None}).findings() == []


def test_denied_accounts() -> None:
    assert Scene(live=gpus_of_partition(deny_accounts=("proj_b",))).ids() == ["account-not-allowed"]


def test_the_account_of_other_nodes() -> None:
    scene = replace(CASES["account-nodes"][1], spec={"account": "abc@v100", "partition": None, "qos": None, "constraint": "h100"})
    found = [finding for finding in scene.findings() if finding.id == "account-nodes"]
    assert [finding.what for finding in found] == ["h100 nodes are paid by an account that ends in @h100, not 'abc@v100'"]
    assert "abc@h100" in found[0].fix


# -- hardware -----------------------------------------------------------------------------------------------------------


def test_lumi_keeps_eight_cores_of_each_node() -> None:
    lumi = {"a100": {"gpus": 8, "vendor": "rocm", "cpus": 56, "memory": "480G"}}
    base: dict[str, Any] = {"profile": {"nodes": lumi}, "live": None, "around": {"python": None}}
    (found,) = Scene(spec={"gpus_per_node": 8, "cpus_per_gpu": 8, "venv": None}, **base).findings()
    assert found.what == "64 cores of each node are asked for, and a job can have 56"
    assert found.fix == "hpctrain render --cpus-per-task 56"
    assert Scene(spec={"gpus_per_node": 8, "cpus_per_gpu": 7, "venv": None}, **base).findings() == []


def test_srun_counts_the_cores_of_all_its_tasks() -> None:
    assert Scene(spec={"launcher": "srun", "cpus_per_gpu": 16}).ids() == []
    assert Scene(spec={"launcher": "srun", "cpus_per_task": 17}).ids() == ["cores-limit"]


def test_only_nodes_with_the_feature_count() -> None:
    groups = (nodes(), nodes(features=("h100",), gpus=(("h100", 8),), cpus=128))
    ask = {"gpus_per_node": 8, "cpus_per_gpu": 8}
    live = gpus_of_partition(nodes=groups)
    assert Scene(spec={**ask, "constraint": "h100"}, live=live).ids() == []
    assert "gpus-per-node" in Scene(spec={**ask, "constraint": "a100"}, live=live).ids()


def test_a_partition_without_gpus() -> None:
    live = {"partitions": (partition(nodes=(nodes(gpus=()),)), partition(name="real", default=False))}
    found = next(finding for finding in Scene(live=live).findings() if finding.id == "gpus-per-node")
    assert "has 0" in found.what
    assert "--partition real" in found.fix


@pytest.mark.parametrize(
    ("sharding", "world", "fits"), [("ddp", 8, False), ("zero2", 8, True), ("zero2", 2, False), ("fsdp", 1, False), ("zero3", 2, True)]
)
def test_what_each_gpu_holds_of_a_large_model(sharding: str, world: int, fits: bool) -> None:
    """8e9 x 16 bytes = 119 GiB; zero2: 29.8 + 89.4 / world; fsdp and zero3: 119.2 / world; a GPU has 64 GiB."""
    spec = {"sharding": sharding, "nodes": world // min(world, 4), "gpus_per_node": min(world, 4)}
    assert ("gpu-memory" not in Scene(spec=spec, around={"model": LARGE}).ids()) is fits


@pytest.mark.parametrize(
    "arguments",
    [("--use_peft", "true"), ("--optim=adafactor",), ("--dtype", "bfloat16"), ("--config", "sft.yaml"), ("--dtype", "auto"),
    ("--load_in_4bit",)],
)  # fmt: skip
def test_what_may_fit_is_not_refused(arguments: tuple[str, ...]) -> None:
    assert "gpu-memory" not in Scene(spec={"arguments": (*ARGUMENTS, *arguments)}, around={"model": LARGE}).ids()


def test_a_script_of_ones_own_loads_its_model_as_it_likes() -> None:
    scene = CASES["script-missing"][2]
    assert "gpu-memory" not in replace(scene, around={**scene.around, "model": LARGE}).ids()


def test_every_rank_loads_the_model_but_not_with_fsdp() -> None:
    """4 processes x (0.44 + 29.8) GiB do not fit in 100 GiB; one copy does."""
    around = {"model": LARGE}
    (found,) = [f for f in Scene(spec={"mem_bytes": 100 * GIB}, around=around).findings() if f.id == "memory-too-small"]
    assert "the processes need 121.0 GiB" in found.what
    assert "memory-too-small" not in Scene(spec={"mem_bytes": 100 * GIB, "sharding": "fsdp"}, around=around).ids()
    assert "memory-too-small" not in Scene(spec={"mem_bytes": 0}, around=around).ids()


def test_delta_gives_1000_mb_for_each_core() -> None:
    profile = {"memory": {"default_per_cpu": "1000M"}}
    (found,) = Scene(spec={"mem_bytes": None, "cpus_per_gpu": 1}, profile=profile, live=None).findings()
    assert (found.id, found.level) == ("memory-too-small", "error")
    assert "1000 MiB x 4 cores" in found.evidence
    assert "--mem 20G" in found.fix  # with CUDA's libraries, and a quarter to spare
    assert Scene(spec={"mem_bytes": None, "cpus_per_gpu": 16}, profile=profile, live=None).findings() == []


def test_a_model_of_unknown_size_is_not_guessed() -> None:
    assert "memory-too-small" not in Scene(spec={"mem_bytes": 3 * GIB}, around={"model": replace(MODEL, parameters=None)}).ids()


# -- the rest -----------------------------------------------------------------------------------------------------------


def test_on_this_machine_nothing_about_a_site_is_asked() -> None:
    found = {id_ for _, scene, _ in CASES.values() for id_ in replace(scene, local=True).ids()}
    assert "model-folder" in found
    assert not found & {
        "partition-unknown", "account-unknown", "time-limit", "nodes-limit", "gpus-per-node", "gpu-dialect", "path-not-shared",
        "path-purged",
        "cores-limit", "torch-build", "environment-architecture", "offline-switch", "signal-kills",
    }  # fmt: skip


@pytest.mark.parametrize("id_", ["secret-in-config"])
def test_no_secret_is_shown(id_: str) -> None:
    token = "hf_" + "Q7w" * 12
    scenes = [
        CASES[id_][1], Scene(spec={"env": (("HELLO", token),)}), Scene(spec={"arguments": (*ARGUMENTS, "--hub_token", token)}),
        Scene(spec={"arguments": (*ARGUMENTS, f"--hub_token={token}")}), Scene(spec={"sbatch": (("comment", token),)}),
    ]  # fmt: skip
    for scene in scenes:
        (found,) = (finding for finding in scene.findings() if finding.id == id_)
        assert token[3:10] not in repr(found)
        assert "456789abcdef" not in repr(found)


def test_paths_in_one_place_make_one_finding() -> None:
    from check_scene import path

    found = Scene(around={"chdir": path("/tmp/x"), "output": path("/tmp/x/runs")}).findings()
    assert [finding.what for finding in found] == [
        "the job's directory and the output directory lie in /tmp, which compute nodes do not share"
    ]


def test_a_link_out_of_tmp_is_shared() -> None:
    from check_scene import path

    assert Scene(around={"chdir": path("/tmp/x", real="/work/proj_b/x")}).findings() == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("sbatch: error: IDRIS: Account mbp@h100 ----- Job type v100", "the account's suffix and the constraint"),
        ("allocation failure: Invalid account or account/partition combination specified", "misspelt, not yours"),
        ("allocation failure: Requested time limit is invalid (missing or exceeds some limit)", "the time is longer"),
        ("allocation failure: Requested node configuration is not available", "no node has so many GPUs"),
        ("allocation failure: Invalid partition name specified", "another cluster"),
        ("allocation failure: Job violates accounting/QOS policy (job submit limit, ...)", "no account is given"),
        ("The moon is in the wrong phase", "Slurm does not say more"),
    ],
)
def test_slurms_words_are_quoted_and_translated(words: str, expected: str) -> None:
    case = Case(SPEC, None, LIVE, AROUND)
    found = refusal.refused(case, ("  ran: sbatch --test-only x", f"  sbatch said: {words}"), None)
    assert words in found.evidence
    assert expected in found.reason
    assert (found.id, found.level) == ("slurm-refuses", "error")


def test_slurms_estimate_is_quoted() -> None:
    said = "sbatch: Job 5063 to start at 2026-11-21T03:00:00 using 32 processors on nodes node[1-2] in partition gpu"
    assert refusal.estimate(said) == said.removeprefix("sbatch: ")
    assert refusal.estimate("sbatch: something else") is None


def test_blocks_are_narrow_and_break_no_word() -> None:
    for _, scene, _ in CASES.values():
        for finding in scene.findings():
            text = show.block(finding)
            assert all(len(line) <= 80 or " " not in line.strip() for line in text.splitlines())
            assert text.startswith(f"{finding.level} {finding.id}: ")
            words = " ".join(text.split())
            assert all(word in words for word in finding.fix.split())


def test_counts() -> None:
    def of(level: str) -> Finding:
        return Finding(id="x", level=level, what="w", evidence="e", reason="r", fix="f")  # type: ignore[arg-type]

    assert show.counts([]) == "nothing found"
    assert show.counts([of("warning"), of("error"), of("error")]) == "2 errors, 1 warning"


def test_the_nearest_name() -> None:
    assert closest("boost_usr_prd", ("debug", "boost_usr_prod")) == "boost_usr_prod"
    assert closest("EUHPC", ("proj_b", "euhpc_a06")) == "euhpc_a06"
    assert closest("x", ()) is None


def test_the_pattern_of_a_profile_is_matched_whole() -> None:
    assert "account-form" in Scene(spec={"account": "proj_bb"}, live=None).ids()
    assert re.fullmatch("proj_[a-z]", "proj_b")


def test_an_empty_cluster_and_a_bare_job() -> None:
    job = JobSpec(job_name="x", chdir="/x", script="train.py")
    assert check(job, cluster=None, live=LiveCluster(), around=Surroundings(launcher_on_path="/x"), origins={}) == []
    assert "gpus-limit" not in Scene(live={"qos": (LiveQos(name="normal"),)}).ids()
