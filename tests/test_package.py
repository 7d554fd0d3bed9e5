"""The wheel and the sdist, installed elsewhere, render the same bytes as the checkout."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a wheel that was built from the sdist, and the sdist."""
    source = tmp_path_factory.mktemp("source") / "hpctrain"
    never = shutil.ignore_patterns(".git", ".venv*", ".*cache", "__pycache__")
    made_here = {"demo", "runs"}  # at the top; hpctrain/runs is a room of the package
    shutil.copytree(
        ROOT,
        source,
        ignore=lambda at, names: {*never(at, names), *(made_here if Path(at) == ROOT else ())},
    )
    out = tmp_path_factory.mktemp("dist")
    # Without isolation: hatchling is among the test tools, and nothing is fetched.
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="session")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the hpctrain of a fresh virtual environment: the wheel, and this environment's
    libraries behind it.
    """
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    site = next(home.glob("lib/python*/site-packages"))
    (wheel,) = built.glob("*.whl")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(site),
            str(wheel),
        ],
        check=True,
    )
    ours = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    for library in ours.iterdir():
        # Links to the libraries, and not to the .pth and .dist-info that would lead back to the
        # checkout.
        if (
            "hpctrain" not in library.name
            and library.suffix != ".pth"
            and not (site / library.name).exists()
        ):
            (site / library.name).symlink_to(library)
    command = home / "bin" / "hpctrain"
    command.write_text(f"#!{home}/bin/python\nfrom hpctrain.cli import main\nmain()\n")
    command.chmod(0o755)
    return command


def test_the_wheel_holds_the_data_once(built: Path) -> None:
    import zipfile

    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "templates/multi_node.sbatch.j2",
        "templates/_macros.j2",
        "templates/job.sh",
        "config.yaml",
        "multi_gpu.yaml",
        "examples/sft_train.py",
    ):
        assert f"hpctrain/_data/{name}" in names
    for name in (
        "page.html.j2",
        "page.css",
    ):
        assert f"hpctrain/report/{name}" in names
    assert "hpctrain/py.typed" in names
    assert len(names) == len(set(names))
    assert not [name for name in names if name.startswith(("tests", "docs"))]


def test_the_installed_wheel_renders_the_same_bytes(
    installed: Path, hpctrain: str, tmp_path: Path
) -> None:
    words = ["render", "--nodes", "2", "--gpus", "4", "--to", "-", "--", "--max_steps", "5"]
    where = subprocess.run(
        [
            str(installed.with_name("python")),
            "-P",
            "-c",
            "import hpctrain; print(hpctrain.__file__)",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert str(installed.parents[1]) in where.stdout, "the wheel is what runs, not the checkout"
    outputs = {
        subprocess.run(
            [program, *words],
            capture_output=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        ).stdout
        for program in (str(installed), hpctrain)
    }
    assert len(outputs) == 1
    assert b"--num_processes 8" in outputs.pop()
