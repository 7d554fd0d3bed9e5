"""Lines that repeat but for their numbers: what is found is what a look at each line finds, and the failure behind them is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import contents
import corpus
import pytest

from hpctrain.explain import scan_literals
from hpctrain.explain.hit import Hit, Scanned
from hpctrain.logs import read, scan, scan_file, scan_steps
from hpctrain.logs.model import LogFile

SIZE = 60_000
#: So full of errors of their own that there is no room for the last one: a diagnosis names it all the same.
ERRORS = ("retries", "retries-and-steps", "bad-samples", "generations", "generations-of-errors", "words")


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_BLOCK", 8192)


def log(folder: Path, content: bytes, rank: int | None = None) -> LogFile:
    name = "job.log" if rank is None else f"rank-{rank}.log"
    path = folder / name
    path.write_bytes(content)
    return LogFile(path=path, name=name, rank=rank, order=rank or 0)


def look(files: list[LogFile], monkeypatch: pytest.MonkeyPatch, *, dense: int = scan_file._DENSE) -> Scanned:
    monkeypatch.setattr(scan_file, "_DENSE", dense)
    return scan.scan(files, corpus.rules(), processes=1)


def places(hits: tuple[Hit, ...]) -> set[tuple[str, int | None, int | None, str | None]]:
    return {(hit.rule, hit.evidence.line, hit.rank, hit.node) for hit in hits}


def counts(hits: tuple[Hit, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for hit in hits:
        found[hit.rule] = found.get(hit.rule, 0) + hit.count
    return found


@pytest.mark.parametrize("kind", contents.KINDS)
def test_the_failure_behind_it_is_explained(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = contents.content(kind, SIZE)
    files = [log(tmp_path, filled, 0), log(tmp_path, filled + contents.FAILURE.encode(), 1)]
    scanned = look(files, monkeypatch)
    line = (filled + contents.FAILURE.encode()).count(b"\n")
    (last,) = (hit for hit in scanned.hits if hit.rule == "cuda-oom" and hit.rank == 1)
    assert last.evidence.line == line
    if kind not in ERRORS:
        shown = next(each for each in scanned.troubles if each.rank == 1 and each.error.startswith("torch.OutOfMemoryError: "))
        assert (shown.traceback, shown.line, shown.lines[0]) == (True, line - 3, "Traceback (most recent call last):")
    said = corpus.judge(corpus.Case(), scanned)
    if kind not in ("nan", "zero", "plain-nan", "retries"):  # those may be the cause themselves
        assert [each.id for each in said.diagnoses][:1] == ["cuda-oom"]
    assert said.failed


@pytest.mark.parametrize("kind", contents.KINDS)
def test_what_is_found_is_what_a_look_at_each_line_finds(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [log(tmp_path, contents.content(kind, SIZE) + contents.FAILURE.encode(), 1)]
    whole, few = (look(files, monkeypatch, dense=dense) for dense in (0, 1 << 30))
    assert places(few.hits) == places(whole.hits)
    assert counts(few.hits) == pytest.approx(counts(whole.hits), rel=0.1)
    if kind in ("nan", "plain-nan", "closed"):
        assert counts(few.hits) == counts(whole.hits)
    assert min(each.line for each in few.troubles) == min(each.line for each in whole.troubles)


def test_all_of_the_corpus_is_explained_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {}
    for kept in corpus.cases():
        if kept.kind == "healthy" or not kept.logs:
            continue
        files = corpus.log_files(kept.logs)
        said = [
            [each.id for each in corpus.judge(corpus.case_of(kept, files), look(files, monkeypatch, dense=dense)).diagnoses]
            for dense in (0, 1 << 30)
        ]
        if said[0] != said[1]:
            wrong[kept.name] = said
    assert wrong == {}


def test_ranks_of_a_shared_log_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    files = [log(tmp_path, b"".join(f"{number % 64}: {line}".encode() for number in range(128)))]
    whole, few = (look(files, monkeypatch, dense=dense) for dense in (0, 1 << 30))
    assert {hit.rank for hit in few.hits if hit.rule == "cuda-oom"} == set(range(64))
    assert (places(few.hits), counts(few.hits)) == (places(whole.hits), counts(whole.hits))


def test_a_number_that_matters_is_found_among_hundreds_that_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    well = ["write failed (os error 17)\n"] * 200
    scanned = look([log(tmp_path, "".join([*well, "write failed (os error 28)\n", *well]).encode(), 0)], monkeypatch, dense=1 << 30)
    assert [hit.evidence.line for hit in scanned.hits if hit.rule == "disk-full"] == [201]


def test_a_traceback_whose_head_repeats_is_shown_with_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = contents.RETRY % 7
    unknown = one.replace("requests.exceptions.ConnectionError: ", "MyOwnError: nobody knows this one, ")
    steps = "".join(contents.transformers(number, contents.Draw(1), 0) for number in range(40))
    scanned = look([log(tmp_path, ((one * 5 + steps) * 8 + unknown + one * 2).encode())], monkeypatch, dense=1 << 30)
    (shown,) = (each for each in scanned.troubles if "MyOwnError" in each.error)
    assert shown.lines[0] == "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("behind", "counted"),
    [("transformers", True), ("megatron", True), ("lightning", True), ("loading", False), ("nccl", False), ("zero", False)],
)
def test_steps_behind_an_error_are_counted_however_far_they_are(
    behind: str, counted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = contents.content("nccl", 3 * scan_steps._CHUNK)
    content = b"ERROR: the tracker does not answer\n" + noise + contents.content(behind, 2 * scan_steps._CHUNK)
    monkeypatch.setattr(scan, "_BLOCK", 1 << 20)
    (found,) = look([log(tmp_path, content)], monkeypatch).troubles[:1]
    assert (found.steps_after >= 20) is counted
    assert counted or not found.steps_after


@pytest.mark.parametrize(
    ("pattern", "tells"),
    [
        (r"exit code \d+", False), (r"exit code 137\b", True), (r"loss (?:0\.0|nan)", True), (r"rank[0-9]+ \w+ \S[^,]*", False),
        (r"[1-9]\d*", True), (r"(?<!1)x", True), (r"(\d) is not \1", True), (r"a{3}[^5]", True), (r"(?>\w+) (?:a|b)?$", False),
    ],
)  # fmt: skip
def test_a_regex_that_tells_digits_apart_is_known(pattern: str, tells: bool) -> None:
    assert scan_literals.tells_digits(pattern) is tells


def test_the_end_of_a_piece_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = log(tmp_path, contents.content("retries", 20_000) + contents.FAILURE.encode(), 1)
    found = []
    for block in (97, 4096, 1 << 20):
        monkeypatch.setattr(scan, "_BLOCK", block)
        assert len(list(read.pieces(file, block=block))) > (block < 20_000)
        scanned = look([replace(file)], monkeypatch, dense=1 << 30)
        found.append((places(scanned.hits), counts(scanned.hits)["cuda-oom"]))
    assert found[0] == found[1] == found[2]
