"""The judges of the login node: silent where all is well, and each finding for its own cause."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpctrain.clusters.profile import Cluster, Profile
from hpctrain.doctor import login_evaluation as evaluate
from hpctrain.doctor.facts import (
    DoctorContext,
    EnvironmentFacts,
    InsideFacts,
    ModuleFacts,
    ModulesFacts,
    OfflineFacts,
    PlaceFacts,
    ProbeResult,
    SlurmFacts,
    TorchBuild,
)
from hpctrain.util.file_systems import FileSystem, Quota

G = 1 << 30
PACKAGES = {
    "torch": "2.9.0+cu126",
    "transformers": "5.1",
    "trl": "1.16",
    "accelerate": "1.15",
    "hpctrain": "0.1.0",
}
INSIDE = InsideFacts(
    version="3.12.1",
    executable="/shared/v/bin/python",
    machine="x86_64",
    prefix="/shared/v",
    packages=PACKAGES,
    requires=(("trl", "transformers>=4.56.2"), ("trl", "accelerate>=1.10.1")),
    torch=TorchBuild(version="2.9.0+cu126", cuda="12.6"),
)
WELL = EnvironmentFacts(
    kind="venv",
    name="the virtual environment v",
    launcher="/shared/v/bin/accelerate",
    place="/shared/v",
    inside=INSIDE,
    demands=("torch>=2.6", "transformers>=5.0", "trl>=1.10", "accelerate>=1.10.1"),
    here="0.1.0",
)
DISK = FileSystem(mount="/home", kind="nfs4", free=90 * G, free_files=10**7)
QUOTA = Quota(used=10 * G, limit=50 * G, files=10, files_limit=100, command="quota")
HOME = PlaceFacts(name="home", path="/home/ada", system=DISK, quota=QUOTA)
OFFLINE = OfflineFacts(seconds=9.0)


def cluster(**more: Any) -> Cluster:
    nodes = {"n": {"gpus": 4, "gpu": "A100", "vendor": "cuda", "arch": "x86_64"}}
    return Cluster(Profile.read({"name": "x", "title": "X", "nodes": nodes, **more}))


def inside(**more: Any) -> EnvironmentFacts:
    return replace(WELL, inside=replace(INSIDE, **more))


def everything(facts: EnvironmentFacts, context: DoctorContext) -> list[ProbeResult]:
    return [
        judge(facts, context)
        for judge in (
            evaluate.environment,
            evaluate.packages,
            evaluate.torch_build,
        )
    ]


def test_a_good_environment_is_good(context: Callable[..., DoctorContext]) -> None:
    verdicts = everything(WELL, context(cluster=cluster()))
    assert [verdict.word for verdict in verdicts] == ["ok"] * 3
    assert verdicts[0].sentence == "the virtual environment v: Python 3.12.1 on x86_64"
    assert verdicts[1].sentence.endswith("they agree")


def test_only_tune_needs_optuna(context: Callable[..., DoctorContext]) -> None:
    without = replace(WELL, demands=("torch>=2.6", "optuna>=5.0"))
    assert evaluate.packages(without, context(cluster=cluster())).findings == ()


ENVIRONMENTS: list[tuple[str, str, EnvironmentFacts, dict[str, Any], str]] = [
    (
        "doctor-environment-missing",
        "error",
        replace(WELL, missing="/shared/v", inside=None),
        {},
        "/shared/v does not exist",
    ),
    (
        "doctor-environment-broken",
        "error",
        replace(WELL, messages="bad interpreter", inside=None),
        {},
        "does not start",
    ),
    (
        "doctor-environment-broken",
        "error",
        replace(WELL, leads_to="/old/v"),
        {},
        "gives the Python of /old/v",
    ),
    (
        "doctor-environment-architecture",
        "error",
        replace(WELL, messages="cannot execute binary file: Exec format error", inside=None),
        {},
        "it is not built for x86_64",
    ),
    (
        "doctor-environment-architecture",
        "error",
        WELL,
        {"cluster": cluster(nodes={"n": {"gpus": 4, "arch": "aarch64", "vendor": "cuda"}})},
        "the nodes of x are aarch64",
    ),
    ("doctor-python-old", "error", inside(version="3.6.8"), {}, "Python 3.6.8 is too old"),
    (
        "doctor-launcher-missing",
        "error",
        replace(WELL, launcher=None),
        {},
        "accelerate is not on PATH",
    ),
    (
        "doctor-package-missing",
        "error",
        inside(packages={name: PACKAGES[name] for name in PACKAGES if name != "trl"}),
        {},
        "trl is not installed in the virtual environment v",
    ),
    (
        "doctor-versions-disagree",
        "error",
        replace(
            inside(packages={**PACKAGES, "transformers": "4.50"}),
            demands=("torch>=2.6",),
        ),
        {},
        "transformers is 4.50, and trl 1.16 needs transformers>=4.56.2",
    ),
    (
        "doctor-versions-disagree",
        "error",
        replace(WELL, demands=("torch>=3.0",)),
        {},
        "torch is 2.9.0+cu126, and hpctrain[train] 0.1.0 needs torch>=3.0",
    ),
    (
        "doctor-hpctrain-differs",
        "warning",
        replace(WELL, here="0.2.0"),
        {},
        "hpctrain is 0.2.0 here and 0.1.0 in the virtual environment v",
    ),
    (
        "doctor-torch-build",
        "warning",
        inside(torch=TorchBuild(version="2.9.0+cpu")),
        {},
        "the job requests GPUs",
    ),
    (
        "doctor-torch-build",
        "error",
        inside(torch=TorchBuild(version="2.9.0+cpu")),
        {"cluster": cluster()},
        "x has NVIDIA GPUs",
    ),
    (
        "doctor-torch-build",
        "error",
        WELL,
        {"cluster": cluster(nodes={"n": {"gpus": 8, "vendor": "rocm", "arch": "x86_64"}})},
        "built for CUDA 12.6, and x has AMD GPUs",
    ),
]


@pytest.mark.parametrize(
    "row", ENVIRONMENTS, ids=[f"{row[0]}-{number}" for number, row in enumerate(ENVIRONMENTS)]
)
def test_each_fault_of_an_environment(
    context: Callable[..., DoctorContext],
    row: tuple[str, str, EnvironmentFacts, dict[str, Any], str],
) -> None:
    id_, level, facts, more, words = row
    found = [
        finding for verdict in everything(facts, context(**more)) for finding in verdict.findings
    ]
    assert [(finding.id, finding.level) for finding in found] == [(id_, level)], found
    assert words in found[0].what


def test_a_script_of_the_users_own_needs_its_launcher_and_no_more(
    context: Callable[..., DoctorContext],
) -> None:
    bare = replace(inside(packages={"torch": "2.9.0"}, requires=()), demands=("trl>=1.10",))
    own = context(spec={"script": "train.py", "launcher": "torchrun"})
    assert [verdict.word for verdict in everything(bare, own)] == ["ok"] * 3
    assert (
        evaluate.packages(bare, context(spec={"script": "train.py"}))
        .findings[0]
        .what.startswith("accelerate is not installed")
    )


def test_on_the_cpu_a_cpu_build_is_right(context: Callable[..., DoctorContext]) -> None:
    assert (
        evaluate.torch_build(
            inside(torch=TorchBuild(version="2.9.0+cpu")), context(on_cpu=True, cluster=cluster())
        ).word
        == "ok"
    )


def test_what_is_unknown_is_not_wrong(context: Callable[..., DoctorContext]) -> None:
    assert {
        verdict.word for verdict in everything(replace(WELL, late=True, inside=None), context())
    } == {"unknown"}


MODULES = {"modules": ("cuda/12",), "shebang": "#!/bin/bash"}
LOADED = ModulesFacts(
    program="/bin/bash", command=True, modules=(ModuleFacts(name="cuda/12", loaded=True),)
)
UNKNOWN = replace(
    LOADED,
    modules=(
        ModuleFacts(
            name="cuda/12", loaded=False, messages="Unable to locate a modulefile for 'cuda/12'"
        ),
    ),
)
BROKEN = replace(
    LOADED,
    modules=(
        ModuleFacts(name="cuda/12", loaded=False, messages="ERROR: Load of requirement gcc failed"),
    ),
)


def test_modules_are_told_apart(context: Callable[..., DoctorContext]) -> None:
    job = context(spec=MODULES)
    assert evaluate.modules(LOADED, job).word == "ok"
    assert (
        evaluate.modules(UNKNOWN, job).findings[0].what == "the module cuda/12 does not exist here"
    )
    assert evaluate.modules(BROKEN, job).findings[0].what == "the module cuda/12 does not load here"
    none = evaluate.modules(ModulesFacts(program="/bin/bash", command=False), job)
    assert none.findings[0].id == "doctor-module-command"
    assert "'#!/bin/bash -l'" in none.findings[0].fix
    elsewhere = context(spec=MODULES, cluster=cluster(modules={"on_login_nodes": False}))
    for facts in (UNKNOWN, ModulesFacts(program="/bin/bash", command=False)):
        verdict = evaluate.modules(facts, elsewhere)
        assert (verdict.word, verdict.findings) == ("unknown", ())
        assert "compute nodes" in verdict.sentence
    assert evaluate.modules(replace(LOADED, late=True), job).word == "unknown"


def test_room_and_quotas() -> None:
    for place, word, id_ in (
        (HOME, "ok", None),
        (replace(HOME, system=None, quota=None), "ok", None),
        (replace(HOME, quota=replace(QUOTA, used=99 * G, limit=0, files_limit=0)), "ok", None),
        (replace(HOME, system=replace(DISK, free=G)), "warning", "doctor-disk-full"),
        (replace(HOME, system=replace(DISK, free_files=7)), "warning", "doctor-inodes"),
        (replace(HOME, quota=replace(QUOTA, used=46 * G)), "warning", "doctor-quota"),
        (replace(HOME, quota=replace(QUOTA, used=50 * G)), "error", "doctor-quota"),
        (replace(HOME, quota=replace(QUOTA, files=95)), "warning", "doctor-quota"),
        (replace(HOME, quota=replace(QUOTA, files=100)), "error", "doctor-quota"),
    ):
        verdict = evaluate.quotas([place])
        assert verdict.word == word
        assert [finding.id for finding in verdict.findings] == ([id_] if id_ else [])


def test_offline_readiness(context: Callable[..., DoctorContext]) -> None:
    assert (
        evaluate.offline(OFFLINE, context()).sentence
        == "the training starts with offline libraries and unreachable proxies, in 9 s"
    )
    broken = replace(OFFLINE, failed="imports", messages=("OSError: no network",))
    assert evaluate.offline(broken, context()).word == "error"
    assert "OSError: no network" in evaluate.offline(broken, context()).findings[0].evidence
    assert (
        evaluate.offline(broken, context(cluster=cluster(internet={"compute": "yes"}))).word
        == "warning"
    )
    assert evaluate.offline(OfflineFacts(skipped="--quick"), context()).word == "unknown"


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
    context: Callable[..., DoctorContext], said: str, id_: str
) -> None:
    (finding,) = evaluate.offline(
        replace(OFFLINE, failed="imports", messages=(said,)), context()
    ).findings
    assert (finding.id, finding.level) == (id_, "error")
    assert said in finding.evidence


def test_slurm_and_the_cluster(context: Callable[..., DoctorContext]) -> None:
    well = SlurmFacts(
        installed=True, version="slurm 22.05.8", partitions=("a", "b"), accounts=("p1", "p2")
    )
    assert (
        evaluate.slurm(well, context()).sentence
        == "slurm 22.05.8, 2 partitions; your accounts: p1, p2"
    )
    assert evaluate.slurm(replace(well, accounts=None), context()).word == "ok"
    assert (
        evaluate.slurm(replace(well, accounts=()), context()).findings[0].id == "doctor-no-account"
    )
    assert (
        evaluate.slurm(replace(well, silent="Connection refused"), context()).findings[0].id
        == "doctor-slurm-silent"
    )
    assert evaluate.slurm(SlurmFacts(installed=False), context()).word == "unknown"
    assert (
        "--cluster leonardo"
        in evaluate.cluster(replace(well, detected=("leonardo",)), context()).sentence
    )
    assert (
        evaluate.cluster(well, context(cluster=cluster())).sentence
        == "x: X; nodes with 4 GPUs A100"
    )
