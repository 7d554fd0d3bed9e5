"""Fill a rule's sentences with a job's names and numbers; say its remedy for a script that hpctrain
did not make; format an explanation as lines and as JSON values. PURE.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from hpctrain.explain.model import Consequence, Diagnosis, ErrorBlock, Explanation
from hpctrain.slurm.notations import array
from hpctrain.terminal import sgr
from hpctrain.util import shell
from hpctrain.util.secrets import redacted
from hpctrain.util.text import wrap

_PLACE = re.compile(r"(?<![$/\w{-])(RUN|JOBID|NODE|PATH|LOG|HOST)(?![\w=/])")
_NAME = re.compile(r"(?<!\$)\{([a-z_][a-z0-9_]*)\}")
#: The space between two sentences.
_NEXT = re.compile(r"(?<=[.!?])\s+(?=[A-Z`{(\"'])")


def names(text: str) -> list[str]:
    """Return the names in a text."""
    return _NAME.findall(text)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, each on one line."""
    return _NEXT.split(" ".join(text.split()))


def sentences(text: str, groups: Mapping[str, str], known: Collection[str]) -> str:
    """Fill the names in `text`; drop sentences with an unknown name, except the first, which gets
    `unknown`.

    Args:
        text: of the rule.
        groups: name → value.
        known: names that may be replaced; any other `{word}` is text.
    """
    kept = []
    for number, sentence in enumerate(split_sentences(text)):
        missing = [name for name in _NAME.findall(sentence) if name in known and name not in groups]
        if not missing or number == 0:
            said = _filled(sentence, groups, known)
            # Text quoted at the end may have its own full stop.
            kept.append(
                said[:-1] if sentence.endswith("}.") and said[-2:-1] in tuple(".?!") else said
            )
    return " ".join(kept)


def filled_lines(text: str, groups: Mapping[str, str], known: Collection[str]) -> str:
    """Fill the names in `text` line by line; drop lines with an unknown name."""
    return "\n".join(
        _filled(line.rstrip(), groups, known)
        for line in text.strip().splitlines()
        if all(name in groups for name in _NAME.findall(line) if name in known)
    )


def filled_in(text: str, places: Mapping[str, str]) -> str:
    """Replace the placeholders of a remedy, such as RUN, by `places`, quoted for a shell."""
    return _PLACE.sub(
        lambda match: shell.quote(places[match[1]]) if match[1] in places else match[0], text
    )


def _filled(text: str, groups: Mapping[str, str], known: Collection[str]) -> str:
    return _NAME.sub(
        lambda match: (
            groups.get(match[1], f"(unknown {match[1]})") if match[1] in known else match[0]
        ),
        text,
    )


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


def script_remedy(text: str) -> str:
    """Return a remedy with each command that needs a project replaced by the equivalent change."""
    return "\n".join(said for line in text.strip().splitlines() for said in _script_lines(line))


def _script_lines(line: str) -> Iterator[str]:
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


SCHEMA = 1
#: Length limit of an error that matches no rule.
_MOST_SAID = 400
#: A shorter line of a remedy was broken on purpose.
_WRAPPED = 80
_BOLD, _RED, _YELLOW, _DIM, _END = sgr(1), sgr(31), sgr(33), sgr(2), sgr(0)


def page(explanation: Explanation, *, width: int = 80, colour: bool = False) -> list[str]:
    """Format the explanation as lines of at most `width` characters, except for longer words."""
    return list(_Page(width, colour).whole(explanation))


def to_json(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON values: the keys of docs/explain.md."""
    unexplained = explanation.unexplained
    return {
        "schema": SCHEMA,
        "diagnoses": [_diagnosis(diagnosis) for diagnosis in explanation.diagnoses],
        "consequences": [
            {**asdict(each), "evidence": _evidence(each.evidence), "ranks": list(each.ranks)}
            for each in explanation.consequences
        ],
        "unexplained": (
            None
            if unexplained is None
            else {**asdict(unexplained), "lines": [redacted(line) for line in unexplained.lines]}
        ),
        "history": [redacted(line) for line in explanation.history],
        "notes": list(explanation.notes),
        "failed": explanation.failed,
        "ended": explanation.ended,
    }


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "id": diagnosis.id,
        "certainty": diagnosis.certainty,
        "cause": redacted(diagnosis.cause),
        "fix": redacted(diagnosis.fix.text),
        "evidence": [_evidence(each) for each in diagnosis.evidence],
        "rank": diagnosis.rank,
        "node": diagnosis.node,
        "since": diagnosis.since,
        "stage": diagnosis.stage,
        "attempt": diagnosis.attempt,
        "docs": f"hpctrain explain {diagnosis.id}",
        "changes": [
            {"key": each.key, "old": each.old, "new": each.new} for each in diagnosis.fix.changes
        ],
    }


def _evidence(evidence: Any) -> dict[str, Any]:
    return {"file": evidence.file, "line": evidence.line, "text": redacted(evidence.text)}


def place(rank: int | None, node: str | None, since: str | None) -> str:
    """Describe where and when something began; empty if neither is known."""
    parts = [*([f"rank {rank}"] if rank is not None else []), *([f"on {node}"] if node else [])]
    return ", ".join(
        [
            *([" ".join(parts)] if parts else []),
            *([f"since {since.replace('T', ' ')}"] if since else []),
        ]
    )


class _Page:
    def __init__(self, width: int, colour: bool) -> None:
        self.width, self.colour = max(40, width), colour

    def whole(self, explanation: Explanation) -> Iterator[str]:
        for number, diagnosis in enumerate(explanation.diagnoses):
            if number:
                yield ""
            yield from self._diagnosis(diagnosis)
        if explanation.unexplained is not None:
            yield from self._filled(self._head(explanation))
            yield from self._unexplained(
                explanation.unexplained, diagnosed=bool(explanation.diagnoses)
            )
        elif not explanation.diagnoses and explanation.failed:
            yield from self._filled("the job failed, and neither its logs nor its record say why")
        elif not explanation.diagnoses:
            yield "no failure found"
        yield from self._consequences(explanation.consequences)
        for line in explanation.history:
            yield from self._filled(f"earlier start {redacted(line.removeprefix('start '))}")
        for note in explanation.notes:
            yield from self._filled(f"note: {note}")

    def _diagnosis(self, diagnosis: Diagnosis) -> Iterator[str]:
        shade = _RED if diagnosis.certainty == "certain" else _YELLOW
        yield self._painted(f"{diagnosis.certainty}: {diagnosis.id}", _BOLD + shade)
        yield from self._filled(redacted(diagnosis.cause))
        where = place(diagnosis.rank, diagnosis.node, diagnosis.since)
        if where:
            yield from self._filled(where, "  ")
        for evidence in diagnosis.evidence:
            yield from self._evidence(evidence)
        lines = joined(redacted(diagnosis.fix.text).splitlines()) or [""]
        # What to type is not wrapped: it has to stay one line to be copied.
        typed = 0 if diagnosis.fix.changes else len(lines) - 1
        if lines[typed].endswith(".") and " " in lines[typed] and not diagnosis.fix.changes:
            typed = len(lines)
        for number, line in enumerate(lines):
            before = "  " if number else "fix: "
            if number == typed:
                yield f"{before}{line}"
            else:
                yield from self._filled(line, "  ", before=before)

    def _evidence(self, evidence: Any) -> Iterator[str]:
        where = evidence.file if evidence.line is None else f"{evidence.file}:{evidence.line}"
        text = redacted(evidence.text).strip()
        if len(where) + len(text) + 4 <= self.width:
            yield f"  {self._painted(where, _DIM)}: {text}"
            return
        yield f"  {self._painted(where, _DIM)}:"
        yield from self._filled(text, "    ", before="    ")

    def _head(self, explanation: Explanation) -> str:
        if explanation.diagnoses:
            return "the whole error:"
        who = "a process of the job" if explanation.notes else "the job"
        return f"{who} failed, and no rule says why; its first error:"

    def _unexplained(self, block: ErrorBlock, *, diagnosed: bool) -> Iterator[str]:
        where = place(block.rank, block.node, block.since)
        yield f"  {self._painted(f'{block.file}:{block.line}', _DIM)}" + (
            f" ({where})" if where else ""
        )
        for line in block.lines:
            shown = redacted(line)
            if len(shown) <= self.width - 4:
                yield f"    {shown}"
            elif shown[:1].isspace():
                yield f"    {shown[: self.width - 5]}…"
            else:
                # The exception's message is what matters; a frame's line is not.
                yield from self._filled(
                    textwrap.shorten(shown, _MOST_SAID, placeholder=" …"), "    ", before="    "
                )
        if block.frame is not None and not diagnosed:
            yield from self._filled(f"outside of libraries: {redacted(block.frame)}", "  ")

    def _consequences(self, consequences: Sequence[Consequence]) -> Iterator[str]:
        for each in consequences:
            times = f" x{each.count}" if each.count > 1 else ""
            ranks = (
                f" (ranks {array.compress(each.ranks).replace(',', ', ')})"
                if len(each.ranks) > 1
                else f" (rank {each.ranks[0]})"
                if each.ranks
                else ""
            )
            yield from self._filled(f"also seen, as a consequence: {each.id}{times}{ranks}", "  ")

    def _filled(self, text: str, indent: str = "", *, before: str = "") -> list[str]:
        if not text.strip():
            return [before.rstrip()] if before.strip() else []
        return wrap(text, self.width, indent=before or indent, hanging=indent)

    def _painted(self, text: str, code: str) -> str:
        return f"{code}{text}{_END}" if self.colour else text


def joined(lines: Sequence[str]) -> list[str]:
    """Put each sentence of a remedy on one line; the last line, what to type, keeps its own."""
    found: list[str] = []
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        goes_on = len(before) >= _WRAPPED and not before.rstrip().endswith((".", ":", "?"))
        if goes_on and number < len(lines) - 1:
            found[-1] = f"{found[-1].rstrip()} {line.lstrip()}"
        else:
            found.append(line)
    return found
