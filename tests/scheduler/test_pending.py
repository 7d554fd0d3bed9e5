"""Why a job waits, how many are ahead, and what would start sooner."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.clusters.live import Association, LiveCluster, LiveNodes, LivePartition, LiveQos
from hpctrain.errors import SchedulerError
from hpctrain.scheduler import pending, start_sooner
from hpctrain.scheduler.parse import records
from hpctrain.scheduler.parse.records import SEPARATOR, JobRecord
from hpctrain.scheduler.pending import Place, place_each
from hpctrain.scheduler.pending_reasons import REASONS, explain
from hpctrain.scheduler.start_sooner import Change, Wish, answer, changes

PLAIN, LIMITS = (
    [word for word in part.splitlines() if word[0] != "#"]
    for part in Path(__file__).with_name("recorded").joinpath("reasons.txt").read_text().split("\n\n")
)


@pytest.mark.parametrize("reason", [*PLAIN, *LIMITS])
def test_every_reason_has_words_of_its_own(reason: str) -> None:
    said = explain(reason)
    assert reason not in said.words
    assert " " in said.words
    assert said == explain(f"({reason})"), "as squeue's NODELIST(REASON) prints it"
    assert said.fix is None or "{" not in said.fix.replace("{job}", "")


def test_every_row_of_the_table_is_a_reason_of_slurm() -> None:
    assert {name for name in REASONS if " " not in name} == set(PLAIN)


@pytest.mark.parametrize(
    ("reason", "words", "kind"),
    [
        ("QOSMaxJobsPerUserLimit", "its QOS has no room now: limit on running jobs of one user", "limit"),
        (
            "AssocGrpGRESMinutes",
            "your account has no room now: limit on GPUs (or other GRES) times minutes of all its jobs together",
            "limit",
        ),
        ("QOSMaxWallDurationPerJobLimit", "it asks for more than its QOS allows: limit on wall-clock time of one job", "never"),
        ("MaxGRESPerAccount", "its QOS has no room now: limit on GPUs (or other GRES) of one account", "limit"),
        ("QOSMinGRES", "it asks for less than its QOS wants: limit on GPUs (or other GRES)", "never"),
        ("DependencyNeverSatisfied", "a job it depends on did not end as it should: it will never start", "never"),
        (None, "not looked at yet by the scheduler", "queue"),
        ("ANewReasonOf28.05", "ANewReasonOf28.05", "queue"),
    ],
)
def test_what_some_of_them_say(reason: str | None, words: str, kind: str) -> None:
    assert (explain(reason).words, explain(reason).kind) == (words, kind)


def test_a_reason_with_a_detail() -> None:
    assert "(unavailable: node[1-2])" in explain("ReqNodeNotAvail, UnavailableNodes:node[1-2]").words
    assert len(explain(f"ReqNodeNotAvail, UnavailableNodes:{'node1,' * 200}").words) < 200
    long = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    assert explain(long) == explain(long.replace(" ", "_")) != explain("x")


@given(st.text(max_size=80))
def test_whatever_a_reason_is_it_is_shown(reason: str) -> None:
    assert explain(reason).words


# the place in the queue


def line(job_id: str, priority: int, user: str = "eve", *, partition: str = "gpu", reason: str = "Priority", start: str = "N/A") -> str:
    return SEPARATOR.join((job_id, user, str(priority), partition, reason, start)) + "\n"


def waiting(job_id: str, partition: str = "gpu", reason: str = "Priority") -> JobRecord:
    return JobRecord(job_id=job_id, scheduler="slurm", state="PENDING", partition=partition, reason=reason)


def test_those_of_higher_priority_in_the_partition_are_ahead() -> None:
    queue = (
        line("1", 900, reason="Resources") + line("2_[0-99]", 800) + line("3", 700, "ada") + line("4", 600, "ada", start="1795323307")
        + line("5", 500) + line("6", 950, partition="cpu") + line("7", 999, reason="JobHeldUser") + line("8", 998, reason="Dependency")
        + line("9", 997, reason="BeginTime") + "squeue: warning\n"
    )  # fmt: skip
    assert place_each(queue, [waiting("4"), waiting("99")], user="ada") == {"4": Place(ahead=3, mine=1, expected=1795323307.0)}


def test_of_equal_priority_the_older_job_is_ahead() -> None:
    queue = line("10", 1) + line("9", 1) + line("11", 1, "ada") + line("12", 1)
    assert place_each(queue, [waiting("11")], user="ada")["11"].ahead == 2


def test_a_queue_of_which_only_my_own_is_shown() -> None:
    queue = line("3", 700, "ada") + line("4", 600, "ada")
    assert place_each(queue, [waiting("4"), waiting("3")], user="ada") == {"4": Place(ahead=None, mine=1), "3": Place(ahead=None, mine=0)}
    top = line("3", 700, "ada", reason="Resources")
    assert place_each(top, [waiting("3", reason="Resources")], user="ada")["3"].ahead == 0, "Slurm says that it is first"


def test_a_job_in_two_partitions_stands_where_it_is_further() -> None:
    queue = line("1", 900) + line("1", 100, partition="fast") + line("4", 600, "ada") + line("4", 700, "ada", partition="fast")
    assert place_each(queue, [waiting("4", "gpu,fast")], user="ada")["4"].ahead == 0


def test_all_partitions_are_one_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/bash\necho \"$*\" >> {tmp_path}/calls\nprintf '%s' '{line('1', 9)}{line('2', 8, 'ada')}'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LOGNAME", "ada")
    jobs = [waiting("2"), waiting("3", "b,a")]
    for _ in range(3):
        assert pending.places(jobs, timeout=5, max_age_s=15)["2"].ahead == 1
    [call] = (tmp_path / "calls").read_text().splitlines()
    assert "-t PENDING -p a,b,gpu" in call
    squeue.write_text("#!/bin/bash\nexit 1\n")
    assert pending.places(jobs, timeout=5, max_age_s=0) == {}
    assert pending.places([], timeout=5, max_age_s=0) == {}


# what would start sooner

GPUS = (("a100", 4),)


def partition(name: str, idle: int, **more: object) -> LivePartition:
    return LivePartition(name=name, up=True, nodes=(LiveNodes(count=8, gpus=GPUS, idle=idle),), **more)  # type: ignore[arg-type]


LIVE = LiveCluster(
    partitions=(partition("gpu", 0), partition("debug", 1, time_max=1800), partition("big", 6),
                partition("other", 8, allow_accounts=("x",)), partition("denied", 8, deny_accounts=("proj",)),
                partition("qosless", 8, allow_qos=("urgent",)), partition("nights", 8, deny_qos=("normal",)),
                LivePartition(name="cpu", up=True, nodes=(LiveNodes(count=8, idle=8),))),
    qos=(LiveQos(name="normal"), LiveQos(name="urgent"), LiveQos(name="tiny", nodes_max=1), LiveQos(name="theirs")),
    associations=(Association(account="proj", qos=("normal", "urgent", "tiny")),),
)  # fmt: skip
WISH = Wish(
    job_id="33",
    nodes=4,
    time_limit_s=14400,
    partition="gpu",
    qos="normal",
    account="proj",
    gpus=4,
    options=("--nodes=4", "--time=04:00:00"),
)


def test_what_is_asked_about() -> None:
    asked = {change.options: change for change in changes(WISH, LIVE)}
    assert ("--partition=big",) in asked, "idle nodes, enough of them"
    assert ("--time=02:00:00",) in asked
    assert ("--time=01:00:00",) in asked
    assert ("--nodes=2",) in asked
    assert ("--nodes=1",) in asked
    assert ("--qos=urgent",) in asked
    assert ("--nodes=1", "--time=01:00:00") in asked
    assert len(asked) <= start_sooner.MOST_ASKED
    said = " ".join(option for options in asked for option in options)
    for name in ("other", "denied", "qosless", "nights", "cpu", "tiny", "theirs", "=gpu"):
        assert name not in said, "not to be used by this account, without GPUs, too small, not mine, its own"
    short = {
        change.options for change in changes(WISH, LiveCluster(partitions=(partition("gpu", 0), partition("debug", 1, time_max=1800))))
    }
    assert ("--partition=debug", "--time=00:30:00", "--nodes=1") in short


def test_no_limit_is_shorter_than_what_the_run_needs() -> None:
    asked = [change for change in changes(WISH, LIVE, needs_s=6000) if any(each.startswith("--time") for each in change.options)]
    assert [change.options[-1] for change in asked if len(change.options) == 1] == ["--time=01:55:00"], "6000 s, a tenth more, and a start"
    assert not [change for change in changes(WISH, LIVE, needs_s=14_000) if any(each.startswith("--time") for each in change.options)]


def test_what_to_type() -> None:
    typed = {change.options: change.command for change in changes(WISH, LIVE)}
    assert typed["--partition=big",] == "scontrol update JobId=33 Partition=big", "it keeps its age"
    assert typed["--time=02:00:00",] == "scontrol update JobId=33 TimeLimit=02:00:00"
    assert typed["--nodes=1",] == "hpctrain submit --nodes 1, then: hpctrain cancel 33", "the script is written for its nodes"
    assert typed["--nodes=1", "--time=01:00:00"] == "hpctrain submit --nodes 1 --time 01:00:00, then: hpctrain cancel 33"
    foreign = {change.options: change.command for change in changes(WISH, LIVE, ours=False)}
    assert foreign["--nodes=1",] == "scontrol update JobId=33 NumNodes=1"


def test_a_cluster_that_says_nothing() -> None:
    assert {each.options for each in changes(WISH, LiveCluster())} == {
        ("--time=02:00:00",), ("--time=01:00:00",), ("--nodes=2",), ("--nodes=1",), ("--nodes=1", "--time=01:00:00"),
    }  # fmt: skip
    assert changes(Wish(job_id="1"), LiveCluster()) == []
    assert changes(Wish(job_id="1", nodes=1, time_limit_s=600), LIVE, needs_s=None)


@given(
    st.integers(1, 2000), st.integers(60, 30 * 86_400), st.integers(0, 8), st.one_of(st.none(), st.integers(0, 10**6)), st.integers(0, 2000)
)
def test_every_question_is_about_less_or_elsewhere(nodes: int, limit: int, gpus: int, needs: int | None, idle: int) -> None:
    wish = Wish(job_id="1", nodes=nodes, time_limit_s=limit, partition="gpu", account="proj", gpus=gpus)
    live = LiveCluster(partitions=(partition("gpu", 8), partition("big", idle)), qos=LIVE.qos, associations=LIVE.associations)
    asked = changes(wish, live, needs_s=needs)
    assert len(asked) <= start_sooner.MOST_ASKED
    assert len({each.options for each in asked}) == len(asked)
    for change in asked:
        options = dict(option.removeprefix("--").split("=") for option in change.options)
        assert int(options.get("nodes", nodes)) in range(1, nodes + 1)
        assert options.get("partition") != "gpu"
        assert change.command


SCONTROL = (
    "JobId=33 JobName=j.sh UserId=ada(0) GroupId=ada(0) Account=proj_b QOS=normal JobState=PENDING Reason=Resources TimeLimit=00:10:00 "
    "Partition=boost NumNodes=2-2 {tres} TresPerNode={per_node} "
)


@pytest.mark.parametrize(
    ("per_node", "tres", "gpus", "gres"),
    [
        ("gres:gpu:4", "TRES=cpu=2,gres/gpu=8", 4, ["--gres=gpu:4"]),  # 22.05
        ("gres/gpu:a100:4", "ReqTRES=cpu=2,gres/gpu=8", 4, ["--gres=gpu:a100:4"]),  # 23.02
        ("gres/gpu:2(S:0-1)", "", 2, ["--gres=gpu:2"]),
        ("", "ReqTRES=cpu=2,gres/gpu=8", 4, []),  # --gpus 8
        ("", "", 0, []),
    ],
)
def test_what_a_job_asks_for(per_node: str, tres: str, gpus: int, gres: list[str]) -> None:
    [fields] = records.parse_scontrol_jobs(SCONTROL.format(tres=tres, per_node=per_node))
    wish = start_sooner.wish_of(fields)
    assert (wish.nodes, wish.time_limit_s, wish.partition, wish.account, wish.gpus) == (2, 600, "boost", "proj_b", gpus)
    assert list(wish.options) == ["--nodes=2", "--time=00:10:00", "--partition=boost", "--qos=normal", "--account=proj_b", *gres]


@pytest.mark.parametrize(
    ("text", "start", "said"),
    [
        ("sbatch: Job 28 to start at 1795322910 using 2 processors on nodes node[1-2] in partition boost\n", 1795322910.0, "Job 28"),
        (
            "Welcome!\nsbatch: Job 28 to start at 1795322910 using 2 processors on nodes n1 in partition b\nyour quota: 5\n",
            1795322910.0,
            "Job",
        ),
        (
            "sbatch: error: invalid partition specified: x\nallocation failure: Invalid partition name specified\n",
            None,
            "Invalid partition",
        ),
        ("", None, "nothing"),
    ],
)
def test_the_answers_of_test_only(text: str, start: float | None, said: str) -> None:
    found = answer(text)
    assert found[0] == start
    assert re.search(said, found[1])


def test_the_questions_override_the_script_and_are_asked_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(
        f"""#!/bin/bash
        echo "$SLURM_TIME_FORMAT $*" >> {tmp_path}/calls
        case "$*" in *nodes=1*) echo "allocation failure: too few" >&2; exit 1;; esac
        echo "sbatch: Job 1 to start at 1795322910 using 2 processors on nodes n in partition p" >&2
        """
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    asked = [Change(words="a", options=("--nodes=1",)), Change(words="b", options=("--time=00:30:00",))]
    found = start_sooner.ask(Path("x.sh"), WISH, asked, timeout=5)
    assert [(each.start, each.refused) for each in found] == [(None, "too few"), (1795322910.0, None)]
    assert (tmp_path / "calls").read_text().splitlines() == [
        "%s --test-only --time=04:00:00 --nodes=1 x.sh", "%s --test-only --nodes=4 --time=00:30:00 x.sh",
    ]  # fmt: skip
    sbatch.write_text("#!/bin/bash\necho 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1\n")
    with pytest.raises(SchedulerError):
        start_sooner.ask(Path("x.sh"), WISH, asked, timeout=5)
