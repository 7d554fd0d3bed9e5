"""What the tests of encoding share: encoders of tokenizers that are made once, rows, and what the
trained tokens of an example say.
"""

from typing import Any

from hypothesis import strategies as st

from hpctrain.data.encode import Encoded, Encoder, Recipe
from hpctrain.data.forms import Columns
from hpctrain.data.readers import Dropped

MESSAGES = Columns(form="messages", names={"messages": "messages"}, sentence="")
TOOLS = Columns(form="messages", names={"messages": "messages", "tools": "tools"}, sentence="")
PAIR = Columns(
    form="prompt-completion", names={"prompt": "prompt", "completion": "completion"}, sentence=""
)
TALK = Columns(
    form="prompt-completion",
    names={"prompt": "prompt", "completion": "completion"},
    sentence="",
    conversational=True,
)
TEXT = Columns(form="text", names={"text": "text"}, sentence="")
ALPACA = Columns(
    form="alpaca",
    names={"instruction": "instruction", "input": "input", "output": "output"},
    sentence="",
)

BYTE_LEVEL = {"eos_token": "<|im_end|>"}
KEPT: dict[str, Encoder] = {}


def talk(*contents: str, system: str | None = None) -> dict[str, Any]:
    turns = [
        {"role": ("user", "assistant")[index % 2], "content": content}
        for index, content in enumerate(contents)
    ]
    return {"messages": [{"role": "system", "content": system}, *turns] if system else turns}


def encoder(tokenizer: str, columns: Columns = MESSAGES, **options: Any) -> Encoder:
    loss_on = options.pop(
        "loss_on", {"messages": "assistant", "text": "all"}.get(columns.form, "completion")
    )
    recipe = Recipe(tokenizer=tokenizer, columns=columns, loss_on=loss_on, **options)
    if repr(recipe) not in KEPT:
        KEPT[repr(recipe)] = Encoder(recipe)
    return KEPT[repr(recipe)]


def one(found: list[Encoded | Dropped]) -> Encoded:
    (example,) = found
    assert isinstance(example, Encoded), example
    return example


def dropped(found: list[Encoded | Dropped]) -> Dropped:
    (example,) = found
    assert isinstance(example, Dropped), example
    return example


def said(encoder: Encoder, example: Encoded) -> list[str]:
    """Return what the trained tokens say, stretch by stretch."""
    return [text(encoder, example.input_ids[start:stop]) for start, stop in example.trained]


def text(encoder: Encoder, ids: Any) -> str:
    return str(
        encoder.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    )


CONTENT = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30),
    st.lists(
        st.sampled_from(
            [
                " ",
                "\n",
                "  ",
                "\t",
                "yes",
                "No.",
                "😀",
                "日本",
                "e\u0301",
                "<|im_end|>",
                "<|im_start|>assistant\n",
                "[INST]",
                "assistant",
                "<think>",
                "</s>",
                "\U000f0000",
                "user\n",
                ":",
                ":\n",
                ";\n",
                "{{ x }}",
                "\r\n",
                "\x00",
                "ASSISTANT:",
            ]
        ),
        min_size=1,
        max_size=6,
    ).map("".join),
).filter(lambda content: bool(content.strip()))
