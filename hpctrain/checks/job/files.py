"""Rules about the model, dataset, script, accelerate config and hooks (present, complete, of the
right kind), and about the directories that the job writes to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.checks.job import hardware
from hpctrain.checks.job.context import Case, PathFacts, rule
from hpctrain.clusters.profile import Storage
from hpctrain.config.arguments import Arguments
from hpctrain.config.spec import JobSpec
from hpctrain.finding import Finding, Level
from hpctrain.util import shell
from hpctrain.util.text import listed, size

#: `owner/name`, the form of model and dataset names on the Hub.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+\Z")
#: Suffixes of the files that `hpctrain prepare` reads.
_ENDINGS = re.compile(
    r"\.(?:jsonl?|csv|tsv|parquet|arrow|txt)(?:\.(?:gz|zst|xz|bz2))?\Z", re.IGNORECASE
)
#: Directories that are local to each node.
_NODE_LOCAL = (
    "/tmp",  # noqa: S108
    "/var/tmp",  # noqa: S108
    "/dev/shm",  # noqa: S108
    "/run",
    "/local",
    "/localscratch",
    "/scratch_local",
    "/mnt/bb",
)
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_VARIABLE = re.compile(r"\$\{?(\w+)\}?|<\w+>")


# -- what the training reads -----------------------------------------------------------------------


def is_hub_name(where: PathFacts) -> bool:
    """Whether a missing path is probably a name on the Hub."""
    return not where.exists and bool(_HUB_NAME.match(where.said))


@rule("model-folder", "dataset-folder")
def _folders(case: Case) -> Iterator[Finding]:
    arguments = Arguments(case.spec)
    for what, option, found, example in (
        ("model", "model_name_or_path", case.around.model, "models/my_model"),
        ("dataset", "dataset_name", case.around.dataset, "data/my_dataset"),
    ):
        named = arguments.incomplete or arguments.get(option) is not None
        if found is None and arguments.ours and not named:
            yield case.finding(
                f"{what}-folder",
                "error",
                f"no {what} is named",
                evidence=f"neither training.{option} of the config nor --{option} after --",
                reason=f"the built-in training requires a local {what} directory",
                fix=f"{option}: {example} in config.yaml under training",
            )
        if found is None or (is_hub_name(found.where) and not arguments.ours):
            continue  # `hub-name` reports names on the Hub
        where = found.where
        for problem in found.problems:
            # A custom script may read other formats: only files that nothing can read are certain.
            sure, fix = arguments.ours or not where.exists or problem.cause == "lfs", problem.fix
            if problem.cause == "lfs":
                fix = f"git -C {shell.quote(where.path)} lfs pull"
            elif problem.cause == "raw" and where.exists and arguments.sft:
                fix = _prepare(where, arguments)
            yield case.finding(
                f"{what}-folder",
                "error" if sure else "warning",
                problem.what,
                evidence=case.said("training", option, value=where.said),
                reason=(
                    "the training stops before its first step"
                    if sure
                    else "unless your script reads it otherwise, it stops there"
                ),
                fix=fix,
            )


def _prepare(where: PathFacts, arguments: Arguments) -> str:
    folder = where.said.rstrip("/") if where.is_dir else _ENDINGS.sub("", where.said)
    folder += "-prepared" if where.is_dir or folder == where.said else ""
    model = arguments.get("model_name_or_path") or "MODEL"
    words = ("hpctrain", "prepare", where.said, "--model", model, "--to", folder)
    return f"{shell.join(words)}, then: dataset_name: {folder} under training in config.yaml"


@rule("dataset-tokenizer")
def _tokenizer(case: Case) -> Iterator[Finding]:
    """The dataset's token ids belong to its tokenizer; another model reads other tokens."""
    model, dataset = case.around.model, case.around.dataset
    if model is None or dataset is None or None in (model.tokenizer, dataset.tokenizer):
        return
    if dataset.tokenizer != model.tokenizer:
        yield case.finding(
            "dataset-tokenizer",
            "error",
            f"the dataset {dataset.where.said} was tokenized for another model than "
            f"{model.where.said}",
            evidence=f"its manifest: {dataset.tokenizer_name}; the fingerprints differ",
            reason=(
                "token IDs would not match the model's vocabulary: the training runs without an error, "
                "and learns nothing"
            ),
            fix=(
                f"hpctrain prepare DATA --model {shell.quote(model.where.said)} --to FOLDER; or"
                " train the model that it was made for"
            ),
        )


@rule("script-missing", "script-syntax")
def _script(case: Case) -> Iterator[Finding]:
    script, name = case.around.script, case.spec.script
    if script is None or name is None:
        return
    said, quoted = case.said("script", value=name), shell.quote(name)
    if not script.exists or script.is_dir:
        missing = f"does not exist in {case.spec.chdir}"
        yield case.finding(
            "script-missing",
            "error",
            f"the script {name!r} {'is a directory' if script.exists else missing}",
            evidence=said,
            reason="every process fails at once: can't open file",
            fix=(
                f"ls {shell.quote(case.spec.chdir)}/*.py, then:"
                f" {case.command(('--script', 'FILE'))}"
            ),
        )
    elif case.around.syntax is not None:
        yield case.finding(
            "script-syntax",
            "error",
            f"Python cannot read the script: {case.around.syntax.partition(': ')[2]}",
            evidence=f"{name}:{case.around.syntax}",
            reason="every process fails at once with SyntaxError",
            fix=f"edit {name}, then: python3 -m py_compile {quoted}",
        )


@rule("accelerate-config")
def _accelerate(case: Case) -> Iterator[Finding]:
    found, name = case.around.accelerate, case.spec.accelerate_config
    if found is None or case.spec.launcher != "accelerate":
        return
    if not found.where.exists and name != JobSpec.accelerate_config:
        yield case.finding(
            "accelerate-config",
            "error",
            f"the accelerate config {name!r} does not exist in {case.spec.chdir}",
            evidence=case.said("accelerate_config", value=name),
            reason="accelerate launch stops without it",
            fix=case.fix((("accelerate_config",), "multi_gpu.yaml")),
        )
    for problem in found.problems if found.where.exists else ():
        place, _, sentence = problem.partition(": ")
        yield case.finding(
            "accelerate-config",
            "error",
            sentence or problem,
            evidence=f"{place}: {name}",
            reason=(
                "the launcher would silently start more, or fewer, processes than the job has GPUs"
            ),
            fix=f"edit {name}",
        )


@rule("hook-missing")
def _hooks(case: Case) -> Iterator[Finding]:
    for hook in case.around.hooks:
        tells = case.spec.notify is not None and hook.said == case.spec.notify.command
        if not hook.exists or hook.is_dir:
            yield case.finding(
                "hook-missing",
                "error",
                f"the {'command' if tells else 'hook'} {hook.said!r} is not a file",
                evidence=case.said("notify" if tells else "environment", value=hook.said),
                reason=(
                    "no message is sent when the run ends"
                    if tells
                    else "the batch script runs it, and stops there"
                ),
                fix=f"ls -l {shell.quote(hook.path)}",
            )


# -- what the job writes ---------------------------------------------------------------------------


@rule("chdir-missing", "chdir-not-writable")
def _directory(case: Case) -> Iterator[Finding]:
    where, name = case.around.chdir, case.spec.chdir
    said, elsewhere = case.said("chdir", value=name), case.command(("--chdir", "DIRECTORY"))
    if where is not None and not where.is_dir:
        yield case.finding(
            "chdir-missing",
            # Rendered on a laptop for a cluster, the directory may exist only there.
            "error" if case.local or case.live is not None else "warning",
            f"the job's directory {name} {'is a file' if where.exists else 'does not exist here'}",
            evidence=said,
            reason="Slurm cannot start the script there, and its logs have no place to go",
            fix=elsewhere if where.exists else f"mkdir -p {shell.quote(name)}",
        )
    elif where is not None and where.writable is False:
        yield case.finding(
            "chdir-not-writable",
            "error",
            f"you cannot write to the job's directory {name}",
            evidence=f"{said}; its mode is {where.mode or 0:o}",
            reason="the job's logs and run directory are there: it fails at once, with no log",
            fix=elsewhere,
        )


@rule("output-not-writable")
def _output(case: Case) -> Iterator[Finding]:
    where, chdir = case.around.output, case.around.chdir
    if where is None or (chdir is not None and not chdir.is_dir):
        return
    is_file, path = where.exists and not where.is_dir, shell.quote(where.path)
    if is_file or where.writable is False:
        elsewhere = (
            f"ls -ld {shell.quote(where.parent)}, then: output_dir: DIRECTORY under training"
        )
        yield case.finding(
            "output-not-writable",
            "error",
            f"the output directory {where.said!r}"
            f" {'is a file' if is_file else 'cannot be written to'}",
            evidence=f"{case.said('training', 'output_dir', value=where.said)}; {where.path}",
            reason="the first checkpoint would end the training",
            fix=f"mv {path} {path}.old" if is_file else elsewhere,
        )


@rule("output-space")
def _space(case: Case) -> Iterator[Finding]:
    where, need = case.around.output or case.around.chdir, hardware.checkpoint_bytes(case)
    system = where.filesystem if where is not None else None
    if where is None or system is None or need is None or system.free >= 2 * need[0]:
        return
    none = system.free < need[0]
    yield case.finding(
        "output-space",
        "error" if none else "warning",
        f"one checkpoint is {size(need[0])}, and {size(system.free)} are free",
        evidence=f"{where.said}: {system.limit} of {system.mount} ({system.kind}); {need[1]}",
        reason=(
            "the training ends when it saves, and leaves half a checkpoint"
            if none
            else "the second is written before the first is deleted, so two must fit"
        ),
        fix=(
            f"make room in {shell.quote(where.parent)}, or write elsewhere: output_dir: DIRECTORY"
            " under training in config.yaml"
        ),
    )


# -- what the nodes see ----------------------------------------------------------------------------


@rule("path-not-shared", on="cluster")
def _not_shared(case: Case) -> Iterator[Finding]:
    found: dict[tuple[str, Level, str], list[str]] = {}
    for what, where in case.around.paths:
        kind = where.filesystem.kind if where.filesystem is not None else ""
        roots = (root for root in _NODE_LOCAL if f"{where.real}/".startswith(f"{root}/"))
        root, (name, stored) = next(roots, None), stored_on(case, where) or ("", None)
        fact = case.fact(stored, "storage", name, "on_compute_nodes")
        problem: tuple[str, Level, str] | None = None
        if fact is not None and fact.value.on_compute_nodes is False:
            problem = where.path, fact.severity, f"{name} is not mounted there; {fact.source}"
        elif kind in _IN_MEMORY or (stored is not None and stored.in_memory):
            problem = root or where.path, "warning", f"in memory ({kind or 'the site says so'})"
        elif root is not None:
            problem = root, "warning", f"{root} is another directory on every node"
        if problem is not None:
            found.setdefault(problem, []).append(what)
    shared = (
        each.path
        for each in case.profile.storage.values()
        if each.path and not each.in_memory and each.on_compute_nodes is not False
    )
    better = next(shared, "your project's or scratch directory")
    for (place, level, evidence), names in found.items():
        yield case.finding(
            "path-not-shared",
            level,
            f"on compute nodes, {place} is another directory, or none: {listed(names)}",
            evidence=evidence,
            reason="the job does not find its files there, or its output is lost when the job ends",
            fix=f"move it to a shared file system, such as {better}, and name it there",
        )


def stored_on(case: Case, where: PathFacts) -> tuple[str, Storage] | None:
    """Return the site's file system with the longest path that contains `where`; in a path, $USER
    is the user; <account> and unknown variables match one name.
    """
    best: dict[int, tuple[str, Storage]] = {}
    known = {**case.around.variables, "USER": case.around.user}
    for name, each in case.profile.storage.items():
        parts = _VARIABLE.split((each.path or "$").rstrip("/"))
        parts[::2] = map(re.escape, parts[::2])
        parts[1::2] = [re.escape(known.get(name or "") or "") or "[^/]+" for name in parts[1::2]]
        pattern = re.compile("".join(parts) + r"(?=/|\Z)")
        match = pattern.match(where.real) or pattern.match(where.path)
        if match is not None:
            best.setdefault(match.end(), (name, each))
    return best[max(best)] if best else None
