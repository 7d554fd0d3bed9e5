"""The environment that the job loads: Python's, the modules, the container; and whether it is one for these nodes."""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.jobs import shell
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.check.storage import stored_on
from hpctrain.jobs.check.surroundings import PythonFacts
from hpctrain.jobs.finding import Finding

#: What the shipped training imports.
_PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "hpctrain")
_ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}


def rules(case: Case) -> Iterator[Finding]:
    """Return what is wrong with the environment of the job."""
    for rule in (_missing, _broken, _packages, _launcher, _architecture, _torch, _slow, _modules, _container):
        yield from rule(case)


def _said(case: Case, python: PythonFacts) -> str:
    return case.said("environment", python.kind, value=python.said)


def _make(case: Case, python: PythonFacts) -> str:
    """Return the command that makes such an environment."""
    name = shell.quote(python.said)
    return {
        "venv": f"python3 -m venv {name} && {name}/bin/pip install {shell.quote(case.around.requirement)}",
        "conda": f"conda env list, or: conda create -n {name} python=3.12",
        "uv": f"uv sync --project {name}",
        "pixi": f"pixi install --manifest-path {name}",
    }[python.kind]


def _install(python: PythonFacts) -> str:
    """Return what is typed in front of what is to be installed into an environment; uv's own have no pip."""
    if python.prefix is None:
        return "pip install"
    programs = f"{python.prefix.path}/bin"
    if python.kind == "uv":
        return f"uv pip install --python {shell.quote(f'{programs}/python')}"
    return f"{shell.quote(f'{programs}/pip')} install"


def _missing(case: Case) -> Iterator[Finding]:
    python = case.around.python
    if python is None or (python.prefix is not None and python.prefix.exists and python.activates):
        return
    if python.kind == "conda" and python.prefix is None:
        # conda keeps environments in more places than can be looked at without starting it.
        what, level = f"no conda environment {python.said!r} was found", "warning"
    elif python.prefix is not None and python.prefix.exists:
        what, level = f"{python.said} is no {python.kind} environment: bin/activate is not there", "error"
    else:
        what, level = f"there is no {python.kind} environment {python.said!r}", "error"
    yield case.finding(
        "environment-missing", "error" if level == "error" else "warning", what, evidence=_said(case, python),
        reason="the job activates it before anything else, and stops", fix=_make(case, python),
    )  # fmt: skip


def _broken(case: Case) -> Iterator[Finding]:
    python = case.around.python
    if python is None or python.home is None or python.home_exists:
        return
    yield case.finding(
        "environment-broken", "error", f"the Python that {python.said} was made with is gone: {python.home}",
        evidence=f"{_said(case, python)}; pyvenv.cfg says home = {python.home}",
        reason="the environment's python is a link to it, and cannot start",
        fix=f"rm -r {shell.quote(python.said)} && {_make(case, python)}",
    )  # fmt: skip


def _packages(case: Case) -> Iterator[Finding]:
    python = case.around.python
    if python is None or python.packages is None or case.spec.container is not None:
        return
    needed = list(_PACKAGES) if case.spec.script is None else ["torch"]
    needed += ["accelerate"] if case.spec.launcher == "accelerate" and "accelerate" not in needed else []
    needed += ["deepspeed"] if case.spec.sharding in ("zero2", "zero3") else []
    lacking = [name for name in needed if name not in python.packages]
    if not lacking:
        return
    wanted = shell.quote(case.around.requirement) if case.spec.script is None else " ".join(lacking)
    wanted += " deepspeed" if "deepspeed" in lacking and case.spec.script is None else ""
    # Modules of the site may bring packages of their own through PYTHONPATH; what a script of the user's imports is not known.
    sure = not case.spec.modules and case.spec.script is None
    yield case.finding(
        "environment-lacks", "error" if sure else "warning", f"{python.said} lacks {', '.join(lacking)}",
        evidence=f"{_said(case, python)}; its site-packages", reason="the training ends at once with ModuleNotFoundError",
        fix=f"{_install(python)} {wanted}",
    )  # fmt: skip


def _launcher(case: Case) -> Iterator[Finding]:
    spec, around = case.spec, case.around
    if around.python is not None or spec.modules or spec.container is not None or spec.before or around.launcher_on_path is not None:
        return
    program = "python" if spec.launcher == "srun" else spec.launcher
    yield case.finding(
        "launcher-missing", "warning", f"the job names no environment, and {program} is not on PATH here",
        evidence="no environment in the config; PATH of this shell, which sbatch hands to the job",
        reason=f"the script stops: {program} is not on PATH",
        fix=case.fix((("environment", "venv"), "DIRECTORY")),
    )  # fmt: skip


def _architecture(case: Case) -> Iterator[Finding]:
    shape, python = case.shape, case.around.python
    fact = case.fact(shape.arch, "nodes", case.shape_name or "", "arch") if shape is not None else None
    if fact is None or case.local:
        return
    if python is not None and python.arch is not None and python.arch != fact.value:
        yield case.finding(
            "environment-architecture", fact.severity, f"{python.said} is made for {python.arch}, and the nodes are {fact.value}",
            evidence=f"{_said(case, python)}; {fact.source}", reason="its python cannot start there: Exec format error",
            fix=f"make it on one of these nodes: srun --pty bash, then: {_make(case, python)}",
        )  # fmt: skip
        return
    here = _ARCHITECTURES.get(case.around.machine or "", case.around.machine)
    if here is not None and here != fact.value and python is not None and python.arch is None and python.prefix is not None:
        yield case.finding(
            "environment-architecture", "note", f"this machine is {here}, and the nodes are {fact.value}",
            evidence=f"uname -m {here}; {fact.source}", reason="an environment or image made here does not run there",
            fix=f"make it on one of these nodes: srun --pty bash, then: {_make(case, python)}",
        )  # fmt: skip


def _torch(case: Case) -> Iterator[Finding]:
    shape, python = case.shape, case.around.python
    on_cpu = dict(case.spec.env).get("ACCELERATE_USE_CPU") or case.around.variables.get("ACCELERATE_USE_CPU", "")
    if on_cpu.lower() in ("1", "true", "yes"):
        return
    fact = case.fact(shape.vendor, "nodes", case.shape_name or "", "vendor") if shape is not None else None
    if python is None or python.torch is None or case.local or case.spec.container is not None:
        return
    if fact is None:
        if python.torch == "cpu":
            yield _torch_of_cpu(case, python)
        return
    if python.torch == fact.value:
        return
    index = "https://download.pytorch.org/whl/" + ("cu126" if fact.value == "cuda" else "rocm6.4")
    yield case.finding(
        "torch-build", fact.severity, f"the torch of {python.said} is built for {python.torch}, and the GPUs need {fact.value}",
        evidence=f"{_said(case, python)}, torch/version.py; {fact.source}",
        reason="torch sees no GPU on the nodes: No CUDA GPUs are available",
        fix=f"{_install(python)} --force-reinstall torch --index-url {index}",
    )  # fmt: skip


def _torch_of_cpu(case: Case, python: PythonFacts) -> Finding:
    """Whatever GPUs the nodes have, it sees none of them."""
    return case.finding(
        "torch-build", "warning", f"the torch of {python.said} is built for the CPU only, and the job asks for GPUs",
        evidence=f"{_said(case, python)}, torch/version.py",
        reason="torch sees no GPU on the nodes: No CUDA GPUs are available; the GPUs of AMD need rocm6.4 in place of cu126",
        fix=f"{_install(python)} --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
    )  # fmt: skip


def _slow(case: Case) -> Iterator[Finding]:
    python = case.around.python
    stored = stored_on(case, python.prefix) if python is not None and python.prefix is not None else None
    if python is None or stored is None or not stored[1].slow_for_environments:
        return
    fact = case.fact(stored[1], "storage", stored[0], "slow_for_environments")
    if fact is not None:
        yield case.finding(
            "environment-slow", "warning", f"{python.said} lies on {stored[0]}, and this site asks for no environments there",
            evidence=f"{_said(case, python)}; {fact.source}",
            reason="thousands of small files on a parallel file system: every start takes minutes, for others too",
            fix="put it into a container image: environment.container in config.yaml",
        )  # fmt: skip


def _modules(case: Case) -> Iterator[Finding]:
    rule = case.profile.modules if case.profile is not None else None
    if rule is None or not rule.never_purge or case.spec.module_start != "purge":
        return
    fact = case.fact(rule.never_purge, "modules", "never_purge")
    if fact is not None:
        yield case.finding(
            "module-purge", fact.severity, "the job begins with `module purge`, which breaks the modules of this site",
            evidence=f"{case.said('environment', 'module_start', value='purge')}; {fact.source}",
            reason="MODULEPATH is lost, and no `module load` behind it works", fix="leave module_start out of the config",
        )  # fmt: skip


def _container(case: Case) -> Iterator[Finding]:
    container, image = case.spec.container, case.around.image
    if container is None:
        return
    said = case.said("environment", "container", value=container.image)
    if image is not None and not image.exists:
        yield case.finding(
            "container-missing", "error", f"there is no image {container.image!r}", evidence=said,
            reason=f"{container.engine} stops without it", fix=f"ls {shell.quote(image.parent)}",
        )  # fmt: skip
    for bind in case.around.binds:
        if not bind.exists:
            yield case.finding(
                "container-bind", "error", f"there is no {bind.said!r} to bind into the container",
                evidence=said,
                reason=f"{container.engine} stops: mount source does not exist",
                fix=f"mkdir -p {shell.quote(bind.path)}, or leave the bind out",
            )  # fmt: skip
    if container.engine not in ("apptainer", "singularity") or case.local:
        return
    vendor = case.shape.vendor if case.shape is not None else None
    fact = case.fact(vendor, "nodes", case.shape_name or "", "vendor")
    wanted = {"cuda": "nv", "rocm": "rocm"}.get(vendor or "")
    if fact is not None and container.gpu != wanted:
        yield case.finding(
            "container-gpu", fact.severity, f"the container gets the GPU libraries {container.gpu!r}, and these nodes need {wanted!r}",
            evidence=f"{said}; {fact.source}", reason="torch sees no GPU inside the container",
            fix=f"gpu_libraries: {wanted} in config.yaml under environment.container",
        )  # fmt: skip
