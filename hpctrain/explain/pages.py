"""The help page of a diagnosis, rendered from its rule: printed by `hpctrain explain ID`, and part
of the site's reference. PURE.
"""

from __future__ import annotations

import re

from hpctrain.explain import text
from hpctrain.explain.rules import WORD_END, FailureRule, shipped

_NAME = re.compile(r"(?<!\$)\{([a-z_][a-z0-9_]*)\}")
_STAGES = {"rdzv": "rendezvous", "comm": "communication", "env": "environment", "run": "training"}
_MOST_LITERALS = 4
_SENTENCE_END = re.compile(r"[\w)]\.$")


def rules() -> list[FailureRule]:
    """Return the rules that are diagnoses; each has a page."""
    return [rule for rule in shipped() if rule.kind != "consequence"]


def pages() -> dict[str, str]:
    """Return id → page for all diagnoses."""
    return {rule.id: f"# {rule.id}\n\n{body(rule)}" for rule in rules()}


def summary(rule: FailureRule) -> str:
    """Return the sentences of the cause that hold for every job: the first, and those without a
    job's values.
    """
    first, *others = text.split_sentences(rule.cause)
    kept = [each for each in others if not _NAME.search(each)]
    return " ".join([_NAME.sub(lambda match: match[1].replace("_", " ").upper(), first), *kept])


def body(rule: FailureRule) -> str:
    """Return the page without its heading, as Markdown."""
    parts = [summary(rule)]
    if rule.literals:
        shown = [f"`{each.removesuffix(WORD_END).strip()}`" for each in rule.literals]
        more = " and similar" if len(shown) > _MOST_LITERALS else ""
        parts.append(f"**In the log** (any case): {', '.join(shown[:_MOST_LITERALS])}{more}.")
    sentences, code = _remedy(rule.remedy)
    parts.append(f"**What to do.** {sentences}{code}")
    own_sentences, own_code = _remedy(rule.script or text.script_remedy(rule.remedy))
    if (own_sentences, own_code) != (sentences, code):
        words = "" if own_sentences == sentences else f" {own_sentences}"
        parts.append(f"**In your own script.**{words}{own_code}")
    certainty = "only if no cause is found" if rule.kind == "symptom" else rule.certainty
    stage = _STAGES.get(rule.stage, rule.stage)
    versions = f" Versions: {rule.versions}." if rule.versions else ""
    parts += [
        f"Certainty: {certainty}. Stage: {stage}.{versions}",
        f"Source: {' '.join(rule.source.split())}",
    ]
    return "\n\n".join(parts) + "\n"


def _remedy(remedy: str) -> tuple[str, str]:
    """Return the sentences, and the code block to paste, if any: the last line or, for arguments,
    the text after the colon.
    """
    lines = _NAME.sub(lambda match: match[1].upper(), remedy.strip()).splitlines()
    if _SENTENCE_END.search(lines[-1]):
        return "\n".join(lines), ""
    *before, last = lines
    if last.startswith(text.ARGUMENTS):
        before, last = [*before, text.ARGUMENTS], last.removeprefix(text.ARGUMENTS)
    return "\n".join(before), f"\n\n```\n{last.strip()}\n```"
