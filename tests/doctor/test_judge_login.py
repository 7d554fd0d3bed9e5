"""The judges of the login node: silent where all is well, and each finding for its own cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpctrain.clusters.profile import Cluster, Profile
from hpctrain.doctor import IDS
from hpctrain.doctor.facts import (
    Case,
    EnvironmentFacts,
    FolderFacts,
    InsideFacts,
    ModuleFacts,
    ModulesFacts,
    OfflineFacts,
    Quota,
    QuotaFacts,
    SlurmFacts,
    TorchBuild,
)
from hpctrain.doctor.judge import environment as env
from hpctrain.doctor.judge import surroundings as sur
from hpctrain.doctor.verdict import Verdict
from hpctrain.jobs.finding import Finding

G = 1 << 30
INSIDE = InsideFacts(
    version="3.12.1", executable="/shared/v/bin/python", machine="x86_64", prefix="/shared/v",
    packages=(("torch", "2.9.0+cu126"), ("transformers", "5.1"), ("trl", "1.16"), ("accelerate", "1.15"), ("hpctrain", "0.1.0")),
    requires=(("trl", ("transformers>=4.56.2", "accelerate>=1.10.1")),),
    torch=TorchBuild(version="2.9.0+cu126", cuda="12.6"), problems=(),
)  # fmt: skip
WELL = EnvironmentFacts(
    kind="venv", name="the virtual environment v", python="/shared/v/bin/python", binary="x86_64", launcher="/shared/v/bin/accelerate",
    file_system="lustre", place="/shared/v", inside=INSIDE, demands=("torch>=2.6", "transformers>=5.0", "trl>=1.10", "accelerate>=1.10.1"),
    here="0.1.0",
)  # fmt: skip
FOLDER = FolderFacts(name="home", path="/home/ada", exists=True, file_system="nfs4", free=90 * G, free_inodes=10**7, inodes=10**8)
OFFLINE = OfflineFacts(way="namespace", interfaces=("lo",), steps=("imports",), seconds=9.0)


def cluster(**more: Any) -> Cluster:
    nodes = {"n": {"gpus": 4, "gpu": "A100", "vendor": "cuda", "arch": "x86_64"}}
    return Cluster(Profile.model_validate({"name": "x", "title": "X", "nodes": nodes, **more}))


def inside(**more: Any) -> EnvironmentFacts:
    return replace(WELL, inside=replace(INSIDE, **more))


def everything(facts: EnvironmentFacts, case: Case) -> list[Verdict]:
    return [judge(facts, case) for judge in (env.environment, env.packages, env.torch_build, env.inputs)]


def test_a_good_environment_is_good(case: Callable[..., Case]) -> None:
    verdicts = everything(WELL, case(cluster=cluster(), slurm=True))
    assert [verdict.word for verdict in verdicts] == ["ok"] * 4
    assert verdicts[0].sentence == "the virtual environment v: Python 3.12.1 on x86_64, on lustre"
    assert verdicts[1].sentence.endswith("they agree")


ENVIRONMENTS: list[tuple[str, str, EnvironmentFacts, dict[str, Any], str]] = [
    ("doctor-environment-missing", "error", replace(WELL, missing="/shared/v", inside=None), {}, "there is no /shared/v"),
    ("doctor-environment-broken", "error", replace(WELL, said="bad interpreter", inside=None), {}, "does not start"),
    ("doctor-environment-broken", "error", replace(WELL, leads_to="/old/v"), {}, "gives the Python of /old/v"),
    ("doctor-environment-architecture", "error", replace(WELL, binary="aarch64", inside=None), {}, "for aarch64, and this node is x86_64"),
    (
        "doctor-environment-architecture", "error", WELL,
        {"cluster": cluster(nodes={"n": {"gpus": 4, "arch": "aarch64", "vendor": "cuda"}})}, "the nodes of x are aarch64",
    ),
    (
        "doctor-environment-node-local", "warning", replace(WELL, place="/tmp/v", file_system="xfs"),
        {"slurm": True, "spec": {"chdir": "/home/ada/project"}}, "lies where other nodes may not find it",
    ),
    ("doctor-environment-node-local", "warning", replace(WELL, file_system="tmpfs"), {"slurm": True}, "lies where other nodes"),
    ("doctor-python-old", "error", inside(version="3.6.8"), {}, "Python 3.6.8 is too old"),
    ("doctor-launcher-missing", "error", replace(WELL, launcher=None), {}, "accelerate is not on PATH"),
    (
        "doctor-package-missing", "error", inside(packages=INSIDE.packages[:2] + INSIDE.packages[3:]), {},
        "trl is not installed in the virtual environment v",
    ),
    (
        "doctor-versions-disagree", "error", replace(inside(packages=(INSIDE.packages[0], ("transformers", "4.50"), *INSIDE.packages[2:])),
        demands=("torch>=2.6",)), {}, "transformers is 4.50, and trl 1.16 needs transformers>=4.56.2",
    ),
    (
        "doctor-versions-disagree", "error", replace(WELL, demands=("torch>=3.0",)), {},
        "torch is 2.9.0+cu126, and hpctrain[train] 0.1.0 needs torch>=3.0",
    ),
    (
        "doctor-hpctrain-differs", "warning", replace(WELL, here="0.2.0"), {},
        "hpctrain is 0.2.0 here and 0.1.0 in the virtual environment v",
    ),
    ("doctor-torch-build", "warning", inside(torch=TorchBuild(version="2.9.0+cpu")), {}, "the job asks for GPUs"),
    ("doctor-torch-build", "error", inside(torch=TorchBuild(version="2.9.0+cpu")), {"cluster": cluster()}, "x has NVIDIA GPUs"),
    (
        "doctor-torch-build", "error", WELL, {"cluster": cluster(nodes={"n": {"gpus": 8, "vendor": "rocm", "arch": "x86_64"}})},
        "built for CUDA 12.6, and x has AMD GPUs",
    ),
    ("doctor-model-or-data", "error", inside(problems=(("there is no model m", "hf"),)), {}, "there is no model m"),
]  # fmt: skip


@pytest.mark.parametrize("row", ENVIRONMENTS, ids=[f"{row[0]}-{number}" for number, row in enumerate(ENVIRONMENTS)])
def test_each_fault_of_an_environment(case: Callable[..., Case], row: tuple[str, str, EnvironmentFacts, dict[str, Any], str]) -> None:
    id_, level, facts, more, words = row
    found = [finding for verdict in everything(facts, case(**more)) for finding in verdict.findings]
    assert [(finding.id, finding.level) for finding in found] == [(id_, level)], found
    assert words in found[0].what


def test_a_script_of_the_users_own_needs_its_launcher_and_no_more(case: Callable[..., Case]) -> None:
    bare = replace(inside(packages=(("torch", "2.9.0"),), requires=(), problems=None), demands=("trl>=1.10",))
    own = case(spec={"script": "train.py", "launcher": "torchrun"})
    assert [verdict.word for verdict in everything(bare, own)] == ["ok"] * 4
    assert env.packages(bare, case(spec={"script": "train.py"})).findings[0].what.startswith("accelerate is not installed")


def test_on_the_cpu_a_cpu_build_is_right(case: Callable[..., Case]) -> None:
    assert env.torch_build(inside(torch=TorchBuild(version="2.9.0+cpu")), case(on_cpu=True, cluster=cluster())).word == "ok"


def test_what_is_unknown_is_not_wrong(case: Callable[..., Case]) -> None:
    assert {verdict.word for verdict in everything(replace(WELL, late=True, inside=None), case())} == {"unknown"}


MODULES = {"modules": ("cuda/12",), "shebang": "#!/bin/bash"}
LOADED = ModulesFacts(program="/bin/bash", command=True, modules=(ModuleFacts(name="cuda/12", loaded=True),))
UNKNOWN = replace(LOADED, modules=(ModuleFacts(name="cuda/12", loaded=False, said="Unable to locate a modulefile for 'cuda/12'"),))
BROKEN = replace(LOADED, modules=(ModuleFacts(name="cuda/12", loaded=False, said="ERROR: Load of requirement gcc failed"),))


def test_modules_are_told_apart(case: Callable[..., Case]) -> None:
    job = case(spec=MODULES)
    assert sur.modules(LOADED, job).word == "ok"
    assert sur.modules(UNKNOWN, job).findings[0].what == "there is no module cuda/12 here"
    assert sur.modules(BROKEN, job).findings[0].what == "the module cuda/12 does not load"
    none = sur.modules(ModulesFacts(program="/bin/bash", command=False, login_shell=True), job)
    assert none.findings[0].id == "doctor-module-command"
    assert "'#!/bin/bash -l'" in none.findings[0].fix
    elsewhere = case(spec=MODULES, cluster=cluster(modules={"on_login_nodes": False}))
    for facts in (UNKNOWN, ModulesFacts(program="/bin/bash", command=False)):
        verdict = sur.modules(facts, elsewhere)
        assert (verdict.word, verdict.findings) == ("unknown", ())
        assert "compute nodes" in verdict.sentence
    assert sur.modules(replace(LOADED, late=True), job).word == "unknown"


def test_room_and_quotas(case: Callable[..., Case]) -> None:
    assert sur.caches((FOLDER,)).word == "ok"
    assert sur.caches((replace(FOLDER, free=G),)).findings[0].id == "doctor-disk-full"
    assert sur.caches((replace(FOLDER, free_inodes=7),)).findings[0].id == "doctor-inodes"
    well = Quota(file_system="nas:/home", used=10 * G, limit=50 * G, files=10, files_limit=100)
    assert sur.quotas(QuotaFacts(asked=("quota",), quotas=(well,), folders=(FOLDER,))).word == "ok"
    for quota, word in (
        (replace(well, used=46 * G), "warning"),
        (replace(well, used=50 * G), "error"),
        (replace(well, files=95), "warning"),
        (replace(well, files=100), "error"),
    ):
        verdict = sur.quotas(QuotaFacts(asked=("quota",), quotas=(quota,)))
        assert (verdict.word, verdict.findings[0].id) == (word, "doctor-quota")
    assert sur.quotas(QuotaFacts(asked=("quota",), quotas=(replace(well, limit=None, files_limit=None),))).word == "ok"


def test_offline_readiness(case: Callable[..., Case]) -> None:
    assert sur.offline(OFFLINE, case()).sentence == "the training starts in a network namespace without any interface, in 9 s"
    weaker = replace(OFFLINE, way="variables", interfaces=("lo", "eth0"), no_namespace="unshare: Operation not permitted")
    assert "because no network namespace can be made here (unshare: Operation not permitted)" in sur.offline(weaker, case()).sentence
    # A namespace in which there is a network after all proves nothing, and is not called one.
    assert "without any interface" not in sur.offline(replace(OFFLINE, interfaces=("lo", "eth0")), case()).sentence
    broken = replace(OFFLINE, failed="imports", said=("OSError: no network",))
    assert sur.offline(broken, case()).word == "error"
    assert "OSError: no network" in sur.offline(broken, case()).findings[0].evidence
    assert sur.offline(broken, case(cluster=cluster(internet={"compute": "yes"}))).word == "warning"
    assert sur.offline(OfflineFacts(skipped="--quick"), case()).word == "unknown"


@pytest.mark.parametrize(
    ("said", "id_"),
    [
        ("error: unknown option --learnig_rate; did you mean --learning_rate?", "doctor-start"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "doctor-start"),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load the files", "doctor-offline"),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "doctor-offline"),
        ("OSError: [Errno 101] Network is unreachable", "doctor-offline"),
        ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache", "doctor-offline"),
    ],
)
def test_only_a_failure_of_the_network_is_called_one(case: Callable[..., Case], said: str, id_: str) -> None:
    (finding,) = sur.offline(replace(OFFLINE, failed="imports", said=(said,)), case()).findings
    assert (finding.id, finding.level) == (id_, "error")
    assert said in finding.evidence


def test_slurm_and_the_cluster(case: Callable[..., Case]) -> None:
    well = SlurmFacts(installed=True, version="slurm 22.05.8", partitions=("a", "b"), accounts=("p1", "p2"))
    assert sur.slurm(well, case()).sentence == "slurm 22.05.8, 2 partitions; your accounts: p1, p2"
    assert sur.slurm(replace(well, accounts=None), case()).word == "ok"
    assert sur.slurm(replace(well, accounts=()), case()).findings[0].id == "doctor-no-account"
    assert sur.slurm(replace(well, silent="Connection refused"), case()).findings[0].id == "doctor-slurm-silent"
    assert sur.slurm(SlurmFacts(installed=False), case()).word == "unknown"
    assert "--cluster leonardo" in sur.cluster(replace(well, detected=("leonardo",)), case()).sentence
    assert sur.cluster(well, case(cluster=cluster())).sentence == "x: X; nodes with 4 GPUs A100"


WELL_QUOTA = Quota(file_system="nas:/home", used=46 * G, limit=50 * G, files=10, files_limit=100)
SLURM = SlurmFacts(installed=True, version="slurm 22.05.8", partitions=("a", "b"), accounts=())
MISSPELT = replace(
    OFFLINE, failed="arguments and dataset",
    said=("error: unknown option --learnig_rate; did you mean --learning_rate?", "fix: --learning_rate in its place, in config.yaml"),
)  # fmt: skip
#: One verdict for each id that is not of the environment.
OTHERS: dict[str, Callable[[Callable[..., Case]], Verdict]] = {
    "doctor-module-command": lambda case: sur.modules(
        ModulesFacts(program="/bin/bash", command=False, login_shell=True), case(spec=MODULES)
    ),
    "doctor-module-unknown": lambda case: sur.modules(UNKNOWN, case(spec=MODULES)),
    "doctor-disk-full": lambda _case: sur.caches((replace(FOLDER, free=G),)),
    "doctor-inodes": lambda _case: sur.caches((replace(FOLDER, free_inodes=7),)),
    "doctor-quota": lambda _case: sur.quotas(QuotaFacts(asked=("quota",), quotas=(WELL_QUOTA,))),
    "doctor-offline": lambda case: sur.offline(replace(OFFLINE, failed="model", said=("OSError: we couldn't connect",)), case()),
    "doctor-start": lambda case: sur.offline(MISSPELT, case()),
    "doctor-slurm-silent": lambda case: sur.slurm(replace(SLURM, silent="Unable to contact slurm controller"), case()),
    "doctor-no-account": lambda case: sur.slurm(SLURM, case()),
}


@pytest.mark.parametrize("id_", [each for each in IDS if each.startswith("doctor-")])
def test_its_page_shows_it(case: Callable[..., Case], page_shows: Callable[[Finding], None], id_: str) -> None:
    row = next((row for row in ENVIRONMENTS if row[0] == id_), None)
    verdicts = [OTHERS[id_](case)] if row is None else everything(row[2], case(**row[3]))
    (finding,) = [finding for verdict in verdicts for finding in verdict.findings]
    # The test's own directory is not the reader's.
    page_shows(
        replace(
            finding,
            evidence=finding.evidence.replace(case().spec.chdir, "/home/ada/project"),
            fix=finding.fix.replace(case().spec.chdir, "/home/ada/project"),
        )
    )


def test_an_environment_on_one_node_is_not_to_be_made_on_one_node_again(case: Callable[..., Case]) -> None:
    local = replace(WELL, place="/tmp/v", file_system="xfs")

    def fix(**values: Any) -> str:
        asked = case(slurm=True, **values)
        return next(found.fix for found in env.environment(local, asked).findings if found.id == "doctor-environment-node-local")

    assert fix(spec={"chdir": "/shared/p"}) == "make it on a shared file system: python3 -m venv /shared/p/.venv"
    here = {"chdir": "/tmp/project", "account": "proj_a"}
    assert fix(spec=here) == "make it on a shared file system: the job's directory lies where each node has its own, too"
    places = {"SCRATCH": {"path": "/scratch/$USER", "purge_days": 30}, "WORK": {"path": "/work/<account>"}}
    assert fix(spec=here, cluster=cluster(storage=places)) == "make it on a shared file system: python3 -m venv /work/proj_a/envs/train"


def test_what_a_finding_says_is_not_said_above_it_too(case: Callable[..., Case]) -> None:
    from hpctrain.cli.doctor import lines

    verdict = env.torch_build(inside(torch=TorchBuild(version="2.9.0+cpu")), case())
    assert verdict.word == "warning"
    shown = " ".join(" ".join(lines(verdict)).split())
    assert shown.count("is built for the CPU only") == 1
    assert "torch: 1 warning " in shown
    assert shown.startswith("\x1b[33mwarning")
    well = env.torch_build(WELL, case())
    assert well.sentence in " ".join(" ".join(lines(well)).split())
