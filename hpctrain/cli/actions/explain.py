"""`hpctrain explain`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hpctrain.cli.options import complete_runs, json_option
from hpctrain.cli.output import columns, has_colour, print_json, say
from hpctrain.explain import pages as diagnosis_pages
from hpctrain.explain import text
from hpctrain.jobs import explanation
from hpctrain.runs.layout import RUNS
from hpctrain.util import installed
from hpctrain.util.text import count, size, wrap


@click.command("explain")
@click.argument(
    "words", nargs=-1, metavar="[RUN | JOBID | FILES... | ID]", shell_complete=complete_runs
)
@click.option("--list", "list_ids", is_flag=True, help="List all findings and diagnoses.")
@json_option
def command(words: tuple[str, ...], list_ids: bool, as_json: bool) -> None:
    """Diagnose a failed job and suggest a fix.

    Without an argument: the newest job that has ended. FILES are logs of any job, or directories of
    them. ID is a finding of check, lint or doctor, or a diagnosis: its help page
    is printed.

    If no rule matches the failure, the first error of the rank that failed first is shown.

    \b
    hpctrain explain
    hpctrain explain 123456
    hpctrain explain slurm-123456.out
    hpctrain explain cuda-oom
    """  # noqa: D301 - \b keeps click from wrapping
    if list_ids:
        _list(_pages(), as_json=as_json)
        return
    is_id = len(words) == 1 and not any(Path(place, words[0]).exists() for place in ("", RUNS))
    pages = _pages() if is_id else {}
    name = words[0].strip("[]").removesuffix(".md") if is_id else ""
    if name in pages:
        if as_json:
            print_json(id=name, text=pages[name])
        else:
            click.echo(pages[name].rstrip())
        return
    answer = explanation.explained(words)
    if as_json:
        print_json(**text.to_json(answer.explanation))
    else:
        for line in text.page(answer.explanation, width=columns(), colour=has_colour()):
            click.echo(line, color=has_colour())
    _say_what_was_read(answer)


def _say_what_was_read(answer: explanation.JobExplanation) -> None:
    account, case = answer.case.account, answer.case
    parts = [f"{count(sum(bool(file.size) for file in case.files), 'file')}, {size(answer.size)}"]
    if account is not None:
        parts.append(f"{account.source or account.scheduler}: {account.state}")
    if case.samples:
        parts.append(f"{len(case.samples)} samples")
    for line in (
        f"read for {answer.title}: {'; '.join(parts)}",
        *(f"note: {note}" for note in answer.notes),
    ):
        say("\n  ".join(wrap(line, columns() - 2)))
    diagnoses = answer.explanation.diagnoses
    if answer.run is not None and any(diagnosis.fix.changes for diagnosis in diagnoses):
        say(f"next: hpctrain resubmit {shlex.quote(answer.run)} --apply-fix")
    for diagnosis in diagnoses:
        say(f"more: hpctrain explain {diagnosis.id}")


# -- pages -----------------------------------------------------------------------------------------


def _pages() -> dict[str, str]:
    pages = installed.findings()
    for name, page in diagnosis_pages.pages().items():
        pages[name] = f"{pages[name].rstrip()}\n\n{page}" if name in pages else page
    return dict(sorted(pages.items()))


def first_line(page: str) -> str:
    """Return the first paragraph after a page's title, on one line."""
    paragraphs = [" ".join(part.split()) for part in page.split("\n\n")]
    return next((part for part in paragraphs if part and not part.startswith("#")), "")


def _list(pages: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json(
            pages=[{"id": name, "first_line": first_line(page)} for name, page in pages.items()]
        )
        return
    for name, page in pages.items():
        click.echo(f"{name}: {first_line(page)}"[: columns(80)])
    say(f"{len(pages)} pages; to read one: hpctrain explain {next(iter(pages))}")
