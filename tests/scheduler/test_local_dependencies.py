"""`--dependency` on the local scheduler: jobs that wait for others, for good or for ever."""

from pathlib import Path

import pytest

from hpctrain.errors import UsageError
from hpctrain.local.scheduler import LocalScheduler
from tests.scheduler.local_jobs import output, record, submit, wait
from tests.waiting import wait_until

HELD = 'while [ ! -e "go.$1" ]; do sleep 0.05; done; exit $2'


pytestmark = pytest.mark.usefixtures("local_jobs")


def held(name: str, code: int = 0) -> str:
    return submit(HELD, arguments=[name, str(code)])


def state(job_id: str) -> tuple[str, str | None]:
    known = record(job_id)
    return known.state, known.reason


WAITS = ("PENDING", "Dependency")
NEVER = ("PENDING", "DependencyNeverSatisfied")


@pytest.mark.parametrize(
    ("kind", "code", "runs"),
    [
        ("afterok", 0, True),
        ("afterok", 3, False),
        ("afternotok", 3, True),
        ("afternotok", 0, False),
        ("afterany", 3, True),
    ],
)
def test_a_job_waits_for_the_end_of_another(kind: str, code: int, runs: bool) -> None:
    first = held("a", code)
    second = submit("echo ran", dependency=f"{kind}:{first}")
    wait_until(lambda: state(second) == WAITS)
    Path("go.a").touch()
    if runs:
        assert wait(second).state == "COMPLETED"
        assert output(second) == "ran\n"
        return
    wait_until(lambda: state(second) == NEVER)
    LocalScheduler().cancel([second])
    assert record(second).state == "CANCELLED"
    assert not Path(f"logs/out_{second}.log").exists()


def test_a_cancelled_job_is_not_ok_and_a_chain_behind_it_never_runs() -> None:
    first = held("a")
    second = submit("true", dependency=f"afterok:{first}")
    third = submit("true", dependency=f"afterok:{second}")
    any_end = submit("true", dependency=f"afterany:{first}")
    LocalScheduler().cancel([first])
    wait_until(lambda: state(second) == NEVER)
    assert wait(any_end).state == "COMPLETED"
    wait_until(lambda: state(third) == WAITS)  # the second has not ended yet
    LocalScheduler().cancel([second])
    wait_until(lambda: state(third) == NEVER)
    LocalScheduler().cancel([third])


def test_arrays_wait_and_are_waited_for_as_a_whole_and_by_task() -> None:
    logs = "#SBATCH --output=logs/%A_%a.out\n#SBATCH --error=logs/%A_%a.err\n"
    body = "while [ ! -e go.$SLURM_ARRAY_TASK_ID ]; do sleep 0.05; done"
    first = submit(body, logs, array="0-2%2")
    whole = submit("true", dependency=f"afterok:{first}")
    one = submit("true", dependency=f"afterok:{first}_1")
    second = submit("true", logs, array="0-1", dependency=f"afterok:{whole}")
    wait_until(lambda: state(f"{second}_1") == WAITS)
    Path("go.1").touch()
    assert wait(one).state == "COMPLETED"
    wait_until(lambda: state(whole) == WAITS)
    Path("go.0").touch()
    Path("go.2").touch()
    assert wait(second).state == "COMPLETED"
    assert wait(whole).state == "COMPLETED"


@pytest.mark.parametrize(
    "text",
    [
        "afterok:4711",
        "afterok:",
        "foo",
        "afterok:1x",
        "afterok",
        "afterok:1?afterany:2",
        "after:1",
        "aftercorr:1",
        "singleton",
        "",
    ],
)
def test_what_sbatch_would_refuse(text: str) -> None:
    with pytest.raises(UsageError, match="Job dependency problem"):
        submit("true", dependency=text)
    assert LocalScheduler().status() == []
