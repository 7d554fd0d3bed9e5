"""The login node: what is imported, and what is not."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import hpctrain

HEAVY = {"torch", "transformers", "trl", "accelerate", "datasets", "numpy", "pandas"}


SCRIPT = Path(__file__).parent / "golden" / "2x4" / "script.sbatch"


def command(*words: str) -> str:
    """Return the program that runs a command."""
    return f"from hpctrain.cli import main; main({list(words)!r})"


def imported_by(code: str, cwd: Path) -> set[str]:
    """Return the top-level modules in sys.modules after `code` ran in a fresh interpreter."""
    program = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit:\n   "
        " pass\nsys.stdout.flush()\nprint('\\nMODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.rsplit("MODULES", 1)[1].split()}


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import hpctrain", HEAVY | {"click", "jinja2", "yaml", "rich", "psutil"}),
        (command("--help"), HEAVY | {"jinja2", "yaml", "rich", "psutil"}),
        (command("render"), HEAVY | {"rich", "psutil"}),
        (command("submit", "--dry-run", "--local"), HEAVY | {"rich"}),
        (command("ps", "--json"), HEAVY | {"rich", "jinja2"}),
        (command("check", "--no-slurm", "--cluster", "leonardo"), HEAVY | {"rich"}),
        (command("lint", str(SCRIPT)), HEAVY | {"jinja2", "yaml", "rich", "psutil"}),
        (command("fit"), HEAVY),
        (command("doctor", "--quick", "--script", "train.py"), {"torch", "transformers"}),
        ("import hpctrain.memory", {"torch", "transformers", "pynvml"}),
        (
            "from hpctrain.memory.reader import MemoryReader as M;"
            " M(rank=0, world_size=1, local_rank=0, note=print).read(0, 'step')",
            {"torch", "transformers", "datasets"},
        ),
        ("import hpctrain.data.timelines", {"torch", "datasets", "pyarrow"}),
    ],
)
def test_modules_that_are_not_imported(code: str, absent: set[str], tmp_path: Path) -> None:
    assert imported_by(code, tmp_path) & absent == set()


def test_the_help_lines_of_the_group_are_those_of_the_verbs() -> None:
    import click

    from hpctrain.cli import VERBS, cli

    for verb, line in VERBS.items():
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        assert (command.help or "").partition("\n")[0] == line


def test_the_version_is_that_of_the_installation() -> None:
    assert hpctrain.__version__ == metadata.version("hpctrain")


@pytest.mark.torch
@pytest.mark.extended
def test_full_fine_tuning_needs_no_peft(tmp_path: Path) -> None:
    code = "sys.modules['peft'] = None; import hpctrain.training.loop"
    assert "transformers" in imported_by(code, tmp_path)
