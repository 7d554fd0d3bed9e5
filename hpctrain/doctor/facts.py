"""The job that `hpctrain doctor` checks, the facts about its environment, and the results of the
probes. Pure. Unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpctrain.checks.job.context import Case
from hpctrain.finding import Finding


@dataclass(frozen=True, kw_only=True)
class DoctorContext(Case):
    """The subject of the checks.

    Attributes:
        version: of this hpctrain.
        demands: the requirements of its [train] extra.
        quick: skip probes that take more than a few seconds.
    """

    version: str = ""
    demands: tuple[str, ...] = ()
    quick: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFacts:
    """The environment in which the job will train, as its Python reports it.

    Attributes:
        packages: name → version of the relevant packages that are installed.
        torch: of torch/version.py: `version`, and `cuda` and `hip`, both None for a CPU build.
        kind: `venv`, `conda`, `uv`, `pixi`, or `caller`: the environment from which the job is
            submitted.
        name: as in the config, for use in a sentence.
        place: its directory, if activating it gives another one.
        launcher: path of the launcher.
    """

    version: str
    executable: str
    machine: str
    prefix: str
    packages: Mapping[str, str] = field(default_factory=dict)
    torch: Mapping[str, str | None] | None = None
    kind: str = "caller"
    name: str = "the environment of this shell"
    place: str | None = None
    launcher: str | None = None


# -- results ---------------------------------------------------------------------------------------


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
    def word(self) -> Literal["ok", "warning", "error", "unknown"]:
        """The worst level of the findings, else `unknown` or `ok`; notes do not count."""
        levels = {finding.level for finding in self.findings}
        if "error" in levels:
            return "error"
        return "warning" if "warning" in levels else "unknown" if self.unknown else "ok"

    def to_json(self) -> dict[str, object]:
        """Return the result for --json."""
        return {
            "probe": self.probe,
            "result": self.word,
            "sentence": self.sentence,
            "findings": [finding.to_json() for finding in self.findings],
        }
