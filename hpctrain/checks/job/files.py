"""Rules about the model, dataset, script, accelerate config and hooks (present, complete, of the
right kind), and about the directories that the job writes to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.checks.job import hardware
from hpctrain.checks.job.context import Case, DatasetFacts, ModelFacts, PathFacts, rule
from hpctrain.clusters.profile import Storage
from hpctrain.config.arguments import Arguments
from hpctrain.finding import Finding
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
#: Free files that a training needs for logs, samples and the parts of a checkpoint.
_FILES = 200
_VARIABLE = re.compile(r"\$\{?(\w+)\}?|<\w+>")


# -- what the training reads -----------------------------------------------------------------------


def is_hub_name(where: PathFacts) -> bool:
    """Whether a missing path is probably a name on the Hub."""
    return not where.exists and bool(_HUB_NAME.match(where.said))


@rule("model-folder")
def _model(case: Case) -> Iterator[Finding]:
    yield from _folder(case, "model", "model_name_or_path", case.around.model, "models/my_model")


@rule("dataset-folder")
def _dataset(case: Case) -> Iterator[Finding]:
    yield from _folder(case, "dataset", "dataset_name", case.around.dataset, "data/my_dataset")


def _folder(
    case: Case, what: str, option: str, found: ModelFacts | DatasetFacts | None, example: str
) -> Iterator[Finding]:
    arguments = Arguments(case.spec)
    named = arguments.incomplete or arguments.get(option) is not None
    if found is None and arguments.ours and not named:
        command = case.command() + ("" if case.arguments else " --")
        yield case.finding(
            f"{what}-folder",
            "error",
            f"no {what} is named",
            evidence=f"neither training.{option} of the config nor --{option} after -- is there",
            reason=f"the built-in training requires a local {what} directory",
            fix=(
                f"{option}: {example} in config.yaml under training, or: {command} --{option}"
                f" {example}"
            ),
        )
    if found is None or (is_hub_name(found.where) and not arguments.ours):
        return  # `hub-name` reports names on the Hub
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
            evidence=(
                f"its manifest names the tokenizer of {dataset.tokenizer_name or 'another model'}"
                f" ({(dataset.tokenizer or '')[:12]}); the model's is another"
                f" ({(model.tokenizer or '')[:12]})"
            ),
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
    if not found.where.exists and not found.is_default:
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
    environment = {name: getattr(case.spec, name) for name in ("before", "before_each_node")}
    for hook in case.around.hooks:
        problem = "is a directory" if hook.is_dir else "cannot be read"
        problem = problem if hook.exists else "does not exist"
        if hook.exists and not hook.is_dir and hook.readable is not False:
            continue
        tells = case.spec.notify is not None and hook.said == case.spec.notify.command
        name = next((name for name, hooks in environment.items() if hook.said in hooks), "after")
        path = ("notify", "command") if tells else ("environment", name)
        yield case.finding(
            "hook-missing",
            "error",
            f"the {'command' if tells else 'hook'} {hook.said!r} {problem}",
            evidence=case.said(*path, value=hook.said),
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


@rule("output-space", "output-files")
def _space(case: Case) -> Iterator[Finding]:
    where, need = case.around.output or case.around.chdir, hardware.checkpoint_bytes(case)
    system = where.filesystem if where is not None else None
    if where is None or system is None:
        return
    parent, free = shell.quote(where.parent), system.free
    if need is not None and free < 2 * need.size:
        none = free < need.size
        one = f"a checkpoint is {size(need.size)}, and {size(free)} are free: room for one"
        yield case.finding(
            "output-space",
            "error" if none else "warning",
            f"one checkpoint is {size(need.size)}, and {size(free)} are free" if none else one,
            evidence=f"{where.said}: {system.limit} of {system.mount} ({system.kind}); {need.words}",
            reason=(
                "the training ends when it saves, and leaves half a checkpoint"
                if none
                else "the second is written before the first is deleted, so two must fit"
            ),
            fix=(
                f"make room in {parent}, or write elsewhere: output_dir: DIRECTORY under training"
                " in config.yaml"
            ),
        )
    if system.free_files is not None and system.free_files < _FILES:
        yield case.finding(
            "output-files",
            "error",
            f"{system.free_files} more files can be created in {system.mount}",
            evidence=f"{where.said}: {system.limit}",
            reason="the quota of files is exhausted: logs and checkpoints cannot be created",
            fix=f"find {parent} -xdev -type f | cut -d/ -f1-5 | sort | uniq -c | sort -n | tail",
        )


# -- what the nodes see ----------------------------------------------------------------------------


@rule("path-not-shared", on="cluster")
def _not_shared(case: Case) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    evidence: dict[str, str] = {}
    for what, where in case.around.paths:
        kind = where.filesystem.kind if where.filesystem is not None else ""
        roots = (root for root in _NODE_LOCAL if f"{where.real}/".startswith(f"{root}/"))
        root, stored = next(roots, None), stored_on(case, where)
        in_memory = kind in _IN_MEMORY or (stored is not None and stored[1].in_memory)
        if root is not None or in_memory:
            place = root or where.path
            found.setdefault(place, []).append(what)
            evidence[place] = f"{place} is another directory on every node"
            if in_memory:
                evidence[place] = f"{place} is in memory ({kind or 'the site says so'})"
    for place, names in found.items():
        lie, them = ("lies", "it") if len(names) == 1 else ("lie", "them")
        yield case.finding(
            "path-not-shared",
            "warning",
            f"{listed(names)} {lie} in {place}, which compute nodes do not share",
            evidence=evidence[place],
            reason=(
                f"the job does not find {them} on the compute nodes, or its output is lost when "
                "the job ends"
            ),
            fix=(
                f"move {them} to a shared file system, such as {_shared(case)}, and name {them}"
                " there"
            ),
        )


def _shared(case: Case) -> str:
    shared = {
        key.lower(): each.path
        for key, each in case.profile.storage.items()
        if each.path and not each.in_memory and each.on_compute_nodes is not False
    }
    names = ("scratch", "work", "project", "projects", "fast", "home")
    found = next((shared[name] for name in names if name in shared), None)
    return found or "your project's or scratch directory"


def stored_on(case: Case, where: PathFacts) -> tuple[str, Storage] | None:
    """Return the site's file system with the longest path that contains `where`."""
    best: dict[int, tuple[str, Storage]] = {}
    for name, each in case.profile.storage.items():
        pattern = re.compile(_pattern(case, each.path)) if each.path else None
        match = pattern and (pattern.match(where.real) or pattern.match(where.path))
        if match:
            best.setdefault(match.end(), (name, each))
    return best[max(best)] if best else None


def _pattern(case: Case, path: str) -> str:
    """Return the regular expression for a storage path: $USER is the user; <account> and unknown
    variables match one name.
    """
    known = {**case.around.variables, "USER": case.around.user}
    parts = _VARIABLE.split(path.rstrip("/"))
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [re.escape(known.get(name or "") or "") or "[^/]+" for name in parts[1::2]]
    return "".join(parts) + r"(?=/|\Z)"


@rule("path-not-mounted", on="cluster")
def _not_mounted(case: Case) -> Iterator[Finding]:
    for what, where in case.around.paths:
        name, stored = stored_on(case, where) or ("", None)
        fact = case.fact(stored, "storage", name, "on_compute_nodes")
        if fact is not None and fact.value.on_compute_nodes is False:
            yield case.finding(
                "path-not-mounted",
                fact.severity,
                f"{what} is on {name}, which compute nodes do not mount",
                evidence=f"{where.path}; {fact.source}",
                reason="the job does not find it",
                fix=(
                    f"copy it to a file system that they mount, such as {_shared(case)}, and name"
                    " it there"
                ),
            )
