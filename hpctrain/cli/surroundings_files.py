"""What the files of a job say: the model, the dataset, the script, the Python environment and the accelerate config.

Nothing is imported or started: torch's build is read in torch/version.py, a Python's architecture in its ELF header, a model's size in
the headers of its weights.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from hpctrain import yaml12
from hpctrain.clusters.load import is_dir, is_file, open_regular, read_regular
from hpctrain.errors import UsageError
from hpctrain.jobs.arguments import Arguments
from hpctrain.jobs.check.surroundings import AccelerateFacts, DatasetFacts, ModelFacts, PathFacts, PythonFacts, ScriptFacts
from hpctrain.jobs.spec import JobSpec
from hpctrain.preparation import manifest
from hpctrain.preparation.fingerprint import tokenizer_fingerprint
from hpctrain.runs import files
from hpctrain.runs import layout as places

Look = Callable[[str], PathFacts]
#: The newest so many runs are looked at; each is a file.
_RUNS = 300
#: More weight files than this are not opened one by one; their index and config.json say enough.
_MAX_HEADERS = 16
_MAX_HEADER_BYTES = 100_000_000
_MAX_SCRIPT_BYTES = 4_000_000
_MAX_TEXT_BYTES = 4_000_000
#: More than any model has, or its bytes; what says more says nothing.
_MAX_COUNT = 10**18
_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
#: e_machine of the ELF header (elf.h) → platform.machine().
_MACHINES = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 243: "riscv64"}


def model_facts(spec: JobSpec, arguments: Arguments, look: Look) -> ModelFacts | None:
    """Return what the model's folder holds; None where none is named."""
    name = arguments.get("model_name_or_path")
    if name is None:
        return None
    where = look(name)
    problems: tuple[tuple[str, str], ...] = ()
    if arguments.ours or where.exists:
        from hpctrain.training import preflight  # the training's own words; imports no torch

        shown = name if where.exists else where.said
        scratch = str(arguments.get("from_scratch")).lower() in ("true", "yes", "1")
        found = preflight.check_model(where.path if where.exists else name, preflight.model_needs(spec.task, from_scratch=scratch))
        problems = tuple((problem.what.replace(where.path, shown), problem.fix.replace(where.path, shown)) for problem in found)
    folder = Path(where.path)
    config = _json(folder / "config.json")
    files = _files(folder, "*.safetensors") or _files(folder, "pytorch_model*.bin")
    size = sum(file.stat().st_size for file in files) if files else None
    return ModelFacts(
        where=where, problems=problems, config=config, weight_bytes=size,
        parameters=_parameters(folder, files, config),
        quantized=bool(config and "quantization_config" in config),
        cached=None if where.exists else _cached(spec, "models", name),
        tokenizer=tokenizer_fingerprint(folder) if where.exists else None,
    )  # fmt: skip


def _files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of that name, not what else may have it: a directory, a FIFO, a link to nothing."""
    return sorted(path for path in folder.glob(pattern) if is_file(path))


def _parameters(folder: Path, files: list[Path], config: dict[str, Any] | None) -> int | None:
    """Return the number of parameters: counted in the headers of the weights, else the index's bytes by config.json's dtype."""
    if files and files[0].suffix == ".safetensors" and len(files) <= _MAX_HEADERS:
        counts = [_count(file) for file in files]
        return sum(count for count in counts if count is not None) if None not in counts else None
    index = _json(folder / "model.safetensors.index.json") or {}
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    width = _DTYPES.get(str((config or {}).get("dtype") or (config or {}).get("torch_dtype")))
    return int(total) // width if isinstance(total, int) and 0 <= total < _MAX_COUNT and width else None


def _count(file: Path) -> int | None:
    """Return the number of parameters in a safetensors file: eight bytes of length, then that much JSON of names, dtypes and shapes."""
    try:
        with open_regular(file) as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length)) if length < _MAX_HEADER_BYTES else None
    except (OSError, ValueError, RecursionError, struct.error):
        return None
    if not isinstance(header, dict):
        return None
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            count = _elements(tensor)
            if count is None or total + count > _MAX_COUNT:
                return None
            total += count
    return total


def _elements(tensor: object) -> int | None:
    """Return the number of elements of a tensor in a header; None where its shape is none."""
    shape = tensor.get("shape") if isinstance(tensor, dict) else None
    if not isinstance(shape, list):
        return None
    count = 1
    for extent in shape:
        if not isinstance(extent, int) or not 0 <= extent < _MAX_COUNT:
            return None
        count = min(count * extent, _MAX_COUNT + 1)
    return count


def dataset_facts(spec: JobSpec, arguments: Arguments, look: Look) -> DatasetFacts | None:
    """Return what the dataset's folder holds; None where none is named."""
    name = arguments.get("dataset_name")
    if name is None:
        return None
    where = look(name)
    problems: tuple[tuple[str, str], ...] = ()
    if arguments.ours:
        from hpctrain.training import preflight

        splits = [arguments.get("dataset_train_split") or "train"]
        if arguments.get("eval_strategy") not in (None, "no"):
            splits.append(preflight.evaluation_split(where.path if where.exists else name, arguments.get("dataset_test_split")))
        found = preflight.check_dataset(where.path if where.exists else name, splits)
        problems = tuple((problem.what.replace(where.path, name), problem.fix.replace(where.path, name)) for problem in found)
    made = manifest.read(Path(where.path)) if where.exists else None
    return DatasetFacts(
        where=where, problems=problems, cached=None if where.exists else _cached(spec, "datasets", name),
        tokenizer=made.tokenizer if made else None,
        tokenizer_name=made.tokenizer_name if made else None,
        vocabulary=made.vocabulary if made else None,
        prepared=made,
    )  # fmt: skip


def _cached(spec: JobSpec, kind: str, name: str) -> bool | None:
    """Return whether Hugging Face's cache holds `owner/name`; None where hooks or modules may set another one."""
    variables = {**os.environ, **dict(spec.env)}
    home = Path(variables.get("HF_HOME") or Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    hub = Path(variables.get("HF_HUB_CACHE") or home / "hub")
    snapshots = hub / f"{kind}--{name.replace('/', '--')}" / "snapshots"
    if is_dir(snapshots) and any(snapshots.iterdir()):
        return True
    return None if spec.before or spec.modules else False


# -- earlier runs ------------------------------------------------------------------------------------------------------


def measured(chdir: str) -> tuple[dict[str, Any], ...]:
    """Return what the newest runs of a project predicted and measured (`fit.json`), the newest first; what cannot be read is left out."""
    try:
        found = [(path.stat().st_mtime, path) for path in Path(chdir, places.RUNS).glob(f"[!.]*/{places.FIT}")]
    except OSError:
        return ()
    newest = sorted(found, key=lambda each: (each[0], str(each[1])), reverse=True)[:_RUNS]
    return tuple(record for _, path in newest if (record := files.read_json(path)) is not None)


# -- the script ---------------------------------------------------------------------------------------------------------


def script_facts(spec: JobSpec, python: PythonFacts | None, look: Look) -> ScriptFacts | None:
    """Return whether the user's script is Python that compiles; None where there is none."""
    if spec.script is None:
        return None
    where = look(spec.script)
    try:
        raw = read_regular(where.path, _MAX_SCRIPT_BYTES)
    except OSError:
        return ScriptFacts(where=where)
    kind = _kind(raw, where.path)
    return ScriptFacts(where=where, looks_like=kind, syntax=_syntax(raw, spec, python) if kind == "python" else None)


def _kind(raw: bytes, path: str) -> Literal["python", "shell", "binary", "notebook", "other"]:
    first = raw.split(b"\n", 1)[0]
    if path.endswith(".ipynb"):
        return "notebook"
    if b"\0" in raw[:8192]:
        return "binary"
    if first.startswith(b"#!") and b"python" not in first and re.search(rb"\b(ba|z|k|da)?sh\b", first):
        return "shell"
    return "other" if path.endswith((".yaml", ".yml", ".json", ".toml", ".md")) else "python"


def _syntax(raw: bytes, spec: JobSpec, python: PythonFacts | None) -> str | None:
    """Return `LINE:COLUMN: message` where this Python cannot compile the script, and the job's is not a newer one that might."""
    newer = python.version is not None and python.version > sys.version_info[:2] if python is not None else bool(spec.modules)
    if newer or spec.container is not None or (python is not None and python.version is None):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(raw, spec.script or "script", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{error.lineno or 1}:{error.offset or 1}: {error.msg}"
    except ValueError as error:
        return f"1:1: {error}"
    except (MemoryError, RecursionError):  # nested deeper than this compiler goes; another version's may go deeper
        return None
    return None


# -- the Python environment ---------------------------------------------------------------------------------------------


def python_facts(spec: JobSpec, look: Look) -> PythonFacts | None:
    """Return the environment that the job activates; None where it names none."""
    if spec.venv is not None:
        return _environment("venv", spec.venv, look(spec.venv), "bin/activate")
    if spec.uv is not None:
        return _environment("uv", spec.uv, look(f"{spec.uv}/.venv"), "bin/activate")
    if spec.pixi is not None:
        return _environment("pixi", spec.pixi, look(f"{spec.pixi}/.pixi/envs/default"), "conda-meta")
    if spec.conda is not None:
        prefix = _conda_prefix(spec.conda)
        return _environment("conda", spec.conda, look(str(prefix)) if prefix is not None else None, "conda-meta")
    return None


def _environment(kind: Literal["venv", "conda", "uv", "pixi"], said: str, prefix: PathFacts | None, activates: str) -> PythonFacts:
    if prefix is None or not prefix.is_dir:
        return PythonFacts(kind=kind, said=said, prefix=prefix)
    root = Path(prefix.path)
    home, shares = _pyvenv(root)
    libraries = sorted(path for path in root.glob("lib/python3.*/site-packages") if is_dir(path))
    version = re.search(r"python3\.(\d+)/", str(libraries[-1])) if libraries else None
    return PythonFacts(
        kind=kind, said=said, prefix=prefix, activates=(root / activates).exists(), home=home,
        home_exists=home is None or is_dir(home),
        arch=_machine(root / "bin" / "python"),
        version=(3, int(version[1])) if version else None,
        packages=_packages(libraries[-1]) if libraries and not shares else None,
        distributions=_distributions(libraries[-1]) if libraries and not shares else {},
        torch=_torch(libraries[-1]) if libraries else None,
    )  # fmt: skip


def _conda_prefix(name: str) -> Path | None:
    """Return the directory of a conda environment; None where it is not in any of the places that conda writes down."""
    if "/" in name:
        return expanded(name)
    roots = [Path(os.environ[key]).parent.parent for key in ("CONDA_EXE", "MAMBA_EXE") if os.environ.get(key)]
    listed = Path.home() / ".conda" / "environments.txt"
    known = [Path(line.strip()) for line in (_text(listed) or "").splitlines() if line.strip()]
    if name == "base":
        return next((root for root in [*roots, *known] if (root / "conda-meta").is_dir() and (root / "condabin").is_dir()), None)
    homes = [Path(part) for part in os.environ.get("CONDA_ENVS_PATH", "").split(os.pathsep) if part]
    homes += [root / "envs" for root in roots] + [Path.home() / ".conda" / "envs"]
    candidates = [home / name for home in homes] + [path for path in known if path.name == name]
    return next((path for path in candidates if is_dir(path)), None)


def _pyvenv(root: Path) -> tuple[str | None, bool]:
    """Return `home` of pyvenv.cfg, and whether the environment sees the packages of the Python that it was made with."""
    text = _text(root / "pyvenv.cfg") or ""
    values = {key.strip().lower(): value.strip() for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}
    return values.get("home"), values.get("include-system-site-packages", "").lower() == "true"


def _machine(program: Path) -> str | None:
    """Return the architecture in a program's ELF header; None for what is none, such as a wrapper script."""
    try:
        with open_regular(program) as opened:
            header = opened.read(20)
    except OSError:
        return None
    if header[:4] != b"\x7fELF" or len(header) < 20:
        return None
    return _MACHINES.get(int.from_bytes(header[18:20], "little" if header[5] == 1 else "big"))


def _packages(site_packages: Path) -> frozenset[str]:
    """Return the packages of a site-packages directory, by directory and by distribution (editable ones have no directory)."""
    found = set()
    for entry in (path.name for path in site_packages.iterdir()):
        distribution = entry.endswith((".dist-info", ".egg-info"))
        found.add((entry.partition("-")[0] if distribution else entry.removesuffix(".py")).lower().replace("-", "_"))
    return frozenset(found)


def _distributions(site_packages: Path) -> dict[str, str]:
    """Return the versions of the libraries whose options the training takes; of one that a broken update left twice, none."""
    found: dict[str, list[str]] = {}
    for path in site_packages.glob("t*.dist-info"):
        name, _, version = path.name.removesuffix(".dist-info").partition("-")
        found.setdefault(name, []).append(version)
    return {name: versions[0] for name, versions in found.items() if name in ("trl", "transformers") and len(versions) == 1}


def _torch(site_packages: Path) -> Literal["cuda", "rocm", "cpu"] | None:
    text = _text(site_packages / "torch" / "version.py")
    if text is None:
        return None
    built = {name: value for name, value in re.findall(r"^(cuda|hip)\b[^=\n]*= *(.+)$", text, re.MULTILINE) if value.strip() != "None"}
    return "rocm" if "hip" in built else "cuda" if "cuda" in built else "cpu"


# -- the accelerate config ----------------------------------------------------------------------------------------------


def accelerate_facts(spec: JobSpec, look: Look) -> AccelerateFacts | None:
    """Return what is wrong with the accelerate config; one that hpctrain renders for the job is not looked at."""
    if spec.launcher != "accelerate" or spec.sharding != "ddp":
        return None
    from hpctrain.config import accelerate_config

    where, name = look(spec.accelerate_config), spec.accelerate_config
    facts = AccelerateFacts(where=where, is_default=name == "multi_gpu.yaml")
    if not where.exists:
        return facts
    try:
        document = yaml12.load(read_regular(where.path, _MAX_TEXT_BYTES).decode(), name)
    except UsageError as error:
        return AccelerateFacts(where=where, problems=error.details or (f"{name}: {error.what}",))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return AccelerateFacts(where=where, problems=(f"{name}: {reason}",))
    kind = document.data.get("distributed_type")
    return AccelerateFacts(
        where=where, problems=tuple(accelerate_config.problems(document, name)), distributed_type=None if kind is None else str(kind),
        is_default=facts.is_default,
    )  # fmt: skip


def _json(path: Path) -> dict[str, Any] | None:
    from hpctrain.training import preflight

    return preflight.json_object(path)


def expanded(said: str) -> Path:
    """Return a path with its `~` written out; that of a user who is not there stays."""
    try:
        return Path(said).expanduser()
    except RuntimeError:
        return Path(said)


def _text(path: Path) -> str | None:
    try:
        return read_regular(path, _MAX_TEXT_BYTES).decode(errors="replace")
    except OSError:
        return None
