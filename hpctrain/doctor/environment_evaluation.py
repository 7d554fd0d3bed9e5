"""Pure evaluation of the job's environment: whether it starts, its packages, its torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.version import Version

from hpctrain.checks.job import environment as rules
from hpctrain.checks.job import hardware
from hpctrain.checks.job.context import PathFacts, PythonFacts
from hpctrain.doctor.facts import DoctorContext, EnvironmentFacts, ProbeResult
from hpctrain.finding import Finding, Level
from hpctrain.util import shell
from hpctrain.util.text import listed


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


def evaluate(facts: EnvironmentFacts, context: DoctorContext) -> list[ProbeResult]:
    """Return the lines on the environment, on its libraries, and on its torch."""
    build, prefix, vendor = facts.torch, facts.prefix, None
    if build is not None:
        vendor = "cuda" if build.get("cuda") else "rocm" if build.get("hip") else "cpu"
    where = PathFacts(said=prefix, path=prefix, real=prefix, exists=True)
    python = PythonFacts(
        kind=facts.kind,
        said=str(getattr(context.spec, facts.kind, facts.name)),
        prefix=where,
        torch=vendor,
    )
    case = replace(context, around=replace(context.around, python=python))
    versions = list(_packages(facts, context))
    shown = ", ".join(f"{name} {of}" for name, of in facts.packages.items() if name != "hpctrain")
    sentence = shown or "none of the libraries is installed"
    sentence += "; they agree" if shown and not versions else ""
    of_torch = "torch is not installed"
    if build is not None:
        of_torch = f"torch {build.get('version')} is built for {vendor}"
        of_torch += f" {build.get('cuda') or build.get('hip') or ''}".rstrip()
        of_torch += ", and the job trains on the CPU" if hardware.uses_cpu(case) else ""
    return [
        result(
            "environment",
            f"{facts.name}: Python {facts.version} on {facts.machine}",
            _wrong_environment(facts, context),
        ),
        result("versions", sentence, versions),
        result("torch", of_torch, rules.torch_build(case), unknown=build is None),
    ]


def _wrong_environment(facts: EnvironmentFacts, context: DoctorContext) -> Iterator[Finding]:
    arch = context.of_nodes("arch")
    if arch is not None and arch.value != facts.machine:
        yield problem(
            "doctor-environment-architecture",
            f"{facts.name} is built for {facts.machine}, and the nodes are {arch.value}",
            level=arch.severity,
            evidence=arch.source,
            reason="its programs do not start there (Exec format error)",
            fix="recreate the environment on a node of the job's kind",
        )
    if facts.place is not None:
        yield problem(
            "doctor-environment-broken",
            f"activating {facts.name} gives the Python of {facts.prefix}",
            evidence="sys.prefix after the activation",
            reason=(
                "an environment that was copied or moved still names its old path, and the job"
                " would train with that one"
            ),
            fix=f"recreate it: python3 -m venv --clear {shell.quote(facts.place)}",
        )
    if facts.launcher is None:
        program = "python" if context.spec.launcher == "srun" else context.spec.launcher
        yield problem(
            "doctor-launcher-missing",
            f"{program} is not on PATH in {facts.name}",
            evidence=f"command -v {program}",
            reason="the job starts its processes with it",
            fix=_install(facts, context.around.requirement),
        )


def _install(facts: EnvironmentFacts, requirement: str) -> str:
    """Return the install command of an environment; uv's environments have no pip."""
    python = shell.quote(facts.executable)
    pip = f"uv pip install --python {python}" if facts.kind == "uv" else f"{python} -m pip install"
    return f"{pip} {shell.quote(requirement)}"


def _packages(facts: EnvironmentFacts, context: DoctorContext) -> Iterator[Finding]:
    packages, evidence = facts.packages, f"importlib.metadata of {facts.executable}"
    # Everything for the built-in training; only the launcher for a custom script.
    of_launcher = {"accelerate": ["accelerate", "torch"], "torchrun": ["torch"], "srun": []}
    needed = of_launcher[context.spec.launcher]
    demands = context.demands if context.spec.script is None else ()
    if context.spec.script is None:
        # Only the tasks of `hpctrain tune` import optuna.
        unneeded = "optuna" if context.spec.study is None else None
        names = [Requirement(line).name.lower() for line in demands]
        needed = [name for name in names if name != unneeded] + ["hpctrain"]
    missing = [name for name in needed if name not in packages]
    if missing:
        yield problem(
            "doctor-package-missing",
            f"not installed in {facts.name}: {listed(missing)}",
            evidence=evidence,
            reason="the job would stop at its first import",
            fix=_install(facts, context.around.requirement),
        )
    there = packages.get("hpctrain", context.version)
    for line in demands:
        name = Requirement(line).name.lower()
        if name in packages and not satisfies(packages[name], line):
            yield problem(
                "doctor-versions-disagree",
                f"{name} is {packages[name]}, and hpctrain[train] {there} needs {line}",
                evidence=evidence,
                reason="an import or a call fails, some minutes into the job",
                fix=_install(facts, line),
            )
    if there != context.version:
        plain = context.around.requirement.replace("[train]", "", 1)
        same = f"{plain}=={context.version}" if plain == "hpctrain" else plain
        yield problem(
            "doctor-hpctrain-differs",
            f"hpctrain is {context.version} here and {there} in {facts.name}",
            level="warning",
            evidence=evidence,
            reason="a script of one version may use options that the other does not have",
            fix=_install(facts, same),
        )


def satisfies(version: str, requirement: str) -> bool:
    """Return whether a version meets a requirement. Only releases are compared, so 5.0rc1 and
    5.0+cu126 count as 5.0.
    """
    release = Version(version).base_version
    return Requirement(requirement).specifier.contains(release, prereleases=True)
