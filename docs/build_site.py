"""Build the documentation site into site/: `make docs`.

The pages of docs/ are copied to build/docs, each `<!-- help -->` becomes the help of its command,
the reference is written beside them from the code (config.yaml, diagnoses), and Zensical
makes HTML of all. A dead link ends the build. The result needs no network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner, Result

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BUILD = ROOT / "build" / "docs"
FROM_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md")
sys.path.insert(0, str(ROOT))

from hpctrain.cli import cli  # noqa: E402
from hpctrain.config.fields import FIELDS  # noqa: E402
from hpctrain.explain import pages  # noqa: E402
from hpctrain.explain.rules import AREAS, FailureRule  # noqa: E402

#: Longer error lines are cut in a heading.
_HEADING = 110
#: Where a page shows the help of its command, or `<!-- help runs list -->` of a subcommand.
HELP = re.compile(r"^<!-- help(?: ([a-z ]+))? -->$", re.MULTILINE)


def main() -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    for path in [*DOCS.rglob("*.md"), *(ROOT / name for name in FROM_ROOT)]:
        name = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT)
        text = with_help(path, path.read_text(encoding="utf-8"))
        write(name.as_posix(), in_site(path, text))
    for picture in DOCS.glob("*.[ps][nv]g"):
        shutil.copy(picture, BUILD / picture.name)
    for name, text in reference().items():
        write(f"reference/{name}", text)
    program = Path(sys.executable).with_name("zensical")
    done = subprocess.run([program, "build", "--clean", "--strict"], cwd=ROOT, check=False)
    sys.exit(done.returncode)


def write(name: str, text: str) -> None:
    path = BUILD / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def in_site(page: Path, text: str) -> str:
    """Return the text of a page with its links as the site has them; a link to a file that the
    site lacks becomes plain text.
    """
    folder = page.parent.relative_to(DOCS) if page.is_relative_to(DOCS) else Path()

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match.groups()
        if "://" in target:
            return match[0]
        found = (page.parent / target).resolve()
        if found.parent == ROOT and found.name in FROM_ROOT:
            target = os.path.relpath(found.name, folder)
        elif found.is_relative_to(DOCS) and found.exists():
            target = os.path.relpath(found.relative_to(DOCS), folder)
        else:
            return words
        return f"[{words}]({target}{anchor or ''})"

    return re.sub(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)", link, text)


def reference() -> dict[str, str]:
    """Return file name and text of the generated pages."""
    return {
        "config.md": config(),
        "diagnoses.md": diagnoses_index(),
        **{f"diagnoses-{area}.md": diagnoses(area) for area in AREAS if of_area(area)},
    }


def with_help(page: Path, text: str) -> str:
    """Return the text of a command's page with the help of each command in its place."""

    def asked(*words: str) -> Result:
        return CliRunner().invoke(cli, words, prog_name="hpctrain", terminal_width=84)

    def help_of(match: re.Match[str]) -> str:
        words = (match[1] or page.stem).split()
        shown = asked(*words, "--help")
        if shown.exit_code != 0:
            sys.exit(f"{page}: hpctrain {' '.join(words)} --help: {shown.output}")
        return f"```text\n{shown.output}```"

    return HELP.sub(help_of, text)


def config() -> str:
    """Return the keys of config.yaml, with the option and the environment variable of each."""
    rows = [
        "| key | option | environment variable | |",
        "|---|---|---|---|",
        *(
            f"| `{'.'.join(field.path)}` | `{field.option}` | `{field.variables[-1]}` |"
            f" {field.help.replace('|', chr(92) + '|')} |"
            for field in FIELDS
        ),
    ]
    shipped = (ROOT / "config.yaml").read_text(encoding="utf-8")
    return "\n\n".join(
        [
            "# config.yaml",
            "Command-line options take precedence over environment variables, these over"
            " `./config.yaml`, and that over `~/.config/hpctrain/config.yaml`.",
            "\n".join(rows),
            "## The whole file, with every key",
            f"```yaml\n{shipped}```",
        ]
    )


def of_area(area: str) -> list[FailureRule]:
    return sorted((rule for rule in pages.rules() if rule.area == area), key=lambda rule: rule.id)


def diagnoses_index() -> str:
    parts = [
        "# Diagnoses",
        "What `hpctrain explain` reports about a failed job, by area. Search this site for your"
        " error message, or type `hpctrain explain ID`.",
    ]
    for area in AREAS:
        if of_area(area):
            parts.append(f"## [{area.capitalize()}](diagnoses-{area}.md)")
            parts.append(
                "\n".join(
                    f"- [{rule.id}](diagnoses-{area}.md#{rule.id}): {pages.summary(rule)}"
                    for rule in of_area(area)
                )
            )
    return "\n\n".join(parts) + "\n"


def diagnoses(area: str) -> str:
    """Return the page of one area: each diagnosis under the error line that shows it."""
    parts = [f"# Diagnoses: {area}"]
    for rule in of_area(area):
        line = shown(rule)
        heading = line if line and len(line) <= _HEADING else f"{(line or '')[:_HEADING]}…"
        parts.append(
            f"## {f'`{heading}`' if line else rule.id} {{ #{rule.id} }}".replace("``", "`")
        )
        parts.append(f"**{rule.id}**: {pages.body(rule).rstrip()}")
    return "\n\n".join(parts) + "\n"


def shown(rule: FailureRule) -> str | None:
    """Return the line of the rule's first corpus case that fires it, without backticks."""
    file = ROOT / "tests" / "corpus" / "explain" / f"{rule.id}.txt"
    patterns = [re.compile(pattern) for pattern in rule.lines]
    for line in lines_of(file):
        # Zensical's table of contents loses the end of a heading that holds `id=`.
        if "id=" not in line and any(pattern.search(line) for pattern in patterns):
            return " ".join(line.replace("`", "'").split())
    return None


def lines_of(file: Path) -> Iterator[str]:
    """Yield the log lines of the cases of a corpus file."""
    in_log = False
    if file.exists():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("@"):
                in_log = line.startswith("@file")
            elif in_log:
                yield line


if __name__ == "__main__":
    main()
