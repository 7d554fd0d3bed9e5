"""`hpctrain fit`: real config.json files, real profiles, real edits."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpctrain.clusters import slurm_text
from hpctrain.fit.layout import Layout
from hpctrain.preparation.manifest import NAME, Manifest, Split

if TYPE_CHECKING:
    from conftest import Desk

MODELS = Path(__file__).parents[1] / "fit" / "models"
CONFIG = """\
# My job
cluster: leonardo  # where it runs
resources:
  nodes: 1
  gpus_per_node: 4   # all of a node
  mem: 400G
training:
  model_name_or_path: model   # a folder
  max_steps: 1000
  # the end
"""


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("config.yaml", CONFIG)
    model(desk, "llama-3-8b")
    return desk


def model(desk: Desk, name: str) -> None:
    desk.write("model/config.json", (MODELS / name / "config.json").read_text())


def document(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run("fit", "--json", *words)
    assert said.code in (0, 1), said.err
    return json.loads(said.out)


def checked(desk: Desk) -> list[str]:
    return [finding["id"] for finding in json.loads(desk.run("check", "--no-slurm", "--json").out)["findings"]]


def dataset(desk: Desk, **changes: Any) -> None:
    split = Split(rows=1000, examples=1000, tokens=400_000, trained=300_000, longest=900, histogram=((512, 700), (1024, 300)), padded=1.5)
    made = Manifest(
        sources=(), form="text", columns={}, loss_on="all", tokenizer="", tokenizer_name="", template=None, vocabulary=1, max_length=2048,
        packed=False, splits={"train": replace(split, **changes.pop("split", {}))},
    )  # fmt: skip
    desk.write(f"data/{NAME}", replace(made, **changes).to_json())


def test_the_page_says_what_is_held_and_what_fits(project: Desk) -> None:
    said = project.run("fit")
    assert said.code == 1  # the asked layout does not fit
    assert "8.03 billion parameters" in said.out
    assert "NVIDIA A100 SXM 64GB" in said.out
    assert re.search(r"^  optimizer +59\.8 GiB  #+$", said.out, re.MULTILINE)
    assert re.search(r"^  total .* of 63\.\d GiB: does not fit: .* too much$", said.out, re.MULTILINE)
    flat = " ".join(said.out.split())
    assert "The nearest that fits: fsdp in place of ddp" in flat
    assert "same global batch of 32 rows (32,768 tokens), fastest first" in flat
    assert "1,000 steps x 32 rows x 1,024 tokens" in flat
    assert "an estimate: matrix products at 50% of the dense peak" in flat
    assert "host memory of each node: about" in flat
    assert "of 400.0 GiB" in flat
    assert len(re.findall(r"^>", said.out, re.MULTILINE)) >= 1
    assert max(len(line) for line in said.out.splitlines()) <= 80
    assert "hpctrain fit --apply" in said.err
    assert "\x1b" not in said.out


def test_a_layout_that_fits_is_zero(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    said = project.run("fit")
    assert said.code == 0, said.out
    assert ": fits" in said.out
    assert "row" in said.out
    assert "is what is asked" in " ".join(said.out.split())


def test_json_has_raw_units(project: Desk) -> None:
    found = document(project)
    assert found["schema"] == 1
    assert found["asked"]["fits"] is False
    assert sum(found["asked"]["parts"].values()) == found["asked"]["bytes"]
    assert found["gpu"]["bytes"] < 64 * 1024**3
    assert found["tokens"] == 1000 * 32 * 1024
    assert [row["tokens_per_s"] for row in found["rows"]] == sorted((row["tokens_per_s"] for row in found["rows"]), reverse=True)
    assert [row["row"] for row in found["rows"] if row["best"]]
    for row in found["rows"]:
        assert row["gpu_hours"] == pytest.approx(row["seconds"] / 3600 * row["layout"]["nodes"] * row["layout"]["gpus_per_node"])
    assert found["host"]["given"] == 400 * 1024**3


def test_all_shows_more(project: Desk) -> None:
    few, every = document(project)["rows"], document(project, "--all")["rows"]
    assert len(few) < len(every)
    lines = [line for line in project.run("fit", "--all").out.splitlines() if re.match(r"[> ] +\d+ ", line)]
    assert len(lines) == len(every)


def test_node_hours_where_nodes_are_whole(project: Desk) -> None:
    project.write("config.yaml", CONFIG.replace("leonardo", "juwels_booster"))
    found = document(project)
    for row in found["rows"]:
        assert row["gpu_hours"] == pytest.approx(row["node_hours"] * 4)
    assert " node h" in project.run("fit").out
    project.write("config.yaml", CONFIG)
    assert " node h" not in project.run("fit").out


def test_what_outlasts_the_time_limit_is_said(project: Desk) -> None:
    def said(*words: str) -> str:
        return " ".join(project.run("fit", *words).out.split())

    model(project, "qwen3-0.6b")
    assert "The time limit is" not in said()
    seconds = next(row["seconds"] for row in document(project)["rows"] if row["best"])
    steps = round(1000 * 3.5 * 3600 / seconds)  # three hours and a half
    assert "The time limit is 01:00:00, and > takes 3.5 h: it is requeued 3 times." in said("--", "--max_steps", str(steps))
    assert "it ends there (restart: off)." in said("--restart", "off", "--", "--max_steps", str(steps))
    assert "3 times (1 at most: restart.max)." in said("--max-restarts", "1", "--", "--max_steps", str(steps))


# -- the GPU -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_slurm")
def test_without_a_profile_the_gpu_is_named(project: Desk) -> None:
    project.write("config.yaml", CONFIG.replace("cluster: leonardo", "# no cluster"))
    said = project.refused("fit")
    assert "which GPU the job gets is not known" in said.err
    assert "no cluster profile is named" in said.err
    assert "the profile generic_university says nothing" in project.refused("fit", "--cluster", "generic_university").err
    randi = document(project, "--cluster", "randi")["gpu"]["source"]
    assert "profile randi" in randi
    assert "'NVIDIA A100' may have more memory" in randi
    assert said.lines[-1].startswith("fix: hpctrain fit --gpu h100")
    found = document(project, "--gpu", "h200")
    assert found["gpu"]["name"] == "NVIDIA H200"
    assert document(project, "--gpu-memory", "80G")["asked"]["tokens_per_s"] is None
    assert "name it with --gpu" in " ".join(project.run("fit", "--gpu-memory", "80G").out.split())


def test_what_slurm_says_of_its_gpus_is_asked_where_nothing_else_does(project: Desk) -> None:
    project.write("config.yaml", CONFIG.replace("cluster: leonardo", "# no cluster"))
    fields = ("N/A", "gpu*", "up", "1-00:00:00", "01:00:00", "1-64", "NO", "4", "0/4/0/4", "64", "512000", "1", "gpu:a100:4", "a100")
    project.write("nodes.txt", slurm_text.SEPARATOR.join(fields) + "\n")
    project.program("sinfo", f"cat '{project.directory}/nodes.txt'")
    for name in ("scontrol", "sacctmgr"):
        project.program(name, "exit 1")
    found = document(project)
    assert found["gpu"]["name"] == "NVIDIA A100 SXM 40GB"
    assert "sinfo: 'a100' may have more memory" in found["gpu"]["source"]
    assert "may have" not in document(project, "--gpu-memory", "80G")["gpu"]["source"]
    assert max(row["layout"]["gpus_per_node"] for row in found["rows"]) == 4


def test_a_gpu_that_is_not_known_needs_its_memory(project: Desk) -> None:
    said = project.refused("fit", "--gpu", "h900")
    assert "no GPU is known by the name 'h900'" in said.err
    assert "NVIDIA H100 SXM" in " ".join(said.err.split())
    assert document(project, "--gpu", "h900", "--gpu-memory", "200G")["gpu"]["bytes"] == 200 * 1024**3
    assert "is less than a GiB" in project.refused("fit", "--gpu-memory", "80").err
    assert "memory size" in project.refused("fit", "--gpu-memory", "much").err


def test_a_gpu_without_bfloat16_trains_in_float32(project: Desk) -> None:
    found = document(project, "--gpu", "v100", "--gpu-memory", "32G")
    assert found["asked"]["layout"]["compute"] is None


def test_a_login_node_that_a_profile_knows_needs_no_name(project: Desk) -> None:
    project.write("config.yaml", CONFIG.replace("cluster: leonardo", "# no cluster"))
    project.write("profiles/mine.yaml", "title: Mine\nevidence: own\ndetect: {variables: {MY_SITE: .*}}\n"
                  "nodes: {n: {gpus: 4, gpu: NVIDIA H200, gpu_memory: 141G}}\n")  # fmt: skip
    project.set(HPCTRAIN_CLUSTERS=str(project.directory / "profiles"), MY_SITE="1")
    assert document(project)["gpu"]["name"] == "NVIDIA H200"


# -- the model and the data --------------------------------------------------------------------------------------------


def test_a_model_that_is_not_there(project: Desk) -> None:
    shutil.rmtree(project.directory / "model")
    said = project.refused("fit")
    assert "there is no config.json in model" in said.err
    assert "hf download" in said.lines[-1]
    project.write("model/config.json", "[1]")
    assert "is no JSON object" in project.refused("fit").err
    project.write("model/config.json", '{"model_type": "llama"}')
    assert "hidden_size" in project.refused("fit", code=1).err
    project.write("config.yaml", "cluster: leonardo\n")
    assert "no model is named" in project.refused("fit").err
    assert document(project, "--model", str(MODELS / "qwen3-8b"))["model"]["type"] == "qwen3"
    assert document(project, "--model", str(MODELS / "qwen3-8b" / "config.json"))["model"]["type"] == "qwen3"


def test_a_prepared_dataset_gives_lengths_and_tokens(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    project.write("config.yaml", CONFIG.replace("  max_steps: 1000\n", "  dataset_name: data\n"))
    assert "hpctrain prepare" in " ".join(project.run("fit").out.split())
    dataset(project)
    found = document(project)
    assert found["asked"]["layout"]["length"] == 900
    assert found["tokens"] == 3 * 1000 * 400  # epochs x rows x tokens
    assert "3 epochs x 1,000 rows x 400 tokens (grouped by length, 400,000 in all)" in " ".join(project.run("fit").out.split())
    mixed = document(project, "--", "--train_sampling_strategy", "random")
    assert mixed["tokens"] == 3 * 1000 * 600  # x 1.5 with padding
    dataset(project, packed=True)
    found = document(project, "--", "--num_train_epochs", "2")
    assert (found["asked"]["layout"]["length"], found["tokens"]) == (2048, 2 * 400_000)
    assert document(project, "--", "--max_steps", "10")["tokens"] == 10 * 16 * 400  # 4 rows of 2048 for each GPU


def test_a_config_file_of_the_training_is_read(project: Desk) -> None:
    project.write("sft.yaml", "per_device_train_batch_size: 2\nmax_length: 512\n")
    found = document(project, "--", "--config", "sft.yaml", "--max_length", "256")
    assert (found["asked"]["layout"]["micro_batch"], found["asked"]["layout"]["length"]) == (2, 256)
    assert "cannot read --config none.yaml" in project.refused("fit", "--", "--config", "none.yaml").err


def test_options_of_the_training_count(project: Desk) -> None:
    found = document(project, "--", "--use_peft", "true", "--lora_target_modules", "q_proj", "v_proj", "--lora_r", "8")
    assert found["asked"]["layout"]["lora"] == {"rank": 8, "targets": ["q_proj", "v_proj"], "dropout": True}
    assert found["model"]["trained"] == 32 * 8 * (4096 * 2 + 4096 + 1024)
    said = project.refused("fit", "--", "--max_length", "long", "--bf16", "perhaps")
    assert "2 problems" in said.err


def test_a_training_of_ones_own_is_refused_and_a_classifier_too(project: Desk) -> None:
    said = project.refused("fit", "--script", "train.py")
    assert "train.py is a training of your own" in said.err
    assert "--model FOLDER" in said.lines[-1]
    assert document(project, "--script", "train.py", "--model", "model")["model"]["type"] == "llama"
    assert "task: classify" in project.refused("fit", "--task", "classify").err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("model",), "model is a folder"), (("train.py",), "train.py is no job config"), (("none.yaml",), "there is no file none.yaml"),
        (("config.yaml", "--config", "config.yaml"), "two job configs"), (("--apply", "0"), "takes the number of a row"),
        (("--apply", "config.yaml"), "stands behind it"), (("--apply", "99"), "there is no row 99"),
        (("--apply", "--json"), "--apply shows"),
    ],
)  # fmt: skip
def test_what_is_typed_wrong(project: Desk, words: tuple[str, ...], why: str) -> None:
    assert why in project.refused("fit", *words).err


def test_where_nothing_fits_it_is_said_what_would(project: Desk) -> None:
    said = project.run("fit", "--gpu", "v100", "--gpu-memory", "16G", "--gpus", "1", "--", "--per_device_train_batch_size", "1")
    assert said.code == 1
    flat = " ".join(said.out.split())
    assert "No layout fits with this global batch. What would:" in flat
    assert re.search(r"- \d+ nodes x 8 GPUs, fsdp, micro batch 1, checkpointing.*: [\d.]+ GiB of 15\.8 GiB", flat)
    assert "- LoRA of rank 16" in flat
    assert "- QLoRA" in flat
    refused = project.refused("fit", "--gpu", "t4", "--gpus", "1", "--apply", "--", "--per_device_train_batch_size", "1", code=1)
    assert "nothing fits" in refused.err


# -- applying ----------------------------------------------------------------------------------------------------------


def test_apply_writes_the_marked_row_and_nothing_else(project: Desk) -> None:
    assert "gpu-memory" in checked(project)  # check says the same
    best = next(row for row in document(project)["rows"] if row["best"])
    said = project.run("fit", "--apply")
    assert said.code == 0, said.err
    text = (project.directory / "config.yaml").read_text()
    assert "sharding: fsdp\n" in text
    assert [line for line in CONFIG.splitlines() if line not in text.splitlines()] == []
    assert said.out.startswith("--- config.yaml\n+++ ")
    assert "+sharding: fsdp" in said.out
    again = document(project)
    assert again["asked"]["layout"] == best["layout"]
    assert again["asked"]["fits"]
    assert "says that already" in project.run("fit", "--apply").out
    assert "gpu-memory" not in checked(project)
    assert not list(project.directory.glob(".config*"))


def test_apply_writes_a_row_by_its_number(project: Desk) -> None:
    for row in document(project)["rows"]:
        project.write("config.yaml", CONFIG)
        assert project.run("fit", "--apply", str(row["row"])).code == 0
        assert document(project)["asked"]["layout"] == row["layout"]


def test_apply_changes_what_stands_there_and_keeps_its_comment(project: Desk) -> None:
    text = CONFIG + "  per_device_train_batch_size: 1   # small\n  gradient_checkpointing: True\nsharding: 'ddp' # why\n"
    project.write("config.yaml", text)
    model(project, "qwen3-0.6b")
    number = next(row["row"] for row in document(project, "--all")["rows"] if row["layout"]["sharding"] == "fsdp"
                  and row["layout"]["checkpointing"] == "off" and row["layout"]["nodes"] == 1)  # fmt: skip
    assert project.run("fit", "--all", "--apply", str(number)).code == 0
    written = (project.directory / "config.yaml").read_text()
    assert "  gradient_checkpointing: false\n" in written
    assert "sharding: fsdp # why\n" in written


def test_what_an_option_said_is_written_too(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    assert project.run("fit", "--nodes", "2", "--apply").code == 0
    assert "  nodes: 2\n" in (project.directory / "config.yaml").read_text()


@pytest.mark.parametrize(
    "text",
    [
        "cluster: leonardo\nresources: {nodes: 1, gpus: 4}\ntraining: {model_name_or_path: model, max_steps: 5}\n",
        "cluster: leonardo\r\nresources:\r\n    gpus_per_node: 4\r\ntraining:\r\n    model_name_or_path: model",
        "training:\n    model_name_or_path: model\n    list:\n    - q\n\n# below\nresources:\n    gpus: 4\ncluster: leonardo",
        "\ufeffcluster: leonardo\ntraining:\n  model_name_or_path: model\nresources:\n  gpus: 4\nsharding:\n",
        "cluster: leonardo\nresources: {}\nenvironment:\n  # venv: .venv\ntraining:\n  model_name_or_path: model\n  max_steps: 4\n",
        "{cluster: leonardo, resources: {gpus: 4}, training: {model_name_or_path: model}}\n",
        "cluster: leonardo\nresources:\n  gpus: 4\ntraining:\n  model_name_or_path: model\n  x: |\n    a\n    # b\n\nsbatch:\n  c-d: e\n",
    ],
)
def test_apply_edits_whatever_yaml_there_is(project: Desk, text: str) -> None:
    project.write("config.yaml", text)
    best = next(row for row in document(project)["rows"] if row["best"])
    said = project.run("fit", "--apply")
    assert said.code == 0, said.err
    assert document(project)["asked"]["layout"] == best["layout"]
    written = (project.directory / "config.yaml").read_bytes().decode()
    assert ("\r\n" in text) == ("\r\n" in written)
    assert "\r\r" not in written
    assert not re.search(r"(?<!\r)\n", written) or "\r\n" not in text


def test_what_cannot_be_edited_safely_is_left_alone(project: Desk) -> None:
    project.write("config.yaml", CONFIG.replace("nodes: 1", "nodes: &one 1").replace("  max_steps: 1000", "  max_steps: *one"))
    said = project.refused("fit", "--nodes", "2", "--apply", code=1)
    assert "cannot be edited safely" in said.err
    assert "sharding: fsdp" in said.err


def test_stages_are_not_edited(project: Desk) -> None:
    project.write("config.yaml", CONFIG + "stages:\n  - {name: one}\n  - {name: two, training: {learning_rate: 1e-6}}\n")
    assert "2 jobs: this is stage one" in project.run("fit").out
    assert "describes several jobs" in project.refused("fit", "--apply").err


def test_a_sweep_is_one_layout(project: Desk) -> None:
    project.write("config.yaml", CONFIG + "sweep:\n  grid: {learning_rate: [1e-5, 2e-5]}\n")
    assert "points of the sweep" in " ".join(project.run("fit").out.split())
    assert project.run("fit", "--apply").code == 0
    assert "grid: {learning_rate: [1e-5, 2e-5]}" in (project.directory / "config.yaml").read_text()


def test_apply_keeps_the_files_mode_and_follows_a_link(project: Desk) -> None:
    path = project.directory / "config.yaml"
    path.rename(project.directory / "real.yaml")
    path.symlink_to("real.yaml")
    (project.directory / "real.yaml").chmod(0o640)
    assert project.run("fit", "--apply").code == 0
    assert path.is_symlink()
    assert (project.directory / "real.yaml").stat().st_mode & 0o777 == 0o640
    assert "sharding: fsdp" in (project.directory / "real.yaml").read_text()


# -- what one's own runs say -------------------------------------------------------------------------------------------


def run(desk: Desk, name: str, asked: dict[str, Any], memory: float, speed: float) -> None:
    measured = {"allocated": 1000 * memory, "reserved": 1, "used": None, "host": 1, "tokens_per_s": 100.0 * speed, "mfu": None, "rank": 0}
    record = {
        "schema": 1, "layout": asked, "shape": {}, "gpu": "NVIDIA A100-SXM-64GB", "cluster": "leonardo",
        "predicted": {"total": 10, "allocated": 1000, "parts": {}, "tokens_per_s": 100.0},
        "measured": measured,
    }  # fmt: skip
    desk.write(f"runs/{name}/fit.json", json.dumps(record))


def test_ones_own_runs_correct_the_predictions_and_that_is_said(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    plain = document(project)["asked"]
    for number in range(3):
        run(project, f"r{number}", plain["layout"], 1.07, 0.5)
    run(project, "other", asdict(Layout(sharding="fsdp")), 3.0, 0.3)
    project.write("runs/broken/fit.json", "{")
    found = document(project)
    assert found["corrected"] == {"memory": {"factor": 1.07, "runs": 3}, "speed": {"factor": 0.5, "runs": 3}}
    assert found["asked"]["tokens_per_s"] == pytest.approx(plain["tokens_per_s"] / 2)
    assert found["asked"]["bytes"] > plain["bytes"]
    said = project.run("fit").out
    assert "corrected by 3 of your runs here: x1.07" in said
    assert "tokens/s corrected by 3 of your runs here: x0.50" in " ".join(said.split())
    without = document(project, "--no-correction")
    assert without["asked"]["bytes"] == plain["bytes"]
    assert "corrected" not in project.run("fit", "--no-correction").out
    assert document(project, "--gpu", "h100")["corrected"]["memory"]["runs"] == 0


# -- how it is done ----------------------------------------------------------------------------------------------------


def test_it_imports_no_torch(project: Desk) -> None:
    code = (
        "import sys\nfrom hpctrain.cli import main\ntry:\n    main(['fit'])\nexcept SystemExit:\n    pass\n"
        "bad = {'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules)\nassert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=project.directory, check=True, capture_output=True, env=dict(os.environ))


@pytest.mark.torch
@pytest.mark.slow
def test_exact_counts_with_torch(project: Desk) -> None:
    small = json.loads((MODELS / "qwen3-0.6b" / "config.json").read_text()) | {"num_hidden_layers": 3, "vocab_size": 1000}
    project.write("model/config.json", json.dumps(small))
    found = document(project, "--exact", "--", "--max_length", "128", "--per_device_train_batch_size", "2")
    assert found["exact"]["peak"] == pytest.approx(found["exact"]["formula"], rel=0.1)
    assert found["exact"]["formula"] < found["asked"]["allocated"]  # four processes have buffers too
    said = project.run("fit", "--exact", "--gpus", "1", "--", "--max_length", "128", "--per_device_train_batch_size", "2")
    assert "exact: torch's tracker counts" in said.out
    assert "does not run with fake tensors" in project.refused("fit", "--exact", "--", "--optim", "adamw_8bit", code=1).err
    assert sum(found["exact"]["parts"].values()) == pytest.approx(found["exact"]["peak"], rel=0.01)


def test_a_read_only_config_is_left_alone(project: Desk) -> None:
    path = project.directory / "config.yaml"
    path.chmod(0o444)
    refused = project.refused("fit", "--apply", code=2).err
    assert "config.yaml is read-only; nothing was changed" in refused
    assert "chmod u+w config.yaml" in refused
    assert path.read_text() == CONFIG


def test_apply_says_that_a_sweep_was_not_looked_at(project: Desk) -> None:
    project.write("config.yaml", CONFIG + "sweep:\n  grid:\n    training.per_device_train_batch_size: [1, 64]\n")
    said = project.run("fit", "--apply")
    assert said.code == 0
    assert "note: what the points of the sweep or of the study change is not looked at" in said.err


def test_an_unknown_gpu_fits_the_screen_and_a_part_without_a_size_is_asked_for_it(project: Desk) -> None:
    refused = project.refused("fit", "--gpu", "h1000").err
    assert all(len(line) <= 80 for line in refused.splitlines()[:-1])
    assert "NVIDIA H100 SXM" in " ".join(refused.split())
    assert "does not say how large it is" in project.refused("fit", "--gpu", "a100_mig").err
    page = " ".join(project.run("fit", "--gpu", "a100_3g.20gb").out.split())
    assert "GPU: NVIDIA A100 SXM 80GB, MIG 3g.20gb, 19.0 GiB for programs (--gpu)" in page
