"""The scripts of tests/corpus/lint, and what is expected of them.

Each case begins with a line `=== NAME`. A comment `# expect: ID` expects a finding in the next line,
`# expect@LINE: ID` one in that line.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from hpctrain.checks.script import lint
from hpctrain.finding import Finding

TESTS = Path(__file__).parents[2]
_EXPECT = re.compile(r"\s*# expect(?:@(\d+))?: ([\w-]+)")


@dataclass(frozen=True)
class Case:
    """A script, with the line ends that it has."""

    name: str
    text: str

    @property
    def findings(self) -> list[Finding]:
        """What lint finds in it, on the version of Slurm that a comment names."""
        version = re.search(r"# slurm: (\S+)", self.text)
        return lint(self.text, "/x/x.sbatch", version and version[1])

    @property
    def expected(self) -> set[tuple[int, str]]:
        """Line and id of every finding that it asks for."""
        found = set()
        for number, line in enumerate(self.text.split("\n"), start=1):
            match = _EXPECT.match(line)
            if match:
                found.add((int(match[1] or number + 1), match[2]))
        return found


def _cases(file: str) -> list[Case]:
    text = (TESTS / "corpus" / "lint" / file).read_bytes().decode()
    _, *parts = re.split(r"^=== (.+)\n", text, flags=re.MULTILINE)
    return [Case(name, script) for name, script in zip(parts[::2], parts[1::2], strict=True)]


CORRECT, WRONG = _cases("correct.cases"), _cases("wrong.cases")
GOLDEN = [
    Case(file.parent.name, file.read_text())
    for file in sorted((TESTS / "golden").glob("*/script.sbatch"))
]
#: Those in bash.
BASH = [
    case for case in [*CORRECT, *WRONG] if case.name not in ("python_batch_script", "dos-line-ends")
]


FRAGMENTS = [
    "'",
    '"',
    "$(",
    "${",
    "$((",
    "`",
    ")",
    "}",
    "))",
    "\\",
    "\n",
    "<<EOF\n",
    "EOF\n",
    "<<-'X'\n",
    "if ",
    "fi\n",
    "for x in ",
    "do ",
    "done",
    "case x in ",
    "esac",
    ";;",
    "a) ",
    "{ ",
    "}",
    "(",
    "((",
    "[[ ",
    "]]",
    "&",
    "&&",
    "||",
    "|",
    ";",
    ">",
    "2>&1",
    "<(",
    "#",
    "$'",
    "a=(",
    "f() ",
    "function g ",
    "srun bash -c '",
    'srun bash -c "',
    "torchrun --node_rank $SLURM_NODEID ",
    "export X=",
    "$X",
    "${X[@]}",
    "#SBATCH --nodes=2\n",
    "#SBATCH --x='",
    "cat > f.sh <<E\n",
    "E\n",
    "\x00",
    "\r\n",
    "\xe9",
    "\ud800",
    "\U000f0001",
    "accelerate launch ",
    "trap 'x' USR1\n",
    "wait\n",
    "-c",
    "set -u\n",
    "echo ",
    "$0",
    "?(",
    "x+=y ",
    "!",
]
#: Shell in pieces, most of it broken.
any_text = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=40).map("".join)
