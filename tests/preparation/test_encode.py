"""Rows to tokens and masks: what is trained on is what the assistant says, whatever the template
and the tokenizer.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpctrain.data.encode import Encoded, Encoder
from hpctrain.data.readers import Dropped, SourceRow
from tests.preparation import encode_made as made
from tests.preparation.encode_used import (
    BYTE_LEVEL,
    CONTENT,
    dropped,
    encoder,
    one,
    said,
    talk,
    text,
)

pytestmark = pytest.mark.torch  # transformers; torch itself is never asked for

# -- conversations, whatever the template ----------------------------------------------------------


@pytest.mark.parametrize("name", made.TEMPLATES)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(contents=st.lists(CONTENT, min_size=2, max_size=7), system=st.none() | CONTENT)
def test_the_trained_tokens_are_what_the_assistant_says(
    name: str, folder: Any, contents: list[str], system: str | None
) -> None:
    template, says = made.TEMPLATES[name]
    if name in ("gemma", "mistral"):
        system = None
    contents = contents[: len(contents) // 2 * 2]
    row = talk(*contents, system=system)
    ours = encoder(folder("byte_level", template, **BYTE_LEVEL))
    example = one(ours.encode([row]))
    parts = says(row["messages"])
    whole = "".join(part for part, _ in parts)
    ended = name == "no end of turn"
    assert text(ours, example.input_ids) == whole + ("<|im_end|>" if ended else "")
    _check_stretches(ours, example, parts, whole)


def _check_stretches(ours: Encoder, example: Encoded, parts: made.Parts, whole: str) -> None:
    """Compare the trained tokens with the characters of the assistant; a token across a border
    belongs to the assistant.
    """
    wanted = [own for part, own in parts for _ in part]
    labels = example.labels()
    offsets = ours._tokens._backend.encode(whole, add_special_tokens=False).offsets
    for index, (start, stop) in enumerate(offsets):
        assert (labels[index] != -100) == any(wanted[start:stop]), (whole[start:stop], whole)
    assert all(label != -100 for label in labels[len(offsets) :])


def test_a_token_across_the_end_of_a_turn_belongs_to_the_assistant(folder: Any) -> None:
    template = (
        "{% for m in messages %}{{ 'rn ' + m['content'] + ':' if m['role'] == 'user' else"
        " m['content'] }}{% endfor %}"
    )
    ours = encoder(folder("byte_level", template))
    first, second = said(ours, one(ours.encode([talk("q", "def retu", "q", "b")])))
    assert first == "def return"
    assert second == "b<|endoftext|>"


def test_loss_on_completion_is_the_last_turn_and_loss_on_all_is_everything(folder: Any) -> None:
    tokenizer = folder("byte_level", made.TEMPLATES["chatml"][0])
    row = talk("q", "one", "q", "two")
    last = encoder(tokenizer, loss_on="completion")
    assert said(last, one(last.encode([row]))) == ["two<|im_end|>\n"]
    every = one(encoder(tokenizer, loss_on="all").encode([row]))
    assert every.trained == ((0, len(every.input_ids)),)


def test_a_turn_that_the_data_marks_with_weight_0_is_context(folder: Any) -> None:
    for template in ("chatml", "chatml with generation"):
        ours = encoder(folder("byte_level", made.TEMPLATES[template][0]))
        row = talk("q", "one", "q", "two")
        row["messages"][1]["weight"] = 0
        assert said(ours, one(ours.encode([row]))) == ["two<|im_end|>\n"]


# -- templates that rewrite ------------------------------------------------------------------------


def test_thinking_that_the_template_leaves_out_of_an_earlier_turn_makes_that_turn_context(
    folder: Any,
) -> None:
    ours = encoder(folder("byte_level", made.QWEN3))
    row = talk("q", "<think>\nhm\n</think>\n\none", "q", "<think>\nso\n</think>\n\ntwo")
    example = one(ours.encode([row]))
    assert said(ours, example) == ["<think>\nso\n</think>\n\ntwo<|im_end|>\n"]
    assert example.context_turns == 1
    assert "hm" not in text(ours, example.input_ids)
    plain = one(ours.encode([talk("q", "one", "q", "two")]))
    assert said(ours, plain) == ["one<|im_end|>\n", "<think>\n\n</think>\n\ntwo<|im_end|>\n"]


def test_a_template_that_looks_into_messages_is_not_masked_by_guess(folder: Any) -> None:
    """It writes how long a message is, so that marks in the message would change the text around
    it.
    """
    count = "{{ m['role'] }} {{ m['content'] | length }}"
    row = talk("u" * 8, "a" * 9, "v" * 9, "b" * 7)
    ours = encoder(
        folder("byte_level", made.TEMPLATES["chatml"][0].replace("{{ m['role'] }}", count))
    )
    assert "rewrites the assistant's turns" in dropped(ours.encode([row])).reason
    marked = encoder(
        folder(
            "byte_level",
            made.TEMPLATES["chatml with generation"][0].replace("{{ m['role'] }}", count),
        )
    )
    assert said(marked, one(marked.encode([row]))) == [
        "a" * 9 + "<|im_end|>\n",
        "b" * 7 + "<|im_end|>\n",
    ]


def test_an_earlier_turn_that_cannot_be_found_drops_the_row(folder: Any) -> None:
    """The last words of the user are repeated at the beginning: no prompt is a beginning of the
    text, and the user is there twice.
    """
    template = "{{ messages[-2]['content'] }}|" + made.TEMPLATES["chatml"][0]
    ours = encoder(folder("byte_level", template))
    assert "cannot be found" in dropped(ours.encode([talk("q", "one", "more", "two")])).reason


def test_a_template_that_shows_no_turn_as_it_was_written_drops_the_row(folder: Any) -> None:
    template = made.TEMPLATES["chatml"][0].replace(
        "{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}"
    )
    ours = encoder(folder("byte_level", template))
    assert said(ours, one(ours.encode([talk("q", "plain")]))) == ["plain<|im_end|>\n"]
    assert (
        "rewrites the assistant's turns"
        in dropped(ours.encode([talk("q", "<think>a</think>b")])).reason
    )
    template = made.TEMPLATES["chatml with generation"][0].replace(
        "{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}"
    )
    marked = encoder(folder("byte_level", template))
    assert said(marked, one(marked.encode([talk("q", "<think>a</think>b", "q", "two")]))) == [
        "two<|im_end|>\n"
    ]


def test_a_prompt_that_begins_the_thinking_is_not_trained_on(folder: Any) -> None:
    template = made.TEMPLATES["chatml"][0].replace(
        "assistant\n{% endif %}", "assistant\n<think>\n{% endif %}"
    )
    ours = encoder(folder("byte_level", template))
    assert said(ours, one(ours.encode([talk("q", "<think>\nhm\n</think>\na")]))) == [
        "hm\n</think>\na<|im_end|>\n"
    ]
    assert said(ours, one(ours.encode([talk("q", "a")]))) == ["a<|im_end|>\n"]
    qwen = encoder(
        folder(
            "byte_level",
            made.QWEN3.replace(
                "assistant\n' }}{%- endif %}", "assistant\n<think>\n' }}{%- endif %}"
            ),
        )
    )
    assert said(qwen, one(qwen.encode([talk("q", "<think>\nhm\n</think>\n\na")]))) == [
        "hm\n</think>\n\na<|im_end|>\n"
    ]


def test_a_refusal_of_the_template_drops_the_row_with_its_words(folder: Any) -> None:
    ours = encoder(folder("byte_level", made.TEMPLATES["gemma"][0]))
    found = dropped(ours.encode([SourceRow(talk("q", "a", system="s"), "d.jsonl:7")]))
    assert found == Dropped(
        "the chat template refuses it", "d.jsonl:7", "System role not supported"
    )


def test_two_kinds_of_end_are_both_learned(folder: Any) -> None:
    """As gpt-oss: the last turn ends with another token than the ones before."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{% if loop.last and"
        " m['role'] == 'assistant' %}<|eot_id|>{% else %}<|im_end|>{% endif %}{% endfor %}{% if"
        " add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    ours = encoder(folder("byte_level", template))
    assert said(ours, one(ours.encode([talk("q", "one", "q", "two")]))) == [
        "one<|im_end|>",
        "two<|eot_id|>",
    ]


def test_calls_of_tools_are_trained_on_and_their_answers_are_not(folder: Any) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}{% for c in"
        " m['tool_calls'] or [] %}<call>{{ c['function']['name'] }} {{ c['function']['arguments'] |"
        " tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt"
        " %}<|im_start|>assistant\n{% endif %}"
    )
    ours = encoder(folder("byte_level", template))
    call = {
        "type": "function",
        "function": {"name": "sea", "arguments": {"depth": 3, "nothing": None}},
    }
    for content in (None, "Let me look."):
        messages = [
            {"role": "user", "content": "how deep?"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "name": "sea", "content": "deep"},
            {"role": "assistant", "content": "Deep.", "tool_calls": None},
        ]
        example = one(ours.encode([{"messages": messages}]))
        assert said(ours, example) == [
            f'{content or ""}<call>sea {{"depth": 3}}</call><|im_end|>\n',
            "Deep.<|im_end|>\n",
        ]
