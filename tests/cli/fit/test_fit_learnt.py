"""`hpctrain fit` and `hpctrain check`: what one's own runs say."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from fit_project import CONFIG, checked, document, model, run

from hpctrain.fit.layout import Layout

if TYPE_CHECKING:
    from conftest import Desk


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


def test_check_counts_with_ones_own_runs_as_fit_does(project: Desk) -> None:
    """One measurement too many makes a job warn that fits by the formula alone; one too few takes the warning away."""
    model(project, "qwen3-0.6b")
    project.write("config.yaml", CONFIG + "  per_device_train_batch_size: 16\n  gradient_checkpointing: false\n")
    plain = document(project)["asked"]
    factor = 1.02 * document(project)["gpu"]["bytes"] / plain["bytes"]
    less, more = (min(factor, 1 / factor) * 0.95, max(factor, 1 / factor) * 1.05)
    for measured in (less, more):
        run(project, "r1", plain["layout"], measured, 1.0)
        asked = document(project)["asked"]
        said = json.loads(project.run("check", "--no-slurm", "--json").out)["findings"]
        (found,) = [each for each in said if each["id"] == "gpu-memory"] or [None]
        assert (found is None) == asked["fits"]
        if found is not None:
            assert f"corrected by 1 of your runs here: x{measured:.2f}" in found["evidence"]
    project.write("runs/r1/fit.json", "{")
    assert ("gpu-memory" in checked(project)) == (not plain["fits"])
