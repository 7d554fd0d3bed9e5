"""The search of the logs: complete, whatever is in a file, while it grows, and in memory that is
bounded.
"""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.explain import rules
from hpctrain.explain.model import DEADLY, Match, ScanResult
from hpctrain.explain.rules import SearchTable
from hpctrain.logs import files as log_files
from hpctrain.logs import read, scan
from hpctrain.logs.files import LogFile

RULES = rules.load(
    {
        "a.yaml": (
            r"""
- &a {id: oom, stage: run, area: memory, kind: cause, certainty: certain, cause: c, remedy: r, source: s,
      lines: ['CUDA out of memory\. Tried to allocate (?P<tried>[\d.]+ \w+)'], literals: [cuda out of memory]}
- {id: killed, stage: end, area: end, kind: consequence, certainty: likely, cause: c, remedy: r, source: s,
   lines: ['^srun: error: (?P<node>\S+): task (?P<rank>\d+): Killed$'], literals: [': killed']}
- {id: near, stage: run, area: data, kind: cause, certainty: likely, cause: c, remedy: r, source: s, lines: ['sample is too short'],
   literals: [sample is too short], near: ['worker (?:three|four) died']}
- {id: quiet, stage: run, area: data, kind: cause, certainty: likely, cause: c, remedy: r, source: s, lines: ['disk is nearly full'],
   literals: [disk is nearly full], unless_literals: [training went well], unless: ['training went well']}
- {id: not-cpu, stage: run, area: data, kind: cause, certainty: likely, cause: c, remedy: r, source: s, lines: ['no device found'],
   literals: [no device found], but_not: ['no device found: cpu']}
"""
        )
    }
)
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def log(folder: Path, content: bytes, name: str = "job.log") -> LogFile:
    path = folder / name
    path.write_bytes(content)
    return log_files.of_paths([path])[0]


def look(folder: Path, content: bytes, name: str = "job.log") -> ScanResult:
    return scan.scan([log(folder, content, name)], RULES)


def lines_of(hits: Sequence[Match]) -> list[tuple[str, int | None]]:
    return sorted((hit.rule, hit.evidence.line) for hit in hits if hit.count)


def test_a_line_is_found_with_its_number_its_groups_and_who_wrote_it(tmp_path: Path) -> None:
    (hit,) = look(tmp_path, b"2026-03-21 02:07:00 INFO begin\n\n[rank3]: " + OOM).hits
    assert (hit.rule, hit.evidence.line, hit.rank, dict(hit.groups)) == (
        "oom",
        3,
        3,
        {"tried": "2.00 GiB"},
    )
    assert hit.at is not None, "the time of the line before it"


@pytest.mark.parametrize(
    "written",
    [
        (
            b"\x1b[31mtorch.OutOfMemoryError\x1b[0m: CUDA out of \x1b[1mmemory\x1b[0m. Tried to"
            b" allocate 2.00 GiB.\n"
        ),
        b"\0\0torch.OutOfMemoryError: CUDA out\0 of memory. Tried to allocate 2.00 GiB.\n",
        OOM.replace(b"\n", b"\r\n"),
        b" 10%|#    | 1/10 [00:01<00:09,  1.0it/s]\r 20%|##   | 2/10 [00:02<00:08,  1.0it/s]" + OOM,
        b"caf\xe9 d\xe9j\xe0 " + OOM,
        b"x" * 10_000_000 + b" " + OOM,
        OOM[:-1],
        OOM.lower().replace(b"cuda", b"CUDA").replace(b"tried", b"Tried"),
    ],
    ids=["colours", "NULs", "CRLF", "progress bar", "Latin-1", "10 MB", "no end", "case"],
)
def test_it_is_found_however_it_is_written(written: bytes, tmp_path: Path) -> None:
    assert lines_of(look(tmp_path, b"begin\n" + written).hits) == [("oom", 2)]


def test_what_stands_near_by_counts_within_40_lines_and_over_the_ends_of_pieces(
    tmp_path: Path,
) -> None:
    for apart, expected in ((39, [("near", 1)]), (41, [])):
        content = b"sample is too short\n" + b"step\n" * (apart - 1) + b"worker three died\n"
        assert lines_of(look(tmp_path, content).hits) == expected
        assert lines_of(
            look(
                tmp_path, b"worker four died\n" + b"step\n" * (apart - 1) + b"sample is too short\n"
            ).hits
        ) == [("near", apart + 1) for _ in expected]
        table = SearchTable(RULES)
        one = scan.FileScan(LogFile(path=tmp_path, name="x"), table, scan.finder(table), year=2026)
        for line in content.splitlines(keepends=True)[:3]:
            one.feed(line)
        one.feed(b"".join(content.splitlines(keepends=True)[3:]))
        assert (len(one.finish().hits) == 1) == (apart == 39)


def test_one_line_anywhere_silences_a_rule_in_all_files(tmp_path: Path) -> None:
    files = [log(tmp_path, b"disk is nearly full\n", "a.log"), log(tmp_path, b"x\n", "b.log")]
    assert len(scan.scan(files, RULES).hits) == 1
    files[1].path.write_bytes(b"training went well\n")
    assert scan.scan(files, RULES).hits == ()


def test_a_line_that_must_not_fire_does_not(tmp_path: Path) -> None:
    assert lines_of(look(tmp_path, b"no device found: cpu\nno device found: gpu\n").hits) == [
        ("not-cpu", 2)
    ]


def test_all_words_are_found_overlapping_ones_too() -> None:
    table = SearchTable(RULES)
    low = (b"begin " + OOM + b"srun: error: n1: task 3: killed\n").lower() * 3
    by_hand = sorted(
        (index, at, at + len(word))
        for index, word in enumerate(table.texts)
        for at in range(len(low))
        if low.startswith(word, at)
    )
    found = scan.finder(table)(low)
    assert sorted(found) == by_hand
    assert [end for *_, end in found] == sorted(end for *_, end in found)


def test_two_regexes_of_a_rule_in_one_line_are_one_hit_with_the_groups_of_both(
    tmp_path: Path,
) -> None:
    given = rules.load(
        {
            "a.yaml": (
                "- {id: a, stage: run, area: data, kind: cause, certainty: likely, cause: c,"
                " remedy: r, source: s, lines: ['alpha (?P<one>[0-9]+)', '(?P<two>[0-9]+) omega'],"
                " literals: [alpha, omega]}"
            )
        }
    )
    (hit,) = scan.scan([log(tmp_path, b"alpha 1 and 2 omega\n")], given).hits
    assert (hit.count, dict(hit.groups)) == (1, {"one": "1", "two": "2"})


@pytest.mark.slow
def test_memory_and_time_are_bounded_however_often_an_error_repeats(tmp_path: Path) -> None:
    file = log(
        tmp_path, b"".join(b"2026-03-21 02:07:08,%03d " % (n % 1000) + OOM for n in range(60_000))
    )
    tracemalloc.start()
    hits = scan.scan([file], RULES).hits
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(hits) == 2
    assert hits[0].evidence.line == 1
    assert 50_000 < hits[0].count < 70_000
    assert peak < 40e6


def test_a_file_that_grows_shrinks_or_is_gone_is_no_error(tmp_path: Path) -> None:
    file = log(tmp_path, OOM * 3)
    table = SearchTable(RULES)
    one = scan.FileScan(file, table, scan.finder(table), year=2026)
    for piece in read.pieces(file.path, block=64):
        one.feed(piece)
        with file.path.open("ab") as stream:
            stream.write(b"more\n" * 100)
    assert one.finish().hits[0].evidence.line == 1
    file.path.unlink()
    assert scan.scan([file], RULES) == ScanResult()


def test_what_the_training_did_behind_an_error_is_counted(tmp_path: Path) -> None:
    steps = b"{'loss': 1.0, 'grad_norm': 0.1}\n"
    assert look(tmp_path, OOM + steps * 25).hits[0].steps_after == 25
    assert look(tmp_path, steps * 25 + OOM + steps * 3).hits[0].steps_after == 3


@pytest.mark.parametrize(
    "line",
    [
        (
            " [2026-03-21 02:07:00] iteration {n:8}/     100 | consumed samples:  320 | lm loss:"
            " 9.571E+00 | loss scale: 1.0 |"
        ),
        " samples/sec: 5.4 | iteration {n:8}/  320000 | elapsed time per iteration (ms): 11.1",
        "step {n}/30 loss 0.3",
        "step {n} | loss 2.1",
        "[rank0]: step {n} loss=2.1",
        "iter {n}: loss 2.3456, time 45.00ms",
        "Epoch: [0]  [{n}/100]  eta: 0:00:09  lr: 0.1  loss: 2.3012 (2.4010)  time: 0.1",
        "Epoch: [0][{n}/100]\tLoss 2.3e+00 (2.4e+00)",
        "Step {n} | loss:1.95 lr:2e-05 tokens_per_second_per_gpu:401",
        (
            "[titan] 2026-03-21 02:07:00,123 - root - INFO - \x1b[31mstep: {n:2}  \x1b[32mloss: "
            " 8.1309  \x1b[33mgrad_norm: 1.5\x1b[39m"
        ),
        "Epoch 0:  10%|#    | {n}/50 [00:01<00:09,  4.90it/s, v_num=0, train_loss=2.10]",
        "{{'loss': 2.1, 'step': {n}}}",
        "Epoch 0/9 ---- {n}/50 0:00:01 4.90it/s v_num: 0 train_loss: 2.1",
        '{{"epoch": 1, "train_loss": "2.3", "step": {n}}}',
        "Train loss/train/total: 2.1",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r"])
def test_a_line_of_progress_counts_once_whoever_writes_it(
    line: str, end: str, tmp_path: Path
) -> None:
    steps = "".join(line.format(n=n) + end for n in range(25)).encode()
    assert look(tmp_path, steps + b"\n" + OOM + steps).hits[0].steps_after == 25


@pytest.mark.parametrize(
    "line",
    [
        "router_aux_loss_coef: 0.001",
        "Attempted loss scale: 65536.0, reducing",
        "loss: nan",
        "step 7 loss 2.1",
        "loss_fn: 1.5",
    ],
)
def test_what_is_no_step_or_the_same_one_is_not_counted(line: str, tmp_path: Path) -> None:
    assert look(tmp_path, OOM + (line.encode() + b"\n") * 25).hits[0].steps_after < 2


def test_of_ranks_that_all_log_a_step_one_is_counted(tmp_path: Path) -> None:
    step = b"".join(b"[rank%d]: loss: 2.1\n" % rank for rank in range(64))
    assert look(tmp_path, OOM + step * 2).hits[0].steps_after == 2


def test_a_requeued_job_that_goes_on_in_the_same_file_has_parts(tmp_path: Path) -> None:
    steps = b"{'loss': 1.0}\n" * 3
    again = (
        OOM
        + b"hpctrain: job 7 is requeued, and resumes from its newest checkpoint\n"
        + steps
        + b"srun: error: n1: task 2: Killed\n"
    )
    hits = look(tmp_path, again).hits
    assert {hit.rule: (hit.part, hit.parts) for hit in hits} == {"oom": (0, 1), "killed": (1, 1)}
    assert look(tmp_path, OOM + b"hpctrain: job 7 ended with exit code 3\n").status == 3


@pytest.mark.parametrize(
    "again",
    [
        b"hpctrain: attempt 7.1 of the run r begins on gpu014\n",
        b"Resuming from /scratch/run/checkpoint-40\n",
        b"0: 2026-03-21 02:07:00 INFO Resuming training from checkpoint-40\n",
        b"rendezvous: gpu014:29500\n",
    ],
)
def test_the_start_behind_a_node_that_failed_is_another_part(again: bytes, tmp_path: Path) -> None:
    failed = b"srun: error: Node failure on gpu013\n"
    hits = look(tmp_path, OOM + failed + again + b"srun: error: n1: task 2: Killed\n").hits
    assert {hit.rule: (hit.part, hit.parts) for hit in hits} == {"oom": (0, 1), "killed": (1, 1)}
    hits = look(tmp_path, OOM + failed + b"srun: error: n1: task 2: Killed\n").hits
    assert {hit.part for hit in hits} == {0}, "what follows from the failure is of the same start"
    (hit,) = look(tmp_path, OOM + failed + b"{'loss': 1.0}\n").hits
    assert hit.parts == 0, "another node's lines may come late"
    hits = look(tmp_path, again + OOM + b"srun: error: n1: task 2: Killed\n").hits
    assert {hit.part for hit in hits} == {0}, "a first start may resume too"


@pytest.mark.parametrize(
    ("heads", "parts"),
    [
        pytest.param(1, [0, 1], id="a run appended to another"),
        pytest.param(4, [0, 0], id="each rank writes the line"),
    ],
)
def test_the_first_line_of_a_file_behind_an_error_begins_another_run(
    heads: int, parts: list[int], tmp_path: Path
) -> None:
    head = b"Loaded module: python/3.11\n"
    hits = look(tmp_path, head * heads + OOM + head + b"starting\n" + OOM).hits
    assert sorted(hit.part for hit in hits) == parts


@pytest.mark.parametrize(
    ("steps", "parts"),
    [
        pytest.param(5, 1, id="a run that goes well"),
        pytest.param(0, 0, id="a closing banner"),
    ],
)
def test_steps_behind_a_repeated_first_line_are_of_another_run(
    steps: int, parts: int, tmp_path: Path
) -> None:
    head = b"Loaded module: python/3.11\n"
    log = b"".join(b"{'loss': 1.5, 'step': %d}\n" % step for step in range(steps))
    (hit,) = look(tmp_path, head + OOM + head + log).hits
    assert (hit.part, hit.parts) == (0, parts)


def test_a_traceback_that_ranks_wrote_into_each_others_is_shown_once(tmp_path: Path) -> None:
    frame = b'  File "fit.py", line 3, in <module>\n'
    code, error = b"    main()\n", b"ValueError: no such split\n"
    log = b"Traceback (most recent call last):\n" + frame * 2 + code * 2 + error
    (trouble,) = look(tmp_path, log).troubles
    assert "\n".join(trouble.lines).encode() == log.replace(frame * 2 + code * 2, frame + code)[:-1]


def test_the_last_traceback_is_kept_however_many_came_before_it(tmp_path: Path) -> None:
    frames = b'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\n'
    runs = (frames + b"ValueError: run %d\n" % number for number in range(9))
    found = look(tmp_path, (b"a line\n" * 80).join(runs) + b"Finished.\n" * 9).troubles
    assert [each.error for each in found][-2:] == ["ValueError: run 3", "ValueError: run 8"]


def test_a_traceback_is_cut_out_whole_of_lines_of_other_ranks(tmp_path: Path) -> None:
    content = (
        b'[rank1]: Traceback (most recent call last):\n[rank0]: step 4\n[rank1]:   File "a.py",'
        b" line 1, in f\n[rank1]:     g()\n[rank0]: step 5\n[rank1]: ZeroDivisionError: by"
        b" zero\n[rank0]: step 6\n[rank1]: bye\n"
    )
    trouble, *_ = look(tmp_path, content).troubles
    assert trouble.traceback
    assert trouble.rank == 1
    assert trouble.lines == (
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "    g()",
        "ZeroDivisionError: by zero",
    )
    assert trouble.error == "ZeroDivisionError: by zero"


def test_a_traceback_that_is_cut_by_the_end_of_a_piece_is_whole(tmp_path: Path) -> None:
    table = SearchTable(RULES)
    one = scan.FileScan(LogFile(path=tmp_path, name="x"), table, scan.finder(table), year=2026)
    for piece in (
        b"Traceback (most recent call last):\n",
        b'  File "a.py", line 1\n',
        b"KeyError: 'a'\n",
    ):
        one.feed(piece)
    assert one.finish().troubles[0].close().lines[-1] == "KeyError: 'a'"


@pytest.mark.parametrize("behind", ["second line\nthird line", "  an indented one"])
def test_a_message_of_several_lines_is_shown_and_what_others_write_behind_it_is_not(
    behind: str, tmp_path: Path
) -> None:
    head = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n   '
        " g()\nmylib.Bad: first line\n"
    )
    trouble, *_ = look(
        tmp_path, f"{head}{behind}\nsrun: error: n1: task 0: Exited with exit code 1\n".encode()
    ).troubles
    assert trouble.lines[-1] == behind.splitlines()[-1]
    assert trouble.error == "mylib.Bad: first line"


FRAMES = (
    'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    g()\nmylib.Bad:'
    " no\n"
)


@pytest.mark.parametrize("front", ["(Worker pid=3311, ip=10.0.0.3) ", "gpu012: "])
def test_a_traceback_is_found_behind_labels(front: str, tmp_path: Path) -> None:
    lines = [front + line for line in FRAMES.splitlines()]
    lines.insert(2, "2026-11-20 21:10:00 INFO another wrote this")
    trouble, *_ = look(tmp_path, "\n".join(lines).encode()).troubles
    assert trouble.traceback
    assert trouble.lines == tuple(FRAMES.splitlines())


def test_a_traceback_that_a_logger_wrote_was_caught(tmp_path: Path) -> None:
    trouble, *_ = look(tmp_path, f"2026-11-20 21:10:00 ERROR {FRAMES}".encode()).troubles
    assert not trouble.traceback


def test_errors_without_a_step_between_them_give_their_places_once_the_training_goes_on(
    tmp_path: Path,
) -> None:
    soft = FRAMES.replace("<module>", "g") + "one more line\n" * 60
    steps = "".join(f"{{'loss': {n}.5}}\n" for n in range(25))
    found = look(
        tmp_path, (soft * 4 + steps + FRAMES.replace("no", "the last") + "held back\n").encode()
    ).troubles
    assert (found[-1].error, found[-1].steps_after, len(found)) == ("mylib.Bad: the last", 0, 4)
    assert 0 < found[-1].bytes_after < 200 < found[0].bytes_after


def test_what_a_script_counts_does_not_keep_the_steps_of_a_rank_from_being_counted(
    tmp_path: Path,
) -> None:
    steps = "".join(f"0: step {n} loss: 2.{n}\n1: step {n} loss: 2.{n}\n" for n in range(1, 10))
    assert look(tmp_path, OOM + f"fold 1 of 3\n{steps}".encode()).hits[0].steps_after == 9


def test_the_last_error_is_kept_however_many_were_got_over_before_it(tmp_path: Path) -> None:
    soft = FRAMES.replace("<module>", "g") + "".join(f"{{'loss': {n}.5}}\n" for n in range(4))
    found = look(tmp_path, (soft * 20 + FRAMES.replace("no", "the last")).encode()).troubles
    assert found[-1].error == "mylib.Bad: the last"
    assert (found[0].steps_after >= 3, found[-1].steps_after) == (True, 0)
    assert len(found) == 4


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            "Error in eval(a, b) : object 'y' not found\nCalls: lm -> eval\nExecution halted\n",
            "object 'y' not found",
        ),
        (
            (
                "ERROR: LoadError: UndefVarError: `foo` not defined\nStacktrace:\n [1] top-level"
                " scope\n"
            ),
            "UndefVarError",
        ),
        (
            "At line 31 of file solver.f90\nFortran runtime error: End of file\n",
            "Fortran runtime error: End of file",
        ),
        ("forrtl: severe (24): end-of-file during read, unit 10\n", "forrtl: severe"),
        (
            (
                'Exception in thread "main" java.lang.IllegalStateException: no lease\n\tat'
                " com.x.Main.run(Main.java:31)\n"
            ),
            "no lease",
        ),
        (
            "thread 'main' panicked at src/main.rs:4:5:\nindex out of bounds: the len is 3\n",
            "index out of bounds",
        ),
        (
            (
                '  + Exception Group Traceback (most recent call last):\n  |   File "a.py", line 3,'
                " in f\n  | ExceptionGroup: many\n"
            ),
            "ExceptionGroup",
        ),
    ],
)
def test_an_error_that_ends_a_program_in_another_language_is_shown(
    content: str, line: str, tmp_path: Path
) -> None:
    trouble, *_ = look(tmp_path, f"step 1\n{content}".encode()).troubles
    assert trouble.traceback or DEADLY.search(trouble.error)
    assert any(line in each for each in trouble.lines)


def test_a_long_traceback_is_cut_in_the_middle(tmp_path: Path) -> None:
    frames = b"".join(b'  File "a.py", line %d, in f\n    g()\n' % n for n in range(100))
    trouble, *_ = look(
        tmp_path, b"Traceback (most recent call last):\n" + frames + b"RecursionError: too deep\n"
    ).troubles
    assert len(trouble.lines) < 45
    assert trouble.lines[0].startswith("Traceback")
    assert trouble.lines[-1] == "RecursionError: too deep"
    assert any("lines left out" in line for line in trouble.lines)


def test_who_failed_first_is_read_from_the_summary_of_torchrun(tmp_path: Path) -> None:
    content = b"""
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-21_02:07:08
  host      : gpu03
  rank      : 13 (local_rank: 5)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
"""
    (first,) = look(tmp_path, content).first_failed
    assert (first.rank, first.node, first.exit_code) == (13, "gpu03", -9)
    assert first.at is not None


def test_what_a_ranks_own_file_repeats_is_counted_once(tmp_path: Path) -> None:
    shared = log(tmp_path, OOM)
    copy = replace(log(tmp_path, OOM, "rank-3.log"), copy=True)
    hits = scan.scan([shared, copy], RULES).hits
    assert [(hit.count, hit.rank) for hit in hits] == [(1, None), (0, 3)]
    assert scan.scan([copy], RULES).hits[0].count == 1


def test_a_traceback_behind_a_line_with_an_error_word_is_an_error_of_its_own(
    tmp_path: Path,
) -> None:
    first, second = look(tmp_path, f"lib: error: no triton\n{FRAMES}step 1\n".encode()).troubles
    assert (first.traceback, second.traceback, second.line) == (False, True, 2)


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("boot {} of 100 done", 9),
        ("2026-11-07 09:05:00 INFO prep: {}/812 shards", 9),
        ("step {}, remaining wall clock time: 41 s", 9),
        ("attempt {} of 10 of the download", 0),
        ("rank {} of 10 is here", 0),
        ("Loading checkpoint shards: {}/12 [00:03<00:00,  1.2it/s]", 0),
        ("{{'loss': 0.0, 'learning_rate': 1e-{}}}", 0),
        ("exit of task {} of 10", 0),
        ("n7:301:377 [0] NCCL INFO Channel 0{}/16 :    0   1   2   3", 0),
        ("wandb:          train/loss {}.25", 0),
    ],
)
def test_counts_that_rise_are_steps_and_tries_processes_and_loading_are_none(
    line: str, steps: int, tmp_path: Path
) -> None:
    text = OOM + "".join(line.format(n) + "\n" for n in range(1, 11)).encode()
    assert look(tmp_path, text).hits[0].steps_after == steps


@pytest.mark.parametrize(
    ("line", "done"),
    [
        ("============ 11 passed, 1 xfailed, 4 warnings in 33.10s ============", "complete"),
        ("Total wall time: 0:00:01", "complete"),
        ("============ 1 failed, 11 passed in 33.10s ============", None),
        ("  train_runtime            = 0:00:41.11", "complete"),
        ("exit code: 0", "zero"),
        ("train.py finished with exit status 0", "zero"),
        ("exit code: 1", None),
        ("exit code 0x1", None),
    ],
)
def test_what_closes_a_program_is_known(line: str, done: str | None, tmp_path: Path) -> None:
    assert look(tmp_path, OOM + line.encode() + b"\n").hits[0].done_after == done
    assert look(tmp_path, line.encode() + b"\n" + OOM).hits[0].done_after is None


@pytest.mark.parametrize(
    "end",
    [
        "mpirun detected that one or more processes exited with non-zero status, thus causing",
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "[file mdci_state.cpp, line 1165, Process 1]: . . . aborting the run",
        "2026-01-05 18:49:57,550 prepare: tool returned exit code: 127",
        "/bin/sh: 1: srun: not found",
        "node-1: Unable to allocate shared memory for intra-node messaging.",
        "solver: could not open wave.in: Permission denied",
        "2026-01-05 18:49:57.1 | ERROR    | prep:main:70 - Genome hg39 is unknown",
    ],
)
def test_the_error_at_the_end_of_a_log_is_found_behind_others(tmp_path: Path, end: str) -> None:
    noise = "".join(f"error: probe {number} is skipped\n{'x' * 9999}\n" for number in range(9))
    found = look(tmp_path, f"{noise}computing\n{end}\nCleaning up.\n".encode()).troubles
    (last,) = [each for each in found if each.ending]
    assert (end.rpartition(": ")[2] in last.error, last.line) == (True, 20)


@pytest.mark.parametrize(
    "end",
    [
        "ERROR cache: could not read entry\nAll 20 files written to out/",
        "error: no such option, the default is used\nJob finished successfully.",
        "WARNING: could not load the plugin",
        "rm: cannot remove 'tmp': No such file or directory",
        "Error: 0.01",
        "converged, exit code 0",
        "solver: cannot refine\n" + "".join(f"{{'loss': 0.{n}}}\n" for n in range(5)),
    ],
)
def test_a_log_that_ends_well_has_no_error_at_its_end(tmp_path: Path, end: str) -> None:
    assert [
        each for each in look(tmp_path, f"computing\n{end}\n".encode()).troubles if each.ending
    ] == []
