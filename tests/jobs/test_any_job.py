"""Any valid job renders to a script that bash reads, that Slurm reads as meant, and in which no
value is more than a value.
"""

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.config.spec import JobSpec
from hpctrain.jobs import header
from hpctrain.slurm.notations import directives, log_pattern
from hpctrain.util import shell
from tests.jobs import any_job
from tests.jobs.stand_ins import SECRET, Machine

directory = st.builds(
    str.__add__,
    st.sampled_from(["/", "/srv/", "/%j%x/%"]),
    any_job.file_name.filter(lambda name: "\\" not in name),
)
words = st.lists(any_job.word, max_size=4)
GPU_DIRECTIVES = {"gpus", "gpus-per-node", "gpus-per-task", "gres"}


def check_directives(spec: JobSpec, script: str) -> None:
    lines = script.split("\n")
    first_command = next(
        number for number, line in enumerate(lines) if line.strip() and not line.startswith("#")
    )
    assert not [line for line in lines[first_command:] if line.startswith("#SBATCH")]
    read = directives.read(script)
    assert len(read) == sum(line.startswith("#SBATCH") for line in lines), (
        "a directive of two options, or of none"
    )
    values = directives.last_values(read)
    assert len(values) == len(read), "a directive is given twice"
    assert values["chdir"] == spec.chdir
    assert values.get("array") == spec.array
    assert ("requeue" in values, "no-requeue" in values) == (
        spec.restart == "requeue",
        spec.restart != "requeue",
    )
    log = log_pattern.expand(
        values["output"] or "", {"j": "62", "A_%a": "62", "x": "NAME", "A": "62", "a": "3"}
    ).replace("62_3", "62")
    assert log == f"{spec.chdir}/logs/output_{spec.job_name}_62.log"
    assert {name: value for name, value in spec.sbatch if name != "gres"}.items() <= values.items()
    asked = [
        name
        for name in values
        if name in GPU_DIRECTIVES and (name != "gres" or "gpu" in (values["gres"] or ""))
    ]
    assert len(asked) == (0 if spec.gpu_directive == "none" or not spec.gpus_per_node else 1)
    assert not {"mem", "mem-per-cpu"} <= set(values)
    assert not {"ntasks", "tasks"} & set(values)
    gpus = {"gpus-per-node": spec.gpus_per_node, "gres": spec.gpus_per_node, "gpus": spec.processes}
    for name in asked:
        item = next(
            item
            for item in (values[name] or "").split(",")
            if name != "gres" or item.startswith("gpu:")
        )
        assert int(item.split(":")[-1]) == gpus[name]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(config=any_job.configs(), words=words, where=directory)
def test_any_job(config: dict[str, Any], words: list[str], where: str) -> None:
    spec = any_job.spec_of(config, words, where)
    script = any_job.script_of(spec, words, where)
    checked = subprocess.run(
        ["bash", "-n"], input=script.encode("utf-8", "surrogateescape"), capture_output=True
    )
    assert (checked.returncode, checked.stderr) == (0, b"")
    check_directives(spec, script)
    made = header.read_header(script)
    assert (made.untouched, made.directory, made.arguments) == (
        True,
        where,
        ("--nodes", "2", "--", *words),
    )


def variables_of(spec: JobSpec) -> dict[str, bytes]:
    """Return the X_* variables that the training of `spec` has to find."""
    own = {
        name: value.encode("utf-8", "surrogateescape")
        for name, value in spec.env
        if name.startswith("X_")
    }
    return own | {
        secret.name: b"of the caller" if secret.file is None else SECRET.encode()
        for secret in spec.secrets
    }


def check_what_ran(machine: Machine, spec: JobSpec, arguments: list[str]) -> None:
    """Compare what each node ran with the job: every argument there, unchanged, and nothing else
    executed.
    """
    shipped = [
        "--module" if spec.launcher == "accelerate" else "-m",
        f"hpctrain.training.{spec.task}",
    ]
    outside = spec.script is not None and spec.script.startswith(("/", "../"))
    training = [
        *(shipped if spec.script is None else [spec.script if outside else f"./{spec.script}"]),
        *arguments,
    ]
    raw = [word.encode("utf-8", "surrogateescape") for word in training]
    program = "python" if spec.launcher == "srun" else spec.launcher
    calls = machine.calls(program)
    tasks = (spec.gpus_per_node or 1) if spec.launcher == "srun" else 1
    assert len(calls) == len({0, spec.nodes - 1}) * len({0, tasks - 1})
    for call in calls:
        assert call.argv[-len(raw) :] == raw
        assert call.own == variables_of(spec)
        front = [word.decode() for word in call.argv[: -len(raw)]]
        if spec.launcher == "accelerate":
            assert front[0] == "launch"
            own = f"{machine.run_dir(spec)}/accelerate.yaml"
            assert front[front.index("--config_file") + 1] == (
                spec.accelerate_config if spec.sharding == "ddp" else own
            )
            assert front[front.index("--num_processes") + 1] == str(spec.processes)
        elif spec.launcher == "srun":
            assert front == ["-u"]
            assert call.environment["WORLD_SIZE"] == str(spec.processes)
            assert 0 <= int(call.environment["RANK"]) < spec.processes
    module_calls = [[spec.module_start.encode()]] if spec.module_start else []
    module_calls += [[b"use", path.encode("utf-8", "surrogateescape")] for path in spec.module_use]
    assert [call.argv for call in machine.calls("module")] == [
        *module_calls,
        *([b"load", name.encode()] for name in spec.modules),
    ]
    assert [call.argv for call in machine.calls("conda-function")] == (
        [[b"activate", spec.conda.encode()]] if spec.conda else []
    )
    assert len(machine.calls("venv")) == (1 if spec.venv or spec.uv else 0)
    assert [call.argv[-1] for call in machine.calls("pixi")] == (
        [spec.pixi.encode("utf-8", "surrogateescape")] if spec.pixi else []
    )
    assert [call.argv for call in machine.calls("hook")] == [
        *([b"before"] for _ in spec.before),
        *(
            [str(node).encode()]
            for node in sorted({0, spec.nodes - 1})
            for _ in spec.before_each_node
        ),
        *([b"0"] for _ in spec.after),
    ]
    told = (
        spec.notify is not None
        and spec.notify.command is not None
        and "completed" in spec.notify.on
    )
    assert len(machine.calls("told")) == told
    assert all(b" completed: job 6" in call.argv[0] for call in machine.calls("told"))
    wrapped = spec.container is not None and spec.container.engine in ("apptainer", "singularity")
    containers = machine.calls("container")
    # A job tells the webhook through hpctrain.
    telling = (
        spec.notify is not None
        and spec.notify.webhook is not None
        and "completed" in spec.notify.on
    )
    assert len(containers) == (len(calls) + telling if wrapped else 0)
    for call in containers:
        assert spec.container is not None
        words = [word.decode("utf-8", "surrogateescape") for word in call.argv]
        assert [after for word, after in pairwise(words) if word == "--bind"][1:] == list(
            spec.container.binds
        )
        assert (
            words[words.index("--pwd") + 2 + 2 * len(spec.container.binds)] == spec.container.image
        )


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    config=any_job.configs(),
    words=words,
    name=any_job.file_name.filter(lambda name: "\\" not in name),
)
def test_no_value_runs(
    config: dict[str, Any], words: list[str], name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("machine")
    machine = Machine(root, name)
    spec = any_job.spec_of(config, words, str(machine.directory))
    machine.run(any_job.script_of(spec, words, str(machine.directory)), spec)
    check_what_ran(machine, spec, list(spec.arguments))
    assert machine.strangers(spec) == []
    shutil.rmtree(root)


HOSTILE = " ".join(any_job.CANARIES)


def hostile(launcher: str, **more: Any) -> dict[str, Any]:
    """Return a config with a canary in every field that takes free text."""
    values = any_job.CANARIES + any_job.LINES
    training: dict[str, Any] = {f"v{number}": value for number, value in enumerate(values)}
    return {
        "launcher": launcher,
        "script": HOSTILE,
        "accelerate_config": HOSTILE,
        "environment": {"modules": ["a/1"], **more},
        "sbatch": {"comment": HOSTILE, "mail-user": HOSTILE},
        "notify": {
            "on": ["completed", "failed", "stopped"],
            "command": "./told/" + HOSTILE.replace("/", "_"),
        },
        "resources": {"nodes": 2, "gpus": 2},
        "training": {"list": values, "json": {value: value for value in values}, **training},
    }


@pytest.mark.parametrize("launcher", ["accelerate", "torchrun", "srun"])
@pytest.mark.parametrize(
    "environment",
    [{"conda": HOSTILE}, {"venv": "$(touch CANARY)'; touch CANARY; '\"`touch CANARY`# *"}],
    ids=["conda", "venv"],
)
def test_a_canary_in_every_field(
    launcher: str, environment: dict[str, str], tmp_path: Path
) -> None:
    machine = Machine(tmp_path, "$(touch CANARY); 'touch CANARY' \" # %j")
    words = [*any_job.CANARIES, *any_job.LINES, "\udcff"]
    spec = any_job.spec_of(hostile(launcher, **environment), words, str(machine.directory))
    machine.run(any_job.script_of(spec, words, str(machine.directory)), spec)
    check_what_ran(machine, spec, list(spec.arguments))
    assert machine.strangers(spec) == []


def test_the_canaries_sing_where_nothing_is_quoted(tmp_path: Path) -> None:
    """What `test_no_value_runs` looks for does appear when a value is not quoted; else it would
    prove nothing.
    """
    machine = Machine(tmp_path, "project")
    spec = any_job.spec_of(
        {"launcher": "torchrun", "script": "$(touch CANARY)"}, [], str(machine.directory)
    )
    script = any_job.script_of(spec, [], str(machine.directory)).replace(
        f'    "$code"/{shell.quote(spec.script)} ', f"    {spec.script} "
    )
    machine.run(script, spec)
    assert machine.strangers(spec) == ["CANARY"]
