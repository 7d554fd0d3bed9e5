"""Chat templates: rendering as in transformers, and the positions of the assistant's turns in the
text.

A template with `{% generation %}` marks them. For others, they are located, and each is verified on
the example itself:

1. The conversation is rendered twice: unchanged, and with a private-use character at both ends of
   each message, excluding white space. Without these characters, the second text must equal the
   first; then they give the positions of the messages.
2. The text between two messages ends one turn and begins the next. The boundary is learned once,
   from small conversations (`_learn`).
3. A conversation that does not match is rendered up to each turn, and these texts must be prefixes
   of the whole.

A turn begins after its prompt, which the model is given, and includes its end (`<|im_end|>` and the
newline). A turn that the template rewrites (thinking removed from earlier turns) is context: it
would teach the model a text that it never produces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hpctrain.data.forms import Message
from hpctrain.errors import UsageError
from hpctrain.util import stored

Span = tuple[int, int]

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_FIRST = 0xF0000
_MARKS = re.compile("[\U000f0000-\U000ffffd]")
_MOST = (0xFFFFD - _FIRST) // 2  # messages per conversation; each needs two marks


class Refused(Exception):  # noqa: N818 - the template's answer about one conversation
    """The template rejects the conversation; contains its message."""


class ChatTemplate:
    """One chat template, with its variables.

    Attributes:
        text: the Jinja source.
        generation: whether it marks the assistant's text with `{% generation %}`.
    """

    def __init__(self, text: str, variables: Mapping[str, Any]) -> None:
        from transformers.utils.chat_template_utils import render_jinja_template

        self.text = text
        self.generation = _GENERATION.search(text) is not None
        self._variables = dict(variables)
        self._render = render_jinja_template

    def render(
        self,
        messages: Sequence[Message],
        tools: list[Any] | None,
        *,
        prompt: bool = False,
        marked: bool = False,
    ) -> tuple[str, list[Span]]:
        """Return the text of a conversation; `marked`: also the character spans (start, stop) inside
        `{% generation %}` blocks; `prompt`: followed by the prompt for the assistant's next turn.

        Raises:
            Refused: the template rejects it.
            UsageError: the template is not valid Jinja.
        """
        from jinja2 import TemplateError, TemplateSyntaxError

        try:
            texts, spans = self._render(
                [messages],
                tools=tools,
                chat_template=self.text,
                return_assistant_tokens_mask=marked,
                add_generation_prompt=prompt,
                **self._variables,
            )
        except TemplateSyntaxError as error:
            raise UsageError(
                f"the chat template is not Jinja: line {error.lineno}: {error.message}",
                hint="name another one with --template FILE",
            ) from error
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise Refused(str(error) or type(error).__name__) from error
        return str(texts[0]), [
            (int(start), int(stop)) for start, stop in (spans[0] if marked else ())
        ]

    def text_of(
        self, messages: Sequence[Message], tools: list[Any] | None = None, *, prompt: bool = False
    ) -> str | None:
        """Return the text of a conversation; None if the template rejects it."""
        try:
            return self.render(messages, tools, prompt=prompt)[0]
        except Refused:
            return None


def read_template(path: str) -> str:
    """Return the text of a template file.

    Raises:
        UsageError: it cannot be read, or is not UTF-8.
    """
    try:
        return stored.read_text(stored.expanded(path)).removeprefix("\ufeff")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the chat template {path}: {getattr(error, 'strerror', None) or error}",
            hint="name a Jinja file with --template FILE",
        ) from error


# -- the turns of one conversation -----------------------------------------------------------------


class Turns(NamedTuple):
    """The assistant's turns in a text.

    Attributes:
        text: the whole conversation.
        spans: message index to characters (start, stop).
        rewritten: turns whose text the template changes.
        lost: turns that could not be located.
    """

    text: str
    spans: dict[int, Span]
    rewritten: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


class TurnFinder:
    """Locates the assistant's turns in the output of one template.

    Args:
        template: the template.
        boundaries: returns the character positions at which a token of a text ends.
        special: returns the added token at the start of a text, or an empty string.

    Attributes:
        last_end: the text that ends the assistant's last turn, and with it the conversation.
        known: whether the content of a small conversation was located in the template's output.
    """

    def __init__(
        self,
        template: ChatTemplate,
        boundaries: Callable[[str], set[int]],
        special: Callable[[str], str],
    ) -> None:
        self.template = template
        self._boundaries, self._special = boundaries, special
        self._learn()

    def find(
        self, messages: Sequence[Message], tools: list[Any] | None, wanted: Sequence[int]
    ) -> Turns:
        """Return the text of a conversation, and the positions of the requested assistant turns.

        Raises:
            Refused: the template rejects the conversation.
        """
        text, marks = self.template.render(messages, tools, marked=self.template.generation)
        own = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        spans = {index: span for index, span in zip(own, marks, strict=False) if index in wanted}
        if self.template.generation and len(own) == len(marks):
            end = self._turn_end  # follows the marked span unless it is inside
            found = {
                index: (start, stop + len(end) * text.startswith(end, stop))
                for index, (start, stop) in spans.items()
                if self._is_whole(messages[index], text, (start, stop), None, marked=True)
            }
            return Turns(text, found, tuple(index for index in spans if index not in found))
        places = self._places(text, messages, tools)
        found = {}
        rewritten, lost = [], []
        for index in wanted:
            start = self._start(text, messages, tools, index, places)
            stop = self._stop(text, messages, tools, index, places)
            if start is None or stop is None or stop <= start:
                lost.append(index)
            elif self._is_whole(messages[index], text, (start, stop), places.get(index)):
                found[index] = start, stop
            else:
                rewritten.append(index)
        return Turns(text, found, tuple(rewritten), tuple(lost))

    def _is_whole(
        self, message: Message, text: str, span: Span, place: Span | None, *, marked: bool = False
    ) -> bool:
        """Whether a turn contains its whole message, white space aside.

        `place` is the position of its content, if known; `marked`: the template marks the turn
        itself.
        """
        start, stop = span
        ends = (end for end in (self.last_end, self._turn_end) if end)
        end = next((end for end in ends if text.endswith(end, start, stop)), "")
        shown = text[start : stop - len(end)]
        parts = [message.get(name, "") for name in ("reasoning_content", "thinking", "reasoning")]
        for call in message.get("tool_calls", ()):
            function = call.get("function", call) if isinstance(call, dict) else {}
            parts.append(function.get("name", "") if isinstance(function, dict) else "")
        content = message.get("content", "").strip()
        if place is None and not marked and not self.known:
            return not content and bool(message.get("tool_calls"))
        if place is None:
            before = text[max(0, start - len(self._opening)) : start]
            parts.append(content[_begun(content, before) :])
        elif text[slice(*place)] != content:
            return False
        return all(
            part in shown or "".join(part.split()) in "".join(shown.split())
            for part in parts
            if isinstance(part, str)
        )

    def _places(
        self,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        *,
        prompt: bool = False,
    ) -> dict[int, Span]:
        """Return the positions of the messages, without surrounding white space; messages without a
        reliable position are missing.
        """
        if len(messages) > _MOST:
            return {}
        marked = [_marked(message, index) for index, message in enumerate(messages)]
        found = self.template.text_of(marked, tools, prompt=prompt)
        return {} if found is None else _read_places(text, found)

    def _start(
        self,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        index: int,
        places: dict[int, Span],
    ) -> int | None:
        if index == 0:
            at = places.get(0, (0, 0))[0]
            return at if self._opening and text.endswith(self._opening, 0, at) else None
        before = places.get(index - 1)
        if before is not None:
            limit = places[index][1] if index in places else len(text)
            tail = before[1] + len(_parts(messages[index - 1])[2])
            for words in self._prompts.get(messages[index - 1]["role"], ()):
                at = text.find(words, before[1], tail + len(words))
                if at >= 0 and at + len(words) <= limit and not text[before[1] : at].strip():
                    return at + len(words)
        requested = self.template.text_of(messages[:index], tools, prompt=True)
        plain = self.template.text_of(messages[:index], tools)
        if requested is None or plain is None:
            return None
        common = self._common(requested, text)
        begins = text.startswith(plain) and requested.startswith(plain) and common > len(plain)
        return common if begins or text.startswith(requested) else None

    def _stop(
        self,
        text: str,
        messages: Sequence[Message],
        tools: list[Any] | None,
        index: int,
        places: dict[int, Span],
    ) -> int | None:
        if index == len(messages) - 1:
            return len(text)
        after = places.get(index + 1)
        header = self._headers.get(messages[index + 1]["role"])
        if after is not None and header is not None:
            own = places.get(index, (0, 0))[1]
            for lead in {len(_parts(messages[index + 1])[0]), 0}:
                end = after[0] - lead - len(header)
                if text.startswith(header, end) and text.endswith(self._turn_end, own, end):
                    return end
        up_to = self.template.text_of(messages[: index + 1], tools)
        if up_to is None:
            return None
        if text.startswith(up_to):
            return len(up_to)
        shorter = up_to.removesuffix(self.last_end) + self._turn_end
        ends = self.last_end and up_to.endswith(self.last_end) and text.startswith(shorter)
        return len(shorter) if ends else None

    # -- the template's text around messages -------------------------------------------------------

    def _learn(self) -> None:
        """Render small conversations and store the text between their messages; roles that the
        template rejects are missing.
        """
        user, own = _turn("user"), _turn("assistant")
        tool = [
            user,
            {**own, "tool_calls": [_CALL]},
            {**_turn("tool"), "name": "look_up"},
        ]
        ending = self._gap([user, own], 2)
        self.known = ending is not None
        if ending is None:  # the marks cannot locate the content
            text = self.template.text_of([user, own]) or ""
            before, word, after = text.rpartition(_WORD)
            ending = after if before and word else ""
        self.last_end = ending
        asked, plain = self._gap([user], 1, prompt=True) or "", self._gap([user], 1)
        # Only the prompt for the assistant's turn.
        begins = plain is not None and asked.startswith(plain)
        self._opening = asked.removeprefix(plain or "") if begins else ""
        # The end of an assistant turn inside a conversation, and the start of the next turn, by
        # role.
        following = self._gap([user, own, user, own], 2)
        if following is None:
            following = self._gap([user, own, user], 2)
        self._turn_end = (following or "")[: self._common(following or "", self.last_end)]
        if self.last_end and not self._turn_end and self._special(self.last_end):
            # gpt-oss ends the last turn with <|return|> and others with <|end|>: two special tokens
            # in one place.
            self._turn_end = self._special(following or "")
        self._headers = {} if following is None else {"user": following[len(self._turn_end) :]}
        again, called = self._gap([user, own, own], 2), self._gap(tool, 2)
        if again is not None and again.startswith(self._turn_end):
            self._headers["assistant"] = again[len(self._turn_end) :]
        if called is not None and self._turn_end and self._turn_end in called:
            self._headers["tool"] = called.rpartition(self._turn_end)[2]
        # By preceding role: texts that end where the assistant's turn begins; first the generation
        # prompt, then the part of it that precedes existing turns.
        self._prompts: dict[str, list[str]] = {}
        for talk in ([user], [_turn("system")], [user, own], tool):
            words = self._gap(talk, len(talk), prompt=True)
            if words is None:
                continue
            found = self._prompts.setdefault(talk[-1]["role"], [words])
            for more in ([own], [own, user, own]):
                actual = self._gap([*talk, *more], len(talk))
                shorter = words[: self._common(words, actual or "")]
                if shorter and shorter not in found:
                    found.append(shorter)

    def _gap(self, messages: Sequence[Message], index: int, *, prompt: bool = False) -> str | None:
        """Return the text before a message's content (after the last message: the end); None if the
        template rejects or changes the conversation.
        """
        text = self.template.text_of(messages, prompt=prompt)
        if text is None:
            return None
        places = self._places(text, messages, None, prompt=prompt)
        if not {index - 1, index} & set(range(len(messages))) <= places.keys():
            return None
        start, stop = places[index - 1][1], places.get(index, (len(text), 0))[0]
        return text[start:stop] if start <= stop else None

    def _common(self, one: str, other: str) -> int:
        """Return the length of the common prefix of two texts, back to a token boundary in both."""
        pairs = enumerate(zip(one, other, strict=False))
        alike = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
        if alike in (len(one), len(other)):
            return alike
        both = self._boundaries(one) & self._boundaries(other)
        return max((at for at in both if at <= alike), default=0)


_WORD = "wordless"
_CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "sea"}}}


def _turn(role: str) -> Message:
    return {"role": role, "content": _WORD}


def _begun(content: str, before: str) -> int:
    """Return how much of a content is already in the prompt: some prompts start the thinking."""
    lengths = range(min(len(before), len(content) - 1), 0, -1)
    return next((length for length in lengths if before.endswith(content[:length])), 0)


# -- where the messages are ------------------------------------------------------------------------


def _parts(message: Message) -> tuple[str, str, str]:
    """Return a content without surrounding white space, and the white space around it."""
    content = message.get("content", "")
    core = content.strip()
    head, _, tail = content.partition(core) if core else (content, "", "")
    return head, core, tail


def _marked(message: Message, index: int) -> Message:
    """Return the message with a private-use character at both ends of its stripped content; an
    empty message is unchanged.
    """
    head, core, tail = _parts(message)
    opened, closed = chr(_FIRST + 2 * index), chr(_FIRST + 2 * index + 1)
    return {**message, "content": f"{head}{opened}{core}{closed}{tail}"} if core else message


def _read_places(text: str, marked: str) -> dict[int, Span]:
    """Return the positions of the messages, if `marked` without its marks is `text` (which then has
    none of its own).

    A mark that occurs twice, or without its counterpart, is ignored.
    """
    if _MARKS.sub("", marked) != text:
        return {}
    ends: tuple[dict[int, list[int]], ...] = ({}, {})
    for count, found in enumerate(_MARKS.finditer(marked)):
        index, end = divmod(ord(found[0]) - _FIRST, 2)
        ends[end].setdefault(index, []).append(found.start() - count)
    return {
        index: (starts[0], ends[1][index][0])
        for index, starts in ends[0].items()
        if len(starts) == len(ends[1].get(index, ())) == 1 and starts[0] < ends[1][index][0]
    }
