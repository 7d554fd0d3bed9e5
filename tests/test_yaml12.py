"""YAML as people mean it, and every way in which it is not YAML."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.errors import UsageError
from hpctrain.util import yaml12


def refused(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        yaml12.load(text, "c.yaml")
    message = caught.value.render()
    assert message.splitlines()[-1] == "hint: edit c.yaml, then run the command again"
    return message


@pytest.mark.parametrize(
    "word",
    [
        "0123",
        "no",
        "off",
        "y",
        "1:30:00",
        "4e-5",
        "1_000",
        "0x1F",
        "2026-11-20",
        "1e3",
        "=",
        "!",
        "<<",
        "٣",
        "0o17",
    ],
)
def test_a_scalar_stays_what_was_written(word: str) -> None:
    document = yaml12.load(f"key: {word} # comment" if word != "!" else "key: '!'", "c.yaml")
    assert document.data == {"key": word}


@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml12._Loader], ids=["python", "libyaml"])
def test_quotes_tell_text_from_words(loader: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml12, "_Loader", loader)
    data = yaml12.load(
        """a: 4\nb: "4"\nc: '4'\nd: |\n  4\ne: ~\nf: null\ng:\nh: ''\n""", "c.yaml"
    ).data
    assert {key for key, value in data.items() if isinstance(value, yaml12.Plain)} == {"a"}
    assert data == {
        "a": "4",
        "b": "4",
        "c": "4",
        "d": "4\n",
        "e": None,
        "f": None,
        "g": None,
        "h": "",
    }


@given(
    st.dictionaries(
        st.text(max_size=8), st.text(st.characters(exclude_categories=["Cs"])), max_size=5
    )
)
def test_any_text_comes_back_from_quotes(data: dict[str, str]) -> None:
    printable = {
        key: value
        for key, value in data.items()
        if not any(
            yaml.reader.Reader.NON_PRINTABLE.search(text) or "\u0085" in text
            for text in (key, value)
        )
    }
    written = yaml.safe_dump(printable, allow_unicode=True, default_style='"')
    assert yaml12.load(written, "c.yaml").data == printable


@given(st.text("ab:-[]{}?,&*!|>'\"%@`#~ \n\t\r\0\x07\ufeff\u2028éμ😀0", max_size=60))
def test_any_file_is_read_or_refused(text: str) -> None:
    said = "c.yaml"
    try:
        yaml12.load(text, "c.yaml")
    except UsageError as error:
        said = error.render()
    assert "c.yaml" in said


def test_every_key_and_value_has_its_place() -> None:
    places = yaml12.load("# comment\na: 1\nb:\n  c: [x, y]\n", "c.yaml").places
    assert places["a",] == "c.yaml:2:1"
    assert places["b", "c"] == "c.yaml:4:3"
    assert places["b", "c", "1"] == "c.yaml:4:10"


def test_all_duplicate_keys_at_once() -> None:
    message = refused("job_name: x\njob_name: y\nresources:\n  nodes: 1\n  nodes: 2\n")
    assert message.splitlines()[:3] == [
        "error: 2 problems in c.yaml",
        "c.yaml:2:1: duplicate key 'job_name'; it is also at c.yaml:1:1",
        "c.yaml:5:3: duplicate key 'nodes'; it is also at c.yaml:4:3",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n", "must hold keys and values at its top"),
        ("hello\n", "must hold keys and values at its top"),
        (
            "a: 1\n---\nb: 2\n",
            "c.yaml:2:1: expected a single document in the stream, but found another document",
        ),
        (
            "a:\n\tb: 2\n",
            (
                "c.yaml:2:1: while scanning for the next token, found character that cannot start"
                " any token; indent with spaces, not tabs"
            ),
        ),
        ("a: \x07\n", "not allowed"),
        ("{a: [}\n", "c.yaml:1:6: while parsing a flow node, did not find expected node content"),
        ("? [a]\n: b\n", "c.yaml:1:3: a key must be a word, not a list or a mapping"),
        ("a: &a\n  b: *a\n", "c.yaml is nested too deeply"),
        ("a: *nobody\n", "c.yaml:1:4: found undefined alias"),
        ("a: !!python/object:os.system x\na: y", "duplicate key"),
    ],
)
def test_what_is_no_config(text: str, words: str) -> None:
    assert words in refused(text)


def test_tags_run_nothing() -> None:
    assert yaml12.load("a: !!python/object/apply:os.system ['touch CANARY']\n", "c.yaml").data == {
        "a": ["touch CANARY"]
    }


def test_an_alias_is_what_it_stands_for() -> None:
    assert yaml12.load("a: &x {k: 1}\nb: *x\nc: [*x, *x]\n", "c.yaml").data["c"] == [
        {"k": "1"},
        {"k": "1"},
    ]


# 100 000 levels overflow the stack of the C library, which no Python error could tell of.
@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 100_000,
        "a: " + "[" * 150 + "]" * 150,
        "a:\n" + "- " * 100_000 + "x",
        "? " * 100_000 + "x",
    ],
)
def test_a_file_that_is_nested_too_deeply(text: str) -> None:
    assert "more than 100 levels" in refused(text)


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "\ufeff"])
def test_an_empty_file_is_an_empty_config(text: str) -> None:
    assert yaml12.load(text, "c.yaml").data == {}


def test_other_editors() -> None:
    assert yaml12.load("\ufeffa: 1\r\nb: é\r\n", "c.yaml").data == {"a": "1", "b": "é"}


def test_what_becomes_json() -> None:
    data = yaml12.load(
        '{i: 12, n: -3, f: 4e-5, g: 1., t: true, F: False, s: "12", z: 0123, no: no, l: [1, "1"],'
        " u: null, big: " + "9" * 5000 + "}",
        "c",
    ).data
    value = yaml12.to_json_value(data)
    assert value.pop("big") == "9" * 5000  # Python would refuse to read it as a number
    assert value == {
        "i": 12,
        "n": -3,
        "f": 4e-5,
        "g": 1.0,
        "t": True,
        "F": False,
        "s": "12",
        "z": 123,
        "no": "no",
        "l": [1, "1"],
        "u": None,
    }


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (
            "resources:\n  nodes: 2\n time: 1\n",
            "3:2",
            None,
        ),
        (
            "resources:\n  nodes: 2\n    # a note\n\n    time: 1\n",
            "5:5",
            None,
        ),
        (
            "job_name: x\n  resources:\n",
            "2:12",
            None,
        ),
        ("resources:\n\tnodes: 2\n", "2:1", "indent with spaces, not tabs"),
        ("a: [1\nb: 2\n", "2:2", None),
        ("a:\n  b: 'x\n", "3:1", None),
    ],
)
def test_indentation_is_named_where_it_is_the_cause(
    text: str, place: str, words: str | None
) -> None:
    with pytest.raises(UsageError) as raised:
        yaml12.load(text, "c.yaml")
    (said,) = raised.value.details
    assert said.startswith(f"c.yaml:{place}: ")
    assert words is None or words in said
