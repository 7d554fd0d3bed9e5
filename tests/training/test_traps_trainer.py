"""Silent traps that show in a Trainer that was built: each on a real one that has it, and on one that just has not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import in_process
import pytest

pytest.importorskip("trl")
pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def built(tiny: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that builds a Trainer, and what its rules look at."""
    from hpctrain.training import traps

    count = iter(range(100))

    def start(model: object = tiny[0], dataset: object = tiny[1], **values: Any) -> traps.Built:
        options = in_process.options(monkeypatch, tmp_path / str(next(count)), model, dataset, **{"max_length": 32, **values})
        trainer = in_process.trainer(options)
        asked = traps.everything(options)
        return traps.Built(
            trainer=trainer,
            options=SimpleNamespace(**vars(asked), train_dataset=options.train_dataset),
            rows=traps._rows(asked, options.train_dataset),
        )

    return start


def dataset(folder: Path, rows: list[list[int]], **columns: Any) -> str:
    import datasets

    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"input_ids": rows, **columns})}).save_to_disk(str(folder))
    return str(folder)


def silent(rule: str, built: Any) -> bool:
    from hpctrain.training import traps

    return getattr(traps, rule)(built) is None


def speaks(rule: str, built: Any, word: str) -> bool:
    from hpctrain.training import traps

    found = getattr(traps, rule)(built)
    return found is not None and word in found.what and bool(found.fix)


def test_every_rule_of_a_trainer_has_a_test_here() -> None:
    from hpctrain.training import traps

    text = Path(__file__).read_text()
    for rule in (*traps.ERRORS, *traps.WARNINGS):
        assert f'speaks("{rule.__name__}"' in text
        assert f'silent("{rule.__name__}"' in text


def test_an_ordinary_training_has_none(built: Any, tmp_path: Path) -> None:
    from hpctrain.training import traps

    ordinary = built(dataset=dataset(tmp_path / "d", [[1, 2, 3, 61]] * 8))
    assert [rule.__name__ for rule in (*traps.ERRORS, *traps.WARNINGS) if rule(ordinary) is not None] == []


def test_eager_attention(built: Any) -> None:
    asked = built(attn_implementation="eager")
    assert silent("eager_by_accident", asked)
    asked.options.attn_implementation = None
    assert speaks("eager_by_accident", asked, "eagerly")


def test_nothing_to_train(built: Any) -> None:
    found = built()
    assert silent("nothing_trainable", found)
    found.trainer.model.requires_grad_(False)
    assert speaks("nothing_trainable", found, "no parameter")


def test_packing_that_packed_nothing(built: Any, tmp_path: Path) -> None:
    found = built(packing="true")
    assert silent("packed_nothing", found)
    found.trainer.train_dataset = found.trainer.train_dataset.remove_columns("seq_lengths")
    assert speaks("packed_nothing", found, "packed nothing")
    assert silent("packed_nothing", built(packing="true", packing_strategy="wrapped"))


def test_a_tokenizer_that_is_larger_than_the_model(tiny: tuple[str, str], built: Any, tmp_path: Path) -> None:
    """The model has 64 rows, and the tokenizer has 63 tokens before others are added."""
    from transformers import AutoTokenizer

    found = built()
    assert silent("tokenizer_larger", found)
    assert silent("pad_beyond", found)
    grown = tmp_path / "grown"
    shutil.copytree(tiny[0], grown)
    tokenizer = AutoTokenizer.from_pretrained(grown)
    tokenizer.add_tokens(["<a>", "<b>", "<c>"])
    tokenizer.pad_token = "<c>"
    tokenizer.save_pretrained(grown)
    from hpctrain.errors import UsageError

    with pytest.raises(UsageError, match="the pad token's id is 65, and the model's embedding ends at 63"):
        built(model=grown)
    tokenizer.pad_token = "<pad>"
    tokenizer.save_pretrained(grown)
    found = built(model=grown)
    assert speaks("tokenizer_larger", found, "66 tokens and the model's embedding 64 rows")
    found.trainer.processing_class.pad_token = "<b>"
    assert speaks("pad_beyond", found, "ends at 63")


def test_models_that_cannot_keep_examples_apart(built: Any, tmp_path: Path) -> None:
    """Bloom has no positions: it tells them by distance alone."""
    from tokenizers import Tokenizer, models
    from transformers import BloomConfig, BloomForCausalLM, PreTrainedTokenizerFast

    bloom = tmp_path / "bloom"
    BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)).save_pretrained(bloom)
    words = {f"w{number}": number for number in range(61)} | {"<pad>": 61, "</s>": 62, "<unk>": 63}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="</s>").save_pretrained(bloom)
    assert silent("not_apart", built(model=bloom))
    from hpctrain.errors import UsageError

    with pytest.raises(UsageError, match="takes no position_ids"):
        built(model=bloom, packing="true")
    llama = built(packing="true")
    assert silent("not_apart", llama)
    assert silent("foreign_code", llama)
    assert silent("state_carried", llama)
    llama.trainer.model.config.layer_types = ["full_attention", "linear_attention"]
    assert speaks("state_carried", llama, "linear_attention")
    llama.trainer.model.__class__ = type("Nobodys", (type(llama.trainer.model),), {"__module__": "nobodys"})
    assert speaks("foreign_code", llama, "own code")
    loose = built(model=bloom)
    loose.trainer.padding_free = True
    assert speaks("not_apart", loose, "takes no position_ids")


def test_chat_tokens_that_were_never_trained(tiny: tuple[str, str], built: Any, tmp_path: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    base = tmp_path / "base"
    shutil.copytree(tiny[0], base)
    model = LlamaForCausalLM.from_pretrained(base)
    with torch.no_grad():
        model.get_input_embeddings().weight[61] = 0
    model.save_pretrained(base)
    chat, plain = dataset(tmp_path / "chat", [[1, 2, 61]] * 8), dataset(tmp_path / "plain", [[1, 2, 3]] * 8)
    lora = {"use_peft": "true", "lora_r": 2, "lora_target_modules": ["q_proj"]}
    assert speaks("untrained_tokens", built(model=base, dataset=chat, **lora), "</s>")
    assert silent("untrained_tokens", built(model=base, dataset=plain, **lora))
    assert silent("untrained_tokens", built(model=base, dataset=chat))
    assert silent("untrained_tokens", built(dataset=chat, **lora))
    assert silent("untrained_tokens", built(model=base, dataset=chat, lora_modules_to_save=["embed_tokens"], **lora))
    with torch.no_grad():
        model.get_input_embeddings().weight[61] = model.get_input_embeddings().weight[62]
    model.save_pretrained(base)
    both = dataset(tmp_path / "both", [[1, 62, 61]] * 8)
    assert speaks("untrained_tokens", built(model=base, dataset=both, **lora), "untrained")


def test_rows_that_are_left_out(built: Any, tmp_path: Path) -> None:
    rows, masked = [[1] * 12, [2] * 12], [[-100] * 10 + [1] * 2, [-100] * 4 + [2] * 8]
    found = built(dataset=dataset(tmp_path / "d", rows * 4, labels=masked * 4), max_length=8)
    assert speaks("rows_dropped", found, "4 of 8 rows")
    assert silent("rows_dropped", built(dataset=dataset(tmp_path / "e", rows * 4, labels=masked * 4), max_length=12))


def test_fewer_rows_than_a_step_takes(built: Any, tmp_path: Path) -> None:
    data = dataset(tmp_path / "d", [[1, 2, 3]] * 8)
    assert speaks("less_than_a_step", built(dataset=data, per_device_train_batch_size=9), "8 rows, and a step takes 9")
    assert silent("less_than_a_step", built(dataset=data, per_device_train_batch_size=8))


def test_warnings_are_said_with_their_fix_and_errors_stop_it(built: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built(
        dataset=dataset(tmp_path / "d", [[1, 2, 3, 61]] * 4), per_device_train_batch_size=8, logging_nan_inf_filter="true"
    ).trainer.notes.say()
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines() if line.startswith("[train]"))
    words = " ".join(line.removeprefix("[train]").strip() for line in out.splitlines())
    assert "warning: an epoch has 4 rows, and a step takes 8 fix: --per_device_train_batch_size" in words
    assert "warning: --logging_nan_inf_filter true logs a loss that is NaN as 0.0 fix: leave" in words


def test_a_config_json_that_says_nothing(tiny: tuple[str, str], built: Any, tmp_path: Path) -> None:
    """Facts that are unknown are no traps: without vocabulary and end in config.json nothing is said of them."""
    from hpctrain.training import traps

    bare = tmp_path / "bare"
    shutil.copytree(tiny[0], bare)
    (bare / "generation_config.json").unlink(missing_ok=True)
    content = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps({name: content[name] for name in content if name not in ("eos_token_id", "vocab_size")}))
    assert traps._ends(str(bare)) == frozenset()
