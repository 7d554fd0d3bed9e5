"""Which of what was found is the cause, and what is said of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.explain import engine, rules
from hpctrain.explain.model import (
    AttemptFact,
    ErrorExcerpt,
    Evidence,
    Explanation,
    FirstFailed,
    JobContext,
    Match,
)
from hpctrain.logs import files, scan
from hpctrain.slurm.notations.records import JobRecord, StepUsage

RULES = rules.load(
    {
        "a.yaml": (
            r"""
- {id: oom, stage: run, area: memory, kind: cause, certainty: certain, lines: [a], masks: [killed],
   cause: "Memory of rank {rank} ran out. It wanted {size}. Node {node} has no more.",
   remedy: "halve it\nask for {size}\ntype this", source: s}
- {id: nan, stage: run, area: numbers, kind: cause, certainty: certain, lines: [a], cause: "Not a number.", remedy: r, source: s}
- {id: notice, stage: end, area: end, kind: cause, certainty: certain, lines: [a], cause: "It is ended.", remedy: r, source: s}
- {id: link, stage: comm, area: communication, kind: cause, certainty: certain, lines: [a], cause: "The link broke.", remedy: r, source: s}
- {id: disk, stage: run, area: storage, kind: cause, certainty: likely, lines: [a], cause: "The disk is full.", remedy: r, source: s,
   record: {state: [NODE_FAIL]}}
- {id: time-limit, stage: end, area: time, kind: cause, certainty: certain, cause: "The time limit of {time_limit} was reached.",
   remedy: r, source: s, record: {state: [TIMEOUT]}}
- {id: preempted-here, stage: end, area: end, kind: cause, certainty: certain, lines: [a], cause: c, remedy: r, source: s,
   record: {state: [PREEMPTED]}, all: true}
- {id: stuck, stage: comm, area: communication, kind: symptom, certainty: likely, lines: [a], cause: "It was stuck.", remedy: r, source: s}
- {id: killed, stage: end, area: end, kind: consequence, certainty: likely, lines: [a], cause: "Killed.", remedy: r, source: s}
- {id: segfault, stage: run, area: hardware, kind: symptom, certainty: likely, lines: [a], cause: "It crashed.", remedy: r, source: s}
- {id: torchelastic-child-failed, stage: end, area: communication, kind: consequence, certainty: likely, lines: [ChildFailedError],
   cause: "A process failed.", remedy: r, source: s}
- {id: pending, stage: pending, area: queue, kind: cause, certainty: certain, cause: "It waits.", remedy: r, source: s,
   record: {state: [PENDING], reason: '^QOSMax'}}
"""
        )
    }
)


def hit(
    rule_id: str,
    line: int,
    at: float | None = None,
    *,
    file: str = "job.log",
    shown: str = "an error",
    **more: Any,
) -> Match:
    order = {"job.log": 0}.get(file, 1)
    return Match(
        rule=rule_id,
        evidence=Evidence(file=file, line=line, text=shown),
        order=(order, line),
        at=at,
        **more,
    )


def account(state: str, **more: Any) -> JobRecord:
    return JobRecord(job_id="7", scheduler="slurm", state=state, source="sacct", **more)


def said(*hits: Match, case: JobContext = JobContext(), **more: Any) -> Explanation:  # noqa: B008 - frozen
    return engine.explain(case, hits, RULES, **more)


def ids(explanation: Explanation) -> list[str]:
    return [each.id for each in explanation.diagnoses]


def test_the_earliest_cause_in_time_wins_over_files() -> None:
    found = said(hit("link", 1, 100.0, file="a.log", rank=2), hit("oom", 9, 90.0, rank=3))
    assert ids(found) == ["oom"]
    assert found.diagnoses[0].rank == 3
    assert [(each.id, each.count, each.ranks) for each in found.consequences] == [("link", 1, (2,))]


def test_in_one_file_the_line_decides_and_a_line_without_a_time_takes_the_next_ones() -> None:
    assert ids(
        said(hit("oom", 5, None), hit("link", 9, 50.0), hit("disk", 7, 60.0, file="b.log"))
    ) == ["oom"]


def test_causes_of_one_moment_are_told_apart_by_the_rank_that_failed_first() -> None:
    pair = (hit("link", 1, 100.0, rank=1), hit("oom", 1, 101.0, file="b.log", rank=5))
    assert ids(said(*pair)) == ["link"]
    assert ids(said(*pair, first_failed=(FirstFailed(rank=5, node="n2", at=101.0),))) == ["oom"]


def test_consequences_are_counted_with_their_ranks_and_are_never_a_diagnosis() -> None:
    found = said(
        hit("oom", 1, 10.0),
        *(hit("killed", n, 9.0, file="b.log", rank=n, count=3) for n in range(4)),
    )
    assert ids(found) == ["oom"]
    (consequence,) = found.consequences
    assert (consequence.count, consequence.ranks) == (12, (0, 1, 2, 3))
    assert ids(said(hit("killed", 1, 10.0))) == []


def test_a_symptom_is_named_only_where_there_is_no_cause() -> None:
    assert ids(said(hit("stuck", 1, 5.0))) == ["stuck"]
    assert said(hit("stuck", 1, 5.0)).diagnoses[0].certainty == "likely"
    assert ids(said(hit("stuck", 1, 5.0), hit("oom", 9, 50.0))) == ["oom"]


def test_a_record_and_a_line_that_agree_are_certain() -> None:
    assert said(hit("disk", 1, 5.0)).diagnoses[0].certainty == "likely"
    found = said(hit("disk", 1, 5.0), case=JobContext(account=account("NODE_FAIL", exit_code=1)))
    assert found.diagnoses[0].certainty == "certain"
    assert [each.file for each in found.diagnoses[0].evidence] == ["job.log", "sacct"]


def test_a_record_alone_fires_unless_the_rule_wants_all() -> None:
    assert ids(said(case=JobContext(account=account("TIMEOUT", time_limit_s=3600)))) == [
        "time-limit"
    ]
    assert (
        said(case=JobContext(account=account("TIMEOUT", time_limit_s=3600))).diagnoses[0].cause
        == "The time limit of 01:00:00 was reached."
    )
    assert ids(said(case=JobContext(account=account("PREEMPTED")))) == []
    assert ids(said(hit("preempted-here", 1), case=JobContext(account=account("PREEMPTED")))) == [
        "preempted-here"
    ]


def test_an_early_error_wins_over_the_time_limit_that_it_made_the_job_wait_for() -> None:
    assert ids(
        said(hit("oom", 1, 5.0), case=JobContext(account=account("TIMEOUT", ended=9000.0)))
    ) == ["oom"]


def test_what_is_only_likely_and_long_ago_does_not_hide_what_is_certain() -> None:
    assert ids(
        said(hit("disk", 1, 5.0), case=JobContext(account=account("TIMEOUT", ended=9000.0)))
    ) == [
        "time-limit",
        "disk",
    ]


def test_an_error_that_the_training_got_over_is_none() -> None:
    over = hit("oom", 1, 5.0, steps_after=25)
    assert ids(said(over, case=JobContext(account=account("TIMEOUT", ended=9000.0)))) == [
        "time-limit"
    ]
    assert (
        ids(said(hit("oom", 1, 5.0, shown="[Errno 28] No space left on device", steps_after=25)))
        == []
    ), "whatever its words are"
    assert ids(said(hit("oom", 1, 5.0, done_after="complete"))) == [], "the training was complete"
    assert ids(
        said(hit("nan", 1, 5.0, shown="{'loss': nan}", steps_after=2, done_after="complete"))
    ) == ["nan"], "it ended with NaN"
    assert ids(said(hit("nan", 1, 5.0, shown="{'loss': nan}", steps_after=4))) == [], (
        "one step was NaN"
    )
    assert ids(said(hit("nan", 1, 5.0, shown="ValueError: nan", steps_after=25))) == [], (
        "an error is got over"
    )
    notice = hit(
        "notice",
        1,
        5.0,
        shown="error: *** JOB 7 ON n1 CANCELLED AT 04:10 DUE TO PREEMPTION ***",
        steps_after=25,
    )
    assert ids(said(notice)) == ["notice"], "the time that is left is trained in"


def test_an_error_that_was_perhaps_got_over_is_evidence_only_of_a_failure_that_nothing_else_explains() -> (
    None
):
    few, failed = (
        hit("oom", 1, 5.0, steps_after=5),
        JobContext(account=account("FAILED", exit_code=1)),
    )
    assert ids(said(few)) == [], "it goes on"
    assert ids(said(hit("oom", 1, 5.0, done_after="zero"))) == [], (
        "a script says that it ended well"
    )
    (found,) = said(few, case=failed).diagnoses
    assert (found.id, found.certainty) == ("oom", "likely")
    assert ids(said(few, hit("disk", 9, 50.0), case=failed)) == ["disk"]
    assert ids(said(few, hit("stuck", 9, 50.0), case=failed)) == ["stuck"]
    shown = said(few, case=failed, troubles=(trouble(99, at=9.0),))
    assert ids(shown) == []
    assert shown.unexplained.line == 99


def test_an_error_that_nobody_caught_ended_its_process_though_held_back_output_came_behind_it() -> (
    None
):
    frames = (
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "    main()",
        "OutOfMemoryError: no",
    )
    assert ids(
        said(
            hit("oom", 4, 5.0, steps_after=10), troubles=(trouble(1, lines=frames, steps_after=10),)
        )
    ) == ["oom"]
    caught = (frames[0], '  File "train.py", line 9, in step', *frames[2:])
    assert (
        ids(
            said(
                hit("oom", 4, 5.0, steps_after=10),
                troubles=(trouble(1, lines=caught, steps_after=10),),
            )
        )
        == []
    )


@pytest.mark.parametrize(
    "more", [{"steps_after": 25}, {"steps_after": 1, "done_after": "complete"}]
)
def test_what_a_process_had_held_back_may_come_behind_its_last_error(more: dict[str, Any]) -> None:
    frames = (
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "    main()",
        "OutOfMemoryError: no",
    )
    failed = JobContext(account=account("FAILED", exit_code=1))

    def found(size: int, case: JobContext = failed) -> list[tuple[str, str]]:
        shown = trouble(1, lines=frames, bytes_after=size, **more)
        explained = said(hit("oom", 4, 5.0, bytes_after=size, **more), case=case, troubles=(shown,))
        return [(each.id, each.certainty) for each in explained.diagnoses]

    assert found(8000) == [("oom", "likely")]
    assert found(8_000_000) == [], "so much is not held back"
    assert found(8000, JobContext()) == [], "nobody says that it failed"


def test_an_error_far_before_the_end_is_of_an_earlier_run_unless_the_job_failed() -> None:
    old = hit("oom", 4, bytes_after=200_000)
    assert ids(said(old)) == []
    assert ids(said(old, troubles=(trouble(900, bytes_after=90),))) == ["oom"]
    assert ids(said(old, hit("notice", 5, bytes_after=199_000))) == ["oom"]
    assert ids(said(old, case=JobContext(account=account("FAILED", exit_code=1)))) == ["oom"]


def test_an_error_that_somebody_caught_was_got_over_by_one_step() -> None:
    def frames(function: str) -> tuple[str, ...]:
        return (
            "Traceback (most recent call last):",
            f'  File "a.py", line 9, in {function}',
            "    import triton",
            "ImportError: no",
        )

    for function, found in (
        ("is_available", []),
        ("_bootstrap", ["oom"]),
        ("worker", ["oom"]),
        ("<module>", ["oom"]),
    ):
        shown = trouble(1, lines=frames(function), steps_after=1)
        assert ids(said(hit("oom", 4, 5.0, steps_after=1), troubles=(shown,))) == found, function
    shown = trouble(1, lines=frames("is_available"), steps_after=0)
    assert ids(said(hit("oom", 4, 5.0, steps_after=0), troubles=(shown,))) == ["oom"], (
        "it was raised again, perhaps"
    )


def test_a_job_that_completed_has_nothing_to_explain() -> None:
    for case in (
        JobContext(account=account("COMPLETED", exit_code=0)),
        JobContext(attempts=(AttemptFact(name="7.0", outcome="completed", status=0),)),
    ):
        found = said(hit("oom", 1, 5.0), case=case, troubles=(trouble(1),))
        assert (ids(found), found.unexplained, found.failed, found.consequences) == (
            [],
            None,
            False,
            (),
        )
    assert ids(said(hit("oom", 1, 5.0), status=0)) == []
    assert ids(said(hit("oom", 1, 5.0), status=1)) == ["oom"]


def test_a_job_whose_step_failed_is_explained_where_that_is_certain() -> None:
    case = JobContext(
        account=account(
            "COMPLETED", exit_code=0, steps=(StepUsage(name="0", state="FAILED", exit_code=1),)
        )
    )
    assert ids(said(hit("oom", 1, 5.0), case=case)) == ["oom"]
    assert ids(said(hit("stuck", 1, 5.0), case=case)) == []


def test_of_a_job_that_runs_or_waits_no_line_is_believed() -> None:
    assert (
        ids(
            said(
                hit("oom", 1, 5.0),
                case=JobContext(account=account("RUNNING")),
                troubles=(trouble(1),),
            )
        )
        == []
    )
    assert (
        said(case=JobContext(account=account("RUNNING")), troubles=(trouble(1),)).unexplained
        is None
    )
    assert ids(
        said(case=JobContext(account=account("PENDING", reason="QOSMaxJobsPerUserLimit")))
    ) == ["pending"]
    assert ids(said(case=JobContext(account=account("PENDING", reason="Priority")))) == []


def test_earlier_starts_are_history() -> None:
    attempts = (
        AttemptFact(name="7.0", started=0.0, outcome="requeued", last_step=40, reason="deadline"),
        AttemptFact(name="7.1", started=1000.0),
    )
    found = said(
        hit("oom", 1, 500.0),
        hit("link", 9, 1500.0),
        case=JobContext(attempts=attempts, account=account("FAILED")),
    )
    assert ids(found) == ["link"]
    assert found.history == ("7.0: requeued at step 40 (deadline)",)
    found = said(
        hit("oom", 1, 500.0, attempt="7.0"),
        hit("link", 9, None, attempt="7.1"),
        case=JobContext(attempts=attempts),
    )
    assert (ids(found), found.history) == (["link"], ("7.0: requeued at step 40 (deadline, oom)",))
    both = (hit("oom", 1, part=0, parts=1), hit("link", 9, part=1, parts=1))
    found = said(*both, troubles=(trouble(3, part=0, parts=1),))
    told = ("start 1: oom, line 1: an error", "start 1: error, line 3: KeyError: 1")
    assert (ids(found), found.history) == (["link"], told)


def trouble(line: int, **more: Any) -> ErrorExcerpt:
    given = {
        "file": "job.log",
        "lines": ("Traceback (most recent call last):", "KeyError: 1"),
        "error": "KeyError: 1",
        "traceback": True,
    }
    return ErrorExcerpt(**{**given, "line": line, "order": (0, line), **more})


def test_what_a_launcher_says_behind_a_traceback_does_not_hide_it() -> None:
    failed = JobContext(account=account("FAILED", exit_code=1))
    soft = trouble(
        1, at=1.0, lines=("lib: error: no triton",), error="lib: error: no triton", traceback=False
    )
    own = trouble(200, at=5.0)
    launchers = trouble(
        215,
        at=6.0,
        lines=("Traceback (most recent call last):", "x.ChildFailedError:"),
        error="x.ChildFailedError:",
    )
    ends = (hit("torchelastic-child-failed", 210, 6.0), hit("torchelastic-child-failed", 217, 6.0))
    for troubles, line in (((soft, own, launchers), 200), ((soft, launchers), 1)):
        found = said(*ends, case=failed, troubles=troubles)
        assert found.unexplained.line == line


def test_a_crash_is_of_the_rank_that_torch_saw_crash_first() -> None:
    def rank(rule_id: str, code: int) -> int | None:
        return (
            said(
                hit(rule_id, 1, 5.0),
                first_failed=(FirstFailed(rank=3, node="n2", at=5.0, exit_code=code),),
            )
            .diagnoses[0]
            .rank
        )

    assert (rank("segfault", -11), rank("segfault", -9), rank("segfault", 1)) == (3, 3, None)
    assert rank("stuck", -11) is None, "who gave up first is not who was missing"


def test_where_no_rule_fits_the_earliest_error_of_the_first_rank_is_shown() -> None:
    failed = JobContext(account=account("FAILED", exit_code=1))
    early, late = (
        trouble(1, at=5.0, rank=0, lines=("ValueError: late",)),
        trouble(1, at=9.0, rank=3, file="b.log"),
    )
    found = said(case=failed, troubles=(late, early))
    assert found.failed
    assert (found.unexplained.rank, found.unexplained.since) == (0, "1970-01-01T00:00:05")
    found = said(case=failed, troubles=(late, early), first_failed=(FirstFailed(rank=3),))
    assert found.unexplained.rank == 3
    assert said(case=failed).failed
    assert said(case=failed).unexplained is None


def test_of_bare_logs_only_what_ends_a_program_counts_as_a_failure() -> None:
    assert said(troubles=(trouble(1),)).unexplained is not None
    assert said(troubles=(trouble(1, steps_after=5),)).unexplained is None
    message = {"traceback": False, "error": "error: could not fetch the version"}
    followed = said(troubles=(trouble(1, **message),))
    assert (followed.unexplained, followed.failed) == (None, False)
    last = said(troubles=(trouble(1, **message, ending=True),))
    assert last.unexplained is not None
    for result in ("Error: 0.0031", "error rate: 2 %", "Error in rule map, trying again"):
        assert said(troubles=(trouble(1, traceback=False, error=result),)).unexplained is None


def test_a_consequence_is_not_shown_as_the_first_error() -> None:
    failed = JobContext(account=account("FAILED"))
    found = said(
        hit("killed", 3, 4.0),
        case=failed,
        troubles=(trouble(1, at=4.0, error="SignalException"), trouble(200, at=9.0)),
    )
    assert found.unexplained.line == 200


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: node1: task 0: Exited with exit code 1",
        "mpirun detected that one or more processes exited with non-zero status, thus causing",
        "=   EXIT CODE: 1",
        "Exited with exit code 255.",
        "Exiting because a job execution failed. Look above for error message",
    ],
)
def test_a_launcher_s_report_of_a_failure_is_shown_where_the_log_has_no_other_error(
    tmp_path: Path, line: str
) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text(f"reading the input\n{line}\n")
    shipped = rules.shipped()
    scanned = scan.scan(files.of_paths([log]), shipped)
    explanation = engine.explain(JobContext(), scanned.hits, shipped, troubles=scanned.troubles)
    assert explanation.failed
    assert explanation.unexplained is not None
    assert explanation.unexplained.lines[-1] == line


def test_a_lone_network_error_behind_an_unknown_error_of_another_rank_is_no_cause() -> None:
    failed = JobContext(account=account("FAILED"))
    link, unknown = hit("link", 1, 20.0, rank=5, file="b.log"), trouble(400, at=5.0, rank=2)
    found = said(link, case=failed, troubles=(unknown,))
    assert ids(found) == []
    assert found.unexplained.rank == 2
    assert ids(said(link, case=failed, troubles=(replace(unknown, at=30.0),))) == ["link"]
    stuck = hit("stuck", 30, 20.0, rank=0)
    found = said(stuck, case=failed, troubles=(trouble(5, rank=2),))
    assert ids(found) == [], "one that says no time, before it in its file"
    assert found.unexplained.rank == 2
    assert ids(said(stuck, case=failed, troubles=(trouble(40, rank=2),))) == ["stuck"]


def test_sentences_with_names_that_are_not_known_go_but_for_the_first() -> None:
    (diagnosis,) = said(hit("oom", 1, 5.0, rank=3, groups={"size": "2 GiB"})).diagnoses
    assert diagnosis.cause == "Memory of rank 3 ran out. It wanted 2 GiB."
    assert diagnosis.fix.text == "halve it\nask for 2 GiB\ntype this"
    (diagnosis,) = said(hit("oom", 1, 5.0)).diagnoses
    assert diagnosis.cause == "Memory of rank (unknown rank) ran out."
    assert diagnosis.fix.text.endswith("type this")


def test_the_rank_is_taken_from_the_copy_of_the_line_in_the_ranks_own_file() -> None:
    shared = hit("oom", 1, 5.0)
    (diagnosis,) = said(
        shared, hit("oom", 1, 5.0, file="rank-3.log", rank=3, node="n2", count=0)
    ).diagnoses
    assert (diagnosis.rank, diagnosis.node) == (3, "n2")
    assert [each.file for each in diagnosis.evidence] == ["job.log"]


def test_where_the_first_line_names_no_process_a_later_one_of_the_same_start_does() -> None:
    first = hit("oom", 1, 5.0, shown="slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.")
    later = hit(
        "oom", 2, 5.0, rank=2, node="gpu012", shown="srun: error: gpu012: task 2: Out Of Memory"
    )
    (diagnosis,) = said(first, later).diagnoses
    assert (diagnosis.rank, diagnosis.node) == (2, "gpu012")
    (diagnosis,) = said(first, replace(later, part=1, parts=1)).diagnoses
    assert (diagnosis.rank, diagnosis.node) == (None, None), "of another start"
    (diagnosis,) = said(
        first, later, first_failed=(FirstFailed(rank=6, node="gpu013", at=4.0),)
    ).diagnoses
    assert (diagnosis.rank, diagnosis.node) == (6, "gpu013"), "torch saw which one was the first"


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED by 1000"])
def test_the_end_is_said_in_the_schedulers_words(state: str) -> None:
    found = said(
        case=JobContext(account=account(state, exit_code=1, elapsed_s=65, time_limit_s=3600))
    )
    assert found.ended == f"job 7: {state}, exit code 1:0, ran for 00:01:05 of 01:00:00"


def bare_log(folder: Path, *lines: str) -> Explanation:
    """Return what is said of a log of which nothing else is known."""
    path = folder / "slurm-7.out"
    path.write_text("".join(f"{line}\n" for line in lines))
    seen = scan.scan(files.of_paths([path]), rules.shipped())
    return engine.explain(
        JobContext(), seen.hits, rules.shipped(), troubles=seen.troubles, status=seen.status
    )


MODULE = 'Lmod has detected the following error: The following module(s) are unknown: "cuda/99"'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.12 GiB is free."
CANCELLED = "slurmstepd: error: *** JOB {job} ON n1 CANCELLED AT 2026-11-20T10:00:00{why} ***"
FRAMES = ("Traceback (most recent call last):", '  File "train.py", line 9, in <module>')


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ((), ["module-unknown"]),
        (("ModuleNotFoundError: No module named 'torch'",), ["module-unknown"]),
        ((*FRAMES, OOM), ["cuda-oom"]),
        ((*FRAMES, "ValueError: no rule knows this"), []),
        (("{'loss': 2.0, 'epoch': 0.1}", "{'loss': 1.9, 'epoch': 0.2}"), []),
        ((CANCELLED.format(job=7, why=" DUE TO TIME LIMIT"),), ["time-limit"]),
    ],
)
def test_a_message_of_the_set_up_is_the_cause_only_where_nothing_else_came_behind_it(
    behind: tuple[str, ...], expected: list[str], tmp_path: Path
) -> None:
    found = bare_log(tmp_path, MODULE, *behind)
    assert [each.id for each in found.diagnoses] == expected
    assert (found.unexplained is not None) == any("no rule" in line for line in behind)


def test_of_jobs_in_one_file_the_last_one_is_explained(tmp_path: Path) -> None:
    first, last = CANCELLED.format(job=7, why=""), CANCELLED.format(job=8, why=" DUE TO TIME LIMIT")
    found = bare_log(tmp_path, *FRAMES, OOM, first, "loading", last)
    assert [(each.id, each.evidence[0].line) for each in found.diagnoses] == [("time-limit", 6)]


def test_two_causes_of_different_areas_that_claim_the_end_are_both_only_likely() -> None:
    found = said(hit("oom", 10), hit("link", 90))
    assert [(each.id, each.certainty) for each in found.diagnoses] == [
        ("oom", "likely"),
        ("link", "likely"),
    ]


@pytest.mark.parametrize("line", [MODULE, OOM, CANCELLED.format(job=7, why=" DUE TO TIME LIMIT")])
def test_on_a_log_of_another_no_fix_needs_a_project(line: str, tmp_path: Path) -> None:
    found = bare_log(tmp_path, line)
    assert found.diagnoses
    assert not any("hpctrain" in each.fix.text for each in found.diagnoses)
