"""Judges of Python and of the job's environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.doctor.judge import versions
from hpctrain.doctor.verdict import Verdict
from hpctrain.jobs import shell
from hpctrain.jobs.finding import Finding

if TYPE_CHECKING:
    from hpctrain.doctor.facts import Case, EnvironmentFacts, InsideFacts, PythonFacts

#: Directories that each node has for itself.
_NODE_LOCAL = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/", "/local/", "/scratch_local/")  # noqa: S108
#: File systems that lie in memory.
_NODE_LOCAL_TYPES = ("tmpfs", "ramfs")
_OLDEST_PYTHON = (3, 11)


def python(facts: PythonFacts) -> Verdict:
    """Say which Python runs hpctrain and where it comes from."""
    if facts.conda:
        source = f"the conda environment {facts.prefix}"
    elif facts.prefix != facts.base_prefix:
        source = f"the virtual environment {facts.prefix}, made from {facts.base_prefix}"
    else:
        source = facts.prefix
    return Verdict(probe="python", sentence=f"hpctrain runs on Python {facts.version} of {source}")


def environment(facts: EnvironmentFacts, case: Case) -> Verdict:
    """Say whether the job's environment is there and starts, on this machine and on the nodes."""
    if facts.late:
        return Verdict(probe="environment", sentence=f"{facts.name} did not answer within a minute", unknown=True)
    if facts.missing is not None:
        return Verdict(probe="environment", sentence=f"{facts.name} is not there", findings=(_missing(facts, case),))
    found = _architecture(facts, case)
    if facts.kind == "container":
        return Verdict(probe="environment", sentence=f"{facts.name} is not opened here; see: hpctrain doctor --job", unknown=True)
    if facts.inside is None:
        if not found:
            found = [_broken(facts)]
        return Verdict(probe="environment", sentence=f"{facts.name} has a Python that does not start", findings=tuple(found))
    if facts.leads_to is not None:
        found.append(_moved(facts))
    found += [*_old(facts.inside), *_launcher(facts, case), *_node_local(facts, case)]
    words = f"{facts.name}: Python {facts.inside.version} on {facts.inside.machine}"
    if facts.file_system:
        words += f", on {facts.file_system}"
    return Verdict(probe="environment", sentence=words, findings=tuple(found))


def packages(facts: EnvironmentFacts, case: Case) -> Verdict:
    """Say whether the libraries are there and agree with one another."""
    inside = facts.inside
    if inside is None:
        return Verdict(probe="versions", sentence="not known, because the environment did not answer", unknown=True)
    installed = dict(inside.packages)
    needed = _needed(facts, case)
    missing = [name for name in needed if name not in installed]
    found: list[Finding] = []
    if missing:
        found.append(
            Finding(
                id="doctor-package-missing", level="error", what=f"{_and(missing)} {_is(missing)} not installed in {facts.name}",
                evidence=f"importlib.metadata of {inside.executable}", reason="the job would stop at its first import",
                fix=_install(facts, case),
            )
        )  # fmt: skip
    found += [_disagree(line, facts, installed, inside) for line in _unmet(facts, case)]
    if (there := installed.get("hpctrain")) is not None and there != facts.here:
        found.append(
            Finding(
                id="doctor-hpctrain-differs", level="warning",
                what=f"hpctrain is {facts.here} here and {there} in {facts.name}", evidence=f"importlib.metadata of {inside.executable}",
                reason="a script of one version may ask what the training of the other does not know",
                fix=f"{_pip(facts, inside)} {_same(case, facts)}",
            )
        )  # fmt: skip
    shown = ", ".join(f"{name} {version}" for name, version in inside.packages if name != "hpctrain")
    sentence = f"{shown or 'none of the libraries is installed'}" + ("; they agree" if shown and not found else "")
    return Verdict(probe="versions", sentence=sentence, findings=tuple(found))


def torch_build(facts: EnvironmentFacts, case: Case) -> Verdict:
    """Say whether torch was built for the GPUs that the job will meet."""
    inside = facts.inside
    build = inside.torch if inside is not None else None
    if inside is None or build is None:
        return Verdict(probe="torch", sentence="no torch to look at", unknown=True)
    name = {"cuda": f"CUDA {build.cuda}", "rocm": f"ROCm {build.hip}", "cpu": "the CPU only"}[build.vendor]
    sentence = f"torch {build.version} is built for {name}"
    wanted = case.shape.vendor if case.shape is not None else None
    cluster = case.cluster.profile.name if case.cluster is not None else None
    if case.on_cpu or build.vendor == wanted or (wanted is None and build.vendor != "cpu"):
        return Verdict(probe="torch", sentence=sentence + (", and ACCELERATE_USE_CPU is set" if case.on_cpu else ""))
    target = f"{cluster} has {'NVIDIA' if wanted == 'cuda' else 'AMD'} GPUs" if wanted else f"the job asks for GPUs ({case.spec.layout})"
    evidence = "torch/version.py"
    if case.cluster is not None and wanted:
        evidence += f"; {case.cluster.evidence('nodes', case.shape_name or '', 'vendor')}"
    index = "https://download.pytorch.org/whl/"
    finding = Finding(
        id="doctor-torch-build", level="error" if wanted else "warning", what=f"{sentence}, and {target}",
        evidence=evidence,
        reason="no process of the job would see a GPU",
        fix=f"{_pip(facts, inside)} torch --index-url {index}{'rocm6.4' if wanted == 'rocm' else 'cu126'}, or the site's own module",
    )  # fmt: skip
    return Verdict(probe="torch", sentence=sentence, findings=(finding,))


def inputs(facts: EnvironmentFacts, case: Case) -> Verdict:
    """Say whether model and dataset are what the training reads, in the words of the training's own checks."""
    if case.spec.script is not None:
        return Verdict(probe="model and data", sentence=f"{case.spec.script} reads its own; not looked at")
    problems = facts.inside.problems if facts.inside is not None else None
    if problems is None:
        return Verdict(probe="model and data", sentence="not looked at: the environment's hpctrain did not answer", unknown=True)
    found = tuple(
        Finding(
            id="doctor-model-or-data", level="error", what=what, evidence=f"read in {case.spec.chdir}",
            reason="the training refuses to start without it", fix=fix,
        )
        for what, fix in problems
    )  # fmt: skip
    return Verdict(
        probe="model and data", sentence="the training can read both" if not found else "the training cannot start", findings=found
    )


def _install(facts: EnvironmentFacts, case: Case) -> str:
    pip = _pip(facts, facts.inside) if facts.inside is not None and facts.kind != "caller" else "python3 -m pip install"
    return f"{pip} {shell.quote(case.requirement)}"


def _pip(facts: EnvironmentFacts, inside: InsideFacts) -> str:
    """Return what installs into an environment; uv's own have no pip."""
    python = shell.quote(inside.executable)
    return f"uv pip install --python {python}" if facts.kind == "uv" else f"{python} -m pip install"


def _same(case: Case, facts: EnvironmentFacts) -> str:
    """Return what pip takes for the hpctrain that asks."""
    plain = case.requirement.replace("[train]", "", 1)
    return shell.quote(f"{plain}=={facts.here}" if plain == "hpctrain" else plain)


def _missing(facts: EnvironmentFacts, case: Case) -> Finding:
    make = {
        "venv": f"python3 -m venv DIRECTORY, then: DIRECTORY/bin/pip install {shell.quote(case.requirement)}",
        "conda": "conda env list",
        "uv": "uv sync, in that project",
        "pixi": "pixi install, in that project",
        "container": "correct environment.container.image in config.yaml",
        "caller": "name the environment: environment.venv or .conda in config.yaml",
    }[facts.kind]
    return Finding(
        id="doctor-environment-missing", level="error", what=f"{facts.name}: there is no {facts.missing}",
        evidence="looked for on this node",
        reason="the job activates it before anything else", fix=make,
    )  # fmt: skip


def _broken(facts: EnvironmentFacts) -> Finding:
    return Finding(
        id="doctor-environment-broken", level="error", what=f"the Python of {facts.name} does not start",
        evidence=f"it said: {facts.said}", reason="it would not start in the job either",
        fix="bash -x the activation by hand, or make the environment anew on this cluster",
    )  # fmt: skip


def _moved(facts: EnvironmentFacts) -> Finding:
    return Finding(
        id="doctor-environment-broken", level="error", what=f"activating {facts.name} gives the Python of {facts.leads_to}",
        evidence="sys.prefix after the activation",
        reason="an environment that was copied or moved still names its old place, and the job would train with that one",
        fix="make it anew where it is to stay: python3 -m venv DIRECTORY",
    )  # fmt: skip


def _architecture(facts: EnvironmentFacts, case: Case) -> list[Finding]:
    binary = facts.binary or (facts.inside.machine if facts.inside is not None else None)
    if binary is None:
        return []
    if case.machine and binary != case.machine:
        where, evidence = f"this node is {case.machine}", "the ELF header of its python"
    elif case.shape is not None and case.shape.arch is not None and binary != case.shape.arch and case.cluster is not None:
        where, evidence = (
            f"the nodes of {case.cluster.profile.name} are {case.shape.arch}",
            case.cluster.evidence("nodes", case.shape_name or "", "arch"),
        )
    else:
        return []
    return [
        Finding(
            id="doctor-environment-architecture", level="error", what=f"{facts.name} is made for {binary}, and {where}", evidence=evidence,
            reason="its programs do not start there (Exec format error)", fix="make the environment anew, on a node of the job's kind",
        )
    ]  # fmt: skip


def _old(inside: InsideFacts) -> list[Finding]:
    if versions.parse(inside.version)[:2] >= _OLDEST_PYTHON:
        return []
    return [
        Finding(
            id="doctor-python-old", level="error", what=f"Python {inside.version} is too old for hpctrain, which needs 3.11",
            evidence=inside.executable, reason="hpctrain cannot be installed in that environment", fix="python3.11 -m venv DIRECTORY",
        )
    ]  # fmt: skip


def _launcher(facts: EnvironmentFacts, case: Case) -> list[Finding]:
    if facts.launcher is not None:
        return []
    program = "python" if case.spec.launcher == "srun" else case.spec.launcher
    return [
        Finding(
            id="doctor-launcher-missing", level="error", what=f"{program} is not on PATH in {facts.name}", evidence=f"command -v {program}",
            reason="the job starts its processes with it",
            fix=_install(facts, case) if facts.kind != "caller" else "name the environment that has it: hpctrain doctor --venv DIRECTORY",
        )
    ]  # fmt: skip


def _node_local(facts: EnvironmentFacts, case: Case) -> list[Finding]:
    place = facts.place or ""
    if not case.slurm or not (place.startswith(_NODE_LOCAL) or facts.file_system in _NODE_LOCAL_TYPES):
        return []
    return [
        Finding(
            id="doctor-environment-node-local", level="warning", what=f"{facts.name} lies where other nodes may not find it",
            evidence=f"{place}, on {facts.file_system or 'an unknown file system'}", reason="each node has a /tmp of its own",
            fix=f"make it on a shared file system: {_shared(case)}",
        )
    ]  # fmt: skip


def _shared(case: Case) -> str:
    """Return how to make the environment where all nodes see it: in the job's directory, else where the profile has storage."""
    if not f"{case.spec.chdir}/".startswith(_NODE_LOCAL):
        return f"python3 -m venv {shell.quote(case.spec.chdir)}/.venv"
    storage = case.cluster.profile.storage if case.cluster is not None else {}
    usable = [
        place.path for place in storage.values()
        if place.path and place.on_compute_nodes is not False and not (place.in_memory or place.slow_for_environments or place.purge_days)
        and not f"{place.path}/".startswith(_NODE_LOCAL)
    ]  # fmt: skip
    if not usable:
        return "the job's directory lies where each node has its own, too"
    # $USER is left for the shell; a place in angle brackets, for which nothing is known, for the reader.
    path = usable[0].replace("<account>", case.spec.account or "<account>")
    return f"python3 -m venv {path}/envs/train"


def _needed(facts: EnvironmentFacts, case: Case) -> list[str]:
    """Return what has to be installed: everything for the shipped training; for a script of the user's own, its launcher."""
    if case.spec.script is None:
        return [*(versions.demand(line)[0] for line in facts.demands), "hpctrain"]
    return {"accelerate": ["accelerate", "torch"], "torchrun": ["torch"], "srun": []}[case.spec.launcher]


def _unmet(facts: EnvironmentFacts, case: Case) -> list[tuple[str, str]]:
    """Return (who, demand) for every demand that an installed version does not meet."""
    inside = facts.inside
    if inside is None:
        return []
    asked = [(name, line) for name, lines in inside.requires for line in lines]
    if case.spec.script is None:
        asked += [("hpctrain[train]", line) for line in facts.demands]
    unmet = []
    for who, line in asked:
        name, bounds = versions.demand(line)
        have = inside.version_of(name)
        if have is not None and not versions.satisfies(have, bounds):
            unmet.append((who, line))
    return unmet


def _disagree(unmet: tuple[str, str], facts: EnvironmentFacts, installed: dict[str, str], inside: InsideFacts) -> Finding:
    who, line = unmet
    name = versions.demand(line)[0]
    version = installed.get(who.partition("[")[0], facts.here)
    return Finding(
        id="doctor-versions-disagree", level="error", what=f"{name} is {installed[name]}, and {who} {version} needs {line}",
        evidence=f"importlib.metadata of {inside.executable}", reason="the import fails, or a call does, some minutes into the job",
        fix=f"{_pip(facts, inside)} {shell.quote(line)}",
    )  # fmt: skip


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
