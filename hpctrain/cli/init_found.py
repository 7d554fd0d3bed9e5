"""What `hpctrain init` finds without asking anybody: the cluster, what Slurm says, models, datasets and environments around here."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.clusters.live import LiveCluster
from hpctrain.errors import SchedulerError
from hpctrain.scheduler import discover

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster

#: Seconds for each question to Slurm; they are all asked at once.
TIMEOUT_S = 15.0
#: Of a directory with more entries than this, no more are looked at.
_MANY = 500


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python environment for the job: `kind` is a key of `environment:` in config.yaml, `why` says how it was found."""

    kind: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything that is known before anybody is asked.

    Attributes:
        detected: names of the profiles that know this machine for theirs.
        profile: the chosen profile as it is written; None without one.
        cluster: the profile with what Slurm says over it; None where there is neither.
        live: what Slurm says; None where it is not there.
        models, datasets: folders, relative to here.
        local_gpus: of this machine.
    """

    detected: tuple[str, ...]
    profile: Cluster | None
    cluster: Cluster | None
    live: LiveCluster | None
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    environments: tuple[Environment, ...]
    local_gpus: int


def live_cluster() -> LiveCluster | None:
    """Return what Slurm says of itself; None where it is not on PATH.

    Raises:
        SchedulerError: it is there, and names no partition.
    """
    if not discover.is_available():
        return None
    live = discover.discover(timeout=TIMEOUT_S)
    if live.partitions is None:  # the database may have answered, but accounts alone make no job
        why = live.silent[0] if live.silent else "sinfo said nothing"
        short = why.removeprefix("it does not answer (").removesuffix(")") if why.startswith("it does") else why
        raise SchedulerError("Slurm is here and does not answer", details=(short,), fix="sinfo")
    return live


def detected(live: LiveCluster | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the profiles that know this machine for theirs."""
    from hpctrain.clusters import load

    name = live.cluster_name if live is not None else environment.get("SLURM_CLUSTER_NAME")
    return tuple(load.detect(environment, cluster_name=name, hosts=(socket.gethostname(),)))


def gather(name: str | None, live: LiveCluster | None, known: tuple[str, ...], environment: Mapping[str, str]) -> Found:
    """Return what is known with the profile `name` (None: without one).

    Raises:
        UsageError: there is no such profile, or it is wrong.
    """
    profile = merged = None
    if name is not None:
        from hpctrain.clusters import load

        profile = merged = load.load(name, environment)
    if live is not None:
        from hpctrain.clusters.merge import merge

        merged = merge(profile, live)
    models, datasets = _folders(Path())
    return Found(
        detected=known, profile=profile, cluster=merged, live=live, models=models, datasets=datasets,
        environments=tuple(_environments(environment, Path())), local_gpus=_gpus_here(),
    )  # fmt: skip


def _folders(directory: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the model folders and the dataset folders, at most two levels down."""
    models, datasets = [], []
    for first in _directories(directory):
        for folder in (first, *_directories(first)):
            if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
                models.append(str(folder))
            # What datasets.save_to_disk writes: of one dataset, or of several splits.
            elif (folder / "dataset_dict.json").is_file():
                datasets.append(str(folder))
            elif all((folder / name).is_file() for name in ("state.json", "dataset_info.json")) and str(folder.parent) not in datasets:
                datasets.append(str(folder))  # and no split of a dataset that is there already
    return tuple(models), tuple(datasets)


def _directories(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            found = [Path(entry) for _, entry in zip(range(_MANY), entries, strict=False) if _is_folder(entry)]
    except OSError:
        return []
    return sorted(path for path in found if path.name not in ("runs", "logs", "node_modules", "__pycache__"))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder that may be looked into, and whose name a config can hold: bytes that are no UTF-8 have no YAML."""
    return entry.name[0] != "." and entry.name.isprintable() and entry.is_dir()


def _environments(environment: Mapping[str, str], directory: Path) -> Iterator[Environment]:
    """Yield the environments that the job may want, the likeliest first, each once."""
    seen: set[Path] = set()
    for path, why in (
        *([(Path(environment["VIRTUAL_ENV"]), "active here")] if environment.get("VIRTUAL_ENV") else []),
        (directory / ".venv", "found here"),
        (directory / "venv", "found here"),
        *([(Path(sys.prefix), "hpctrain itself runs in it")] if sys.prefix != sys.base_prefix and _has_torch() else []),
    ):
        if (path / "bin" / "activate").is_file() and path.resolve() not in seen:
            seen.add(path.resolve())
            yield Environment("venv", _here(path), why)
    if (directory / ".pixi" / "envs" / "default").is_dir():
        yield Environment("pixi", ".", "found here")
    conda = environment.get("CONDA_DEFAULT_ENV")
    if conda:
        yield Environment("conda", conda, "active here")


def _has_torch() -> bool:
    """Whether the environment that hpctrain runs in could train, and is more than the tool's own."""
    return any(Path(sys.prefix).glob("lib/python3*/site-packages/torch"))


def _here(path: Path) -> str:
    """Return `path` relative to here, where it lies below."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _gpus_here() -> int:
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))
