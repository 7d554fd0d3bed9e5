"""Lines that repeat: a part of them is looked at, and the failure behind or among them is found."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.explain.model import Match, ScanResult
from hpctrain.logs import read, scan
from hpctrain.logs.files import LogFile
from tests.explain import corpus
from tests.logs import contents

#: Of several pieces, of which each holds the same words thousands of times.
SIZE, CHUNK = 1_500_000, 64 << 10
#: So full of errors of their own that there is no room for the last one: a diagnosis names it all
#: the same.
ERRORS = (
    "retries",
    "bad-samples",
    "words",
    "tracebacks",
)


def log(folder: Path, content: bytes, rank: int | None = None) -> LogFile:
    name = "job.log" if rank is None else f"rank-{rank}.log"
    path = folder / name
    path.write_bytes(content)
    return LogFile(path=path, name=name, rank=rank, order=rank or 0)


def look(files: list[LogFile]) -> ScanResult:
    return scan.scan(files, corpus.rules())


def places(hits: tuple[Match, ...]) -> set[tuple[str, int | None, int | None, str | None]]:
    return {(hit.rule, hit.evidence.line, hit.rank, hit.node) for hit in hits}


def counts(hits: tuple[Match, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for hit in hits:
        found[hit.rule] = found.get(hit.rule, 0) + hit.count
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", contents.KINDS)
def test_the_failure_behind_it_is_explained(kind: str, tmp_path: Path) -> None:
    filled = contents.content(kind, SIZE)
    files = [log(tmp_path, filled, 0), log(tmp_path, filled + contents.FAILURE.encode(), 1)]
    scanned = look(files)
    line = (filled + contents.FAILURE.encode()).count(b"\n")
    (last,) = (hit for hit in scanned.hits if hit.rule == "cuda-oom" and hit.rank == 1)
    assert last.evidence.line == line
    if kind not in ERRORS:
        shown = next(
            each
            for each in scanned.troubles
            if each.rank == 1 and each.error.startswith("torch.OutOfMemoryError: ")
        )
        head = "Traceback (most recent call last):"
        assert (shown.traceback, shown.line, shown.lines[0]) == (True, line - 3, head)
    said = corpus.judge(corpus.JobContext(), scanned)
    if kind not in ("nan", "retries"):  # those may be the cause themselves
        assert [each.id for each in said.diagnoses][:1] == ["cuda-oom"]
    assert said.failed


@pytest.mark.parametrize("kind", ["retries", "one-line", "tqdm"])
def test_the_failure_in_the_middle_of_it_is_found(kind: str, tmp_path: Path) -> None:
    """Its words are rare, so that they are looked at wherever they are."""
    filled = contents.content(kind, SIZE // 2)
    scanned = look([log(tmp_path, filled + b"\n" + contents.FAILURE.encode() + filled, 0)])
    (found,) = (hit for hit in scanned.hits if hit.rule == "cuda-oom")
    assert found.evidence.line == (filled + b"\n" + contents.FAILURE.encode()).count(b"\n")


@pytest.mark.slow
@pytest.mark.extended
def test_counts_of_what_is_sampled_are_about_right(tmp_path: Path) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    many, of_each = 64, 600
    content = b"".join(f"{n % many}: {line}".encode() for n in range(many * of_each))
    hits = [hit for hit in look([log(tmp_path, content)]).hits if hit.rule == "cuda-oom"]
    assert {hit.rank for hit in hits} == set(range(many))
    assert sum(hit.count for hit in hits) == pytest.approx(many * of_each, rel=0.1)
    assert min(hit.evidence.line for hit in hits) == 1
    assert max(hit.evidence.line for hit in hits) == many * of_each


def test_a_traceback_whose_head_repeats_is_shown_with_its_head(tmp_path: Path) -> None:
    one = contents.RETRY % 7
    unknown = one.replace(
        "requests.exceptions.ConnectionError: ", "MyOwnError: nobody knows this one, "
    )
    steps = "".join(contents.transformers(number, contents.Draw(1), 0) for number in range(40))
    scanned = look([log(tmp_path, ((one * 5 + steps) * 8 + unknown + one * 2).encode())])
    (shown,) = (each for each in scanned.troubles if "MyOwnError" in each.error)
    assert shown.lines[0] == "Traceback (most recent call last):"


def test_each_start_of_a_job_keeps_errors_of_its_own(tmp_path: Path) -> None:
    error = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nMyOwnError: no\n'
    lost = "srun: error: Node failure on gpu013\n"
    again = "hpctrain: attempt 7.1 of the run r begins on gpu014\n"
    content = (error + "waiting for the other processes\n" * 70) * 6 + lost + again + error
    scanned = look([log(tmp_path, content.encode())])
    assert [each.part for each in scanned.troubles if each.traceback] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("kind", ["tracebacks", "words"])
@pytest.mark.slow
def test_work_grows_with_the_size_and_no_faster(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    move = scan.LineAt.move

    def counted(self: scan.LineAt, at: int) -> None:
        looked.append(at)
        move(self, at)

    monkeypatch.setattr(scan.LineAt, "move", counted)
    for size in (500_000, 2_000_000):
        looked.clear()
        look([log(tmp_path, contents.content(kind, size))])
        assert len(looked) < size / 40, "most of the lines with an error word are left out"


def test_the_end_of_a_piece_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = log(tmp_path, contents.content("retries", 20_000) + contents.FAILURE.encode(), 1)
    found = []
    for block in (97, 4096, 1 << 20):
        monkeypatch.setattr(scan, "_BLOCK", block)
        assert len(list(read.pieces(file.path, block=block))) > (block < 20_000)
        scanned = look([replace(file)])
        found.append((places(scanned.hits), counts(scanned.hits)["cuda-oom"]))
    assert found[0] == found[1] == found[2]
