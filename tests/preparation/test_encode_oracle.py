"""The masks beside TRL's own: its training templates for known models."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from hpctrain.data.chat import ChatTemplate, Refused, TurnFinder
from hpctrain.data.encode import Encoder, Recipe
from hpctrain.data.forms import Columns
from tests.preparation import encode_made as made

pytestmark = pytest.mark.torch

MESSAGES = Columns(form="messages", names={"messages": "messages"}, sentence="")
CONVERSATIONS: list[list[tuple[str, str]]] = [
    [("user", "Hi there"), ("assistant", "Hello you")],
    [
        ("user", "Hi there"),
        ("assistant", "Hello you"),
        ("user", "More?"),
        ("assistant", "Yes.\nmore"),
    ],
    [
        ("user", "x "),
        ("assistant", "x"),
        ("user", "x"),
        ("assistant", "x"),
        ("user", "x"),
        ("assistant", "x"),
    ],
    [("system", "be nice"), ("user", "q"), ("assistant", "a")],
]

#: Templates whose training copy in TRL says something else, or marks something else, on purpose.
DIFFERENT = {
    "deepseek_r1_distill": "marks the assistant's header, which is the prompt",
    "deepseekv3": "marks the assistant's header, which is the prompt",
    "muse_glimmer": "marks <|start|>assistant, which is the prompt",
    "gptoss": "marks <|start|>assistant, which is the prompt",
    "qwen2_5": "marks the end of the line of the prompt",
    "glm4moe": "adds <|user|>",
    "idefics3": "takes parts of messages, and no strings",
    "smolvlm": "takes parts of messages, and no strings",
    "nemotron_3_nano": "marks <think>, which is the prompt",
    "nemotron_3_super": "marks <think>, which is the prompt",
    "nemotron_3_ultra": "marks <think>, which is the prompt",
    "nemotron_3_5_lightning": "marks <think>, which is the prompt",
    "qwen3_8": "marks <think>, which is the prompt",
    "qwen3": "adds empty thinking to earlier turns",
    "qwen3_5_nothink": "adds empty thinking to earlier turns",
    "qwen3_5_think": "adds empty thinking to earlier turns",
    "qwen3_6": "adds empty thinking to earlier turns",
}


def originals() -> list[Path]:
    trl = importlib.util.find_spec("trl")
    if trl is None or trl.origin is None:
        pytest.skip("TRL is not installed", allow_module_level=True)
    folder = Path(trl.origin).parent / "chat_templates"
    found = [
        folder / path.name.replace("_training", "")
        for path in sorted(folder.glob("*_training.jinja"))
    ]
    return [path for path in found if path.exists()]


def marked(text: str, spans: Any) -> list[bool]:
    mask = [False] * len(text)
    for start, stop in spans:
        mask[start:stop] = [True] * (stop - start)
    return mask


@pytest.mark.parametrize("path", originals(), ids=lambda path: path.stem)
def test_turns_of_a_known_models_template_are_those_that_trl_marks_in_its_training_copy(
    path: Path,
) -> None:
    """Every conversation that both take; the text must be the same, and the marks, but where TRL
    says something else on purpose.
    """
    copy = path.with_name(f"{path.stem}_training.jinja").read_text()
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = Encoder(
        Recipe(tokenizer=_tokenizer(), columns=MESSAGES, loss_on="assistant")
    )._tokens
    ours = TurnFinder(
        ChatTemplate(path.read_text(), variables), tokenizer.boundaries, tokenizer.leading_special
    )
    theirs = ChatTemplate(copy, variables)
    compared = 0
    for conversation in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in conversation]
        wanted = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        try:
            turns = ours.find(messages, None, wanted)
            other, spans = theirs.render(messages, None, marked=True)
        except Refused:
            continue
        compared, text = compared + 1, turns.text
        assert not turns.lost
        if path.stem in ("idefics3", "smolvlm"):
            assert set(turns.rewritten) == set(wanted)
            continue
        assert set(turns.spans) == set(wanted)
        for index in wanted:
            asked, _ = ours.template.render(messages[:index], None, prompt=True)
            assert turns.spans[index][0] == len(asked) or not text.startswith(asked)
            assert messages[index]["content"] in text[slice(*turns.spans[index])]
            others = [
                message["content"]
                for place, message in enumerate(messages)
                if message["role"] != "assistant" and len(message["content"]) > 1
            ]
            assert not any(words in text[slice(*turns.spans[index])] for words in others)
        if path.stem not in DIFFERENT:
            assert text == other
            assert marked(text, turns.spans.values()) == marked(text, spans)
    assert (
        compared >= 3 or path.stem == "llava_next"
    )  # takes parts of messages, and fails on strings


_KEPT: list[str] = []


def _tokenizer() -> str:
    if not _KEPT:
        import tempfile

        _KEPT.append(
            made.save(
                made.byte_level(),
                Path(tempfile.mkdtemp()) / "tokenizer",
                made.TEMPLATES["chatml"][0],
            )
        )
    return _KEPT[0]
