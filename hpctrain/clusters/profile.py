"""The schema of a cluster profile. The values are the site's; unknown is None, never a guess.

Pure: a profile is a frozen value. `clusters.load` reads it from YAML, `clusters.merge` merges
Slurm's values into it. Sizes are in bytes and durations in seconds; limits are defaults that the
live scheduler overrides.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from hpctrain.clusters.fieldtypes import (
    CpuBind,
    Features,
    HostSuffix,
    Module,
    Name,
    Seconds,
    Shebang,
    Size,
    SlurmName,
    Text,
    whole,
)
from hpctrain.clusters.load import Attestation, ProfileSource
from hpctrain.errors import UsageError
from hpctrain.util.schema import NO_KEYS, KeyPath, Problem, Section, nearest, sentence
from hpctrain.util.yaml12 import position, problems_in


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise Problem(f"must be a regular expression: {error}") from error
    return text


Count = Annotated[int, whole(0, 1_000_000)]
Pattern = Annotated[Text, _pattern]
Texts = tuple[Text, ...]
Names = tuple[SlurmName, ...]
Patterns = tuple[Pattern, ...]
Dialect = Literal["gres", "gpus-per-node", "gpus", "none"]


class _Noted(Section):
    note: Text | None = None


class Detect(Section):
    """How to recognize a login node of the cluster; one match is enough.

    Attributes:
        cluster_names: ClusterName of `scontrol show config`.
        hosts: regular expressions that match the complete output of `hostname -f` or `hostname`.
        variables: environment variables that the site sets, and a pattern for their complete value.
    """

    cluster_names: Names = ()
    hosts: Patterns = ()
    variables: dict[str, Pattern] = NO_KEYS


class Slurm(_Noted):
    """Where the site's Slurm differs from the defaults."""

    version: Text | None = None
    max_array_size: Count | None = None  # the highest index is one less
    requeue_allowed: bool | None = None  # false: neither `scontrol requeue` nor --requeue


class TimeByNodes(Section):
    """A time limit for jobs of at least `nodes_min` nodes (up to the next entry)."""

    nodes_min: Count
    time_max: Seconds


class Partition(_Noted):
    """A partition. `whole_nodes`: a job gets, and pays for, whole nodes in any case."""

    nodes: SlurmName | None = None  # a key of `nodes:` at the top of the profile
    default: bool = False
    time_max: Seconds | None = None
    time_default: Seconds | None = None
    time_by_nodes: tuple[TimeByNodes, ...] = ()
    nodes_min: Count | None = None
    nodes_max: Count | None = None
    gpus_max: Count | None = None
    whole_nodes: bool | None = None
    qos: Names = ()  # allowed in it; empty: unknown
    accounts: Names = ()  # allowed in it; empty: unknown


class Qos(_Noted):
    """A QOS and its limits.

    `lifts_partition_time`: its jobs may exceed the partition's time limit (flag
    PartitionTimeLimit).
    """

    time_max: Seconds | None = None
    lifts_partition_time: bool | None = None
    nodes_min: Count | None = None
    nodes_max: Count | None = None
    gpus_max: Count | None = None
    cpus_max: Count | None = None  # over all nodes of a job


class Select(Section):
    """How to select these nodes, if the partition is not sufficient."""

    constraint: Features | None = None
    account_suffix: Text | None = None  # required suffix of the account, such as @h100
    qos: Names = ()  # required for these nodes


class NodeShape(_Noted):
    """One kind of GPU node. `cpus` is the number that one job can have, as Slurm counts them.

    `memory_installed` means that `memory` is the installed amount: an upper bound, of which a job
    gets slightly less. `cpus_per_gpu_required`: the site requires at least `cpus_per_gpu`.
    """

    gpus: Count
    gpu: Text | None = None
    gpu_memory: Size | None = None  # per GPU
    vendor: Literal["cuda", "rocm"] | None = None
    arch: Literal["x86_64", "aarch64"] | None = None
    cpus: Count | None = None
    cpus_per_gpu: Count | None = None
    cpus_per_gpu_required: bool | None = None
    memory: Size | None = None  # available to one job
    memory_installed: bool = False
    count: Count | None = None
    modules_first: tuple[Module, ...] = ()  # needed by these nodes before all others
    select: Select = Select()

    @property
    def cpus_for_each_gpu(self) -> int | None:
        """CPUs to request per GPU: the site's value, else the GPU's share of the node."""
        return self.cpus_per_gpu or ((self.cpus or 0) // self.gpus if self.gpus else 0) or None

    def memory_for(self, gpus: int) -> int | None:
        """Return the bytes to request for this many GPUs: their share of the node, rounded down to
        whole GiB.

        A tenth of installed memory is left to the system. None if the memory is unknown, or the
        share is less than 1 GiB.
        """
        if not self.memory or not self.gpus:
            return None
        usable = self.memory * 9 // 10 if self.memory_installed else self.memory
        return usable * gpus // self.gpus >> 30 << 30 or None


class GpuRequest(_Noted):
    """How a job requests GPUs.

    Attributes:
        dialect: the directive to use, or `none` if the site forbids it or allocates whole nodes.
        type: the part before the count, such as `a100`.
        on_srun: srun needs `--gpus-per-node` although the directives do not contain it.
        also: other request syntaxes that the site accepts.
    """

    dialect: Dialect | None = None
    type: Name | None = None
    on_srun: bool = False
    also: tuple[Dialect, ...] = ()


class Directives(Section):
    """#SBATCH options by long name without dashes.

    Attributes:
        required: options that each job must have.
        forbidden: option → the site's reaction or reason.
        discouraged: option → why the site advises against it; jobs with it are accepted.
        default: option → value (`true`: a flag) that hpctrain writes unless the user's `sbatch:`
            sets it.
    """

    required: Texts = ()
    forbidden: dict[str, Text] = NO_KEYS
    discouraged: dict[str, Text] = NO_KEYS
    default: dict[str, Text] = NO_KEYS


class Defaults(Section):
    """Defaults for values that a job config does not set."""

    partition: SlurmName | None = None
    qos: SlurmName | None = None
    nodes: SlurmName | None = (
        None  # key of `nodes:`, if neither the partition nor the constraint determines it
    )


class AccountPolicy(_Noted):
    """The account to charge. `pattern` matches its name; `list_command` prints the user's
    accounts.
    """

    required: bool | None = None
    pattern: Pattern | None = None
    example: Text | None = None
    list_command: Text | None = None


class Memory(_Noted):
    """The memory of a job without a request, and the recommended request.

    Attributes:
        default_per_cpu: bytes that a job gets without a request.
        default_per_node: bytes that a job gets without a request.
        request: `per-gpu` (each GPU's `per_gpu`, or its share of the node), `all` (--mem=0) or
            `none` (the site forbids a request, or none is needed).
    """

    default_per_cpu: Size | None = None
    default_per_node: Size | None = None
    per_gpu: Size | None = None
    request: Literal["per-gpu", "all", "none"] | None = None


class Modules(_Noted):
    """Environment modules.

    Attributes:
        start: the first command: `module purge`, `module reset`, or nothing.
        never_purge: `module purge` breaks the site's modules.
        use: directories for `module use`.
        first: modules to load before all others, for every job.
        suggested: commonly used modules; `hpctrain init` writes them to the config as a comment.
        on_login_nodes: whether `module load` works there.
    """

    start: Literal["purge", "reset"] | None = None
    never_purge: bool = False
    use: Texts = ()
    first: tuple[Module, ...] = ()
    suggested: Texts = ()
    on_login_nodes: bool | None = None


class Network(_Noted):
    """The network between nodes: the interface, and variables of NCCL, RCCL and libfabric."""

    interface: Text | None = None
    variables: dict[str, Text] = NO_KEYS


class LaunchPolicy(_Noted):
    """How processes start.

    Attributes:
        shebang: the first line, if it must not be #!/bin/bash.
        master_addr_suffix: appended to the first host name to get its name on the fast network.
        cpu_bind: srun's option if one task per node starts all processes (accelerate, torchrun).
        cpu_bind_per_gpu: srun's option with one task per GPU on a full node.
        variables: exported by the batch shell before srun.
        unset: variables that it unsets.
    """

    shebang: Shebang | None = None
    master_addr_suffix: HostSuffix | None = None
    cpu_bind: CpuBind | None = None
    cpu_bind_per_gpu: CpuBind | None = None
    variables: dict[str, Text] = NO_KEYS
    unset: Texts = ()


class Internet(_Noted):
    """Internet access of compute and login nodes; `proxy` is used if there is no direct access."""

    compute: Literal["yes", "no", "proxy"] | None = None
    login: Literal["yes", "no", "proxy"] | None = None
    proxy: Text | None = None


class Storage(_Noted):
    """A file system.

    Attributes:
        path: may contain $USER and <account>.
        purge_days: files unused for this long are deleted.
        quota: bytes.
        on_compute_nodes: False if it is not mounted there.
        in_memory: it is stored in RAM and counts toward the job's memory.
    """

    path: Text | None = None
    purge_days: Count | None = None
    quota: Size | None = None
    on_compute_nodes: bool | None = None
    in_memory: bool = False


class Login(_Noted):
    """Host and port of ssh."""

    host: Text | None = None
    port: Annotated[int, whole(1, 65_535)] | None = None


class Billing(_Noted):
    """What is charged: whole nodes or a share; `reserved`: by requested time, not by used time."""

    unit: Literal["node", "share"] | None = None
    reserved: bool = False


class Profile(Section):
    """A cluster.

    Every value in a built-in profile has a level of evidence and a source (`clusters.load`).
    """

    name: Name  # of the file, without .yaml
    title: Text
    centre: Text | None = None
    docs: Text | None = None
    detect: Detect = Detect()
    slurm: Slurm = Slurm()
    partitions: dict[str, Partition] = NO_KEYS
    partition_required: bool = False
    qos: dict[str, Qos] = NO_KEYS
    qos_required: bool = False
    nodes: dict[str, NodeShape] = NO_KEYS
    defaults: Defaults = Defaults()
    gpu_request: GpuRequest = GpuRequest()
    directives: Directives = Directives()
    account: AccountPolicy = AccountPolicy()
    memory: Memory = Memory()
    modules: Modules = Modules()
    network: Network = Network()
    launch: LaunchPolicy = LaunchPolicy()
    internet: Internet = Internet()
    storage: dict[str, Storage] = NO_KEYS
    billing: Billing = Billing()
    login: Login = Login()
    traps: Texts = ()

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield names of nodes, a partition or a QOS that the profile does not have."""
        defaults = self.defaults
        named: list[tuple[KeyPath, str | None, Mapping[str, object]]] = [
            (("partitions", name, "nodes"), partition.nodes, self.nodes)
            for name, partition in self.partitions.items()
        ]
        named.append((("defaults", "nodes"), defaults.nodes, self.nodes))
        if self.partitions:
            named.append((("defaults", "partition"), defaults.partition, self.partitions))
        if self.qos:
            named.append((("defaults", "qos"), defaults.qos, self.qos))
        for path, name, known in named:
            if name is not None and name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = (
                    f"did you mean {close[0]!r}?"
                    if close
                    else f"known: {', '.join(known) or 'none'}"
                )
                yield path, f"names {name!r}, which the profile lacks; {hint}"

    def shape_name(
        self, *, partition: str | None, constraint: str | None = None, account: str | None = None
    ) -> str | None:
        """Return the key of the node shape that a job runs on, or None if unknown.

        The constraint has precedence, then the partition, the account's suffix, and the profile's
        default.
        """
        features = set(re.split(r"[&|,*()\[\]]+", constraint or "")) - {""}
        matching = [
            (len(set((shape.select.constraint or "").split("&"))), name)
            for name, shape in self.nodes.items()
            if shape.select.constraint and set(shape.select.constraint.split("&")) <= features
        ]
        if matching:
            return max(matching)[1]
        known = self.partitions.get(partition or "")
        if known is not None and known.nodes:
            return known.nodes
        for name, shape in self.nodes.items():
            if (
                account
                and shape.select.account_suffix
                and account.lower().endswith(shape.select.account_suffix.lower())
            ):
                return name
        if self.defaults.nodes:
            return self.defaults.nodes
        return next(iter(self.nodes)) if len(self.nodes) == 1 else None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A profile with the evidence of its values, by path."""

    profile: Profile
    origins: Mapping[tuple[str, ...], Attestation] = field(default_factory=dict)

    def attested(self, *path: str) -> Attestation | None:
        """Return the origin of the value at `path`, or of the nearest enclosing section."""
        return nearest(self.origins, path)

    def evidence(self, *path: str) -> str:
        """Return the origin of the value at `path`, as text."""
        found = self.attested(*path)
        if found is None:
            return f"profile {self.profile.name}"
        return found.source if found.level == "live" else f"profile {self.profile.name}: {found}"


def checked(source: ProfileSource, name: str) -> Profile:
    """Return the validated profile.

    Raises:
        UsageError: all its problems, each with its place.
    """
    problems = list(source.problems)
    written = source.data.get("name")
    if isinstance(written, str) and written != name:
        problems.append(
            f"{nearest(source.places, ('name',))}: name must be that of the file, {name}, not {written!r}"
        )
    try:
        profile = Profile.read(source.data | {"name": name})
    except Problem as error:
        problems += [
            f"{nearest(source.places, path)}: {sentence(path, message)}"
            for path, message in error.found
        ]
    if not problems:
        return profile
    file = source.path
    raise UsageError(
        problems_in(len(problems), str(file)),
        details=tuple(sorted(problems, key=position)),
        hint=f"edit {file}, then run: hpctrain clusters show {name}",
    )
