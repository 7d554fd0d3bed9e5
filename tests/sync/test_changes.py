"""What rsync prints, read."""

from __future__ import annotations

import pytest

from hpctrain.sync import changes
from hpctrain.sync.changes import Change, Outcome


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("hpctrain: <f+++++++++ 12 a b", Change("created", "a b", 12)),
        ("hpctrain: >f.st...... 7 sub/x", Change("changed", "sub/x", 7)),
        ("hpctrain: <f..t...... 7 x", Change("changed", "x", 7)),
        ("hpctrain: .f...p..... 7 run.sh", Change("changed", "run.sh", 0)),
        ("hpctrain: cd+++++++++ 4096 sub/", Change("created", "sub/", 0)),
        ("hpctrain: cL+++++++++ 4 l -> ../x", Change("created", "l", 0, "../x")),
        ("hpctrain: cLc.t...... 4 l -> y", Change("changed", "l", 0, "y")),
        ("hpctrain: *deleting   0 old dir/", Change("deleted", "old dir/")),
        ("hpctrain: .d..t...... 4096 ./", None),
        ("hpctrain: cd+++++++++ 4096 ./", None),
        ("hpctrain: .d..t...... 4096 sub/", None),
        ("sending incremental file list", None),
        ("Total file size: 22 bytes", None),
        ("", None),
    ],
)
def test_a_change(line: str, change: Change | None) -> None:
    assert changes.parse_change(line) == change


def test_a_whole_run() -> None:
    outcome = Outcome()
    for line in (
        "[sender] hiding file .env because of pattern .env",
        "[sender] hiding directory .git because of pattern <rule from a file read earlier>",
        "[generator] protecting directory logs because of pattern logs/",
        'skipping non-regular file "fifo"',
        "hpctrain: <f+++++++++ 1000 data/a",
        "hpctrain: <f.st...... 10 train.py",
        "hpctrain: cL+++++++++ 5 data/l -> ../../out",
        "hpctrain: cL+++++++++ 5 data/m -> ../train.py",
        "hpctrain: cL+++++++++ 5 n -> /scratch/model",
        "hpctrain: *deleting   0 gone",
        "Number of files: 11 (reg: 6, dir: 2, link: 2, special: 1)",
        "Number of regular files transferred: 6",
        "Total file size: 2200000 bytes",
        "Total transferred file size: 10 bytes",
        "Total bytes sent: 284",
    ):
        outcome.read(line)
    assert (outcome.total_files, outcome.total_bytes, outcome.wire_bytes) == (9, 2_200_000, 284)
    assert (len(outcome.sent), outcome.sent_bytes, outcome.deleted) == (5, 1010, ["gone"])
    assert (outcome.left_out, outcome.secrets) == ([".env", ".git/"], [".env"])
    assert outcome.leading_out == ["data/l -> ../../out", "n -> /scratch/model"]
    assert outcome.notes == ['skipping non-regular file "fifo"']
    assert changes.largest(outcome.sent) == [("data/", 1000), ("train.py", 10), ("n", 0)]


def test_progress() -> None:
    assert changes.parse_progress("       11173895  35%   10.04MB/s    0:00:01  ") == 11173895
    assert changes.parse_progress("              1   0%    0.00kB/s    0:00:00 (xfr#1, to-chk=17/19)") == 1
    assert changes.parse_progress("Number of files: 11") is None


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (3_400_000, "3.4 MB"),
        (12 * 10**12, "12.0 TB"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert changes.size(count) == text
