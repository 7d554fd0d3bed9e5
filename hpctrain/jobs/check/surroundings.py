"""What the checks know of files, of the shell and of the Python environment: frozen facts, gathered by `cli.surroundings`.

Pure: nothing here looks at anything. Unknown is None; a file that is not there is a fact (`exists` False), not an unknown.
Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpctrain.fit.layout import DataFacts


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """The file system under a path.

    Attributes:
        mount: where it is mounted; `kind`: its type, such as lustre, nfs4, tmpfs.
        free: bytes that this user can still write, of the file system and of the quota, whichever is less.
        free_files: how many more files, likewise.
        limit: the words that say what sets `free`: `statvfs` or the quota command.
    """

    mount: str
    kind: str
    free: int | None = None
    free_files: int | None = None
    limit: str = "statvfs"


@dataclass(frozen=True, kw_only=True)
class PathFacts:
    """One path that the job uses.

    Attributes:
        said: as the user wrote it; `path`: absolute; `real`: with symbolic links followed.
        writable: a file there can be written, or in a directory made; of a missing path, whether it can be made.
        mode: permission bits; `own`: it belongs to the user.
        parent: the nearest directory above that exists.
    """

    said: str
    path: str
    real: str
    exists: bool
    is_dir: bool = False
    size: int | None = None
    writable: bool | None = None
    readable: bool | None = None
    mode: int | None = None
    own: bool | None = None
    parent: str = "/"
    filesystem: FileSystem | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model folder.

    Attributes:
        problems: what the training would refuse it for, each with what to type.
        config: config.json, parsed; None where there is none.
        weight_bytes: of all weight files together.
        parameters: counted in the headers of safetensors, else worked out from the size and the dtype; None where neither says it.
        quantized: config.json has a quantization_config: bytes and parameters are no longer related simply.
        cached: for the name of a model on the hub: whether the local cache holds it.
        tokenizer: the fingerprint of its tokenizer (hpctrain/preparation/fingerprint.py).
    """

    where: PathFacts
    problems: tuple[tuple[str, str], ...] = ()
    config: Mapping[str, Any] | None = None
    weight_bytes: int | None = None
    parameters: int | None = None
    quantized: bool = False
    cached: bool | None = None
    tokenizer: str | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """A dataset folder; `problems` as for a model, in the shipped training's own words.

    Attributes:
        tokenizer: the fingerprint of the tokenizer that a prepared one was made with, by the name `tokenizer_name`; None where nobody
            knows.
        vocabulary: of that tokenizer.
        prepared: the manifest of a prepared one, as far as its rows matter.
    """

    where: PathFacts
    problems: tuple[tuple[str, str], ...] = ()
    cached: bool | None = None
    tokenizer: str | None = None
    tokenizer_name: str | None = None
    vocabulary: int | None = None
    prepared: DataFacts | None = None


@dataclass(frozen=True, kw_only=True)
class ScriptFacts:
    """The training script of the user; `syntax`: `LINE:COLUMN: message` where Python cannot compile it."""

    where: PathFacts
    syntax: str | None = None
    looks_like: Literal["python", "shell", "binary", "notebook", "other"] = "python"


@dataclass(frozen=True, kw_only=True)
class PythonFacts:
    """The Python environment that the job activates.

    Attributes:
        kind: `venv`, `conda`, `uv` or `pixi`; `said`: as it was named.
        prefix: its directory; None where a conda environment of that name was not found.
        activates: the file that activates it is there.
        home: of pyvenv.cfg: the directory of the Python that it was made with; `home_exists`: it is still there.
        arch: of its python's ELF header.
        packages: top-level packages in site-packages; None where that was not found.
        distributions: of some of those, name → version, as their metadata directories are called.
        torch: of torch/version.py: `cuda`, `rocm` or `cpu`.
        version: of its Python, such as (3, 12).
    """

    kind: Literal["venv", "conda", "uv", "pixi"]
    said: str
    prefix: PathFacts | None
    activates: bool = True
    home: str | None = None
    home_exists: bool = True
    arch: str | None = None
    packages: frozenset[str] | None = None
    distributions: Mapping[str, str] = field(default_factory=dict)
    torch: Literal["cuda", "rocm", "cpu"] | None = None
    version: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class SecretFacts:
    """A secret of the job: its file, or (None) whether the caller's shell has the variable."""

    name: str
    file: PathFacts | None = None
    in_shell: bool = False


@dataclass(frozen=True, kw_only=True)
class AccelerateFacts:
    """The accelerate config; `problems` are lines `file:line:col: sentence`; `is_default`: the job brings its own when it is missing."""

    where: PathFacts
    problems: tuple[str, ...] = ()
    distributed_type: str | None = None
    is_default: bool = False


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Everything around a job that can be looked at before it queues.

    Attributes:
        machine: `uname -m` of this login node.
        user: the login name, for storage paths with $USER.
        variables: those of the shell that storage paths and proxies need; never secrets.
        leaks: names of variables that sbatch, srun or torchrun would read as orders.
        output: where the training writes: --output_dir, else the run directory under chdir.
        hooks: the files of `before` and `after`.
        launcher_on_path: what `accelerate`, `torchrun` or `python` is here; None where it is nowhere on PATH.
        image: the container's file; None where the image is no file (a registry's name).
        requirement: what pip takes for hpctrain with the training's libraries.
        measured: what the newest runs of the project predicted and measured (`fit.json`), the newest first.
    """

    machine: str | None = None
    user: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    leaks: tuple[str, ...] = ()
    chdir: PathFacts | None = None
    output: PathFacts | None = None
    model: ModelFacts | None = None
    dataset: DatasetFacts | None = None
    script: ScriptFacts | None = None
    python: PythonFacts | None = None
    accelerate: AccelerateFacts | None = None
    image: PathFacts | None = None
    binds: tuple[PathFacts, ...] = ()
    hooks: tuple[PathFacts, ...] = ()
    secrets: tuple[SecretFacts, ...] = ()
    requirement: str = "hpctrain[train]"
    measured: tuple[Mapping[str, Any], ...] = ()
    launcher_on_path: str | None = None

    @property
    def paths(self) -> tuple[tuple[str, PathFacts], ...]:
        """Return what the compute nodes must see: what it is, and where."""
        found: list[tuple[str, PathFacts | None]] = [
            ("the job's directory", self.chdir),
            ("the output directory", self.output),
            ("the model", self.model.where if self.model and self.model.where.exists else None),
            ("the dataset", self.dataset.where if self.dataset and self.dataset.where.exists else None),
            ("the script", self.script.where if self.script and self.script.where.exists else None),
            ("the Python environment", self.python.prefix if self.python else None),
            ("the container image", self.image),
            *(("a hook", hook) for hook in self.hooks),
            *((f"the file of the secret {secret.name}", secret.file) for secret in self.secrets),
        ]
        return tuple((what, path) for what, path in found if path is not None)
