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
    "warmup_ratio": "warmup_steps, which takes a share too: warmup_steps: 0.1",
    "overwrite_output_dir": "nothing: omit it",
    "evaluation_strategy": "eval_strategy",
    "logging_dir": "nothing: omit it",
    "no_cuda": "use_cpu",
    "group_by_length": "train_sampling_strategy: group_by_length",
    "include_tokens_per_second": "include_num_input_tokens_seen",
    "max_seq_length": "max_length",
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


def _written(case: Case) -> Iterator[tuple[str, str]]:
    """Yield each argument of a built-in training with its origin, including those that a study or
    sweep varies.
    """
    arguments, study = Arguments(case.spec), case.spec.study
    if not arguments.ours:
        return
    for name in arguments.names:
        yield name, case.said("training", name, value=arguments.get(name))
    for key in study.keys if study is not None else ():
        yield key.replace("-", "_"), case.said("tune", "space", key, value="searched")
    swept = next((path for path in case.origins if path[0] == "sweep"), ("sweep",))
    for key in case.varied:
        yield key.replace("-", "_"), case.said(*swept, value=f"{key} varies")


@rule("argument-removed")
def _removed(case: Case) -> Iterator[Finding]:
    for name, evidence in _written(case):
        if name in REMOVED:
            instead = (
                "max_events"
                if name == "max_seq_length" and not Arguments(case.spec).sft
                else REMOVED[name]
            )
            yield case.finding(
                "argument-removed",
                "error",
                f"the training no longer accepts {name}",
                evidence=evidence,
                reason=(
                    "transformers 5 removed it; the training stops when it parses its arguments"
                ),
                fix=f"use instead: {instead}",
            )


@rule("argument-unknown")
def _unknown(case: Case) -> Iterator[Finding]:
    """Arguments that the parser refuses: an error only if the environment has the library versions
    of the table, as others may have more options.
    """
    known, sure = training_arguments.known(case.spec.task), _sure(case)
    if case.spec.template is not None:  # a template may pass arguments to another program
        return
    for name, evidence in _written(case):
        if not name.isidentifier() or name in known or name in REMOVED:
            continue
        close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
        yield case.finding(
            "argument-unknown",
            "error" if sure else "warning",
            f"the training does not accept {name}" + ("" if sure else _made_with()),
            evidence=evidence,
            reason="the training stops when it parses its arguments: unknown option"
            + ("" if sure else ", unless its libraries accept more"),
            fix=(
                f"use instead: {close[0]}"
                if close
                else f"omit it; see: python -m hpctrain.training.{case.spec.task} --help"
            ),
        )


def _sure(case: Case) -> bool:
    """Whether the job's environment has the library versions of the table; modules may add others
    through PYTHONPATH.
    """
    python = case.around.python
    alone = not case.spec.modules and case.spec.container is None
    return alone and python is not None and training_arguments.exact(python.distributions)


def _made_with() -> str:
    return " with " + " and ".join(
        f"{name} {version}" for name, version in training_arguments.MADE_WITH.items()
    )


@rule("argument-value")
def _values(case: Case) -> Iterator[Finding]:
    """Values that the parser refuses: text instead of a number, or a value that the option does not
    allow.
    """
    arguments = Arguments(case.spec)
    for name in arguments.names if arguments.ours and case.spec.template is None else ():
        value = arguments.get(name) or ""
        expected = training_arguments.expected(name, value)
        if expected is None or name not in training_arguments.known(case.spec.task):
            continue
        sure, close = (
            _sure(case),
            difflib.get_close_matches(value, training_arguments.choices(name), n=1),
        )
        yield case.finding(
            "argument-value",
            "error" if sure else "warning",
            f"{name} must be {expected}, got {value!r}" + ("" if sure else _made_with()),
            evidence=case.said("training", name, value=value),
            reason="the training stops when it parses its arguments",
            fix=(f"use instead: {name}: {close[0]}" if close else f"correct {name}, or omit it"),
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
    for name in filter(arguments.get, _ADAPTER):
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
        return


@rule("no-checkpoints")
def _no_checkpoints(case: Case) -> Iterator[Finding]:
    arguments, time = Arguments(case.spec), case.spec.time_s
    if (
        arguments.get("save_strategy") != "no"
        or not arguments.ours
        or time is None
        or time <= _LONG_S
    ):
        return
    yield case.finding(
        "no-checkpoints",
        "warning",
        f"nothing is saved before the end of a job of {units.format_time(time)}",
        evidence=(
            f"{case.said('training', 'save_strategy', value='no')};"
            f" {case.said('resources', 'time', value=units.format_time(time))}"
        ),
        reason="if it reaches its time limit or a node fails, all progress is lost",
        fix="save_strategy: steps and save_steps: 200 under training in config.yaml",
    )


@rule("signal-kills", on="cluster")
def _signal(case: Case) -> Iterator[Finding]:
    """`--signal=USR1@120` reaches the launcher, which dies and leaves its workers running."""
    value = dict(case.spec.sbatch).get("signal")
    if value is None or case.spec.template is not None:
        return
    asked = signals.parse(value)
    if asked is None or asked.name not in ("USR1", "USR2"):
        return
    if case.spec.launcher == "srun" and not asked.to_batch:
        return  # a custom script may handle it
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
