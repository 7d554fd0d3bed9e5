"""Arguments of the training, and of sbatch, that are certain to go wrong.

Sources: the removed fields of SFTConfig are those of trl 1.16 with transformers 5.23, tried; what signals do to the launchers was tried
with torch 2.13 and accelerate 1.15.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from hpctrain.jobs.arguments import Arguments
from hpctrain.jobs.check import known_arguments
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.finding import Finding
from hpctrain.scheduler.parse import duration

#: Removed field → what took its place.
REMOVED = {
    "warmup_ratio": "warmup_steps, which takes a share too: warmup_steps: 0.1", "overwrite_output_dir": "nothing: leave it out",
    "evaluation_strategy": "eval_strategy", "logging_dir": "nothing: leave it out", "no_cuda": "use_cpu",
    "group_by_length": "train_sampling_strategy: group_by_length", "include_tokens_per_second": "include_num_input_tokens_seen",
    "max_seq_length": "max_length", "dataset_batch_size": "nothing: leave it out", "save_safetensors": "nothing: leave it out",
    "fp16_backend": "nothing: leave it out", "use_mps_device": "nothing: leave it out",
    "push_to_hub_token": "environment.secrets: HF_TOKEN",
    "jit_mode_eval": "nothing: leave it out", "use_ipex": "nothing: leave it out", "ray_scope": "nothing: leave it out",
    "include_inputs_for_metrics": "include_for_metrics: inputs",
}  # fmt: skip
#: A job longer than this that saves nothing loses more than a coffee break.
_LONG_S = 3600
#: Options of a LoRA adapter, which TRL reads with use_peft only (its get_peft_config).
_ADAPTER = (
    "lora_r", "lora_alpha", "lora_target_modules", "lora_target_parameters", "lora_modules_to_save", "use_rslora", "use_dora",
)  # fmt: skip
_FATAL = ("USR1", "USR2", "SIGUSR1", "SIGUSR2", "10", "12")


def rules(case: Case) -> Iterator[Finding]:
    """Return what is wrong with the arguments of the training."""
    yield from _removed(case)
    yield from _unknown(case)
    yield from _adapter(case)
    yield from _no_checkpoints(case)
    if not case.local:
        yield from _signal(case)


def _removed(case: Case) -> Iterator[Finding]:
    arguments = Arguments(case.spec)
    for name in arguments.names if arguments.ours else ():
        if name in REMOVED:
            instead = "max_events" if name == "max_seq_length" and not arguments.sft else REMOVED[name]
            yield case.finding(
                "argument-removed", "error", f"the training knows no {name} any more",
                evidence=case.said("training", name, value=arguments.get(name)),
                reason="transformers 5 removed it, and the training stops when it reads its arguments",
                fix=f"in its place: {instead}",
            )  # fmt: skip


def _unknown(case: Case) -> Iterator[Finding]:
    arguments = Arguments(case.spec)
    for name in arguments.names if arguments.ours else ():
        if name.isidentifier():
            yield from unknown(case, name, evidence=case.said("training", name, value=arguments.get(name)))


def unknown(case: Case, name: str, *, evidence: str) -> Iterator[Finding]:
    """What the parser would refuse: an error where the environment has the libraries that the table is of, as others may know more.

    Args:
        case: a job of a training that hpctrain ships.
        name: of an argument, with underscores.
        evidence: where it was written.
    """
    known = known_arguments.known(case.spec.task)
    if name in known or name in REMOVED or case.spec.template is not None:  # a template of one's own may give it to something else
        return
    made_with = " and ".join(f"{name} {version}" for name, version in known_arguments.MADE_WITH.items())
    python = case.around.python  # modules may bring other releases through PYTHONPATH
    alone = python is not None and not case.spec.modules and case.spec.container is None
    sure = alone and python is not None and known_arguments.exact(python.distributions)
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    yield case.finding(
        "argument-unknown", "error" if sure else "warning", f"the training knows no {name}" + ("" if sure else f" with {made_with}"),
        evidence=evidence,
        reason="the training stops when it reads its arguments: unknown option" + ("" if sure else ", unless its libraries know more"),
        fix=f"in its place: {close[0]}" if close else f"leave it out; see: python -m hpctrain.training.{case.spec.task} --help",
    )  # fmt: skip


def _adapter(case: Case) -> Iterator[Finding]:
    """An adapter's options, and none is asked for: TRL would train all weights without a word; our training stops."""
    arguments, study = Arguments(case.spec), case.spec.study
    if not arguments.ours or arguments.incomplete or case.spec.template is not None or arguments.get("use_peft", "evaluate_only"):
        return
    searched = {key.replace("-", "_"): key for key in study.keys} if study is not None else {}
    if "use_peft" in searched or any(path[0] == "sweep" for path in case.origins):  # the points of a sweep may ask for one
        return
    for name in _ADAPTER:
        if name in searched:
            evidence = case.said("tune", "space", searched[name], value="searched")
        elif (value := arguments.get(name)) is not None:
            evidence = case.said("training", name, value=value)
        else:
            continue
        yield case.finding(
            "adapter-not-asked", "error", f"{name} describes an adapter, and the training has none without use_peft",
            evidence=evidence, reason="all weights would be trained; the training stops when it reads its arguments",
            fix="use_peft: true under training in config.yaml; or use_peft: false, to train all weights knowingly",
        )  # fmt: skip
        return


def _no_checkpoints(case: Case) -> Iterator[Finding]:
    arguments, time = Arguments(case.spec), case.spec.time_s
    if arguments.get("save_strategy") != "no" or not arguments.ours or time is None or time <= _LONG_S:
        return
    yield case.finding(
        "no-checkpoints", "warning", f"nothing is saved before the end of a job of {duration.format(time)}",
        evidence=f"{case.said('training', 'save_strategy', value='no')}; {case.said('resources', 'time', value=duration.format(time))}",
        reason="if the time does not suffice, or a node fails, all of it is lost",
        fix="save_strategy: steps and save_steps: 200 under training in config.yaml",
    )  # fmt: skip


def _signal(case: Case) -> Iterator[Finding]:
    """`--signal=USR1@120` reaches the launcher itself, which dies of it and leaves its workers behind."""
    value = dict(case.spec.sbatch).get("signal")
    if value is None or case.spec.template is not None:
        return
    name, _, seconds = value.partition("@")
    batch, name = name.startswith(("B:", "b:")), name.rpartition(":")[2].upper()
    if name not in _FATAL or (case.spec.launcher == "srun" and not batch):
        return  # one's own script may handle it
    who = "the batch shell, which has no trap for it," if batch else case.spec.launcher
    yield case.finding(
        "signal-kills", "error", f"{name} ends {who} {seconds or '60'} s before the time is up",
        evidence=case.said("sbatch", "signal", value=value),
        reason="the training is not told: it is orphaned, then killed, and nothing is saved",
        fix=f"{case.command(('--sbatch', 'signal=TERM@' + (seconds or '120')))}, which the launchers hand on to the training",
    )  # fmt: skip
