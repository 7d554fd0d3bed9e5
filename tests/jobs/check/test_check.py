"""The rules: each finds what it is there for, stays silent a hair's breadth away, and never
guesses.
"""

from dataclasses import replace
from typing import Any

import pytest

from hpctrain.checks.job import IDS, check, refusal
from hpctrain.checks.job.context import Case, Surroundings
from hpctrain.cli import output as show
from hpctrain.clusters.live import LiveCluster
from hpctrain.config.spec import JobSpec, Study
from tests.jobs.check.check_cases import CASES, LARGE
from tests.jobs.check.check_scene import ARGUMENTS, AROUND, LIVE, PYTHON, SPEC, Scene


@pytest.mark.parametrize(
    "change", [{}, {"live": None}, {"live": {"partitions": ()}}, {"profile": None}, {"local": True}]
)
def test_a_job_with_nothing_wrong_has_no_findings(change: dict[str, Any]) -> None:
    assert Scene(**change).findings() == []


@pytest.mark.parametrize("id_", CASES)
def test_each_finding_is_made_and_not_made(id_: str) -> None:
    """Near misses are near to one thing: they have no errors of their own, and what fires fires
    alone.
    """
    level, there, not_there = CASES[id_]
    found = there.findings()
    assert {finding.level for finding in found if finding.id == id_} == {level}
    # chdir and account rules speak of one thing from two sides.
    assert {finding.id for finding in found if finding.level == "error"} <= {id_}
    assert id_ not in not_there.ids()
    assert [finding for finding in not_there.findings() if finding.level == "error"] == []


def test_no_rule_knows_an_id_that_is_not_listed() -> None:
    seen = {
        finding.id
        for _, *scenes in CASES.values()
        for scene in scenes
        for finding in scene.findings()
    }
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
    """The same job where no profile, no Slurm and no file is known: at most what the job itself
    says is found.
    """
    case = CASES[id_][1]
    found = check(
        Case(SPEC.replace(**case.spec), cluster=None, live=None, around=Surroundings(), origins={})
    )
    from_the_job_alone = {
        "argument-removed",
        "argument-unknown",
        "argument-value",
        "no-checkpoints",
        "signal-kills",
        "tune-no-evaluation",
        "secret-in-config",
        "push-to-hub",
        "cores-few",
        "dataset-folder",
        "launcher-missing",
        "adapter-not-asked",
    }
    assert {finding.id for finding in found} <= from_the_job_alone, found


assert PYTHON.packages is not None
PACKAGES = PYTHON.packages


@pytest.mark.parametrize(
    "other",
    [
        {"around": {"python": None}},
        {"around": {"python": replace(PYTHON, packages={**PACKAGES, "trl": "1.17.0"})}},
        {"around": {"python": replace(PYTHON, packages={**PACKAGES, "transformers": "5.230.0"})}},
        {"spec": {"modules": ("python/3.12",)}},
    ],
)
def test_libraries_of_another_release_may_take_more_options(
    other: dict[str, dict[str, Any]],
) -> None:
    spec = {"arguments": (*ARGUMENTS, "--adam_beta3", "0.9"), **other.get("spec", {})}
    found = [
        each
        for each in Scene(spec=spec, around=other.get("around", {})).findings()
        if each.id == "argument-unknown"
    ]
    assert [each.level for each in found] == ["warning"]
    assert all(word in found[0].what for word in ("adam_beta3", "1.16", "5.23"))


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("learnig_rate", "argument-unknown"),
        ("learnig-rate", "argument-unknown"),
        ("warmup-ratio", "argument-removed"),
    ],
)
def test_what_a_study_searches_is_an_argument_of_the_training(name: str, id_: str) -> None:
    """Misspelt, every trial would stop when it reads its arguments: a whole array in the queue for
    nothing.
    """
    spec = {"study": Study(name="s", file="s.json", keys=("learning-rate", name)), "array": "0-3%2"}
    scene = Scene(spec={**spec, "arguments": (*ARGUMENTS, "--eval_strategy", "epoch")})
    assert scene.ids() == [id_]
    assert [each.evidence for each in scene.findings()] == [f"{name} searched (default)"]
    assert {each.fix.partition(": ")[0] for each in scene.findings()} == {"use instead"}


@pytest.mark.parametrize(
    ("varied", "ids"), [(("lora_alpha",), ["adapter-not-asked"]), (("use_peft",), [])]
)
def test_the_combinations_of_a_sweep_may_ask_for_the_adapter(
    varied: tuple[str, ...], ids: list[str]
) -> None:
    scene = Scene(spec={"arguments": (*ARGUMENTS, "--lora_r", "16")}, varied=varied)
    assert scene.ids() == ids


FROM_THE_PROFILE = [
    "gpu-dialect",
    "module-purge",
    "directive-forbidden",
    "container-gpu",
    "torch-build",
    "gpu-memory",
    "account-nodes",
    "qos-missing",
    "directive-required",
]


@pytest.mark.parametrize("id_", FROM_THE_PROFILE)
@pytest.mark.parametrize("level", ["seen", "recalled"])
def test_what_was_only_seen_or_remembered_is_no_error(id_: str, level: str) -> None:
    found = [
        finding for finding in replace(CASES[id_][1], level=level).findings() if finding.id == id_
    ]
    assert {finding.level for finding in found} == {"warning"}


# -- Slurm's word against the profile's ------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "hours", "fits"),
    [(91, 2, True), (91, 3, False), (92, 6, True), (183, 7, False), (184, 12, True)],
)
def test_a_limit_that_depends_on_the_number_of_nodes(count: int, hours: int, fits: bool) -> None:
    bins = [
        {"nodes_min": 1, "time_max": "02:00:00"},
        {"nodes_min": 92, "time_max": "06:00:00"},
        {"nodes_min": 184, "time_max": "12:00:00"},
    ]
    scene = Scene(
        spec={"nodes": count, "time_s": hours * 3600},
        profile={"partitions": {"gpu": {"nodes": "a100", "time_by_nodes": bins}}},
        live=None,
    )
    assert ("time-limit" not in scene.ids()) is fits


# -- hardware --------------------------------------------------------------------------------------


def certain(spec: dict[str, Any]) -> list[str]:
    """The errors on a job with a large model."""
    found = Scene(spec=spec, around={"model": LARGE}).findings()
    return [finding.id for finding in found if finding.level == "error"]


@pytest.mark.parametrize(
    ("sharding", "world", "fits"),
    [
        ("ddp", 8, False),
        ("zero2", 8, True),
        ("zero2", 2, False),
        ("fsdp", 1, False),
        ("zero3", 2, True),
    ],
)
def test_what_each_gpu_holds_of_a_large_model(sharding: str, world: int, fits: bool) -> None:
    """8e9 x 16 bytes = 119 GiB; zero2: 29.8 + 89.4 / world; fsdp and zero3: 119.2 / world; a GPU
    has 64 GiB.
    """
    spec = {"sharding": sharding, "nodes": world // min(world, 4), "gpus_per_node": min(world, 4)}
    assert ("gpu-memory" not in certain(spec)) is fits


@pytest.mark.parametrize(
    "arguments",
    [
        ("--use_peft", "true"),
        ("--optim=adafactor",),
        ("--dtype", "bfloat16"),
        ("--config", "sft.yaml"),
        ("--dtype", "auto"),
        ("--load_in_4bit",),
    ],
)
def test_what_may_fit_is_not_refused(arguments: tuple[str, ...]) -> None:
    assert "gpu-memory" not in certain({"arguments": (*ARGUMENTS, *arguments)})


# -- the rest --------------------------------------------------------------------------------------


def test_on_this_machine_nothing_about_a_site_is_asked() -> None:
    found = {id_ for _, scene, _ in CASES.values() for id_ in replace(scene, local=True).ids()}
    assert "model-folder" in found
    assert not found & {
        "partition-unknown",
        "account-unknown",
        "time-limit",
        "nodes-limit",
        "gpus-per-node",
        "gpu-dialect",
        "path-not-shared",
        "cores-limit",
        "torch-build",
        "signal-kills",
    }


@pytest.mark.parametrize("id_", ["secret-in-config"])
def test_no_secret_is_shown(id_: str) -> None:
    token = "hf_" + "Q7w" * 12
    scenes = [
        CASES[id_][1],
        Scene(spec={"env": (("HELLO", token),)}),
        Scene(spec={"arguments": (*ARGUMENTS, "--hub_token", token)}),
        Scene(spec={"arguments": (*ARGUMENTS, f"--hub_token={token}")}),
        Scene(spec={"sbatch": (("comment", token),)}),
    ]
    for scene in scenes:
        (found,) = (finding for finding in scene.findings() if finding.id == id_)
        assert token[3:10] not in repr(found)
        assert "456789abcdef" not in repr(found)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "allocation failure: Invalid account or account/partition combination specified",
            "not yours",
        ),
        (
            "allocation failure: Requested time limit is invalid (missing or exceeds some limit)",
            "the time is longer",
        ),
        (
            "allocation failure: Requested node configuration is not available",
            "no node has so many GPUs",
        ),
        ("allocation failure: Invalid partition name specified", "another cluster"),
        (
            "allocation failure: Job violates accounting/QOS policy (job submit limit, ...)",
            "no account is given",
        ),
    ],
)
def test_slurms_words_are_quoted_and_translated(words: str, expected: str) -> None:
    case = Case(SPEC, None, LIVE, AROUND)
    said = refusal.words(("  ran: sbatch --test-only x", f"  sbatch said: {words}"))
    (found,) = refusal.told([], case, said)
    assert words in found.evidence
    assert expected in found.reason
    assert (found.id, found.level) == ("slurm-refuses", "error")


def test_a_refusal_makes_an_error_of_the_finding_on_the_same_problem() -> None:
    case = Case(SPEC, None, LIVE, AROUND)
    finding = replace(CASES["time-limit"][1].findings()[0], level="warning")
    (found,) = refusal.told(
        [finding], case, ["allocation failure: Requested time limit is invalid"]
    )
    assert (found.id, found.level) == ("time-limit", "error")
    assert found.evidence.endswith("Requested time limit is invalid")


def test_slurms_estimate_is_quoted() -> None:
    said = (
        "sbatch: Job 5063 to start at 2026-11-21T03:00:00 using 32 processors on nodes node[1-2] in"
        " partition gpu"
    )
    assert refusal.estimate(said) == said.removeprefix("sbatch: ")
    assert refusal.estimate("sbatch: something else") is None


def test_blocks_are_narrow_and_break_no_word() -> None:
    for _, scene, _ in CASES.values():
        for finding in scene.findings():
            lines = show.block(finding)
            text = "\n".join(lines)
            *wrapped, fix = lines
            assert all(len(line) <= 80 or " " not in line.strip() for line in wrapped)
            assert fix == f"  fix:  {finding.fix}", "so that it can be copied"
            assert text.startswith(f"{finding.level} {finding.id}: ")


def test_an_empty_cluster_and_a_bare_job() -> None:
    job = JobSpec(job_name="x", chdir="/x", script="train.py")
    assert (
        check(
            Case(
                job,
                cluster=None,
                live=LiveCluster(),
                around=Surroundings(launcher_on_path="/x"),
                origins={},
            )
        )
        == []
    )
