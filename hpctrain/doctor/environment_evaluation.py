"""Pure evaluation of the job's environment: whether it starts, its packages, its torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.version import Version

from hpctrain.doctor.facts import DoctorContext, EnvironmentFacts, InsideFacts, ProbeResult
from hpctrain.finding import Finding, Level
from hpctrain.util import shell
from hpctrain.util.text import listed

_CUDA, _ROCM = "cu126", "rocm6.4"


def result(
    probe: str, sentence: str, found: Iterable[Finding] = (), *, unknown: bool = False
) -> ProbeResult:
    """Return a line of the report."""
    return ProbeResult(probe=probe, sentence=sentence, findings=tuple(found), unknown=unknown)


def problem(
    id_: str, what: str, *, evidence: str, reason: str, fix: str, level: Level = "error"
) -> Finding:
    """Return a finding, which is an error by default."""
    return Finding(id=id_, level=level, what=what, evidence=evidence, reason=reason, fix=fix)


# -- the environment -------------------------------------------------------------------------------

_MAKE = {
    "conda": "conda env list",
    "uv": "uv sync",
    "pixi": "pixi install",
    "container": "set environment.container.image in config.yaml",
    "caller": "set environment.venv or environment.conda in config.yaml",
}


def environment(facts: EnvironmentFacts, context: DoctorContext) -> ProbeResult:
    """Evaluate whether the job's environment exists and starts, on the login node and on the
    compute nodes.
    """
    name, inside = facts.name, facts.inside
    if facts.late:
        return result("environment", f"{name} did not answer within a minute", unknown=True)
    if facts.missing is not None:
        missing = problem(
            "doctor-environment-missing",
            f"{name}: {facts.missing} does not exist",
            evidence="checked on this node",
            reason="the job activates it before anything else",
            fix=_MAKE.get(facts.kind)
            or f"python3 -m venv {shell.quote(context.spec.venv or 'venv')}",
        )
        return result("environment", f"{name} does not exist", [missing])
    if facts.kind == "container":
        sentence = f"{name} is not opened here; run: hpctrain doctor --job"
        return result("environment", sentence, unknown=True)
    if inside is None:
        other = "Exec format error" in (facts.messages or "")
        broken = problem(
            "doctor-environment-architecture" if other else "doctor-environment-broken",
            f"the Python of {name} does not start"
            + (f": it is not built for {context.machine}" if other else ""),
            evidence=f"its output: {facts.messages}",
            reason="it would not start in the job either",
            fix=_MAKE.get(facts.kind) or "recreate the environment on this cluster",
        )
        return result("environment", f"{name} has a Python that does not start", [broken])
    words = f"{name}: Python {inside.version} on {inside.machine}"
    return result("environment", words, _wrong_environment(facts, inside, context))


def _wrong_environment(
    facts: EnvironmentFacts, inside: InsideFacts, context: DoctorContext
) -> Iterator[Finding]:
    cluster, arch = context.cluster, context.shape.arch if context.shape is not None else None
    if cluster is not None and arch not in (None, inside.machine):
        yield problem(
            "doctor-environment-architecture",
            f"{facts.name} is built for {inside.machine}, and the nodes of {cluster.profile.name}"
            f" are {arch}",
            evidence=cluster.evidence("nodes", context.shape_name or "", "arch"),
            reason="its programs do not start there (Exec format error)",
            fix="recreate the environment on a node of the job's kind",
        )
    if facts.leads_to is not None:
        yield problem(
            "doctor-environment-broken",
            f"activating {facts.name} gives the Python of {facts.leads_to}",
            evidence="sys.prefix after the activation",
            reason=(
                "an environment that was copied or moved still names its old path, and the job"
                " would train with that one"
            ),
            fix=_MAKE.get(facts.kind)
            or f"python3 -m venv --clear {shell.quote(facts.place or '')}",
        )
    if facts.launcher is None:
        program = "python" if context.spec.launcher == "srun" else context.spec.launcher
        yield problem(
            "doctor-launcher-missing",
            f"{program} is not on PATH in {facts.name}",
            evidence=f"command -v {program}",
            reason="the job starts its processes with it",
            fix=_install(facts, inside, context),
        )


def _install(facts: EnvironmentFacts, inside: InsideFacts, context: DoctorContext) -> str:
    is_own = facts.kind == "caller"
    pip = "python3 -m pip install" if is_own else _pip(facts, inside)
    return f"{pip} {shell.quote(context.requirement)}"


def _pip(facts: EnvironmentFacts, inside: InsideFacts) -> str:
    """Return the install command of an environment; uv's environments have no pip."""
    python = shell.quote(inside.executable)
    return f"uv pip install --python {python}" if facts.kind == "uv" else f"{python} -m pip install"


# -- its packages ----------------------------------------------------------------------------------


def packages(facts: EnvironmentFacts, context: DoctorContext) -> ProbeResult:
    """Evaluate whether the libraries are installed and compatible."""
    inside = facts.inside
    if inside is None:
        return result("versions", "unknown: the environment did not answer", unknown=True)
    found = list(_package_problems(facts, inside, context))
    versions = inside.packages.items()
    shown = ", ".join(f"{name} {version}" for name, version in versions if name != "hpctrain")
    sentence = shown or "none of the libraries is installed"
    sentence += "; they agree" if shown and not found else ""
    return result("versions", sentence, found)


def _package_problems(
    facts: EnvironmentFacts, inside: InsideFacts, context: DoctorContext
) -> Iterator[Finding]:
    installed, evidence = inside.packages, f"importlib.metadata of {inside.executable}"
    # Everything for the built-in training; only the launcher for a custom script.
    of_launcher = {"accelerate": ["accelerate", "torch"], "torchrun": ["torch"], "srun": []}
    needed = of_launcher[context.spec.launcher]
    demands = facts.demands if context.spec.script is None else ()
    if context.spec.script is None:
        # Only the tasks of `hpctrain tune` import optuna.
        unneeded = "optuna" if context.spec.study is None else None
        needed = [name for name in map(_named, demands) if name != unneeded] + ["hpctrain"]
    missing = [name for name in needed if name not in installed]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        yield problem(
            "doctor-package-missing",
            f"{listed(missing)} {are} not installed in {facts.name}",
            evidence=evidence,
            reason="the job would stop at its first import",
            fix=_install(facts, inside, context),
        )
    there = installed.get("hpctrain", facts.here)
    for line in demands:
        name = _named(line)
        have = installed.get(name)
        if have is not None and not satisfies(have, line):
            yield problem(
                "doctor-versions-disagree",
                f"{name} is {have}, and hpctrain[train] {there} needs {line}",
                evidence=evidence,
                reason="an import or a call fails, some minutes into the job",
                fix=f"{_pip(facts, inside)} {shell.quote(line)}",
            )
    if there != facts.here:
        plain = context.requirement.replace("[train]", "", 1)
        same = f"{plain}=={facts.here}" if plain == "hpctrain" else plain
        yield problem(
            "doctor-hpctrain-differs",
            f"hpctrain is {facts.here} here and {there} in {facts.name}",
            level="warning",
            evidence=evidence,
            reason="a script of one version may use options that the other does not have",
            fix=f"{_pip(facts, inside)} {shell.quote(same)}",
        )


def torch_build(facts: EnvironmentFacts, context: DoctorContext) -> ProbeResult:
    """Evaluate whether torch was built for the GPUs of the job."""
    inside = facts.inside
    build = inside.torch if inside is not None else None
    if inside is None or build is None:
        return result("torch", "torch is not installed", unknown=True)
    names = {"cuda": f"CUDA {build.cuda}", "rocm": f"ROCm {build.hip}", "cpu": "the CPU only"}
    sentence = f"torch {build.version} is built for {names[build.vendor]}"
    wanted = context.shape.vendor if context.shape is not None else None
    if context.on_cpu or not context.spec.gpus_per_node:
        return result("torch", f"{sentence}, and the job trains on the CPU")
    if build.vendor == wanted or (wanted is None and build.vendor != "cpu"):
        return result("torch", sentence)
    target, evidence = f"the job requests GPUs ({context.spec.layout})", "torch/version.py"
    if wanted and context.cluster is not None:
        brand = "NVIDIA" if wanted == "cuda" else "AMD"
        target = f"{context.cluster.profile.name} has {brand} GPUs"
        evidence += f"; {context.cluster.evidence('nodes', context.shape_name or '', 'vendor')}"
    index = f"https://download.pytorch.org/whl/{_ROCM if wanted == 'rocm' else _CUDA}"
    finding = problem(
        "doctor-torch-build",
        f"{sentence}, and {target}",
        level="error" if wanted else "warning",
        evidence=evidence,
        reason="no process of the job could use a GPU",
        fix=f"{_pip(facts, inside)} torch --index-url {index}",
    )
    return result("torch", sentence, [finding])


# -- versions --------------------------------------------------------------------------------------


def _named(requirement: str) -> str:
    return Requirement(requirement).name.lower()


def satisfies(version: str, requirement: str) -> bool:
    """Return whether a version meets a requirement. Only releases are compared, so 5.0rc1 and
    5.0+cu126 count as 5.0.
    """
    release = Version(version).base_version
    return Requirement(requirement).specifier.contains(release, prereleases=True)
