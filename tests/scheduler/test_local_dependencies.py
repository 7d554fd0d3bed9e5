"""`--dependency` on the local scheduler: jobs that wait for others, for good or for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.errors import UsageError
from hpctrain.scheduler.local import dependency, job_directory
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.parse.records import JobRecord
from tests.scheduler.local_jobs import directory, end_all, output, record, submit, wait, wait_for

pytestmark = pytest.mark.slow

HELD = 'while [ ! -e "go.$1" ]; do sleep 0.05; done; exit $2'


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield
    end_all()


def held(name: str, code: int = 0) -> str:
    return submit(HELD, arguments=[name, str(code)])


def state(job_id: str) -> tuple[str, str | None]:
    known = record(job_id)
    return known.state, known.reason


def waits_for(job_id: str) -> str | None:
    """Return what the supervisor has found at its last look."""
    shown: str | None = job_directory.JobDirectory(directory(job_id)).state().get("dependency")
    return shown


WAITS = ("PENDING", "Dependency")
NEVER = ("PENDING", "DependencyNeverSatisfied")


@pytest.mark.parametrize(
    ("kind", "code", "runs"),
    [("afterok", 0, True), ("afterok", 3, False), ("afternotok", 3, True), ("afternotok", 0, False), ("afterany", 3, True)],
)
def test_a_job_waits_for_the_end_of_another(kind: str, code: int, runs: bool) -> None:
    first = held("a", code)
    second = submit("echo ran", dependency=f"{kind}:{first}")
    wait_for(lambda: state(second) == WAITS)
    Path("go.a").touch()
    if runs:
        assert wait(second).state == "COMPLETED"
        assert output(second) == "ran\n"
        return
    wait_for(lambda: state(second) == NEVER)
    LocalScheduler().cancel([second])
    assert record(second).state == "CANCELLED"
    assert not Path(f"logs/out_{second}.log").exists()


def test_the_directive_holds_and_the_command_line_wins() -> None:
    first, other = held("a"), held("b")
    second = submit("true", f"#SBATCH --dependency=afterany:{first}\n")
    third = submit("true", f"#SBATCH --dependency=afterany:{first}\n", dependency=f"afterany:{other}")
    wait_for(lambda: state(second) == state(third) == WAITS)
    Path("go.b").touch()
    assert wait(third).state == "COMPLETED"
    wait_for(lambda: state(second) == WAITS)
    LocalScheduler().cancel([first, second])
    assert record(second).state == "CANCELLED"


def test_all_of_several_and_one_of_several() -> None:
    first, second = held("a"), held("b", 1)
    both = submit("true", dependency=f"afterany:{first}:{second}")
    comma = submit("true", dependency=f"afterok:{first},afternotok:{second}")
    either = submit("true", dependency=f"afterok:{second}?afterok:{first}")
    Path("go.b").touch()
    left = (f"afterany:{first}(unfulfilled)", f"afterok:{first}(unfulfilled)")
    wait_for(lambda: (waits_for(both), waits_for(comma)) == left)
    wait_for(lambda: waits_for(either) == f"afterok:{second}(failed)?afterok:{first}(unfulfilled)")
    assert state(both) == state(comma) == state(either) == WAITS
    Path("go.a").touch()
    assert {wait(job_id).state for job_id in (both, comma, either)} == {"COMPLETED"}


def test_after_waits_for_the_start_and_singleton_for_its_namesakes() -> None:
    first = held("a")
    second = submit("true", dependency=f"after:{first}")
    assert wait(second).state == "COMPLETED"
    third = submit("true", dependency="singleton")
    wait_for(lambda: state(third) == WAITS)
    later = submit("true", dependency=f"after:{third}")
    wait_for(lambda: state(later) == WAITS)
    Path("go.a").touch()
    assert wait(third).state == "COMPLETED"
    assert wait(later).state == "COMPLETED"


def test_a_cancelled_job_is_not_ok_and_a_chain_behind_it_never_runs() -> None:
    first = held("a")
    second = submit("true", dependency=f"afterok:{first}")
    third = submit("true", dependency=f"afterok:{second}")
    any_end = submit("true", dependency=f"afterany:{first}")
    LocalScheduler().cancel([first])
    wait_for(lambda: state(second) == NEVER)
    assert wait(any_end).state == "COMPLETED"
    wait_for(lambda: state(third) == WAITS)  # the second has not ended yet
    LocalScheduler().cancel([second])
    wait_for(lambda: state(third) == NEVER)
    LocalScheduler().cancel([third])


def test_a_requeued_job_is_still_waited_for() -> None:
    first = submit(
        '[ -n "${SLURM_RESTART_COUNT-}" ] || { scontrol requeue $SLURM_JOB_ID; exit 1; }; while [ ! -e go ]; do sleep 0.05; done'
    )
    second = submit("true", dependency=f"afterok:{first}")
    again = job_directory.JobDirectory(directory(first))
    wait_for(lambda: (again.state()["state"], again.state().get("restarts"), state(second)) == ("RUNNING", 1, WAITS))
    Path("go").touch()
    assert wait(second).state == "COMPLETED"


def test_arrays_wait_and_are_waited_for_as_a_whole_and_by_task() -> None:
    logs = "#SBATCH --output=logs/%A_%a.out\n#SBATCH --error=logs/%A_%a.err\n"
    body = "while [ ! -e go.$SLURM_ARRAY_TASK_ID ]; do sleep 0.05; done"
    first = submit(body, logs, array="0-2%2")
    whole = submit("true", dependency=f"afterok:{first}")
    one = submit("true", dependency=f"afterok:{first}_1")
    started = submit("true", dependency=f"after:{first}")
    second = submit("true", logs, array="0-1", dependency=f"afterok:{whole}")
    wait_for(lambda: state(f"{second}_1") == WAITS)
    Path("go.1").touch()
    assert wait(one).state == "COMPLETED"
    assert wait(started).state == "COMPLETED", "the last task has started in the place of task 1"
    wait_for(lambda: state(whole) == WAITS)
    Path("go.0").touch()
    Path("go.2").touch()
    assert wait(second).state == "COMPLETED"
    assert wait(whole).state == "COMPLETED"


def test_a_stage_waits_for_the_gpu_of_the_stage_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    first = submit(HELD, "#SBATCH --gpus=1\n", arguments=["a", "0"])
    second = submit("srun bash -c 'echo $CUDA_VISIBLE_DEVICES'", "#SBATCH --gpus=1\n", dependency=f"after:{first}")
    wait_for(lambda: state(second) == ("PENDING", "Resources"))
    Path("go.a").touch()
    assert wait(second).state == "COMPLETED"
    assert output(second) == "5\n"


@pytest.mark.parametrize(
    "text", ["afterok:4711", "afterok:", "foo", "afterok:1x", "afterok", "afterok:1,afterany:2?after:3", "aftercorr:1", "singleton:3", ""]
)
def test_what_sbatch_would_refuse(text: str) -> None:
    with pytest.raises(UsageError, match="Job dependency problem"):
        submit("true", dependency=text)
    assert LocalScheduler().status() == []


def test_a_job_that_depends_on_a_task_that_the_array_does_not_have() -> None:
    first = submit("true", array="0-1", directives="#SBATCH --output=/dev/null\n#SBATCH --error=/dev/null\n")
    with pytest.raises(UsageError, match=f"{first}_7: no such job"):
        submit("true", dependency=f"afterok:{first}_7")


def test_what_the_wait_is_for_is_shown() -> None:
    failed = submit("exit 3")
    wait(failed)
    first = held("a")
    second = submit("true", dependency=f"afterok:{failed}:{first}")
    show = submit(f"until scontrol show job -o {second} | grep Never; do sleep 0.1; done; squeue -h -j {second} -o '%r %E'")
    assert wait(show).state == "COMPLETED"
    shown = f"afterok:{failed}(failed),afterok:{first}(unfulfilled)"
    assert f"Reason=DependencyNeverSatisfied Dependency={shown} " in output(show)
    assert output(show).splitlines()[-1] == f"DependencyNeverSatisfied {shown}"
    LocalScheduler().cancel([first, second])


IDS = st.lists(st.integers(1, 99), min_size=1, max_size=3)
KINDS = st.sampled_from(["after", "afterany", "afterok", "afternotok"])


@given(st.lists(st.tuples(KINDS, IDS), min_size=1, max_size=3), st.booleans())
def test_a_dependency_reads_as_it_is_written(parts: list[tuple[str, list[int]]], any_of: bool) -> None:
    text = ("?" if any_of else ",").join(f"{kind}:{':'.join(map(str, ids))}" for kind, ids in parts)
    read = dependency.parse(text)
    assert [str(condition) for condition in read.conditions] == [f"{kind}:{each}" for kind, ids in parts for each in ids]
    # Everything has ended well: only afternotok is not met.
    bad = [kind == "afternotok" for kind, ids in parts for _ in ids]
    good = JobRecord(job_id="1", scheduler="local", state="COMPLETED")
    verdict, _, _ = dependency.judge(read, lambda _: good, list, has_started=lambda _: True, now=0.0)
    hopeless = all(bad) if "?" in text else any(bad)
    assert verdict == ("never" if hopeless else "met")


def test_after_counts_minutes() -> None:
    started = JobRecord(job_id="1", scheduler="local", state="RUNNING", start="2026-01-02T03:04:05")
    at = time.mktime(time.strptime(str(started.start), "%Y-%m-%dT%H:%M:%S"))
    for now, verdict in ((at + 119, "unmet"), (at + 120, "met")):
        read = dependency.parse("after:1+2")
        assert dependency.judge(read, lambda _: started, list, has_started=lambda _: True, now=now)[0] == verdict
