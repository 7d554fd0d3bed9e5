"""The type of lint rules, the table of all rules, and predicates that several of them share.

To add one: a function in a module of `rules/`, decorated with `@rule`; a wrong and a right example
in docs/findings.md; a wrong case in tests/corpus/lint/wrong.cases.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hpctrain.checks.script.calls import CONTAINERS, PROGRAMS, WRAPPERS
from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.model import Shell, SimpleCommand
from hpctrain.finding import Level

#: Replace the characters from a start to an end of the file with a text.
Edit = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class RuleHit:
    """A hit of a rule at the offset `start`; level and reason default to the rule's."""

    start: int
    what: str
    fix: str
    level: Level | None = None
    reason: str | None = None
    edits: Sequence[Edit] = ()


Hits = Iterable[RuleHit]
Check = Callable[[LintFacts], Hits]


@dataclass(frozen=True, slots=True)
class LintRule:
    """One rule.

    Attributes:
        level: default level of its findings.
        reason: why it matters, in one sentence.
        source: the reference.
        since, until: the Slurm versions that it applies to, as numbers, `until` excluded.
        once: only its first hit counts.
    """

    id: str
    level: Level
    reason: str
    source: str
    check: Check
    since: tuple[int, ...] = ()
    until: tuple[int, ...] = (99,)
    once: bool = False


#: All rules by id.
RULES: dict[str, LintRule] = {}


def rule(
    id_: str,
    level: Level,
    reason: str,
    source: str,
    *,
    since: tuple[int, ...] = (),
    until: tuple[int, ...] = (99,),
    once: bool = False,
) -> Callable[[Check], Check]:
    """Register a function as a rule; the arguments are those of `LintRule`."""

    def register(check: Check) -> Check:
        RULES[id_] = LintRule(id_, level, reason, source, check, since, until, once)
        return check

    return register


#: The rest of a command, also in lines that a backslash continues.
REST = r"""(?:\\[\s\S]|"(?:\\[\s\S]|[^"\\])*"|'[^']*'|[^\\\n;|&"'])*?"""


def pattern(finds: str, what: str, fix: str, *, unless: str = r"(?!)") -> Check:
    """Return the check of a job for directives and commands whose text begins with `finds`, if
    `unless` is nowhere in the script; `what` and `fix` may use its groups. A group `at` is the place
    of the finding.
    """
    matches, exempts = re.compile(finds).match, re.compile(unless).search

    def check(facts: LintFacts) -> Hits:
        starts = [one.start for one in facts.block.options] + [one.start for one in facts.commands]
        for start in starts if facts.is_batch and not exempts(facts.text) else ():
            match = matches(facts.text, start)
            if match is not None:
                place = match.start("at" if "at" in match.groupdict() else 0)
                yield RuleHit(place, match.expand(what), match.expand(fix))

    return check


# ---- predicates that several rules share ---------------------------------------------------------

#: Programs that do a job's work instead of preparing it.
_WORKERS = frozenset(
    [
        "srun",
        "python",
        "mpirun",
        "mpiexec",
        "ibrun",
        "uv",
        "poetry",
        "pixi",
        "pdm",
        "horovodrun",
        "composer",
        "fairseq-train",
        "trl",
        "tune",
        "lm_eval",
        "lm-eval",
        "llamafactory-cli",
        "axolotl",
        "swift",
        "nnUNetv2_train",
        "matlab",
        "vllm",
        "Rscript",
        "yolo",
    ]
)
_STARTERS = _WORKERS | set(PROGRAMS) | CONTAINERS
_VERSION = re.compile(r"(?<=python)[\d.]+\Z")
_IN_VARIABLE = re.compile(
    r"\$\{?(?:SRUN|LAUNCH|(?:RUN_?|TRAIN_?)?CMD|COMMAND|PYTHON)(?=\W|_|\Z)", re.I
)
#: Programs that only print information, or prepare something.
HARMLESS = frozenset(
    [
        "hostname",
        "netstat",
        "echo",
        "date",
        "nvidia-smi",
        "rocm-smi",
        "mkdir",
        "rm",
        "cp",
        "ls",
        "env",
        "true",
        "lscpu",
        "free",
        "uname",
    ]
)
TALKERS = frozenset({"echo", "printf", "logger"})
TESTS = frozenset({"[", "[[", "test", "case"})
_KNOWN_SOURCES = re.compile(
    r"(?:^|/)(?:\.bashrc|\.bash_profile|\.profile|activate|(?:conda|mamba|modules)\.sh)\Z"
    r"|\b(?:conda|mamba)\S*[\"']?[ \t]+shell\b"
)
_SHELL_FLAGS = re.compile(
    r"\b(?:ba|da|z|k)?sh((?:\s+[-+]\w+(?:\s+(?:pipefail|errexit|nounset)\b)?)*)(?=\s|\Z)"
)


def works(command: SimpleCommand) -> bool:
    """Whether `command` starts the job's work: srun, a launcher, python or a container, also after
    time and similar.
    """
    words = command.argv[: 6 if command.name in WRAPPERS | {"eval"} else 1]
    texts = " ".join(word.text for word in words).partition("$(")[0].split()
    names = {_VERSION.sub("", text.rpartition("/")[2]) for text in texts}
    return (
        bool(names & _STARTERS)
        or any(map(_IN_VARIABLE.match, texts[-1:]))
        or (command.name in ("conda", "mamba", "micromamba") and command.has("run"))
    )


def is_ours(facts: LintFacts) -> bool:
    """Whether hpctrain rendered the script, from a profile of the site."""
    return "\n# made by hpctrain " in facts.text[: facts.block.ends]


def in_another_branch(facts: LintFacts, one: SimpleCommand, other: SimpleCommand) -> bool:
    """Whether two commands are in different branches of an `if` or `case`: only one runs."""
    inner = [scope for scope in one.scope.chain() if scope not in other.scope.chain()]
    outer = [scope for scope in other.scope.chain() if scope not in one.scope.chain()]
    both = inner[-1].parent if inner else one.scope
    # Complete ones inside a branch have branches of their own.
    begin = max(each.end for each in facts.inside[inner[-1]]) if inner else one.start
    end = outer[-1].start if outer else other.start
    return (
        both is not None
        and both.kind in ("if", "case")
        and re.search(r"(?m)(?:^|;)\s*(?:else|elif)\b|;;", facts.text[begin:end]) is not None
    )


def option_on(facts: LintFacts, name: str, shell: Shell, before: int) -> bool:
    """Whether `set -o NAME` is in effect in `shell` at offset `before`, judging by text order."""
    if (name, shell) not in facts.switches:
        facts.switches[name, shell] = list(_switches(facts, name, shell))
    switches = facts.switches[name, shell]
    return (earlier := bisect_left(switches, (before,))) > 0 and switches[earlier - 1][1]


def _switches(facts: LintFacts, name: str, shell: Shell) -> Iterator[tuple[int, bool]]:
    """Yield the offsets at which the option `name` is turned on or off; -1: by the shell's flags."""
    via = _SHELL_FLAGS.search(facts.shown(shell.via)) if shell.via is not None else None
    flags = via[1] if via else "" if shell.via is not None else facts.shell_flags
    sets = [(one.start, facts.shown(one)) for one in facts.named("set") if one.shell is shell]
    letter = {"errexit": "e", "nounset": "u"}.get(name, "/")
    for start, text in [(-1, flags), *sets]:
        for sign in re.findall(rf"(?<!\S)([-+])\w*(?:{letter}|o\s+{name}\b)", text):
            yield start, sign == "-"


def sources(facts: LintFacts) -> bool:
    """Whether the script reads another one, or text that it makes, which may do anything."""
    return any(
        not any(_KNOWN_SOURCES.search(word.text) for word in one.words[1:])
        for one in facts.named("source", ".", "eval")
    )
