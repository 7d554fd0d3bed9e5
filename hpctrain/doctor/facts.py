"""The facts that the probes of `hpctrain doctor` find on a login node, and the results of their
evaluation. Pure.

Unknown is None. Sizes are bytes, durations seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hpctrain.finding import Finding
from hpctrain.util.file_systems import FileSystem, Quota

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster, NodeShape
    from hpctrain.config.spec import JobSpec

EnvironmentKind = Literal["venv", "conda", "uv", "pixi", "container", "caller"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorContext:
    """The subject of the checks.

    Attributes:
        spec: the job.
        cluster: its profile, if known.
        version: of this hpctrain.
        machine: architecture of this login node: `x86_64` or `aarch64`.
        on_cpu: ACCELERATE_USE_CPU requests training on the CPU.
        quick: skip probes that take more than a few seconds.
        requirement: pip requirement for hpctrain with the training libraries.
    """

    spec: JobSpec
    cluster: Cluster | None = None
    version: str = ""
    machine: str = ""
    on_cpu: bool = False
    quick: bool = False
    requirement: str = "hpctrain[train]"

    @property
    def shape(self) -> NodeShape | None:
        """The kind of node that the job gets, if the profile has it."""
        name = self.shape_name
        return self.cluster.profile.nodes.get(name) if self.cluster is not None and name else None

    @property
    def shape_name(self) -> str | None:
        """Its key in the profile's `nodes`."""
        if self.cluster is None:
            return None
        spec = self.spec
        return self.cluster.profile.shape_name(
            partition=spec.partition, constraint=spec.constraint, account=spec.account
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """torch/version.py: the version, and the CUDA or ROCm version of the build; both None: a CPU
    build.
    """

    version: str
    cuda: str | None = None
    hip: str | None = None

    @property
    def vendor(self) -> Literal["cuda", "rocm", "cpu"]:
        """The platform of the build."""
        return "cuda" if self.cuda else "rocm" if self.hip else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideFacts:
    """The report of the environment's own Python.

    Attributes:
        packages: name → version of the relevant packages that are installed.
        requires: pairs of a package and one of its requirements, without extras and markers.
    """

    version: str
    executable: str
    machine: str
    prefix: str
    packages: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[tuple[str, str], ...] = ()
    torch: TorchBuild | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFacts:
    """The environment in which the job will train.

    Attributes:
        kind: how it is activated; `caller` is the environment from which the job is submitted.
        name: as in the config, for use in a sentence.
        missing: the path or command that does not exist.
        messages: the last line of a Python that did not start.
        leads_to: another environment whose Python is active after activation of this one.
        launcher: path of the launcher.
        place: a path inside it.
        demands: the requirements of hpctrain's [train] extra.
        here: the version of the hpctrain that checks.
    """

    kind: EnvironmentKind
    name: str
    missing: str | None = None
    messages: str | None = None
    leads_to: str | None = None
    late: bool = False
    launcher: str | None = None
    place: str | None = None
    inside: InsideFacts | None = None
    demands: tuple[str, ...] = ()
    here: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """One environment module, loaded after the preceding ones.

    Attributes:
        loaded: None: unknown.
        messages: stderr of `module load`, if it failed.
    """

    name: str
    loaded: bool | None
    messages: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulesFacts:
    """The modules of the job, in the job's shell.

    Attributes:
        program: that shell, from the #! line.
        command: whether it has `module`.
        late: the shell timed out.
    """

    program: str
    command: bool | None = None
    late: bool = False
    modules: tuple[ModuleFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFacts:
    """A directory that the job writes to; None: file system or quota unknown."""

    name: str
    path: str
    system: FileSystem | None
    quota: Quota | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineFacts:
    """Whether the training starts without a network.

    Attributes:
        failed: the step that failed, with the error message in `messages`.
        skipped: why it was not tried.
    """

    failed: str | None = None
    messages: tuple[str, ...] = ()
    late: bool = False
    skipped: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFacts:
    """Answers of Slurm's programs.

    Attributes:
        installed: sinfo is on PATH.
        silent: why slurmctld did not answer.
        accounts: the user's accounts; None: accounting did not answer.
        detected: profiles that match this machine.
    """

    installed: bool
    version: str | None = None
    silent: str | None = None
    partitions: tuple[str, ...] = ()
    accounts: tuple[str, ...] | None = None
    detected: tuple[str, ...] = ()


# -- results ---------------------------------------------------------------------------------------


Word = Literal["ok", "warning", "error", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One line of the report.

    Attributes:
        probe: its name, one or two words.
        sentence: the state, in one line without a full stop.
        findings: the problems; empty if there are none, or unknown.
        unknown: the probe could not determine the state.
    """

    probe: str
    sentence: str
    findings: tuple[Finding, ...] = ()
    unknown: bool = False

    @property
    def word(self) -> Word:
        """The worst level of the findings, `error` or `warning`, else `unknown` or `ok`; notes do
        not count.
        """
        levels = {finding.level for finding in self.findings}
        if "error" in levels:
            return "error"
        if "warning" in levels:
            return "warning"
        return "unknown" if self.unknown else "ok"

    def to_json(self) -> dict[str, object]:
        """Return the result for --json."""
        return {
            "probe": self.probe,
            "result": self.word,
            "sentence": self.sentence,
            "findings": [finding.to_json() for finding in self.findings],
        }
