"""Rows to token ids and the spans of them that are trained on: chat template, tokenizer, mask, EOS, truncation.

What is trained on is decided in characters of the text, and goes to tokens by their offsets: prompt and answer are tokenised together, as
the model sees them, and a token across the border belongs to the answer. No torch: the tokenizer is transformers' fast one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hpctrain.errors import UsageError
from hpctrain.preparation import forms_rows
from hpctrain.preparation.encode_places import Span
from hpctrain.preparation.encode_template import Refused, Template, read_template
from hpctrain.preparation.encode_tokenizer import Tokenizer
from hpctrain.preparation.encode_turns import TurnFinder, Turns
from hpctrain.preparation.forms import Columns, Form
from hpctrain.preparation.rows import Dropped

LossOn = Literal["all", "completion", "assistant"]
Truncation = Literal["keep_start", "drop", "split"]
DEFAULT_LOSS: Final[Mapping[Form, LossOn]] = {
    "text": "all",
    "prompt-completion": "completion",
    "messages": "assistant",
    "alpaca": "completion",
}
MAX_CHARACTERS = 32_000_000
"""Of one example: its tokens take some hundred bytes each while they are made."""
_BATCH_CHARACTERS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How rows become tokens. Picklable.

    Attributes:
        tokenizer: a folder, or a name on the hub.
        columns: what the data is (`forms.detect`).
        loss_on: `all` tokens, the `completion` (what follows the prompt; of messages, the last assistant turn), or all `assistant` turns.
        max_length: tokens of an example at most; None: no bound.
        truncation: of an example that is longer: `keep_start`, `drop` it, or `split` it into several.
        template: a file with a chat template in place of the tokenizer's.
        template_options: variables for the template, such as enable_thinking.
        eos: end with the EOS token where the template does not end a turn by itself.
        system: system prompt of conversations that have none.
        as_chat: strings of prompt and completion become turns of user and assistant. (Alpaca's do wherever there is a chat template.)
        trust_remote_code: as in transformers.
    """

    tokenizer: str
    columns: Columns
    loss_on: LossOn
    max_length: int | None = None
    truncation: Truncation = "keep_start"
    template: str | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)
    eos: bool = True
    system: str | None = None
    as_chat: bool = False
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """One example.

    Attributes:
        input_ids: token ids (array of type `i`).
        trained: spans (start, stop) of tokens that the loss looks at, rising, apart from each other, not empty.
        truncated: tokens were cut off; of an example that was split, the first part says so.
        where: the row it came from.
        context_turns: turns of the assistant that are not trained on, because the template shows them otherwise than they were written.
    """

    input_ids: array[int]
    trained: tuple[Span, ...]
    truncated: bool = False
    where: str = ""
    context_turns: int = 0

    @property
    def trained_tokens(self) -> int:
        """Return how many tokens the loss looks at."""
        return sum(stop - start for start, stop in self.trained)

    def labels(self) -> array[int]:
        """Return the ids where they are trained on, -100 elsewhere."""
        labels = array("i", (-100,)) * len(self.input_ids)
        for start, stop in self.trained:
            labels[start:stop] = self.input_ids[start:stop]
        return labels


@dataclass(frozen=True, slots=True)
class _Laid:
    """A text that waits for its tokens.

    Attributes:
        text: all of it.
        trained: characters that are trained on; None: every token.
        chat: a template made the text, with all special tokens that it wants.
        eos: an EOS token is still to come.
        ends: the last thing in it is trained on, and so is an EOS after it.
    """

    text: str
    trained: tuple[Span, ...] | None
    chat: bool
    eos: bool
    ends: bool
    where: str
    context_turns: int = 0


class Encoder:
    """Encodes rows after one recipe.

    Attributes:
        recipe: the recipe.
        tokenizer: transformers' tokenizer.
        template: the text of the chat template that is applied; None where none is.
        vocabulary: number of token ids, added tokens included.
        notes: sentences that a person should read once, such as what was decided about EOS.

    Raises:
        UsageError: the tokenizer cannot be loaded, or cannot do what the recipe asks for.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        _check(recipe)
        self._tokens = Tokenizer(recipe.tokenizer, trust_remote_code=recipe.trust_remote_code)
        self.tokenizer = self._tokens.tokenizer
        self.vocabulary = len(self.tokenizer)
        given = None if recipe.template is None else read_template(recipe.template)
        own = given if given is not None else self._tokens.template(None)
        form = recipe.columns.form
        self._as_chat = (recipe.as_chat and form == "prompt-completion") or (form == "alpaca" and (own is not None or recipe.as_chat))
        chat = form == "messages" or self._as_chat or (form == "prompt-completion" and recipe.columns.conversational)
        if chat and own is None:
            raise _no_template(recipe)
        self._given = given
        self._finders: dict[str, TurnFinder] = {}
        self._ends: dict[str, bool] = {}
        self.template = own if chat else None
        self.notes = tuple(self._said(chat=chat))
        if recipe.eos and self.tokenizer.eos_token_id is None and not (chat and self._closed(self._finder(None))):
            raise UsageError(
                f"the tokenizer {recipe.tokenizer} has no EOS token, and an example should end with one",
                fix="set eos_token in its tokenizer_config.json, or: --no-eos",
            )

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[Encoded | Dropped]:
        """Return the examples of the rows, in order; a row gives several only where it is split.

        Memory: some hundred bytes for each token of the longest row, besides the result.
        """
        found: list[Encoded | Dropped] = []
        waiting: list[_Laid | Dropped] = []
        characters = 0
        for row in rows:
            laid = self._lay(row)
            waiting.append(laid)
            characters += len(laid.text) if isinstance(laid, _Laid) else 0
            if characters > _BATCH_CHARACTERS:
                found += self._flush(waiting)
                waiting, characters = [], 0
        found += self._flush(waiting)
        return found

    # -- text and characters -------------------------------------------------------------------------------------------

    def _lay(self, row: Mapping[str, Any]) -> _Laid | Dropped:
        columns, loss_on = self.recipe.columns, self.recipe.loss_on
        where = getattr(row, "where", "")
        example = forms_rows.example(row, columns.form, columns.names, system=self.recipe.system, as_chat=self._as_chat)
        if isinstance(example, Dropped):
            return example
        laid: _Laid | Dropped
        if isinstance(example, forms_rows.Text):
            laid = _Laid(example.text, None, chat=False, eos=self.recipe.eos, ends=True, where=where)
        elif isinstance(example, forms_rows.Pair):
            text = example.prompt + example.completion
            trained = None if loss_on == "all" else ((len(example.prompt), len(text)),)
            laid = _Laid(text, trained, chat=False, eos=self.recipe.eos, ends=True, where=where)
        else:
            laid = self._lay_chat(example, where)
        if isinstance(laid, _Laid) and len(laid.text) > MAX_CHARACTERS:
            return Dropped(f"more than {MAX_CHARACTERS:,} characters", where, f"{len(laid.text):,}")
        return laid

    def _lay_chat(self, chat: forms_rows.Chat, where: str) -> _Laid | Dropped:
        loss_on = self.recipe.loss_on
        try:
            finder = self._finder(chat.tools)
            eos = self.recipe.eos and not self._closed(finder)
            if loss_on == "all":
                return _Laid(finder.template.render(chat.messages, chat.tools), None, chat=True, eos=eos, ends=True, where=where)
            wanted = self._wanted(chat)
            text, turns = finder.find(chat.messages, chat.tools, wanted)
        except Refused as refused:
            return Dropped(refused.reason, where, refused.detail)
        if turns.lost:
            return Dropped("the assistant's turn is not to be found in what the chat template makes of it", where, _ordinal(turns.lost[0]))
        if not turns.spans:
            return Dropped(
                "the chat template shows the assistant's turns otherwise than they were written"
                if turns.rewritten
                else "no assistant turn is to be trained on",
                where,
            )
        spans = self._spans(chat, turns, len(text))
        ends = len(chat.messages) - 1 in turns.spans
        return _Laid(text, spans, chat=True, eos=eos, ends=ends, where=where, context_turns=len(turns.rewritten))

    def _wanted(self, chat: forms_rows.Chat) -> list[int]:
        """Return which turns of the assistant are trained on."""
        if self.recipe.loss_on == "completion":
            # Of a prompt and its completion, where the completion begins; it goes on to the end, whoever speaks.
            index = len(chat.messages) - 1 if chat.prompt is None else chat.prompt
            return [index] if index not in chat.untrained else []
        return [i for i, message in enumerate(chat.messages) if message["role"] == "assistant" and i not in chat.untrained]

    def _spans(self, chat: forms_rows.Chat, turns: Turns, length: int) -> tuple[Span, ...]:
        if self.recipe.loss_on == "completion" and chat.prompt is not None:
            return ((turns.spans[chat.prompt][0], length),)
        return tuple(sorted(turns.spans.values()))

    def _finder(self, tools: list[Any] | None) -> TurnFinder:
        """Return the finder for the template: a tokenizer may have another one for conversations with tools."""
        text = self._given if self._given is not None else self._tokens.template(tools)
        if text is None:
            raise _no_template(self.recipe)
        if text not in self._finders:
            template = Template(text, {**self._tokens.tokenizer.special_tokens_map, **self.recipe.template_options})
            self._finders[text] = TurnFinder(template, self._tokens.boundaries, self._tokens.leading_special)
        return self._finders[text]

    def _closed(self, finder: TurnFinder) -> bool:
        """Say whether the template ends the last turn with a token made for that."""
        if finder.template.text not in self._ends:
            self._ends[finder.template.text] = self._tokens.has_special(finder.learned.last_end)
        return self._ends[finder.template.text]

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _flush(self, waiting: Sequence[_Laid | Dropped]) -> Iterator[Encoded | Dropped]:
        texts = [laid.text for laid in waiting if isinstance(laid, _Laid)]
        offsets = any(isinstance(laid, _Laid) and laid.trained is not None for laid in waiting)
        encodings = iter(self._tokens.encode(texts, offsets=offsets))
        for laid in waiting:
            if isinstance(laid, Dropped):
                yield laid
                continue
            encoding = next(encodings)
            if encoding is None:
                yield Dropped("the text is not valid Unicode", laid.where, "half a surrogate pair")
            else:
                yield from self._finished(laid, encoding)

    def _finished(self, laid: _Laid, encoding: Any) -> Iterator[Encoded | Dropped]:
        ids = array("i", encoding.ids)
        before, after = (array("i"), array("i")) if laid.chat else self._tokens.around(ids)
        trained = () if laid.trained is None else _tokens_of(encoding, laid.trained, len(laid.text))
        if laid.eos and not self._tokens.ends_with_eos(ids + after):
            after = array("i", (self.tokenizer.eos_token_id,)) + after
        whole = before + ids + after
        if laid.trained is None:
            trained = ((0, len(whole)),) if len(whole) else ()
        else:
            shifted = [(start + len(before), stop + len(before)) for start, stop in trained]
            if laid.ends and after:
                shifted.append((len(before) + len(ids), len(whole)))
            trained = _joined(shifted)
        if not trained:
            yield Dropped("no token is trained on", laid.where)
            return
        yield from self._cut(whole, trained, laid)

    def _cut(self, ids: array[int], trained: tuple[Span, ...], laid: _Laid) -> Iterator[Encoded | Dropped]:
        most = self.recipe.max_length
        if most is None or len(ids) <= most:
            yield Encoded(ids, trained, False, laid.where, laid.context_turns)
        elif self.recipe.truncation == "drop":
            yield Dropped(f"longer than {most} tokens", laid.where, f"{len(ids)} tokens")
        elif self.recipe.truncation == "split":
            parts = [(at, _within(trained, at, at + most)) for at in range(0, len(ids), most)]
            kept_parts = [(at, spans) for at, spans in parts if spans]
            for number, (at, spans) in enumerate(kept_parts):
                yield Encoded(ids[at : at + most], spans, number == 0, laid.where, 0 if number else laid.context_turns)
        else:
            kept = _within(trained, 0, most)
            if kept:
                yield Encoded(ids[:most], kept, True, laid.where, laid.context_turns)
            else:
                yield Dropped(f"all trained tokens are beyond {most} tokens", laid.where, f"the first is token {trained[0][0]}")

    # -- said once -----------------------------------------------------------------------------------------------------

    def _said(self, *, chat: bool) -> Iterator[str]:
        form = self.recipe.columns.form
        if form == "alpaca":
            yield (
                "alpaca: as a conversation, with the chat template"
                if chat
                else "alpaca: with Stanford Alpaca's words, since there is no chat template"
            )
        if form == "prompt-completion" and not chat and (self._given or self._tokens.template(None)):
            yield "prompt and completion are taken as they are, without the chat template (--as-chat makes them turns of one)"
        if not chat:
            if self.recipe.eos:
                yield f"each example ends with {self.tokenizer.eos_token}"
            return
        finder = self._finder(None)
        learned = finder.learned
        if not self._closed(finder):
            ending = f"{self.tokenizer.eos_token} is added to the last" if self.recipe.eos else "nothing is added"
            yield f"the chat template does not end the assistant's turns with a special token: {ending}"
        if self.recipe.loss_on != "all" and not learned.known:
            yield "the chat template does not show what a message of text says: it may be one for messages of parts (images)"
        if form == "messages" and learned.last_differs and not finder.template.generation:
            yield "the chat template begins the assistant's last turn otherwise than earlier ones (see --show)"
        if "strftime_now" in finder.template.text:
            yield "the chat template writes the date of today into the text"


def _check(recipe: Recipe) -> None:
    form, loss_on = recipe.columns.form, recipe.loss_on
    if form == "text" and loss_on != "all":
        raise UsageError(f"a text has no {loss_on} to train on: all of it is", fix="--loss-on all")
    if loss_on == "assistant" and form not in ("messages", "alpaca") and not recipe.as_chat and not recipe.columns.conversational:
        raise UsageError("prompt and completion are strings, and have no assistant turns", fix="--loss-on completion")
    if recipe.max_length is not None and recipe.max_length < 2:
        raise UsageError(f"an example of at most {recipe.max_length} tokens teaches nothing", fix="--max-length 2048")


def _no_template(recipe: Recipe) -> UsageError:
    return UsageError(
        f"the tokenizer {recipe.tokenizer} has no chat template, and the data is conversations",
        details=("a base model's tokenizer often has none; its instruction-tuned sister has",),
        fix="give one: --template FILE.jinja",
    )


def _ordinal(index: int) -> str:
    return f"message {index + 1}"


def _tokens_of(encoding: Any, spans: Sequence[Span], length: int) -> tuple[Span, ...]:
    """Return the tokens that share a character with the spans of a text; offsets rise, and several tokens may share one character."""
    found = []
    for start, stop in spans:
        first = encoding.char_to_token(start)
        last = encoding.char_to_token(stop) if stop < length else len(encoding)
        if first is None or last is None:  # a character of no token: one that the tokenizer forgets
            return _tokens_by_offsets(encoding.offsets, spans)
        if last < len(encoding) and encoding.token_to_chars(last)[0] < stop:  # across the end: it is in, and so are others like it
            return _tokens_by_offsets(encoding.offsets, spans)
        if first < last:
            found.append((first, last))
    return _joined(found)


def _tokens_by_offsets(offsets: Sequence[Span], spans: Sequence[Span]) -> tuple[Span, ...]:
    starts = [start for start, _ in offsets]
    stops = [stop for _, stop in offsets]
    found = ((bisect_right(stops, start), bisect_left(starts, stop)) for start, stop in spans)
    return _joined([(first, last) for first, last in found if first < last])


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    joined: list[Span] = []
    for start, stop in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return tuple(joined)


def _within(spans: Sequence[Span], start: int, stop: int) -> tuple[Span, ...]:
    """Return what of the spans is between two tokens, counted from the first of these."""
    return tuple((max(a, start) - start, min(b, stop) - start) for a, b in spans if a < stop and b > start)
