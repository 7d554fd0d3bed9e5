"""What the probes of `hpctrain doctor` found: frozen, and judged elsewhere. Unknown is None. Sizes are bytes, durations seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster, NodeShape
    from hpctrain.jobs.spec import JobSpec

EnvironmentKind = Literal["venv", "conda", "uv", "pixi", "container", "caller"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is looked at.

    Attributes:
        spec: the job that the doctor is asked about.
        cluster: its profile, where one is known.
        version: of the hpctrain that asks.
        machine: `x86_64` or `aarch64`: of this login node.
        on_cpu: ACCELERATE_USE_CPU says that the training runs on the CPU.
        slurm: Slurm's programs are on PATH.
        quick: leave out what takes more than a few seconds.
        requirement: what pip takes for hpctrain with the training's libraries.
    """

    spec: JobSpec
    cluster: Cluster | None = None
    version: str = ""
    machine: str = ""
    on_cpu: bool = False
    slurm: bool = False
    quick: bool = False
    requirement: str = "hpctrain[train]"

    @property
    def shape(self) -> NodeShape | None:
        """The kind of node that the job lands on, where the profile knows."""
        name = self.shape_name
        return self.cluster.profile.nodes.get(name) if self.cluster is not None and name else None

    @property
    def shape_name(self) -> str | None:
        """Its key among the profile's `nodes`."""
        if self.cluster is None:
            return None
        spec = self.spec
        return self.cluster.profile.shape_name(partition=spec.partition, constraint=spec.constraint, account=spec.account)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """The Python that runs hpctrain itself."""

    version: str
    executable: str
    prefix: str
    base_prefix: str
    conda: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """torch/version.py: the version, and the CUDA or ROCm that it was built for; both None is a CPU build."""

    version: str
    cuda: str | None = None
    hip: str | None = None

    @property
    def vendor(self) -> Literal["cuda", "rocm", "cpu"]:
        """What it can compute on."""
        return "cuda" if self.cuda else "rocm" if self.hip else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideFacts:
    """What the environment's own Python said of itself.

    Attributes:
        packages: name → version of those that count and are installed.
        requires: name → what each of them demands of others, without extras and markers.
        problems: what `training.preflight` says of model and dataset, as pairs (what, fix); None where it could not be asked.
    """

    version: str
    executable: str
    machine: str
    prefix: str
    packages: tuple[tuple[str, str], ...] = ()
    requires: tuple[tuple[str, tuple[str, ...]], ...] = ()
    torch: TorchBuild | None = None
    problems: tuple[tuple[str, str], ...] | None = None

    def version_of(self, package: str) -> str | None:
        """Return the version of an installed package."""
        return dict(self.packages).get(package)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFacts:
    """The environment in which the job will train.

    Attributes:
        kind: what activates it; `caller` is the environment from which the job is submitted.
        name: as the config says it; a sentence can show it.
        python: the program that was started, or would have been.
        missing: what is not there: a path or a command.
        binary: machine of the Python program's ELF header.
        said: the last words of a Python that did not start.
        leads_to: another environment, whose Python the activation of this one gives.
        launcher: path of the launcher's program, and whether it was looked for.
        file_system: type of the file system that holds it; `place` is a path in it.
        demands: of hpctrain's [train] extra.
        here: the version of hpctrain that asks.
    """

    kind: EnvironmentKind
    name: str
    python: str | None = None
    missing: str | None = None
    binary: str | None = None
    said: str | None = None
    leads_to: str | None = None
    late: bool = False
    launcher: str | None = None
    file_system: str | None = None
    place: str | None = None
    inside: InsideFacts | None = None
    demands: tuple[str, ...] = ()
    here: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """One environment module, loaded after those before it.

    Attributes:
        said: what `module load` wrote to standard error, where it failed.
    """

    name: str
    loaded: bool | None
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulesFacts:
    """The modules of the job, in the shell that the job gets.

    Attributes:
        program: that shell, as the #! line says it.
        command: it has `module`.
        login_shell: a login shell has it.
        late: the shell did not answer in time.
    """

    program: str
    command: bool | None = None
    login_shell: bool | None = None
    late: bool = False
    modules: tuple[ModuleFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """One folder. `size` and `files` are lower bounds where `whole` is False: the walk ran out of time."""

    name: str
    path: str
    exists: bool
    set_by: str | None = None
    file_system: str | None = None
    size: int | None = None
    files: int | None = None
    whole: bool = True
    free: int | None = None
    free_inodes: int | None = None
    inodes: int | None = None
    writable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One line of `quota` or `lfs quota`; a limit of None is no limit."""

    file_system: str
    used: int
    limit: int | None = None
    files: int | None = None
    files_limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFacts:
    """What the quota programs said; `asked` names those that are here."""

    asked: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()
    silent: tuple[str, ...] = ()
    folders: tuple[FolderFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineFacts:
    """Whether the training starts without a network.

    Attributes:
        way: `namespace` (no interface but lo) or `variables` (the libraries were told that there is none).
        interfaces: the network interfaces that the process saw.
        steps: what worked, in order.
        failed: the step that did not, and the error's own words.
        skipped: why nothing was tried.
    """

    way: Literal["namespace", "variables"] | None = None
    interfaces: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    failed: str | None = None
    said: tuple[str, ...] = ()
    late: bool = False
    skipped: str | None = None
    no_namespace: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFacts:
    """Slurm, as its programs answer here.

    Attributes:
        installed: sinfo is on PATH.
        version: its own word.
        silent: what kept slurmctld from answering.
        accounts: the user's own; None where accounting did not answer.
        detected: profiles that know this machine for theirs.
    """

    installed: bool
    version: str | None = None
    silent: str | None = None
    partitions: tuple[str, ...] = ()
    accounts: tuple[str, ...] | None = None
    detected: tuple[str, ...] = ()
