"""A chat template: rendered as transformers renders it, without a tokenizer's other work.

What a template says no to is a reason for one row, and no error of the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.preparation.forms_rows import Message

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_MAX_BYTES = 10_000_000


class Refused(Exception):  # noqa: N818 - the template's answer about one row
    """The template does not render the conversation.

    Attributes:
        reason: as in `Dropped`.
        detail: the template's words.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class Template:
    """One chat template, with its variables.

    Attributes:
        text: the Jinja text.
        generation: it marks the assistant's words by `{% generation %}`.
    """

    def __init__(self, text: str, variables: Mapping[str, Any]) -> None:
        from transformers.utils.chat_template_utils import render_jinja_template

        self.text = text
        self.generation = _GENERATION.search(text) is not None
        self._variables = dict(variables)
        self._render = render_jinja_template

    def render(self, messages: Sequence[Message], tools: list[Any] | None, *, prompt: bool = False) -> str:
        """Return the text of a conversation; `prompt`: with the words that ask for the assistant's next turn.

        Raises:
            Refused: the template does not take it.
        """
        return self._rendered(messages, tools, prompt=prompt, marked=False)[0]

    def render_marked(self, messages: Sequence[Message], tools: list[Any] | None) -> tuple[str, list[tuple[int, int]]]:
        """Return the text, and the characters (start, stop) between `{% generation %}` and its end.

        Raises:
            Refused: the template does not take it.
        """
        return self._rendered(messages, tools, prompt=False, marked=True)

    def _rendered(
        self, messages: Sequence[Message], tools: list[Any] | None, *, prompt: bool, marked: bool
    ) -> tuple[str, list[tuple[int, int]]]:
        from jinja2 import TemplateError, TemplateSyntaxError, UndefinedError

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
                f"the chat template is not Jinja: line {error.lineno}: {error.message}", fix="give another: --template FILE"
            ) from error
        except UndefinedError as error:
            raise Refused("the chat template fails on it", str(error)) from error
        except TemplateError as error:
            raise Refused("the chat template refuses it", str(error)) from error
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError) as error:
            raise Refused("the chat template fails on it", f"{type(error).__name__}: {error}") from error
        return str(texts[0]), [(int(start), int(stop)) for start, stop in spans[0]] if marked else []


def read_template(path: str) -> str:
    """Return the text of a template's file.

    Raises:
        UsageError: it cannot be read, or is no text.
    """
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UsageError(f"the chat template {path} has more than {_MAX_BYTES} bytes", fix="give a Jinja file: --template FILE")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"cannot read the chat template {path}: {error.strerror or error}", fix="give a Jinja file: --template FILE"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the chat template {path} is not UTF-8", fix="give a Jinja file: --template FILE") from error
