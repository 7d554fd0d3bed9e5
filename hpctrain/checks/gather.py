"""The environment of a job: the model, the dataset, the script, the Python environment, the
accelerate config, and the file systems that contain them.

Nothing is imported or started, except quota programs: torch's build is read from torch/version.py.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from hpctrain.checks.job import environment
from hpctrain.checks.job.context import (
    AccelerateFacts,
    FolderProblem,
    InputFacts,
    PathFacts,
    PythonFacts,
    SecretFacts,
    Surroundings,
)
from hpctrain.clusters.live import printable
from hpctrain.clusters.load import is_dir
from hpctrain.config import schema
from hpctrain.config.arguments import Arguments
from hpctrain.config.spec import Container, JobSpec
from hpctrain.data import manifest
from hpctrain.data.manifest import tokenizer_fingerprint
from hpctrain.errors import UsageError
from hpctrain.training import (
    preflight,
)  # the same messages as in the training; does not import torch
from hpctrain.util import file_systems, installed, shell, stored, yaml12
from hpctrain.util.stored import expanded, read_regular

Look = Callable[[str], PathFacts]
_Part = TypeVar("_Part")
#: File systems with quotas per user; those of local disks and memory do not matter.
_QUOTA_KINDS = frozenset({"nfs", "nfs4", "xfs", "ext4", "gpfs", "lustre", "beegfs", "ceph"})
_MAX_TEXT_BYTES = 4_000_000


def gather(spec: JobSpec, *, not_checked: list[str] | None = None) -> Surroundings:
    """Return the environment of `spec`; unreadable parts are None.

    Args:
        spec: the job.
        not_checked: receives a line for each part whose reader failed, with the reason.
    """
    failed = not_checked if not_checked is not None else []

    def part(what: str, read: Callable[[], _Part]) -> _Part | None:
        """Return what `read` returns; a bug in a reader must not block a submission."""
        try:
            return read()
        except Exception as error:
            words = printable(" ".join(str(error).split()))[:200]
            failed.append(f"{what}: {type(error).__name__}: {words}".removesuffix(": "))
            return None

    def look(said: str) -> PathFacts:
        return path_facts(said, spec.chdir)

    arguments = Arguments(spec)
    binds = spec.container.binds if spec.container is not None else ()
    hosts = [bind.partition(":")[0] for bind in binds]
    output = part("the output directory", lambda: look(arguments.get("output_dir") or "runs"))
    python = part("the Python environment", lambda: _python(spec, look))
    around = Surroundings(
        user=os.environ.get("USER"),
        variables=_variables(),
        chdir=part("the job's directory", lambda: path_facts(spec.chdir, "/")),
        output=part("the quota", lambda: output and _with_quota(output)) or output,
        python=python,
        image=part("the container image", lambda: _image(spec.container, look)),
        binds=tuple(look(host) for host in hosts if "$" not in host),
        secrets=part("the secrets", lambda: tuple(_secrets(spec, look))) or (),
        requirement=installed.requirement("train"),
        launcher_on_path=shutil.which("python" if spec.launcher == "srun" else spec.launcher),
    )
    if around.chdir is None or not around.chdir.is_dir:
        return around
    script = look(spec.script) if spec.script is not None else None
    return replace(
        around,
        model=part("the model", lambda: _model(spec, arguments, look)),
        dataset=part("the dataset", lambda: _dataset(spec, arguments, look)),
        script=script,
        syntax=part("the script", lambda: _syntax(script, spec, python) if script else None),
        accelerate=part("the accelerate config", lambda: _accelerate(spec, look)),
        hooks=part("the hooks", lambda: tuple(look(hook) for hook in _hooks(spec))) or (),
    )


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name == "ACCELERATE_USE_CPU" or (value.startswith("/") and ":" not in value)
    }


# -- the model and the dataset ---------------------------------------------------------------------


def _model(spec: JobSpec, arguments: Arguments, look: Look) -> InputFacts | None:
    name = arguments.get("model_name_or_path")
    if name is None:
        return None
    where, found = look(name), list[preflight.Problem]()
    if arguments.ours or where.exists:
        scratch = bool(arguments.says("from_scratch"))
        needs = preflight.model_needs(spec.task, from_scratch=scratch)
        found = preflight.check_model(where.path if where.exists else name, needs)
    folder = Path(where.path)
    return replace(
        _input(spec, "models", where, found),
        config=stored.read_object(folder / "config.json"),
        tokenizer=tokenizer_fingerprint(folder) if where.exists else None,
    )


def _dataset(spec: JobSpec, arguments: Arguments, look: Look) -> InputFacts | None:
    name = spec.data or arguments.get("dataset_name")
    if name is None:
        return None
    where, found = look(name), list[preflight.Problem]()
    shown = where.path if where.exists else name
    archive = spec.data_stage == "local" and where.exists and not where.is_dir
    if not arguments.ours and spec.data is not None and not where.exists:
        fix = f"ls {shell.quote(where.parent)}"
        found = [preflight.Problem(what=f"there is no dataset '{name}'", fix=fix)]
    elif arguments.ours and not archive:
        splits = [arguments.get("dataset_train_split") or "train"]
        if arguments.get("eval_strategy") not in (None, "no"):
            splits.append(preflight.evaluation_split(shown, arguments.get("dataset_test_split")))
        found = preflight.check_dataset(shown, splits)
    made = manifest.read_manifest(Path(where.path)) if where.is_dir else None
    return replace(
        _input(spec, "datasets", where, found),
        tokenizer=made.tokenizer if made else None,
        tokenizer_name=made.tokenizer_name if made else None,
        prepared=made,
    )


def _input(
    spec: JobSpec, kind: str, where: PathFacts, found: list[preflight.Problem]
) -> InputFacts:
    problems = tuple(
        FolderProblem(
            what=one.what.replace(where.path, where.said),
            fix=one.fix.replace(where.path, where.said),
            cause=one.cause,
        )
        for one in found
    )
    cached = None
    if not where.exists:
        variables = {**os.environ, **dict(spec.env)}
        home = variables.get("HF_HOME") or "~/.cache/huggingface"
        hub = expanded(variables.get("HF_HUB_CACHE") or f"{home}/hub")
        found_there = is_dir(hub / f"{kind}--{where.said.replace('/', '--')}" / "snapshots")
        # None: hooks or modules may select another cache.
        cached = found_there or (None if spec.before or spec.modules else False)
    return InputFacts(where=where, problems=problems, cached=cached)


# -- the script ------------------------------------------------------------------------------------


def _syntax(where: PathFacts, spec: JobSpec, python: PythonFacts | None) -> str | None:
    """Return `LINE:COLUMN: message` if this Python cannot compile the script, unless the job's is
    newer or unknown, and might.
    """
    here = sys.version_info[:2]
    version = python.version if python is not None else here
    if spec.container is not None or spec.modules or version is None or version > here:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            raw = read_regular(where.path, _MAX_TEXT_BYTES)
            compile(raw, where.said, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{error.lineno or 1}:{error.offset or 1}: {error.msg}"
    except ValueError as error:
        return f"1:1: {error}"
    except (OSError, MemoryError, RecursionError):  # too deep for this compiler
        pass
    return None


# -- the Python environment ------------------------------------------------------------------------


def _python(spec: JobSpec, look: Look) -> PythonFacts | None:
    for kind, below in (("venv", "."), ("uv", ".venv"), ("pixi", ".pixi/envs/default")):
        said = getattr(spec, kind)
        if said is not None:
            return _environment(kind, said, look(f"{said}/{below}"))
    if spec.conda is not None:
        prefix = _conda_prefix(spec.conda)
        return _environment("conda", spec.conda, look(str(prefix)) if prefix else None)
    return None


def _environment(kind: str, said: str, prefix: PathFacts | None) -> PythonFacts:
    if prefix is None:
        return PythonFacts(kind=kind, said=said, prefix=None)
    root = Path(prefix.path)
    # bin/python is a link: it is missing, too, if the Python that made the environment was removed.
    needed = ("bin/activate" if kind in ("venv", "uv") else "conda-meta", "bin/python")
    lacks = next((name for name in needed if not (root / name).exists()), None)
    libraries = sorted(path for path in root.glob("lib/python3.*/site-packages") if is_dir(path))
    version = re.search(r"python3\.(\d+)/", str(libraries[-1])) if libraries else None
    shares = "include-system-site-packages = true" in (_text(root / "pyvenv.cfg") or "")
    return PythonFacts(
        kind=kind,
        said=said,
        prefix=prefix,
        lacks=lacks,
        version=(3, int(version[1])) if version else None,
        packages=_packages(libraries[-1]) if libraries and not shares else None,
        torch=_torch(libraries[-1]) if libraries else None,
    )


def _conda_prefix(name: str) -> Path | None:
    """Return the directory of a conda environment; None if conda has not registered it."""
    if "/" in name:
        return expanded(name)
    listed = (_text(Path.home() / ".conda" / "environments.txt") or "").splitlines()
    found = [Path(line.strip()) for line in listed]
    if os.environ.get("CONDA_EXE"):
        root = Path(os.environ["CONDA_EXE"]).parent.parent
        found.append(root if name == "base" else root / "envs" / name)
    wanted = (path for path in found if name in (path.name, "base"))
    return next((path for path in wanted if is_dir(path / "conda-meta")), None)


def _packages(site_packages: Path) -> dict[str, str]:
    """Return the packages in a site-packages directory, by directory and by distribution (editable
    installs have no directory), with the versions of distributions.
    """
    found: dict[str, str] = {}
    for path in sorted(site_packages.iterdir()):
        name, _, rest = path.name.partition("-")
        version = re.sub(r"\.(dist|egg)-info\Z|-py3.*", "", rest)
        found[name.removesuffix(".py").lower()] = version or found.get(name.lower(), "")
    return found


def _torch(site_packages: Path) -> Literal["cuda", "rocm", "cpu"] | None:
    text = _text(site_packages / "torch" / "version.py")
    if text is None:
        return None
    built = set(re.findall(r"^(cuda|hip)\b[^=\n]*= *+(?!None\s*$)", text, re.MULTILINE))
    return "rocm" if "hip" in built else "cuda" if "cuda" in built else "cpu"


def _text(path: Path) -> str | None:
    try:
        return read_regular(path, _MAX_TEXT_BYTES).decode(errors="replace")
    except OSError:
        return None


# -- the accelerate config, the container, hooks and secrets ---------------------------------------


def _accelerate(spec: JobSpec, look: Look) -> AccelerateFacts | None:
    """Return the problems of the accelerate config; one that hpctrain renders for the job is not
    checked.
    """
    if spec.launcher != "accelerate" or spec.sharding != "ddp":
        return None
    where, name = look(spec.accelerate_config), spec.accelerate_config
    facts = AccelerateFacts(where=where)
    if not where.exists:
        return facts
    try:
        document = yaml12.load(read_regular(where.path, _MAX_TEXT_BYTES).decode(), name)
    except (UsageError, OSError, UnicodeDecodeError) as error:
        details = error.details if isinstance(error, UsageError) else ()
        return replace(facts, problems=details or (f"{name}: {error}",))
    kind = document.data.get("distributed_type")
    problems = tuple(schema.accelerate_problems(document, name))
    return replace(facts, problems=problems, distributed_type=None if kind is None else str(kind))


def _image(container: Container | None, look: Look) -> PathFacts | None:
    if container is None or "://" in container.image:
        return None
    is_path = container.image.startswith(("/", "./", "../", "~"))
    is_path = is_path or container.image.endswith((".sif", ".img", ".sqsh", ".toml"))
    # Otherwise, for these, it is a name in a registry, or of one of the site's environment files.
    return look(container.image) if is_path or container.engine not in ("pyxis", "ce") else None


def _hooks(spec: JobSpec) -> tuple[str, ...]:
    program = (spec.notify.command if spec.notify is not None else None) or ""
    told = [program] if "/" in program else []
    return (*spec.before, *spec.before_each_node, *spec.after, *told)


def _secrets(spec: JobSpec, look: Look) -> Iterator[SecretFacts]:
    named = [(secret.name, secret.file) for secret in spec.secrets]
    webhook = spec.notify.webhook if spec.notify is not None else None
    if webhook is not None:
        named = [(environment.WEBHOOK, None if webhook == "environment" else webhook), *named]
    for name, file in named:
        where = look(file) if file is not None else None
        yield SecretFacts(name=name, file=where, in_shell=bool(os.environ.get(name)))


# -- paths and file systems ------------------------------------------------------------------------


def path_facts(said: str, base: str) -> PathFacts:
    """Return the facts about a path relative to `base`."""
    path = Path(base, stored.expanded(said))
    real = Path(os.path.realpath(path))
    parent = next((each for each in (real, *real.parents) if is_dir(each)), Path("/"))
    try:
        status = path.stat()
    except (OSError, ValueError):
        status = None
    directory = status is not None and stat.S_ISDIR(status.st_mode)
    needed = os.W_OK | (os.X_OK if directory or status is None else 0)
    return PathFacts(
        said=said,
        path=str(path),
        real=str(real),
        exists=status is not None,
        is_dir=directory,
        writable=os.access(parent if status is None else path, needed),
        mode=None if status is None else status.st_mode & 0o7777,
        parent=str(parent),
        filesystem=file_systems.file_system(parent),
    )


def _with_quota(where: PathFacts) -> PathFacts:
    system = where.filesystem
    quota = file_systems.quota_of(system) if system and system.kind in _QUOTA_KINDS else None
    if system is None or quota is None or not 0 < quota.limit < quota.used + system.free:
        return where
    free = max(0, quota.limit - quota.used)
    return replace(where, filesystem=replace(system, free=free, limit=quota.command))
