"""The context of the job rules: frozen facts about files, the shell and the Python environment,
gathered by `hpctrain.checks.gather`, and the site.

Pure: nothing here reads files or runs programs. Unknown is None; a missing file is a fact (`exists`
False), not an unknown. Sizes are bytes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from hpctrain.clusters.live import Association, LiveCluster, LiveNodes, LivePartition
from hpctrain.clusters.profile import Cluster, NodeShape, Partition, Profile
from hpctrain.config.fields import BY_PATH
from hpctrain.config.spec import JobSpec
from hpctrain.finding import Finding, Level
from hpctrain.fit.layout import DataFacts
from hpctrain.jobs import suggest
from hpctrain.util.file_systems import FileSystem
from hpctrain.util.schema import KeyPath, nearest
from hpctrain.util.text import is_number


@dataclass(frozen=True, kw_only=True)
class PathFacts:
    """One path that the job uses.

    Attributes:
        said: as the user wrote it; `path`: absolute; `real`: symbolic links resolved.
        writable: the file can be written, or files created in the directory; for a missing path,
            whether it can be created.
        mode: permission bits.
        parent: the nearest existing ancestor directory.
    """

    said: str
    path: str
    real: str
    exists: bool
    is_dir: bool = False
    writable: bool | None = None
    mode: int | None = None
    parent: str = "/"
    filesystem: FileSystem | None = None


@dataclass(frozen=True, kw_only=True)
class FolderProblem:
    """A problem of a model or dataset directory (hpctrain.training.preflight.Problem)."""

    what: str
    fix: str
    cause: Literal["raw", "lfs"] | None = None


@dataclass(frozen=True, kw_only=True)
class InputFacts:
    """The directory of the model or of the dataset.

    Attributes:
        problems: reasons for which the training would refuse it.
        config: of a model: parsed config.json; None if missing.
        cached: for a name on the Hub: whether the local cache contains it.
        tokenizer: the fingerprint of a model's tokenizer (hpctrain.data.manifest), or of the one
            that a prepared dataset was made with, and its name in `tokenizer_name`.
        prepared: the manifest of a prepared dataset.
    """

    where: PathFacts
    problems: tuple[FolderProblem, ...] = ()
    config: Mapping[str, Any] | None = None
    cached: bool | None = None
    tokenizer: str | None = None
    tokenizer_name: str | None = None
    prepared: DataFacts | None = None


@dataclass(frozen=True, kw_only=True)
class PythonFacts:
    """The Python environment that the job activates.

    Attributes:
        kind: `venv`, `conda`, `uv` or `pixi`, for doctor also `caller`, the submitting shell's;
            `said`: as the user named it.
        prefix: its directory; None if no conda environment with that name was found.
        lacks: the file that it needs to start and does not have.
        packages: of its site-packages: name, with underscores → version ("": unknown); None if that
            was not found.
        torch: from torch/version.py: `cuda`, `rocm` or `cpu`.
        version: of its Python, such as (3, 12).
    """

    kind: str
    said: str
    prefix: PathFacts | None
    lacks: str | None = None
    packages: Mapping[str, str] | None = None
    torch: str | None = None
    version: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class SecretFacts:
    """A secret of the job: its file, or (None) whether the caller's shell has the variable."""

    name: str
    file: PathFacts | None = None
    in_shell: bool = False


@dataclass(frozen=True, kw_only=True)
class AccelerateFacts:
    """The accelerate config; `problems` are lines `file:line:col: sentence`."""

    where: PathFacts
    problems: tuple[str, ...] = ()
    distributed_type: str | None = None


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The environment of a job, as far as it can be read before the job queues.

    Attributes:
        user: the login name, for storage paths with $USER.
        variables: shell variables for storage paths; never secrets.
        output: the training's output directory: --output_dir, else the run directory under chdir.
        script: the user's script; `syntax`: `LINE:COLUMN: message` if Python cannot compile it.
        hooks: the files of `before` and `after`.
        launcher_on_path: path of `accelerate`, `torchrun` or `python`; None if not on PATH.
        image: the container's file; None if the image is not a file (a registry's name).
        requirement: pip requirement for hpctrain with the training libraries.
    """

    user: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    chdir: PathFacts | None = None
    output: PathFacts | None = None
    model: InputFacts | None = None
    dataset: InputFacts | None = None
    script: PathFacts | None = None
    syntax: str | None = None
    python: PythonFacts | None = None
    accelerate: AccelerateFacts | None = None
    image: PathFacts | None = None
    binds: tuple[PathFacts, ...] = ()
    hooks: tuple[PathFacts, ...] = ()
    secrets: tuple[SecretFacts, ...] = ()
    requirement: str = "hpctrain[train]"
    launcher_on_path: str | None = None

    @property
    def paths(self) -> tuple[tuple[str, PathFacts], ...]:
        """Return the paths that the compute nodes must see, each with a description."""
        found: list[tuple[str, PathFacts | None]] = [
            ("the job's directory", self.chdir),
            ("the output directory", self.output),
            ("the model", self.model.where if self.model else None),
            ("the dataset", self.dataset.where if self.dataset else None),
            ("the script", self.script),
            ("the Python environment", self.python.prefix if self.python else None),
            ("the container image", self.image),
            *(("a hook", hook) for hook in self.hooks),
            *((f"the file of the secret {secret.name}", secret.file) for secret in self.secrets),
        ]
        return tuple(
            (what, path)
            for what, path in found
            if path is not None and (path.exists or path is self.output)
        )


T = TypeVar("T")

#: Levels of evidence sufficient for an error; weaker evidence (seen in scripts, remembered) gives a
#: warning.
SURE = frozenset({"live", "documented", "reported", "own"})
_BEHIND = "after --"
_FLAGGED = re.compile(r"--[a-z][a-z0-9-]*\Z")
_NO_PROFILE = Profile(name="unknown", title="unknown")
_NO_ANSWER = LiveCluster()
#: Characters in a constraint beyond a conjunction of features.
_ODD = re.compile(r"[|*()\[\]]")


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A known fact about the site: its value, its level of evidence (a key of profile.EVIDENCE),
    and its source as text.
    """

    value: T
    level: str
    source: str

    @property
    def severity(self) -> Level:
        """The highest level of a finding based on this fact alone."""
        return "error" if self.level in SURE else "warning"


@dataclass(frozen=True)
class Case:
    """A job, the site, and its environment.

    Attributes:
        cluster: the profile, with Slurm's answers laid over it (hpctrain.clusters.merge).
        live: Slurm's answers.
        origins: config path → where it was set: `config.yaml:12:3`, `--nodes`, `HPCTRAIN_NODES`,
            `cluster profile X`, `default`.
        verb: the subcommand in suggested commands: `submit` during a submission.
        typed: the user's options and values after the subcommand, which suggested commands keep.
        arguments: the user's arguments after `--`.
        local: the job will run locally.
        written: the directives of a script that hpctrain did not write; None: those of the spec.
        varied: training arguments that the parameter combinations of a sweep set.
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
    varied: tuple[str, ...] = ()
    verb: str = "render"

    # -- the site ----------------------------------------------------------------------------------

    @property
    def profile(self) -> Profile:
        """The cluster profile, or an empty one."""
        return self.cluster.profile if self.cluster is not None else _NO_PROFILE

    @property
    def slurm(self) -> LiveCluster:
        """Slurm's answers, or empty ones."""
        return self.live or _NO_ANSWER

    @property
    def partitions(self) -> tuple[LivePartition, ...]:
        """The partitions that Slurm lists."""
        return self.slurm.partitions or ()

    def fact(self, value: T | None, *path: str) -> Fact[T] | None:
        """Return a value of the profile with its evidence; None for None."""
        if value is None or self.cluster is None:
            return None
        found = self.cluster.attested(*path)
        level = found.level if found is not None else "own"
        return Fact(value, level, self.cluster.evidence(*path))

    def of_nodes(self, name: str) -> Fact[Any] | None:
        """Return the profile's value for the nodes that the job gets."""
        value = getattr(self.shape, name) if self.shape is not None else None
        return self.fact(value, "nodes", self.shape_name or "", name)

    def of_partition(self, name: str) -> Fact[Any] | None:
        """Return a limit of the partition."""
        value = getattr(self.known_partition, name, None)
        return self.fact(value, "partitions", self.partition_name or "", name)

    def associations(self, account: str | None) -> list[Association]:
        """Return the user's associations with an account; slurmdbd stores names in lower case."""
        name = (account or "").lower()
        return [each for each in self.slurm.associations or () if each.account.lower() == name]

    @cached_property
    def partition_names(self) -> tuple[str, ...]:
        """The requested partitions; Slurm tries several in turn."""
        return tuple(name for name in (self.spec.partition or "").split(",") if name)

    @cached_property
    def _site_chooses(self) -> bool:
        """Whether the site selects the partition by constraint (IDRIS, NERSC) or QOS (BSC), so that
        no default applies.
        """
        shapes = self.profile.nodes.values()
        selects = self.spec.constraint is not None and any(
            each.select.constraint for each in shapes
        )
        return not self.partition_names and (selects or self.profile.qos_required)

    @cached_property
    def live_partition(self) -> LivePartition | None:
        """The job's partition according to Slurm; None if several are possible."""
        return None if self._site_chooses else self.slurm.partition(self.spec.partition)

    @cached_property
    def partition_name(self) -> str | None:
        """The name of the job's partition, requested or default; None if several are possible."""
        if self.live_partition is not None:
            return self.live_partition.name
        if self._site_chooses or len(self.partition_names) > 1:
            return None
        known = self.profile.partitions.items()
        default = next((name for name, each in known if each.default), None)
        return self.spec.partition or self.profile.defaults.partition or default

    @property
    def known_partition(self) -> Partition | None:
        """The partition according to the profile."""
        return self.profile.partitions.get(self.partition_name or "")

    @cached_property
    def shape_name(self) -> str | None:
        """The profile's key of the nodes that the job gets."""
        spec = self.spec
        return self.profile.shape_name(
            partition=self.partition_name, constraint=spec.constraint, account=spec.account
        )

    @property
    def shape(self) -> NodeShape | None:
        """The nodes that the job gets, according to the profile."""
        return self.profile.nodes.get(self.shape_name or "")

    @cached_property
    def live_nodes(self) -> tuple[LiveNodes, ...]:
        """The node groups that the job can run on; features with alternatives are not compared."""
        among = self.partitions if self._site_chooses else (self.live_partition,)
        groups = [group for each in among if each is not None for group in each.nodes]
        asked = self.spec.constraint or ""
        wanted = set() if _ODD.search(asked) else features(asked)
        return tuple(group for group in groups if wanted <= set(group.features)) or tuple(groups)

    def node(self, name: Literal["gpus", "cpus", "memory"]) -> Fact[int] | None:
        """Return the maximum GPUs, CPUs or memory (bytes) of the job on one node.

        For CPUs and memory, Slurm shows a node's total and a profile the part available to jobs:
        the smaller value counts. Some sites allocate whole nodes and configure no GRES, so Slurm's
        answer is ignored if it shows no GPU anywhere.
        """
        field_name = "gpu_count" if name == "gpus" else name
        values = [getattr(group, field_name) for group in self.live_nodes]
        values = [value for value in values if value is not None]
        known = self.of_nodes(name)
        without_gres = name == "gpus" and not any(each.gpus_max for each in self.partitions)
        if not values or without_gres:
            return known
        of_profile = name != "gpus" and known is not None and known.level != "live"
        if of_profile and known is not None and known.value < max(values):
            return known
        place = f"sinfo -p {self.partition_name}" if self.partition_name else "sinfo"
        return Fact(max(values), "live", place)

    @cached_property
    def whole_nodes(self) -> Fact[bool] | None:
        """Whether a job gets, or is charged for, entire nodes."""
        given, unit = self.of_partition("whole_nodes"), self.profile.billing.unit
        if unit is None or (given is not None and given.value):
            return given
        return self.fact(unit == "node", "billing", "unit")

    # -- origins and suggested commands ------------------------------------------------------------

    def origin(self, *path: str) -> str:
        """Return where the value at `path`, or the nearest enclosing section, was set; arguments
        after `--` override the config.
        """
        typed = (word[2:].partition("=")[0] for word in self.arguments if word[:2] == "--")
        if path[0] == "training" and path[-1] in {name.replace("-", "_") for name in typed}:
            return _BEHIND
        return nearest(self.origins, path) or "default"

    def said(self, *path: str, value: object) -> str:
        """Return a value as it was written, with its origin: `config.yaml:12:3: time: 48:00:00`,
        `--time 48:00:00`.
        """
        origin = self.origin(*path)
        if _FLAGGED.match(origin):
            return f"{origin} {path[-1]}={value}" if origin == "--sbatch" else f"{origin} {value}"
        if origin == _BEHIND:
            return f"--{path[-1]} {value}, after --"
        if origin.startswith("HPCTRAIN_"):
            return f"{origin}={value}"
        if origin == "default" or origin.startswith(("profile ", "cluster profile ")):
            return f"{path[-1]} {value} ({origin})"
        return f"{origin}: {path[-1]}: {value}"

    def command(
        self, *changes: tuple[str, str], verb: str | None = None, without: KeyPath = ()
    ) -> str:
        """Return the suggested command, with these options instead of the user's; it keeps all
        others except `without`.
        """
        left_out = [BY_PATH[without].option] if without in BY_PATH else []
        if without[:1] == ("sbatch",):
            left_out = [f"--sbatch={without[-1]}"]
        behind = ("--", *self.arguments) if self.arguments else ()
        asked = suggest.Asked(words=(*_words(self.typed), *behind))
        return suggest.command(verb or self.verb, asked, *_words(changes), without=left_out)

    def fix(self, *changes: tuple[KeyPath, object]) -> str:
        """Return the suggested command or config edit that sets these config paths."""
        command = self.command(*((BY_PATH[path].option, str(value)) for path, value in changes))
        lines = [
            f"{path[-1]}: {value} in {self.origin(*path).rpartition(':')[0]}"
            for path, value in changes
            if re.search(r":\d+:\d+\Z", self.origin(*path))
        ]
        return f"{' and '.join(lines)}, or: {command}" if lines else command

    def finding(
        self, id_: str, level: Level, what: str, *, evidence: str, reason: str, fix: str
    ) -> Finding:
        """Return a finding; its place in the config file comes from the start of `evidence`, if
        that has one.
        """
        place = re.match(r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+): ", evidence)
        return Finding(
            id=id_,
            level=level,
            what=what,
            evidence=evidence,
            reason=reason,
            fix=fix,
            file=place["file"] if place else None,
            line=int(place["line"]) if place else None,
            column=int(place["column"]) if place else None,
        )


Find = Callable[[Case], Iterator[Finding]]
#: `site`: a rule about the cluster, also for a batch script's directives; `cluster`: not for a job
#: that runs locally; `job`: always.
On = Literal["site", "cluster", "job"]
#: All rules: finding ids, each with a section in docs/findings.md, where it applies, and the check.
RULES: list[tuple[tuple[str, ...], On, Find]] = []


def rule(*ids: str, on: On = "job") -> Callable[[Find], Find]:
    """Register a function that yields findings with these ids."""

    def register(find: Find) -> Find:
        RULES.append((ids, on, find))
        return find

    return register


def features(constraint: str) -> set[str]:
    """Return the names in a constraint: `[a100|h100*2]&nvme` has three."""
    return {name for name in re.split(r"[&|,*()\[\]]+", constraint) if name and not is_number(name)}


def _words(pairs: Iterable[tuple[str, str]]) -> list[str]:
    words: list[str] = []
    for option, value in pairs:
        words += (
            [f"{option}={value}"] if value[:1] == "-" else [option, value] if value else [option]
        )
    return words


def confirm(fact: Fact[T], command: str) -> str:
    """Return the advice to confirm an uncertain fact with the site; empty for a certain one."""
    return "" if fact.severity == "error" else f"; confirm with: {command}"


def closest(word: str, known: tuple[str, ...], *, cutoff: float = 0.0) -> str | None:
    """Return the most similar known name, ignoring case.

    `cutoff`: 0 accepts any name, 1 only equal ones.
    """
    lowered = {name.lower(): name for name in reversed(known)}
    found = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=cutoff)
    return lowered[found[0]] if found else None
