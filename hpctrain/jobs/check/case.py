"""One job under examination, with the questions that several rules ask: what the site says, where a value was written, what to type.

Pure. Live facts win over the profile's; a fact that nobody knows is None, and no rule finds anything in a None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from hpctrain.jobs import shell
from hpctrain.jobs.check.surroundings import Surroundings
from hpctrain.jobs.finding import Finding, Level
from hpctrain.jobs.spec import JobSpec

if TYPE_CHECKING:  # pydantic is behind the profile, and not every check needs one
    from hpctrain.clusters.live import LiveCluster, LiveNodes, LivePartition
    from hpctrain.clusters.profile import Cluster, NodeShape, Partition, Profile

T = TypeVar("T")
KeyPath = tuple[str, ...]

#: Levels of evidence on which a finding may be an error; what was only seen in scripts, or remembered, makes a warning.
SURE = frozenset({"live", "documented", "reported", "own"})
#: config path → the option that says the same, for what to type.
OPTIONS: dict[KeyPath, str] = {
    ("resources", "nodes"): "--nodes", ("resources", "gpus_per_node"): "--gpus", ("resources", "partition"): "--partition",
    ("resources", "account"): "--account", ("resources", "qos"): "--qos", ("resources", "time"): "--time", ("resources", "mem"): "--mem",
    ("resources", "mem_per_cpu"): "--mem-per-cpu", ("resources", "cpus_per_task"): "--cpus-per-task",
    ("resources", "constraint"): "--constraint", ("resources", "gpu_type"): "--gpu-type",
    ("resources", "gpu_directive"): "--gpu-directive", ("script",): "--script", ("chdir",): "--chdir",
    ("accelerate_config",): "--accelerate-config", ("offline",): "--offline", ("environment", "venv"): "--venv",
    ("environment", "conda"): "--conda", ("launcher",): "--launcher",
    ("environment", "uv"): "--uv", ("environment", "pixi"): "--pixi", ("sharding",): "--sharding", ("cluster",): "--cluster",
    ("environment", "container", "image"): "--container",
}  # fmt: skip
#: Partitions that are no place for a training.
_FOR_TESTS = re.compile(r"debug|dbg|dev|test|interactive", re.IGNORECASE)
_BEHIND = "behind --"
_FLAGGED = re.compile(r"--[a-z][a-z0-9-]*\Z")
#: In a constraint: more than names that all have to be there.
_ODD = re.compile(r"[|*()\[\]]")


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """What is known of the site: the value, how well it is attested (a key of profile.EVIDENCE), and the words that say where."""

    value: T
    level: str
    source: str

    @property
    def severity(self) -> Level:
        """The most that a finding on this fact alone may be."""
        return "error" if self.level in SURE else "warning"


@dataclass(frozen=True)
class Case:
    """A job, the site, and what lies around.

    Attributes:
        origins: config path → where it was written: `config.yaml:12:3`, `--nodes`, `HPCTRAIN_NODES`, `cluster profile X`, `default`.
        typed: what the user typed behind the verb, option and value, so that what we tell them to type keeps the rest.
        arguments: what they typed behind `--`.
        local: the job will run on this machine.
        written: the directives of a script that hpctrain did not write; None: those of the spec.
    """

    spec: JobSpec
    cluster: Cluster | None
    live: LiveCluster | None
    around: Surroundings
    origins: Mapping[KeyPath, str] = field(default_factory=dict)
    typed: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    local: bool = False
    written: Mapping[str, str | None] | None = None

    # -- what the site says ---------------------------------------------------------------------------------------------

    @property
    def profile(self) -> Profile | None:
        """The profile that had a say."""
        return self.cluster.profile if self.cluster is not None else None

    def fact(self, value: T | None, *path: str) -> Fact[T] | None:
        """Return a value of the profile with its evidence; None for None."""
        if value is None or self.cluster is None:
            return None
        origins = self.cluster.origins
        found = next((origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in origins), None)
        return Fact(value, found.level if found is not None else "own", self.cluster.evidence(*path))

    @cached_property
    def partition_names(self) -> tuple[str, ...]:
        """The partitions that the job asks for; several are tried in turn by Slurm."""
        return tuple(name for name in (self.spec.partition or "").split(",") if name)

    @cached_property
    def chosen_by_site(self) -> bool:
        """Whether no default counts, as the site finds the partition by the constraint (IDRIS, NERSC) or by the QOS (BSC)."""
        if self.partition_names or self.profile is None:
            return False
        if self.spec.constraint is not None and any(shape.select.constraint for shape in self.profile.nodes.values()):
            return True
        by_qos = self.profile.qos_required and bool(self._homes)
        return by_qos and not set(self._homes) & {each.name for each in self._defaults}

    @property
    def _defaults(self) -> tuple[LivePartition, ...]:
        return tuple(each for each in (self.live.partitions or () if self.live is not None else ()) if each.default)

    @cached_property
    def _homes(self) -> tuple[str, ...]:
        """The partitions that the profile says the job's nodes are in."""
        shape = self.profile.shape_name(partition=None, constraint=self.spec.constraint) if self.profile is not None else None
        return tuple(name for name, each in self.profile.partitions.items() if shape and each.nodes == shape) if self.profile else ()

    @cached_property
    def landing(self) -> tuple[LivePartition, ...]:
        """The live partitions that the job can land in, where no name says which."""
        there = self.live.partitions or () if self.live is not None else ()
        if self.partition_names:
            return tuple(each for each in there if self.partition_names == (each.name,))
        if not self.chosen_by_site:
            return self._defaults[:1]
        up = [each for each in there if each.up is not False]
        if self.spec.constraint is not None and any(group.features for each in up for group in each.nodes):
            found = [each for each in up if any(_has(group, self.spec.constraint) for group in each.nodes)]
        else:
            found = [each for each in up if each.name in self._homes]
        taking = [each for each in found if each.allow_qos is None or self.spec.qos in (None, *each.allow_qos)]
        return tuple(taking or found)

    @cached_property
    def live_partition(self) -> LivePartition | None:
        """The partition as Slurm shows it; of several, none: Slurm, or the site, chooses later."""
        return self.landing[0] if len(self.landing) == 1 else None

    @cached_property
    def partition_name(self) -> str | None:
        """The name of the partition that the job lands in, by default too."""
        if self.partition_names:
            return self.partition_names[0] if len(self.partition_names) == 1 else None
        if self.live_partition is not None:
            return self.live_partition.name
        if self.profile is None or (self.chosen_by_site and self.live is not None and self.live.partitions):
            return None
        if self.chosen_by_site and self._homes:
            return self._homes[0] if len(self._homes) == 1 else None
        default = next((name for name, each in self.profile.partitions.items() if each.default), None)
        return self.profile.defaults.partition or default

    @property
    def known_partition(self) -> Partition | None:
        """The partition as the profile shows it."""
        return self.profile.partitions.get(self.partition_name or "") if self.profile is not None else None

    @cached_property
    def shape_name(self) -> str | None:
        """The profile's key of the nodes that the job lands on."""
        if self.profile is None:
            return None
        spec = self.spec
        return self.profile.shape_name(partition=self.partition_name, constraint=spec.constraint, account=spec.account)

    @property
    def shape(self) -> NodeShape | None:
        """The nodes that the job lands on, as the profile shows them."""
        return self.profile.nodes.get(self.shape_name or "") if self.profile is not None else None

    @cached_property
    def live_nodes(self) -> tuple[LiveNodes, ...]:
        """The groups of nodes of the partition that have every feature that the job asks for; all where that cannot be told."""
        groups = tuple(dict.fromkeys(group for partition in self.landing for group in partition.nodes))
        asked = self.spec.constraint or ""
        if not asked or _ODD.search(asked):
            return groups
        return tuple(group for group in groups if _has(group, asked)) or groups

    def node(self, name: str) -> Fact[int] | None:
        """Return the most `gpus`, `cpus` or `memory` (bytes) that one node of the job can have.

        Of CPUs and memory, Slurm shows what a node has, and a profile what a job can have: the smaller counts. Some sites hand out
        whole nodes and configure no GRES, so a Slurm that shows no GPU anywhere says nothing about GPUs.
        """
        live = {"gpus": "gpu_count", "cpus": "cpus", "memory": "memory"}[name]
        values = [value for value in (getattr(group, live) for group in self.live_nodes) if value is not None]
        known = self.fact(getattr(self.shape, name), "nodes", self.shape_name or "", name) if self.shape is not None else None
        if name == "gpus" and not any(each.gpus_max for each in (self.live.partitions or () if self.live is not None else ())):
            values = []
        if not values:
            return known
        shown = Fact(max(values), "live", f"sinfo -p {','.join(each.name for each in self.landing)}")
        return known if name != "gpus" and known is not None and known.value < shown.value else shown

    @cached_property
    def whole_nodes(self) -> Fact[bool] | None:
        """Whether a job gets, or pays for, nodes whole whatever it asks for."""
        live, known = self.live_partition, self.known_partition
        if live is not None and live.exclusive:
            return Fact(True, "live", f"scontrol show partition {live.name}: OverSubscribe=EXCLUSIVE")
        if known is not None and known.whole_nodes is not None:
            return self.fact(known.whole_nodes, "partitions", self.partition_name or "", "whole_nodes")
        if self.profile is not None and self.profile.billing.unit is not None:
            return self.fact(self.profile.billing.unit == "node", "billing", "unit")
        return None

    # -- where it was written, and what to type ------------------------------------------------------------------------

    def origin(self, *path: str) -> str:
        """Return where the value at `path`, or the nearest section around it, was written; arguments may stand behind `--`, and win."""
        if path[0] == "training" and path[-1] in (
            word[2:].partition("=")[0].replace("-", "_") for word in self.arguments if word[:2] == "--"
        ):
            return _BEHIND
        return next((self.origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.origins), "default")

    def said(self, *path: str, value: object) -> str:
        """Return the words that show a value where it was written: `config.yaml:12:3: time: 48:00:00`, `--time 48:00:00`."""
        origin = self.origin(*path)
        if _FLAGGED.match(origin):
            return f"{origin} {path[-1]}={value}" if origin == "--sbatch" else f"{origin} {value}"
        if origin == _BEHIND:
            return f"--{path[-1]} {value}, behind --"
        if origin.startswith("HPCTRAIN_"):
            return f"{origin}={value}"
        if origin == "default" or origin.startswith(("profile ", "cluster profile ")):
            return f"{path[-1]} {value} ({origin})"
        return f"{origin}: {path[-1]}: {value}"

    def command(self, *changes: tuple[str, str], verb: str = "render", without: KeyPath = ()) -> str:
        """Return the command with these options in place of what the user typed for them; everything else stays, but `without`."""
        left_out = [("--sbatch", without[-1])] if without[:1] == ("sbatch",) else [(OPTIONS[without], "")] if without in OPTIONS else []
        changed = {_key(*pair) for pair in (*changes, *left_out)}
        kept = [pair for pair in self.typed if _key(*pair) not in changed]
        words = [word for option, value in (*kept, *changes) for word in ([option, value] if value else [option])]
        tail = ("--", *self.arguments) if self.arguments else ()
        return shell.join(("hpctrain", verb, *words, *tail))

    def fix(self, *changes: tuple[KeyPath, object]) -> str:
        """Return what to write, or type, so that these config paths get these values."""
        files = [path for path, _ in changes if re.search(r":\d+:\d+\Z", self.origin(*path)) and self.origin(*path) != "default"]
        command = self.command(*((OPTIONS[path], str(value)) for path, value in changes))
        if not files:
            return command
        lines = [f"{path[-1]}: {value} in {self.origin(*path).rpartition(':')[0]}" for path, value in changes if path in files]
        return f"{' and '.join(lines)}, or: {command}"

    def finding(self, id_: str, level: Level, what: str, *, evidence: str, reason: str, fix: str) -> Finding:
        """Return a finding, with the place in the config file where its evidence starts with one."""
        place = re.match(r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+): ", evidence)
        return Finding(
            id=id_, level=level, what=what, evidence=evidence, reason=reason, fix=fix,
            file=place["file"] if place else None,
            line=int(place["line"]) if place else None,
            column=int(place["column"]) if place else None,
        )  # fmt: skip


def _has(group: LiveNodes, constraint: str) -> bool:
    """Whether nodes have all features of a constraint; of one with alternatives, any."""
    asked = features(constraint)
    return bool(asked & set(group.features)) if _ODD.search(constraint) else asked <= set(group.features)


def features(constraint: str) -> set[str]:
    """Return the names in a constraint: `[a100|h100*2]&nvme` has three."""
    return {name for name in re.split(r"[&|,*()\[\]]+", constraint) if name and not name.isdecimal()}


def _key(option: str, value: str) -> tuple[str, str]:
    """Return what makes two options the same one; --sbatch carries many."""
    return (option, value.partition("=")[0]) if option == "--sbatch" else (option, "")


def confirm(fact: Fact[T], command: str) -> str:
    """Return the words that send a person to the site for a fact that is not sure; nothing for one that is."""
    return "" if fact.severity == "error" else f"; confirm with: {command}"


def likely_partition(case: Case, wrong: str | None = None, listed: tuple[str, ...] = ()) -> str | None:
    """Return the partition that is meant by a wrong name, or where the job fits, the default one first and one for tests last."""
    near = closest(wrong, listed, cutoff=0.6) if wrong is not None else None
    if near is not None:
        return near
    live, profile, gpus = case.live.partitions if case.live is not None else None, case.profile, case.spec.gpus_per_node
    default = profile.defaults.partition if profile is not None else None
    if live is not None:
        fits = [(each.name, each.default) for each in live if each.up is not False and (each.gpus_max or 0) >= gpus]
    else:
        known = profile.partitions.items() if profile is not None else ()
        shapes = profile.nodes if profile is not None else {}
        fits = [(name, each.default) for name, each in known if each.nodes in shapes and shapes[each.nodes].gpus > 0]
    ranked = sorted(fits, key=lambda each: (bool(_FOR_TESTS.search(each[0])), each[0] != default, not each[1]))
    return ranked[0][0] if ranked else closest(wrong or "", tuple(name for name in listed if not _FOR_TESTS.search(name)) or listed)


def closest(word: str, known: tuple[str, ...], *, cutoff: float = 0.0) -> str | None:
    """Return the known name that is meant most likely; case counts little. `cutoff`: 0 takes any, 1 only the same."""
    import difflib

    lowered = {name.lower(): name for name in reversed(known)}
    found = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=cutoff)
    return lowered[found[0]] if found else None
