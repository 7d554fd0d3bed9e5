"""resubmit --apply-fix: real jobs of the local scheduler that fail, are explained, changed, and go on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpctrain.cli import apply_fix_script
from hpctrain.config import layers, to_spec
from hpctrain.config.layers import Layer
from hpctrain.explain.model import Change
from hpctrain.runs import launch

if TYPE_CHECKING:
    from conftest import Desk

slow = pytest.mark.slow

OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
#: Needs more than 64G for what it is told to, as its newest job script says.
TRAIN = f"""\
import glob, os, sys
scripts = [open(name).read() for name in glob.glob("runs/.launches/*/scripts/*.sbatch")]
if "--big" in sys.argv and not any("--mem=96G" in text for text in scripts):
    sys.stderr.write({OOM!r} + "\\n")
    sys.exit(137)
print("done", *sys.argv[1:])
"""
JOB = "script: train.py\nlauncher: srun\nresources: {mem: 64G}\n"


@pytest.fixture
def project(desk: Desk, no_slurm: None) -> Desk:
    desk.write("train.py", TRAIN)
    desk.write("config.yaml", JOB)
    return desk


def outcomes(desk: Desk) -> dict[str, list[str]]:
    return {
        run.name: [json.loads(end.read_text())["outcome"] for end in sorted(run.glob("attempts/*/end.json"))]
        for run in sorted((desk.directory / "runs").iterdir()) if not run.name.startswith(".")
    }  # fmt: skip


def failing(desk: Desk, body: str, *words: str) -> None:
    desk.write("train.py", body)
    assert desk.run("submit", "--local", "--wait", "--run-id", "r1", *words).code != 0


@slow
def test_more_memory_and_the_run_is_done(project: Desk) -> None:
    assert project.run("submit", "--local", "--wait", "--run-id", "r1", "--", "--big").code == 137
    before = project.snapshot()
    said = project.run("resubmit", "r1", "--apply-fix", "--dry-run")
    assert (said.code, said.out.splitlines()) == (0, ["r1: host-oom, certain", "  resources.mem: 64G -> 96G", "would submit sft.sbatch r1"])
    said = project.run("resubmit", "r1", "--apply-fix", "--dry-run", "--json")
    fixes = [
        {
            "runs": ["r1"], "diagnosis": "host-oom", "certainty": "certain",
            "changes": [{"key": "resources.mem", "old": "64G", "new": "96G"}],
        }
    ]  # fmt: skip
    assert json.loads(said.out) == {"schema": 1, "run": "r1", "fixes": fixes, "jobs": [], "dry_run": True}
    assert project.snapshot() == before
    said = project.run("resubmit", "r1", "--apply-fix", "--local", "--wait")
    assert (said.code, outcomes(project)) == (0, {"r1": ["failed", "completed"]}), said.err
    assert "  resources.mem: 64G -> 96G" in said.lines
    whole = launch.load(project.directory / "runs", "r1")
    assert whole is not None
    assert [part.config for part in whole.parts] == ["config.json", "config.2.json"]
    kept = json.loads((whole.path / "config.2.json").read_text())
    assert (kept["config"]["resources"]["mem"], kept["origins"]["resources.mem"]) == (96 << 30, "hpctrain resubmit --apply-fix (host-oom)")
    assert kept["origins"]["launcher"] == "config.yaml:2:1"


@slow
def test_the_header_says_how_to_make_the_changed_script_again(project: Desk) -> None:
    assert project.run("submit", "--local", "--wait", "--run-id", "r1", "--", "--big").code == 137
    assert project.run("resubmit", "r1", "--apply-fix", "--local", "--wait").code == 0
    scripts = project.directory / "runs/.launches/r1/scripts"
    text = (scripts / "sft.2.sbatch").read_text()
    again = text.splitlines()[3].partition("hpctrain render ")[2].split()
    rendered = project.run("render", *again, "--to=-") if "--" not in again else project.run("render", "--to=-", *again)
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert [line for line in rendered.out.splitlines() if line.startswith("#SBATCH")] == directives
    assert rendered.out.splitlines()[4:] == text.splitlines()[4:]


@slow
def test_a_submission_that_was_interrupted_is_done_once(project: Desk) -> None:
    """The changed script was kept, and no scheduler has got it: the same command goes on, and changes nothing twice."""
    assert project.run("submit", "--local", "--wait", "--run-id", "r1", "--", "--big").code == 137
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpctrain.cli.launching.Launcher.submit", interrupted)
        assert project.run("resubmit", "r1", "--apply-fix", "--local").code == 130
    said = project.run("resubmit", "r1", "--apply-fix", "--local", "--wait")
    assert (said.code, outcomes(project)) == (0, {"r1": ["failed", "completed"]}), said.err
    assert sorted(path.name for path in (project.directory / "runs/.launches/r1/scripts").glob("*.sbatch")) == [
        "sft.2.sbatch",
        "sft.sbatch",
    ]


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@slow
def test_what_fails_with_the_fix_in_place_is_not_tried_for_ever(project: Desk) -> None:
    body = TRAIN.replace('and not any("--mem=96G" in text for text in scripts)', "")
    failing(project, body, "--", "--big")
    assert project.run("resubmit", "r1", "--apply-fix", "--local", "--wait").code == 137
    said = project.run("resubmit", "r1", "--apply-fix", "--local", "--wait")
    if said.code == 1:  # the record of this machine knows no memory, so the same fix comes out
        assert "error: r1 failed with this fix in place: host-oom" in said.lines
    else:
        assert "  resources.mem: 96G -> " in said.err
    assert not any("64G -> 96G" in line for line in said.lines if line.startswith("  resources.mem"))


@slow
def test_a_run_that_still_runs(project: Desk) -> None:
    project.write("train.py", "import time\ntime.sleep(60)\n")
    assert project.run("submit", "--local", "--run-id", "r1").code == 0
    said = project.run("resubmit", "r1", "--apply-fix", "--local")
    assert said.code == 2, said.err
    assert "a fix is for runs that have ended" in said.err
    job = said.lines[-1].split("hpctrain cancel ")[1].split(",")[0]
    assert project.run("cancel", job, "--yes").code == 0


@slow
def test_a_failure_that_no_rule_knows(project: Desk) -> None:
    failing(project, "import sys\nsys.stderr.write('something odd\\n')\nsys.exit(3)\n")
    said = project.refused("resubmit", "r1", "--apply-fix", "--local", code=1)
    assert "error: there is no fix that can be done by itself" in said.lines
    assert said.lines[-1].startswith("fix: hpctrain explain r1; ")


CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 39.39 GiB of which 1.12 GiB is free."
)


@slow
def test_a_training_of_ones_own_is_told_and_not_changed(project: Desk) -> None:
    """What its options mean only its author knows."""
    project.write("config.yaml", JOB + "training: {per_device_train_batch_size: 4, gradient_accumulation_steps: 8}\n")
    failing(project, f"import sys\nsys.stderr.write({CUDA!r})\nsys.exit(1)\n")
    said = project.refused("resubmit", "r1", "--apply-fix", "--local", code=1)
    assert "  per_device_train_batch_size: 4 -> 2, gradient_accumulation_steps: 8 -> 16" in said.lines


DIED = "RuntimeError: One of the subprocesses has abruptly died during map operation. To debug the error, disable multiprocessing."


@slow
def test_what_is_only_likely_is_not_done_unasked(project: Desk) -> None:
    failing(project, f"import sys\nsys.stderr.write('Traceback (most recent call last):\\n' + {DIED!r} + '\\n')\nsys.exit(1)\n")
    said = project.run("resubmit", "r1", "--apply-fix", "--local")
    assert said.code == 2, said.err
    assert "error: map-worker-died is likely, and not certain, so this is not done unasked" in said.lines
    assert "  resources.mem: 64G -> 96G" in said.lines
    project.write("train.py", "print('done')\n")
    assert project.run("resubmit", "r1", "--apply-fix", "--new-code", "--local", "--wait", "--yes").code == 0
    assert "--mem=96G" in (project.directory / "runs/.launches/r1/scripts/sft.2.sbatch").read_text()


@slow
def test_of_a_sweep_the_points_that_failed(project: Desk) -> None:
    project.write("config.yaml", f"{JOB}sweep: {{list: [{{a: 1}}, {{a: 2, big: true}}, {{a: 3, big: true}}], throttle: 2}}\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "sw").code == 137
    said = project.run("resubmit", "sw", "--apply-fix", "--dry-run")
    assert said.code == 0, said.err
    assert said.out.splitlines() == [
        "sw_1 and 1 more: host-oom, certain", "  resources.mem: 64G -> 96G", "would submit --array=1-2%2 sft.sbatch sw",
    ]  # fmt: skip
    assert project.run("resubmit", "sw", "--apply-fix", "--local", "--wait").code == 0
    assert outcomes(project) == {"sw_0": ["completed"], "sw_1": ["failed", "completed"], "sw_2": ["failed", "completed"]}
    log = "\n".join(path.read_text() for path in sorted((project.directory / "logs").glob("output_sft_*_2.log")))
    assert "done --a 3 --big true" in log, "the point still has its own values"


@slow
def test_a_sweep_that_has_changed_since(project: Desk) -> None:
    project.write("config.yaml", f"{JOB}sweep: [{{a: 1}}, {{a: 2, big: true}}]\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "sw").code == 137
    project.write("config.yaml", f"{JOB}sweep: [{{a: 1}}, {{a: 5, big: true}}]\n")
    said = project.refused("resubmit", "sw", "--apply-fix", "--local")
    assert "error: the sweep of sw is not what config.yaml says now" in said.lines


@slow
def test_an_array_without_a_sweep(project: Desk) -> None:
    project.write("train.py", TRAIN.replace('"--big" in sys.argv', 'os.environ["SLURM_ARRAY_TASK_ID"] == "5"'))
    project.write("config.yaml", f"{JOB}array: 3-5%1\n")
    assert project.run("submit", "--local", "--wait", "--run-id", "ar").code == 137
    assert project.run("resubmit", "ar", "--apply-fix", "--local", "--wait").code == 0
    assert outcomes(project) == {"ar_3": ["completed"], "ar_4": ["completed"], "ar_5": ["failed", "completed"]}


@slow
def test_a_study_is_changed_where_it_is_defined(project: Desk) -> None:
    """Its trials read the definition, and not the launch's config; the kept config says that there is one."""
    assert project.run("submit", "--local", "--wait", "--run-id", "r1", "--", "--big").code == 137
    path = project.directory / "runs/.launches/r1/config.json"
    kept = json.loads(path.read_text())
    kept["config"]["tune"] = {"space": {"x": {"choices": [1, 2]}}, "trials": 2, "metric": "eval_loss"}
    path.write_text(json.dumps(kept))
    said = project.refused("resubmit", "r1", "--apply-fix", "--local")
    assert "error: r1 is a study, and its definition holds the config" in said.lines


@slow
def test_of_stages_the_one_that_failed(project: Desk) -> None:
    stages = "stages: [{name: one}, {name: two, start: none, training: {big: true}}, {name: three, start: none}]\n"
    project.write("config.yaml", f"job_name: st\n{JOB}{stages}")
    assert project.run("submit", "--local", "--wait", "--run-id", "st").code != 0
    said = project.run("resubmit", "st", "--apply-fix", "--local", "--wait")
    assert said.code == 0, said.err
    assert "st_two: host-oom, certain" in said.lines
    assert outcomes(project)["st_two"] == ["failed", "completed"]
    assert outcomes(project)["st_one"] == ["completed"]
    assert outcomes(project)["st_three"] == ["completed"]
    scripts = project.directory / "runs/.launches/st/scripts"
    assert "--mem=96G" in (scripts / "st-two.2.sbatch").read_text()
    assert not (scripts / "st-three.2.sbatch").exists()


# -- the config, without jobs ------------------------------------------------------------------------------------------


#: Of a study, the definition is the config: it is refused.
GOLDEN = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/config.yaml") if "\ntune:" not in path.read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=lambda path: path.name)
def test_a_config_that_was_kept_means_the_same_again(case: Path) -> None:
    """Sizes and times are bytes and seconds there, and MiB and minutes in config.yaml."""
    from hpctrain import yaml12

    first = layers.resolve([layers.from_document(yaml12.load((case / "config.yaml").read_text(), "config.yaml"), "config.yaml")]).config
    kept = json.loads(json.dumps(first.model_dump(mode="json", exclude={"sweep"})))
    again = layers.resolve([Layer("file", "kept", apply_fix_script.as_written(kept), {})]).config
    if first.stages is None:
        assert to_spec.to_spec(again, directory="/p") == to_spec.to_spec(first.model_copy(update={"sweep": None}), directory="/p")
    assert again.model_dump(mode="json", exclude={"sweep", "training"}) == {key: kept[key] for key in kept if key != "training"}


def test_what_was_quoted_stays_quoted() -> None:
    """The kept config cannot tell; the script that was made of it can."""
    config = {"training": {"model_init_kwargs": {"depth": "3"}, "packing": "True"}}
    assert apply_fix_script.as_written(config)["training"] == {"model_init_kwargs": {"depth": 3}, "packing": "true"}
    script = """    --model_init_kwargs '{"depth": "3"}'\n    --packing True\n"""
    assert apply_fix_script.as_written(config, script)["training"] == config["training"]


@pytest.mark.parametrize(
    ("arguments", "left", "old"),
    [
        (("--per_device_train_batch_size", "4", "--x", "1"), ("--x", "1"), "4"),
        (("--per-device-train-batch-size=4", "--x"), ("--x",), "4"),
        (("train", "--x", "1"), ("train", "--x", "1"), "8"),
    ],
)
def test_an_option_behind_the_dashes_is_the_one_that_counts(arguments: tuple[str, ...], left: tuple[str, ...], old: str) -> None:
    change = Change(key="training.per_device_train_batch_size", old=None, new=2)
    data: dict[str, Any] = {"training": {"per_device_train_batch_size": "8"}}
    done = apply_fix_script._applied(data, [change], arguments)
    assert (done[0].old, done[0].new, data["training"]) == (old, 2, {"per_device_train_batch_size": "2"})
    assert apply_fix_script._without(arguments, [change]) == left


# -- a real training ---------------------------------------------------------------------------------------------------

#: A GPU that is too small for four rows: in its tenth step the training runs out of memory, where there are that many.
SMALL = f"""
import importlib.abc, importlib.util, sys


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "transformers.trainer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            step = module.Trainer.training_step

            def training_step(self, model, inputs, *rest):
                if self.state.global_step >= 9 and len(inputs["input_ids"]) >= 4:
                    import torch

                    raise torch.OutOfMemoryError({CUDA.partition(": ")[2]!r})
                return step(self, model, inputs, *rest)

            module.Trainer.training_step = training_step

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
"""


@pytest.mark.torch
@pytest.mark.usefixtures("no_slurm")
@slow
def test_a_training_goes_on_with_half_the_micro_batch_and_the_same_global_batch(desk: Desk) -> None:
    """It fails in step 10, and resumes at step 8: the data, the schedule and the number of steps are the same as they would have been."""
    pytest.importorskip("torch")
    sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
    import survival

    model, dataset = survival.make(desk.directory)
    config = json.loads((model / "config.json").read_text()) | {"attention_dropout": 0.0}
    (model / "config.json").write_text(json.dumps(config))
    desk.write("hooks/sitecustomize.py", SMALL)
    env = f'{{PYTHONPATH: "{desk.directory}/hooks", ACCELERATE_USE_CPU: "true", CUDA_VISIBLE_DEVICES: "", OMP_NUM_THREADS: "1"}}'
    training = "save_steps: 4, logging_steps: 1, max_length: 32, learning_rate: 1e-2, ddp_find_unused_parameters: false, use_cpu: true"
    desk.write(
        "config.yaml",
        f"launcher: torchrun\nresources: {{gpus_per_node: 2}}\nenvironment: {{venv: {sys.prefix}, env: {env}}}\n"
        f"training: {{model_name_or_path: {model}, dataset_name: {dataset}, max_steps: 14, {training}}}\n",
    )
    assert desk.run("submit", "--local", "--wait", "--run-id", "g1", "--", "--per_device_train_batch_size", "4").code == 1
    said = desk.run("resubmit", "g1", "--apply-fix", "--local", "--wait")
    assert said.code == 0, said.err
    assert "  training.per_device_train_batch_size: 4 -> 2" in said.lines
    assert "  training.gradient_accumulation_steps: not set -> 2" in said.lines
    assert outcomes(desk) == {"g1": ["failed", "completed"]}
    losses = [rows(path) for path in sorted((desk.directory / "runs/g1/attempts").glob("*/metrics.jsonl"))]
    assert (sorted(losses[0]), sorted(losses[1])) == (list(range(1, 10)), list(range(9, 15)))
    assert losses[1][9] == pytest.approx(losses[0][9], rel=1e-5), "the same rows, with the same weights"


def rows(path: Path) -> dict[int, float]:
    """Return step -> loss."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["step"]: row["loss"] for row in found if "loss" in row and row.get("event", "log") in ("log", "train")}
