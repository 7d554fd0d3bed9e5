"""The job's environment: how the job's shell activates it, and what its Python reports."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpctrain.config.spec import JobSpec
from hpctrain.doctor import inside
from hpctrain.doctor.facts import (
    DoctorContext,
    EnvironmentFacts,
    EnvironmentKind,
    InsideFacts,
)
from hpctrain.errors import SchedulerError
from hpctrain.util import process, shell, stored

ENVIRONMENT_S = 60.0
#: Exit status of timeout(1) after the time limit (124), and after SIGKILL (137).
_LATE = (124, 137)


def environment(context: DoctorContext) -> EnvironmentFacts:
    """Return the job's environment, and what its Python reports."""
    kind, name, folder = place(context)
    spec = context.spec
    facts = EnvironmentFacts(kind=kind, name=name, demands=tuple(_demands()), here=context.version)
    if spec.container is not None:
        image = spec.container.image
        is_file = "/" in image and not image.startswith(("docker:", "oras:"))
        missing = image if is_file and not Path(image).exists() else None
        return replace(facts, missing=missing, place=image)
    if folder is not None:
        python = folder / "bin" / "python"
        if not python.exists():
            return replace(facts, missing=str(python if folder.exists() else folder))
        facts = replace(facts, place=str(folder))
    launcher = "python" if spec.launcher == "srun" else spec.launcher
    script = "\n".join(
        [
            activation(spec),
            f"command -v {launcher} || echo -",
            "command -v python || echo -",
            'exec python -c "$@"\n',
        ]
    )
    question = Path(inside.__file__).read_text(encoding="utf-8")
    argv = [*shell_of(spec), script, "doctor", question]
    try:
        done = run_limited(
            ["env", f"--chdir={directory(spec.chdir)}", *argv], timeout=ENVIRONMENT_S
        )
    except process.NoAnswerError:
        return replace(facts, late=True)
    except SchedulerError as error:
        return replace(facts, messages=error.what)
    return _read(done.stdout, done.stderr, facts)


def _read(out: str, err: str, facts: EnvironmentFacts) -> EnvironmentFacts:
    before, mark, answer = out.partition(inside.MARK)
    launcher, python = ["-", "-", *filter(str.strip, before.splitlines())][-2:]
    found = stored.made(InsideFacts, json.loads(answer.splitlines()[0])) if mark else None
    facts = replace(facts, launcher=None if launcher == "-" else launcher, inside=found)
    if found is None:
        messages = " ".join(last_lines(err, 2)) or "no output"
        return replace(facts, messages=messages, missing="python" if python == "-" else None)
    where = facts.place or found.prefix
    moved = os.path.realpath(found.prefix) != os.path.realpath(where)
    return replace(
        facts,
        place=where,
        leads_to=found.prefix if moved else None,
    )


def place(context: DoctorContext) -> tuple[EnvironmentKind, str, Path | None]:
    """Return the kind of environment, its name for a sentence, and its directory if the config
    names one.
    """
    spec, here = context.spec, Path(context.spec.chdir)
    if spec.container is not None:
        return "container", f"the image {spec.container.image}", None
    if spec.venv is not None:
        return "venv", f"the virtual environment {spec.venv}", here / spec.venv
    if spec.uv is not None:
        return "uv", f"the uv project {spec.uv}", here / spec.uv / ".venv"
    if spec.pixi is not None:
        inner = here / spec.pixi / ".pixi" / "envs" / "default"
        return "pixi", f"the pixi project {spec.pixi}", inner
    if spec.conda is not None:
        prefix = here / spec.conda if "/" in spec.conda else None
        return "conda", f"the conda environment {spec.conda}", prefix
    return "caller", "the environment of this shell", None


def _demands() -> list[str]:
    """Return the requirements of hpctrain's [train] extra, such as `torch>=2.6`."""
    try:
        lines = importlib.metadata.requires("hpctrain") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    of_extra = (line.partition(";") for line in lines)
    return [line.strip() for line, _, marker in of_extra if re.search("extra == .train.", marker)]


# -- the job's shell -------------------------------------------------------------------------------


def directory(chdir: str) -> str:
    """Return the job's directory if it is here, else the current one."""
    return chdir if Path(chdir).is_dir() else str(Path.cwd())


def shell_of(spec: JobSpec) -> list[str]:
    """Return the command line of the job's shell, to which a text is added."""
    return [*(spec.shebang.removeprefix("#!").split() or ["/bin/bash"]), "-c"]


def module_lines(spec: JobSpec) -> list[str]:
    """Return the lines before the first `module load`."""
    lines = [f"module {spec.module_start}"] if spec.module_start else []
    return lines + [f"module use {shell.quote(folder)}" for folder in spec.module_use]


def activation(spec: JobSpec) -> str:
    """Return the lines that load the modules and activate the environment, as in the job's script
    (templates/_macros.j2).

    A module that does not load is ignored here: another probe reports it, and a virtual environment
    may work without it.
    """
    loads = [f"module load {shell.quote(name)}" for name in spec.modules]
    lines = [
        f"{{ {line}; }} >/dev/null 2>&1 </dev/null"
        for line in [*module_lines(spec), *loads]
        if spec.modules
    ]
    if spec.conda is not None:
        lines.append(
            'source "$(conda info --base)/etc/profile.d/conda.sh" && conda activate '
            + shell.quote(spec.conda)
            + " || exit 3"
        )
    venv = spec.venv if spec.uv is None else f"{spec.uv.rstrip('/')}/.venv"
    if venv is not None:
        lines.append(f"source {shell.quote(venv.rstrip('/') + '/bin/activate')} || exit 3")
    if spec.pixi is not None:
        lines.append('pixi=$(command -v pixi || echo "$HOME/.pixi/bin/pixi")')
        manifest = shell.quote(spec.pixi)
        lines.append(
            f'hook=$("$pixi" shell-hook --as-is --shell bash --manifest-path {manifest}) && eval'
            ' "$hook" || exit 3'
        )
    lines += [f"unset {' '.join(spec.unset)}"] if spec.unset else []
    lines += [f"export {name}={shell.quote(value)}" for name, value in spec.env]
    return "\n".join(lines)


# -- programs that may hang ------------------------------------------------------------------------


def run_limited(
    argv: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None
) -> process.Finished:
    """Run `argv` with a time limit and return the result.

    Args:
        argv: program and arguments, run without a shell.
        timeout: seconds, after which the program and its children are killed.
        environment: of the program; None: the caller's, without an outer job's variables.

    Raises:
        SchedulerError: the program is not on PATH.
        NoAnswerError: the time limit was reached.
    """
    if shutil.which(argv[0], path=(environment or os.environ).get("PATH")) is None:
        raise SchedulerError(f"{argv[0]} is not on PATH")
    guard = ["timeout", "--kill-after=2", f"{timeout:g}"] if shutil.which("timeout") else []
    done = process.run([*guard, *argv], timeout=timeout + 5, environment=environment)
    if guard and done.returncode in _LATE:
        raise process.NoAnswerError(f"{argv[0]} had not ended after {timeout:g} s")
    return done


def last_lines(text: str, count: int = 1) -> tuple[str, ...]:
    """Return the last non-empty lines of a program's output."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())[-count:]
