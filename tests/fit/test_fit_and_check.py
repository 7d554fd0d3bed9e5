"""`check` and `fit` answer one question with one formula."""

from dataclasses import replace
from typing import Any

import pytest

from hpctrain.checks.job import check, hardware
from hpctrain.checks.job.context import Case, InputFacts, PathFacts, Surroundings
from hpctrain.clusters.profile import Cluster, Profile
from hpctrain.config.spec import JobSpec
from hpctrain.data.manifest import DatasetManifest, Split
from hpctrain.finding import Finding
from hpctrain.fit import memory, training_options
from hpctrain.fit.shape import read_shape
from hpctrain.util import shell
from tests.fit.fit_models import config

GIB = 1024**3
HERE = PathFacts(said="models/m", path="/p/models/m", real="/p/models/m", exists=True, is_dir=True)
QWEN = config("qwen3-1.7b")
SPEC = JobSpec(
    job_name="sft",
    chdir="/p",
    gpus_per_node=2,
    arguments=("--model_name_or_path", "models/m", "--dataset_name", "d"),
)


def found(
    spec: JobSpec, model: dict[str, Any] = QWEN, size: int = 80 * GIB, **around: Any
) -> list[Finding]:
    nodes = {
        "n": {"gpus": 2, "gpu": "some GPU", "gpu_memory": f"{size // 1024}K", "memory": "2000G"}
    }
    cluster = Cluster(Profile.read({"name": "site", "title": "Site", "nodes": nodes}))
    facts = InputFacts(where=HERE, config=model)
    return [
        each
        for each in check(
            Case(
                spec,
                cluster=cluster,
                live=None,
                around=Surroundings(model=facts, **around),
                origins={},
            )
        )
        if each.id in ("gpu-memory", "memory-too-small")
    ]


def peak(spec: JobSpec, size: int) -> int:
    shape = read_shape(QWEN)
    options = shell.options_of(spec.arguments)
    layout = training_options.layout_of(
        options, nodes=1, gpus_per_node=2, sharding=spec.sharding, shape=shape, gpu_bytes=size
    )
    return -(-memory.gpu_memory(shape, layout).total // 1024) * 1024  # profiles count KiB


@pytest.mark.parametrize(
    "extra",
    [
        (),
        ("--use_peft", "true"),
        ("--per_device_train_batch_size", "2", "--gradient_checkpointing", "true"),
    ],
)
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_check_warns_of_exactly_what_fit_says_does_not_fit(
    extra: tuple[str, ...], sharding: str
) -> None:
    spec = SPEC.replace(
        arguments=(*SPEC.arguments, "--gradient_checkpointing", "false", *extra),
        sharding=sharding,
    )  # type: ignore[arg-type]
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
    asks = SPEC.replace(
        arguments=(*SPEC.arguments, "--gradient_checkpointing", "false", "--max_length", "4096"),
    )
    without = peak(asks, 500 * GIB)
    leaves = SPEC.replace(arguments=(*SPEC.arguments, "--max_length", "4096"))
    assert [each.level for each in found(asks, size=without - GIB)] == ["warning"]
    assert found(leaves, size=without - GIB) == []


def test_rows_of_a_prepared_dataset_count() -> None:
    def prepared(longest: int) -> InputFacts:
        split = Split(rows=10, examples=10, tokens=100, trained=100, longest=longest)
        return InputFacts(
            where=HERE,
            prepared=DatasetManifest(
                sources=(),
                form="text",
                columns={},
                loss_on="all",
                tokenizer="",
                tokenizer_name="",
                template=None,
                vocabulary=1,
                max_length=None,
                packed=False,
                splits={"train": split},
            ),
        )

    spec = SPEC.replace(arguments=(*SPEC.arguments, "--gradient_checkpointing", "true"))
    size = peak(spec, 80 * GIB)
    assert found(spec, size=size, dataset=prepared(800)) == []
    assert [each.id for each in found(spec, size=size, dataset=prepared(4000))] == ["gpu-memory"]


@pytest.mark.parametrize("name", ["3g.20gb", "nvidia_a100_3g.20gb"])
def test_a_part_of_a_gpu_that_is_asked_for_is_what_there_is(name: str) -> None:
    nodes = {"n": {"gpus": 2, "gpu": "NVIDIA A100", "gpu_memory": "40G"}}
    case = Case(
        SPEC.replace(gpu_type=name),
        Cluster(Profile.read({"name": "site", "title": "S", "nodes": nodes})),
        None,
        Surroundings(),
    )
    assert hardware.gpu_name(case) == name
    assert 18 * GIB < hardware.gpu_bytes(case).value < 20 * GIB
    assert hardware.gpu_name(replace(case, spec=SPEC)) == "NVIDIA A100"
