"""Commands that the pages tell to type: each verb and each option exists, whether or not the page's
examples can run here.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from hpctrain.cli import VERBS, cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
#: A command in a block of code, or between backticks in a paragraph; up to what the shell would
#: take for another one.
IN_BLOCK = re.compile(r"^\s*(?:\$ )?(?:.*?&& )?(hpctrain [a-z][^\n]*?)(?:\s+#\s.*)?$", re.MULTILINE)
IN_TEXT = re.compile(r"`(hpctrain [a-z][^`\n]*)`")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks_of(page: str) -> list[str]:
    return [
        text
        for language, text in FENCED.findall(page)
        if language in ("", "console", "text", "bash", "sh")
    ]


def typed(page: str) -> Iterator[str]:
    for block in blocks_of(page):
        for found in IN_BLOCK.findall(block):
            yield from (
                part for part in re.split(r" && | \|\|? |; ", found) if part.startswith("hpctrain ")
            )
    yield from IN_TEXT.findall(re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE))


def wrong(command: str) -> str | None:
    """Return what of a command does not exist; words of a sentence that stands on the same line are
    no options.
    """
    try:
        words = shlex.split(command)[1:]
    except ValueError:
        return None  # a quote that goes on in the next line
    group: click.Command = cli
    said = "hpctrain"
    with click.Context(cli) as ctx:
        while isinstance(group, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
            name = words[0]
            if group is cli and name not in VERBS:
                return f"no verb {name}"
            found = group.get_command(ctx, words.pop(0))
            if found is None:
                return f"{said} has no {name}"
            group, said = found, name
    known = {
        option
        for parameter in group.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "-h"}
    ours = words[: words.index("--")] if "--" in words else words
    named = [
        word.partition("=")[0].rstrip(",;:.)") for word in ours if re.match(r"--?[a-zA-Z]", word)
    ]
    return next((f"{said} has no {option}" for option in named if option not in known), None)


def test_what_a_page_tells_to_type_exists() -> None:
    found = [
        (str(page.relative_to(ROOT)), command, why)
        for page in PAGES
        for command in typed(page.read_text())
        if (why := wrong(command)) is not None
    ]
    assert found == []


def test_commands_are_found_and_judged() -> None:
    page = (
        "Type `hpctrain ps --all`.\n\n```\n$ hpctrain runs list --stage T   # all\ncd x && hpctrain"
        " watch --no-such\n```\n"
    )
    assert list(typed(page)) == [
        "hpctrain runs list --stage T",
        "hpctrain watch --no-such",
        "hpctrain ps --all",
    ]
    assert [wrong(command) for command in typed(page)] == [None, "watch has no --no-such", None]
    assert wrong("hpctrain wacth") == "no verb wacth"
    assert wrong("hpctrain runs lits") == "runs has no lits"
    assert wrong("hpctrain render --gpus 4 --script a.py -- --no-such") is None
