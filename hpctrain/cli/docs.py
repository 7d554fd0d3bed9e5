"""`hpctrain docs`: print the page of a finding or a diagnosis, as docs/findings and docs/diagnoses have it; no network, no browser."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator

import click

from hpctrain import data
from hpctrain.errors import UsageError

#: The widest that anything is laid out; what is not a terminal has this width.
_WIDTH = 80
#: Written for programs that keep the page up to date, not for readers.
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) +")


@click.command()
@click.argument("finding", metavar="[ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(finding: str | None, as_json: bool) -> None:
    """Print the page of a finding, or of a diagnosis.

    ID is the word before the colon of a finding: check, lint and doctor write `error ID: …`; or the word behind the colon of a
    diagnosis: explain writes `certain: ID`. Without it: all ids, each with the beginning of its page.

    \b
    hpctrain docs
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    pages = _pages()
    if finding is None:
        _show_all(pages, as_json=as_json)
        return
    name = finding.strip("[]").removesuffix(".md")
    if name not in pages:
        raise _unknown(finding, list(pages))
    if as_json:
        click.echo(json.dumps({"schema": 1, "id": name, "text": pages[name]}))
    elif sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        _show_markdown(without_comments(pages[name]))
    else:
        click.echo("\n".join(wrapped(without_comments(pages[name]), _width())))


def first_line(page: str) -> str:
    """Return the first line of a page behind its title, in one piece: what the finding is about."""
    paragraphs = [" ".join(part.split()) for part in page.split("\n\n")]
    return next((part for part in paragraphs if part and not part.startswith("#")), "")


def _pages() -> dict[str, str]:
    """Return id and page of everything; what is both a finding and a diagnosis has the two pages, one behind the other."""
    pages = data.findings()
    for name, page in data.diagnoses().items():
        pages[name] = f"{pages[name].rstrip()}\n\n{page}" if name in pages else page
    return dict(sorted(pages.items()))


def _show_all(pages: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        listed = [{"id": name, "first_line": first_line(page)} for name, page in pages.items()]
        click.echo(json.dumps({"schema": 1, "pages": listed}))
        return
    width = _width()
    for verb, ids in by_verb(list(pages)).items():
        click.echo(f"{verb}:")
        for name in ids:
            line = f"  {name}: {first_line(pages[name])}"
            click.echo(line if len(line) <= width else line[: width - 1].rstrip() + "…")
    if pages:
        click.echo(f"{len(pages)} pages; the page of one: hpctrain docs {next(iter(pages))}", err=True)


def by_verb(names: list[str]) -> dict[str, list[str]]:
    """Return the ids under the verb that says them; an id of several verbs stands under the first of them."""
    import hpctrain.doctor
    from hpctrain.jobs import check
    from hpctrain.jobs.lint.table import RULES

    said = {"check": set(check.IDS), "lint": set(RULES), "doctor": set(hpctrain.doctor.IDS), "explain": set(data.diagnoses())}
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(next((verb for verb, ids in said.items() if name in ids), "others"), []).append(name)
    return {verb: found[verb] for verb in (*said, "others") if verb in found}


def without_comments(page: str) -> str:
    """Return a page without its HTML comments, and without the blank lines that they leave behind."""
    return re.sub(r"\n{3,}", "\n\n", _COMMENT.sub("", page)).strip("\n")


def wrapped(page: str, width: int) -> Iterator[str]:
    """Yield the lines of a Markdown page, its paragraphs and list items filled to `width` columns; code and tables stay as they are."""
    held: list[str] = []
    in_code = False
    for line in [*page.splitlines(), ""]:
        fence = line.lstrip().startswith("```")
        as_it_is = in_code or fence or not line.strip() or line.startswith(("#", "|", "    "))
        if held and (as_it_is or _ITEM.match(line)):
            yield from _filled(held, width)
            held = []
        if as_it_is:
            yield line
        else:
            held.append(line)
        in_code ^= fence


def _filled(lines: list[str], width: int) -> list[str]:
    item = _ITEM.match(lines[0])
    indent = " " * (len(item[0]) if item else 0)
    text = " ".join(line.strip() for line in lines)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _width() -> int:
    if not sys.stdout.isatty():
        return _WIDTH
    import shutil

    return max(40, min(_WIDTH, shutil.get_terminal_size().columns))


def _show_markdown(page: str) -> None:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import CodeBlock, Markdown
    from rich.syntax import Syntax

    class Code(CodeBlock):
        # rich keeps a column free on each side, and breaks a line that is as wide as the page.
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Syntax(str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True, padding=(1, 0))

    class Page(Markdown):
        elements = {**Markdown.elements, "fence": Code, "code_block": Code}  # noqa: RUF012 - rich's own shape

    console = Console()
    with console.capture() as captured:
        console.print(Page(page), width=_width())
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), color=True)


def _unknown(finding: str, known: list[str]) -> UsageError:
    import difflib

    close = (
        difflib.get_close_matches(finding, known, n=3, cutoff=0.5)
        or [name for name in known if len(finding) > 2 and finding.lower() in name][:3]
    )
    details = (f"did you mean {' or '.join(close)}?",) if close else ()
    fix = f"hpctrain docs {close[0]}" if close else "hpctrain docs"
    return UsageError(f"there is no finding or diagnosis {finding!r}", details=details, fix=fix)
