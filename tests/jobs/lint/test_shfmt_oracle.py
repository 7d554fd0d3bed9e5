"""shfmt as the judge of the shell reader: both find the same simple commands, word by word."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.checks.script.model import Shell
from hpctrain.checks.script.reader import SourceText, read_shell
from tests.jobs.lint import lint_corpus as corpus

#: What shfmt takes for syntax of its own, and we for commands.
_OTHERS = ("export", "declare", "local", "readonly", "typeset", "let", "[[", "case", "((")
#: Words of one command, as octets.
Command = tuple[bytes, ...]

TEXTS = [
    "ls ?(a|b) x@(c|d) +(e)f !(g) *(h|i)\n",
    "[[ $x == ?(a|b) ]] && cd ?(a|b)/c\n",
    "case $x in ?(a|b)) c ;; @(d|e)*) f ;& *) g ;;& esac\n",
    "a=(1 '2 3' $(b c)); d=${e:-$(f 'g')} h \"$(i \"j $(k)\")\" `l m`\n",
    "a <<A <<-'B' | b 2>&1 >c\n$(d) ${e:-`f`}\nA\n\t$(g)\n\tB\nh\n",
    'f() { a; }; function g { b "$@"; }; h() (c)\n',
    "if a; then b; elif c | d; then e; else f; fi > g\n",
    "for ((i = 0; i < $(a); i++)); do b; done; for x in $(c) 2; do d; done\n",
    "while read -r x; do a; done < <(b c) & wait $!\n",
    "srun --x=\"a b\"'c'$'d\\n'\\ e ${f[@]} $((1 + $(g))) {1..3} ~/h *.i\n",
    "! a && b || { c; } |& d; time e; (f; g) 2>h\n",
    "echo a\\\n b # c\nd#e f\n",
]


def shfmt_commands(text: str) -> set[Command]:
    shfmt = Path(sys.executable).with_name("shfmt")
    done = subprocess.run(
        [shfmt, "-ln", "bash", "--to-json"], input=text.encode(), capture_output=True, check=True
    )
    octets = text.encode()

    def calls(node: Any) -> Iterator[Command]:
        children = node if isinstance(node, list) else []
        if isinstance(node, dict):
            children = list(node.values())
            if node.get("Type") == "CallExpr" and node.get("Args"):
                spans = [(word["Pos"]["Offset"], word["End"]["Offset"]) for word in node["Args"]]
                yield tuple(octets[begin:end] for begin, end in spans)
        for child in children:
            yield from calls(child)

    return set(calls(json.loads(done.stdout)))


def our_commands(text: str) -> set[Command]:
    reading = read_shell(SourceText(text), Shell("batch"))
    assert reading.problems == []
    return {
        tuple(text[word.start : word.end].encode() for word in command.words)
        for command in reading.commands
        if command.words and command.words[0].text != "for"
        if not text.startswith(_OTHERS, command.start)
    }


@pytest.mark.parametrize("text", TEXTS)
def test_all_of_the_syntax(text: str) -> None:
    assert our_commands(text) == shfmt_commands(text)


@pytest.mark.slow
def test_whole_scripts() -> None:
    wrong = {}
    for case in (*corpus.BASH, *corpus.GOLDEN):
        if not case.name.startswith("unreadable-shell"):
            ours, shfmts = our_commands(case.text), shfmt_commands(case.text)
            if ours != shfmts:
                wrong[case.name] = ours ^ shfmts
    assert wrong == {}
