"""`hpctrain fit`: real config.json files, real profiles; the page and its object."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from fit_project import CONFIG, MODELS, document, model

if TYPE_CHECKING:
    from conftest import Desk


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
    assert said.err.splitlines()[-1] == "next: hpctrain fit --apply"
    assert "\x1b" not in said.out
    again = project.run("fit", "--gpu", "h100", "--gpu-memory", "90G", "--nodes", "2").err.splitlines()[-1]
    assert again == "next: hpctrain fit --apply --gpu h100 --gpu-memory 90G --nodes 2"


SYNC = "  accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}\n"


def test_where_sending_each_pass_makes_the_asked_layout_fit_it_says_so(project: Desk) -> None:
    """A step that accumulates keeps the gradients of all weights with fsdp: 15 GiB of 8 billion parameters."""
    asked = "  per_device_train_batch_size: 1\n  gradient_accumulation_steps: 8\n  gradient_checkpointing: true\n"
    config = CONFIG.replace("training:\n", f"sharding: fsdp\ntraining:\n{asked}")
    project.write("config.yaml", config)
    said = project.run("fit", "--gpu", "a100-40gb")
    flat = " ".join(said.out.split())
    assert said.code == 1
    assert "note: the asked layout would fit, with" in flat
    assert "under training: accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}" in flat
    assert max(len(line) for line in said.out.splitlines()) <= 80
    assert any("sync_each_batch" in note for note in document(project, "--gpu", "a100-40gb")["notes"])
    project.write("config.yaml", config.replace("  # the end\n", SYNC))
    then = document(project, "--gpu", "a100-40gb")
    assert then["asked"]["fits"]
    assert then["asked"]["layout"]["sync_each_batch"]
    assert not any("sync_each_batch" in note for note in then["notes"])


def test_hours_of_a_tiny_training_are_not_nothing(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    project.write("config.yaml", CONFIG.replace("max_steps: 1000", "max_steps: 1"))
    assert " <0.01 " in project.run("fit").out
    assert " 0.00" not in project.run("fit").out


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
    words = ("--exact", "--", "--max_length", "128", "--per_device_train_batch_size", "2")
    said = " ".join(project.run("fit", *words).out.split())
    assert "exact: torch's tracker counts" in said
    assert "of tensors of one process alone, not of 4" in said
    assert "what ddp adds to that or divides is arithmetic alone" in said
    sharded = document(project, "--sharding", "fsdp", *words)["exact"]
    assert sharded["processes"] == 4
    assert sharded["peak"] < found["exact"]["peak"] / 2
    assert "does not run with fake tensors" in project.refused("fit", "--exact", "--", "--optim", "adamw_8bit", code=1).err
    assert sum(found["exact"]["parts"].values()) == pytest.approx(found["exact"]["peak"], rel=0.01)
