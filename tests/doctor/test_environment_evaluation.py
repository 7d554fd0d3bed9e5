"""The checks of an environment: silent where all is well, and each finding for its own cause."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpctrain.doctor import environment_evaluation as evaluate
from hpctrain.doctor.facts import (
    DoctorContext,
    EnvironmentFacts,
    InsideFacts,
    ProbeResult,
    TorchBuild,
)
from tests.doctor.clusters import cluster

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
    of_study = context(cluster=cluster(), spec={"study": "search"})
    (found,) = evaluate.packages(without, of_study).findings
    assert found.id == "doctor-package-missing"


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
    bare = replace(inside(packages={"torch": "2.9.0"}), demands=("trl>=1.10",))
    own = context(spec={"script": "train.py", "launcher": "torchrun"})
    assert [verdict.word for verdict in everything(bare, own)] == ["ok"] * 3
    assert (
        evaluate.packages(bare, context(spec={"script": "train.py"}))
        .findings[0]
        .what.startswith("accelerate is not installed")
    )


def test_on_the_cpu_a_cpu_build_is_right(context: Callable[..., DoctorContext]) -> None:
    build = inside(torch=TorchBuild(version="2.9.0+cpu"))
    for job in (
        context(on_cpu=True, cluster=cluster()),
        context(spec={"gpus_per_node": 0}, cluster=cluster()),
    ):
        assert evaluate.torch_build(build, job).word == "ok"


def test_what_is_unknown_is_not_wrong(context: Callable[..., DoctorContext]) -> None:
    assert {
        verdict.word for verdict in everything(replace(WELL, late=True, inside=None), context())
    } == {"unknown"}
