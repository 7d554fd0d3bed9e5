"""The copy of the dataset on the node, which the job script names in HPCTRAIN_DATA."""

import shutil
from pathlib import Path

import in_process
import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("named", ["gone.tar.gz", None], ids=["an archive", "no dataset_name"])
def test_the_training_reads_the_copy_and_is_the_same_training(
    tmp_path: Path, tiny: tuple[str, str], monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    """A resume tells datasets apart by their content, not by where they are."""
    from hpctrain.training.survival import resume

    model, dataset = tiny
    copy = tmp_path / "local" / "rows"
    shutil.copytree(dataset, copy)
    there = in_process.options(monkeypatch, tmp_path, model, dataset)
    monkeypatch.setenv("HPCTRAIN_DATA", str(copy))
    here = in_process.options(monkeypatch, tmp_path, model, named)
    assert Path(here.train_dataset.cache_files[0]["filename"]).is_relative_to(copy)
    records = [
        resume.record([found.training], found.script.dataset_name, found.splits)["data"]
        for found in (there, here)
    ]
    assert records[0] == records[1]
    assert records[0]["train"] is not None
