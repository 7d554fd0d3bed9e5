"""The pages: help as it is, examples that run, links that lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.cli import VERBS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.md")])
HELP = re.compile(r"(<!-- help: .*? -->\n```\n)(.*?)(```\n<!-- end of help -->)", re.DOTALL)


def help_of(verb: str) -> str:
    hpctrain = Path(sys.executable).with_name("hpctrain")
    return subprocess.run(
        [hpctrain, verb, "--help"], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "102"}
    ).stdout


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_shows_the_help_of_its_verb(verb: str, request: pytest.FixtureRequest) -> None:
    page = ROOT / "docs" / "verbs" / f"{verb}.md"
    text = page.read_text()
    expected = HELP.sub(lambda match: match[1] + help_of(verb) + match[3], text)
    if request.config.getoption("--update-docs"):
        page.write_text(expected)
    assert HELP.search(text), f"{page} has no place for the help"
    assert page.read_text() == expected, "write it with: pytest --update-docs"
    assert f"[{verb}]({verb}.md)" in (page.parent / "README.md").read_text()


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_config_that_is_shipped_is_valid_with_every_key_of_it() -> None:
    """All commented keys too: each is uncommented where that is a whole line of YAML."""
    from hpctrain import yaml12
    from hpctrain.config import layers
    from hpctrain.config.fields import FIELDS

    text = (ROOT / "config.yaml").read_text()
    layers.resolve([layers.from_document(yaml12.load(text, "config.yaml"), "config.yaml")])
    for field in FIELDS:
        assert re.search(rf"^\s*(# )?{field.name}:", text, re.MULTILINE), f"config.yaml does not mention {field.name}"


def test_the_table_of_keys_and_the_schema_agree() -> None:
    from hpctrain.config import schema
    from hpctrain.config.fields import FIELDS

    models = {(): schema.Config, ("resources",): schema.Resources, ("environment",): schema.Environment}
    for field in FIELDS:
        assert field.name in models[field.path[:-1]].model_fields
    listed = {field.path for field in FIELDS}
    free = {("resources",), ("environment",), ("sbatch",), ("training",), ("environment", "modules")}
    assert {(*section, name) for section, model in models.items() for name in model.model_fields} == listed | free
