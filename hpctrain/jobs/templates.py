"""The templates that a job is rendered from: built-in and custom ones.

A separate module, because importing Jinja takes 30 ms and `check` renders nothing without Slurm.
"""

from __future__ import annotations

from pathlib import Path

from hpctrain.config.spec import JobSpec
from hpctrain.errors import UsageError
from hpctrain.jobs import header, render
from hpctrain.util import builtin, stored


def find(spec: JobSpec, again: str) -> tuple[dict[str, str], str, dict[str, str]]:
    """Return the texts of all templates by name, the name of the one to render, and the paths of
    custom templates.

    A file in ./templates replaces the built-in one of that name.
    """
    own = {
        file.name: str(file)
        for file in sorted(Path("templates").glob("*"))
        if file.suffix == ".j2" or file.name == header.LIBRARY
    }
    found = builtin.templates() | {name: _read_template(Path(file)) for name, file in own.items()}
    if spec.template is None:
        return found, render.template_name(spec), own
    if spec.template in found:
        return found, spec.template, own
    file = Path(spec.template)
    if not file.is_file():
        raise UsageError(
            f"there is no template {spec.template!r}",
            details=(
                "known are "
                + ", ".join(name for name in sorted(found) if name.endswith(".sbatch.j2")),
            ),
            fix=f"{again} --template {render.template_name(spec)}",
        )
    return {**found, spec.template: _read_template(file)}, spec.template, own


def _read_template(file: Path) -> str:
    try:
        return stored.read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the template {file}: {error}", fix=f"ls -l {file}"
        ) from error
