"""A failure is found however its log is written and read: with labels, colours, CRLF, Latin-1,
beside healthy ranks, while it grows.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from hpctrain.explain.model import Explanation, JobContext, ScanResult
from hpctrain.explain.rules import SearchTable
from hpctrain.logs import read, scan
from hpctrain.logs.files import LogFile
from tests.explain import corpus

#: One case of each rule: what is tried here is the reading, and not the rule.
CASES = list({kept.rule: kept for kept in corpus.cases() if kept.kind == "fires"}.values())
HEALTHY = (
    b"2026-03-21 02:00:00 INFO step\n{'loss': 1.0, 'grad_norm': 0.2, 'learning_rate': 1e-05,"
    b" 'epoch': 0.1}\n" * 3
)


def each_line(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda content: b"".join(change(line) for line in content.splitlines(keepends=True))


WAYS: dict[str, Callable[[bytes], bytes]] = {
    "srun --label": each_line(lambda line: b"3: " + line),
    "torchrun": each_line(lambda line: b"[default3]:" + line),
    "indented": each_line(lambda line: b"    " + line),
    "quoted": each_line(lambda line: b"> " + line),
    "journal": each_line(lambda line: b"Aug 17 18:42:18 n1 train.sh[8052]: " + line),
    "spaces behind": each_line(lambda line: line.rstrip(b"\r\n") + b"   \n"),
    "colours": each_line(lambda line: b"\x1b[31m" + line.rstrip(b"\n") + b"\x1b[0m\n"),
    "CRLF": each_line(lambda line: line.rstrip(b"\r\n") + b"\r\n"),
    "Latin-1": lambda content: b"d\xe9but \xfc\xdf\n" + content + b"\xe9t\xe9\n",
    "NULs": lambda content: content + b"\0" * 5000,
}


def ids(kept: corpus.Kept, files: list[LogFile]) -> list[str]:
    return [each.id for each in corpus.explain(kept, files).diagnoses]


@cache
def as_it_is(name: str) -> list[str]:
    """Return what the engine says of a case as it lies in the corpus, which each way of writing it
    is compared with.
    """
    kept = next(kept for kept in CASES if kept.name == name)
    return ids(kept, list(corpus.log_files(kept.logs)))


def written(kept: corpus.Kept, folder: Path, change: Callable[[bytes], bytes]) -> list[LogFile]:
    paths = []
    for log in kept.logs:
        path = folder / log.relative_to(kept.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(log.read_bytes() if log.suffix == ".gz" else change(log.read_bytes()))
        paths.append(path)
    return list(corpus.log_files(paths))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_it_is_found_however_it_is_written(way: str, tmp_path: Path) -> None:
    wrong = {}
    for number, kept in enumerate(CASES):
        expected = as_it_is(kept.name)
        got = ids(kept, written(kept, tmp_path / str(number), WAYS[way]))
        if got != expected:
            wrong[kept.name] = (expected, got)
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.extended
def test_it_is_found_among_ranks_that_are_well(tmp_path: Path) -> None:
    wrong = {}
    stages = {each.id: each.stage for each in corpus.rules()}
    for number, kept in enumerate(CASES):
        # A job of which a rank trains was submitted, and has started.
        if not kept.logs or kept.said.get("samples") or stages[kept.rule] in ("submit", "pending"):
            continue
        expected = as_it_is(kept.name)
        files = written(kept, tmp_path / str(number), lambda content: content)
        for rank in range(40, 44):
            path = tmp_path / str(number) / f"rank-{rank}.log"
            path.write_bytes(HEALTHY)
            files.append(LogFile(path=path, name=path.name, rank=rank, order=100 + rank))
        if (got := ids(kept, files)) != expected and expected:
            wrong[kept.name] = (expected, got)
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.extended
def test_it_is_found_in_pieces_of_any_size() -> None:
    table = SearchTable(corpus.rules())
    finder = scan.finder(table)
    wrong = {}
    for kept in CASES:
        files = corpus.log_files(kept.logs)
        if any(file.path.suffix == ".gz" for file in files):
            continue
        expected = as_it_is(kept.name)
        findings = []
        for file in files:
            one = scan.FileScan(file, table, finder, year=2026)
            for piece in read.pieces(file.path, block=97):
                one.feed(piece)
            findings.append(one.finish())
        silent = set[str]().union(*(each.unless for each in findings))
        scanned = ScanResult(
            hits=tuple(hit for each in findings for hit in each.hits if hit.rule not in silent),
            troubles=tuple(trouble.close() for each in findings for trouble in each.troubles),
            first_failed=tuple(first for each in findings for first in each.first_failed),
            status=next(
                (each.status for each in reversed(findings) if each.status is not None), None
            ),
        )
        got = [each.id for each in corpus.judge(corpus.case_of(kept, files), scanned).diagnoses]
        if got != expected:
            wrong[kept.name] = (expected, got)
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["hpctrain-said", "hpctrain-preflight", "hpctrain-resume"])
def test_the_fix_that_the_training_prints_is_the_fix(rule: str) -> None:
    kept = next(each for each in CASES if each.kind == "fires" and each.rule == rule)
    [diagnosis] = corpus.explain(kept).diagnoses
    assert diagnosis.id == rule
    assert f"\nfix: {diagnosis.fix.text}\n".encode() in b"".join(text for _, text in kept.contents)


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("last", "found"),
    [
        (
            "Training finished at Sun Nov 22 09:00:00 UTC 2026",
            ["cuda-oom"],
        ),  # of the script, which says so in any case
        ("2026-11-22 09:00:00 INFO training finished with errors", ["cuda-oom"]),
        ("2026-11-22 09:00:00 INFO training finished", []),
        ("{'train_runtime': 12.1, 'train_loss': 1.45, 'epoch': 1.0}", []),
        ("`Trainer.fit` stopped: `max_epochs=2` reached.", []),
    ],
)
def test_a_training_that_says_it_is_complete_got_over_what_stands_before(
    last: str, found: list[str], tmp_path: Path
) -> None:
    """A library, or a logger: not a script that goes on behind whatever failed."""
    log = tmp_path / "slurm-4711.out"
    log.write_text(f"batch size 64\n{OOM}\n{last}\n")
    files = corpus.log_files([log])
    said = corpus.judge(corpus.JobContext(), scan.scan(files, corpus.rules()))
    assert ([each.id for each in said.diagnoses], said.failed) == (found, bool(found))
    log.write_text(f"{last}\n{OOM}\n")
    said = corpus.judge(corpus.JobContext(), scan.scan(files, corpus.rules()))
    assert [each.id for each in said.diagnoses] == ["cuda-oom"], (
        "what comes behind is another matter"
    )


def test_a_line_that_sounds_like_a_failure_is_none_where_the_training_goes_on(
    tmp_path: Path,
) -> None:
    """Words of users, shells and libraries; each in a log of its own, with a few steps behind it."""
    log, wrong = tmp_path / "slurm-4711.out", {}
    for line in corpus.HEALTHY_LINES.read_text().splitlines():
        log.write_text(
            f"begin\n{line}\n"
            + "".join(f"step {step} loss {3 - step / 10:.1f}\n" for step in range(1, 6))
        )
        files = corpus.log_files([log])
        said = corpus.judge(corpus.JobContext(), scan.scan(files, corpus.rules()))
        if said.diagnoses or said.unexplained or said.failed:
            wrong[line] = [each.id for each in said.diagnoses]
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("cat: a; rm -rf b: No such file or directory", "ls -ld 'a; rm -rf b'"),
        ("cp: cannot stat '$(reboot)': No such file or directory", "ls -ld '$(reboot)'"),
        ("FATAL: mount source /a;b doesn't exist", "ls -ld '/a;b'"),
    ],
)
def test_a_path_from_a_log_is_one_word_of_a_command(tmp_path: Path, line: str, typed: str) -> None:
    log = tmp_path / "slurm-4711.out"
    log.write_text(f"Job 4711 on n1\n{line}\n")
    found = scan.scan(corpus.log_files([log]), corpus.rules())
    (diagnosis,) = corpus.judge(corpus.JobContext(), found).diagnoses
    assert diagnosis.fix.text.splitlines()[-1].endswith(typed)


def explained_log(tmp_path: Path, log: str) -> Explanation:
    path = tmp_path / "job.log"
    path.write_text(log)
    found = corpus.log_files([path])
    return corpus.judge(JobContext(), scan.scan(found, corpus.rules()))


DEEP = """Traceback (most recent call last):
  File "/home/u/train.py", line 20, in <module>
    main()
  File "/home/u/lib/model.py", line 7, in main
    y = library.run(x)
{library}{error}
"""
LIBRARY = '  File "/env/lib/python3.11/site-packages/library/core.py", line 5, in run\n    go()\n'


def test_a_hint_names_the_deepest_frame_outside_of_libraries(tmp_path: Path) -> None:
    error = "KeyError: 'emotion'"
    said = explained_log(tmp_path, DEEP.format(library=LIBRARY * 40, error=error))
    (hint,) = said.diagnoses
    assert (hint.id, hint.certainty) == ("key-missing", "likely")
    assert "/home/u/lib/model.py:7" in hint.cause
    assert said.unexplained is not None
    assert said.unexplained.frame == "/home/u/lib/model.py:7, in main"


@pytest.mark.parametrize(
    ("line", "is_quoted"),
    [
        ("y = library.run(x)", True),
        pytest.param("# run the model", False, id="the file was edited while the job ran"),
    ],
)
def test_a_hint_quotes_the_line_of_code_but_no_comment(
    line: str, is_quoted: bool, tmp_path: Path
) -> None:
    log = DEEP.format(library="", error="KeyError: 'emotion'")
    said = explained_log(tmp_path, log.replace("y = library.run(x)", line))
    assert [(each.id, line in each.cause) for each in said.diagnoses] == [
        ("key-missing", is_quoted)
    ]
    assert said.unexplained is not None
    assert said.unexplained.frame == "/home/u/lib/model.py:7, in main"


LAUNCHER = """Traceback (most recent call last):
  File "/env/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/env/lib/python3.11/site-packages/accelerate/commands/launch.py", line 637, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/env/bin/python', 'train.py']' returned non-zero exit status 1.
"""


def test_the_error_of_the_program_comes_before_its_launchers(tmp_path: Path) -> None:
    said = explained_log(tmp_path, f"ERROR: no section [train] in a.ini\nsee --help\n{LAUNCHER}")
    assert said.unexplained is not None
    assert "ERROR: no section [train] in a.ini" in said.unexplained.lines


def test_without_an_error_of_the_program_the_lines_before_its_launchers_are_shown(
    tmp_path: Path,
) -> None:
    said = explained_log(tmp_path, f"reading a.ini\n{LAUNCHER}")
    assert [each.id for each in said.diagnoses] == ["command-failed"]
    assert said.unexplained is not None
    assert said.unexplained.lines[0] == "reading a.ini"
    assert not any("File" in line for line in said.unexplained.lines)
