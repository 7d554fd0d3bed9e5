"""The pages: help as it is, examples that run, links that lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.cli import VERBS, main

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.md")])
#: Help of the verb, or `<!-- help of runs list: …` of a subcommand.
HELP = re.compile(r"(<!-- help(?: of ([a-z -]+))?: [^\n]*? -->\n```\n)(.*?)(```\n<!-- end of help -->)", re.DOTALL)
#: Verbs that are groups, each with the subcommands whose help their page shows.
GROUPS = {
    "sweep": ("plan",),
    "tune": ("status", "best"),
    "runs": ("list", "show", "drop", "export", "import"),
    "checkpoints": ("list", "verify", "drop", "export", "import"),
}
#: Pages that are no verb's, and have examples.
TOPICS = ("sweeps", "stages", "runs", "tune", "report")


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_shows_the_help_of_its_verb(
    verb: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def help_of(words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words.split(), "--help"])
        assert ended.value.code == 0
        return capfd.readouterr().out

    monkeypatch.setenv("COLUMNS", "102")
    page = ROOT / "docs" / "verbs" / f"{verb}.md"
    text = page.read_text()
    expected = HELP.sub(lambda match: match[1] + help_of(match[2] or verb) + match[4], text)
    if request.config.getoption("--update-docs"):
        page.write_text(expected)
    shown = [match[2] or verb for match in HELP.finditer(text)]
    assert shown == [verb, *(f"{verb} {name}" for name in GROUPS.get(verb, ()))], f"{page} has no place for some of the help"
    assert page.read_text() == expected, "write it with: pytest --update-docs"
    assert f"[{verb}]({verb}.md)" in (page.parent / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.usefixtures("no_slurm")
def test_the_examples_of_the_page_run(verb: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    page = (ROOT / "docs" / "verbs" / f"{verb}.md").read_text()
    lines = [line.removeprefix("$ ") for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in lines:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    subprocess.run(["bash", "-c", "hpctrain cancel --yes"], cwd=tmp_path, env=environment, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.usefixtures("no_slurm")
def test_the_examples_of_a_topic_run(topic: str, tmp_path: Path) -> None:
    """Each block is one shell, in which lines that begin with `$ ` are typed; the others are what they print."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "train.py").write_text("print('trained')\n")
    page = (ROOT / "docs" / f"{topic}.md").read_text()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        typed = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(typed)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said = f"{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"{block}\n{said}"
        for line in block.splitlines():
            assert line.startswith("$ ") or line in said.splitlines(), f"{line!r} is not what is printed:\n{said}"
    subprocess.run(["bash", "-c", "hpctrain cancel --yes"], cwd=tmp_path, env=environment, capture_output=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


TUNE = ("tune", "study", "space", "trials", "parallel", "metric", "direction", "sampler", "pruner", "seed")
#: Keys of the shipped config that contradict others there, each group once left out.
RIVALS = {
    "first": ("mem_per_cpu", "cpus_per_gpu", "venv", "uv", "pixi", "container", "image", "engine", "binds", "gpu_libraries",
              "accelerate_config", "sweep", "grid", "throttle", "pass", "booleans", "array", *TUNE),
    "second": ("mem", "cpus_per_task", "conda", "venv", "uv", "pixi", "sharding", "stages", "-", *TUNE),
    "third": ("mem", "cpus_per_gpu", "conda", "venv", "uv", "pixi", "sharding", "stages", "-", "sweep", "grid", "throttle", "pass",
              "booleans"),
}  # fmt: skip


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
    from hpctrain import yaml12
    from hpctrain.config import layers, stages, variables
    from hpctrain.config.fields import FIELDS

    text = (ROOT / "config.yaml").read_text()
    layers.resolve([layers.from_document(yaml12.load(text, "config.yaml"), "config.yaml")])
    every = [layers.from_document(yaml12.load(uncommented(text, without), "config.yaml"), "config.yaml")]
    whole = layers.resolve(every)
    assert len(stages.read(every)) == (0 if "stages" in without else 3)
    assert (whole.config.sweep is None) == ("sweep" in without)
    assert variables.resolved(whole.config.environment)[0]["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "1800"
    assert len(whole.origins) > 40
    for field in FIELDS:
        assert re.search(rf"^\s*(#\s+)?{field.name}:", text, re.MULTILINE), f"config.yaml does not mention {field.name}"


def test_the_table_of_keys_and_the_schema_agree() -> None:
    """Every scalar key has an option, but for those that a list or a mapping holds, and those that a cluster's profile knows."""
    from hpctrain.config import environment, schema
    from hpctrain.config.fields import FIELDS

    models = {
        (): schema.Config, ("resources",): schema.Resources, ("environment",): environment.Environment,
        ("environment", "container"): environment.Container, ("launch",): environment.Launch, ("restart",): schema.Restart,
    }  # fmt: skip
    for field in FIELDS:
        assert field.name in models[field.path[:-1]].model_fields
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
        "after",
        "container",
    )
    free = {
        ("resources",),
        ("environment",),
        ("launch",),
        ("restart",),
        ("notify",),
        ("stages",),
        ("tune",),
        ("sbatch",),
        ("training",),
        *(("environment", name) for name in in_files),
    }
    free |= {("launch", name) for name in environment.Launch.model_fields}
    free |= {("environment", "container", name) for name in ("binds", "gpu_libraries")}
    assert {(*section, name) for section, model in models.items() for name in model.model_fields} == listed | free
