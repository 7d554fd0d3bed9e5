"""Translate hpctrain commands in a remedy into changes of the user's own script, for logs of jobs
that hpctrain did not submit. PURE.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

#: Options of `submit` that are sbatch's own.
_DIRECTIVES = frozenset(
    {
        "--account",
        "--array",
        "--chdir",
        "--constraint",
        "--mem",
        "--nodes",
        "--partition",
        "--qos",
        "--reservation",
        "--time",
    }
)
ARGUMENTS = "As arguments of your training (transformers, TRL):"
#: Commands that read a file or inspect a node, and need no project.
_ANYWHERE = ("hpctrain doctor", "hpctrain lint")


def remedy(text: str) -> str:
    """Return a remedy with each command that needs a project replaced by the equivalent change."""
    return "\n".join(said for line in text.strip().splitlines() for said in _in_script(line))


def _in_script(line: str) -> Iterator[str]:
    if not line.startswith("hpctrain ") or line.startswith(_ANYWHERE):
        yield line
        return
    head, _, arguments = line.partition(" -- ")
    verb, *words = head.split()[1:]
    if verb == "resubmit":
        yield "sbatch SCRIPT"
    for name, value in pairwise(words) if verb == "submit" else ():
        if name == "--sbatch":
            yield f"#SBATCH --{value}"
        elif name == "--gpus":
            yield f"#SBATCH --gpus-per-node={value}"
        elif name == "--offline":
            yield "export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1"
        elif name in _DIRECTIVES:
            yield f"#SBATCH {name}={value}"
    if arguments:
        yield f"{ARGUMENTS} {arguments}"
