"""The job's environment: started as the job's shell would, and what its Python reports."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpctrain.config.spec import JobSpec
from hpctrain.doctor import inside
from hpctrain.doctor.environment_evaluation import evaluate, problem, result
from hpctrain.doctor.facts import DoctorContext, EnvironmentFacts, ProbeResult
from hpctrain.errors import SchedulerError
from hpctrain.jobs import render
from hpctrain.util import installed, process, shell, stored

ENVIRONMENT_S = 60.0
#: kind → its name in a sentence, and the directory of its Python below the one in the config.
_KINDS = {
    "venv": ("the virtual environment", ""),
    "uv": ("the uv project", ".venv"),
    "pixi": ("the pixi project", ".pixi/envs/default"),
    "conda": ("the conda environment", ""),
}


def job_environment(context: DoctorContext) -> list[ProbeResult]:
    """Start the Python of the job's environment, and check what it reports of itself, of the
    libraries, and of torch.
    """
    spec = context.spec
    kind = next((kind for kind in _KINDS if getattr(spec, kind) is not None), "caller")
    name, place = "the environment of this shell", None
    if kind != "caller":
        title, below = _KINDS[kind]
        name, place = f"{title} {getattr(spec, kind)}", Path(getattr(spec, kind), below)
    if kind == "conda" and "/" not in str(spec.conda):
        place = None
    try:
        if spec.container is not None:
            sentence = f"the image {spec.container.image} is not opened here"
            return _unknown(f"{sentence}; run: hpctrain doctor --job")
        program = "python" if spec.launcher == "srun" else spec.launcher
        script = f'{activation(spec)}\ncommand -v {program} || echo -\nexec python -c "$@"\n'
        question = Path(inside.__file__).read_text(encoding="utf-8")
        argv = [f"--chdir={directory(spec.chdir)}", *shell_of(spec), script, "doctor", question]
        done = run_limited(["env", *argv], timeout=ENVIRONMENT_S)
    except process.NoAnswerError:
        return _unknown(f"{name} did not answer within a minute")
    before, mark, answer = done.stdout.partition(inside.MARK)
    facts = stored.made(EnvironmentFacts, json.loads(answer.splitlines()[0])) if mark else None
    if facts is not None:
        found = [line for line in before.splitlines() if line.strip()][-1:]
        launcher = found[0] if found and found[0] != "-" else None
        where = os.path.realpath(Path(spec.chdir, place or facts.prefix))
        moved = where if where != os.path.realpath(facts.prefix) else None
        facts = replace(facts, kind=kind, name=name, place=moved, launcher=launcher)
        return evaluate(facts, context)
    broken = problem(
        "doctor-environment-broken",
        f"{name} does not start",
        evidence=f"its output: {' '.join(last_lines(done.stderr, 2)) or 'none'}",
        reason="it would not start in the job either",
        fix="hpctrain check, which says what it lacks; or recreate it on this cluster",
    )
    return [result("environment", f"{name} does not start", [broken]), *_unknown("")[1:]]


def _unknown(sentence: str) -> list[ProbeResult]:
    more = "unknown: the environment did not answer"
    lines = (("environment", sentence), ("versions", more), ("torch", more))
    return [result(probe, words, unknown=True) for probe, words in lines]


def demands() -> tuple[str, ...]:
    """Return the requirements of hpctrain's [train] extra, such as `torch>=2.6`."""
    try:
        lines = importlib.metadata.requires("hpctrain") or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    of_extra = (line.partition(";") for line in lines)
    return tuple(line.strip() for line, _, marker in of_extra if "train" in marker)


# -- the job's shell -------------------------------------------------------------------------------


def directory(chdir: str) -> str:
    """Return the job's directory if it is here, else the current one."""
    return chdir if Path(chdir).is_dir() else str(Path.cwd())


def shell_of(spec: JobSpec) -> list[str]:
    """Return the command line of the job's shell, to which a text is added."""
    return [*(spec.shebang.removeprefix("#!").split() or ["/bin/bash"]), "-c"]


def activation(spec: JobSpec) -> str:
    """Return the lines that load the modules and activate the environment, as in the job's script.

    A module that does not load is ignored here: another probe reports it, and a virtual environment
    may work without it.
    """
    lines = [
        'fail() { [[ $1 == *module* ]] || { echo "$1" >&2; exit 3; }; }',
        f"{{ :\n{render.activation(spec, installed.templates())}\n}} >/dev/null </dev/null",
        f"unset {' '.join(spec.unset)}" if spec.unset else "",
        *(f"export {name}={shell.quote(value)}" for name, value in spec.env),
    ]
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
    # timeout(1) exits with 124 after the time limit, and with 137 after SIGKILL.
    if guard and done.returncode in (124, 137):
        raise process.NoAnswerError(f"{argv[0]} had not ended after {timeout:g} s")
    return done


def last_lines(text: str, count: int = 1) -> tuple[str, ...]:
    """Return the last non-empty lines of a program's output."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())[-count:]
