"""Where the assistant's turns are in the text that a chat template makes of a conversation.

A template with `{% generation %}` says it. For others, the places are found, and every finding is checked on the row itself:

1.  The conversation is rendered twice: as it is, and with a private-use character at both ends of each message. Without these characters,
    the second must be the first; then their places are the places of the messages. (Once, where the text is that of an earlier
    conversation, other messages put in.)
2.  What stands between two messages ends a turn and begins the next. Where one stops and the other starts is learned once
    (encode_learned.py).
3.  A row on which that does not fit is rendered up to each turn, and the beginnings must be beginnings of the whole.

A turn begins after the prompt for it, since a model is given that, and ends with all that ends it (`<|im_end|>` and the line's end).
A turn that the template shows otherwise than it was written (thinking left out of earlier turns) is context: nobody would want it learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.preparation.encode_learned import Learner
from hpctrain.preparation.encode_places import MOST, Span, by_gaps, leading, marked, read_places, trailing
from hpctrain.preparation.encode_template import Refused, Template
from hpctrain.preparation.forms_rows import Message

_MOST_GAPS = 1000


@dataclass(frozen=True, slots=True)
class Turns:
    """The assistant's turns in a text.

    Attributes:
        spans: by the index of the message: characters (start, stop).
        rewritten: turns that the template shows otherwise than they were written.
        lost: turns that could not be found.
    """

    spans: dict[int, Span]
    rewritten: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


class TurnFinder:
    """Finds the assistant's turns in what one template renders.

    Args:
        template: the template.
        boundaries: returns the character positions at which a token of a text ends.
        special: returns the added token that a text begins with, or nothing.
    """

    def __init__(self, template: Template, boundaries: Callable[[str], set[int]], special: Callable[[str], str]) -> None:
        self.template = template
        self._learner = Learner(template, boundaries, special)
        # What stood around the messages of the last conversation with these roles: mostly the same as around those of the next one.
        self._gaps: dict[tuple[str, ...], list[str]] = {}
        self.learned = self._learner.learn()

    # -- one row -------------------------------------------------------------------------------------------------------

    def find(self, messages: Sequence[Message], tools: list[Any] | None, wanted: Sequence[int]) -> tuple[str, Turns]:
        """Return the text of a conversation, and where the wanted turns of the assistant are in it.

        Raises:
            Refused: the template does not take the conversation.
        """
        if self.template.generation:
            text, spans = self.template.render_marked(messages, tools)
            turns = self._by_generation(text, spans, messages, wanted)
            if turns is not None:
                return text, turns
        else:
            text = self.template.render(messages, tools)
        places = self._places(text, messages, tools)
        found: dict[int, Span] = {}
        rewritten, lost = [], []
        for index in wanted:
            start = self._start(text, messages, tools, index, places)
            stop = self._stop(text, messages, tools, index, places)
            if start is None or stop is None or stop <= start:
                lost.append(index)
            elif not self._whole(messages[index], text, (start, stop), places.get(index)):
                rewritten.append(index)
            else:
                found[index] = start, stop
        return text, Turns(found, tuple(rewritten), tuple(lost))

    def _by_generation(self, text: str, spans: Sequence[Span], messages: Sequence[Message], wanted: Sequence[int]) -> Turns | None:
        """Return the turns that the template marks itself, each with what ends it; None where it marks others than the turns."""
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if len(turns) != len(spans):
            return None
        end = self.learned.turn_end  # which stands after the mark where it is not in it
        found: dict[int, Span] = {}
        rewritten = []
        for index, (start, stop) in zip(turns, spans, strict=True):
            if index not in wanted:
                continue
            if not self._whole(messages[index], text, (start, stop), None, said=True):
                rewritten.append(index)
            else:
                found[index] = start, stop + len(end) * text.startswith(end, stop)
        return Turns(found, tuple(rewritten))

    def _whole(self, message: Message, text: str, span: Span, place: Span | None, *, said: bool = False) -> bool:
        """Say whether a turn shows all that was written in it, white space aside.

        `place` is that of its content, if it is known; `said`: the template says itself that the turn is there.
        """
        start, stop = span
        end = next((words for words in (self.learned.last_end, self.learned.turn_end) if words and text.endswith(words, start, stop)), "")
        shown = text[start : stop - len(end)]
        parts = [message.get(name, "") for name in ("reasoning_content", "thinking", "reasoning")]
        for call in message.get("tool_calls", ()):
            function = call.get("function", call) if isinstance(call, dict) else {}
            parts.append(function.get("name", "") if isinstance(function, dict) else "")
        content = message.get("content", "").strip()
        if place is None and not said and not self.learned.known:
            return not content and bool(message.get("tool_calls"))
        if place is None:
            parts.append(content[_begun(content, text[max(0, start - len(self.learned.opening)) : start]) :])
        elif text[slice(*place)] != content:
            return False
        return all(_shows(shown, part) for part in parts if isinstance(part, str))

    def _places(self, text: str, messages: Sequence[Message], tools: list[Any] | None) -> dict[int, Span]:
        """Return where the messages are in the text, white space at their ends left out; those without a safe place are missing."""
        if len(messages) > MOST:
            return {}
        contents = [message.get("content", "") for message in messages]
        roles = tuple(message["role"] for message in messages)
        plain = all(content and not content[0].isspace() and not content[-1].isspace() for content in contents)
        if plain and (known := by_gaps(text, contents, self._gaps.get(roles))) is not None:
            return known
        try:
            shown = self.template.render([marked(message, index) for index, message in enumerate(messages)], tools)
        except Refused:
            return {}
        places = read_places(text, shown)
        if plain and len(places) == len(messages) and len(self._gaps) < _MOST_GAPS:
            ends = [0, *(at for place in places.values() for at in place), len(text)]
            if ends == sorted(ends):
                self._gaps[roles] = [text[ends[index] : ends[index + 1]] for index in range(0, len(ends), 2)]
        return places

    def _start(self, text: str, messages: Sequence[Message], tools: list[Any] | None, index: int, places: dict[int, Span]) -> int | None:
        """Return where the turn begins: where the prompt for it ends."""
        if index == 0:
            at = places.get(0)
            opening = self.learned.opening
            return at[0] if at is not None and opening and text.endswith(opening, 0, at[0]) else None
        before = places.get(index - 1)
        if before is not None:
            limit = places[index][1] if index in places else len(text)
            tail = trailing(messages[index - 1])
            for words in self.learned.prompts.get(messages[index - 1]["role"], ()):
                at_words = text.find(words, before[1], before[1] + tail + len(words))
                if at_words >= 0 and at_words + len(words) <= limit and not text[before[1] : at_words].strip():
                    return at_words + len(words)
        return self._start_by_beginning(text, messages, tools, index)

    def _start_by_beginning(self, text: str, messages: Sequence[Message], tools: list[Any] | None, index: int) -> int | None:
        """Return where the text begins to differ from the prompt for the turn, if it does not do so before that prompt is asked for."""
        try:
            asked = self.template.render(messages[:index], tools, prompt=True)
            before = self.template.render(messages[:index], tools)
        except Refused:
            return None
        if text.startswith(asked):
            return len(asked)
        common = self._learner.common(asked, text)
        return common if text.startswith(before) and asked.startswith(before) and common > len(before) else None

    def _stop(self, text: str, messages: Sequence[Message], tools: list[Any] | None, index: int, places: dict[int, Span]) -> int | None:
        """Return where the turn ends: where the next one begins."""
        if index == len(messages) - 1:
            return len(text)
        after = places.get(index + 1)
        header = self.learned.headers.get(messages[index + 1]["role"])
        if after is not None and header is not None:
            own = places.get(index, (0, 0))[1]
            for lead in {leading(messages[index + 1]), 0}:
                end = after[0] - lead
                if text.endswith(header, own, end) and text.endswith(self.learned.turn_end, own, end - len(header)):
                    return end - len(header)
        return self._stop_by_beginning(text, messages, tools, index)

    def _stop_by_beginning(self, text: str, messages: Sequence[Message], tools: list[Any] | None, index: int) -> int | None:
        try:
            up_to = self.template.render(messages[: index + 1], tools)
        except Refused:
            return None
        if text.startswith(up_to):
            return len(up_to)
        shorter = up_to.removesuffix(self.learned.last_end) + self.learned.turn_end
        return len(shorter) if self.learned.last_end and up_to.endswith(self.learned.last_end) and text.startswith(shorter) else None


def _shows(text: str, part: str) -> bool:
    return not part or part in text or "".join(part.split()) in "".join(text.split())


def _begun(content: str, before: str) -> int:
    """Return how much of a content the prompt before it says already: some prompts begin the thinking."""
    return next((length for length in range(min(len(before), len(content) - 1), 0, -1) if before.endswith(content[:length])), 0)
