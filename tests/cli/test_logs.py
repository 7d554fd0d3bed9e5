"""`hpctrain logs`: the logs of a job as one, of any size, whole and as they grow."""

import os
import re
import subprocess

import pytest

from tests.cli.conftest import Desk

pytestmark = pytest.mark.usefixtures("no_slurm")

#: Two ranks of two nodes that write at once: the same, their own, and an error of one of them.
TWO_RANKS = """
import os, sys, time
rank, barrier = int(os.environ["RANK"]), os.environ["HPCTRAIN_RUN_DIR"]
open(f"{barrier}/here-{rank}", "w").close()
while not all(os.path.exists(f"{barrier}/here-{each}") for each in (0, 1)):
    time.sleep(0.01)
for number in range(50):
    print(f"both say {number}")
    print(f"rank {rank} pid={os.getpid()} warns", file=sys.stderr) if number == 7 else None
print(f"only {'first' if rank == 0 else 'second'}")
sys.stderr.write("\\r 10%|#         | 1/10 [00:01<00:09,  1.00it/s]\\r100%|##########| 10/10 [00:10<00:00,  1.00it/s]\\n")
"""


def logs(desk: Desk, *words: str) -> list[str]:
    said = desk.run("logs", *words)
    assert said.code == 0, said.err
    return said.out.splitlines()


def background(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_ranks_on_two_nodes_that_write_at_once(desk: Desk) -> None:
    desk.write("train.py", TWO_RANKS.replace('print(f"', 'print(f"[rank{rank}]: '))
    rendered = desk.run(
        "render", "--script", "train.py", "--launcher", "srun", "--nodes", "2", "--gpus", "1"
    )
    assert rendered.code == 0, rendered.err
    done = desk.run("submit", "--local", "--wait", "--run-id", "two")
    assert done.code == 0, done.err
    shown = logs(desk)
    assert shown[0].startswith("hpctrain: attempt ")
    assert " of the run two begins on " in shown[0]
    assert [line for line in shown if "both say" in line] == [
        f"[ranks 0-1] both say {number}  x2" for number in range(50)
    ]
    assert {line for line in shown if "only" in line} == {
        "[rank 0] only first",
        "[rank 1] only second",
    }
    assert len([line for line in shown if "warns" in line]) == 1
    assert [line for line in shown if "%|" in line] == [
        "100%|##########| 10/10 [00:10<00:00,  1.00it/s]  x2"
    ]
    own = logs(desk, "--rank", "1")
    assert [line for line in own if "say" in line] == [f"both say {number}" for number in range(50)]
    assert "only second" in own
    assert not [line for line in own if "first" in line or "hpctrain:" in line]
    assert len(logs(desk, "two", "--err")) == 2
    nothing = desk.run("logs", "--rank", "7")
    assert nothing.out == ""
    assert "no line is from rank 7" in nothing.err


@pytest.mark.slow
def test_following_goes_on_through_a_requeue_to_the_end(desk: Desk) -> None:
    body = (
        'import os, time\nfirst = not os.path.exists("went")\nprint("start", "one" if first else'
        ' "two")\ntime.sleep(1.5)\n'
    )
    body += (
        'if first:\n    open("went", "w").close()\n    open(os.environ["HPCTRAIN_RUN_DIR"] +'
        ' "/attempts/" + os.environ["HPCTRAIN_ATTEMPT"]'
    )
    body += ' + "/exit", "w").write("85 deadline\\n")\n'
    desk.write("train.py", body)
    assert (
        desk.run(
            "render",
            "--script",
            "train.py",
            "--launcher",
            "srun",
            "--gpus",
            "1",
            "--restart",
            "requeue",
        ).code
        == 0
    )
    assert desk.run("submit", "--local", "--run-id", "again").code == 0
    done = desk.run("logs", "-f", "again")
    assert done.code == 0, done.err
    lines = [
        line for line in done.out.splitlines() if not line.startswith(("rendezvous", "slurmstepd"))
    ]
    assert [re.sub(r"attempt \S+\.|job \S+| on .*", "", line) for line in lines] == [
        "hpctrain: 0 of the run again begins",
        "start one",
        "hpctrain:  is requeued, and resumes from its newest checkpoint",
        "hpctrain: 1 of the run again begins",
        "start two",
        "hpctrain:  ended with exit code 0",
    ]
    assert "\n".join(lines[-2:]) in desk.run("logs", "again").out
    assert ": completed" in done.err


@pytest.mark.slow
def test_files_of_a_job_that_hpctrain_never_saw(desk: Desk) -> None:
    for rank in range(3):
        desk.write(
            f"old/rank-{rank}.log",
            f"[rank{rank}]: \x1b[31mUserWarning: the same\x1b[0m\n2026-11-22 04:10:0{rank} own"
            f" {'abc'[rank]}\n",
        )
    desk.write("old/slurm-9.out", b"Gr\xf6\xdfe\0\n")
    assert logs(desk, "old") == [
        "==> job 9 <==",
        "Gr\ufffd\ufffde",
        "[ranks 0-2] UserWarning: the same  x3",
        "[rank 0] 2026-11-22 04:10:00 own a",
        "[rank 1] 2026-11-22 04:10:01 own b",
        "[rank 2] 2026-11-22 04:10:02 own c",
    ]
    assert logs(desk, "old", "--rank", "1") == [
        "UserWarning: the same",
        "2026-11-22 04:10:01 own b",
    ]
    assert "known ranks: 0-2" in desk.run("logs", "old", "--rank", "7").err
    assert logs(desk, "old", "--since", "2026-11-22T04:10:01") == [
        "[rank 1] 2026-11-22 04:10:01 own b",
        "[rank 2] 2026-11-22 04:10:02 own c",
    ]
    assert logs(desk, "old/slurm-9.out", "-n", "1") == ["Gr\ufffd\ufffde"]
    assert logs(desk, "old", "-n", "1") == ["[rank 2] 2026-11-22 04:10:02 own c"]
    assert logs(desk, "old", "-n", "7")[:2] == ["==> job 9 <==", "Gr\ufffd\ufffde"]
    assert logs(desk, "old", "-n", "0") == []
    (desk.directory / "runs").mkdir()
    assert logs(desk, ".") == logs(desk, "old"), "a folder, also beside runs/"


def test_a_job_that_every_scheduler_has_forgotten_has_its_files(desk: Desk) -> None:
    desk.write("logs/output_sft_63_1.log", "out\n")
    desk.write("logs/error_sft_63_1.log", "err\n")
    desk.write("logs/output_sft_63_10.log", "another\n")
    said = desk.run("logs", "63_1")
    assert (said.code, said.out) == (0, "out\nerr\n")
    assert "no scheduler knows job 63_1 any more" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("nothing/here.log",),
            "error: there is no file nothing/here.log\nfix: ls nothing\nhint: ",
        ),
        (("a.log", "b.log"), "error: there is no file b.log\nfix: ls .\nhint: "),
        (("",), "error: there is no job ''"),
        (("no-such-job",), "error: there is no job 'no-such-job'"),
        (("a.log", "4711"), "error: 'a.log' and '4711': name files, or one job"),
        (("4711", "4712"), "error: '4711' and '4712': name files, or one job"),
        (("a.log", "--since", "tomorrow"), "error: --since 'tomorrow' is not a time"),
        (("empty/",), "error: no logs in empty"),
        (("a.log", "--rank", "-1"), "error: "),
        (("pipe.log",), "error: cannot read pipe.log: it is not a regular file"),
        ((), "error: no job of yours is known here"),
    ],
)
def test_what_cannot_be_shown_is_said(desk: Desk, words: tuple[str, ...], said: str) -> None:
    desk.write("a.log", "x\n")
    (desk.directory / "empty").mkdir()
    os.mkfifo(desk.directory / "pipe.log")
    shown = desk.run("logs", *words)
    assert said in shown.err
    assert (shown.code in (1, 2), shown.out) == (True, "")
    assert shown.lines[-1].startswith(("fix: ", "hint: "))


def test_a_rank_that_keeps_its_own_log_is_found_by_rank_and_node(desk: Desk) -> None:
    """The lines of a rank's own file, and those of the shared log that only torch's C++ has written
    there, each once.
    """
    run = "runs/first/"
    desk.write(f"{run}run.json", '{"schema": 1, "run_id": "first", "tag": "first"}')
    desk.write(
        f"{run}script.sbatch",
        f"#!/bin/bash\n#SBATCH --output={desk.directory}/logs/o_%j.log\nexport"
        " HPCTRAIN_WORLD_SIZE=2 X=1\n",
    )
    desk.write(
        f"{run}attempts/7.0/start.json",
        '{"schema": 1, "job_id": "7", "slurm_job_id": "7", "restart": 0, "at": 1000}',
    )
    for rank in (0, 1):
        desk.write(
            f"{run}attempts/7.0/ranks/rank-{rank}.log",
            f"hpctrain: rank {rank} of 2 on n0{rank + 1}\nboth\n[rank{rank}]: own\n",
        )
    desk.write(
        "logs/o_7.log",
        "both\nboth\n[rank0]: own\n[rank1]: own\n[rank1]:[E1122 04:10:00.1 x.cpp:1] of C++\n",
    )
    expected = ["hpctrain: rank 1 of 2 on n02", "both", "own", "[E1122 04:10:00.1 x.cpp:1] of C++"]
    assert logs(desk, "runs/first", "--rank", "1") == expected
    assert (
        logs(desk, "runs/first", "--node", "n02")[:3]
        == ["[rank 1] hpctrain: rank 1 of 2 on n02", "[rank 1] both", "[rank 1] own"]
        or logs(desk, "runs/first", "--node", "n02")[:3] == expected[:3]
    )
    assert logs(desk, "runs/first") == [
        "both  x2",
        "[ranks 0-1] own  x2",
        "[rank 1] [E1122 04:10:00.1 x.cpp:1] of C++",
    ]
