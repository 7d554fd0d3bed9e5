"""Rules about the environment that the job loads (Python, modules, container), and whether it suits
the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.checks.job import hardware
from hpctrain.checks.job.context import Case, Fact, PythonFacts, confirm, rule
from hpctrain.checks.job.files import is_hub_name
from hpctrain.config import arguments as training_arguments
from hpctrain.config.arguments import Arguments
from hpctrain.finding import Finding, Level
from hpctrain.util import shell
from hpctrain.util.secrets import looks_secret, owner_of

#: Imports of the built-in training.
_PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "hpctrain")


def _said(case: Case, python: PythonFacts) -> str:
    if python.kind == "caller":
        return python.said
    return case.said("environment", python.kind, value=python.said)


def _make(case: Case, python: PythonFacts) -> str:
    name = shell.quote(python.said)
    return {
        "venv": (
            f"python3 -m venv {name} && {name}/bin/pip install"
            f" {shell.quote(case.around.requirement)}"
        ),
        "conda": f"conda env list, or: conda create -n {name} python=3.12",
        "uv": f"uv sync --project {name}",
        "pixi": f"pixi install --manifest-path {name}",
    }.get(python.kind, "set environment.venv in config.yaml")


def _install(python: PythonFacts) -> str:
    """Return the prefix of an install command for an environment; uv's environments have no pip."""
    if python.prefix is None:
        return "pip install"
    programs = f"{python.prefix.path}/bin"
    if python.kind == "uv":
        return f"uv pip install --python {shell.quote(f'{programs}/python')}"
    return f"{shell.quote(f'{programs}/pip')} install"


@rule("environment-missing")
def _missing(case: Case) -> Iterator[Finding]:
    python = case.around.python
    if python is None or (python.prefix is not None and python.lacks is None):
        return
    what = f"the {python.kind} environment {python.said!r} does not start: it lacks {python.lacks}"
    if python.prefix is None:  # conda has environments in more places than are searched here
        what = f"no conda environment {python.said!r} was found"
    yield case.finding(
        "environment-missing",
        "warning" if python.prefix is None else "error",
        what,
        evidence=_said(case, python),
        reason="the job activates it before anything else, and stops",
        fix=_make(case, python),
    )


@rule("environment-lacks")
def _packages(case: Case) -> Iterator[Finding]:
    spec, python, arguments = case.spec, case.around.python, Arguments(case.spec)
    if python is None or python.packages is None or spec.container is not None:
        return
    needed = [*_PACKAGES] if spec.script is None else ["torch"]
    needed += ["accelerate"] if spec.launcher == "accelerate" else []
    needed += ["deepspeed"] if spec.sharding in ("zero2", "zero3") else []
    lacking = {name: name for name in needed if name not in python.packages}
    if spec.script is None and any(name in _PACKAGES for name in lacking):
        lacking |= {name: case.around.requirement for name in lacking if name in _PACKAGES}
    asked: dict[str, str] = {}
    for name in arguments.names if arguments.ours and spec.template is None else ():
        for word in (arguments.get(name) or "").split():
            module, pip = training_arguments.needs(name, word) or ("", "")
            if module and module not in python.packages:
                asked[name], lacking[module] = case.said("training", name, value=word), pip
    if not lacking:
        return
    wanted = dict.fromkeys(word for pip in lacking.values() for word in pip.split())
    fixes = [f"{_install(python)} {shell.join(tuple(wanted))}"] if wanted else []
    fixes += [f"leave out {', '.join(asked)}"] if asked else []
    # Modules may add packages through PYTHONPATH, and the imports of a custom script are unknown.
    sure = not spec.modules and spec.script is None
    yield case.finding(
        "environment-lacks",
        "error" if sure else "warning",
        f"{python.said} lacks {', '.join(lacking)}",
        evidence="; ".join([*asked.values(), f"{_said(case, python)}; its site-packages"]),
        reason="the training stops without it: ModuleNotFoundError",
        fix="; or ".join(fixes),
    )


@rule("launcher-missing")
def _launcher(case: Case) -> Iterator[Finding]:
    spec, around = case.spec, case.around
    loads = around.python or spec.modules or spec.container or spec.before
    if not loads and around.launcher_on_path is None:
        program = "python" if spec.launcher == "srun" else spec.launcher
        yield case.finding(
            "launcher-missing",
            "warning",
            f"the job names no environment, and {program} is not on PATH here",
            evidence="no environment in the config; PATH of this shell, which sbatch passes on",
            reason=f"the script stops: {program} is not on PATH",
            fix=case.fix((("environment", "venv"), "DIRECTORY")),
        )


@rule("torch-build", on="cluster")
def torch_build(case: Case) -> Iterator[Finding]:
    """Yield the finding on a torch for other GPUs than the nodes'."""
    python = case.around.python
    if python is None or python.torch is None or case.spec.container is not None:
        return
    cuda = Fact("cuda", "recalled", "the GPUs that most clusters have")
    known = case.of_nodes("vendor") or cuda
    fits = python.torch == known.value or (known is cuda and python.torch != "cpu")
    if fits or hardware.uses_cpu(case):
        return
    index = "cu126" if known.value == "cuda" else "rocm6.4"
    yield case.finding(
        "torch-build",
        known.severity,
        f"the torch of {python.said} is built for {python.torch}, and the GPUs need {known.value}",
        evidence=f"{_said(case, python)}, torch/version.py; {known.source}",
        reason="torch sees no GPU on the nodes: No CUDA GPUs are available",
        fix=f"{_install(python)} --force-reinstall torch --index-url"
        f" https://download.pytorch.org/whl/{index}",
    )


@rule("module-purge")
def _modules(case: Case) -> Iterator[Finding]:
    fact = case.fact(case.profile.modules.never_purge or None, "modules", "never_purge")
    if fact is not None and case.spec.module_start == "purge":
        yield case.finding(
            "module-purge",
            fact.severity,
            "the job starts with `module purge`, which breaks the modules of this site",
            evidence=f"{case.said('environment', 'module_start', value='purge')}; {fact.source}",
            reason="MODULEPATH is lost, and no `module load` after it works",
            fix="remove module_start from the config",
        )


@rule("container-missing", "container-gpu")
def _container(case: Case) -> Iterator[Finding]:
    container, image = case.spec.container, case.around.image
    if container is None:
        return
    said = case.said("environment", "container", value=container.image)
    for where in (image, *case.around.binds):
        if where is not None and not where.exists:
            yield case.finding(
                "container-missing",
                "error",
                f"the {'image' if where is image else 'directory to bind'} {where.said!r} does not"
                " exist",
                evidence=said,
                reason=f"{container.engine} stops without it",
                fix=f"ls {shell.quote(where.parent)}",
            )
    fact = case.of_nodes("vendor")
    wanted = {"cuda": "nv", "rocm": "rocm"}.get(fact.value) if fact is not None else None
    asked = container.engine in ("apptainer", "singularity") and case.spec.gpus_per_node
    if fact is not None and asked and not case.local and container.gpu_libraries != wanted:
        yield case.finding(
            "container-gpu",
            fact.severity,
            f"the container gets the GPU libraries {container.gpu_libraries!r}, and these nodes need"
            f" {wanted!r}",
            evidence=f"{said}; {fact.source}",
            reason="torch sees no GPU inside the container",
            fix=f"gpu_libraries: {wanted} in config.yaml under environment.container",
        )


def _cut_off(case: Case) -> tuple[Level, str] | None:
    """Return the level and the reason if the training has no network: the job's own settings, or
    the site. None if it may have one.
    """
    if case.spec.offline:
        return "error", f"{case.said('offline', value='true')} sets HF_HUB_OFFLINE=1"
    fact = case.fact(case.profile.internet.compute, "internet", "compute")
    if fact is None or fact.value != "no" or case.local:
        return None
    command = "srun curl -sI https://huggingface.co"
    words = f"{fact.source}: compute nodes have no internet{confirm(fact, command)}"
    return fact.severity, words


@rule("hub-name", "push-to-hub")
def _hub(case: Case) -> Iterator[Finding]:
    cut, around, arguments = _cut_off(case), case.around, Arguments(case.spec)
    if cut is None:
        return
    for what, option, found in (
        ("model", "model_name_or_path", around.model),
        ("dataset", "dataset_name", around.dataset),
    ):
        # The built-in training reports `model-folder` and `dataset-folder`.
        if found is None or found.cached or not is_hub_name(found.where) or arguments.ours:
            continue
        name = found.where.said
        kind = " --repo-type dataset" if what == "dataset" else ""
        yield case.finding(
            "hub-name",
            cut[0] if found.cached is False else "warning",
            f"the {what} {name!r} is a name on the Hub, and not in the cache",
            evidence=f"{case.said('training', option, value=name)}; {cut[1]}",
            reason=(
                "the training tries to fetch it, and stops: we couldn't connect to huggingface.co"
            ),
            fix=f"with internet access: hf download {shell.quote(name)}{kind}",
        )
    if arguments.says("push_to_hub"):
        yield case.finding(
            "push-to-hub",
            cut[0],
            "the job pushes the model to the Hub, but has no internet access",
            evidence=f"{case.said('training', 'push_to_hub', value='true')}; {cut[1]}",
            reason="the training fails at its first save, or at its end",
            fix=(
                "push_to_hub: false under training in config.yaml; after the job, with "
                "internet access: hf upload NAME DIRECTORY"
            ),
        )


#: The variable, or file, with the address of the webhook (hpctrain/runs/notify.py).
WEBHOOK = "HPCTRAIN_WEBHOOK"


@rule("secret-in-config")
def _in_config(case: Case) -> Iterator[Finding]:
    spec = case.spec
    values: list[tuple[tuple[str, ...], str]] = [
        *((("environment", "env", name), value) for name, value in spec.env),
        *((("sbatch", name), value or "") for name, value in spec.sbatch),
        *(
            (("training", name), value)
            for name, given in shell.options_of(spec.arguments).items()
            for value in (given if isinstance(given, tuple) else (str(given),))
        ),
    ]
    for path, value in values:
        if not looks_secret(path[-1], value):
            continue
        owner = owner_of(value)
        variable = path[-1] if path[0] == "environment" else "HF_TOKEN"
        file = f"~/.{variable.lower()}"
        yield case.finding(
            "secret-in-config",
            "error",
            f"{path[-1]} holds what looks like a secret{f' ({owner})' if owner else ''}",
            evidence=case.said(*path, value=f"{value[:3]}… ({len(value)} characters)"),
            reason=(
                "it would be in the script, which other users may read, and in Slurm's accounting"
            ),
            fix=(
                f'umask 077; read -rs word && echo "$word" > {file}, then under environment.secrets'
                f" in config.yaml: {variable}: {file}"
            ),
        )


@rule("secret-missing", "secret-file-open")
def _files(case: Case) -> Iterator[Finding]:
    for secret in case.around.secrets:
        file, webhook = secret.file, secret.name == WEBHOOK
        key = ("notify", "webhook") if webhook else ("environment", "secrets", secret.name)
        then = "sends no notification" if webhook else "stops"
        id_, what, fix = "secret-missing", "", ""
        if file is None and not secret.in_shell:
            what = f"the variable {secret.name} is not set in this shell, from which the job has it"
            fix = f"read -rs {secret.name} && export {secret.name}"
        elif file is not None and (not file.exists or file.is_dir):
            what = f"the file {file.said!r} for {secret.name} does not exist"
            fix = f'umask 077; read -rs word && echo "$word" > {shell.quote(file.path)}'
        elif file is not None and file.mode not in (0o400, 0o600):
            id_, fix = "secret-file-open", f"chmod 600 {shell.quote(file.path)}"
            what = (
                f"the file of {secret.name} has the mode {file.mode or 0:04o}, and must have 0600"
            )
        if what:
            yield case.finding(
                id_,
                "error",
                what,
                evidence=case.said(*key, value=file.said if file else "environment"),
                reason=f"the job refuses it and {then}",
                fix=fix,
            )
