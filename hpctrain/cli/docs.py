"""`hpctrain docs`: print the page of a finding, as docs/findings has it; no network, no browser."""

from __future__ import annotations

import json
import sys
import textwrap

import click

from hpctrain import data
from hpctrain.errors import UsageError

#: Ids longer than this stand on a line of their own.
_WIDEST_ID = 30


@click.command()
@click.argument("finding", metavar="[ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(finding: str | None, as_json: bool) -> None:
    """Print the page of a finding.

    ID is what stands in brackets behind a finding of check, lint or doctor. Without it: all ids, each with its first line.

    \b
    hpctrain docs
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    pages = data.findings()
    if finding is None:
        _show_all(pages, as_json=as_json)
        return
    name = finding.strip("[]").removesuffix(".md")
    if name not in pages:
        raise _unknown(finding, list(pages))
    if as_json:
        click.echo(json.dumps({"schema": 1, "id": name, "text": pages[name]}))
    elif sys.stdout.isatty():
        _show_markdown(pages[name])
    else:
        click.echo(pages[name], nl=not pages[name].endswith("\n"))


def first_line(page: str) -> str:
    """Return the first line of a page behind its title, in one piece: what the finding is about."""
    paragraphs = [" ".join(part.split()) for part in page.split("\n\n")]
    return next((part for part in paragraphs if part and not part.startswith("#")), "")


def _show_all(pages: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        listed = [{"id": name, "first_line": first_line(page)} for name, page in pages.items()]
        click.echo(json.dumps({"schema": 1, "pages": listed}))
        return
    for name, page in pages.items():
        if not sys.stdout.isatty():
            click.echo(f"{name}: {first_line(page)}")  # one line each, for grep
            continue
        wrapped = textwrap.wrap(first_line(page), 80 - _WIDEST_ID - 2, break_long_words=False, break_on_hyphens=False) or [""]
        if len(name) > _WIDEST_ID:
            click.echo(name)
        else:
            click.echo(f"{name:<{_WIDEST_ID}}  {wrapped.pop(0)}")
        for line in wrapped:
            click.echo(" " * (_WIDEST_ID + 2) + line)
    if pages:
        click.echo(f"{len(pages)} findings; the page of one: hpctrain docs {next(iter(pages))}", err=True)


def _show_markdown(page: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.capture() as captured:
        console.print(Markdown(page), width=min(console.width, 80))
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), color=True)


def _unknown(finding: str, known: list[str]) -> UsageError:
    import difflib

    close = (
        difflib.get_close_matches(finding, known, n=3, cutoff=0.5)
        or [name for name in known if len(finding) > 2 and finding.lower() in name][:3]
    )
    details = (f"did you mean {' or '.join(close)}?",) if close else ()
    fix = f"hpctrain docs {close[0]}" if close else "hpctrain docs"
    return UsageError(f"there is no finding {finding!r}", details=details, fix=fix)
