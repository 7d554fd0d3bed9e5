"""Commands that start other commands: srun, torchrun, accelerate, python, containers, shells; option by option."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from hpctrain.jobs.explain_script import option_rows, readings
from hpctrain.jobs.explain_script.command_rows import PROGRAMS
from hpctrain.jobs.explain_script.directive_rows import DIRECTIVES
from hpctrain.jobs.explain_script.read_shell import Word
from hpctrain.jobs.explain_script.rows import Row
from hpctrain.jobs.explain_script.said import Here, Part, Said, bare, fill, lower_first, name_of, say, shown
from hpctrain.scheduler.parse import directives

Explain = Callable[[list[Word], Here], Said]

_NO_ROWS: Mapping[str, Row] = {}
_NO_LETTERS: Mapping[str, str] = {}
_SHIPPED = {"hpctrain.training.sft": "SFT", "hpctrain.training.classify": "sequence classification"}


@dataclass(frozen=True, slots=True)
class Program:
    """How a program reads its words.

    Attributes:
        rows: its options.
        also: options of another program that it takes too.
        letters: short option → name in `rows` or `also`.
        flags: further long options without a value.
        then: what follows the options: `command`, `image`, `script` or `shell`.
        page: where its options are explained.
    """

    rows: Mapping[str, Row]
    then: str
    page: str
    also: Mapping[str, Row] = field(default_factory=dict)
    letters: Mapping[str, str] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()


_SRUN_LETTERS = {
    **directives.SHORT_WITH_VALUE, **directives.SHORT_FLAGS, "K": "kill-on-bad-exit", "l": "label", "u": "unbuffered", "W": "wait",
    "r": "relative", "T": "threads", "E": "preserve-env", "I": "immediate", "Z": "no-allocate", "X": "disable-status",
}  # fmt: skip
_ONE_LETTER = {letter: letter for letter in option_rows.PYTHON}
PROGRAM: dict[str, Program] = {
    "srun": Program(
        option_rows.SRUN, "command", "srun(1)", DIRECTIVES, _SRUN_LETTERS, frozenset(directives.LONG_FLAGS) | {"kill-on-bad-exit"}
    ),
    "torchrun": Program(option_rows.TORCHRUN, "script", "torchrun --help", letters={"m": "module", "r": "redirects", "t": "tee"}),
    "accelerate launch": Program(option_rows.ACCELERATE, "script", "accelerate launch --help", letters={"m": "module"}),
    "python": Program(option_rows.PYTHON, "script", "python(1)", letters=_ONE_LETTER),
    "apptainer": Program(option_rows.CONTAINER, "image", "apptainer exec --help", letters={"B": "bind", "e": "cleanenv", "c": "contain"}),
    "bash": Program(_NO_ROWS, "shell", "bash(1)", letters=_NO_LETTERS),
}
PROGRAM["singularity"] = PROGRAM["apptainer"]


def program_of(words: list[Word]) -> tuple[str, int] | None:
    """Return the key in `PROGRAM` of the command that `words` begin with, and the number of words that name it."""
    names = [name_of(word) for word in words[:3]]
    if names[:2] == ["accelerate", "launch"]:
        return "accelerate launch", 2
    if names[:1] in (["apptainer"], ["singularity"]) and names[1:2] and names[1] in ("exec", "run"):
        return names[0], 2
    if names and re.fullmatch(r"python[\d.]*", names[0]):
        module = bare(words[2].text) if len(words) > 2 and words[1].text == "-m" else ""
        if module in ("torch.distributed.run", "torch.distributed.launch"):
            return "torchrun", 3
        return ("accelerate launch", 3) if module == "accelerate.commands.launch" else ("python", 1)
    if names and re.fullmatch(r"(?:ba|da|k|z)?sh", names[0]):
        return "bash", 1
    return (names[0], 1) if names and names[0] in ("srun", "torchrun") else None


def launch(words: list[Word], here: Here, explain: Explain) -> Said | None:
    """Return what is said of a command that starts another one; None where it is none.

    `explain` explains the command that stands behind it.
    """
    found = program_of(words)
    if found is None or here.depth > 5:
        return None
    here = replace(here, depth=here.depth + 1)
    key, skip = found
    program = PROGRAM[key]
    said = say(PROGRAMS[key], here)
    parts, at = options(words, skip, program, here) if program.then != "shell" else ([], skip)
    rest = words[at:]
    inner = replace(here, place="task") if key == "srun" else here
    follow = {"command": behind, "image": _image, "script": _script, "shell": _shell}[program.then]
    return said.with_parts([*parts, *follow(rest, inner, explain)])


def options(words: list[Word], start: int, program: Program, here: Here) -> tuple[list[Part], int]:
    """Return what the options from `start` on are for, and the place of the first word that is none."""
    parts: list[Part] = []
    at = start
    while at < len(words) and words[at].text.startswith("-") and len(words[at].text) > 1:
        word = words[at]
        if word.text == "--":
            return parts, at + 1
        name, value, used = _split(words, at, program)
        row = program.rows.get(name) or program.also.get(name)
        taken = words[at : at + used]
        if row is None:
            parts.append(Part(word.line, shown(taken), f"hpctrain has no words for this option; see: {program.page}", None, known=False))
        else:
            it = readings.read(row.reading, value, here.facts)
            parts.append(Part(word.line, shown(taken), fill(row, here, it=it, value=here.facts.with_number(value or "")), row.source))
        at += used
        if name == "module" or (program.then == "script" and name in ("m", "c")):
            break  # what follows is the module, whatever it looks like
    return parts, at


def _split(words: list[Word], at: int, program: Program) -> tuple[str, str | None, int]:
    """Return the option's name in the tables, its value, and how many words it takes."""
    text = words[at].text
    after = words[at + 1] if at + 1 < len(words) else None
    if text.startswith("--"):
        raw, equals, value = text[2:].partition("=")
        name = raw.replace("_", "-")
        if equals:
            return name, bare(value), 1
    else:
        name = program.letters.get(text[1], text[1:] if len(text) > 2 else text[1])
        if len(text) > 2 and text[1] in program.letters:
            return name, bare(text[2:].removeprefix("=")), 1
    row = program.rows.get(name) or program.also.get(name)
    if (row is not None and row.flag) or name in program.flags or after is None:
        return name, None, 1
    if row is None and after.text.startswith("-"):
        return name, None, 1
    return name, bare(after.text), 2


def later(words: list[Word], here: Here, explain: Explain) -> list[Part]:
    """Return what the words of a command are for that runs later, in another place."""
    return behind(words, replace(here, place="task"), explain)


def behind(rest: list[Word], here: Here, explain: Explain) -> list[Part]:
    """Return what the words of a command are for that another one starts."""
    if not rest:
        return []
    said = explain(rest, here)
    named = program_of(rest)
    head = rest[: named[1] if named else 1]
    if named is not None and named[0] == "bash" and said.parts and said.parts[0].what.startswith("-"):
        first = said.parts[0]
        return [replace(first, what=f"{shown(head)} {first.what}"), *said.parts[1:]]
    return [Part(rest[0].line, shown(head), lower_first(said.why), said.source, said.known), *said.parts]


def _image(rest: list[Word], here: Here, explain: Explain) -> list[Part]:
    if not rest:
        return []
    return [Part(rest[0].line, shown(rest[:1]), "the container's image.", "apptainer exec --help"), *behind(rest[1:], here, explain)]


def _shell(rest: list[Word], here: Here, explain: Explain) -> list[Part]:
    del explain
    if not rest:
        return []
    at = next((number for number, word in enumerate(rest) if not word.text.startswith("-")), len(rest))
    if at == len(rest):
        return []
    line, inner = rest[0].line, rest[at]
    if not (at and rest[at - 1].text.endswith("c")):
        return [Part(line, shown(rest[: at + 1]), f"runs the lines of that file, {here.where}.", "bash(1)"), *_handed_on(rest[at + 1 :])]
    if inner.text.startswith("'"):
        why = f"what stands in single quotes runs {here.where}; its variables are expanded there, and not by this shell."
    else:
        why = f"what stands in the quotes runs {here.where}; in double quotes, this shell has expanded its variables before."
    tail = rest[at + 1 :]
    name = [Part(tail[0].line, shown(tail[:1]), "the name that this shell goes by ($0).", "bash(1)")] if tail else []
    return [Part(line, shown([*rest[:at]]) + " …", why, "bash(1)"), *name, *_handed_on(tail[1:])]


def _handed_on(words: list[Word]) -> list[Part]:
    return [Part(words[0].line, shown(words), 'goes into the quotes as "$@".', "bash(1)")] if words else []


def _script(rest: list[Word], here: Here, explain: Explain) -> list[Part]:
    del explain
    if not rest:
        return []
    first = rest[0]
    if bare(first.text) in ("$@", "${@}"):
        return [Part(first.line, shown([first]), "the words that were handed in: options, the training and its arguments.", "bash(1)"),
                *arguments(rest[1:], here)]  # fmt: skip
    if _expands(first):
        return [Part(first.line, shown([first]), _expands(first), "bash(1)"), *arguments(rest[1:], here)]
    shipped = _SHIPPED.get(bare(first.text))
    what = f"the {shipped} training that comes with hpctrain: each process runs it." if shipped else "the script that it runs."
    return [Part(first.line, shown([first]), what), *arguments(rest[1:], here, ours=shipped is not None)]


def arguments(words: list[Word], here: Here, *, ours: bool = False) -> list[Part]:
    """Return what the words behind the training script are for; those that only the script knows are said to be its own.

    `ours`: the script is a training of hpctrain, which is known to take the options of transformers and TRL.
    """
    parts: list[Part] = []
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = bare(word.text).partition("=")
        row = option_rows.TRAINING.get(name[2:].replace("_", "-")) if name.startswith("--") else None
        used = 1
        if name.startswith("-") and not equals:
            while at + used < len(words) and not words[at + used].text.startswith("-"):
                used += 1
            value = " ".join(bare(item.text) for item in words[at + 1 : at + used])
        if row is not None:
            meaning = fill(row, here, value=value or "yes")
            why = meaning if ours else f"for the script; where that takes transformers' options: {meaning}"
            parts.append(Part(word.line, shown(words[at : at + used]), why, row.source))
        elif bare(word.text) in ("$@", "${@}"):
            parts.append(Part(word.line, shown([word]), "the words that were handed in.", "bash(1)"))
        else:
            parts.append(Part(word.line, shown(words[at : at + used]), "for the script, which alone knows it."))
        at += used
    return _together(parts)


def _together(parts: list[Part]) -> list[Part]:
    """Return the parts, neighbours on one line that say the same as one."""
    found: list[Part] = []
    for part in parts:
        if found and (found[-1].line, found[-1].why) == (part.line, part.why):
            what = f"{found[-1].what} {part.what}"
            found[-1] = replace(part, what=what if len(what) <= 60 else what[:58].rstrip(" …") + " …")
        else:
            found.append(part)
    return found


def _expands(word: Word) -> str:
    """Return what a word stands for that is a variable or a command's output, and nothing else; empty for any other word."""
    inner = bare(word.text)
    if re.fullmatch(r"\$\(.*\)|`[^`]*`", inner, re.DOTALL):
        return "what this command prints, taken apart at blanks." if inner == word.text else "what this command prints."
    holds = re.fullmatch(r"\$\{?([A-Za-z_]\w*)(?:\[@\])?\}?", inner)
    return f"what the variable {holds[1]} holds." if holds else ""


def elements(words: tuple[Word, ...], here: Here, explain: Explain) -> list[Part]:
    """Return what the words of an array are for: a command of its own, or options and arguments of the script's launcher."""
    listed = list(words)
    if not listed:
        return []
    if all(_expands(word) for word in listed):
        return _together([Part(word.line, shown([word]), _expands(word), "bash(1)") for word in listed])
    if program_of(listed) is not None:
        return behind(listed, here, explain)
    launcher = {"accelerate": "accelerate launch"}.get(here.facts.launcher or "", here.facts.launcher)
    if launcher is None or (not listed[0].text.startswith("-") and launcher == "python"):
        return arguments(listed, here)
    program = PROGRAM[launcher]
    parts, at = options(listed, 0, program, here)
    if parts and not parts[0].known:
        return arguments(listed, here)  # no options of the launcher, so they belong to something else
    return [*parts, *_script(listed[at:], here, explain)]
