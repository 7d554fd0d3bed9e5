"""One statement → what is said of it: rows of the tables where there is one, and a plain "your own command" where there is none."""

from __future__ import annotations

import re

from hpctrain.jobs.explain_script import launch, read_shell, run_rows, variable_rows
from hpctrain.jobs.explain_script.command_rows import CLOSERS, COMMANDS, KEYWORDS, SET
from hpctrain.jobs.explain_script.facts import Facts
from hpctrain.jobs.explain_script.read_shell import Command, Statement, Word
from hpctrain.jobs.explain_script.rows import ENVIRONMENT, LAUNCH, MEET, OWN, Row
from hpctrain.jobs.explain_script.said import Here, Part, Said, bare, lower_first, name_of, say, shown
from hpctrain.jobs.explain_script.statement_rows import STATEMENTS

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=")
_FUNCTION = re.compile(r"(?:function\s+)?([\w-]+)\s*\(\s*\)|function\s+([\w-]+)")
_HOLDS = re.compile(r"\"?\$(?:\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?|[@*])\"?")
_SINGLE = re.compile(r"'[^']*'")
#: `$SLURM_…`, `${SLURM_…`, and the bare name in `$((…))`.
_SLURM = re.compile(r"(?<!\\)\$\{?(SLURMD?_\w+)|(?<=[(\s])(SLURMD?_\w+)(?=[^()]{0,200}\)\))")
_ESCAPED_RANK = re.compile(r"\\\$\{?(SLURM_\w+)")
_LOOK_BEHIND = {
    "||": "if that fails: ",
    "&&": "if that succeeds: ",
    "|": "gets what the command before it writes, and ",
    "|&": "gets what the command before it writes, and ",
}
_ONE_WORD = {"then", "else", "do", "{", "!", "time", "if", "elif", "while", "until", "nohup", "exec"}
_DECLARES = {"export", "declare", "typeset", "readonly", "local"}


def explain(statement: Statement, facts: Facts) -> Said:
    """Return what is said of a statement that is no comment."""
    here = Here(facts, statement.place, statement.early, any(">&2" in command.redirections for command in statement.commands))
    said = _by_its_own_row(statement, here) or _by_its_commands(statement, here)
    if not statement.closed:
        said = said.with_parts(
            [Part(statement.first, "…", "a quote or a bracket that opens here is never closed: bash will refuse it.", "bash(1)")]
        )
    return said.with_parts(_ranks(statement, here))


def begins_function(statement: Statement) -> bool:
    """Return whether the statement begins a function."""
    return _FUNCTION.match(statement.text) is not None


def leading_words(command: Command) -> list[str]:
    """Return the words of the shell at the beginning of a command: `if`, `do for`, `}`; a function's name is left out."""
    words = [word.text for word in command.words]
    found = []
    while words and words[0] in _ONE_WORD | set(KEYWORDS) | set(CLOSERS):
        found.append(words.pop(0))
        if found[-1] not in _ONE_WORD:
            break
    return found


def slurm_variables(statement: Statement) -> dict[str, int]:
    """Return Slurm's variables that the statement's shell expands, each with the line of its first use; none of programs within it."""
    text = _expanded(statement)
    found: dict[str, int] = {}
    for match in _SLURM.finditer(text):
        name = match[1] or match[2]
        if name not in found:
            found[name] = statement.first + text.count("\n", 0, match.start())
    return found


def _expanded(statement: Statement) -> str:
    """Return the text of the statement that its own shell expands: nothing in single quotes, nothing within programs."""
    text = statement.text
    for command in statement.commands:
        for word in command.words:
            if word.program:
                text = text.replace(word.text, "\n" * word.text.count("\n"))
    return _SINGLE.sub(lambda match: "\n" * match[0].count("\n"), text)


def _ranks(statement: Statement, here: Here) -> list[Part]:
    """Say of the numbers of tasks whether they are expanded in the task, or too early."""
    found = {name: line for name, line in slurm_variables(statement).items() if name in variable_rows.RANKS}
    if here.place == "task" and not here.early:
        return [Part(line, f"${name}", f"{variable_rows.RANKS[name]}; each task has its own.", "srun(1)") for name, line in found.items()]
    later = {match[1] for match in _ESCAPED_RANK.finditer(statement.text)} if here.early else set()
    own = [
        Part(statement.first, f"${name}", f"{variable_rows.RANKS[name]}; `\\$`: each task has its own.", "srun(1)")
        for name in variable_rows.RANKS
        if name in later
    ]
    quotes = "the double quotes let the script's own shell expand it" if here.early else "expanded by this script's own shell"
    return own + [
        Part(line, f"${name}", f"{variable_rows.RANKS[name]}; but {quotes}, where it is 0 for all.", "sbatch(1), srun(1)")
        for name, line in found.items()
    ]


def _by_its_own_row(statement: Statement, here: Here) -> Said | None:
    for pattern, row in (*run_rows.STATEMENTS, *STATEMENTS):
        match = pattern.match(statement.text)
        if match is not None:
            words = {name: bare(value) for name, value in match.groupdict(default="").items()}
            said = say(row, here, **words, each=_each(words, here))
            arrays = [word for command in statement.commands for word in command.words if word.elements]
            return said.with_parts([part for word in arrays for part in launch.elements(word.elements, here, _words)])
    return None


def _each(words: dict[str, str], here: Here) -> str:
    """Return `: 32 cores / 4 = 8 for each`, where a statement shares out the task's cores."""
    share = words.get("share", "")
    if not share.isdecimal() or not 0 < len(share) < 6 or here.facts.cores is None or int(share) == 0:
        return ""
    return f": {here.facts.cores} cores / {int(share)} = {here.facts.cores // int(share)} for each"


def _by_its_commands(statement: Statement, here: Here) -> Said:
    function = _FUNCTION.match(statement.text)
    if function is not None:
        name = function[1] or function[2]
        return Said(f"a function: the lines down to `}}` run when `{name}` is called.", "bash(1)")
    said: Said | None = None
    before = ""
    for command in statement.commands:
        if command.words:
            this = _command(command, here)
            if said is None:
                said = this
            elif this is not None and not _is_closer(command):
                what = shown(_without_keywords(list(command.words))[1], 40)
                why = _LOOK_BEHIND.get(before, "") + lower_first(this.why)
                sign = before if before in _LOOK_BEHIND else ""
                said = said.with_parts([Part(command.line, f"{sign} {what}".strip(), why, this.source, this.known), *this.parts])
        before = command.operator
    if said is None:
        return Said("a shell of its own: what is set in the brackets is forgotten behind them.", "bash(1)")
    if statement.commands and statement.commands[-1].operator == "&":
        said = said.with_parts(
            [Part(statement.last, "&", "in the background: the script goes on at once; `wait` waits for its end.", "bash(1)")]
        )
    return said


def _is_closer(command: Command) -> bool:
    return command.words[0].text in ("fi", "done", "esac", "}")


def _without_keywords(words: list[Word]) -> tuple[list[str], list[Word]]:
    keywords = []
    while words and words[0].text in _ONE_WORD:
        keywords.append(words[0].text)
        words = words[1:]
    return keywords, words


def _command(command: Command, here: Here) -> Said | None:
    keywords, words = _without_keywords(list(command.words))
    first = next((keyword for keyword in keywords if keyword in KEYWORDS), None)
    head = words[0].text if words else ""
    if head in ("for", "select", "case"):
        return _round(head, words[1:])
    if not words:
        return Said(KEYWORDS[first].format(args=""), "bash(1)") if first else None
    said = _words(words, here)
    if first in ("if", "elif", "while", "until"):
        condition = Part(words[0].line, shown(words, 40), lower_first(said.why), said.source, said.known)
        return Said(KEYWORDS[first].format(args=""), "bash(1)", parts=(condition, *said.parts))
    return said


def _round(head: str, words: list[Word]) -> Said:
    """Return what is said of `for NAME in WORDS`, `select` and `case WORD in`."""
    if head == "case":
        return Said(KEYWORDS[head].format(args=shown([word for word in words if word.text != "in"])), "bash(1)")
    if len(words) > 2 and words[1].text == "in":
        return Said(KEYWORDS[head].format(args=f"${words[0].text} being each of {shown(words[2:])}"), "bash(1)")
    return Said(KEYWORDS[head].format(args=shown(words)), "bash(1)")


def _words(words: list[Word], here: Here) -> Said:
    """Return what is said of one simple command."""
    assigned = 0
    while assigned < len(words) and _ASSIGNMENT.match(words[assigned].text):
        assigned += 1
    if assigned == len(words):
        return _assignments(words, here, exported=False)
    if assigned:
        parts = [Part(word.line, shown([word]), _variable(word, here, exported=True).why) for word in words[:assigned]]
        said = _words(words[assigned:], here)
        return Said(said.why, said.source, said.section, (*parts, *said.parts), said.known)
    name = name_of(words[0])
    if name in _DECLARES:
        return _assignments([word for word in words[1:] if not word.text.startswith("-")], here, exported=name == "export")
    if name == "unset":
        return _unset(words[1:], here)
    return launch.launch(words, here, _words) or _by_its_name(words, here)


def _by_its_name(words: list[Word], here: Here) -> Said:
    name, rest = name_of(words[0]), words[1:]
    if words[0].text in here.facts.functions:
        return Said(f"calls the function `{name}` of line {here.facts.functions[name]}.", "bash(1)")
    two = f"{name} {bare(rest[0].text)}" if rest else ""
    row = COMMANDS.get(two) or COMMANDS.get(name)
    if row is not None:
        args = rest[1:] if two in COMMANDS else rest
        said = say(row, here, args=bare(shown(args)), trap=_trap(rest), code=_code(rest))
        return said.with_parts(_set(rest)) if name == "set" else said
    holds = _HOLDS.fullmatch(words[0].text)
    if holds is not None:
        what = f"the words that the variable {holds[1]} holds" if holds[1] else "the words that were handed in"
        behind = launch.behind(rest, here, _words) if launch.program_of(rest) else launch.arguments(rest, here)
        return Said(f"runs {what} as a command, {here.where}.", "bash(1)", LAUNCH, tuple(behind))
    if here.place == "batch" and re.search(r"\.(?:sh|py|bash)\Z", name):
        return Said(f"your own script `{name}`. It runs {here.where}.", None, OWN, known=False)
    return Said(f"your own command; hpctrain does not know `{name}`. It runs {here.where}.", None, OWN, known=False)


def _assignments(words: list[Word], here: Here, *, exported: bool) -> Said:
    if len(words) == 1:
        return _variable(words[0], here, exported=exported)
    if not words:
        return Said("lists all variables.", "bash(1)")
    each = [_variable(word, here, exported=exported) for word in words]
    parts = [Part(word.line, shown([word]), said.why, said.source, said.known) for word, said in zip(words, each, strict=True)]
    section = next((said.section for said in each if said.section), None)
    why = "sets variables for all programs that start from here on:" if exported else "sets variables:"
    return Said(why, "bash(1)", section, tuple(parts))


def _variable(word: Word, here: Here, *, exported: bool) -> Said:
    """Return what is said of `NAME=value`, or of a bare NAME behind export."""
    match = _ASSIGNMENT.match(word.text)
    name = match[1] if match else bare(word.text)
    value = bare(word.text[match.end() :]) if match else f"${name}"
    row = variable_rows.VARIABLES.get(name)
    if row is not None:
        return say(row, here, value=value if len(value) < 60 else "…")
    family = next((reader for prefix, reader in variable_rows.FAMILIES if name.startswith(prefix)), None)
    if family is not None:
        section = MEET if name.startswith("MASTER_") else ENVIRONMENT
        return Said(f"a setting for {family}.", None, section)
    if word.elements:
        return Said("words for a command below, as an array.", "bash(1)", None, tuple(launch.elements(word.elements, here, _words)))
    inside = _command_in(word, match.end() if match else 0)
    if inside:
        return Said("words for a command below, as one text; the shell takes it apart at blanks.", "bash(1)", LAUNCH,
                    tuple(launch.later(inside, here, _words)))  # fmt: skip
    if value in ("$?", "${?}"):
        return Said(f"keeps the exit code of the command before it as ${name}.", "bash(1)")
    if exported:
        return Said(f"hands the variable {name} to all programs that start from here on. What it means is theirs to say.", "bash(1)")
    return Said(f"keeps a value as ${name} for later lines of this script.", "bash(1)")


def _command_in(word: Word, start: int) -> list[Word]:
    """Return the words of a command that is kept as text, `LAUNCHER="accelerate launch …"`; none where it is something else."""
    text = word.text[start:]
    if len(text) < 3 or text[0] not in "'\"" or text[-1] != text[0]:
        return []
    inside = next(iter(read_shell.read(text[1:-1], line=word.line, depth=3)), None)
    words = list(inside.commands[0].words) if inside is not None and inside.commands else []
    return words if words and launch.program_of(words) is not None else []


def _unset(words: list[Word], here: Here) -> Said:
    names = [bare(word.text) for word in words if not word.text.startswith("-")]
    if len(names) != 1:
        return Said(f"forgets these variables, whatever your shell had set: {', '.join(names)}.", "bash(1)", ENVIRONMENT)
    row = variable_rows.VARIABLES.get(names[0])
    rest = "" if row is None or "{value}" in row.why else f" It is: {lower_first(say(row, here).why)}"
    return Said(f"forgets {names[0]}, whatever your shell had set.{rest}", "bash(1)", ENVIRONMENT)


def _set(words: list[Word]) -> list[Part]:
    """Return what `set -euo pipefail` switches on and off."""
    parts, off = [], ""
    for word in words:
        if re.fullmatch(r"[-+][a-zA-Z]+", word.text):
            off = "switched off: " if word.text[0] == "+" else ""
            parts += [
                Part(word.line, word.text[0] + letter, f"{off}{SET[letter]}.", "bash(1)") for letter in word.text[1:] if letter in SET
            ]
        elif f"o {word.text}" in SET:
            parts.append(Part(word.line, word.text, f"{off}{SET['o ' + word.text]}.", "bash(1)"))
    return parts


def _code(words: list[Word]) -> str:
    """Return what an exit code means to Slurm."""
    code = bare(words[0].text) if words else ""
    if code.isdecimal():
        return f" with exit code {code}: {'FAILED' if code.strip('0') else 'COMPLETED'}"
    return f" with the exit code {code}: 0 is COMPLETED, any other FAILED" if code else " with the exit code of the last command"


def _trap(words: list[Word]) -> str:
    if len(words) < 2:
        return "says what to do on a signal."
    signals = " or ".join(bare(word.text) for word in words[1:])
    action = bare(words[0].text)
    if action in ("", ":"):
        return f"{signals} does not end this shell."
    return f"on {signals} it runs: {shown(words[:1])}. Bash does so only when the command it waits for has ended; `wait` is cut short."


def row_of_comment(text: str, rows: tuple[tuple[re.Pattern[str], Row], ...]) -> Row | None:
    """Return the row of a comment that is more than a remark."""
    return next((row for pattern, row in rows if pattern.match(text)), None)
