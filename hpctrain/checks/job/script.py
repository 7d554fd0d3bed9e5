"""A script that hpctrain did not write, compared with a cluster by the rules of `check` that need
only its directives.

Pure. Only the text counts: no config layer fills in missing directives.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

from hpctrain.checks.job.context import RULES, Case, Surroundings
from hpctrain.checks.script import lint
from hpctrain.clusters.profile import Cluster
from hpctrain.config.fields import GpuDirective
from hpctrain.config.spec import JobSpec
from hpctrain.finding import LEVELS, Finding
from hpctrain.slurm.notations import directives, units
from hpctrain.util import shell
from hpctrain.util.schema import KeyPath
from hpctrain.util.text import is_number

#: The findings of `check` that apply to a script's text.
IDS = (
    *("partition-unknown", "partition-missing", "account-missing", "account-nodes", "qos-missing"),
    *("qos-not-allowed", "directive-forbidden", "directive-discouraged", "directive-required"),
    *("time-limit", "nodes-limit", "gpus-limit", "gpu-dialect", "gpus-per-node", "memory-limit"),
)
_GPU_IDS = ("gpu-dialect", "gpus-per-node", "gpus-limit")
_PATHS: dict[str, KeyPath] = {
    "nodes": ("resources", "nodes"),
    "partition": ("resources", "partition"),
    "account": ("resources", "account"),
    "qos": ("resources", "qos"),
    "constraint": ("resources", "constraint"),
    "time": ("resources", "time"),
    "mem": ("resources", "mem"),
    "gres": ("resources", "gpus_per_node"),
    "gpus-per-node": ("resources", "gpus_per_node"),
    "gpus": ("resources", "gpus_per_node"),
}
#: Directives with a number of GPUs, and whether it is of the whole job.
_PER: dict[GpuDirective, bool] = {"gpus-per-node": False, "gpus": True}
_GRES_GPU = re.compile(r"(?:^|,)gpu(?::(?P<type>[A-Za-z][^:,()]*))?(?::(?P<count>\d+))?(?=$|[,(])")


@dataclasses.dataclass(frozen=True)
class _ScriptCase(Case):
    """A case whose fixes are directives of the script."""

    file: str = ""

    def command(
        self, *changes: tuple[str, str], verb: str | None = None, without: KeyPath = ()
    ) -> str:
        """Return the directives to write, and the command that repeats the check."""
        del verb, without
        wanted = "".join(f"#SBATCH {name}={value}, then: " for name, value in changes)
        name = self.cluster.profile.name if self.cluster is not None else "NAME"
        return f"{wanted}hpctrain lint --cluster {name} {shell.quote(self.file)}"

    def fix(self, *changes: tuple[KeyPath, object]) -> str:
        """Return the directives to write."""
        names = {path: name for name, path in _PATHS.items() if name not in ("gres", "gpus")}
        words: list[tuple[str, str]] = []
        for path, value in changes:
            name, text = names.get(path, path[-1].replace("_", "-")), str(value)
            if path == ("resources", "gpu_directive"):  # an option of hpctrain, not a directive
                name, text = text, "gpu:N" if text == "gres" else "N"
            words += [(f"--{name}", text)] if name != "none" else []
        return self.command(*words)


def check_script(text: str, file: str, cluster: Cluster) -> list[Finding]:
    """Return lint's findings in the script and the conflicts of its directives with the site, the
    most severe first.
    """
    of_text = lint(text, file, cluster.profile.slurm.version)
    try:
        read = directives.read(text)
    except ValueError:  # lint reports it
        return of_text
    written = directives.last_values(read)
    lines = {directive.name: directive.line for directive in read}
    origins = {path: f"{file}:{lines[name]}:1" for name, path in _PATHS.items() if name in lines}
    origins |= {
        ("sbatch", name): f"{file}:{line}:1" for name, line in lines.items() if name not in _PATHS
    }
    asks_gpus, spec = _spec(written, cluster)
    case = _ScriptCase(spec, cluster, None, Surroundings(), origins, file=file, written=written)
    found = [finding for _, on, find in RULES if on == "site" for finding in find(case)]
    kept = [each for each in found if each.id in IDS and (asks_gpus or each.id not in _GPU_IDS)]
    placed = [
        each if each.line is not None else dataclasses.replace(each, file=file, line=1, column=1)
        for each in kept
    ]
    whole = case.whole_nodes  # then no other job can use the port
    of_text = [
        each
        for each in of_text
        if each.id != "fixed-port" or not (whole is not None and whole.value)
    ]
    return sorted([*of_text, *placed], key=lambda each: (LEVELS.index(each.level), each.line or 0))


def _spec(written: Mapping[str, str | None], cluster: Cluster) -> tuple[bool, JobSpec]:
    nodes = _count((written.get("nodes") or "1").partition("-")[0]) or 1
    dialect, gpus, kind = _gpus(written, nodes)
    tasks = _count(written.get("ntasks-per-node"))
    spec = JobSpec(
        job_name="script",
        chdir="/",
        script="script",
        launcher="srun" if tasks and tasks > 1 else "torchrun",
        nodes=nodes,
        gpus_per_node=gpus or 1,
        gpu_type=kind,
        gpu_directive=dialect,
        partition=written.get("partition"),
        account=written.get("account"),
        qos=written.get("qos"),
        constraint=written.get("constraint"),
        time_s=_read(units.parse_time, written.get("time")),
        mem_bytes=_read(units.parse_memory, written.get("mem")),
        cluster=cluster.profile.name,
        array=written.get("array"),
    )
    return bool(gpus), spec


def _gpus(
    written: Mapping[str, str | None], nodes: int
) -> tuple[GpuDirective, int | None, str | None]:
    gres = _GRES_GPU.search(written.get("gres") or "")
    if gres is not None:
        return "gres", int(gres["count"] or 1), gres["type"]
    for name, parts in _PER.items():
        kind, _, count = (written.get(name) or "").rpartition(":")
        if is_number(count):
            return name, -(-int(count) // (nodes if parts else 1)), kind or None
    return "none", None, None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and is_number(text) and len(text) < 7 else None


def _read(parse: Callable[[str], int | None], text: str | None) -> int | None:
    try:
        return parse(text) if text else None
    except ValueError:
        return None
