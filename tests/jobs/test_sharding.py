"""Sharding: the rendered accelerate config as accelerate itself reads it, and the variables that
stand for it elsewhere.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import schema
from hpctrain.config.fields import Sharding
from hpctrain.config.spec import JobSpec
from hpctrain.jobs import render
from hpctrain.util import installed, yaml12

SHARDED: list[Sharding] = ["fsdp", "zero2", "zero3"]
WORDS = ("--gradient_accumulation_steps", "8", "--max_grad_norm=0.5")


def spec_of(kind: Sharding, nodes: int = 2, **more: Any) -> JobSpec:
    return JobSpec(
        job_name="sft",
        chdir="/srv",
        nodes=nodes,
        gpus_per_node=4,
        sharding=kind,
        accelerate_config="sft.accelerate.yaml",
        **more,
    )


def script_of(spec: JobSpec) -> str:
    return render.render(
        spec,
        installed.templates(),
        template="multi_node.sbatch.j2",
        version="1",
        directory="/srv",
        arguments=(),
    )


def config_of(spec: JobSpec) -> str:
    """Return the accelerate config that the script writes for itself."""
    return script_of(spec).partition("accelerate.yaml\" <<'END'\n")[2].partition("END\n")[0]


@pytest.mark.parametrize("kind", SHARDED)
def test_the_config_passes_our_own_check_and_its_numbers_are_the_job_s(kind: Sharding) -> None:
    text = config_of(spec_of(kind))
    document = yaml12.load(text, "sft.accelerate.yaml")
    assert schema.accelerate_problems(document, "sft.accelerate.yaml") == []
    assert (document.data["num_machines"], document.data["num_processes"]) == ("2", "8")
    script = script_of(spec_of(kind))
    assert '--config_file "$HPCTRAIN_RUN_DIR/accelerate.yaml"' in script


def environment_of_accelerate(
    spec: JobSpec, file: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, str], Any]:
    """Return what `accelerate launch` exports for its processes, and its arguments after it has
    read the config.
    """
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    words = [
        "--config_file",
        str(file),
        "--num_machines",
        str(spec.nodes),
        "--num_processes",
        str(spec.processes),
        "--machine_rank",
        "1",
        "--rdzv_backend",
        "c10d",
        "--main_process_ip",
        "host",
        "--main_process_port",
        "23456",
        "train.py",
    ]
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        monkeypatch.delenv(name)
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    if spec.sharding == "fsdp":
        assert args.use_fsdp
        return prepare_multi_gpu_env(args), args
    assert args.use_deepspeed
    # launch_command sets it; it only words an error
    args.deepspeed_fields_from_accelerate_config = ""
    command, environment = prepare_deepspeed_cmd_env(args)
    assert not command, "the standard launcher, not pdsh"
    return environment, args


@pytest.mark.torch
@pytest.mark.parametrize("words", [(), WORDS], ids=["defaults", "numbers"])
@pytest.mark.parametrize("kind", SHARDED)
def test_accelerate_exports_what_the_other_launchers_get(
    kind: Sharding, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(kind, arguments=words)
    file = tmp_path / "sft.accelerate.yaml"
    file.write_text(config_of(spec))
    environment, args = environment_of_accelerate(spec, file, monkeypatch)
    assert (args.num_machines, int(args.num_processes), int(args.nproc_per_node)) == (2, 8, 4)
    variables = dict(render.variables(spec))
    assert {name: environment.get(name) for name in variables} == variables
    if words and kind != "fsdp":
        assert variables["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "8"
        assert float(variables["ACCELERATE_GRADIENT_CLIPPING"]) == 0.5


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "auto"),
        (("--a", "3"), "3"),
        (("--a=4",), "4"),
        (("--a", "3", "--a", "5"), "5"),
        (("--a", "$(x)"), "auto"),
        (("--a", "1.5"), "1.5"),
    ],
)
def test_a_training_argument(words: tuple[str, ...], expected: str) -> None:
    assert render.training_argument(spec_of("zero2", arguments=words), "a", "auto") == expected
