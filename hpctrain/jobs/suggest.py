"""Suggested commands for a job: each has the options with which the job was requested, except those
that the suggestion changes. PURE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpctrain.config.fields import BY_PATH, RIVALS
from hpctrain.util import shell

#: Options of the job commands that take no value.
_FLAGS = frozenset(
    {
        "--all",
        "--dry-run",
        "--explain",
        "--force",
        "--help",
        "--job",
        "--json",
        "--local",
        "--no-check",
        "--no-slurm",
        "--no-snapshot",
        "--no-wait",
        "--parsable",
        "--quick",
        "--show-origin",
        "--wait",
    }
)
#: Mutually exclusive options: a suggested one replaces the others.
_RIVALS = tuple({BY_PATH[path].option for path in group} for group in RIVALS)
#: A line that is a job command, or that ends in `: ` and one.
_COMMAND = re.compile(
    r"(?P<lead>.*: |\s*)(?P<variables>(?:[A-Z_][A-Z0-9_]*=\S+ )*)"
    r"(?P<command>hpctrain (?:render|submit|check|fit|tune|doctor|resubmit)(?: .*)?)"
)
_Pair = tuple[tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options with which a job was requested.

    Attributes:
        words: the arguments of `hpctrain render`, long options only, as in the header of its
            script.
        directory: the working directory of the command, if not the current one.
        run: the name of the run, if it has one.
        tag: for an array task, the tag that `submit` takes instead of the run's name.
        index: for an array task, its index.
    """

    words: tuple[str, ...] = ()
    directory: str | None = None
    run: str | None = None
    tag: str | None = None
    index: int | None = None


class Command(str):
    """A complete command: no options of the job are added to it."""

    __slots__ = ()


def command(verb: str, asked: Asked, *changes: str, without: Sequence[str] = ()) -> Command:
    """Return the command that runs `verb` on the job, with the options and arguments in `changes`
    replacing the job's own.

    Args:
        verb: such as `submit`.
        asked: the request of the job.
        changes: argv: options, then `--` and training arguments.
        without: options and arguments to omit, `--sbatch=KEY` for one of sbatch's.
    """
    return Command(_there(asked) + _body(verb, asked, changes, without))


def _there(asked: Asked) -> str:
    return "" if asked.directory is None else f"cd {shell.quote(asked.directory)} && "


def _body(verb: str, asked: Asked, changes: Sequence[str], without: Sequence[str] = ()) -> str:
    if verb == "resubmit":
        return shell.join(("hpctrain", verb, *changes))
    new, arguments = _split(changes)
    names = [name for (name, _), _ in new]
    named = dict(new).get(("--run-id", ""))
    if asked.index is not None and named is not None and named[-1] in (asked.run, asked.tag):
        new = [pair for pair in new if pair[0][0] != "--run-id"] + [
            (("--run-id", ""), ("--run-id", asked.tag or ""))
        ]
        if "--array" not in names:
            new.append((("--array", ""), ("--array", str(asked.index))))
    own, before = _split(asked.words)
    gone = {key for key, _ in new} | {tuple(each.partition("=")[::2]) for each in without}
    gone |= {(rival, "") for group in _RIVALS for name in names if name in group for rival in group}
    gone |= {("--array", ""), ("--sweep", "")} if verb == "doctor" else set()
    gone |= {
        ("--sbatch", name.removeprefix("--")) for name in names
    }  # an equivalent option replaces it
    kept = [
        words
        for key, words in own
        if key not in gone and (words != ("--to", "-") or verb == "render")
    ]
    words = [word for pair in (*kept, *(pair for _, pair in new)) for word in pair]
    said = {name for name, _ in arguments} | {
        each.removeprefix("--").replace("-", "_") for each in without
    }
    behind = [
        *(group for name, group in before if name is None or name not in said),
        *(group for _, group in arguments),
    ]
    tail = ("--", *(word for group in behind for word in group)) if behind else ()
    return shell.join(("hpctrain", *verb.split(), *words, *tail))


def kept(text: str, asked: Asked) -> str:
    """Return a text with the job's options added to the command in each line; commands that name a
    script or a file stay unchanged.
    """
    if isinstance(text, Command):
        return text
    return "\n".join(_kept_line(line, asked) for line in text.split("\n"))


def _kept_line(line: str, asked: Asked) -> str:
    found = _COMMAND.fullmatch(line)
    if found is None:
        return line
    made = []
    for command in found["command"].split(" && "):
        try:
            program, verb, *words = shell.split(command)
        except ValueError:
            return line
        options = [name for (name, _), _ in _split(words)[0]]
        names_file = verb != "resubmit" and any(not name.startswith("-") for name in options)
        if program != "hpctrain" or names_file or "--help" in options:
            return line
        made.append(_body(verb, asked, words))
    return found["lead"] + _there(asked) + found["variables"] + " && ".join(made)


def _split(words: Sequence[str]) -> tuple[list[_Pair], list[tuple[str | None, list[str]]]]:
    """Return the options with their values, keyed by what must be unique, and the training
    arguments in groups.
    """
    cut = list(words).index("--") if "--" in words else len(words)
    return list(_options(words[:cut])), shell.option_groups(words[cut + 1 :])


def _options(words: Sequence[str]) -> Iterator[_Pair]:
    position = 0
    while position < len(words):
        word = words[position]
        name, equals, value = word.partition("=")
        takes = not equals and word not in _FLAGS and position + 1 < len(words)
        pair = (word, words[position + 1]) if takes else (word,)
        value = pair[-1] if takes else value
        yield (name, value.partition("=")[0] if name == "--sbatch" else ""), pair
        position += len(pair)
