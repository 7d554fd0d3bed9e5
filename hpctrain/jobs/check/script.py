"""A script that hpctrain did not write, held against a cluster: the rules of `check` that its directives alone can answer.

Pure. Only what stands in the text counts: a directive that is missing is missing, because no layer of a config fills it in.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

from hpctrain.clusters.profile import Cluster
from hpctrain.jobs import shell
from hpctrain.jobs.check import hardware, limits, site
from hpctrain.jobs.check.case import Case, KeyPath
from hpctrain.jobs.check.surroundings import Surroundings
from hpctrain.jobs.finding import LEVELS, Finding
from hpctrain.jobs.spec import GpuDirective, JobSpec
from hpctrain.scheduler.parse import directives, duration, memory_size

#: The findings of `check` that a text can have.
IDS = (
    "partition-unknown", "partition-missing", "account-form", "account-missing", "account-nodes", "qos-unknown", "qos-missing",
    "qos-not-allowed", "constraint-unknown", "constraint-partition",
    "directive-forbidden", "directive-discouraged", "directive-required", "time-limit",
    "nodes-limit", "gpus-limit", "array-limit", "gpu-dialect", "gpus-per-node", "memory-limit", "memory-too-small",
)  # fmt: skip
_GPU_IDS = ("gpu-dialect", "gpus-per-node", "gpus-limit")
_PATHS: dict[str, KeyPath] = {
    "nodes": ("resources", "nodes"), "partition": ("resources", "partition"), "account": ("resources", "account"),
    "qos": ("resources", "qos"), "constraint": ("resources", "constraint"), "time": ("resources", "time"), "mem": ("resources", "mem"),
    "gres": ("resources", "gpus_per_node"), "gpus-per-node": ("resources", "gpus_per_node"), "gpus": ("resources", "gpus_per_node"),
}  # fmt: skip
#: Paths that several directives can say.
_SEVERAL = (("resources", "gpus_per_node"),)
_GRES_GPU = re.compile(r"(?:^|,)gpu(?::(?P<type>[A-Za-z][^:,()]*))?(?::(?P<count>\d+))?(?=$|[,(])")


@dataclasses.dataclass(frozen=True)
class _ScriptCase(Case):
    """A case whose fixes are directives of the script."""

    file: str = ""

    def command(self, *changes: tuple[str, str], verb: str = "render", without: KeyPath = ()) -> str:
        """Return the command that looks again."""
        del verb, without
        wanted = "".join(f"#SBATCH {_directive(option, value)}, then: " for option, value in changes)
        name = self.cluster.profile.name if self.cluster is not None else "NAME"
        return f"{wanted}hpctrain lint --cluster {name} {shell.quote(self.file)}"

    def fix(self, *changes: tuple[KeyPath, object]) -> str:
        """Return the directives to write."""
        names = {path: name for name, path in _PATHS.items() if name in (self.written or {}) or path not in _SEVERAL}
        return self.command(*((f"--{names.get(path, path[-1].replace('_', '-'))}", str(value)) for path, value in changes))


def _no_memory(case: _ScriptCase) -> list[Finding]:
    """Return a warning where a site gives little memory to a job that asks for none. How much the job needs, its text does not tell."""
    profile = case.profile
    default = profile.memory.default_per_cpu if profile is not None else None
    if profile is None or default is None or {"mem", "mem-per-cpu", "mem-per-gpu", "exclusive"} & set(case.written or {}):
        return []
    share = profile.nodes[case.shape_name].memory_for(case.spec.gpus_per_node) if case.shape_name in profile.nodes else None
    wanted = memory_size.format(share) if share is not None else "0"
    return [
        case.finding(
            "memory-too-small", "warning", f"no memory is asked for, and this site then gives {memory_size.format(default)} for each core",
            evidence=case.cluster.evidence("memory", "default_per_cpu") if case.cluster is not None else "",
            reason="a training that loads its model needs more, and is killed: OUT_OF_MEMORY", fix=case.command(("--mem", wanted)),
        )
    ]  # fmt: skip


def _directive(option: str, value: str) -> str:
    if option == "--gpu-directive":  # an option of ours that is no directive
        return "without a GPU request" if value == "none" else f"--{value}={'gpu:N' if value == 'gres' else 'N'} as the only GPU request"
    if option == "--gres" and value.isdecimal():
        value = f"gpu:{value}"
    return f"{option}={value}" if value else option


def check_script(text: str, file: str, cluster: Cluster) -> list[Finding]:
    """Return what of the script's directives contradicts the site; none for a text that sbatch would not read."""
    try:
        read = directives.read(text)
    except ValueError:
        return []  # lint says why
    written = directives.last_values(read)
    lines = {directive.name: directive.line for directive in read}
    origins = {path: f"{file}:{lines[name]}:1" for name, path in _PATHS.items() if name in lines}
    origins |= {("sbatch", name): f"{file}:{line}:1" for name, line in lines.items() if name not in _PATHS}
    asks_gpus, spec = _spec(written, cluster)
    case = _ScriptCase(spec, cluster, None, Surroundings(), origins, file=file, written=written)
    found = [finding for module in (site, limits, hardware) for finding in module.rules(case)]
    found += _no_memory(case)
    kept = [each for each in found if each.id in IDS and (asks_gpus or each.id not in _GPU_IDS)]
    placed = [each if each.line is not None else dataclasses.replace(each, file=file, line=1, column=1) for each in kept]
    return sorted(placed, key=lambda finding: (finding.line or 0, LEVELS.index(finding.level)))


def _spec(written: Mapping[str, str | None], cluster: Cluster) -> tuple[bool, JobSpec]:
    """Return whether the script asks for GPUs, and the job that its directives describe, as far as they are of the usual forms."""
    nodes = _count((written.get("nodes") or "1").partition("-")[0]) or 1
    dialect, gpus, kind = _gpus(written, nodes)
    tasks = _count(written.get("ntasks-per-node"))
    spec = JobSpec(
        job_name="script", chdir="/", script="script", launcher="srun" if tasks and tasks > 1 else "torchrun", nodes=nodes,
        gpus_per_node=gpus or 1, gpu_type=kind, gpu_directive=dialect, partition=written.get("partition"), account=written.get("account"),
        qos=written.get("qos"), constraint=written.get("constraint"), time_s=_read(duration.parse, written.get("time")),
        mem_bytes=_read(memory_size.parse, written.get("mem")), cluster=cluster.profile.name,
        array=written.get("array"),
    )  # fmt: skip
    return bool(gpus), spec


def _gpus(written: Mapping[str, str | None], nodes: int) -> tuple[GpuDirective, int | None, str | None]:
    gres = _GRES_GPU.search(written.get("gres") or "")
    if gres is not None:
        return "gres", int(gres["count"] or 1), gres["type"]
    names: tuple[GpuDirective, GpuDirective] = ("gpus-per-node", "gpus")
    for name in names:
        kind, _, count = (written.get(name) or "").rpartition(":")
        if count.isdecimal():
            return name, int(count) if name == "gpus-per-node" else -(-int(count) // nodes), kind or None
    return "none", None, None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 7 else None


def _read(parse: Callable[[str], int | None], text: str | None) -> int | None:
    try:
        return parse(text) if text else None
    except ValueError:
        return None
