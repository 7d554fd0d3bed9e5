"""The checks of an environment: silent where all is well, and each finding for its own cause."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpctrain.doctor.environment_evaluation import evaluate
from hpctrain.doctor.facts import DoctorContext, EnvironmentFacts
from tests.doctor.clusters import cluster

PACKAGES = {
    "torch": "2.9.0+cu126",
    "transformers": "5.1",
    "trl": "1.16",
    "accelerate": "1.15",
    "hpctrain": "0.1.0",
}
WELL = EnvironmentFacts(
    version="3.12.1",
    executable="/shared/v/bin/python",
    machine="x86_64",
    prefix="/shared/v",
    packages=PACKAGES,
    torch={"version": "2.9.0+cu126", "cuda": "12.6"},
    kind="venv",
    name="the virtual environment v",
    launcher="/shared/v/bin/accelerate",
)
DEMANDS = ("torch>=2.6", "transformers>=5.0", "trl>=1.10", "accelerate>=1.10.1")
CPU = replace(WELL, torch={"version": "2.9.0+cpu"})


def test_a_good_environment_is_good(context: Callable[..., DoctorContext]) -> None:
    found = evaluate(WELL, context(cluster=cluster(), demands=DEMANDS))
    assert [each.word for each in found] == ["ok"] * 3
    assert found[0].sentence == "the virtual environment v: Python 3.12.1 on x86_64"
    assert found[1].sentence.endswith("they agree")


def test_only_tune_needs_optuna(context: Callable[..., DoctorContext]) -> None:
    demands = ("torch>=2.6", "optuna>=5.0")
    assert evaluate(WELL, context(cluster=cluster(), demands=demands))[1].findings == ()
    of_study = context(cluster=cluster(), spec={"study": "search"}, demands=demands)
    (found,) = evaluate(WELL, of_study)[1].findings
    assert found.id == "doctor-package-missing"


@pytest.mark.parametrize(
    ("id_", "level", "facts", "more", "words"),
    [
        (
            "doctor-environment-broken",
            "error",
            replace(WELL, place="/v"),
            {},
            "the Python of /shared/v",
        ),
        (
            "doctor-environment-architecture",
            "error",
            WELL,
            {"cluster": cluster(nodes={"n": {"gpus": 4, "arch": "aarch64", "vendor": "cuda"}})},
            "the nodes are aarch64",
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
            replace(WELL, packages={name: PACKAGES[name] for name in PACKAGES if name != "trl"}),
            {"demands": DEMANDS},
            "not installed in the virtual environment v: trl",
        ),
        (
            "doctor-versions-disagree",
            "error",
            WELL,
            {"demands": ("torch>=3.0",)},
            "torch is 2.9.0+cu126, and hpctrain[train] 0.1.0 needs torch>=3.0",
        ),
        (
            "doctor-hpctrain-differs",
            "warning",
            WELL,
            {"version": "0.2.0"},
            "hpctrain is 0.2.0 here and 0.1.0 in the virtual environment v",
        ),
        ("torch-build", "warning", CPU, {}, "built for cpu, and the GPUs need cuda"),
        ("torch-build", "error", CPU, {"cluster": cluster()}, "built for cpu"),
        (
            "torch-build",
            "error",
            WELL,
            {"cluster": cluster(nodes={"n": {"gpus": 8, "vendor": "rocm", "arch": "x86_64"}})},
            "built for cuda, and the GPUs need rocm",
        ),
    ],
)
def test_each_fault_of_an_environment(  # noqa: PLR0917
    context: Callable[..., DoctorContext],
    id_: str,
    level: str,
    facts: EnvironmentFacts,
    more: dict[str, Any],
    words: str,
) -> None:
    found = [each for line in evaluate(facts, context(**more)) for each in line.findings]
    assert [(each.id, each.level) for each in found] == [(id_, level)], found
    assert words in found[0].what


def test_a_script_of_the_users_own_needs_its_launcher_and_no_more(
    context: Callable[..., DoctorContext],
) -> None:
    bare = replace(WELL, packages={"torch": "2.9.0"})
    own = context(spec={"script": "train.py", "launcher": "torchrun"}, demands=DEMANDS)
    assert [each.word for each in evaluate(bare, own)] == ["ok"] * 3
    by_accelerate = context(spec={"script": "train.py"}, demands=DEMANDS)
    assert evaluate(bare, by_accelerate)[1].findings[0].what.endswith("v: accelerate")


def test_on_the_cpu_a_cpu_build_is_right(context: Callable[..., DoctorContext]) -> None:
    for job in (
        context(on_cpu=True, cluster=cluster()),
        context(spec={"gpus_per_node": 0}, cluster=cluster()),
    ):
        assert evaluate(CPU, job)[2].word == "ok"
