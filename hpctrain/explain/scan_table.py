"""The signatures of all rules as one table of words: a line that holds none of the words cannot be of any rule. PURE.

Regexes are compiled when a word of theirs is first found: most of them never are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from hpctrain.explain import scan_literals
from hpctrain.explain.rule import Rule
from hpctrain.explain.scan_literals import END

Role = Literal["line", "unless", "error", "end", "lost", "start", "first", "done", "zero"]

#: What is looked for beside the rules' own signatures.
_OWN: tuple[tuple[Role, str], ...] = (
    ("error", r"Traceback \(most recent call last\)"),
    ("error", r"\b[A-Za-z_][A-Za-z_0-9.]*(?:Error|Exception)\b(?::|\s*$)"),
    ("error", r"(?i)(?:^|[\s\[(])(?:error|fatal|critical|fatal error)(?:\]|\))?\s*:"),
    ("error", r"Segmentation fault|core dumped|terminate called|Bus error|Illegal instruction|panic:|FATAL"),
    ("error", r": Aborted|: Killed|command not found"),
    # Fortran, Perl, Rust, R and MATLAB, C, MPI, Java
    ("error", r"forrtl: severe|Can't locate \S+ in @INC|' panicked at|Execution halted|^Error (?:in|using) |Assertion .* failed"),
    ("error", r"MPI_ABORT was invoked|^Exception in thread \"main\""),
    ("end", r"^hpctrain: job \S+ (?:is requeued|ended with exit code)"),
    ("end", r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+ DUE TO (?:PREEMPTION|NODE FAILURE|JOB REQUEUE)"),
    ("lost", r"^(?:srun|salloc): (?:error: )?Node failure on \S"),
    ("start", r"^rendezvous: \S+:\d+$"),
    ("start", r"(?:^|[\s\])}>:])(?:[Rr]esuming|Continuing) (?:training )?from\b"),
    ("start", r"Restoring states from the checkpoint path|loading checkpoint from \S+ at iteration"),
    ("start", r"^Exported run_id to <<<"),
    ("start", r"^hpctrain: attempt \S+ of the run \S+ begins"),
    ("done", r"[\"']train_runtime[\"']:|`Trainer\.fit` stopped: `max_(?:epochs|steps|time)="),
    # By a logger of Python: a script's `echo Training finished` comes in any case.
    ("done", r"\bINFO\b.*\b[Tt]raining (?:completed?|finished|done)\b(?!.*(?:fail|error|%| with ))"),
    ("done", r"\[after training is done\] datetime|Trial \d+ finished with value|Trial \S+ completed after \d+ iterations"),
    ("done", r"^\s*train_runtime\s+=\s+\d|^=+ (?!.*\b(?:failed|errors?)\b).*\b\d+ passed\b.* in [\d.:]+"),
    ("done", r"^GROMACS reminds you:|^Total wall time: \d+:\d\d:\d\d$|^\s*JOB DONE\.$|reached required accuracy - stopping"),
    # Of a script: it may be the status of another command, such as `tee`.
    ("zero", r"(?i)^(?:[\w .:\[\]-]{0,60}\b)?(?:exit|return)(?:ed)?[ _-](?:with )?(?:code|status)\s*(?:[:=]|of|was|is)?\s*0\.?$"),
    ("first", r"Root Cause \(first observed failure\):"),
)  # fmt: skip


#: Looking for more words than that in a line costs more than the regex.
_MOST_CHECKED = 12


@dataclass(slots=True, eq=False)
class Signature:
    """One regex, and what each line that it matches holds: a word of each clause, in lower case.

    Attributes:
        rule: whose it is; of `unless`, `silenced` says whose it is.
    """

    role: Role
    rule: Rule | None
    pattern: str
    clauses: tuple[scan_literals.Clause, ...]
    silenced: tuple[str, ...] = ()
    _compiled: re.Pattern[str] | None = None
    _but_not: tuple[re.Pattern[str], ...] = ()
    _tells: bool | None = None

    @property
    def tells_digits(self) -> bool:
        """Whether it may match a line, and not the same line with other digits."""
        if self._tells is None:
            patterns = [self.pattern, *(self.rule.but_not if self.role == "line" and self.rule is not None else ())]
            self._tells = any(map(scan_literals.tells_digits, patterns))
        return self._tells

    def match(self, line: str) -> re.Match[str] | None:
        """Return where the regex matches in a cleaned line, unless one of the rule's `but_not` does too."""
        if self._compiled is None:
            self._compiled = re.compile(self.pattern)
            if self.role == "line" and self.rule is not None:
                self._but_not = tuple(re.compile(pattern) for pattern in self.rule.but_not)
        found = self._compiled.search(line)
        return None if found is None or any(pattern.search(line) for pattern in self._but_not) else found


@dataclass(slots=True)
class Word:
    """A word to search for, as bytes in lower case; and which signatures a line may have that holds it.

    Attributes:
        ends: no letter, digit or underscore follows it.
        others: of each signature, what else the line must hold.
        errors: all of them are of the role "error".
    """

    text: bytes
    ends: bool = False
    signatures: list[Signature] = field(default_factory=list)
    others: list[tuple[tuple[bytes, ...], ...]] = field(default_factory=list)
    #: Rules that a line with it may silence.
    silences: set[str] = field(default_factory=set)
    errors: bool = True


class Table:
    """See the module.

    Args:
        rules: of which each has words (hpctrain.explain.rule.problems).
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        by_text: dict[str, Word] = {}
        for signature in self._signatures():
            if not signature.clauses:
                continue
            first, *others = signature.clauses
            rest = tuple(tuple(word.rstrip(END).encode() for word in clause) for clause in others if len(clause) <= _MOST_CHECKED)
            for text in first:
                word = by_text.setdefault(text, Word(text.rstrip(END).encode(), text.endswith(END)))
                word.signatures.append(signature)
                word.silences.update(signature.silenced)
                word.errors = word.errors and signature.role == "error"
                word.others.append(rest)
        self.words = tuple(by_text.values())

    def _signatures(self) -> list[Signature]:
        found = []
        for role, pattern in _OWN:
            found.append(Signature(role, None, pattern, scan_literals.clauses(pattern)))
        for rule in self.rules:
            given = (frozenset(word.lower() for word in rule.literals),) if rule.literals else ()
            found += [Signature("line", rule, pattern, given or scan_literals.clauses(pattern)) for pattern in rule.lines]
        by_pattern: dict[str, list[str]] = {}
        for rule in self.rules:
            for pattern in rule.unless:
                by_pattern.setdefault(pattern, []).append(rule.id)
        found += [Signature("unless", None, pattern, scan_literals.clauses(pattern), tuple(ids)) for pattern, ids in by_pattern.items()]
        return found

    @cached_property
    def texts(self) -> list[bytes]:
        """The words, in their order."""
        return [word.text for word in self.words]
