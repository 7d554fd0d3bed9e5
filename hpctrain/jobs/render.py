"""Job spec + template texts → script text, with the command to render it again in the header."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from hpctrain.config import stages
from hpctrain.config.arguments import Arguments
from hpctrain.config.spec import JobSpec, short_digest
from hpctrain.errors import UsageError
from hpctrain.jobs import directives
from hpctrain.jobs.header import LIBRARY, LIBRARY_DIRECTORY, NO_SEAL
from hpctrain.util import shell


def template_name(spec: JobSpec) -> str:
    """Return the name of the built-in template for `spec`."""
    return "single_node.sbatch.j2" if spec.nodes == 1 else "multi_node.sbatch.j2"


def render(
    spec: JobSpec,
    templates: Mapping[str, str],
    *,
    template: str,
    version: str,
    directory: str,
    arguments: tuple[str, ...],
    files: Mapping[str, str] = MappingProxyType({}),
    standalone: bool = False,
) -> str:
    """Return the sbatch script of `spec`.

    Args:
        spec: the job.
        templates: name to text; must contain `template` and everything that it imports.
        template: the name of the one to render.
        version: the version of hpctrain.
        directory: the working directory of the command.
        arguments: the arguments of `hpctrain render` that reproduce this script.
        files: the files that `templates` were read from, for messages, if the names differ.
        standalone: include the library's functions in the script, which otherwise sources a file.

    Raises:
        UsageError: the template does not parse, uses an undefined variable, or does not start with
            `#!`.
    """
    context = {
        "job": spec,
        "directives": _Lines(directives.lines(spec)),
        "arguments": _Lines(shell.join(group) for _, group in shell.option_groups(spec.arguments)),
        "library": library_path(spec.chdir, templates[LIBRARY], version),
        "standalone": templates[LIBRARY] if standalone else "",
    }
    text = _fill(template, templates, context, files)
    first, _, rest = text.partition("\n")
    if not first.startswith("#!"):
        raise UsageError(
            f"template {template} does not start with a #! line, so Slurm would refuse the script",
            details=(f"{files.get(template, template)}:1: {first[:60]!r}",),
            hint=f"begin {template} with: #!/bin/bash",
        )
    again = shell.join(("hpctrain", "render", *arguments))
    unsealed = (
        f"{first}\n"
        f"# {spec.job_name}: {spec.layout}, started by {spec.launcher}\n"
        f"# made by hpctrain {version} from template {shell.quote(template)}, text {NO_SEAL}\n"
        f"# make it again: cd {shell.quote(directory)} && {again}\n" + rest.rstrip("\n") + "\n"
    )
    return unsealed.replace(f", text {NO_SEAL}\n", f", text {short_digest(unsealed)}\n", 1)


def activation(spec: JobSpec, templates: Mapping[str, str]) -> str:
    """Return the lines of the script of `spec` that load its modules and its environment; they call
    `fail` with a message.
    """
    part: Any = _environment(tuple(templates.items())).get_template("_macros.j2").module
    return str(part.activation(spec))


def library_path(chdir: str, text: str, version: str) -> str:
    """Return the library path for jobs that run in `chdir`. The name contains a digest of the
    content, so that a newer hpctrain never changes what a queued job sources.
    """
    return f"{chdir.rstrip('/')}/{LIBRARY_DIRECTORY}/job-{version}-{short_digest(text)}.sh"


class _Lines(list[str]):
    def __str__(self) -> str:
        return "\n".join(self)


def _fill(
    name: str,
    templates: Mapping[str, str],
    context: Mapping[str, object],
    files: Mapping[str, str],
) -> str:
    try:
        return _environment(tuple(templates.items())).get_template(name).render(context)
    except (
        jinja2.TemplateError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        MemoryError,
    ) as error:
        frames = traceback.extract_tb(error.__traceback__)
        places = [(each.filename, each.lineno) for each in frames if each.filename in templates]
        if isinstance(error, jinja2.TemplateSyntaxError):
            places = [(error.name or name, error.lineno)]
        where, line = places[-1] if places else (name, 1)
        place = files.get(where, where)
        what = str(error) or type(error).__name__
        if isinstance(error, jinja2.TemplateNotFound):
            what = f"there is no template {what!r}; known are {', '.join(sorted(templates))}"
        raise UsageError(
            f"template {name} cannot be rendered",
            details=(
                f"{place}:{line}: {what}",
                (
                    "a template sees `job` (hpctrain/config/spec.py), `directives` (the #SBATCH"
                    " lines), `arguments` (of the training), `library` and `standalone`"
                    " (docs/templates.md)"
                ),
            ),
            hint=f"edit {place}, then run the command again",
        ) from None


def _quoted(value: object) -> str:
    """Return `value` as one bash word that is safe inside the script's single quotes."""
    return shell.quote(value).replace("'", "'\\''")


@lru_cache(maxsize=4)
def _environment(templates: tuple[tuple[str, str], ...]) -> jinja2.Environment:
    """Return the Jinja environment, which caches the templates that a sweep's scripts share."""
    texts = dict(templates)

    def load(name: str) -> tuple[str, str, None] | None:
        return (texts[name], name, None) if name in texts else None

    environment = SandboxedEnvironment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # bash, not HTML: the `sh` filter escapes
    )
    environment.filters["sh"] = shell.quote
    environment.filters["quoted"] = _quoted
    environment.filters["sharding_variables"] = variables
    environment.filters["training_argument"] = training_argument
    environment.filters["stage_variable"] = stages.variable
    return environment


_FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_OFFLOAD_PARAMS": "false",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_SYNC_MODULE_STATES": "true",
    "FSDP_ACTIVATION_CHECKPOINTING": "false",
}


def variables(spec: JobSpec) -> list[tuple[str, str]]:
    """Return the environment variables that make the processes started by torchrun or srun shard as
    in `spec`; none for ddp.
    """
    if spec.sharding == "ddp":
        return []
    if spec.sharding == "fsdp":
        return list(_FSDP.items())
    values = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3" if spec.sharding == "zero3" else "2",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": training_argument(
            spec, "gradient_accumulation_steps", "auto"
        ),
        "ACCELERATE_GRADIENT_CLIPPING": training_argument(spec, "max_grad_norm", "auto"),
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
    }
    if spec.sharding == "zero3":
        values |= {
            "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
            "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
        }
    return list(values.items())


def training_argument(spec: JobSpec, name: str, default: str) -> str:
    """Return the number after the last `--name` among the training arguments; `default` if it is
    not a number.
    """
    number = Arguments(spec).get(name) or ""
    return (
        number
        if number.replace(".", "", 1).isascii() and number.replace(".", "", 1).isdecimal()
        else default
    )
