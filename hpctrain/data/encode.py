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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

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
#: Per example: each token takes some hundred bytes during encoding.
MAX_CHARACTERS = 32_000_000
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


class _Laid(NamedTuple):
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
    where: str
    chat: bool = False
    eos: bool = True
    ends: bool = True
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
        form = recipe.columns.form
        is_chat = (
            form in ("messages", "alpaca")
            or recipe.as_chat
            or (form == "prompt-completion" and recipe.columns.conversational)
        )
        if form == "text" and recipe.loss_on != "all":
            raise UsageError(
                f"a text has no {recipe.loss_on} to train on: all of it is",
                hint="use --loss-on all",
            )
        if recipe.loss_on == "assistant" and not is_chat:
            raise UsageError(
                "prompt and completion are strings, and have no assistant turns",
                hint="use --loss-on completion",
            )
        self._tokens = FastTokenizer(recipe.tokenizer)
        self.tokenizer = self._tokens.tokenizer
        self.vocabulary = len(self.tokenizer)
        self._given = None if recipe.template is None else read_template(str(recipe.template))
        self._finders: dict[str, TurnFinder] = {}
        self.notes: tuple[str, ...] = ()
        closed, eos = False, self.tokenizer.eos_token
        if is_chat:
            finder = self._finder(None)
            self.template, closed = finder.template.text, self._is_closed(finder)
            if not closed:
                self.notes = (
                    f"the chat template ends turns without a special token: {eos} is added to the"
                    " last",
                )
        else:
            self.notes = (f"each example ends with {eos}",)
            if form == "prompt-completion" and self._tokens.template(None):
                words = "prompt and completion are used without the chat template (or: --as-chat)"
                self.notes = (words, *self.notes)
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
        laid = [self._lay(row) for row in rows]
        texts = [each.text for each in laid if isinstance(each, _Laid)]
        offsets = any(isinstance(each, _Laid) and each.trained is not None for each in laid)
        encodings = iter(self._tokens.encode(texts, offsets=offsets))
        return [
            each if isinstance(each, Dropped) else self._finished(each, next(encodings))
            for each in laid
        ]

    # -- text and characters -----------------------------------------------------------------------

    def _lay(self, row: Mapping[str, Any]) -> _Laid | Dropped:
        columns, where = self.recipe.columns, getattr(row, "where", "")
        example = forms.example(
            row, columns.form, columns.names, system=self.recipe.system, as_chat=self.recipe.as_chat
        )
        if isinstance(example, forms.PromptCompletion):
            text = example.prompt + example.completion
            spans = None if self.recipe.loss_on == "all" else ((len(example.prompt), len(text)),)
            laid: _Laid | Dropped = _Laid(text, spans, where)
        else:
            laid = example if isinstance(example, Dropped) else self._lay_chat(example, where)
        if isinstance(laid, _Laid) and len(laid.text) > MAX_CHARACTERS:
            return Dropped(f"more than {MAX_CHARACTERS:,} characters", where, f"{len(laid.text):,}")
        if isinstance(laid, _Laid) and _SURROGATE.search(laid.text):
            return Dropped("the text is not valid Unicode", where, "half a surrogate pair")
        return laid

    def _lay_chat(self, chat: forms.Chat, where: str) -> _Laid | Dropped:
        loss_on = self.recipe.loss_on
        wanted = [index for index, turn in enumerate(chat.messages) if turn["role"] == "assistant"]
        if loss_on == "completion":
            # For a prompt and completion, the first turn of the completion, which extends to the
            # end regardless of roles.
            wanted = [len(chat.messages) - 1 if chat.prompt is None else chat.prompt]
        wanted = [index for index in wanted if index not in chat.untrained]
        try:
            finder = self._finder(chat.tools)
            eos = not self._is_closed(finder)
            if loss_on == "all":
                text, _ = finder.template.render(chat.messages, chat.tools)
                return _Laid(text, None, where, chat=True, eos=eos)
            turns = finder.find(chat.messages, chat.tools, wanted)
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
            spans = ((turns.spans[chat.prompt][0], len(turns.text)),)
        ends, rewritten = len(chat.messages) - 1 in turns.spans, len(turns.rewritten)
        return _Laid(turns.text, spans, where, True, eos, ends, rewritten)

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
        return any(token in finder.last_end for token in self._tokens.special)

    # -- tokens ------------------------------------------------------------------------------------

    def _finished(self, laid: _Laid, encoding: Any) -> Encoded | Dropped:
        ids = array("i", encoding.ids)
        before, after = (array("i"), array("i")) if laid.chat else self._tokens.around(ids)
        if laid.eos and not self._tokens.ends_with_eos(ids + after):
            after = array("i", (self.tokenizer.eos_token_id,)) + after
        whole, first = before + ids + after, len(before)
        spans = [(0, len(whole))]
        if laid.trained is not None:
            # The tokens that overlap the characters: offsets ascend, and several tokens may share a
            # character.
            starts = [start for start, _ in encoding.offsets]
            stops = [stop for _, stop in encoding.offsets]
            spans = [
                (first + bisect_right(stops, start), first + bisect_left(starts, stop))
                for start, stop in laid.trained
            ]
            spans += [(first + len(ids), len(whole))] if laid.ends else []
        trained: list[Span] = []
        for start, stop in spans:
            if trained and start <= trained[-1][1]:
                trained[-1] = trained[-1][0], max(stop, trained[-1][1])
            elif start < stop:
                trained.append((start, stop))
        if not trained:
            return Dropped("no token is unmasked", laid.where)
        most = self.recipe.max_length or len(whole)
        is_long = len(whole) > most
        if is_long and self.recipe.truncation == "drop":
            return Dropped(f"longer than {most} tokens", laid.where, f"{len(whole)} tokens")
        kept = tuple((start, min(stop, most)) for start, stop in trained if start < most)
        if not kept:
            reason = f"all trained tokens are beyond {most} tokens"
            return Dropped(reason, laid.where, f"the first is token {trained[0][0]}")
        return Encoded(whole[:most], kept, is_long, laid.where, laid.context_turns)


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
        special: its added tokens, the shortest first.

    Raises:
        UsageError: it cannot be loaded, or is not a fast one.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(
                str(stored.expanded(name)), use_fast=True
            )
        except Exception as error:  # transformers lets its readers' exceptions through
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise UsageError(
                f"cannot load the tokenizer {name}",
                details=(f"transformers said: {words[0]}", *words[1:4]),
                hint="name a directory with tokenizer.json and tokenizer_config.json",
            ) from error
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
        plain, full = (
            self._backend.encode(_PROBE, add_special_tokens=special).ids
            for special in (False, True)
        )
        places = range(len(full) - len(plain) + 1)
        at = next((at for at in places if full[at : at + len(plain)] == plain), None)
        self._before = array("i", full[:at] if at is not None else ())
        self._after = array("i", full[at + len(plain) :] if at is not None else ())
        self._backend.post_processor = None  # it would exclude white space from the offsets
        self.special = sorted(
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
        """Return the encodings of texts, with only the special tokens that the texts contain;
        without offsets, this takes a quarter less time.
        """
        encode = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
        return list(encode(list(texts), add_special_tokens=False))

    def around(self, ids: array[int]) -> tuple[array[int], array[int]]:
        """Return the ids to add before and after a text, without those that it already has."""
        before, after = self._before, self._after
        return (
            array("i") if ids[: len(before)] == before else before,
            array("i") if ids[-len(after) :] == after else after,
        )

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
        return next((token for token in reversed(self.special) if text.startswith(token)), "")
