"""One script, byte for byte, on the real Slurm and on the local scheduler: the same words in its
log.
"""

import re
from pathlib import Path

import pytest

from hpctrain.local.scheduler import LocalScheduler
from hpctrain.slurm.notations import array
from tests.lab.conftest import Lab
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm]

HEAD = (
    "#!/bin/bash\n#SBATCH --job-name=same --time=10 --account=proj_b --partition=debug"
    " --open-mode=append\n"
)
ARRAY = """#SBATCH --array=2,3-7:2%1 --output=%A_%a.out
env | grep -E '^SLURM_(ARRAY_|RESTART)' | sort
[ "$SLURM_JOB_ID" = "$SLURM_JOBID" ] && echo "$# $1 $2"
shown='(ArrayTaskId|JobName|JobState|Requeue|Restarts|TimeLimit)=[^ ]*'
scontrol show job -o "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" | grep -oE "$shown"
"""
LISTEN = """name=${1:-task}; for each in TERM USR1 USR2; do trap "echo $name got $each" $each; done
touch "$name.ready"; while [ ! -e stop ]; do sleep 0.1; done
"""
SIGNALS = """#SBATCH --output=%j.out
until_said() { for _ in $(seq 6000); do grep -q "$1" "$SLURM_JOB_ID.out" && return; sleep 0.1; done; echo "never: $1"; }
trap 'echo batch got TERM' TERM; trap 'echo batch got USR1' USR1
srun bash -c 'bash listen.sh child & . ./listen.sh; wait' &
step=$!
while [ ! -e child.ready ] || [ ! -e task.ready ]; do sleep 0.1; done
scancel --signal=USR1 "$SLURM_JOB_ID"; until_said 'task got USR1'
scancel --signal=TERM "$SLURM_JOB_ID"; until_said 'task got TERM'
scancel --batch --signal=USR1 "$SLURM_JOB_ID"; until_said 'batch got USR1'
kill -USR2 "$step"; until_said 'task got USR2'
kill -TERM "$step"
while kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done
echo "step $code"
scontrol requeue 999999999 2>/dev/null; echo "requeue $?"
"""
CANCELLED = """#SBATCH --output=%j.out
trap 'echo batch got TERM' TERM
srun bash -c 'trap "echo task got TERM; sleep 1; echo saved; exit 0" TERM; touch ready; while true; do sleep 0.1; done' &
while kill -0 $! 2>/dev/null; do wait $!; done
"""


def said(folder: Path, name: str, ids: tuple[str, ...]) -> list[str]:
    """Return the lines of a log without Slurm's own and without ids."""
    lines = (folder / name).read_text().splitlines()
    own = [
        line
        for line in lines
        if not re.match(r"(srun|slurmstepd)[^ ]*:|\[[\dT:.-]+\] error: |^$", line)
    ]
    for number in ids:
        own = [line.replace(f"JOB_ID={number}", "JOB_ID=ID") for line in own]
    return own


def both(lab: Lab, folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Submit one script in folder/slurm and folder/local, and return the ids."""
    monkeypatch.setenv("HPCTRAIN_LOCAL_KILL_WAIT", "60")
    for name in ("slurm", "local"):
        (folder / name).mkdir()
        (folder / name / "same.sbatch").write_text(HEAD + text)
        (folder / name / "listen.sh").write_text(LISTEN)
    slurm = lab.run(
        "sbatch",
        "--parsable",
        f"--chdir={folder}/slurm",
        f"{folder}/slurm/same.sbatch",
        "tag",
        "a b",
    ).stdout.strip()
    monkeypatch.chdir(folder / "local")
    return slurm, LocalScheduler().submit(Path("same.sbatch"), arguments=["tag", "a b"]).job_id


def ended(job_id: str) -> None:
    wait_until(lambda: LocalScheduler().status([job_id])[0].is_final)


def test_the_tasks_of_an_array(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, local = both(lab, tmp_path, ARRAY, monkeypatch)
    for index in (2, 3, 5, 7):
        lab.finished(f"{slurm}_{index}")
    ended(local)
    for index in (2, 3, 5, 7):
        real = said(tmp_path / "slurm", f"{slurm}_{index}.out", (slurm,))
        assert said(tmp_path / "local", f"{local}_{index}.out", (local,)) == real
        assert "2 tag a b" in real


def test_signals(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, local = both(lab, tmp_path, SIGNALS, monkeypatch)
    lab.finished(slurm)
    ended(local)
    real = said(tmp_path / "slurm", f"{slurm}.out", ())
    assert real == [
        "task got USR1",
        "task got TERM",
        "batch got USR1",
        "task got USR2",
        "step 137",
        "requeue 1",
    ]
    assert said(tmp_path / "local", f"{local}.out", ()) == real


def test_cancel_and_what_it_gives_time_for(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, local = both(lab, tmp_path, CANCELLED, monkeypatch)
    wait_until(lambda: all((tmp_path / name / "ready").exists() for name in ("slurm", "local")))
    lab.run("scancel", slurm)
    LocalScheduler().cancel([local])
    lab.finished(slurm)
    real = sorted(said(tmp_path / "slurm", f"{slurm}.out", ()))
    assert sorted(said(tmp_path / "local", f"{local}.out", ())) == real
    assert "saved" in real


@pytest.mark.parametrize(
    "text",
    [
        "0-9%2",
        "0,3,7-9",
        "1-10:3",
        "3,1,1",
        "01",
        "5-1",
        "a",
        "1-",
        "1-3:0",
        "-1",
        "1 ,2",
        "0x1",
        "1-2:1-3",
        "1.5",
    ],
)
def test_arrays_that_slurm_takes_and_refuses(lab: Lab, tmp_path: Path, text: str) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text(HEAD + "true\n")
    done = lab.run("sbatch", "--hold", "--parsable", f"--array={text}", str(script), check=False)
    if done.returncode != 0:
        assert "Invalid job array specification" in done.stderr
        with pytest.raises(ValueError, match="Invalid job array specification"):
            array.parse(text)
        return
    job_id = done.stdout.strip()
    try:
        (shown,) = lab.run("squeue", "-h", "-j", job_id, "-o", "%K").stdout.split()
    finally:
        lab.run("scancel", job_id)
    assert array.parse(shown).indices == array.parse(text).indices
    assert array.parse(shown).limit == array.parse(text).limit
