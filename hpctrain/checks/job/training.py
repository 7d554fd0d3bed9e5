"""Rules about training and sbatch arguments that are certain to fail.

Sources: the removed fields of SFTConfig were tested with trl 1.16 and transformers 5.23, the effect
of signals on launchers with torch 2.13 and accelerate 1.15.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from hpctrain.checks.job.context import Case, rule
from hpctrain.config import arguments as training_arguments
from hpctrain.config.arguments import Arguments
from hpctrain.finding import Finding
from hpctrain.slurm.notations import signals, units

#: Removed field → its replacement.
REMOVED = {
    "warmup_ratio": "warmup_steps, which takes a fraction too: warmup_steps: 0.1",
    "overwrite_output_dir": "nothing: omit it",
    "evaluation_strategy": "eval_strategy",
    "logging_dir": "nothing: omit it",
    "no_cuda": "use_cpu",
    "group_by_length": "train_sampling_strategy: group_by_length",
    "include_tokens_per_second": "include_num_input_tokens_seen",
    "max_seq_length": "max_length (sft), or max_events (classify)",
    "dataset_batch_size": "nothing: omit it",
    "save_safetensors": "nothing: omit it",
    "fp16_backend": "nothing: omit it",
    "use_mps_device": "nothing: omit it",
    "push_to_hub_token": "environment.secrets: HF_TOKEN",
    "jit_mode_eval": "nothing: omit it",
    "use_ipex": "nothing: omit it",
    "ray_scope": "nothing: omit it",
    "include_inputs_for_metrics": "include_for_metrics: inputs",
}
#: Jobs longer than this should save checkpoints.
_LONG_S = 3600
#: Options of a LoRA adapter, which TRL reads with use_peft only (its get_peft_config).
_ADAPTER = (
    "lora_r",
    "lora_alpha",
    "lora_target_modules",
    "lora_target_parameters",
    "lora_modules_to_save",
    "use_rslora",
    "use_dora",
)


def _written(case: Case) -> Iterator[tuple[str, str | None, str]]:
    """Yield each argument of a built-in training with its value and its origin, including those
    that a study or sweep varies, which have no value.
    """
    arguments, study = Arguments(case.spec), case.spec.study
    for name in arguments.names:
        value = arguments.get(name)
        yield name, value, case.said("training", name, value=value)
    for key in study.keys if study is not None else ():
        yield key.replace("-", "_"), None, case.said("tune", "space", key, value="searched")
    swept = next((path for path in case.origins if path[0] == "sweep"), ("sweep",))
    for key in case.varied:
        yield key.replace("-", "_"), None, case.said(*swept, value=f"{key} varies")


@rule("argument-removed", "argument-unknown", "argument-value")
def _arguments(case: Case) -> Iterator[Finding]:
    """Names and values that the parser refuses: an error only if the environment has the library
    versions of the table, as others may accept more.
    """
    spec, python = case.spec, case.around.python
    known = training_arguments.known(spec.task)
    if spec.template is not None or not Arguments(spec).ours:
        return  # a template may pass arguments to another program
    made_with = " and ".join(f"{name} {of}" for name, of in training_arguments.MADE_WITH.items())
    # Modules may add other versions through PYTHONPATH.
    sure = not spec.modules and spec.container is None and python is not None
    sure = sure and training_arguments.exact((python and python.packages) or {})
    for name, value, evidence in _written(case):
        if name in REMOVED:
            id_, certain, what = "argument-removed", True, f"{name} was removed"
            close = REMOVED[name]
        elif name.isidentifier() and name not in known:
            id_, certain, what = "argument-unknown", sure, f"the training does not accept {name}"
            close = next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)), "")
        elif name in known and value and training_arguments.expected(name, value) is not None:
            id_, certain = "argument-value", sure
            what = f"{name} must be {training_arguments.expected(name, value)}, got {value!r}"
            close = next(
                iter(difflib.get_close_matches(value, training_arguments.choices(name))), ""
            )
        else:
            continue
        yield case.finding(
            id_,
            "error" if certain else "warning",
            what if certain else f"{what}, with {made_with}",
            evidence=evidence,
            reason="the training stops when it parses its arguments",
            fix=(
                f"use instead: {close}"
                if close
                else f"correct or omit {name}; see: python -m hpctrain.training.{spec.task} --help"
            ),
        )


@rule("adapter-not-asked")
def _adapter(case: Case) -> Iterator[Finding]:
    """Adapter options without use_peft: TRL would silently train all weights; hpctrain's training
    stops.
    """
    arguments = Arguments(case.spec)
    keys = case.spec.study.keys if case.spec.study is not None else case.varied
    if not arguments.ours or arguments.incomplete or case.spec.template is not None:
        return
    if arguments.get("use_peft", "evaluate_only") or "use_peft" in keys:
        return
    name = next(filter(arguments.get, _ADAPTER), None)
    if name is not None:
        yield case.finding(
            "adapter-not-asked",
            "error",
            f"{name} configures an adapter, but use_peft is not set",
            evidence=case.said("training", name, value=arguments.get(name)),
            reason="it would train all weights; the training stops when it parses its arguments",
            fix=(
                "use_peft: true under training in config.yaml; or use_peft: false, to train "
                "all weights"
            ),
        )


@rule("no-checkpoints")
def _no_checkpoints(case: Case) -> Iterator[Finding]:
    arguments, time = Arguments(case.spec), case.spec.time_s or 0
    if arguments.ours and arguments.get("save_strategy") == "no" and time > _LONG_S:
        yield case.finding(
            "no-checkpoints",
            "warning",
            f"nothing is saved before the end of a job of {units.format_time(time)}",
            evidence=case.said("training", "save_strategy", value="no"),
            reason="if it reaches its time limit or a node fails, all progress is lost",
            fix="save_strategy: steps and save_steps: 200 under training in config.yaml",
        )


@rule("signal-kills", on="cluster")
def _signal(case: Case) -> Iterator[Finding]:
    """`--signal=USR1@120` reaches the launcher, which dies and leaves its workers running."""
    value = dict(case.spec.sbatch).get("signal")
    asked = signals.parse(value or "")
    if value is None or asked is None or asked.name not in ("USR1", "USR2"):
        return
    of_script = case.spec.launcher == "srun" and not asked.to_batch  # it may handle the signal
    if case.spec.template is not None or of_script:
        return
    who = "the batch shell, which has no trap for it," if asked.to_batch else case.spec.launcher
    yield case.finding(
        "signal-kills",
        "error",
        f"{asked.name} ends {who} {asked.seconds} s before the time limit",
        evidence=case.said("sbatch", "signal", value=value),
        reason="the training gets no signal: it is orphaned, then killed, and nothing is saved",
        fix=(
            f"{case.command(('--sbatch', f'signal=TERM@{asked.seconds}'))}, which the"
            " launchers hand on to the training"
        ),
    )


@rule("tune-no-evaluation")
def _no_evaluation(case: Case) -> Iterator[Finding]:
    study, arguments = case.spec.study, Arguments(case.spec)
    if study is None or not arguments.ours:
        return
    strategy = arguments.get("eval_strategy")
    if strategy in (None, "no") and not arguments.incomplete:
        said = case.said("training", "eval_strategy", value=strategy or "no")
        yield case.finding(
            "tune-no-evaluation",
            "error",
            f"the study {study.name} needs evaluations, but the training runs none",
            evidence=f"{said}; {case.said('tune', 'study', value=study.name)}",
            reason="every trial would fail at its end, because it has no value",
            fix="eval_strategy: steps and eval_steps: 50 under training in config.yaml",
        )
