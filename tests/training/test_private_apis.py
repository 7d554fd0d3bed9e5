"""The internals of libraries that the training relies on are those that it was written for."""

from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import HpctrainError
from hpctrain.training import private_apis

pytestmark = pytest.mark.torch


def test_the_installed_libraries_have_every_signature() -> None:
    private_apis.check(*{name.rpartition(".")[0] for name in private_apis.SIGNATURES})


def test_a_training_refuses_an_override_that_no_longer_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parameter that is missing: the training would fail at its first step, or later."""
    import transformers

    from hpctrain.training.survival.trainer import SurvivorMixin

    class Survivor(SurvivorMixin, transformers.Trainer):  # type: ignore[misc]
        pass

    def run_epoch(self: Any, model: Any, number: Any) -> None:
        del self, model, number

    run_epoch.__module__ = "transformers.trainer"
    monkeypatch.setattr(transformers.Trainer, "_run_epoch", run_epoch)
    monkeypatch.delattr(transformers.Trainer, "_save_scaler")
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(HpctrainError) as caught:
        Survivor(model=None, args=arguments)
    assert transformers.__version__ in caught.value.what
    details = "\n".join(caught.value.details)
    assert "transformers.Trainer._run_epoch is (self, model, number)" in details
    assert "transformers.Trainer._save_scaler is missing" in details


def test_what_another_program_has_replaced_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    step = transformers.Trainer.prediction_step

    def prediction_step(self: Any, *words: Any) -> Any:
        return step(self, *words)

    monkeypatch.setattr(transformers.Trainer, "prediction_step", prediction_step)
    private_apis.check("transformers.Trainer")
