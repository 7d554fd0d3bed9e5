"""A dataset that `hpctrain prepare` made is trained on as it is, by the model that it was made for."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
import in_process
import pytest

from hpctrain.data import manifest as manifests
from hpctrain.errors import UsageError
from hpctrain.training.preflight import rules

pytestmark = [pytest.mark.torch, pytest.mark.slow]

Made = Callable[..., Path]


@pytest.fixture(scope="module")
def made(tiny: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Made:
    from hpctrain.data.pipeline import prepare
    from hpctrain.data.request import PrepareRequest

    folder = tmp_path_factory.mktemp("prepared")
    draw = random.Random(0)
    lines = [
        {
            "prompt": " ".join(f"w{draw.randrange(60)}" for _ in range(draw.randrange(2, 6))) + " ",
            "completion": " ".join(f"w{draw.randrange(60)}" for _ in range(draw.randrange(2, 12))),
        }
        for _ in range(40)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def start(name: str, **more: Any) -> Path:
        request = PrepareRequest(
            paths=(folder / "data.jsonl",),
            target=folder / name,
            tokenizer=Path(tiny[0]),
            workers=1,
            **more,
        )
        if not request.target.exists():
            prepare(request, progress=lambda *_: None)
        return request.target

    return start


def refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path, model: object, dataset: object, **values: Any
) -> str:
    with pytest.raises(UsageError) as caught:
        in_process.options(monkeypatch, folder, model, dataset, **values)
    return caught.value.render()


def test_unpacked_rows_are_not_cut_and_are_grouped_by_length(
    made: Made,
    tiny: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = made("plain", max_length=64)
    options = in_process.options(monkeypatch, tmp_path, tiny[0], folder)
    assert rules.read_manifest(options.script.dataset_name) == manifests.read_manifest(folder)
    assert (options.training.max_length, options.training.train_sampling_strategy) == (
        None,
        "group_by_length",
    )
    built = in_process.trainer(options)
    assert built.train_dataset["input_ids"] == options.train_dataset["input_ids"]
    assert built.train_dataset["labels"] == options.train_dataset["labels"]
    assert in_process.losses(built)
    assert "warning" not in capsys.readouterr().out


def test_what_somebody_asks_for_is_done(
    made: Made, tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made("plain", max_length=64)
    options = in_process.options(
        monkeypatch, tmp_path, tiny[0], folder, max_length=8, train_sampling_strategy="random"
    )
    built = in_process.trainer(options)
    assert max(map(len, built.train_dataset["input_ids"])) == 8
    assert options.training.train_sampling_strategy == "random"


def test_packed_rows_are_padding_free(
    made: Made,
    tiny: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = made("packed", max_length=48, pack=True)
    options = in_process.options(
        monkeypatch, tmp_path, tiny[0], folder, per_device_train_batch_size=2
    )
    assert (
        options.training.padding_free,
        options.training.max_length,
        options.training.packing,
    ) == (True, None, False)
    built = in_process.trainer(options)
    batch = next(iter(built.get_train_dataloader()))
    assert "attention_mask" not in batch
    starts = int((batch["position_ids"] == 0).sum())
    assert starts > 2  # more examples than rows
    assert in_process.losses(built)
    in_process.trainer(
        in_process.options(
            monkeypatch, tmp_path / "one", tiny[0], folder, per_device_train_batch_size=1
        )
    )
    assert "annihilate" not in caplog.text


@pytest.mark.parametrize(("asked_rows", "taken"), [(None, 2), (8, 8)])
def test_long_packed_rows_are_fewer_to_a_pass_as_fit_counts_them(  # noqa: PLR0917
    made: Made,
    tiny: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked_rows: int | None,
    taken: int,
) -> None:
    from hpctrain.fit import training_options

    folder = tmp_path / "long"
    shutil.copytree(made("packed", max_length=48, pack=True), folder)
    manifest = replace(manifests.read_manifest(folder), max_length=4096)  # type: ignore[type-var]
    (folder / manifests.NAME).write_text(manifest.to_json())
    options = in_process.options(
        monkeypatch, tmp_path, tiny[0], folder, per_device_train_batch_size=asked_rows
    )
    assert options.training.per_device_train_batch_size == taken
    assert (
        options.training.per_device_eval_batch_size == 2 == training_options.rows_unasked(manifest)
    )


@pytest.mark.parametrize("asked", [None, "validation", "test"])
def test_validation_is_evaluated_where_nobody_named_a_split(
    made: Made,
    tiny: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: str | None,
) -> None:
    """A dataset of `hpctrain prepare` has no `test`, TRL's default; somebody who asks for it by
    name is told so.
    """
    folder = made("held", max_length=48, validation=10)
    if asked == "test":
        said = refused(
            monkeypatch, tmp_path, tiny[0], folder, eval_strategy="epoch", dataset_test_split=asked
        )
        assert "has no split 'test'; it has train, validation" in said
        return
    options = in_process.options(
        monkeypatch, tmp_path, tiny[0], folder, eval_strategy="epoch", dataset_test_split=asked
    )
    assert options.script.dataset_test_split == "validation"
    assert options.splits == ["train", "validation"]
    assert len(options.eval_dataset) == 10


def test_another_models_tokens_are_refused(
    made: Made, tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny[0], other)
    content = json.loads((other / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["w0"], words["w1"] = words["w1"], words["w0"]
    (other / "tokenizer.json").write_text(json.dumps(content))
    said = refused(monkeypatch, tmp_path, other, made("plain", max_length=64))
    assert "was prepared with another tokenizer (" in said
    assert f"hint: run: hpctrain prepare --model {other} ..." in said


def test_options_that_prepare_a_second_time_are_refused(
    made: Made, tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = made("packed", max_length=48, pack=True)
    said = refused(
        monkeypatch,
        tmp_path,
        tiny[0],
        packed,
        packing="true",
        max_length=20,
        padding_free="false",
    )
    for what in (
        "is packed already",
        "cut, they lose examples",
        "lets its examples attend to each other",
    ):
        assert what in said, said


def test_a_mask_that_leaves_nothing_is_refused(
    made: Made, tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    rows = [[1, 2, 3]] * 4
    data = datasets.Dataset.from_dict({"input_ids": rows, "labels": [[-100] * 3] * 4})
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "masked"))
    assert "all labels are -100" in refused(monkeypatch, tmp_path, tiny[0], tmp_path / "masked")
    data = datasets.Dataset.from_dict({"input_ids": [[1, 2, 64]] * 4})
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "beyond"))
    assert "the token id 64, and the model's embedding ends at 63" in refused(
        monkeypatch, tmp_path, tiny[0], tmp_path / "beyond"
    )


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
