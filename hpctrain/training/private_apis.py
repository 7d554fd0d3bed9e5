"""Private APIs of transformers and TRL that hpctrain overrides, calls or replaces, each with the
signature that the code was written for. They may change without notice.

`check` compares them when a training starts, because a mismatch could save or resume incorrectly,
or fail hours later. After an upgrade, read the changed function, adapt the code that overrides it,
and update the signature here.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import pydoc

from hpctrain.errors import HpctrainError
from hpctrain.util import installed

#: Function → parameters and defaults, without types. For a class, those of its `__init__`.
SIGNATURES = {
    # survival/trainer.py overrides these of the training loop,
    "transformers.Trainer._run_epoch": (
        "(self, model, epoch, train_dataloader, steps_in_epoch, num_update_steps_per_epoch, trial,"
        " ignore_keys_for_eval, start_time, resume_from_checkpoint, epochs_trained,"
        " steps_trained_in_current_epoch)"
    ),
    "transformers.Trainer._maybe_log_save_evaluate": (
        "(self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time,"
        " learning_rate=None)"
    ),
    "transformers.Trainer._evaluate": "(self, trial, ignore_keys_for_eval, skip_scheduler=False)",
    "transformers.Trainer._finalize_training": "(self, trial, num_train_samples, start_time)",
    "transformers.Trainer._init_training_state": (
        "(self, max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint,"
        " trial)"
    ),
    "transformers.Trainer.prediction_step": (
        "(self, model, inputs, prediction_loss_only, ignore_keys=None)"
    ),
    "transformers.Trainer._get_dataloader": (
        "(self, dataset, description, batch_size, sampler_fn=None, is_training=False,"
        " dataloader_key=None)"
    ),
    "transformers.Trainer._get_train_sampler": "(self, train_dataset=None)",
    # these of saving,
    "transformers.Trainer._save_checkpoint": "(self, model, trial)",
    "transformers.Trainer._get_output_dir": "(self, trial)",
    "transformers.Trainer.save_model": "(self, output_dir=None, _internal_call=False)",
    "transformers.Trainer._save": "(self, output_dir=None, state_dict=None)",
    "transformers.Trainer._save_optimizer_and_scheduler": "(self, output_dir)",
    "transformers.Trainer._save_scaler": "(self, output_dir)",
    "transformers.Trainer._save_rng_state": "(self, output_dir)",
    # and these of a resume.
    "transformers.Trainer._load_callback_state": "(self)",
    "transformers.Trainer._load_rng_state": "(self, checkpoint)",
    # survival/sft_trainer.py
    "trl.SFTTrainer._save_checkpoint": "(self, model, trial)",
    "trl.SFTTrainer.prediction_step": (
        "(self, model, inputs, prediction_loss_only, ignore_keys=None)"
    ),
}
#: Instance attributes, which `check` cannot see; the tests of the training read all of them.
#: Trainer: _tr_loss, _total_loss_scalar, _globalstep_last_logged, _initial_global_step,
#: current_flos. TRL: _metrics, _stored_metrics, _total_train_tokens. datasets: Dataset._indices.
#: optuna: FrozenTrial._trial_id.


def check(*classes: str) -> None:
    """Compare the signatures of these classes or modules with the installed ones, except functions
    that another program has replaced.

    Raises:
        HpctrainError: one differs.
    """
    changed = [
        (name, expected, found)
        for name, expected in SIGNATURES.items()
        if name.rpartition(".")[0] in classes and (found := _signature(name)) != expected
    ]
    if not changed:
        return
    library = changed[0][0].partition(".")[0]
    raise HpctrainError(
        f"{library} {importlib.metadata.version(library)} has internals that this hpctrain was not"
        " written for",
        details=tuple(
            line
            for name, expected, found in changed
            for line in (f"{name} is {found}", f"  expected {expected}")
        ),
        fix=installed.command("train"),
    )


def _signature(name: str) -> str:
    function = pydoc.locate(name)
    if not callable(function):
        return "missing"
    library = name.partition(".")[0]
    if (getattr(function, "__module__", None) or library).partition(".")[0] != library:
        return SIGNATURES[name]
    signature = inspect.signature(function)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
