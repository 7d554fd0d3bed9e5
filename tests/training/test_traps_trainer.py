"""Silent traps that show in a Trainer that was built: each on a real one that has it, and on one
that just has not.
"""

from pathlib import Path
from typing import Any

import in_process
import pytest

from hpctrain.errors import UsageError
from hpctrain.training.preflight import rules

pytest.importorskip("trl")
pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def built(tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    count = iter(range(100))

    def start(model: object = tiny[0], dataset: object = tiny[1], **values: Any) -> tuple[Any, Any]:
        options = in_process.options(
            monkeypatch, tmp_path / str(next(count)), model, dataset, **{"max_length": 32, **values}
        )
        return in_process.trainer(options), options

    return start


def dataset(folder: Path, rows: list[list[int]], **columns: Any) -> str:
    import datasets

    datasets.DatasetDict(
        {"train": datasets.Dataset.from_dict({"input_ids": rows, **columns})}
    ).save_to_disk(str(folder))
    return str(folder)


def said(built: tuple[Any, Any]) -> str:
    warnings = rules.check_trainer(*built)
    assert all(each.fix for each in warnings)
    return "; ".join(each.what for each in warnings)


def test_an_ordinary_training_has_none(built: Any, tmp_path: Path) -> None:
    assert said(built(dataset=dataset(tmp_path / "d", [[1, 2, 3, 61]] * 8))) == ""


def test_models_that_cannot_keep_examples_apart(built: Any, tmp_path: Path) -> None:
    """Bloom has no positions: it tells them by distance alone."""
    from tokenizers import Tokenizer, models
    from transformers import BloomConfig, BloomForCausalLM, PreTrainedTokenizerFast

    bloom = tmp_path / "bloom"
    BloomForCausalLM(
        BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)
    ).save_pretrained(bloom)
    words = {f"w{number}": number for number in range(61)} | {"<pad>": 61, "</s>": 62, "<unk>": 63}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>"
    ).save_pretrained(bloom)
    assert "position_ids" not in said(built(model=bloom))
    with pytest.raises(UsageError, match="takes no position_ids"):
        built(model=bloom, packing="true")
    assert "position_ids" not in said(built(packing="true"))
