"""`#SBATCH` lines: parsing as in sbatch, and quoting of values so that sbatch reads them back
unchanged.

The grammar is that of `_get_argument` and `next_line` in Slurm's src/sbatch/opt.c. Directives start
in column 0, in upper case, and end at the first line that is neither empty nor a comment. Quotes
group; a backslash escapes the next character (inside quotes too, but not white space outside them);
an unescaped `#` outside quotes starts a comment. There is no expansion and no line continuation.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

MAGIC = "#SBATCH"
#: C's isspace, in every locale that Slurm runs in; Python's also includes U+00A0 and others, which
#: sbatch treats as letters.
_BLANKS = " \t\n\v\f\r"
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./*\[\]()&|!~^{}<>;?-]+\Z")
_BLOCK = re.compile(r"(?:[ \t\v\f\r\n]++|#[^\n]*+)*+")
#: A line, and the next one if the value of the last option is there: sbatch reads the words of all
#: lines as one list of arguments.
_LINE = re.compile(
    rf"^{MAGIC}(?:[^\n#]*[ \t]--?\w[\w-]*[ \t]*\n{MAGIC}(?=[ \t]+(?!hetjob|packjob)[^-#\s]))*[^\n]*+",
    re.MULTILINE,
)
#: More directives than in any real script; the rest is ignored.
_MAX_LINES = 2000
_NO_OPTION = "is not an option; a directive is written --name=value"
#: Flaws for which sbatch refuses the script, with the message.
_REFUSED = {
    "directive-quote": "unmatched {hint} in {text}",
    "not-an-option": f"line {{line}}: {{text!r}} {_NO_OPTION}",
    "blank-around-equals": f"line {{line}}: {{hint!r}} {_NO_OPTION}",
    "option-without-value": "line {line}: option {text} needs a value",
    "unknown-letter": "line {line}: unknown option -{text}",
}


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of a script.

    Attributes:
        name: sbatch's long name, without dashes.
        value: as sbatch reads it; None for a flag.
        line: counted from 1.
        written: the name as written, with its dashes.
        start: offset in the text.
        known: whether sbatch has the option; others are from a site's plugin, or misspelled.
    """

    name: str
    value: str | None
    line: int
    written: str = field(default="", compare=False)
    start: int = field(default=0, compare=False)
    known: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class DirectiveFlaw:
    """Something that sbatch refuses, or reads differently than intended; `kind` names the fault."""

    kind: str
    start: int
    line: int
    text: str
    hint: str = ""


@dataclass(slots=True)
class DirectiveBlock:
    """The directives of a script.

    Attributes:
        every: all options in order, of all components of a heterogeneous job.
        ends: offset of the first command.
        lines: number of directives.
        hetjobs: offsets of the lines that separate components.
        component_starts: index in `options` of the first option of each component.
    """

    every: list[Directive] = field(default_factory=list)
    flaws: list[DirectiveFlaw] = field(default_factory=list)
    ends: int = 0
    lines: int = 0
    hetjobs: list[int] = field(default_factory=list)
    component_starts: list[int] = field(default_factory=lambda: [0])

    @property
    def options(self) -> list[Directive]:
        """The options that sbatch itself has."""
        return [option for option in self.every if option.known]


def quote(value: str) -> str:
    """Return `value` quoted so that sbatch reads it back unchanged from a `#SBATCH` line.

    Raises:
        ValueError: `value` contains a newline or another control character, which cannot be quoted.
    """
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError(f"{value!r} holds a control character, which a #SBATCH line cannot carry")
    if _PLAIN.match(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def read(script: str) -> list[Directive]:
    """Return the directives of `script` in order, with long names.

    Raises:
        ValueError: no `#!` line, DOS line endings, an unclosed quote, or a word that is not an
            option.
    """
    if not script.startswith("#!"):
        raise ValueError(
            "this does not look like a batch script: the first line must start with #! and name the"
            " shell, such as #!/bin/bash"
        )
    if "\r\n" in script:
        raise ValueError("batch script contains DOS line breaks (\\r\\n)")
    block = read_block(script)
    for flaw in block.flaws:
        if flaw.kind in _REFUSED:
            reason = _REFUSED[flaw.kind]
            raise ValueError(reason.format(line=flaw.line, text=flaw.text, hint=flaw.hint))
    return block.every


def last_values(directives: list[Directive]) -> dict[str, str | None]:
    """Return name to value; the last one applies, as in sbatch."""
    return {directive.name: directive.value for directive in directives}


def read_block(text: str) -> DirectiveBlock:
    """Return the directives of any text as sbatch reads them, and their flaws."""
    block = DirectiveBlock()
    found = _BLOCK.match(text)
    block.ends = found.end() if found else 0
    position, number = 0, 1
    for match in itertools.islice(_LINE.finditer(text, 0, block.ends), _MAX_LINES):
        number += text.count("\n", position, match.start())
        position = match.start()
        block.lines += 1
        _LineReader(block, match[0].rstrip("\r").replace(f"\n{MAGIC}", " " * 8), position, number)
    return block


@dataclass(slots=True)
class _DirectiveWord:
    """One word of a directive, without quotes; `start` is its offset in the line."""

    text: str
    start: int


def _words(line: str, begin: int) -> tuple[list[_DirectiveWord], str]:
    """Split `line` from `begin` on as sbatch does; also return the unclosed quote, if any."""
    words: list[_DirectiveWord] = []
    word: _DirectiveWord | None = None
    quoting, escaped = "", False
    for index in range(begin, len(line)):
        character = line[index]
        if character in _BLANKS and not quoting:
            word, escaped = None, False
            continue
        if character == "#" and not quoting and not escaped:
            break
        if word is None:
            word = _DirectiveWord("", index)
            words.append(word)
        if character == "\\" and not escaped:
            escaped = True
        elif not escaped and character in (quoting or "\"'"):
            quoting = "" if quoting else character
        else:
            word.text, escaped = word.text + character, False
    return words, quoting


class _LineReader:
    def __init__(self, block: DirectiveBlock, line: str, offset: int, number: int) -> None:
        self.block, self.offset, self.number = block, offset, number
        words, unmatched = _words(line, len(MAGIC))
        if unmatched:
            self._flaw("directive-quote", 0, line, unmatched)
            return
        if words and words[0].text in ("hetjob", "packjob"):
            block.hetjobs.append(offset)
            block.component_starts.append(len(block.options))
            del words[0]
        self.rest = [word for word in words if word.text]
        while self.rest:
            word = self.rest.pop(0)
            if word.text.startswith("--"):
                self._long(word)
            elif word.text.startswith("-") and len(word.text) > 1:
                self._short(word)
            elif word.text != "=" or not block.options:
                self._flaw("not-an-option", word.start, word.text)

    def _flaw(self, kind: str, start: int, text: str, hint: str = "") -> None:
        flaw = DirectiveFlaw(kind, self.offset + start, self.number, text, hint)
        self.block.flaws.append(flaw)

    def _value(self) -> str:
        return self.rest.pop(0).text if self.rest else ""

    def _long(self, word: _DirectiveWord) -> None:
        written, equals, given = word.text[2:].partition("=")
        name, value = long_name(written), given if equals else None
        is_next = bool(self.rest) and not self.rest[0].text.startswith("-")
        if name is None:
            self._flaw("unknown-option", word.start, written)
            value = self._value() if value is None and is_next else value
        elif value is None and name in SBATCH_WITH_VALUE:
            if not self.rest:
                self._flaw("option-without-value", word.start, f"--{written}")
                return
            value = self._value()
        if name is not None and value == "=":  # `--nodes = 2`
            self._flaw("blank-around-equals", word.start, f"--{written}", self._value())
            return
        self._option(name or written, value, f"--{written}", word.start, known=name is not None)

    def _option(
        self, name: str, value: str | None, written: str, start: int, *, known: bool = True
    ) -> None:
        option = Directive(name, value, self.number, written, self.offset + start, known)
        self.block.every.append(option)

    def _short(self, word: _DirectiveWord) -> None:
        for at, letter in enumerate(word.text[1:], start=2):
            name, value = SHORT_WITH_VALUE.get(letter), word.text[at:]
            if name is None and letter in SHORT_FLAGS:
                self._option(SHORT_FLAGS[letter], None, f"-{letter}", word.start)
                continue
            if name is None:
                self._flaw("unknown-letter", word.start, word.text[1:])
                if self.rest and not self.rest[0].text.startswith("-"):
                    self.rest.pop(0)
            elif not value and not self.rest:
                self._flaw("option-without-value", word.start, f"-{letter}")
            else:
                value = value or self._value()
                if value.startswith("="):
                    hint = f"-{letter} {value[1:]}"
                    self._flaw("short-option-equals", word.start, f"-{letter}{value}", hint)
                self._option(name, value, f"-{letter}", word.start)
            return


def long_name(written: str) -> str | None:
    """Return sbatch's name for `written`, which may be a unique prefix of it, as in getopt_long;
    None if sbatch has no such option.
    """
    if written in SBATCH:
        return ALIASES.get(written, written)
    matches = {
        ALIASES.get(name, name) for name in SBATCH if len(written) > 1 and name.startswith(written)
    }
    return matches.pop() if len(matches) == 1 else None


#: sbatch's long options that need a value.
SBATCH_WITH_VALUE = frozenset(
    {
        "account",
        "acctg-freq",
        "array",
        "batch",
        "bb",
        "bbf",
        "begin",
        "chdir",
        "cluster-constraint",
        "clusters",
        "cluster",
        "comment",
        "constraint",
        "consolidate-segments",
        "container",
        "container-id",
        "core-spec",
        "cores-per-socket",
        "cpu-freq",
        "cpus-per-gpu",
        "cpus-per-task",
        "deadline",
        "delay-boot",
        "dependency",
        "distribution",
        "error",
        "exclude",
        "export",
        "export-file",
        "extra",
        "extra-node-info",
        "gid",
        "gpu-bind",
        "gpu-freq",
        "gpus",
        "gpus-per-node",
        "gpus-per-socket",
        "gpus-per-task",
        "gres",
        "gres-flags",
        "hint",
        "input",
        "job-name",
        "jobid",
        "kill-on-invalid-dep",
        "licenses",
        "mail-type",
        "mail-user",
        "mcs-label",
        "mem",
        "mem-bind",
        "mem-per-cpu",
        "mem-per-gpu",
        "mincores",
        "mincpus",
        "minsockets",
        "minthreads",
        "network",
        "nodefile",
        "nodelist",
        "nodes",
        "ntasks",
        "ntasks-per-core",
        "ntasks-per-gpu",
        "ntasks-per-node",
        "ntasks-per-socket",
        "ntasks-per-tres",
        "open-mode",
        "output",
        "partition",
        "power",
        "prefer",
        "priority",
        "profile",
        "qos",
        "reservation",
        "segment",
        "signal",
        "sockets-per-node",
        "switches",
        "tasks",
        "tasks-per-node",
        "thread-spec",
        "threads-per-core",
        "time",
        "time-min",
        "tmp",
        "tres-bind",
        "tres-per-job",
        "tres-per-task",
        "uid",
        "wait-all-nodes",
        "wckey",
        "wrap",
    }
)
#: Options whose optional value must follow `=`.
SBATCH_OPTIONAL = frozenset(
    {"exclusive", "get-user-env", "nice", "no-kill", "oom-kill-step", "propagate", "resv-ports"}
)
SBATCH_FLAGS = frozenset(
    {
        "contiguous",
        "help",
        "hold",
        "ignore-pbs",
        "immediate",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "parsable",
        "quiet",
        "reboot",
        "requeue",
        "share",
        "spread-job",
        "spread-segments",
        "stepmgr",
        "test-only",
        "usage",
        "use-min-nodes",
        "verbose",
        "version",
        "wait",
    }
)
SBATCH = SBATCH_WITH_VALUE | SBATCH_OPTIONAL | SBATCH_FLAGS
#: Older names that sbatch still accepts.
ALIASES = {
    "tasks": "ntasks",
    "tasks-per-node": "ntasks-per-node",
    "cluster": "clusters",
    "share": "oversubscribe",
}
#: Names in other schedulers and common mistakes → sbatch's name.
OTHER_NAMES = {
    "walltime": "time",
    "wall-time": "time",
    "timelimit": "time",
    "time-limit": "time",
    "queue": "partition",
    "name": "job-name",
    "jobname": "job-name",
    "memory": "mem",
    "email": "mail-user",
    "mail": "mail-user",
    "gpu": "gpus-per-node",
    "ngpus": "gpus-per-node",
    "num-gpus": "gpus",
    "num-nodes": "nodes",
    "nnodes": "nodes",
    "num-tasks": "ntasks",
    "cores": "cpus-per-task",
    "cpus": "cpus-per-task",
    "ncpus": "cpus-per-task",
    "out": "output",
    "err": "error",
    "stdout": "output",
    "stderr": "error",
    "project": "account",
    "depend": "dependency",
    "cwd": "chdir",
    "workdir": "chdir",
    "gpu-per-node": "gpus-per-node",
    "tasks-per-gpu": "ntasks-per-gpu",
}

#: sbatch's short options that take a value, and their long names (src/sbatch/opt.c, sbatch(1)).
SHORT_WITH_VALUE = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "i": "input",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "S": "core-spec",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
#: Short options without a value.
SHORT_FLAGS = {
    "H": "hold",
    "h": "help",
    "I": "immediate",
    "k": "no-kill",
    "O": "overcommit",
    "Q": "quiet",
    "s": "oversubscribe",
    "V": "version",
    "v": "verbose",
    "W": "wait",
}
#: srun's short options that need a value in the same or the next word.
SRUN_SHORT_WITH_VALUE = {
    **{letter: name for letter, name in SHORT_WITH_VALUE.items() if letter not in "abF"},
    "r": "relative",
    "T": "threads",
    "W": "wait",
}
SRUN_SHORT_FLAGS = {
    **{letter: name for letter, name in SHORT_FLAGS.items() if letter not in "IW"},
    "E": "preserve-env",
    "l": "label",
    "u": "unbuffered",
    "X": "disable-status",
    "Z": "no-allocate",
}
#: srun's short options with an optional value, which must be in the same word.
SRUN_SHORT_OPTIONAL = {"I": "immediate", "K": "kill-on-bad-exit"}
#: srun's long options that need a value, in addition to sbatch's; includes those of pyxis.
SRUN_WITH_VALUE = (SBATCH_WITH_VALUE - {"array", "wrap", "wait-all-nodes", "parsable"}) | {
    "accel-bind",
    "bcast-exclude",
    "container-image",
    "container-mounts",
    "container-name",
    "container-save",
    "container-workdir",
    "container-env",
    "cpu-bind",
    "epilog",
    "het-group",
    "max-threads",
    "mpi",
    "multi-prog-file",
    "ntasks-per-tres",
    "pack-group",
    "prolog",
    "relative",
    "slurmd-debug",
    "task-epilog",
    "task-prolog",
    "threads",
    "treewidth",
    "wait",
}
#: Options of common plugins (pyxis, EAR, NVIDIA MPS), which are not mistakes.
PLUGINS = frozenset(
    {
        "container-entrypoint",
        "container-env",
        "container-image",
        "container-mount-home",
        "container-mounts",
        "container-name",
        "container-readonly",
        "container-remap-root",
        "container-save",
        "container-workdir",
        "container-writable",
        "ear",
        "ear-policy",
        "image",
        "module",
        "ear-verbose",
        "edf",
        "environment",
        "no-container-entrypoint",
        "no-container-mount-home",
        "no-container-remap-root",
        "nvmps",
        "uenv",
        "view",
        "x11",
    }
)
