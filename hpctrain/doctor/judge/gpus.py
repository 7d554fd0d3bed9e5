"""Judge of the GPUs that the nodes of a preflight job have seen, and of their health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.doctor.words import many, size
from hpctrain.jobs.finding import Finding

if TYPE_CHECKING:
    from hpctrain.doctor.facts import Case
    from hpctrain.doctor.report import GpuFacts, Report

#: What a GPU's driver and display keep for themselves; more is somebody's.
_OWN_BYTES = 1 << 30
_HOT = 85  # degrees Celsius before any work: data-centre GPUs throttle from about 90


def gpus(report: Report, case: Case) -> list[Finding]:
    """Return what is wrong with number and health of the GPUs."""
    found = _counts(report, case)
    for gpu in report.gpus:
        found += [*_errors(gpu), *_throttled(gpu), *_in_use(gpu)]
    return found


def _counts(report: Report, case: Case) -> list[Finding]:
    asked = case.spec.gpus_per_node
    if report.ranks and all(rank.on_cpu for rank in report.ranks):
        return [
            Finding(
                id="node-gpus-missing", level="note", what=f"the GPUs were not tried ({asked} for each node)",
                evidence="ACCELERATE_USE_CPU is set in the job", reason="the training would run on the CPU, as asked",
                fix="unset ACCELERATE_USE_CPU, where the GPUs are meant",
            )
        ]  # fmt: skip
    found = []
    for node in report.nodes:
        seen = [rank.visible for rank in report.ranks_of(node.host) if rank.visible is not None]
        if not seen or min(seen) >= asked:
            continue
        build = next((rank for rank in report.ranks_of(node.host) if rank.version is not None), None)
        evidence = f"torch.cuda.device_count(); Slurm gave {'nothing it tells of' if node.gpus_given is None else node.gpus_given}"
        fix = f"leave the node out: --sbatch exclude={node.host}"
        if build is not None and build.cuda is None and build.hip is None:
            evidence, fix = f"torch {build.version} is a CPU build", "hpctrain doctor, which says which torch the cluster wants"
        elif node.gpus:
            evidence += f"; NVML lists {node.gpus}"
        found.append(
            Finding(
                id="node-gpus-missing", level="error", what=f"{node.host}: {min(seen)} of {many(asked, 'GPU')}", evidence=evidence,
                reason="a process without a GPU of its own stops the training, or shares one", fix=fix,
            )
        )  # fmt: skip
    return found


def _errors(gpu: GpuFacts) -> list[Finding]:
    bad = []
    if gpu.ecc_volatile:
        bad.append(f"{many(gpu.ecc_volatile, 'uncorrected memory error')} since its driver was loaded")
    if gpu.rows_pending:
        bad.append("memory rows or pages wait to be retired, which takes a reset of the GPU")
    if gpu.rows_failed:
        bad.append("bad memory rows could not be replaced")
    if not bad:
        return []
    history = f", {gpu.ecc_aggregate} in its life" if gpu.ecc_aggregate else ""
    return [
        Finding(
            id="node-gpu-errors", level="error" if gpu.rows_failed or gpu.ecc_volatile else "warning",
            what=f"{gpu.host}: GPU {gpu.index} ({gpu.name}): {'; '.join(bad)}", evidence=f"NVML, {gpu.uuid}{history}",
            reason="such an error ends the process that uses the memory (Xid 48, 63, 64, 94, 95)",
            fix=f"leave the node out, and tell the site: --sbatch exclude={gpu.host}",
        )
    ]  # fmt: skip


def _throttled(gpu: GpuFacts) -> list[Finding]:
    reasons = [*(gpu.throttled or ())]
    hot = gpu.celsius is not None and gpu.celsius >= _HOT
    # A power cap in use is normal under load; hardware that slows itself down is not.
    reasons = [reason for reason in reasons if reason != "power cap"]
    if not reasons and not hot:
        return []
    return [
        Finding(
            id="node-gpu-throttled", level="warning",
            what=f"{gpu.host}: GPU {gpu.index} is slowed down: {', '.join(reasons) or 'heat'}"
            + (f", {gpu.celsius} °C" if gpu.celsius is not None else ""),
            evidence=f"NVML, before the job did anything; {gpu.uuid}", reason="all ranks wait for the slowest GPU in every step",
            fix=f"leave the node out, and tell the site: --sbatch exclude={gpu.host}",
        )
    ]  # fmt: skip


def _in_use(gpu: GpuFacts) -> list[Finding]:
    used = gpu.used or 0
    if not gpu.processes and used < _OWN_BYTES:
        return []
    who = f"processes {', '.join(map(str, gpu.processes))}" if gpu.processes else "nobody that the driver names"
    return [
        Finding(
            id="node-gpu-in-use", level="warning", what=f"{gpu.host}: GPU {gpu.index} has {size(used)} in use before the job begins",
            evidence=f"NVML: {who}", reason="the memory is missing: what fits on the other GPUs runs out of memory on this one",
            fix=f"left over from another job: tell the site, and leave the node out: --sbatch exclude={gpu.host}",
        )
    ]  # fmt: skip
