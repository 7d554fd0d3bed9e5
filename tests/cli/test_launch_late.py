"""Launches whose sbatch is refused, or answers late or never, in the middle: what was sent is said and recorded, and is sent once.

A program stands in for sbatch; it keeps a queue, and another one shows it. The real Slurm: tests/lab/test_late_sbatch.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpctrain.runs import launch
from hpctrain.scheduler import slurm

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from conftest import Desk

#: Each call is a line of `asked`; the line of the same number in `modes` says what becomes of it.
SBATCH = r"""
cd HERE
echo "$*" >> asked
number=$(wc -l < asked)
mode=$(sed -n "${number}p" modes 2>/dev/null)
script=$(sed -n 's/.* \([^ ]*sbatch\) .*/\1/p' <<< "$*")
array=$(cd PROJECT && sed -n 's/^#SBATCH --array=//p' "$script")
[[ $* =~ --array=([^ ]*) ]] && array=${BASH_REMATCH[1]}
row=$(printf '%s\x1f' "$((100 + number))${array:+_[$array]}" sft PENDING None 0:00 5:00 1 gpu N/A)${2#--comment=}
case $mode in
    refuse) echo "sbatch: error: Batch job submission failed: Invalid qos specification" >&2; exit 1 ;;
    late) echo "$row" >> late; echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1 ;;
    *) echo "$row" >> queue; echo $((100 + number)) ;;
esac
"""


class Cluster:
    """A Slurm of programs, and the project that submits to it."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        self.desk, self.folder = desk, folder
        folder.mkdir()
        desk.write("train.py", "print(1)\n")
        desk.program("sbatch", SBATCH.replace("HERE", str(folder)).replace("PROJECT", str(desk.directory)))
        desk.program("squeue", f"cat {folder}/queue 2>/dev/null; true")
        for name in ("sacct", "scancel"):
            desk.program(name, "true")
        desk.program("scontrol", "exit 1")
        desk.patch.setattr(slurm, "_PAUSES_S", (0.0,))

    def config(self, text: str) -> None:
        self.desk.write("config.yaml", "script: train.py\nlauncher: srun\n" + text)

    def modes(self, *modes: str) -> None:
        """Say what becomes of the calls of sbatch from now on."""
        (self.folder / "modes").write_text("ok\n" * len(self.asked) + "".join(f"{mode}\n" for mode in modes))

    def arrive(self) -> None:
        late = self.folder / "late"
        with (self.folder / "queue").open("a") as queue:
            queue.write(late.read_text())
        late.unlink()

    def end_all(self) -> None:
        (self.folder / "queue").write_text("")

    @property
    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def whole(self) -> launch.Launch:
        [tag] = launch.tags(self.desk.directory / "runs")
        found = launch.load(self.desk.directory / "runs", tag)
        assert found is not None
        return found


@pytest.fixture
def cluster(desk: Desk, tmp_path: Path) -> Cluster:
    return Cluster(desk, tmp_path / "slurm")


CHAIN = "restart: {mode: chain, max: 2}\n"
STAGES = "stages:\n  - name: train\n  - {name: tune, from: train}\n  - {name: evaluate, from: tune}\n"


def test_everything_is_recorded_before_the_first_sbatch(cluster: Cluster) -> None:
    cluster.config(STAGES)
    cluster.modes("ok", "refuse")
    said = cluster.desk.run("submit", "--no-check")
    assert said.code == 1
    whole = cluster.whole
    assert [(part.stage, part.dependencies) for part in whole.parts] == [
        ("train", ()), ("tune", (("train", "afterok"),)), ("evaluate", (("tune", "afterok"),))
    ]  # fmt: skip
    assert all((whole.path / "scripts" / part.script).is_file() and (whole.path / str(part.config)).is_file() for part in whole.parts)
    assert [each.job_id for each in whole.submissions] == ["101"]
    assert f"submitted before that for {whole.tag}, and still there: 101; the rest is not" in said.err
    assert said.lines[-1].endswith(f"; then: hpctrain resubmit {whole.tag}")


def test_a_refused_link_of_a_chain_is_confessed(cluster: Cluster) -> None:
    cluster.config(CHAIN)
    cluster.modes("ok", "ok", "refuse")
    said = cluster.desk.run("submit", "--no-check")
    assert said.code == 1
    assert f"submitted before that for {cluster.whole.tag}, and still there: 101, 102; the rest is not" in said.err
    assert said.lines[-1].endswith(f"hpctrain resubmit {cluster.whole.tag}")
    assert [(part.links, part.array) for part in cluster.whole.parts] == [(2, None)]


def test_a_refused_first_script_leaves_nothing(cluster: Cluster) -> None:
    cluster.config(STAGES)
    assert cluster.desk.run("render").code == 0
    cluster.modes("refuse")
    cluster.desk.refused("submit", "--no-check", code=1)


@pytest.mark.parametrize("seen", [False, True], ids=["", "after ps"])
def test_a_chain_goes_on_at_the_link_that_was_not_answered(cluster: Cluster, seen: bool) -> None:
    cluster.config(CHAIN)
    cluster.modes("ok", "late")
    assert cluster.desk.run("submit", "--no-check").code == 3
    tag = cluster.whole.tag
    before = cluster.desk.snapshot()
    said = cluster.desk.run("submit", "--no-check")
    assert (said.code, "may still arrive" in said.err, len(cluster.asked)) == (3, True, 2), said.err
    assert cluster.desk.snapshot() == before, "no second snapshot of the code either"
    cluster.arrive()
    if seen:
        assert "102" in cluster.desk.run("ps").out
    said = cluster.desk.run("submit", "--no-check", "--parsable")
    assert (said.code, said.out) == (0, "101\n102\n103\n"), said.err
    assert "job 101 was submitted by the earlier call, and is not sent again" in said.err
    assert "job 102 is that of the earlier call that sbatch did not answer" in said.err
    assert len(cluster.asked) == 3
    assert "--dependency=afterany:102" in cluster.asked[2]
    assert [(each.job_id, each.dependency) for each in cluster.whole.submissions] == [
        ("101", None), ("102", "afterany:101"), ("103", "afterany:102"),
    ]  # fmt: skip
    assert cluster.whole.tag == tag


def test_a_link_that_was_given_up_is_sent_in_its_place(cluster: Cluster) -> None:
    cluster.config(CHAIN)
    cluster.modes("ok", "late")
    assert cluster.desk.run("submit", "--no-check").code == 3
    said = cluster.desk.run("submit", "--no-check", "--parsable", "--resend")
    assert (said.code, said.out) == (0, "101\n103\n104\n"), said.err
    assert "--dependency=afterany:101" in cluster.asked[2]
    assert [each.job_id for each in cluster.whole.submissions] == ["101", "103", "104"]


def test_stages_go_on_at_the_one_that_was_not_answered(cluster: Cluster) -> None:
    cluster.config(STAGES)
    cluster.modes("ok", "late")
    assert cluster.desk.run("submit", "--no-check").code == 3
    said = cluster.desk.run("submit", "--no-check")
    assert (said.code, len(cluster.asked)) == (3, 2), said.err
    cluster.arrive()
    said = cluster.desk.run("submit", "--no-check", "--parsable")
    assert (said.code, said.out) == (0, "101\n102\n103\n"), said.err
    assert "--dependency=afterok:102" in cluster.asked[2]
    assert len(cluster.asked) == 3
    again = cluster.desk.run("submit", "--no-check", "--parsable")
    assert (again.code, again.out) == (0, "104\n105\n106\n"), "a new launch, once all is told"


SWEEPS = {"sweep": "sweep: {grid: {seed: [1, 2, 3]}}\n", "array": "array: 0-2\n", "stages": STAGES, "run": "", "chain": CHAIN}


@pytest.mark.parametrize("kind", SWEEPS)
def test_what_waits_is_not_submitted_a_second_time(cluster: Cluster, kind: str) -> None:
    cluster.config(SWEEPS[kind])
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r").code == 0
    asked = len(cluster.asked)
    said = cluster.desk.run("submit", "--no-check", "--run-id", "r")
    assert (said.code, len(cluster.asked)) == (2, asked), said.err
    assert " is pending: job 10" in said.err
    cluster.end_all()
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r").code == 0
    assert len(cluster.asked) == 2 * asked


def test_other_points_of_a_sweep_that_waits_may_be_submitted(cluster: Cluster) -> None:
    cluster.config(SWEEPS["sweep"])
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r", "--array", "0").code == 0
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r", "--array", "1-2").code == 0
    said = cluster.desk.run("submit", "--no-check", "--run-id", "r", "--array", "2")
    assert (said.code, "the run r_2 is pending" in said.err, len(cluster.asked)) == (2, True, 2), said.err


def test_another_script_of_a_run_with_an_open_answer_waits_for_it(cluster: Cluster) -> None:
    cluster.config("")
    cluster.modes("late")
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r").code == 3
    cluster.config("resources: {time: 10}\n")
    assert cluster.desk.run("render").code == 0
    said = cluster.desk.run("submit", "--no-check", "--run-id", "r")
    assert (said.code, "may still arrive" in said.err, len(cluster.asked)) == (3, True, 1), said.err
    assert cluster.desk.run("submit", "--no-check", "--run-id", "r", "--resend").code == 0
    assert [each.job_id for each in cluster.whole.submissions] == ["102"]
