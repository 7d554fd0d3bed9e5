"""The scripts of tests/corpus/lint, and what is expected of them.

A comment `# expect: ID` expects a finding in the next line, `# expect@LINE: ID` one in that line.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
CORRECT = sorted((TESTS / "corpus/lint/correct").glob("*.sbatch"))
WRONG = sorted((TESTS / "corpus/lint/wrong").glob("*.sbatch"))
GOLDEN = sorted((TESTS / "golden").glob("*/script.sbatch"))
_EXPECT = re.compile(r"\s*# expect(?:@(\d+))?: ([\w-]+)")


def text_of(file: Path) -> str:
    """Return the text with the line ends that it has."""
    return file.read_bytes().decode()


def expected(text: str) -> set[tuple[int, str]]:
    """Return line and id of every finding that `text` asks for."""
    found = set()
    for number, line in enumerate(text.split("\n"), start=1):
        match = _EXPECT.match(line)
        if match:
            found.add((int(match[1] or number + 1), match[2]))
    return found
