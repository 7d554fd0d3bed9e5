"""The model, the dataset, the script, the accelerate config and the hooks: there, whole, and of the right kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.jobs import shell
from hpctrain.jobs.arguments import Arguments
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.check.surroundings import DatasetFacts, ModelFacts, PathFacts
from hpctrain.jobs.finding import Finding, Level

#: `owner/name`, as models and datasets are called on the hub.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+\Z")
#: Of files that `hpctrain prepare` reads.
_ENDINGS = re.compile(r"\.(?:jsonl?|csv|tsv|parquet|arrow|txt)(?:\.(?:gz|zst|xz|bz2))?\Z", re.IGNORECASE)
_KINDS = {"shell": "a shell script", "binary": "no text", "notebook": "a notebook", "other": "no Python file"}


def rules(case: Case) -> Iterator[Finding]:
    """Return what is wrong with the files that the training reads."""
    for rule in (_model, _dataset, _tokenizer, _script, _accelerate, _hooks):
        yield from rule(case)


def is_hub_name(where: PathFacts) -> bool:
    """Whether a path that does not exist is rather the name of something on the hub."""
    return not where.exists and bool(_HUB_NAME.match(where.said))


def _model(case: Case) -> Iterator[Finding]:
    arguments, model = Arguments(case.spec), case.around.model
    if model is None:
        if arguments.ours and not arguments.incomplete and arguments.get("model_name_or_path") is None:
            yield _not_named(case, "model", "--model_name_or_path", "models/my_model")
        return
    yield from _folder(case, "model", "model_name_or_path", model, arguments)


def _dataset(case: Case) -> Iterator[Finding]:
    arguments, dataset = Arguments(case.spec), case.around.dataset
    if dataset is None:
        if arguments.ours and not arguments.incomplete and arguments.get("dataset_name") is None:
            yield _not_named(case, "dataset", "--dataset_name", "data/my_dataset")
        return
    yield from _folder(case, "dataset", "dataset_name", dataset, arguments)


def _tokenizer(case: Case) -> Iterator[Finding]:
    """A dataset holds the numbers of the tokenizer that made it: to another model they are other words."""
    model, dataset = case.around.model, case.around.dataset
    if model is None or dataset is None or model.tokenizer is None or dataset.tokenizer is None or dataset.tokenizer == model.tokenizer:
        return
    made_with = dataset.tokenizer_name or "another model"
    again = f"hpctrain prepare DATA --model {shell.quote(model.where.said)} --to FOLDER"
    yield case.finding(
        "dataset-tokenizer", "error", f"the dataset {dataset.where.said} was tokenised for another model than {model.where.said}",
        evidence=f"its manifest names the tokenizer of {made_with} ({dataset.tokenizer[:12]}); the model's is another "
        f"({model.tokenizer[:12]})",
        reason="the model would read other words than were written: it trains without an error, and learns nothing",
        fix=f"{again}; or train the model that it was made for",
    )  # fmt: skip


def _not_named(case: Case, what: str, option: str, example: str) -> Finding:
    command = case.command() + ("" if case.arguments else " --")
    return case.finding(
        f"{what}-folder", "error", f"no {what} is named",
        evidence=f"neither training.{option[2:]} of the config nor {option} behind -- is there",
        reason=f"hpctrain's training reads a {what} folder, and stops without one",
        fix=f"{option[2:]}: {example} in config.yaml under training, or: {command} {option} {example}",
    )  # fmt: skip


def _folder(case: Case, what: str, option: str, found: ModelFacts | DatasetFacts, arguments: Arguments) -> Iterator[Finding]:
    where = found.where
    if is_hub_name(where) and not arguments.ours:
        return  # `hub-name` has its say
    for problem, fix in found.problems:
        # A script of the user's own may read other formats: only what is broken for every reader is certain.
        level: Level = "error" if arguments.ours or not where.exists or "git-lfs" in problem else "warning"
        otherwise = "unless your script reads it otherwise, it stops there"
        yield case.finding(
            f"{what}-folder", level, problem,
            evidence=case.said("training", option, value=where.said),
            reason="the training stops before its first step" if level == "error" else otherwise,
            fix=f"git -C {shell.quote(where.path)} lfs pull" if "git lfs pull" in problem
            else _prepare(where, arguments) if fix.startswith("hpctrain prepare ") and where.exists and arguments.sft else fix,
        )  # fmt: skip


def _prepare(where: PathFacts, arguments: Arguments) -> str:
    """Return the command that makes a dataset of what is there: of a raw file most likely."""
    folder = f"{where.said.rstrip('/')}-prepared" if where.is_dir else _ENDINGS.sub("", where.said) or where.said
    folder += "-prepared" if folder == where.said else ""
    model = arguments.get("model_name_or_path")
    words = ("hpctrain", "prepare", where.said, "--model", model or "MODEL", "--to", folder)
    return f"{shell.join(words)}, then: dataset_name: {folder} under training in config.yaml"


def _script(case: Case) -> Iterator[Finding]:
    script, name = case.around.script, case.spec.script
    if script is None or name is None:
        return
    said = case.said("script", value=name)
    if not script.where.exists or script.where.is_dir:
        yield case.finding(
            "script-missing", "error",
            f"there is no script {name!r} in {case.spec.chdir}" if not script.where.exists else f"the script {name!r} is a directory",
            evidence=said, reason="every process ends at once: can't open file",
            fix=f"ls {shell.quote(case.spec.chdir)}/*.py, then: {case.command(('--script', 'FILE'))}",
        )  # fmt: skip
    elif script.looks_like != "python":
        yield case.finding(
            "script-not-python", "error", f"the script {name!r} is {_KINDS[script.looks_like]}",
            evidence=said, reason=f"{case.spec.launcher} starts it with Python",
            fix="jupyter nbconvert --to script " + shell.quote(name) if script.looks_like == "notebook"
            else f"name the Python file that trains: {case.command(('--script', 'train.py'))}",
        )  # fmt: skip
    elif script.syntax is not None:
        yield case.finding(
            "script-syntax", "error", f"Python cannot read the script: {script.syntax.partition(': ')[2]}",
            evidence=f"{name}:{script.syntax}", reason="every process ends at once with SyntaxError",
            fix=f"edit {name}, then: python3 -m py_compile {shell.quote(name)}",
        )  # fmt: skip


def _accelerate(case: Case) -> Iterator[Finding]:
    found = case.around.accelerate
    if found is None or case.spec.launcher != "accelerate":
        return
    name = case.spec.accelerate_config
    path = ("accelerate_config",)
    if not found.where.exists:
        if not found.is_default:
            yield case.finding(
                "accelerate-config", "error", f"there is no accelerate config {name!r} in {case.spec.chdir}",
                evidence=case.said(*path, value=name), reason="accelerate launch stops without it",
                fix=case.fix((path, "multi_gpu.yaml")),
            )  # fmt: skip
        return
    for problem in found.problems:
        place, _, sentence = problem.partition(": ")
        yield case.finding(
            "accelerate-config", "error", sentence or problem, evidence=f"{place}: {name}",
            reason="the launcher would start other processes than the job has GPUs, and say nothing", fix=f"edit {name}",
        )  # fmt: skip


def _hooks(case: Case) -> Iterator[Finding]:
    for hook in case.around.hooks:
        if hook.exists and not hook.is_dir and hook.readable is not False:
            continue
        problem = "does not exist" if not hook.exists else "is a directory" if hook.is_dir else "cannot be read"
        told = case.spec.notify is not None and hook.said == case.spec.notify.command
        key = ("environment", "before" if hook.said in case.spec.before else "after")
        yield case.finding(
            "hook-missing", "error", f"the {'command' if told else 'hook'} {hook.said!r} {problem}",
            evidence=case.said(*(("notify", "command") if told else key), value=hook.said),
            reason="nobody hears how the run ends" if told else "the batch script reads it with `source`, and stops there",
            fix=f"ls -l {shell.quote(hook.path)}",
        )  # fmt: skip
