"""The pages: a place for each command's help, examples that run, links that lead somewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hpctrain.cli import VERBS, cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.md")])
HELP = re.compile(r"^<!-- help(?: ([a-z ]+))? -->$", re.MULTILINE)
#: Pages that are no verb's, and have examples.
TOPICS = ("sweeps", "runs", "tune", "report", "logs")
#: Pages whose examples train, or run half a minute.
LONG = ("verbs/prepare", *TOPICS)
EXAMPLES = [
    pytest.param(page, marks=pytest.mark.extended if page in LONG else ())
    for page in (*(f"verbs/{verb}" for verb in VERBS), *TOPICS)
]


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_has_a_place_for_the_help_of_each_command(verb: str) -> None:
    """`docs/build_site.py` fills it in; no help is committed."""
    page = ROOT / "docs" / "verbs" / f"{verb}.md"
    text = page.read_text()
    with click.Context(cli) as context:
        command = cli.get_command(context, verb)
        names = command.list_commands(context) if isinstance(command, click.Group) else []
    shown = [match[1] or verb for match in HELP.finditer(text)]
    assert sorted(shown) == sorted([verb, *(f"{verb} {name}" for name in names)])
    assert "Usage: hpctrain" not in text
    assert f"[{verb}]({verb}.md)" in (page.parent / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("page", EXAMPLES)
@pytest.mark.usefixtures("no_slurm")
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    """Each block is one shell, in which lines that begin with `$ ` are typed; the others are what
    they print.
    """
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "train.py").write_text("print('trained')\n")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        lines = block.splitlines()
        typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(typed)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )
        said = f"{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"{block}\n{said}"
        printed = [line for line in lines if not line.startswith("$ ")]
        assert [line for line in printed if line not in said.splitlines()] == [], said
    subprocess.run(
        ["bash", "-c", "hpctrain cancel --yes"], cwd=tmp_path, env=environment, capture_output=True
    )


def test_links_lead_somewhere() -> None:
    lost = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith(("http://", "https://")) and not (page.parent / target).exists()
    ]
    assert lost == []


TUNE = (
    "tune",
    "study",
    "space",
    "trials",
    "parallel",
    "metric",
    "direction",
    "sampler",
    "pruner",
    "seed",
)
#: Keys of the shipped config that contradict others there, each group once left out.
RIVALS = {
    "first": (
        "mem_per_cpu",
        "mem_per_gpu",
        "cpus_per_gpu",
        "venv",
        "uv",
        "pixi",
        "container",
        "image",
        "engine",
        "binds",
        "gpu_libraries",
        "accelerate_config",
        "sweep",
        "grid",
        "throttle",
        "pass",
        "booleans",
        "array",
        *TUNE,
    ),
    "second": (
        "mem",
        "mem_per_gpu",
        "cpus_per_task",
        "conda",
        "venv",
        "uv",
        "pixi",
        "sharding",
        "stages",
        "-",
        *TUNE,
    ),
    "third": (
        "mem",
        "mem_per_cpu",
        "cpus_per_gpu",
        "conda",
        "venv",
        "uv",
        "pixi",
        "sharding",
        "stages",
        "-",
        "sweep",
        "grid",
        "throttle",
        "pass",
        "booleans",
    ),
}


def uncommented(text: str, without: tuple[str, ...]) -> str:
    """Return the config with every commented key alive, but for `without`."""
    lines = []
    for line in text.splitlines():
        alive = re.sub(r"^(\s*)# (?=\s*([A-Za-z_-]+:(\s|$)|- \{))", r"\1", line)
        key = re.match(r"\s*([A-Za-z_-]+):", alive) or re.match(r"\s*(-) \{", alive)
        lines += [] if key is None or key[1] in without else [alive]
    return "\n".join(lines)


@pytest.mark.parametrize("without", RIVALS.values(), ids=RIVALS)
def test_the_config_that_is_shipped_is_valid_with_every_key_of_it(without: tuple[str, ...]) -> None:
    from hpctrain.config import layers, stages, to_spec
    from hpctrain.config.fields import FIELDS
    from hpctrain.util import yaml12

    text = (ROOT / "config.yaml").read_text()
    layers.resolve([layers.from_document(yaml12.load(text, "config.yaml"), "config.yaml")])
    every = [
        layers.from_document(yaml12.load(uncommented(text, without), "config.yaml"), "config.yaml")
    ]
    whole = layers.resolve(every)
    assert len(stages.read(every)) == (0 if "stages" in without else 3)
    assert (whole.config.sweep is None) == ("sweep" in without)
    assert (
        to_spec.environment_variables(whole.config.environment)[0][
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
        ]
        == "1800"
    )
    assert len(whole.origins) > 40
    for field in FIELDS:
        assert re.search(rf"^\s*(#\s+)?{field.name}:", text, re.MULTILINE), (
            f"config.yaml does not mention {field.name}"
        )


def test_the_table_of_keys_and_the_schema_agree() -> None:
    """Every scalar key has an option, but for those that a list or a mapping holds, and those that
    a cluster's profile knows.
    """
    from hpctrain.config import schema, spec
    from hpctrain.config.fields import FIELDS

    models = {
        (): schema.Config,
        ("resources",): schema.Resources,
        ("environment",): schema.EnvironmentSection,
        ("environment", "container"): spec.Container,
        ("launch",): schema.LaunchSection,
        ("restart",): schema.RestartSection,
        ("check",): schema.Check,
        ("data",): schema.Data,
    }
    for field in FIELDS:
        assert field.name in models[field.path[:-1]].fields()
    listed = {field.path for field in FIELDS}
    in_files = (
        "modules",
        "module_start",
        "module_use",
        "modules_first",
        "profiles",
        "env",
        "unset",
        "secrets",
        "before",
        "before_each_node",
        "after",
        "container",
    )
    free = {
        ("resources",),
        ("environment",),
        ("data",),
        ("data", "path"),
        ("data", "directory"),
        ("launch",),
        ("restart",),
        ("check",),
        ("notify",),
        ("stages",),
        ("tune",),
        ("sbatch",),
        ("training",),
        *(("environment", name) for name in in_files),
    }
    free |= {("launch", name) for name in schema.LaunchSection.fields()}
    free |= {("environment", "container", name) for name in ("binds", "gpu_libraries")}
    assert {
        (*section, name) for section, model in models.items() for name in model.fields()
    } == listed | free
