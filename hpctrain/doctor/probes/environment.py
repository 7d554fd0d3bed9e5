"""Probes of Python and of the job's environment: one shell that activates it as the job does, and one process of its Python."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import struct
import sys
from pathlib import Path

from hpctrain.doctor import start
from hpctrain.doctor.facts import Case, EnvironmentFacts, InsideFacts, PythonFacts, TorchBuild
from hpctrain.doctor.probes import inside, storage
from hpctrain.doctor.shells import activation, shell_of
from hpctrain.errors import SchedulerError
from hpctrain.jobs.arguments import Arguments

LIMIT_S = 60.0
#: e_machine of an ELF header (elf.h), and `uname -m`'s word for it.
_ELF = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 243: "riscv64"}


def python(_case: Case) -> PythonFacts:
    """Return what runs hpctrain itself."""
    return PythonFacts(
        version=platform.python_version(),
        executable=sys.executable,
        prefix=sys.prefix,
        base_prefix=sys.base_prefix,
        conda=(Path(sys.prefix) / "conda-meta").is_dir(),
    )


def environment(case: Case) -> EnvironmentFacts:
    """Return what the job's environment is, and what its Python says of itself."""
    kind, name, folder = place(case)
    launcher = "python" if case.spec.launcher == "srun" else {"accelerate": "accelerate", "torchrun": "torchrun"}[case.spec.launcher]
    common: dict[str, object] = {"kind": kind, "name": name, "demands": tuple(_demands()), "here": case.version}
    if kind == "container":
        image = case.spec.container.image if case.spec.container else ""
        gone = image if "/" in image and not image.startswith(("docker:", "oras:")) and not Path(image).exists() else None
        return EnvironmentFacts(**common, missing=gone, place=image)  # type: ignore[arg-type]
    if folder is not None and not folder.exists():
        return EnvironmentFacts(**common, missing=str(folder))  # type: ignore[arg-type]
    binary = _elf_machine(folder / "bin" / "python") if folder is not None else None
    if folder is not None and not (folder / "bin" / "python").exists():
        base = _home_of(folder)
        return EnvironmentFacts(**common, missing=str(folder / "bin/python") + (f" (made from {base})" if base else ""))  # type: ignore[arg-type]
    script = f"{activation(case.spec)}\ncommand -v {launcher} || echo -\ncommand -v python || echo -\n"
    script += 'exec python -c "$@"\n'
    argv = [*shell_of(case.spec), script, "doctor", Path(inside.__file__).read_text(encoding="utf-8"), *_asked(case)]
    chdir = case.spec.chdir if Path(case.spec.chdir).is_dir() else str(Path.cwd())
    try:
        done = start.run(["env", f"--chdir={chdir}", *argv], timeout=LIMIT_S)
    except start.TooLateError:
        return EnvironmentFacts(**common, late=True, binary=binary)  # type: ignore[arg-type]
    except SchedulerError as error:
        return EnvironmentFacts(**common, said=error.what)  # type: ignore[arg-type]
    return _read(done.stdout, done.stderr, common, folder, binary)


def _asked(case: Case) -> list[str]:
    """Return the words of `inside.preflight`; none where the job's arguments are not all known here."""
    arguments = Arguments(case.spec)
    if not arguments.ours or arguments.incomplete:
        return []
    given = [arguments.get(name) or "" for name in ("model_name_or_path", "dataset_name")]
    scratch = "yes" if arguments.says("from_scratch") else ""
    return [*given, arguments.get("dataset_train_split") or "train", case.spec.task, scratch]


def _read(out: str, err: str, common: dict[str, object], folder: Path | None, binary: str | None) -> EnvironmentFacts:
    lines = [line for line in out.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith(inside.MARK)), None)
    before = lines[: lines.index(told)] if told is not None else lines
    launcher, found = (before[-2], before[-1]) if len(before) >= 2 else ("-", "-")
    where = str(folder) if folder is not None else None
    answer = _inside(json.loads(told.removeprefix(inside.MARK))) if told is not None else None
    where = where or (answer.prefix if answer else None)
    return EnvironmentFacts(
        **common,  # type: ignore[arg-type]
        python=None if found == "-" else found,
        missing="python" if found == "-" and told is None else None,
        binary=binary or (_elf_machine(Path(found)) if found != "-" else None),
        said=None if told is not None else " ".join(start.last_words(err)) or "it said nothing",
        leads_to=answer.prefix if answer and where and not _same(answer.prefix, where) else None,
        launcher=None if launcher == "-" else launcher,
        file_system=storage.file_system(where) if where else None,
        place=where,
        inside=answer,
    )


def _same(first: str, second: str) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)


def _inside(value: dict[str, object]) -> InsideFacts:
    torch, problems = value["torch"], value["problems"]
    return InsideFacts(
        version=str(value["version"]),
        executable=str(value["executable"]),
        machine=str(value["machine"]),
        prefix=str(value["prefix"]),
        packages=tuple(value["packages"].items()),  # type: ignore[attr-defined]
        requires=tuple((name, tuple(lines)) for name, lines in value["requires"].items()),  # type: ignore[attr-defined]
        torch=TorchBuild(version=str(torch["version"]), cuda=torch["cuda"], hip=torch["hip"]) if isinstance(torch, dict) else None,
        problems=tuple((what, fix) for what, fix in problems) if isinstance(problems, list) else None,
    )


def place(case: Case) -> tuple[str, str, Path | None]:
    """Return what activates the environment, how to call it, and the folder that holds it, where the config says which."""
    spec, here = case.spec, Path(case.spec.chdir)
    if spec.container is not None:
        return "container", f"the image {spec.container.image}", None
    if spec.venv is not None:
        return "venv", f"the virtual environment {spec.venv}", here / spec.venv
    if spec.uv is not None:
        return "uv", f"the uv project {spec.uv}", here / spec.uv / ".venv"
    if spec.pixi is not None:
        return "pixi", f"the pixi project {spec.pixi}", here / spec.pixi / ".pixi" / "envs" / "default"
    if spec.conda is not None:
        path = Path(spec.conda) if "/" in spec.conda else None
        return "conda", f"the conda environment {spec.conda}", here / path if path else None
    return "caller", "the environment of this shell", None


def _demands() -> list[str]:
    """Return what the [train] extra of this hpctrain asks for, such as `torch>=2.6`."""
    try:
        lines = importlib.metadata.requires("hpctrain") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [line.partition(";")[0].strip() for line in lines if "extra == 'train'" in line.replace('"', "'")]


def _home_of(folder: Path) -> str | None:
    """Return the directory of the Python that a virtual environment was made from."""
    try:
        lines = (folder / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return next((line.partition("=")[2].strip() for line in lines if line.split("=")[0].strip() == "home"), None)


def _elf_machine(path: Path) -> str | None:
    """Return the machine that a program was built for; None for what is no ELF file."""
    try:
        with path.open("rb") as stream:
            header = stream.read(20)
    except OSError:
        return None
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return None
    order = "<" if header[5] == 1 else ">"
    return _ELF.get(struct.unpack(f"{order}H", header[18:20])[0])


def this_machine() -> str:
    """Return `x86_64` or `aarch64`, as the kernel says it."""
    return os.uname().machine
