"""Answers for `hpctrain init`: from an option, from what was found, from the person at the terminal, or the best of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import click

from hpctrain.config import layers
from hpctrain.config.fields import BY_PATH
from hpctrain.config.layers import KeyPath, Layer
from hpctrain.errors import UsageError
from hpctrain.jobs import shell

#: How to come to an answer that is not certain: ask; take the best and say so; or tell which options are missing.
Mode = Literal["ask", "best", "strict"]
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several answers, with what speaks for it or limits it."""

    value: str
    note: str = ""

    def __str__(self) -> str:
        """Return both on one line."""
        return f"{self.value}  ({self.note})" if self.note else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One key of the config.

    Attributes:
        path: where it stands; `option`: what answers it on the command line.
        text: of the question.
        choices: what was found; a single one needs no question.
        best: what --yes takes, and Enter; None: there is no best one.
        why: where the answer comes from when nobody gave one.
        needed: without an answer there is no config.
        open: any text may be the answer, not only one of the choices.
        limit: says what is wrong with an answer that the schema takes; None for nothing.
    """

    path: KeyPath
    option: str
    text: str
    choices: tuple[Choice, ...] = ()
    best: str | None = None
    why: str = ""
    needed: bool = False
    open: bool = False
    limit: Callable[[str], str | None] | None = None

    @property
    def words(self) -> str:
        """The option with everything that may stand behind it."""
        return f"{self.option} {' | '.join(choice.value for choice in self.choices[:_SHOWN]) or self.path[-1].upper()}"

    @property
    def words_of_best(self) -> tuple[str, str]:
        """The option with the best answer, or with the word that stands for one."""
        return self.option, self.best or self.path[-1].upper()


@dataclass(frozen=True, slots=True)
class Answer:
    """A value (None: nobody knows, and nobody has to) and where it comes from."""

    value: str | None
    why: str


@dataclass(slots=True)
class Answers:
    """All questions of one call, in their order, each seeing what was answered before.

    Attributes:
        given: the options, the HPCTRAIN_* variables and the user's own config, the strongest first.
        further: options that are no keys of the table: --model and --dataset.
        missing: questions that must be answered and were not.
        taken: what was taken because it was the best, in words.
    """

    mode: Mode
    given: Sequence[Layer]
    further: Mapping[KeyPath, str] = field(default_factory=dict)
    known: dict[KeyPath, Answer] = field(default_factory=dict)
    missing: list[Question] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def value(self, *path: str) -> str | None:
        """Return what has been answered so far."""
        answer = self.known.get(path)
        return answer.value if answer is not None else None

    def ask(self, question: Question) -> str | None:
        """Find the answer to a question and keep it."""
        answer = self._answer(question)
        self.known[question.path] = answer
        return answer.value

    def put(self, path: KeyPath, value: str, why: str) -> None:
        """Keep an answer to what nobody was asked."""
        self.known[path] = Answer(value, why)

    def layer(self) -> Layer:
        """Return the answers as a layer of a job config."""
        return _layer({path: answer.value for path, answer in self.known.items() if answer.value is not None})

    def _answer(self, question: Question) -> Answer:
        written = self.further.get(question.path) or layers.written(self.given, question.path)
        if isinstance(written, str) and written:
            return Answer(_checked(written, question), _origin(self.given, question))
        if len(question.choices) == 1:
            return Answer(question.choices[0].value, question.why)
        can_ask = question.open and self.mode == "ask"
        if not (question.choices or question.best or question.needed or can_ask):
            return Answer(None, question.why)
        if self.mode == "ask":
            return _asked(question)
        if question.needed and (self.mode == "strict" or question.best is None):
            self.missing.append(question)
        elif len(question.choices) > 1 and question.best is not None:
            self.taken.append(f"{question.option} {shell.quote(question.best)}: {question.why}")
        return Answer(question.best, question.why)


def _layer(values: Mapping[KeyPath, str]) -> Layer:
    return layers.from_options({path: value for path, value in values.items() if path in BY_PATH}, ())


def _checked(value: str, question: Question) -> str:
    """Return `value`, which the schema takes, the limits allow, and the choices have.

    Raises:
        UsageError: it is not so.
    """
    layers.resolve([_layer({question.path: value})], again="hpctrain init")
    problem = question.limit(value) if question.limit is not None else None
    if problem is not None:
        best = shell.quote(question.best or "VALUE")
        raise UsageError(f"{question.option} {value}: {problem}", fix=f"hpctrain init {question.option} {best}")
    known = {choice.value for choice in question.choices}
    if question.path[-1] in ("account", "qos"):  # whose case counts for nothing in Slurm
        known |= {value} & {value for name in known if name.lower() == value.lower()}
    if known and not question.open and value not in known:
        listed = tuple(f"  {choice}" for choice in question.choices[:_SHOWN])
        fix = f"hpctrain init {question.option} {shell.quote(question.best or question.choices[0].value)}"
        raise UsageError(f"{question.option} {value!r} is none of those that are known here", details=listed, fix=fix)
    return value


def _origin(given: Sequence[Layer], question: Question) -> str:
    origin = next((each.origins[question.path] for each in given if question.path in each.origins), question.option)
    return "your option" if origin.startswith("--") else origin


def _asked(question: Question) -> Answer:
    """Ask the person at the terminal until the answer is one; Enter takes the best."""
    click.echo(f"\n{question.text}", err=True)
    shown = question.choices[:_SHOWN] if len(question.choices) > 1 or question.open else ()
    for number, choice in enumerate(shown, 1):
        click.echo(f"  {number}  {choice}", err=True)
    if len(question.choices) > _SHOWN:
        click.echo(f"  and {len(question.choices) - _SHOWN} more, by name", err=True)
    hint = " (Enter: none)" if question.best is None and not question.needed else ""
    while True:
        default = question.best if question.best is not None else (None if question.needed else "")
        typed = str(click.prompt(f"{question.option}{hint}", default=default, show_default=bool(default), err=True)).strip()
        if not typed:
            return Answer(None, question.why)
        chosen = _numbered(typed, shown)
        try:
            _checked(chosen, question)
        except UsageError as error:
            click.echo("\n".join([f"  {error.what}", *error.details]), err=True)
            continue
        return Answer(chosen, question.why if chosen == question.best and not question.open else "your answer")


def _numbered(typed: str, shown: Sequence[Choice]) -> str:
    """Return the choice whose number was typed, unless that is itself one of the choices, as counts are."""
    if typed in {choice.value for choice in shown}:
        return typed
    return shown[int(typed) - 1].value if typed.isdecimal() and 1 <= int(typed) <= len(shown) else typed
