"""docs/tutorial.md and the README's quick start, typed as they are written, on a real Slurm."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.typist import HPCTRAIN, Typist
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.extended, pytest.mark.torch]

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## ", re.MULTILINE)
BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Needs a job that failed (tests/lab/test_explain.py types it).
AFTER_A_FAILURE = "hpctrain resubmit RUN --apply-fix"
FEW_STEPS = (
    "training: {model_name_or_path: demo/model, dataset_name: demo/dataset,"
    " max_steps: 2, eval_strategy: 'no'}\n"
)


def sections(page: Path) -> dict[str, list[str]]:
    """Return the title of each section, and what it tells to type."""
    found = {}
    for section in SECTION.split(page.read_text())[1:]:
        lines = [line for block in BLOCK.findall(section) for line in block.splitlines()]
        typed = [re.sub(r"\s+# .*", "", line) for line in lines]
        title = section.partition("\n")[0]
        found[title] = [line for line in typed if line.startswith("hpctrain ")]
    return found


class Newcomer(Typist):
    """Somebody who follows a page in an empty directory."""

    def line(self, line: str) -> str:
        venv = str(Path(sys.executable).parents[1])
        return self.type("bash", "-c", line, code=0, VIRTUAL_ENV=venv).stdout

    def follow(self, line: str) -> None:
        """Type a line of the page: its placeholders are the newest run, one GPU is enough, and what
        is submitted is watched to its end.
        """
        line = line.replace("--gpus 4", "--gpus 1")
        if line.startswith("hpctrain fit"):
            line += " --gpu h100"  # as the tutorial says for a cluster without a profile
        if re.search(r"\b(RUN|TAG)\b", line):
            newest = self.runs()[0]
            line = line.replace("RUN", newest["id"]).replace("TAG", newest["tag"])
        self.line(line)
        if line.startswith("hpctrain submit") and "--dry-run" not in line:
            # By its name: without one, watch takes the newest running job, and others run jobs here.
            self.line(f"hpctrain watch {self.runs()[0]['id']}")
            assert self.runs()[0]["state"] == "completed"

    def runs(self) -> list[dict[str, str]]:
        """Return the runs, the newest first."""
        found: list[dict[str, str]] = json.loads(self.line("hpctrain runs list --json"))["runs"]
        return sorted(found, key=lambda run: run["created"], reverse=True)

    def configure(self, training: str) -> None:
        """Replace `training:` in config.yaml."""
        path = self.directory / "config.yaml"
        kept = re.split(r"^(?:# script|training):", path.read_text(), flags=re.MULTILINE)[0]
        path.write_text(f"{kept}{training}")

    def stop(self) -> None:
        """Cancel the newest run once it has a step, and wait for its end."""
        run = self.runs()[0]["id"]
        wait_until(lambda: (self.runs()[0]["last_step"] or 0) >= 1, "a step is logged")
        self.line(f"hpctrain cancel {run}")
        wait_until(lambda: self.runs()[0]["state"] not in ("running", "pending"), "it has ended")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tutorial") / "demo"
    subprocess.run([HPCTRAIN, "prepare", "--demo", str(directory)], check=True, capture_output=True)
    return directory


@pytest.fixture
def newcomer(demo: Path, tmp_path: Path, lab_env: dict[str, str]) -> Iterator[Newcomer]:
    made = Newcomer(tmp_path, lab_env)
    shutil.copytree(demo, tmp_path / "demo")
    made.line("hpctrain init --yes --account proj_b --partition boost_usr_prod")
    made.configure(FEW_STEPS)
    yield made
    for run in made.runs():  # not all jobs: others test in this lab too
        if run["state"] in ("pending", "running"):
            made.line(f"hpctrain cancel {run['id']}")


TUTORIAL = sections(ROOT / "docs" / "tutorial.md")


# Not 7: the README has two nodes too; 9 is a sweep.
@pytest.mark.parametrize("number", [4, 6, 10, 11])
def test_a_section_of_the_tutorial(newcomer: Newcomer, number: int) -> None:
    (title,) = [title for title in TUTORIAL if title.startswith(f"{number}. ")]
    (newcomer.directory / "train.py").write_text("print('trained')\n")
    (newcomer.directory / "models").mkdir()
    (newcomer.directory / "models" / "qwen3").symlink_to("../demo/model")
    rows = [{"prompt": f"What is {n}?", "completion": f"It is {n}."} for n in range(100)]
    (newcomer.directory / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    followed = TUTORIAL[title] + (TUTORIAL["5. Watch it"] if number == 4 else [])
    assert followed
    for line in followed:
        newcomer.follow(line)


def test_stopping_and_resuming_of_the_tutorial(newcomer: Newcomer) -> None:
    newcomer.configure(FEW_STEPS.replace("max_steps: 2", "max_steps: 2000"))
    (title,) = [title for title in TUTORIAL if title.startswith("8. ")]
    newcomer.line("hpctrain submit")
    for line in TUTORIAL[title]:
        if line == AFTER_A_FAILURE:
            continue
        run = newcomer.runs()[0]["id"]
        newcomer.stop()
        newcomer.line(line.replace("RUN", run).replace("--gpus 4", "--gpus 1"))
        if "runs show" in line:
            newcomer.line(f"hpctrain resubmit {run}")
    newcomer.stop()


def test_the_quick_start_of_the_readme(newcomer: Newcomer) -> None:
    lines = sections(ROOT / "README.md")["Quick start"]
    assert [line.split()[1] for line in lines] == ["init", "check", "submit", "watch", "explain"]
    for line in lines[1:]:
        newcomer.follow(line)
