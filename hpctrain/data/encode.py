"""Encoding of examples as token ids and unmasked spans: chat template, tokenizer, mask, EOS,
truncation.

The mask is computed on characters and mapped to tokens by their offsets. Prompt and answer are
tokenized together, as the model sees them; a token across their boundary belongs to the answer. No
torch: the tokenizer is a fast one of transformers.
"""

from __future__ import annotations

import copy
import importlib
import os
import re
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from hpctrain.data import forms
from hpctrain.data.chat import ChatTemplate, Refused, Span, TurnFinder, read_template
from hpctrain.data.forms import Columns, Form
from hpctrain.data.readers import Dropped
from hpctrain.errors import UsageError
from hpctrain.util import installed, stored

LossOn = Literal["all", "completion", "assistant"]
Truncation = Literal["keep_start", "drop"]
DEFAULT_LOSS: Final[Mapping[Form, LossOn]] = {
    "text": "all",
    "prompt-completion": "completion",
    "messages": "assistant",
    "alpaca": "completion",
}
MAX_CHARACTERS = 32_000_000
"""Per example: each token takes some hundred bytes during encoding."""
_PROBE = "a"
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeOptions:
    """How to encode examples, as requested.

    Attributes:
        max_length: maximum tokens per example; None: no limit.
        truncation: for longer examples: `keep_start` or `drop`.
        template: a chat template file that replaces the tokenizer's.
        template_options: variables for the template, such as enable_thinking.
        system: system prompt for conversations that have none.
        as_chat: turn prompt and completion strings into a user and an assistant turn.
    """

    max_length: int | None = None
    truncation: Truncation = "keep_start"
    template: Path | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    as_chat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(EncodeOptions):
    """How to encode examples, with the columns of the data.

    Attributes:
        tokenizer: a directory, or a name on the Hub.
        columns: the detected columns (`forms.detect`).
        loss_on: `all` tokens, the `completion` (the text after the prompt; for messages, the last
            assistant turn), or all `assistant` turns.
    """

    tokenizer: str
    columns: Columns
    loss_on: LossOn


@dataclass(frozen=True, slots=True)
class Encoded:
    """One encoded example.

    Attributes:
        input_ids: token ids (array of type `i`).
        trained: spans (start, stop) of unmasked tokens: ascending, disjoint, not empty.
        truncated: tokens were cut off.
        where: the row it came from.
        context_turns: assistant turns that are masked because the template rewrites them.
    """

    input_ids: array[int]
    trained: tuple[Span, ...]
    truncated: bool = False
    where: str = ""
    context_turns: int = 0

    def labels(self) -> array[int]:
        """Return the ids where they are unmasked, -100 elsewhere."""
        labels = array("i", (-100,)) * len(self.input_ids)
        for start, stop in self.trained:
            labels[start:stop] = self.input_ids[start:stop]
        return labels


@dataclass(frozen=True, slots=True)
class _Laid:
    """A text before tokenization.

    Attributes:
        text: the whole text.
        trained: unmasked character spans; None: every token.
        chat: a template rendered the text, with all special tokens.
        eos: an EOS token must still be appended.
        ends: the end of the text is unmasked, and so is an EOS after it.
    """

    text: str
    trained: tuple[Span, ...] | None
    chat: bool
    eos: bool
    ends: bool
    where: str
    context_turns: int = 0


class Encoder:
    """Encodes rows according to one recipe.

    Attributes:
        recipe: the recipe.
        tokenizer: the transformers tokenizer.
        template: the source of the chat template; None if none is applied.
        vocabulary: number of token ids, added tokens included.
        notes: sentences about decisions, such as about EOS.

    Raises:
        UsageError: the tokenizer cannot be loaded, or does not support the recipe.
    """

    template: str | None = None

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        _check(recipe)
        self._tokens = FastTokenizer(recipe.tokenizer)
        self.tokenizer = self._tokens.tokenizer
        self.vocabulary = len(self.tokenizer)
        self._given = None if recipe.template is None else read_template(str(recipe.template))
        self._finders: dict[str, TurnFinder] = {}
        closed = False
        form = recipe.columns.form
        if (
            form in ("messages", "alpaca")
            or recipe.as_chat
            or (form == "prompt-completion" and recipe.columns.conversational)
        ):
            finder = self._finder(None)
            self.template, closed = finder.template.text, self._is_closed(finder)
        self.notes = tuple(self._decided(closed=closed))
        if self.tokenizer.eos_token_id is None and not closed:
            raise UsageError(
                f"the tokenizer {recipe.tokenizer} has no EOS token, and an example should end"
                " with one",
                hint="set eos_token in its tokenizer_config.json",
            )

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> list[Encoded | Dropped]:
        """Return the examples of the rows, in order.

        Memory: some hundred bytes per token of all rows.
        """
        return list(self._tokenize([self._lay(row) for row in rows]))

    # -- text and characters -----------------------------------------------------------------------

    def _lay(self, row: Mapping[str, Any]) -> _Laid | Dropped:
        columns, loss_on = self.recipe.columns, self.recipe.loss_on
        where = getattr(row, "where", "")
        example = forms.example(
            row, columns.form, columns.names, system=self.recipe.system, as_chat=self.recipe.as_chat
        )
        if isinstance(example, Dropped):
            return example
        laid: _Laid | Dropped
        if isinstance(example, forms.PromptCompletion):
            text = example.prompt + example.completion
            trained = None if loss_on == "all" else ((len(example.prompt), len(text)),)
            laid = _Laid(text, trained, chat=False, eos=True, ends=True, where=where)
        else:
            laid = self._lay_chat(example, where)
        if isinstance(laid, _Laid) and len(laid.text) > MAX_CHARACTERS:
            return Dropped(f"more than {MAX_CHARACTERS:,} characters", where, f"{len(laid.text):,}")
        if isinstance(laid, _Laid) and _SURROGATE.search(laid.text):
            return Dropped("the text is not valid Unicode", where, "half a surrogate pair")
        return laid

    def _lay_chat(self, chat: forms.Chat, where: str) -> _Laid | Dropped:
        loss_on = self.recipe.loss_on
        try:
            finder = self._finder(chat.tools)
            eos = not self._is_closed(finder)
            if loss_on == "all":
                text = finder.template.render(chat.messages, chat.tools)
                return _Laid(text, None, chat=True, eos=eos, ends=True, where=where)
            text, turns = finder.find(chat.messages, chat.tools, self._wanted(chat))
        except Refused as refused:
            return Dropped("the chat template refuses it", where, str(refused))
        if turns.lost:
            reason = "the assistant's turn cannot be found in the rendered chat template"
            return Dropped(reason, where, f"message {turns.lost[0] + 1}")
        if not turns.spans:
            reason = "every assistant turn is masked"
            if turns.rewritten:
                reason = "the chat template rewrites the assistant's turns"
            return Dropped(reason, where)
        spans = tuple(sorted(turns.spans.values()))
        if loss_on == "completion" and chat.prompt is not None:
            spans = ((turns.spans[chat.prompt][0], len(text)),)
        return _Laid(
            text,
            spans,
            chat=True,
            eos=eos,
            ends=len(chat.messages) - 1 in turns.spans,
            where=where,
            context_turns=len(turns.rewritten),
        )

    def _wanted(self, chat: forms.Chat) -> list[int]:
        if self.recipe.loss_on == "completion":
            # For a prompt and completion, the first turn of the completion, which extends to the
            # end regardless of roles.
            index = len(chat.messages) - 1 if chat.prompt is None else chat.prompt
            return [index] if index not in chat.untrained else []
        return [
            i
            for i, message in enumerate(chat.messages)
            if message["role"] == "assistant" and i not in chat.untrained
        ]

    def _finder(self, tools: list[Any] | None) -> TurnFinder:
        """Return the finder for the template; a tokenizer may have another one for conversations
        with tools.
        """
        recipe, tokens = self.recipe, self._tokens
        text = tokens.template(tools) if self._given is None else self._given
        if text is None:
            raise UsageError(
                f"the tokenizer {recipe.tokenizer} has no chat template, and the data is conversations",
                details=(
                    "a base model's tokenizer often has none; its instruction-tuned sister has",
                ),
                hint="name one: --template FILE.jinja",
            )
        if text not in self._finders:
            variables = {**self.tokenizer.special_tokens_map, **recipe.template_options}
            self._finders[text] = TurnFinder(
                ChatTemplate(text, variables), tokens.boundaries, tokens.leading_special
            )
        return self._finders[text]

    def _is_closed(self, finder: TurnFinder) -> bool:
        """Whether the template ends the last turn with a special token."""
        return self._tokens.has_special(finder.last_end)

    # -- tokens ------------------------------------------------------------------------------------

    def _tokenize(self, waiting: Sequence[_Laid | Dropped]) -> Iterator[Encoded | Dropped]:
        texts = [laid.text for laid in waiting if isinstance(laid, _Laid)]
        offsets = any(isinstance(laid, _Laid) and laid.trained is not None for laid in waiting)
        encodings = iter(self._tokens.encode(texts, offsets=offsets))
        for laid in waiting:
            if isinstance(laid, Dropped):
                yield laid
                continue
            yield self._finished(laid, next(encodings))

    def _finished(self, laid: _Laid, encoding: Any) -> Encoded | Dropped:
        ids = array("i", encoding.ids)
        before, after = (array("i"), array("i")) if laid.chat else self._tokens.around(ids)
        trained = () if laid.trained is None else _tokens_of(encoding.offsets, laid.trained)
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
            return Dropped("no token is unmasked", laid.where)
        return self._cut(whole, trained, laid)

    def _cut(self, ids: array[int], trained: tuple[Span, ...], laid: _Laid) -> Encoded | Dropped:
        most = self.recipe.max_length
        if most is None or len(ids) <= most:
            return Encoded(ids, trained, False, laid.where, laid.context_turns)
        if self.recipe.truncation == "drop":
            return Dropped(f"longer than {most} tokens", laid.where, f"{len(ids)} tokens")
        kept = tuple((start, min(stop, most)) for start, stop in trained if start < most)
        if not kept:
            reason = f"all trained tokens are beyond {most} tokens"
            return Dropped(reason, laid.where, f"the first is token {trained[0][0]}")
        return Encoded(ids[:most], kept, True, laid.where, laid.context_turns)

    def _decided(self, *, closed: bool) -> Iterator[str]:
        eos = self.tokenizer.eos_token
        if self.template is None:
            if self.recipe.columns.form == "prompt-completion" and self._tokens.template(None):
                yield "prompt and completion are used without the chat template (or: --as-chat)"
            yield f"each example ends with {eos}"
        elif not closed:
            yield f"the chat template ends turns without a special token: {eos} is added to the last"


def _check(recipe: Recipe) -> None:
    form, loss_on = recipe.columns.form, recipe.loss_on
    if form == "text" and loss_on != "all":
        raise UsageError(
            f"a text has no {loss_on} to train on: all of it is", hint="use --loss-on all"
        )
    if (
        loss_on == "assistant"
        and form not in ("messages", "alpaca")
        and not recipe.as_chat
        and not recipe.columns.conversational
    ):
        raise UsageError(
            "prompt and completion are strings, and have no assistant turns",
            hint="use --loss-on completion",
        )


def _tokens_of(offsets: Sequence[Span], spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the tokens that overlap the character spans; offsets ascend, and several tokens may
    share a character.
    """
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


# -- the tokenizer ---------------------------------------------------------------------------------


def load_libraries(*, without_torch: bool) -> None:
    """Import transformers and datasets.

    `without_torch` hides torch from them unless it is already imported: importing it takes a second
    or two and 200 MB, and nothing here uses it.

    Raises:
        HpctrainError: a library is not installed.
    """
    hidden = without_torch and "torch" not in sys.modules
    if hidden:
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # otherwise it suggests installing torch
        sys.modules["torch"] = None  # type: ignore[assignment] # the import system's "not found"
    try:
        installed.require("prepare", "pyarrow", "tokenizers", "datasets", "transformers")
        # Both cache whether torch is available.
        importlib.import_module("transformers.utils").is_torch_available()
    finally:
        if hidden:
            del sys.modules["torch"]


class FastTokenizer:
    """A fast tokenizer of transformers that never adds a special token twice.

    Texts are encoded without special tokens. The tokens that the tokenizer adds around a text (BOS,
    [CLS], an EOS) are learned once and added here, unless the text already has them.

    Attributes:
        tokenizer: the transformers tokenizer.

    Raises:
        UsageError: it cannot be loaded, or is not a fast one.
    """

    def __init__(self, name: str) -> None:
        self.tokenizer: Any = _load(name)
        if not getattr(self.tokenizer, "is_fast", False):
            raise UsageError(
                f"the tokenizer {name} has no fast version (tokenizer.json), which says where in"
                " the text a token is",
                hint=(
                    "save it with AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER), and"
                    " name that directory"
                ),
            )
        self._backend = copy.deepcopy(self.tokenizer.backend_tokenizer)
        self._backend.no_padding()
        self._backend.no_truncation()
        self._before, self._after = _around(self._backend)
        self._backend.post_processor = None  # it would exclude white space from the offsets
        self._special = sorted(
            {
                str(token)
                for token in self.tokenizer.added_tokens_decoder.values()
                if str(token).strip()
            },
            key=len,
        )

    def template(self, tools: list[Any] | None) -> str | None:
        """Return the tokenizer's chat template; None if it has none, or several without a default."""
        template: dict[str, str] | str | None = self.tokenizer.chat_template
        if isinstance(template, dict):
            template = (tools and template.get("tool_use")) or template.get("default")
        return template

    def encode(self, texts: Sequence[str], *, offsets: bool) -> list[Any]:
        """Return the encodings of texts, with only the special tokens that the texts contain."""
        encode = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
        return list(encode(list(texts), add_special_tokens=False))

    def around(self, ids: array[int]) -> tuple[array[int], array[int]]:
        """Return the ids to add before and after a text, without those that it already has."""
        before, after = self._before, self._after
        if before and ids[: len(before)] == before:
            before = array("i")
        if after and ids[-len(after) :] == after:
            after = array("i")
        return before, after

    def ends_with_eos(self, ids: array[int]) -> bool:
        """Whether the ids end with EOS, or with EOS and the ids that the tokenizer appends."""
        eos = self.tokenizer.eos_token_id
        return eos is not None and (
            (eos in self._after and ids[-len(self._after) :] == self._after)
            or ids[-1:] == array("i", (eos,))
        )

    def boundaries(self, text: str) -> set[int]:
        """Return 0 and the character positions at which tokens end."""
        return {
            0,
            *(stop for _, stop in self._backend.encode(text, add_special_tokens=False).offsets),
        }

    def leading_special(self, text: str) -> str:
        """Return the added token at the start of the text, or an empty string."""
        return next((token for token in reversed(self._special) if text.startswith(token)), "")

    def has_special(self, text: str) -> bool:
        """Whether the text contains an added token."""
        return any(token in text for token in self._special)


def _load(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(stored.expanded(name)), use_fast=True)
    except Exception as error:  # transformers lets its readers' exceptions through
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"cannot load the tokenizer {name}",
            details=(f"transformers said: {words[0]}", *words[1:4]),
            hint="name a directory with tokenizer.json and tokenizer_config.json",
        ) from error


def _around(backend: Any) -> tuple[array[int], array[int]]:
    plain = backend.encode(_PROBE, add_special_tokens=False).ids
    full = backend.encode(_PROBE, add_special_tokens=True).ids
    for at in range(len(full) - len(plain) + 1):
        if full[at : at + len(plain)] == plain:
            return array("i", full[:at]), array("i", full[at + len(plain) :])
    return array("i"), array("i")
