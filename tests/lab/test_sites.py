"""Sixteen sites, played by real slurmctlds: what hpctrain renders is accepted, what is known to be
wrong is refused, and check knew.
"""

import contextlib
import functools
import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli import main
from hpctrain.clusters import load
from hpctrain.slurm.notations import units

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.extended]

LAB = Path(__file__).with_name("lab")
SITES = Path(__file__).with_name("sites")


@dataclass(frozen=True, slots=True)
class Case:
    """One script for one site.

    Attributes:
        words: behind `hpctrain render --cluster SITE`.
        remove, directives: what a script has instead that hpctrain would not write: names of
            #SBATCH options that are missing from it, and options that are added.
        says: words of the refusal; None for a script that is accepted.
        shows: texts that `scontrol show job` has of the accepted job.
        level: of the finding that `hpctrain check` has where it can ask the site.
        alone: of the finding that it has without Slurm, from the profile alone: `silent` where only
            the site knows.
    """

    site: str
    name: str
    words: tuple[str, ...]
    remove: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()
    says: str | None = None
    shows: tuple[str, ...] = ()
    level: str = "none"
    alone: str = ""

    @property
    def can_be_rendered(self) -> bool:
        """Whether hpctrain's own words say what is wrong; a script that it would never write is
        read by `lint --cluster`.
        """
        return not self.remove

    def __str__(self) -> str:
        return f"{self.site}-{self.name}"


def without(words: list[str], options: list[str]) -> list[str]:
    """Return the words without these options and their values."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in options for word in pair]


def read_cases(kind: str) -> Iterator[Case]:
    """Yield the cases of one kind (`right`, `wrong`, `trap`) of all sites; changes are made to the
    site's first right one.
    """
    for file in sorted(SITES.glob("*/site.toml")):
        said = tomllib.loads(file.read_text())
        for entry in said.get(kind, []):
            words = entry.pop("words", None) or without(
                said["right"][0]["words"], [*entry.get("drop", []), *entry.get("change", [])[::2]]
            )
            words += entry.pop("change", [])
            entry.pop("drop", None)
            level = entry.setdefault(
                "level", {"right": "none", "wrong": "error", "trap": "warning"}[kind]
            )
            entry.setdefault("alone", level)
            keys: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in entry.items()
            }
            yield Case(site=file.parent.name, words=tuple(words), **keys)


RIGHT, WRONG, TRAP = (list(read_cases(kind)) for kind in ("right", "wrong", "trap"))


@pytest.fixture(scope="module")
def played(lab_env: dict[str, str]) -> Iterator[dict[str, dict[str, str]]]:
    """Play all sites that have jobs, and return site → environment for subprocess.

    Those that somebody else plays are left as they are.
    """
    where = ["--dir", str(Path(lab_env["SLURM_CONF"]).parent.parent)]
    before = {
        line.split()[0] for line in run_lab("sites", *where).splitlines() if line.endswith("played")
    }
    lines = run_lab("play", *sorted({case.site for case in RIGHT}), *where).splitlines()
    confs = dict(line.split(" ", 1) for line in lines)
    yield {site: {**lab_env, "SLURM_CONF": conf} for site, conf in confs.items()}
    if started := sorted(set(confs) - before):
        run_lab("unplay", *where, *started)


def run_lab(*words: str) -> str:
    """Run a verb of the lab and return what it printed."""
    done = subprocess.run([sys.executable, str(LAB), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a training script, from which jobs are rendered and submitted."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text("print('trained')\n")
    return folder


def typed(words: list[str], folder: Path) -> tuple[int, str, str]:
    """Type `hpctrain WORDS` in a folder, in this process; return exit status, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main(words)
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


@functools.cache
def rendered(case: Case, project: Path) -> str:
    """Return the script of a case: rendered for the site, and edited as the case wants."""
    words = ["render", "--cluster", case.site, "--script", "train.py", "--to", "-", *case.words]
    code, text, errors = typed(words, project)
    assert code == 0, f"hpctrain {' '.join(words)}\n{errors}"
    kept = [
        line
        for line in text.splitlines()
        if not re.match(rf"#SBATCH --({'|'.join(case.remove) or '-'})(=|$)", line)
    ]
    missing = len(text.splitlines()) - len(kept)
    assert missing == len(case.remove), f"{case}: the script has not each of {case.remove}"
    last = max(number for number, line in enumerate(kept) if line.startswith("#SBATCH"))
    return "\n".join(
        (
            *kept[: last + 1],
            *(f"#SBATCH --{directive}" for directive in case.directives),
            *kept[last + 1 :],
            "",
        )
    )


def sbatch(
    case: Case, env: dict[str, str], project: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    """Hand the script of a case to the site's sbatch."""
    return subprocess.run(
        ["sbatch", "--parsable", *options],
        input=rendered(case, project),
        env=env,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("case", [*RIGHT, *TRAP], ids=str)
def test_the_site_takes_it(case: Case, played: dict[str, dict[str, str]], project: Path) -> None:
    env = played[case.site]
    done = sbatch(case, env, project)
    assert done.returncode == 0, done.stdout + done.stderr
    # TACC greets on stdout, so the id is what stands in the last line.
    job = done.stdout.split()[-1]
    try:
        shown = subprocess.run(
            ["scontrol", "show", "job", job], env=env, capture_output=True, text=True
        ).stdout
        assert re.search("JobState=(PENDING|CONFIGURING)", shown)
        assert [
            text
            for text in case.shows
            if not re.search(rf"(^|[\s=,]){re.escape(text)}($|[\s,])", shown)
        ] == [], shown
    finally:
        subprocess.run(["scancel", job], env=env, check=True)


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_the_site_refuses_it(case: Case, played: dict[str, dict[str, str]], project: Path) -> None:
    done = sbatch(case, played[case.site], project)
    assert done.returncode != 0, f"accepted: {done.stdout}"
    # TACC's words come on stdout.
    assert case.says is not None
    assert case.says in done.stdout + done.stderr


def asked(env: dict[str, str], *argv: str) -> str:
    """Return what one of Slurm's commands prints."""
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("site", sorted({case.site for case in RIGHT}))
def test_the_site_is_that_of_the_profile(site: str, played: dict[str, dict[str, str]]) -> None:
    profile = load.load(site, {}).profile
    shown = [
        dict(re.findall(r"(\w+)=(\S+)", line))
        for line in asked(played[site], "scontrol", "show", "partition", "--oneliner").splitlines()
    ]
    common = [
        (profile.partitions[row["PartitionName"]], row)
        for row in shown
        if row["PartitionName"] in profile.partitions
    ]
    # Perlmutter's users name no partition, and its profile has none.
    assert common or not profile.partitions
    for partition, row in common:
        assert partition.time_max in (None, units.parse_reported_time(row["MaxTime"])), row
        assert partition.nodes_max in (
            None,
            int(row["MaxNodes"]) if row["MaxNodes"].isdigit() else None,
        ), row
        assert partition.whole_nodes in (None, row["OverSubscribe"] == "EXCLUSIVE"), row
        assert not partition.default or row["Default"] == "YES", row
        gpus = re.search(r"gres/gpu=(\d+)", row["TRES"])
        if partition.nodes is not None and gpus is not None:
            assert int(gpus[1]) == profile.nodes[partition.nodes].gpus * int(row["TotalNodes"]), row


#: About the directory and the environment of this test, not about the site.
SURROUNDINGS = {"path-not-shared", "launcher-missing"}
LEVELS = ("silent", "note", "warning", "error")


@dataclass(frozen=True, slots=True)
class Said:
    """What `hpctrain check --json` said of a case: id → level of each finding that the site is the
    reason of.
    """

    status: int
    findings: tuple[tuple[str, str], ...]
    text: str

    def worst(self, *, without: frozenset[str] = frozenset()) -> str:
        """Return the highest level, of all findings but some."""
        return max(
            (level for name, level in self.findings if name not in without),
            key=LEVELS.index,
            default="silent",
        )


def checked(case: Case, slurm_conf: str | None, project: Path) -> Said:
    """Return what check says of a case: with Slurm, which is found by SLURM_CONF, or without."""
    words = ["check", "--json", "--cluster", case.site, "--script", "train.py", *case.words]
    words += [word for directive in case.directives for word in ("--sbatch", directive)]
    if slurm_conf is None:
        words.append("--no-slurm")
    else:
        os.environ["SLURM_CONF"] = slurm_conf
    status, text, errors = typed(words, project)
    if status == 2:  # hpctrain takes no such job at all
        return Said(status, (("usage", "error"),), errors)
    assert status in (0, 1), f"hpctrain {' '.join(words)}\n{text}{errors}"
    assert text, errors
    found = json.loads(text)["findings"]
    return Said(
        status,
        tuple((entry["id"], entry["level"]) for entry in found if entry["id"] not in SURROUNDINGS),
        text,
    )


@pytest.fixture(scope="module")
def said(
    played: dict[str, dict[str, str]], project: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[Case, bool], Any]:
    """Return (case, with Slurm?) → what check says.

    Asked at the same time, in processes of their own: check mostly waits for Slurm.
    """
    cases = [case for case in (*RIGHT, *WRONG, *TRAP) if case.can_be_rendered]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCTRAIN_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        with ProcessPoolExecutor(6, mp_context=multiprocessing.get_context("fork")) as pool:
            asked = {
                (case, slurm): pool.submit(
                    checked, case, played[case.site]["SLURM_CONF"] if slurm else None, project
                )
                for case in cases
                for slurm in (True, False)
            }
    return {key: future.exception() or future.result() for key, future in asked.items()}


def cases(found: list[Case]) -> list[Any]:
    """Return the cases that hpctrain renders, as parameters."""
    return [pytest.param(case, id=str(case)) for case in found if case.can_be_rendered]


def answer(said: dict[tuple[Case, bool], Any], case: Case, *, slurm: bool) -> Said:
    """Return what check said; a check that broke off is the test's failure."""
    found = said[case, slurm]
    if isinstance(found, BaseException):
        raise found
    assert isinstance(found, Said)
    return found


@pytest.mark.parametrize("slurm", [True, False], ids=["Slurm", "no Slurm"])
@pytest.mark.parametrize("case", cases(RIGHT))
def test_check_has_nothing_against_it(
    case: Case, said: dict[tuple[Case, bool], Any], slurm: bool
) -> None:
    found = answer(said, case, slurm=slurm)
    assert (found.status, found.worst()) in ((0, "silent"), (0, "note")), found.text


@pytest.mark.parametrize("slurm", [True, False], ids=["Slurm", "no Slurm"])
@pytest.mark.parametrize("case", cases([*WRONG, *TRAP]))
def test_check_says_so_beforehand(
    case: Case, said: dict[tuple[Case, bool], Any], slurm: bool
) -> None:
    found = answer(said, case, slurm=slurm)
    of_slurm = "error" if case.says else case.level
    wanted = of_slurm if slurm else case.alone
    assert LEVELS.index(found.worst()) >= LEVELS.index(wanted), found.text


@pytest.mark.parametrize(
    "case", [case for case in (*WRONG, *TRAP) if not case.can_be_rendered], ids=str
)
def test_lint_says_so_of_a_script_that_hpctrain_would_not_write(case: Case, project: Path) -> None:
    script = project / f"{case}.sbatch"
    script.write_text(rendered(case, project).replace("# made by hpctrain", "# copied from"))
    code, text, errors = typed(["lint", "--cluster", case.site, "--json", script.name], project)
    found = [entry for entry in json.loads(text)["findings"] if entry["level"] != "note"]
    assert found, f"{case}: {text}{errors}"
    assert all(entry["file"] == script.name and entry["line"] for entry in found)
    right = rendered(next(each for each in RIGHT if each.site == case.site), project).replace(
        "# made by hpctrain", "# copied from"
    )
    script.write_text(right)
    code, text, _ = typed(["lint", "--cluster", case.site, "--json", script.name], project)
    assert (
        code,
        [entry["id"] for entry in json.loads(text)["findings"] if entry["level"] == "error"],
    ) == (0, [])
