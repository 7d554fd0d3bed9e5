"""`hpctrain fit`: real config.json files, real profiles; the page and its object."""

import re

import pytest

from tests.cli.conftest import Desk
from tests.cli.fit.fit_project import CONFIG, checked, document, model


def test_the_page_says_what_is_held_and_what_fits(project: Desk) -> None:
    said = project.run("fit")
    assert said.code == 1  # the asked layout does not fit
    assert "8.03 billion parameters" in said.out
    assert "NVIDIA A100 SXM 64GB" in said.out
    assert re.search(r"^  optimizer +59\.8 GiB  #+$", said.out, re.MULTILINE)
    assert re.search(
        r"^  total .* of 63\.\d GiB: does not fit: .* too much$", said.out, re.MULTILINE
    )
    flat = " ".join(said.out.split())
    for words in (
        "same global batch of 32 sequences (32,768 tokens), fastest first",
        "1,000 steps x 32 sequences x 1,024 tokens",
        "an estimate: matrix products at 50% of the dense peak",
        "host memory of each node: about",
        "of 400.0 GiB",
    ):
        assert words in flat
    assert len(re.findall(r"^>", said.out, re.MULTILINE)) >= 1
    assert max(len(line) for line in said.out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ((), []),
        (("--nodes", "2", "--", "--gradient_checkpointing", "true"), ["--nodes", "2"]),
        (("--", "--per_device_train_batch_size", "1"), []),
    ],
)
def test_the_suggested_command_requests_the_marked_row(
    project: Desk, asked: tuple[str, ...], words: list[str]
) -> None:
    assert "gpu-memory" in checked(project)  # check says the same
    best = next(row for row in document(project, *asked)["rows"] if row["best"])
    last = project.run("fit", *asked).err.splitlines()[-1]
    command = last.removeprefix("next: hpctrain check ").split()
    assert [word for word in words if word not in command] == []
    again = document(project, *command)
    assert again["asked"]["fits"]
    assert again["asked"]["layout"] == best["layout"]


def test_stages_and_sweeps_are_noted(project: Desk) -> None:
    stages = "stages:\n  - {name: one}\n  - {name: two, training: {learning_rate: 1e-6}}\n"
    project.write("config.yaml", CONFIG + stages)
    assert "2 jobs: this is stage one" in project.run("fit").out
    sweep = "sweep:\n  grid:\n    training.per_device_train_batch_size: [1, 64]\n"
    project.write("config.yaml", CONFIG + sweep)
    assert "note: what the parameter combinations of the sweep" in project.run("fit").out


def test_a_layout_that_fits_is_zero(project: Desk) -> None:
    model(project, "qwen3-0.6b")
    said = project.run("fit")
    assert said.code == 0, said.out
    assert ": fits" in said.out
    assert "row" in said.out


def test_json_has_raw_units(project: Desk) -> None:
    found = document(project)
    assert found["asked"]["fits"] is False
    assert sum(found["asked"]["parts"].values()) == found["asked"]["bytes"]
    assert found["gpu"]["bytes"] < 64 * 1024**3
    assert found["tokens"] == 1000 * 32 * 1024
    assert [row["tokens_per_s"] for row in found["rows"]] == sorted(
        (row["tokens_per_s"] for row in found["rows"]), reverse=True
    )
    assert [row["row"] for row in found["rows"] if row["best"]]
    for row in found["rows"]:
        assert row["gpu_hours"] == pytest.approx(
            row["seconds"] / 3600 * row["layout"]["nodes"] * row["layout"]["gpus_per_node"]
        )
    assert found["host"]["given"] == 400 * 1024**3


def test_all_shows_more(project: Desk) -> None:
    few, every = document(project)["rows"], document(project, "--all")["rows"]
    assert len(few) < len(every)
    lines = [
        line
        for line in project.run("fit", "--all").out.splitlines()
        if re.match(r"[> ] +\d+ ", line)
    ]
    assert len(lines) == len(every)
