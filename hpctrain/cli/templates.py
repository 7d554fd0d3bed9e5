"""The templates that a job is rendered from: the shipped ones, the user's own, and Jinja's compiled forms of them.

A module of its own, because Jinja takes 30 ms to import and `check` renders nothing where there is no Slurm.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jinja2

from hpctrain import data
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import render
from hpctrain.jobs.spec import JobSpec
from hpctrain.scheduler.state_dir import state_dir


def find(spec: JobSpec, again: str) -> tuple[dict[str, str], str, dict[str, str]]:
    """Return name to text of all templates, the name of the one to render, and where the user's own ones lie.

    A file of ./templates takes the place of the shipped one of that name.
    """
    own = {file.name: str(file) for file in sorted(Path("templates").glob("*.j2"))}
    found = data.templates() | {name: _read_template(Path(file)) for name, file in own.items()}
    if spec.template is None:
        return found, render.template_name(spec), own
    if spec.template in found:
        return found, spec.template, own
    file = Path(spec.template)
    if not file.is_file():
        raise UsageError(
            f"there is no template {spec.template!r}",
            details=("known are " + ", ".join(name for name in sorted(found) if name.endswith(".sbatch.j2")),),
            fix=f"{again} --template {render.template_name(spec)}",
        )
    return {**found, spec.template: _read_template(file)}, spec.template, own


def compiled() -> jinja2.BytecodeCache | None:
    """Return where compiled templates are kept between calls; None where nothing can be written, which costs 15 ms and no more."""
    try:
        directory = state_dir() / "templates"
        directory.mkdir(mode=0o700, exist_ok=True)
    except (HpctrainError, OSError):
        return None
    return _CompiledTemplates(str(directory)) if os.access(directory, os.W_OK) else None


class _CompiledTemplates(jinja2.FileSystemBytecodeCache):
    """A cache that a full disk does not turn into an error."""

    def dump_bytecode(self, bucket: Any) -> None:
        """Keep a compiled template, or do without."""
        try:
            super().dump_bytecode(bucket)
        except OSError:
            return


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the template {file}: {error}", fix=f"ls -l {file}") from error
