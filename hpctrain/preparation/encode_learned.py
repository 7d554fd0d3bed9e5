"""What a chat template puts around messages: learned once, from small conversations that it renders.

The prompt for the assistant is what the template adds when asked for one; a turn's end is what an assistant's last turn and one in the
middle have in common, cut where a token ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hpctrain.preparation.encode_places import Span, marked, read_places
from hpctrain.preparation.encode_template import Refused, Template
from hpctrain.preparation.forms_rows import Message

_CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "sea"}}}


@dataclass(frozen=True, slots=True)
class Learned:
    """What a template puts between messages; a role that it refuses is missing.

    Attributes:
        prompts: by the role before: texts that end where the assistant's turn begins, the one that a model is given first.
        headers: by the role after: what begins the turn after an assistant's.
        turn_end: what ends a turn of the assistant in the middle.
        last_end: what ends the last one, and with it the text.
        opening: the prompt for the assistant's turn alone.
        last_differs: something else stands before the last turn of the assistant than before earlier ones.
        known: the words of a user and an assistant were found in what the template makes of them.
    """

    prompts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    turn_end: str = ""
    last_end: str = ""
    opening: str = ""
    last_differs: bool = False
    known: bool = False


class Learner:
    """Learns from one template.

    Args:
        template: the template.
        boundaries: returns the character positions at which a token of a text ends.
        special: returns the added token that a text begins with, or nothing.
    """

    def __init__(self, template: Template, boundaries: Callable[[str], set[int]], special: Callable[[str], str]) -> None:
        self.template = template
        self._boundaries = boundaries
        self._special = special

    def common(self, one: str, other: str) -> int:
        """Return how many characters two texts begin with alike, back to where a token ends in both."""
        alike = _alike(one, other)
        if alike in (len(one), len(other)):
            return alike
        both = self._boundaries(one) & self._boundaries(other)
        return max((at for at in both if at <= alike), default=0)

    def learn(self) -> Learned:
        """Render small conversations, and keep what stands between their messages."""
        user = self._after([_turn("user")], prompt=True)
        plain = self._after([_turn("user")])
        ending = self._after([_turn("user"), _turn("assistant")])
        last = self._after_last_word() if ending is None else ending
        following = self._between([_turn("user"), _turn("assistant"), _turn("user"), _turn("assistant")], 1)
        if following is None:
            following = self._between([_turn("user"), _turn("assistant"), _turn("user")], 1)
        turn_end = self._turn_end(following or "", last)
        headers = {} if following is None else {"user": following[len(turn_end) :]}
        again = self._between([_turn("user"), _turn("assistant"), _turn("assistant")], 1)
        if again is not None and again.startswith(turn_end):
            headers["assistant"] = again[len(turn_end) :]
        called = self._between([_turn("user"), {**_turn("assistant"), "tool_calls": [_CALL]}, {**_turn("tool"), "name": "look_up"}], 1)
        if called is not None and turn_end and turn_end in called:
            headers["tool"] = called[called.rfind(turn_end) + len(turn_end) :]
        opening = user.removeprefix(plain) if user is not None and plain is not None and user.startswith(plain) else ""
        talk = [_turn("user"), _turn("assistant"), _turn("user"), _turn("assistant")]
        differs = self._between(talk, 0) is not None and not (self._between(talk, 0) or "").endswith(self._between(talk, 2) or "")
        return Learned(self._learn_prompts(user), headers, turn_end, last, opening, differs, ending is not None)

    def _after_last_word(self) -> str:
        """Return what follows a content of the assistant that marks cannot show."""
        try:
            text = self.template.render([_turn("user"), _turn("assistant")], None)
        except Refused:
            return ""
        before, word, after = text.rpartition(str(_turn("assistant")["content"]))
        return after if before and word else ""

    def _turn_end(self, following: str, last: str) -> str:
        """Return what ends a turn that `following` stands after, by what stands after the last one."""
        common = following[: self.common(following, last)]
        if common or not last:
            return common
        # gpt-oss ends the last turn with <|return|> and others with <|end|>: two special tokens in one place.
        own, other = (self._special(text) for text in (following, last))
        return own if own and other else ""

    def _learn_prompts(self, user: str | None) -> dict[str, tuple[str, ...]]:
        """Return, by the role before, the prompt for the assistant, and what of it stands before turns that are there already."""
        talk = [_turn("user"), _turn("assistant"), _turn("user"), _turn("assistant")]
        tool = [_turn("user"), {**_turn("assistant"), "tool_calls": [_CALL]}, {**_turn("tool"), "name": "look_up"}]
        twice = [_turn("user"), _turn("assistant"), _turn("assistant")]
        asked = {
            "user": (user, ((talk[:2], 0), (talk, 0), (talk, 2))),
            "system": (self._after([_turn("system")], prompt=True), (([_turn("system"), _turn("assistant")], 0),)),
            "assistant": (self._after(talk[:2], prompt=True), ((twice, 1),)),
            "tool": (self._after(tool, prompt=True), (([*tool, _turn("assistant")], 2),)),
        }
        prompts: dict[str, tuple[str, ...]] = {}
        for role, (words, examples) in asked.items():
            if words is None:
                continue
            found = [words]
            for conversation, index in examples:
                actual = self._between(conversation, index)
                shorter = "" if actual is None else words[: self.common(words, actual)]
                if shorter and shorter not in found:
                    found.append(shorter)
            prompts[role] = tuple(found)
        return prompts

    def _after(self, messages: Sequence[Message], *, prompt: bool = False) -> str | None:
        """Return what follows the last message's content; None where the template does not take the conversation."""
        located = self._probed(messages, prompt=prompt)
        return None if located is None or len(messages) - 1 not in located[1] else located[0][located[1][len(messages) - 1][1] :]

    def _between(self, messages: Sequence[Message], index: int) -> str | None:
        """Return what stands between a message's content and the next one's."""
        located = self._probed(messages, prompt=False)
        if located is None or not {index, index + 1} <= located[1].keys():
            return None
        text, places = located
        return text[places[index][1] : places[index + 1][0]] if places[index][1] <= places[index + 1][0] else None

    def _probed(self, messages: Sequence[Message], *, prompt: bool) -> tuple[str, dict[int, Span]] | None:
        try:
            text = self.template.render(messages, None, prompt=prompt)
            shown = self.template.render([marked(message, index) for index, message in enumerate(messages)], None, prompt=prompt)
        except Refused:
            return None
        return text, read_places(text, shown)


def _turn(role: str) -> Message:
    return {"role": role, "content": "wordless"}


def _alike(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # by halves: comparing slices is faster than a loop over characters
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
