"""The examples of the pages that are not typed at a shell: YAML and Python. What is typed runs in
test_docs.py.
"""

import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import make

ROOT = Path(__file__).parents[2]
HPCTRAIN = Path(sys.executable).with_name("hpctrain")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in FENCED.findall(page.read_text()) if found == language]


def run(directory: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HPCTRAIN, *words],
        cwd=directory,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=600,
    )


CONFIGS = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in PAGES
    if page.stem != "clusters"
    for number, text in enumerate(blocks(page, "yaml"))
]


@pytest.mark.slow
@pytest.mark.parametrize("text", CONFIGS)
@pytest.mark.usefixtures("no_slurm")
def test_a_config_renders(text: str, tmp_path: Path) -> None:
    named = "training: {model_name_or_path: model, dataset_name: dataset}\n"
    (tmp_path / "config.yaml").write_text(text if "training:" in text else text + named)
    (tmp_path / "evaluate.py").touch()
    done = run(tmp_path, "render", "--nodes", "1", "--gpus", "4")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.sbatch"))


@pytest.mark.parametrize("text", blocks(ROOT / "docs" / "clusters.md", "yaml"))
@pytest.mark.usefixtures("no_slurm")
def test_a_cluster_profile_is_valid(text: str, tmp_path: Path) -> None:
    named = re.match(r"# ~/\.config/hpctrain/clusters/(\w+)\.yaml", text)
    name = named[1] if named else "tiger"
    profiles = tmp_path / "hpctrain" / "clusters"
    profiles.mkdir(parents=True)
    (profiles / f"{name}.yaml").write_text(text)
    done = run(tmp_path, "clusters", "show", name, XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("no_slurm")
def test_the_check_of_the_readme(tmp_path: Path) -> None:
    """The README shows the finding that it is about; the others are those of an empty project."""
    (shown,) = [
        block for block in blocks(ROOT / "README.md", "") if block.startswith("$ hpctrain check\n")
    ]
    (tmp_path / "config.yaml").write_text(
        "cluster: jean_zay\nresources: {nodes: 1, gpus: 4, account: abc@h100, constraint: a100}\n"
    )
    done = run(tmp_path, "check", COLUMNS="80")
    assert done.returncode == 1
    assert shown.removeprefix("$ hpctrain check\n") in done.stdout


def test_the_diagnosis_of_the_readme_is_that_of_its_page() -> None:
    """tests/explain has the job."""
    (shown,) = [
        block
        for block in blocks(ROOT / "README.md", "")
        if block.startswith("$ hpctrain explain\n")
    ]
    assert shown.removeprefix("$ hpctrain explain\n") in (ROOT / "docs" / "explain.md").read_text()


def test_the_programs_of_the_memory_page_read_a_log_and_a_run(tmp_path: Path) -> None:
    page = ROOT / "docs" / "memory.md"
    (memory,) = [text for text in blocks(ROOT / "README.md", "") if text.startswith("[memory] ")]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "output_sft.log").write_text(memory)
    row = {"event": "speed", "step": 10, "max_steps": 20, "useful_tokens_per_s": 1029.0}
    make.metrics(make.attempt(make.run(tmp_path / "runs", "sft-1")), row)
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for program in blocks(page, "python")
        if "print(" in program
    ]
    assert printed == ["15380", "1029.0"]


def test_the_script_that_saves_and_resumes(tmp_path: Path) -> None:
    (program,) = blocks(ROOT / "docs" / "survive.md", "python")

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "HPCTRAIN_RUN_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )

    first = begin()
    assert first.stdout.readline() == "begins at step 0\n"
    first.send_signal(signal.SIGTERM)
    saved = first.communicate(timeout=600)[0].split()
    assert (saved[:2], first.returncode) == (["saved", "step"], 85)
    second = begin()
    assert second.stdout.readline() == f"begins at step {saved[2]}\n"
    (tmp_path / "stop").touch()
    second.communicate(timeout=600)
    assert second.returncode == 86


@pytest.mark.torch
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_python_examples_import_exists(page: Path) -> None:
    """Those with a Trainer or a trial of somebody else run in tests/training."""
    for program in blocks(page, "python"):
        compile(program, str(page), "exec")
        for name, wanted in re.findall(r"^from (hpctrain[\w.]*) import (\w+)$", program, re.M):
            assert hasattr(importlib.import_module(name), wanted)
