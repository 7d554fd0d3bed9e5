"""A job with nothing wrong with it, on a site that everybody knows; each test changes a little of
it.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpctrain.checks.job import check
from hpctrain.checks.job.context import (
    AccelerateFacts,
    Case,
    InputFacts,
    PathFacts,
    PythonFacts,
    Surroundings,
)
from hpctrain.clusters.live import Association, LiveCluster, LiveNodes, LivePartition, LiveQos
from hpctrain.clusters.load import Attestation
from hpctrain.clusters.merge import merge
from hpctrain.clusters.profile import Cluster, Profile
from hpctrain.config.spec import JobSpec
from hpctrain.finding import Finding
from hpctrain.util.file_systems import FileSystem

GIB = 1024**3
HERE = "/work/proj_b/sft"


def config(name: str) -> dict[str, Any]:
    """The config.json of a real model."""
    file = Path(__file__).parents[2] / "fit" / "models" / name / "config.json"
    return json.loads(file.read_text())


DISK = FileSystem(mount="/work", kind="lustre", free=500 * GIB)
ARGUMENTS = ("--model_name_or_path", "models/m", "--dataset_name", "data/d")
DOCS = "https://site.example/docs"
PROFILE: dict[str, Any] = {
    "name": "site",
    "title": "Site",
    "partitions": {
        "gpu": {"nodes": "a100", "default": True, "time_max": "1-00:00:00", "nodes_max": 64},
        "debug": {"nodes": "a100"},
    },
    "nodes": {
        "a100": {
            "gpus": 4,
            "gpu_memory": "64G",
            "vendor": "cuda",
            "arch": "x86_64",
            "cpus": 64,
            "memory": "480G",
        }
    },
    "qos": {"normal": {}, "long": {"time_max": "4-00:00:00", "nodes_max": 3}},
    "gpu_request": {"dialect": "gres"},
    "account": {"required": True, "pattern": "proj_[a-z]", "example": "proj_a"},
    "internet": {"compute": "no"},
    "storage": {
        "WORK": {"path": "/work/<account>"},
        "SCRATCH": {"path": "/scratch/$USER", "purge_days": 30},
    },
}


def path(said: str, **changes: Any) -> PathFacts:
    """A file or directory that is there, on the site's shared disk."""
    absolute = said if said.startswith("/") else f"{HERE}/{said}"
    facts = {
        "said": said,
        "path": absolute,
        "real": absolute,
        "exists": True,
        "is_dir": True,
        "writable": True,
        "mode": 0o755,
        "parent": absolute,
        "filesystem": DISK,
    }
    return PathFacts(**(facts | changes))


def missing(said: str, **changes: Any) -> PathFacts:
    return path(said, exists=False, is_dir=False, mode=None, parent=HERE, **changes)


def nodes(**changes: Any) -> LiveNodes:
    return replace(
        LiveNodes(
            count=100, cpus=64, memory=480 * GIB, gpus=(("a100", 4),), features=("a100", "nvme")
        ),
        **changes,
    )


def partition(**changes: Any) -> LivePartition:
    base = LivePartition(
        name="gpu",
        default=True,
        up=True,
        time_max=86_400,
        nodes_max=64,
        exclusive=False,
        nodes=(nodes(),),
    )
    return replace(base, **changes)


DEBUG = partition(name="debug", default=False, time_max=1800, nodes_max=2)
LIVE = LiveCluster(
    cluster_name="site",
    version=(23, 11),
    max_array_size=1001,
    enforces_accounts=True,
    partitions=(partition(), DEBUG),
    qos=(LiveQos(name="normal"), LiveQos(name="long", time_max=4 * 86_400)),
    associations=(
        Association(account="proj_a", qos=("normal", "long"), default_qos="normal"),
        Association(account="proj_b", qos=("normal", "long"), default_qos="normal"),
    ),
)
PYTHON = PythonFacts(
    kind="venv",
    said=".venv",
    prefix=path(".venv"),
    torch="cuda",
    version=(3, 12),
    packages=dict.fromkeys(("torch", "accelerate", "datasets", "hpctrain", "wandb"), "")
    | {"trl": "1.16.0", "transformers": "5.23.1"},
)
AROUND = Surroundings(
    user="ada",
    chdir=path(HERE),
    output=path("runs"),
    model=InputFacts(where=path("models/m"), config=config("qwen3-0.6b")),
    dataset=InputFacts(where=path("data/d")),
    python=PYTHON,
    accelerate=AccelerateFacts(
        where=path("multi_gpu.yaml", is_dir=False), distributed_type="MULTI_GPU"
    ),
    launcher_on_path="/usr/bin/accelerate",
)
SPEC = JobSpec(
    job_name="sft",
    chdir=HERE,
    nodes=2,
    gpus_per_node=4,
    partition="gpu",
    account="proj_b",
    qos="normal",
    time_s=4 * 3600,
    mem_bytes=200 * GIB,
    cpus_per_gpu=16,
    venv=".venv",
    arguments=ARGUMENTS,
)
ORIGINS = {
    ("resources", "time"): "config.yaml:8:3",
    ("resources", "account"): "HPCTRAIN_ACCOUNT",
    ("resources", "nodes"): "--nodes",
}
SCRIPT = path("train.py", is_dir=False)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What differs from the job with nothing wrong.

    Attributes:
        spec, around: changed fields.
        profile: changed keys at the profile's top; None takes the profile away.
        live: changed fields; None takes Slurm away.
        level: of the evidence of everything in the profile.
    """

    spec: dict[str, Any] = field(default_factory=dict)
    around: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] | None = field(default_factory=dict)
    live: dict[str, Any] | None = field(default_factory=dict)
    level: str = "documented"
    origins: dict[tuple[str, ...], str] = field(default_factory=dict)
    typed: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    local: bool = False
    varied: tuple[str, ...] = ()

    def cluster(self) -> Cluster | None:
        if self.profile is None:
            return None
        data = PROFILE | self.profile
        return Cluster(Profile.read(data), {(key,): Attestation(self.level, DOCS) for key in data})

    def findings(self) -> list[Finding]:
        live = None if self.live is None else replace(LIVE, **self.live)
        return check(
            Case(
                SPEC.replace(**self.spec),
                cluster=self.cluster() if live is None else merge(self.cluster(), live),
                live=live,
                around=replace(AROUND, **self.around),
                origins=ORIGINS | self.origins,
                typed=self.typed,
                arguments=self.arguments,
                local=self.local,
                varied=self.varied,
            )
        )

    def ids(self) -> list[str]:
        return [finding.id for finding in self.findings()]


@dataclass(frozen=True, kw_only=True)
class Near:
    """A scene, and what is found in it.

    Attributes:
        why: what the scene shows.
        only: all findings, by id; None: others do not matter.
        has, lacks: a finding that is there; one that is not.
        level, what, fix, evidence: of `has`: the whole level, a part of each of the others.
    """

    why: str
    scene: Scene
    only: tuple[str, ...] | None = None
    has: str | None = None
    lacks: str | None = None
    level: str | None = None
    what: str = ""
    fix: str = ""
    evidence: str = ""

    def look(self) -> None:
        findings = self.scene.findings()
        ids = [each.id for each in findings]
        assert self.only is None or ids == list(self.only)
        assert self.lacks not in ids
        has = self.has or (self.only[0] if self.only else None)
        for each in findings:
            if each.id == has:
                assert self.level in (None, each.level)
                assert self.what in each.what
                assert self.fix in each.fix
                assert self.evidence in each.evidence
        assert has is None or has in ids
