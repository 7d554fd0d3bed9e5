"""The default loss is worked out in pieces: at no time does a training hold the logits of all its
tokens.
"""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
import in_process

pytestmark = [pytest.mark.torch, pytest.mark.slow]

#: Three times as many as TRL takes at once on the CPU (32768); a weight has fewer elements than the
#: logits have.
VOCABULARY = 100_003
ROWS, LENGTH = 4, 16


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    import datasets
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from hpctrain.training.demo import train_tokenizer

    model, data = tmp_path / "model", tmp_path / "data"
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    }
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, head_dim=16, **sizes)).save_pretrained(
        model
    )
    train_tokenizer(["a few words of text"]).save_pretrained(model)
    rows = [[(7 * row + column) % 200 for column in range(LENGTH)] for row in range(ROWS)]
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"input_ids": rows})}).save_to_disk(
        str(data)
    )
    return model, data


def largest(built: Any) -> tuple[int, float]:
    """Train one step, and return the number of elements of the largest tensor that was made, and
    the loss.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Largest(TorchDispatchMode):
        found = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            sizes = [leaf.numel() for leaf in tree_leaves(out) if hasattr(leaf, "numel")]
            self.found = max([self.found, *sizes])
            return out

    with Largest() as mode:
        losses = in_process.losses(built)
    return mode.found, losses[0]


def test_no_tensor_is_as_large_as_the_logits(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = made

    def trained(name: str, **values: Any) -> tuple[int, float]:
        found = in_process.options(
            monkeypatch, tmp_path / name, model, data, max_steps=1, max_length=LENGTH, **values
        )
        return largest(in_process.trainer(found))

    ours, loss = trained("ours")
    full, same = trained("full", label_smoothing_factor=1e-9)  # which needs them
    assert full >= ROWS * LENGTH * VOCABULARY
    assert ours < ROWS * LENGTH * VOCABULARY
    assert loss == pytest.approx(same, abs=1e-4)
