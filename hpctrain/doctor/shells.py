"""The shell that the job gets, and what it runs to activate the environment: text for `bash -c`. Pure."""

from __future__ import annotations

from hpctrain.jobs import shell
from hpctrain.jobs.spec import JobSpec


def shell_of(spec: JobSpec) -> list[str]:
    """Return the argv of the job's shell up to the text that it runs: what stands in the #! line, with -c."""
    words = spec.shebang.removeprefix("#!").split() or ["/bin/bash"]
    return [*words, "-c"]


def modules(spec: JobSpec) -> list[str]:
    """Return the lines that come before the first `module load`."""
    lines = [f"module {spec.module_start}"] if spec.module_start else []
    return lines + [f"module use {shell.quote(folder)}" for folder in spec.module_use]


def activation(spec: JobSpec) -> str:
    """Return the lines that load the modules and activate the environment.

    A module that does not load stops nothing here: it is another probe's business, and a virtual environment may do without.
    """
    lines: list[str] = []
    if spec.modules:
        loads = [*modules(spec), *(f"module load {shell.quote(name)}" for name in spec.modules)]
        lines += [f"{{ {line}; }} >/dev/null 2>&1 </dev/null" for line in loads]
    if spec.conda is not None:
        lines.append('source "$(conda info --base)/etc/profile.d/conda.sh" && conda activate ' + shell.quote(spec.conda) + " || exit 3")
    if spec.venv is not None:
        lines.append(f"source {shell.quote(spec.venv.rstrip('/') + '/bin/activate')} || exit 3")
    if spec.uv is not None:
        lines.append(f"source {shell.quote(spec.uv.rstrip('/') + '/.venv/bin/activate')} || exit 3")
    if spec.pixi is not None:
        lines.append('pixi=$(command -v pixi || echo "$HOME/.pixi/bin/pixi")')
        manifest = shell.quote(spec.pixi)
        lines.append(f'hook=$("$pixi" shell-hook --as-is --shell bash --manifest-path {manifest}) && eval "$hook" || exit 3')
    lines += [f"unset {' '.join(spec.unset)}"] if spec.unset else []
    lines += [f"export {name}={shell.quote(value)}" for name, value in spec.env]
    return "\n".join(lines)
