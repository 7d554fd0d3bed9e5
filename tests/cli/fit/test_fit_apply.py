"""`hpctrain fit --apply`: real edits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from fit_project import CONFIG, checked, document, model

if TYPE_CHECKING:
    from conftest import Desk


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
