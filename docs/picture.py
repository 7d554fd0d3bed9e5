"""Make docs/demo.svg: a few lines of what `make demo` really printed.

Usage: make demo | tee demo.txt; .venv/bin/python docs/picture.py < demo.txt
"""

import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

KEPT = re.compile(
    r"^\$ |^sft.sbatch|nodes"
    r" x|submitted|rendezvous|event=(first_step|evaluate)|step=(5|20|40|60)/60"
    r" loss|finished|COMPLETED"
)
SHOWN = 24

console = Console(record=True, width=178, file=Path("/dev/null").open("w"), force_terminal=True)  # noqa: SIM115
lines = [line.rstrip("\n") for line in sys.stdin if KEPT.search(line)]
for line in lines[:SHOWN]:
    text = Text(line, no_wrap=True)
    text.highlight_regex(r"^\$ .*", "bold")
    text.highlight_regex(r"^\[memory\]", "cyan")
    text.highlight_regex(r"^\[train\]", "green")
    text.highlight_regex(r"\bloss[= ][\d.]+( -> [\d.]+)?", "bold green")
    text.highlight_regex(r"\brss=\d+M", "bold cyan")
    console.print(text)
svg = console.export_svg(title="make demo")
# The page must not ask another host for a font.
svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
Path(__file__).with_name("demo.svg").write_text(svg)
