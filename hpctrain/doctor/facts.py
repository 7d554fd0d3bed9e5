"""The job that `hpctrain doctor` checks, the facts about its environment, and the results of the
probes. Pure. Unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpctrain.clusters.profile import Cluster, NodeShape, Profile
from hpctrain.config.spec import JobSpec
from hpctrain.finding import Finding

_NO_PROFILE = Profile(name="unknown", title="unknown")

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
    def profile(self) -> Profile:
        """The cluster profile, or an empty one."""
        return self.cluster.profile if self.cluster is not None else _NO_PROFILE

    @property
    def shape(self) -> NodeShape | None:
        """The kind of node that the job gets, if the profile has it."""
        return self.profile.nodes.get(self.shape_name or "")

    @property
    def shape_name(self) -> str | None:
        """Its key in the profile's `nodes`."""
        spec = self.spec
        return self.profile.shape_name(
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
    """

    version: str
    executable: str
    machine: str
    prefix: str
    packages: Mapping[str, str] = field(default_factory=dict)
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
