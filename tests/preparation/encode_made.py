"""Tokenizers trained here, and chat templates in the styles of well-known models, each with what it
should say beside it.
"""

import json
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<s>",
    "</s>",
    "<unk>",
    "[INST]",
    "[/INST]",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
]


@cache
def texts() -> tuple[str, ...]:
    """Some text to train on: sources of the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    names = ("argparse.py", "textwrap.py", "typing.py", "datetime.py")
    return (
        *((folder / name).read_text() for name in names),
        "aàâäeéèêëiîïoôöuùûü ñ ß Ω 日本語 Привет 😀",
    )


def _fast(tokenizer: Any, **names: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{
            "bos_token": "<s>",
            "eos_token": "<|endoftext|>",
            "unk_token": "<unk>",
            "pad_token": "<|endoftext|>",
            **names,
        },
    )


def byte_level(*, bos: bool = False, trim: bool = True, **names: Any) -> Any:
    """A byte-level BPE, as of Qwen and Llama 3; `bos`: put <s> before a text; `trim`: as GPT-2's
    offsets.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts(),
        trainers.BpeTrainer(
            vocab_size=1500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return _fast(tokenizer, **names)


def sentencepiece_like(**names: Any) -> Any:
    """A BPE with ▁ for spaces and bytes for what it does not know, as of Llama 2 and Mistral; <s>
    before a text.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(content=" ", left=1),
    ]
    tokenizer.decoder = decoders.Sequence(steps)
    words = [line for text in texts() for line in text.split()]
    special = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(
        words, trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False)
    )

    state = json.loads(
        tokenizer.to_str()
    )  # bytes are no special tokens: they were that only to be in the vocabulary
    state["added_tokens"] = [
        token for token in state["added_tokens"] if not token["content"].startswith("<0x")
    ]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return _fast(tokenizer, **{"eos_token": "</s>", **names})


# -- templates, and what they should say -----------------------------------------------------------

Parts = list[tuple[str, bool]]
"""A text in parts, each with whether the assistant says it."""


def _chatml(messages: list[dict[str, Any]]) -> Parts:
    parts: Parts = []
    for message in messages:
        own = message["role"] == "assistant"
        parts += [
            (f"<|im_start|>{message['role']}\n", False),
            (f"{message['content']}<|im_end|>\n", own),
        ]
    return parts


def _llama3(messages: list[dict[str, Any]]) -> Parts:
    parts: Parts = [("<s>", False)]
    for message in messages:
        own = message["role"] == "assistant"
        parts += [
            (f"<|start_header_id|>{message['role']}<|end_header_id|>\n\n", False),
            (f"{message['content'].strip()}<|eot_id|>", own),
        ]
    return parts


def _mistral(messages: list[dict[str, Any]]) -> Parts:
    parts: Parts = [("<s>", False)]
    for message in messages:
        own = message["role"] == "assistant"
        parts.append(
            (f" {message['content']}</s>", True)
            if own
            else (f"[INST] {message['content']} [/INST]", False)
        )
    return parts


def _gemma(messages: list[dict[str, Any]]) -> Parts:
    parts: Parts = [("<s>", False)]
    for message in messages:
        own = message["role"] == "assistant"
        parts += [
            (f"<start_of_turn>{'model' if own else message['role']}\n", False),
            (f"{message['content'].strip()}<end_of_turn>\n", own),
        ]
    return parts


def _plain(messages: list[dict[str, Any]]) -> Parts:
    parts: Parts = []
    for message in messages:
        own = message["role"] == "assistant"
        parts += [(f"{message['role'].upper()}:", False), (f" {message['content']}\n", own)]
    return parts


TEMPLATES: dict[str, tuple[str, Callable[[list[dict[str, Any]]], Parts]]] = {
    "chatml": (
        (
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{%"
            " endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
        _chatml,
    ),
    "chatml with generation": (
        (
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant'"
            " %}{% generation %}{{ m['content'] }}<|im_end|>\n{% endgeneration %}{% else %}{{"
            " m['content'] }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt"
            " %}<|im_start|>assistant\n{% endif %}"
        ),
        _chatml,
    ),
    "generation without its end": (
        (
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant'"
            " %}{% generation %}{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{%"
            " endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt"
            " %}<|im_start|>assistant\n{% endif %}"
        ),
        _chatml,
    ),
    "llama 3": (
        (
            "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content ="
            " '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content']"
            " | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content"
            " %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{"
            " '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
        ),
        _llama3,
    ),
    "mistral": (
        (
            "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') !="
            " (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate"
            " user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{"
            " '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] +"
            " '</s>' }}{% endif %}{% endfor %}"
        ),
        _mistral,
    ),
    "gemma": (
        (
            "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role"
            " not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] =="
            " 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{%"
            " endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim +"
            " '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt"
            " %}{{'<start_of_turn>model\n'}}{% endif %}"
        ),
        _gemma,
    ),
    "no end of turn": (
        (
            "{% for m in messages %}{{ m['role'] | upper }}: {{ m['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
        ),
        _plain,
    ),
}

QWEN3 = """{%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.open and message.role == 'user' %}
        {%- set ns.open = false %}{%- set ns.last = (messages|length - 1) - loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != 'assistant' %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- else %}
        {%- set content = message.content %}{%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
"""What Qwen3's own template does with thinking: the last turn has it, earlier turns lose it."""


def save(tokenizer: Any, folder: Path, template: str | None = None) -> str:
    """Save a tokenizer with a template, and return the folder's name."""
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)
