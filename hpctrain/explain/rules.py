"""Failure rules (one cause each, its symptoms, and the fix), and the table of literals that logs
are searched for.

Rules are data: rules/README.md describes the format. PURE.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import yaml

from hpctrain.explain.model import Certainty, Stage
from hpctrain.util import installed

Kind = Literal["cause", "symptom", "consequence", "hint"]
AREAS = (
    "submission",
    "queue",
    "environment",
    "launch",
    "communication",
    "memory",
    "data",
    "numbers",
    "hardware",
    "storage",
    "time",
    "end",
)
#: Marks a literal that must not be followed by a letter, digit or underscore.
WORD_END = r"\b"
#: Loads every scalar as the text that is written.
_Loader: type = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
#: Names that a cause may use without a regex group: the engine, the record and the traceback
#: provide them.
KNOWN_NAMES = frozenset(
    [
        "rank",
        "node",
        "job",
        "state",
        "exit_code",
        "signal",
        "reason",
        "time_limit",
        "elapsed",
        "step",
        "max_steps",
        "count",
        "memory",
        "nodes",
        "frame",
        "code",
        "package",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPattern:
    """Required fields of the scheduler's record. Empty fields match anything."""

    state: tuple[str, ...] = ()
    exit_code: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRule:
    """See rules/README.md."""

    id: str
    stage: Stage
    area: str
    kind: Kind
    certainty: Certainty
    cause: str
    remedy: str
    source: str
    lines: tuple[str, ...] = ()
    literals: tuple[str, ...] = ()
    but_not: tuple[str, ...] = ()
    quoted: bool = False
    near: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    unless_literals: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    record: RecordPattern | None = None
    all: bool = False
    fact: str | None = None
    masks: tuple[str, ...] = ()
    fix: str | None = None
    script: str | None = None
    passing: bool = False
    versions: str | None = None


def load(texts: Mapping[str, str]) -> tuple[FailureRule, ...]:
    """Load rules from `texts` (file name → YAML), sorted by file name.

    The files are built in: tests/explain/rule_form.py checks their format.
    """
    rules: list[FailureRule] = []
    for file in sorted(texts):
        found = yaml.load(texts[file], _Loader)  # noqa: S506 - it creates only strings
        rules += [_rule(given) for given in found or ()]
    return tuple(rules)


def _rule(given: Mapping[str, Any]) -> FailureRule:
    values = _values(given)
    if "record" in values:
        values["record"] = RecordPattern(**_values(values["record"]))
    flags = {name: values.get(name) == "true" for name in ("all", "passing", "quoted")}
    return FailureRule(**{**values, **flags})


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value)
        if isinstance(value, list)
        else value.strip()
        if isinstance(value, str)
        else value
        for key, value in given.items()
    }


@cache
def shipped() -> tuple[FailureRule, ...]:
    """Return the built-in rules."""
    return load(installed.failure_rules())


Role = Literal["line", "unless", "error", "end", "over", "lost", "start", "first", "done", "zero"]

#: Signatures besides the rules' own: lower-case literals, one of which is in each line that the
#: regex matches, and the regex.
OWN: tuple[tuple[Role, tuple[str, ...], str], ...] = (
    ("error", ("traceback (most recent call last)",), r"Traceback \(most recent call last\)"),
    (
        "error",
        (r"error\b", r"exception\b"),
        r"\b[A-Za-z_][A-Za-z_0-9.]*(?:Error|Exception)\b(?::|\s*$)",
    ),
    (
        "error",
        (r"error\b", r"fatal\b", r"critical\b"),
        r"(?i)(?:^|[\s\[(])(?:error|fatal|critical|fatal error)(?:\]|\))?\s*:",
    ),
    (
        "error",
        (
            "bus error",
            "core dumped",
            "fatal",
            "illegal instruction",
            "panic:",
            "segmentation fault",
            "terminate called",
        ),
        (
            r"Segmentation fault|core dumped|terminate called|Bus error|Illegal"
            r" instruction|panic:|FATAL(?!_ERROR)"
        ),
    ),
    (
        "error",
        (": aborted", ": killed", "command not found"),
        r": Aborted|: Killed|command not found",
    ),
    # Fortran, Perl, Rust, R and MATLAB, C, MPI, Java
    (
        "error",
        (
            "' panicked at",
            "assertion ",
            "can't locate ",
            "error in ",
            "error using ",
            "execution halted",
            "forrtl: severe",
        ),
        (
            r"forrtl: severe|Can't locate \S+ in @INC|' panicked at|Execution halted|^Error"
            r" (?:in|using) |^ *Error in routine |Assertion .* failed"
        ),
    ),
    # What programs of science and workflow engines print last
    (
        "error",
        (
            "[abort]",
            "aborting the run",
            "check failed: ",
            "cuda error at ",
            "error at ",
            "error detected in hdf5",
            "error on proc ",
            "error opening ",
            "error reading ",
            "error termination",
            "exception in rule ",
            "gpuassert: ",
            "i refuse to continue",
            "license checkout failed",
            "error[e",
            "nf90_",
            "petsc error: ",
            "stop error",
            "stop 1",
            "undefined function ",
            "undefined variable ",
        ),
        (
            r"(?i)^[\W\d]*(?:\w+[: ] ?)?error (?:on proc \d+:|termination|opening|reading|at \S)"
            r"|PETSC ERROR: |Error detected in HDF5|^\W*\[ABORT\]|I REFUSE TO CONTINUE"
            r"|^error\[E\d+\]:|^License checkout failed|^\{?Undefined (?:function|variable)\b"
            r"|^ *STOP (?:1\b|ERROR\b)|(?:^|\] )Check failed: |^\w*Exception in rule "
            r"|^ *NF90_\w+ failed|^GPUassert: |^CUDA error at |: \. \. \. aborting the run$"
        ),
    ),
    (
        "error",
        ('exception in thread "main"', "mpi_abort was invoked"),
        r"MPI_ABORT was invoked|^Exception in thread \"main\"",
    ),
    # Builds, and workflow engines
    (
        "error",
        ("make: *** ", "]: *** ", "cmake error", "error executing process", "floating point"),
        (
            r"^make(?:\[\d+\])?: \*\*\* |^CMake Error|Error executing process >|Floating point"
            r" exception(?: ?\(|\s*$)"
        ),
    ),
    ("end", ("hpctrain: job ",), r"^hpctrain: job \S+ (?:is requeued|ended with exit code)"),
    (
        "end",
        (" due to job requeue", " due to node failure", " due to preemption"),
        r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+ DUE TO (?:PREEMPTION|NODE FAILURE|JOB REQUEUE)",
    ),
    # The last line of LSF's report of a job.
    (
        "over",
        ("(if any) is above this job summary",),
        r"^The output \(if any\) is above this job summary",
    ),
    ("lost", (": node failure on",), r"^(?:srun|salloc): (?:error: )?Node failure on \S"),
    # A run of Weights & Biases ended; another that starts behind it was appended to the file.
    ("lost", ("find logs at: ",), r"^wandb: .*Find logs at: "),
    ("start", ("tracking run with wandb version",), r"^wandb: Tracking run with wandb version"),
    ("start", ("rendezvous: ",), r"^rendezvous: \S+:\d+$"),
    (
        "start",
        ("continuing from", "resuming from", "training from"),
        r"(?:^|[\s\])}>:])(?:[Rr]esuming|Continuing) (?:training )?from\b",
    ),
    (
        "start",
        ("loading checkpoint from ", "restoring states from the checkpoint path"),
        r"Restoring states from the checkpoint path|loading checkpoint from \S+ at iteration",
    ),
    ("start", ("exported run_id to <<<",), r"^Exported run_id to <<<"),
    ("start", ("hpctrain: attempt ",), r"^hpctrain: attempt \S+ of the run \S+ begins"),
    (
        "done",
        (
            "train_runtime",
            "`trainer.fit` stopped:",
        ),
        r"[\"']train_runtime[\"']:|`Trainer\.fit` stopped: `max_(?:epochs|steps|time)=",
    ),
    # From a Python logger: a script's `echo Training finished` may have any case.
    (
        "done",
        (r"training complete\b", "training completed", "training done", "training finished"),
        r"\bINFO\b.*\b[Tt]raining (?:completed?|finished|done)\b(?!.*(?:fail|error|%| with ))",
    ),
    (
        "done",
        ("completed after", "finished with value", "[after training is done]"),
        (
            r"\[after training is done\] datetime|Trial \d+ finished with value|Trial \S+ completed"
            r" after \d+ iterations"
        ),
    ),
    (
        "done",
        ("train_runtime", "passed"),
        (
            r"^\s*train_runtime\s+=\s+\d|^=+ (?!.*\b(?:failed|errors?)\b).*\b\d+ passed\b.* in [\d.:]+"
            r"|^100% tests passed, 0 tests failed"
        ),
    ),
    (
        "done",
        (
            "gromacs reminds you:",
            "job done.",
            "launcher: done. job exited without errors",
            "reached required accuracy - stopping",
            "total wall time: ",
            "epochs completed in ",
            "训练结束",
            "训练完成",
        ),
        (
            r"^\d+ epochs completed in [\d.]+ hours|^\W{0,9}(?:模型)?训练(?:结束|完成)\W*(?:\||$)|"
            r"^GROMACS reminds you:|^Launcher: Done\. Job exited without errors|"
            r"^Total wall time: \d+:\d\d:\d\d$|^\s*JOB DONE\.$|reached"
            r" required accuracy - stopping"
        ),
    ),
    # From a script: it may be the status of another command, such as `tee`.
    (
        "zero",
        (
            "exit code",
            "exit status",
            "exit with",
            "exited",
            "exit-",
            "exit_",
            "return code",
            "return status",
            "return with",
            "returned",
            "return-",
            "return_",
        ),
        (
            r"(?i)^(?:[\w .:\[\]-]{0,60}\b)?(?:exit|return)(?:ed)?[ _-](?:with"
            r" )?(?:code|status)\s*(?:[:=]|of|was|is)?\s*0\.?$"
        ),
    ),
    ("first", ("root cause (first observed failure):",), r"Root Cause \(first observed failure\):"),
)


#: An exception that a program caught and logged, or printed, without a traceback.
_LOGGED = re.compile(
    r"^(?=.{0,100}?(?:\b(?:ERROR|CRITICAL|FATAL|[Ee]rror|[Ee]xception|[Ff]ailed|[Ff]ailure)\b|[EF]\d{4} "
    r"|\bERR\b))"
    r".{0,200}?(?:[\s\])>|-]|[A-Z]+:\w*:)(?=(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|NotFound)\w*: \S)"
)
#: The message if the program continued after it.
_CONTINUES = re.compile(
    r"(?i)\b(?:warn|debug|info\b|retr(?:y|ies)|ignor|skip|fall(?:ing|s)? ?back|attempt \d|continu|optional|disabl"
    r"|exception ignored|will be|instead)"
)


def logged_exception(line: str) -> str | None:
    """Return the exception in a cleaned line after a logger's or handler's prefix, as in
    `2024-03-01 12:00:00 ERROR trainer: ValueError: …`; None for other lines.
    """
    found = _LOGGED.match(line)
    if found is None or _CONTINUES.search(line):
        return None
    return line[found.end() :]


#: Text that a log quotes; no rule matches it: comments, rows of tables, and the JSON, prompts and
#: samples that a training prints.
QUOTED = re.compile(
    r"""["'](?:text|prompt|completion|content|messages|question|answer|instruction|output|input"""
    r"""|response|conversations|value)["']: """
    r"""|^\s*(?:\u2502?\s*(?:[#>`]|<\||\{["']|\[\{|\+{1,3} )|\|.*\|)"""
    r"""|<\|(?:im_end|im_start|endoftext|eot_id)\|>|\.\.\. ?(?i:ok|passed)$"""
    r"""|^\s*(?i:examples?|samples?|prompts?|texts?|completions?|user|assistant|question|answer|q|a)"""
    r"""(?: ?#?\d+)?(?: ?[:=] |\s+['"])"""
)


@dataclass(slots=True, eq=False)
class Signature:
    """One regex.

    Attributes:
        rule: the rule it belongs to; for the role `unless`, see `silenced`.
    """

    role: Role
    rule: FailureRule | None
    pattern: str
    silenced: tuple[str, ...] = ()
    _compiled: re.Pattern[str] | None = None
    _but_not: tuple[re.Pattern[str], ...] = ()

    def match(self, line: str, whole: str | None = None) -> re.Match[str] | None:
        """Match a cleaned line, unless one of the rule's `but_not` matches too; `whole`: the line
        that it is a part of.
        """
        if self._compiled is None:
            self._compiled = re.compile(self.pattern)
            if self.role == "line" and self.rule is not None:
                self._but_not = (
                    *(() if self.rule.quoted else (QUOTED,)),
                    *map(re.compile, self.rule.but_not),
                )
        found = self._compiled.search(line)
        return (
            None
            if found is None or any(pattern.search(whole or line) for pattern in self._but_not)
            else found
        )


@dataclass(slots=True)
class SearchWord:
    """A literal to search for, as lower-case bytes, and the signatures that a line with it may
    match.

    Attributes:
        ends: no letter, digit or underscore follows it.
        errors: all of the signatures have the role "error".
    """

    text: bytes
    ends: bool = False
    signatures: list[Signature] = field(default_factory=list)
    errors: bool = True


class SearchTable:
    """The signatures of all rules by their literals: a line without any of them matches no rule.

    Regexes are compiled when one of their literals is first found: most never are.
    """

    def __init__(self, rules: Sequence[FailureRule]) -> None:
        self.rules = tuple(rules)
        self._by_literal: dict[str, SearchWord] = {}
        for role, literals, pattern in OWN:
            self._add(Signature(role, None, pattern), literals)
        for rule in self.rules:
            for pattern in rule.lines if rule.kind != "hint" else ():
                self._add(Signature("line", rule, pattern), rule.literals)
        silenced: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for rule in self.rules:
            for pattern in rule.unless:
                silenced.setdefault((pattern, rule.unless_literals), []).append(rule.id)
        for (pattern, literals), ids in silenced.items():
            self._add(Signature("unless", None, pattern, tuple(ids)), literals)
        self.words = tuple(self._by_literal.values())

    def _add(self, signature: Signature, literals: Sequence[str]) -> None:
        for literal in literals:
            text = literal.removesuffix(WORD_END)
            word = self._by_literal.setdefault(literal, SearchWord(text.encode(), text != literal))
            word.signatures.append(signature)
            word.errors = word.errors and signature.role == "error"

    @property
    def texts(self) -> list[bytes]:
        """Return the literals, in their order."""
        return [word.text for word in self.words]
