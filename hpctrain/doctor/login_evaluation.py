"""Pure evaluation of the login node's facts: one result per check."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from hpctrain.doctor.facts import (
    DoctorContext,
    EnvironmentFacts,
    InsideFacts,
    ModuleFacts,
    ModulesFacts,
    OfflineFacts,
    PlaceFacts,
    ProbeResult,
    SlurmFacts,
)
from hpctrain.finding import Finding, Level
from hpctrain.util import shell
from hpctrain.util.file_systems import FileSystem
from hpctrain.util.text import count, listed, size

#: Free space below this does not fit the next checkpoint of a small model.
_OLDEST_PYTHON = Version("3.11")
_LITTLE_BYTES = 5 << 30
_FEW_INODES = 10_000
#: Fraction of a quota above which a job may exceed it.
_NEAR = 0.9
#: Messages of Environment Modules and Lmod about a nonexistent module.
_UNKNOWN_WORDS = ("unable to locate", "unknown", "not found", "cannot be loaded as requested")
#: Messages of programs about a missing network.
_NETWORK = re.compile(
    r"network|offline|connect|unreachable|resol(?:ve|ution)|name or service|timed?"
    r" ?out|proxy|https?:|huggingface\.co|LocalEntryNotFound",
    re.IGNORECASE,
)


_CUDA, _ROCM = "cu126", "rocm6.4"
_OFFLINE_WAY = "with offline libraries and unreachable proxies"


def _result(
    probe: str, sentence: str, found: Iterable[Finding] = (), *, unknown: bool = False
) -> ProbeResult:
    return ProbeResult(probe=probe, sentence=sentence, findings=tuple(found), unknown=unknown)


def _finding(
    id_: str, what: str, *, evidence: str, reason: str, fix: str, level: Level = "error"
) -> Finding:
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
        return _result("environment", f"{name} did not answer within a minute", unknown=True)
    if facts.missing is not None:
        missing = _finding(
            "doctor-environment-missing",
            f"{name}: {facts.missing} does not exist",
            evidence="checked on this node",
            reason="the job activates it before anything else",
            fix=_MAKE.get(facts.kind)
            or f"python3 -m venv {shell.quote(context.spec.venv or 'venv')}",
        )
        return _result("environment", f"{name} does not exist", [missing])
    if facts.kind == "container":
        sentence = f"{name} is not opened here; run: hpctrain doctor --job"
        return _result("environment", sentence, unknown=True)
    if inside is None:
        other = "Exec format error" in (facts.messages or "")
        broken = _finding(
            "doctor-environment-architecture" if other else "doctor-environment-broken",
            f"the Python of {name} does not start"
            + (f": it is not built for {context.machine}" if other else ""),
            evidence=f"its output: {facts.messages}",
            reason="it would not start in the job either",
            fix=_MAKE.get(facts.kind) or "recreate the environment on this cluster",
        )
        return _result("environment", f"{name} has a Python that does not start", [broken])
    words = f"{name}: Python {inside.version} on {inside.machine}"
    return _result("environment", words, _wrong_environment(facts, inside, context))


def _wrong_environment(
    facts: EnvironmentFacts, inside: InsideFacts, context: DoctorContext
) -> Iterator[Finding]:
    cluster, arch = context.cluster, context.shape.arch if context.shape is not None else None
    if cluster is not None and arch not in (None, inside.machine):
        yield _finding(
            "doctor-environment-architecture",
            f"{facts.name} is built for {inside.machine}, and the nodes of {cluster.profile.name}"
            f" are {arch}",
            evidence=cluster.evidence("nodes", context.shape_name or "", "arch"),
            reason="its programs do not start there (Exec format error)",
            fix="recreate the environment on a node of the job's kind",
        )
    if facts.leads_to is not None:
        yield _finding(
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
    if Version(inside.version) < _OLDEST_PYTHON:
        yield _finding(
            "doctor-python-old",
            f"Python {inside.version} is too old for hpctrain, which needs 3.11",
            evidence=inside.executable,
            reason="hpctrain cannot be installed in that environment",
            fix="python3.11 -m venv venv",
        )
    if facts.launcher is None:
        program = "python" if context.spec.launcher == "srun" else context.spec.launcher
        yield _finding(
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
        return _result("versions", "unknown: the environment did not answer", unknown=True)
    found = list(_package_problems(facts, inside, context))
    versions = inside.packages.items()
    shown = ", ".join(f"{name} {version}" for name, version in versions if name != "hpctrain")
    sentence = shown or "none of the libraries is installed"
    sentence += "; they agree" if shown and not found else ""
    return _result("versions", sentence, found)


def _package_problems(
    facts: EnvironmentFacts, inside: InsideFacts, context: DoctorContext
) -> Iterator[Finding]:
    installed, evidence = inside.packages, f"importlib.metadata of {inside.executable}"
    # Everything for the built-in training; only the launcher for a custom script.
    of_launcher = {"accelerate": ["accelerate", "torch"], "torchrun": ["torch"], "srun": []}
    needed = of_launcher[context.spec.launcher]
    asked = list(inside.requires)
    if context.spec.script is None:
        # Only `hpctrain tune` imports optuna.
        needed = [*(set(map(_named, facts.demands)) - {"optuna"}), "hpctrain"]
        asked += [("hpctrain[train]", line) for line in facts.demands]
    missing = [name for name in needed if name not in installed]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        yield _finding(
            "doctor-package-missing",
            f"{listed(missing)} {are} not installed in {facts.name}",
            evidence=evidence,
            reason="the job would stop at its first import",
            fix=_install(facts, inside, context),
        )
    for who, line in asked:
        name = _named(line)
        have, version = installed.get(name), installed.get(who.partition("[")[0], facts.here)
        if have is not None and not satisfies(have, line):
            yield _finding(
                "doctor-versions-disagree",
                f"{name} is {have}, and {who} {version} needs {line}",
                evidence=evidence,
                reason="an import or a call fails, some minutes into the job",
                fix=f"{_pip(facts, inside)} {shell.quote(line)}",
            )
    there = installed.get("hpctrain", facts.here)
    if there != facts.here:
        plain = context.requirement.replace("[train]", "", 1)
        same = f"{plain}=={facts.here}" if plain == "hpctrain" else plain
        yield _finding(
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
        return _result("torch", "torch is not installed", unknown=True)
    names = {"cuda": f"CUDA {build.cuda}", "rocm": f"ROCm {build.hip}", "cpu": "the CPU only"}
    sentence = f"torch {build.version} is built for {names[build.vendor]}"
    wanted = context.shape.vendor if context.shape is not None else None
    if context.on_cpu:
        return _result("torch", f"{sentence}, and ACCELERATE_USE_CPU is set")
    if build.vendor == wanted or (wanted is None and build.vendor != "cpu"):
        return _result("torch", sentence)
    target, evidence = f"the job requests GPUs ({context.spec.layout})", "torch/version.py"
    if wanted and context.cluster is not None:
        brand = "NVIDIA" if wanted == "cuda" else "AMD"
        target = f"{context.cluster.profile.name} has {brand} GPUs"
        evidence += f"; {context.cluster.evidence('nodes', context.shape_name or '', 'vendor')}"
    index = f"https://download.pytorch.org/whl/{_ROCM if wanted == 'rocm' else _CUDA}"
    finding = _finding(
        "doctor-torch-build",
        f"{sentence}, and {target}",
        level="error" if wanted else "warning",
        evidence=evidence,
        reason="no process of the job could use a GPU",
        fix=f"{_pip(facts, inside)} torch --index-url {index}",
    )
    return _result("torch", sentence, [finding])


# -- modules, disks, network, Slurm ----------------------------------------------------------------


def modules(facts: ModulesFacts, context: DoctorContext) -> ProbeResult:
    """Evaluate which modules load, and why one fails."""
    if not context.spec.modules:
        return _result("modules", "the job loads none")
    if facts.late:
        return _result("modules", "`module load` did not end within a minute", unknown=True)
    profile = context.cluster.profile if context.cluster is not None else None
    elsewhere = profile is not None and profile.modules.on_login_nodes is False
    if facts.command is False and elsewhere:
        sentence = "this login node has no `module` command; compute nodes have it"
        return _result("modules", sentence, unknown=True)
    if facts.command is False:
        finding = _finding(
            "doctor-module-command",
            f"the job's shell ({facts.program}) has no `module` command; the job loads"
            f" {', '.join(context.spec.modules)}",
            evidence="type module",
            reason="the job would stop with `module: command not found`",
            fix="set launch.shebang: '#!/bin/bash -l' in config.yaml",
        )
        return _result("modules", "the job's shell has no `module` command", [finding])
    failed = [module for module in facts.modules if module.loaded is False]
    unknown = [module for module in facts.modules if module.loaded is None]
    if failed and elsewhere and profile is not None:
        names = ", ".join(module.name for module in failed)
        sentence = f"{names}: on {profile.name} modules load on compute nodes only"
        return _result("modules", sentence, unknown=True)
    if failed:
        sentence = f"{len(failed)} of {len(facts.modules)} do not load"
        return _result("modules", sentence, map(_not_loaded, failed))
    if unknown:
        sentence = f"{unknown[0].name} ended the shell that loaded it"
        return _result("modules", sentence, unknown=True)
    return _result("modules", f"{', '.join(module.name for module in facts.modules)} load here")


def _not_loaded(module: ModuleFacts) -> Finding:
    name, messages = module.name.partition("/")[0], module.messages.lower()
    unknown = name.lower() in messages and any(words in messages for words in _UNKNOWN_WORDS)
    return _finding(
        "doctor-module-unknown",
        f"the module {module.name} does not {'exist' if unknown else 'load'} here",
        evidence=f"module load printed: {module.messages or 'nothing'}",
        reason="the job stops there, before the training",
        fix=f"module {'avail' if unknown else 'show'} {shell.quote(name if unknown else module.name)}",
    )


def quotas(places: list[PlaceFacts]) -> ProbeResult:
    """Evaluate free space and quotas where the job writes."""
    found, parts = list[Finding](), list[str]()
    for place in places:
        system, quota = place.system, place.quota
        if system is None:
            parts.append(f"{place.name}: unknown")
            continue
        inodes = "" if system.free_files is None else f" and {count(system.free_files, 'file')}"
        parts.append(f"{place.name} ({system.kind}): {size(system.free)}{inodes} free")
        found += _room(place, system)
        if quota is None:
            continue
        files = f"{quota.files:,} of {count(quota.files_limit, 'file')}"
        for used, limit, words in (
            (quota.used, quota.limit, f"{size(quota.used)} of {size(quota.limit)}"),
            (quota.files, quota.files_limit, files),
        ):
            if not limit:
                continue
            parts.append(f"quota of {place.name}: {words}")
            if used >= _NEAR * limit:
                wrong = _finding(
                    "doctor-quota",
                    f"the quota of {system.mount} is at {words}",
                    level="error" if used >= limit else "warning",
                    evidence=quota.command,
                    reason="at the limit every write of the job fails",
                    fix="du -sh ~/.cache ~/.conda",
                )
                found.append(wrong)
    return _result("quotas", "; ".join(parts), dict.fromkeys(found))


def _room(place: PlaceFacts, system: FileSystem) -> Iterator[Finding]:
    where, path = f"in {place.name} ({place.path})", shell.quote(place.path)
    if system.free < _LITTLE_BYTES and system.kind != "ramfs":
        yield _finding(
            "doctor-disk-full",
            f"only {size(system.free)} are free {where}",
            level="warning",
            evidence="statvfs",
            reason="a checkpoint or a cache that does not fit ends the job",
            fix=f"df -h {path}",
        )
    if system.free_files is not None and system.free_files < _FEW_INODES:
        yield _finding(
            "doctor-inodes",
            f"only {count(system.free_files, 'more file')} can be created {where}",
            level="warning",
            evidence="statvfs",
            reason="an environment has tens of thousands of files: without inodes, writes fail",
            fix=f"df -i {path}",
        )


def offline(facts: OfflineFacts, context: DoctorContext) -> ProbeResult:
    """Evaluate whether the training starts without a network."""
    if facts.skipped is not None:
        return _result("offline", f"not tried: {facts.skipped}", unknown=True)
    if facts.late:
        return _result("offline", "the start had not ended after three minutes", unknown=True)
    if facts.failed is None:
        script = context.spec.script
        what = "the training starts" if script is None else f"{script} imports"
        took = f", in {facts.seconds:.0f} s" if facts.seconds else ""
        return _result("offline", f"{what} {_OFFLINE_WAY}{took}")
    fixes = [line.removeprefix("fix: ") for line in facts.messages if line.startswith("fix: ")]
    messages = [line for line in facts.messages if not line.startswith("fix: ")]
    network = _NETWORK.search(" ".join(messages)) is not None
    internet = context.cluster.profile.internet.compute if context.cluster is not None else None
    reaches = network and internet in ("yes", "proxy")
    waits = "most compute nodes have no internet: there the job waits for timeouts, then fails"
    elsewhere = "the message does not mention the network, so the job would stop there too"
    finding = _finding(
        "doctor-offline" if network else "doctor-start",
        f"{'without a network ' if network else ''}the start fails at: {facts.failed}",
        level="warning" if reaches else "error",
        evidence=f"tried {_OFFLINE_WAY}: {' / '.join(messages) or 'no output'}",
        reason=("compute nodes reach the internet" if reaches else waits if network else elsewhere),
        fix=(
            "download what it needs on the login node, and name local directories in the job"
            if network
            else [*fixes, "hpctrain doctor"][0]
        ),
    )
    return _result("offline", f"the start fails at: {facts.failed}", [finding])


def slurm(facts: SlurmFacts, context: DoctorContext) -> ProbeResult:
    """Evaluate whether Slurm answers, and the user's accounts."""
    if not facts.installed:
        return _result("slurm", "sinfo is not on PATH: jobs run locally", unknown=True)
    if facts.silent is not None:
        finding = _finding(
            "doctor-slurm-silent",
            "Slurm does not answer",
            evidence=f"its output: {facts.silent}",
            reason="no job can be submitted",
            fix="sinfo",
        )
        return _result("slurm", "Slurm does not answer", [finding])
    words = f"{facts.version}, {count(len(facts.partitions), 'partition')}"
    if facts.accounts is None:
        return _result("slurm", f"{words}; your accounts are unknown: accounting does not answer")
    if facts.accounts:
        plural = "account" if len(facts.accounts) == 1 else "accounts"
        return _result("slurm", f"{words}; your {plural}: {', '.join(facts.accounts)}")
    profile = context.cluster.profile if context.cluster is not None else None
    command = profile.account.list_command if profile is not None else None
    finding = _finding(
        "doctor-no-account",
        "you have no Slurm account",
        level="warning",
        evidence="sacctmgr show user withassoc",
        reason="where accounts are enforced, sbatch refuses every job",
        fix=command or "sacctmgr show user $USER withassoc",
    )
    return _result("slurm", f"{words}; no account", [finding])


def cluster(facts: SlurmFacts, context: DoctorContext) -> ProbeResult:
    """Report the cluster profile that is used, or that would match."""
    if context.cluster is None:
        words = "no profile for this machine: nothing is compared with a cluster's nodes"
        if facts.detected:
            names = " or ".join(facts.detected)
            words = f"no `cluster:` in the config; this machine looks like {names}: "
            words += f"--cluster {facts.detected[0]}"
        return _result("cluster", words, unknown=True)
    profile, shape = context.cluster.profile, context.shape
    words = f"{profile.name}: {profile.title}"
    if shape is not None:
        kind = f" {shape.gpu}" if shape.gpu else ""
        words += f"; nodes with {count(shape.gpus, 'GPU')}{kind}"
    return _result("cluster", words)


# -- versions --------------------------------------------------------------------------------------


def _named(requirement: str) -> str:
    try:
        return Requirement(requirement).name.lower()
    except InvalidRequirement:
        return requirement.strip()


def satisfies(version: str, requirement: str) -> bool:
    """Return whether a version meets a requirement. Only releases are compared, so 5.0rc1 and
    5.0+cu126 count as 5.0; unreadable versions pass.
    """
    try:
        release = Version(version).base_version
        return Requirement(requirement).specifier.contains(release, prereleases=True)
    except (InvalidRequirement, InvalidVersion):
        return True
