"""`check` and `fit` answer one question with one formula."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from fit_models import config

from hpctrain.clusters.profile import Cluster, Profile
from hpctrain.fit import asked, gpus, memory
from hpctrain.fit.shape import read_shape
from hpctrain.jobs.check import check, sizes
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.check.surroundings import DatasetFacts, ModelFacts, PathFacts, Surroundings
from hpctrain.jobs.finding import Finding
from hpctrain.jobs.spec import JobSpec

GIB = 1024**3
HERE = PathFacts(said="models/m", path="/p/models/m", real="/p/models/m", exists=True, is_dir=True)
QWEN = config("qwen3-1.7b")
SPEC = JobSpec(job_name="sft", chdir="/p", gpus_per_node=2, arguments=("--model_name_or_path", "models/m", "--dataset_name", "d"))


def found(spec: JobSpec, model: dict[str, Any] = QWEN, size: int = 80 * GIB, **around: Any) -> list[Finding]:
    nodes = {"n": {"gpus": 2, "gpu": "some GPU", "gpu_memory": f"{size // 1024}K", "memory": "2000G"}}
    cluster = Cluster(Profile.model_validate({"name": "site", "title": "Site", "nodes": nodes}))
    facts = ModelFacts(where=HERE, config=model, parameters=read_shape(model).parameters)
    return [
        each
        for each in check(spec, cluster=cluster, live=None, around=Surroundings(model=facts, **around), origins={})
        if each.id in ("gpu-memory", "memory-too-small")
    ]


def peak(spec: JobSpec, size: int) -> int:
    shape = read_shape(QWEN)
    options = asked.options_of(spec.arguments)
    layout = asked.layout_of(options, nodes=1, gpus_per_node=2, sharding=spec.sharding, shape=shape, gpu_bytes=size)
    return -(-memory.gpu_memory(shape, layout).total // 1024) * 1024  # profiles count KiB


@pytest.mark.parametrize("extra", [(), ("--use_peft", "true"), ("--per_device_train_batch_size", "2", "--gradient_checkpointing", "true")])
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_check_warns_of_exactly_what_fit_says_does_not_fit(extra: tuple[str, ...], sharding: str) -> None:
    spec = replace(SPEC, arguments=(*SPEC.arguments, "--gradient_checkpointing", "false", *extra), sharding=sharding)  # type: ignore[arg-type]
    need = peak(spec, 80 * GIB)
    assert found(spec, size=need) == []
    (finding,) = found(spec, size=need - 1024)
    assert (finding.id, finding.level) == ("gpu-memory", "warning")
    assert "hpctrain fit" in finding.fix


def test_what_is_there_whatever_is_trained_on_is_certain() -> None:
    count = read_shape(QWEN).parameters
    (finding,) = found(SPEC, size=count * 16 - GIB)
    assert (finding.id, finding.level) == ("gpu-memory", "error")
    assert "1.72 billion parameters in float32" in finding.evidence


def test_checkpointing_that_hpctrain_switches_on_by_itself_is_counted() -> None:
    asks = replace(SPEC, arguments=(*SPEC.arguments, "--gradient_checkpointing", "false", "--max_length", "4096"))
    without = peak(asks, 500 * GIB)
    leaves = replace(SPEC, arguments=(*SPEC.arguments, "--max_length", "4096"))
    assert [each.level for each in found(asks, size=without - GIB)] == ["warning"]
    assert found(leaves, size=without - GIB) == []


def test_rows_of_a_prepared_dataset_count() -> None:
    from hpctrain.preparation.manifest import Manifest, Split

    def prepared(longest: int) -> DatasetFacts:
        split = Split(rows=10, examples=10, tokens=100, trained=100, longest=longest)
        return DatasetFacts(
            where=HERE,
            prepared=Manifest(
                sources=(), form="text", columns={}, loss_on="all", tokenizer="", tokenizer_name="", template=None, vocabulary=1,
                max_length=None, packed=False, splits={"train": split},
            ),
        )  # fmt: skip

    spec = replace(SPEC, arguments=(*SPEC.arguments, "--gradient_checkpointing", "true"))
    size = peak(spec, 80 * GIB)
    assert found(spec, size=size, dataset=prepared(800)) == []
    assert [each.id for each in found(spec, size=size, dataset=prepared(4000))] == ["gpu-memory"]


def test_the_drivers_share_is_not_the_programs() -> None:
    """80 GiB are built into an H100, and torch shows 79.1: fit and check both count those."""
    assert gpus.usable("NVIDIA H100", 80 * GIB) < 80 * GIB
    nodes = {"n": {"gpus": 2, "gpu": "NVIDIA H100", "gpu_memory": "80G", "memory": "2000G"}}
    cluster = Cluster(Profile.model_validate({"name": "site", "title": "Site", "nodes": nodes}))
    from hpctrain.jobs.check import hardware

    fact = hardware.gpu_bytes(Case(SPEC, cluster, None, Surroundings()))
    assert fact is not None
    assert fact.value == gpus.usable("NVIDIA H100", 80 * GIB)


def test_a_gpu_without_bfloat16_computes_in_float32() -> None:
    nodes = {"n": {"gpus": 2, "gpu": "NVIDIA V100", "gpu_memory": "32G"}}
    cluster = Cluster(Profile.model_validate({"name": "site", "title": "Site", "nodes": nodes}))
    facts = ModelFacts(where=HERE, config=QWEN, parameters=1)
    for gpu, computed in (("NVIDIA V100", None), ("NVIDIA A100", "bfloat16")):
        nodes["n"]["gpu"] = gpu
        cluster = Cluster(Profile.model_validate({"name": "site", "title": "Site", "nodes": nodes}))
        layout = sizes.layout(Case(SPEC, cluster, None, Surroundings(model=facts)))
        assert layout is not None
        assert layout.compute == computed


@pytest.mark.parametrize(("size", "levels"), [(3, ["error"]), (17, ["warning"]), (60, [])])
def test_host_memory(size: int, levels: list[str]) -> None:
    spec = replace(SPEC, mem_bytes=size * GIB, arguments=(*SPEC.arguments, "--use_peft", "true", "--dtype", "float32"))
    assert [each.level for each in found(spec, size=500 * GIB)] == levels


@pytest.mark.parametrize("name", ["3g.20gb", "nvidia_a100_3g.20gb"])
def test_a_part_of_a_gpu_that_is_asked_for_is_what_there_is(name: str) -> None:
    from hpctrain.jobs.check import hardware

    nodes = {"n": {"gpus": 2, "gpu": "NVIDIA A100", "gpu_memory": "40G"}}
    case = Case(
        replace(SPEC, gpu_type=name), Cluster(Profile.model_validate({"name": "site", "title": "S", "nodes": nodes})), None, Surroundings()
    )
    part = sizes.gpu_part(case)
    assert part is not None
    assert gpus.find(part).name.endswith("MIG 3g.20gb")
    assert 18 * GIB < hardware.gpu_bytes(case).value < 20 * GIB
    assert sizes.gpu_part(replace(case, spec=SPEC)) is None


# -- what the user's own runs say ----------------------------------------------------------------------------------------


def measured(spec: JobSpec, factor: float, **changes: Any) -> dict[str, Any]:
    """What one run's fit.json says: so much more was measured than predicted."""
    shape = read_shape(QWEN)
    layout = asked.layout_of(
        asked.options_of(spec.arguments), nodes=1, gpus_per_node=2, sharding=spec.sharding, shape=shape, gpu_bytes=80 * GIB
    )
    return {
        "layout": asdict(layout), "gpu": None, "cluster": "site", "predicted": {"allocated": 1000},
        "measured": {"allocated": 1000 * factor},
    } | changes  # fmt: skip


def test_the_users_own_runs_correct_what_check_says() -> None:
    spec = replace(SPEC, arguments=(*SPEC.arguments, "--gradient_checkpointing", "false", "--per_device_train_batch_size", "2"))
    need = peak(spec, 80 * GIB)
    assert found(spec, size=need) == []
    (finding,) = found(spec, size=need, measured=(measured(spec, 1.1), measured(spec, 1.2), measured(spec, 1.3)))
    assert finding.level == "warning"
    assert finding.evidence.count("corrected by 3 of your runs here: x1.20") == 1
    assert found(spec, size=need - GIB, measured=(measured(spec, 0.9),)) == []
    # Of another cluster, another kind of layout, another GPU.
    for other in ({"cluster": "elsewhere"}, {"layout": {**measured(spec, 1)["layout"], "sharding": "fsdp"}}, {"gpu": "NVIDIA A100"}):
        assert found(spec, size=need, measured=(measured(spec, 1.2, **other),)) == []


def test_a_run_on_a_cluster_that_slurm_names_counts_where_no_profile_does() -> None:
    from hpctrain.clusters.live import LiveCluster

    case = Case(SPEC, None, LiveCluster(cluster_name="ours"), Surroundings(measured=(measured(SPEC, 1.2, cluster="ours"),)))
    assert sizes.learnt(case, None).memory
    assert not sizes.learnt(replace(case, live=None), None).memory
