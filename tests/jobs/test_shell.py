"""Quoting for bash, with bash itself as the oracle."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.util import shell

#: Whatever an argv can hold: all characters but NUL, and bytes that are no UTF-8.
characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.integers(
    0xDC80, 0xDCFF
).map(chr)
words = st.text(
    st.sampled_from("'\"\\$`!#;&|<>(){}[]*?~=%,. \t\n\r\x01\x1b\x7f\x85\xa0\u2028éa0-") | characters
).filter(
    # Raw bytes that together are UTF-8 are not what Python makes of an argv.
    lambda text: text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == text
)


def bash_words(script: str, directory: Path) -> list[bytes]:
    """Return what bash makes of the words in `script`, given to printf."""
    done = subprocess.run(
        ["bash"],
        input=script.encode("utf-8", "surrogateescape"),
        capture_output=True,
        cwd=directory,
        check=True,
    )
    assert done.stderr == b""
    return done.stdout.split(b"\0")[:-1]


@pytest.mark.slow
# Many words to a process: starting bash takes longer than reading a thousand words.
@settings(max_examples=40, deadline=None)
@given(batch=st.lists(words, min_size=1, max_size=200))
def test_bash_reads_back_what_was_quoted(
    batch: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = (
        "".join(f"printf '%s\\0' {shell.quote(word)}\n" for word in batch)
        + f"printf '%s\\0' {shell.join(batch)}\n"
    )
    expected = [word.encode("utf-8", "surrogateescape") for word in batch]
    assert bash_words(script, tmp_path_factory.getbasetemp()) == expected * 2


@pytest.mark.slow
@given(st.lists(words, max_size=8))
def test_split_reads_back_what_was_joined(batch: list[str]) -> None:
    line = shell.join(batch)
    assert shell.split(line) == batch
    assert len(line.splitlines()) <= 1
    line.encode("utf-8")  # a script is always UTF-8 text


@given(st.text())
def test_any_line_is_split_or_refused(line: str) -> None:
    said = "cannot read"
    try:
        words = shell.split(line)
    except ValueError as error:
        words, said = [], str(error)
    assert "cannot read" in said
    assert all(isinstance(word, str) for word in words)


@pytest.mark.parametrize("value", ["a\0b", "\ud800", "x\udfff"])
def test_what_no_argv_carries_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"no command line can carry|not a character"):
        shell.quote(value)
