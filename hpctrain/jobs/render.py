"""Job spec + template texts → script text, with a header that says who made it and how to make it again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from hpctrain.errors import UsageError
from hpctrain.jobs import directives, sharding, shell, stages
from hpctrain.jobs.spec import JobSpec, short_digest

_MADE = re.compile(
    r"^# made by hpctrain \S+ from template .+ [0-9a-f]{12}, "
    r"config [0-9a-f]{12}, text (?P<seal>[0-9a-f]{12})$",
    re.MULTILINE,
)
_AGAIN = re.compile(r"^# make it again: (?P<command>.+)$", re.MULTILINE)
#: What Jinja calls a referenced template; looking for it in the text is 4 ms cheaper than parsing the template a second time.
_REFERENCE = re.compile(r"""\{%-?\s*(?:import|from|include|extends)\s+["']([^"']+)["']""")
_NO_SEAL = "0" * 12
ACCELERATE_TEMPLATE = "accelerate.yaml.j2"


@dataclass(frozen=True, slots=True)
class Made:
    """What a script's header says.

    Attributes:
        untouched: whether the text is still what hpctrain wrote.
        directory: where the command was given.
        arguments: of `hpctrain render`, as argv words.
    """

    untouched: bool
    directory: str
    arguments: tuple[str, ...]


def template_name(spec: JobSpec) -> str:
    """Return the name of the shipped template for `spec`."""
    return "single_node.sbatch.j2" if spec.nodes == 1 else "multi_node.sbatch.j2"


def render(
    spec: JobSpec,
    templates: Mapping[str, str],
    *,
    template: str,
    version: str,
    directory: str,
    arguments: tuple[str, ...],
    compiled: jinja2.BytecodeCache | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the sbatch script of `spec`.

    Args:
        spec: the job.
        templates: name to text; `template` and whatever it imports must be among them.
        template: the name of the one to render.
        version: of hpctrain.
        directory: where the command is given.
        arguments: the words behind `hpctrain render` that make this script again.
        compiled: where Jinja keeps compiled templates; compiling them is a tenth of the time of `hpctrain render`.
        files: the files behind the names of `templates`, for messages, where they differ.

    Raises:
        UsageError: the template does not parse, uses an undefined variable, or does not start with `#!`.
    """
    context = {"job": spec, "directives": _Lines(directives.lines(spec)), "arguments": _Lines(_argument_lines(spec.arguments))}
    text = _fill(template, templates, context, compiled, files)
    first, _, rest = text.partition("\n")
    if not first.startswith("#!"):
        raise UsageError(
            f"template {template} does not start with a #! line, so Slurm would refuse the script",
            details=(f"{files.get(template, template)}:1: {first[:60]!r}",), fix=f"begin {template} with: #!/bin/bash",
        )  # fmt: skip
    title = f"# {spec.job_name}: {spec.layout}, started by {spec.launcher}"
    return _seal([first, title, _made_of(template, templates, version), _again(directory, arguments), rest], spec)


def render_accelerate_config(
    spec: JobSpec,
    templates: Mapping[str, str],
    *,
    compiled: jinja2.BytecodeCache | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the accelerate config that the script of a job that shards writes for itself."""
    return _fill(ACCELERATE_TEMPLATE, templates, {"job": spec}, compiled, files)


def _made_of(template: str, templates: Mapping[str, str], version: str) -> str:
    return f"# made by hpctrain {version} from template {shell.quote(template)} {_template_digest(template, templates)}"


def _again(directory: str, arguments: tuple[str, ...]) -> str:
    return f"# make it again: cd {shell.quote(directory)} && {shell.join(('hpctrain', 'render', *arguments))}"


def _seal(parts: list[str], spec: JobSpec) -> str:
    """Return the whole text, with the digest of itself in the line that says what it is made of, the third last of `parts`."""
    made_of = parts[-3]
    made = f"{made_of}, config {spec.digest()}, text {_NO_SEAL}"
    unsealed = "\n".join([*parts[:-3], made, parts[-2], parts[-1].rstrip("\n")]) + "\n"
    return unsealed.replace(made, made.replace(f"text {_NO_SEAL}", f"text {short_digest(unsealed)}"), 1)


def read_header(script: str) -> Made | None:
    """Return what the header of `script` says, or None where hpctrain did not write it."""
    made, again = _MADE.search(script), _AGAIN.search(script)
    if made is None or again is None:
        return None
    unsealed = script[: made.start("seal")] + _NO_SEAL + script[made.end("seal") :]
    try:
        words = shell.split(again["command"])
    except ValueError:
        return None
    if len(words) < 5 or words[0] != "cd" or words[2:5] != ["&&", "hpctrain", "render"]:
        return None
    return Made(made["seal"] == short_digest(unsealed), words[1], tuple(words[5:]))


class _Lines(list[str]):
    """Lines that a template may loop over, join, or simply print."""

    def __str__(self) -> str:
        return "\n".join(self)


def _argument_lines(arguments: tuple[str, ...]) -> list[str]:
    """Return the training arguments as lines of bash, an option and its values on each."""
    lines: list[list[str]] = []
    for word in arguments:
        if lines and not word.startswith("--"):
            lines[-1].append(word)
        else:
            lines.append([word])
    return [shell.join(line) for line in lines]


def _fill(
    name: str, templates: Mapping[str, str], context: Mapping[str, object], compiled: jinja2.BytecodeCache | None, files: Mapping[str, str]
) -> str:
    environment = _environment(tuple(templates.items()), compiled)
    try:
        return environment.get_template(name).render(context)
    except jinja2.TemplateSyntaxError as error:
        where, line, what = error.name or name, f":{error.lineno}", str(error.message)
    except jinja2.TemplateNotFound as error:
        where, line, what = name, "", f"there is no template {error.name!r}; known are {', '.join(sorted(templates))}"
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
        import traceback

        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in templates]
        where, line = (frames[-1].filename, f":{frames[-1].lineno}") if frames else (name, "")
        what = str(error) or type(error).__name__
    place = files.get(where, where)
    raise UsageError(
        f"template {name} cannot be rendered",
        details=(
            f"{place}{line}: {what}",
            "a template sees `job` (hpctrain/jobs/spec.py), `directives` (the #SBATCH lines) and `arguments` (of the training)",
        ),
        fix=f"edit {place}, then run the command again",
    )


@lru_cache(maxsize=4)
def _environment(templates: tuple[tuple[str, str], ...], compiled: jinja2.BytecodeCache | None) -> jinja2.Environment:
    """Return what compiles the templates; it keeps what it has compiled, which the scripts of a sweep's points share."""
    texts = dict(templates)

    def load(name: str) -> tuple[str, str, None] | None:
        return (texts[name], name, None) if name in texts else None

    environment = SandboxedEnvironment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        bytecode_cache=compiled,
        autoescape=False,  # bash, not HTML: the `sh` filter is what escapes here
    )
    environment.filters["sh"] = shell.quote
    environment.filters["sharding_variables"] = sharding.variables
    environment.filters["training_argument"] = sharding.training_argument
    environment.filters["stage_variable"] = stages.variable
    return environment


def _template_digest(name: str, templates: Mapping[str, str]) -> str:
    """Return the digest of a template and of everything it imports by name."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in templates and current not in seen:
            seen.add(current)
            waiting += _REFERENCE.findall(templates[current])
    return short_digest("\0".join(templates[current] for current in sorted(seen)))
