"""Silent traps that show in the rows of the dataset, before the model is loaded.

A rule takes `Rows` and returns a Problem or None, as in hpctrain/training/traps_asked.py. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpctrain.training.preflight import Problem
from hpctrain.training.row_facts import RowFacts

FEW = 0.01
"""A smaller share of trained tokens than this is a mask gone wrong more often than a wish."""
FULL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What is known of the training split.

    Attributes:
        options: every option, by attribute.
        facts: of the rows as they were saved.
        columns: of the split.
        vocabulary: rows of the model's embedding; None where unknown.
        eos: the ids that end an answer; empty where unknown.
        prepared: `hpctrain prepare` made it.
    """

    options: Any
    facts: RowFacts
    columns: tuple[str, ...] = ("input_ids",)
    vocabulary: int | None = None
    eos: frozenset[int] = frozenset()
    prepared: bool = False


Rule = Callable[[Rows], Problem | None]


def nothing_trained(rows: Rows) -> Problem | None:
    """All labels are -100: the loss is 0 / 0, or 0, for ever."""
    if rows.facts.tokens and rows.facts.trained == 0:
        return Problem(f"no token of {rows.facts.sampled} rows is trained on: all labels are -100", "hpctrain prepare --show 3 ...")
    return None


def ids_beyond(rows: Rows) -> Problem | None:
    """A tokenizer larger than the embedding: an index error on the GPU, which names nothing."""
    if rows.vocabulary is not None and rows.facts.highest >= rows.vocabulary:
        what = f"the dataset has the token id {rows.facts.highest}, and the model's embedding ends at {rows.vocabulary - 1}"
        return Problem(what, "tokenise with the model's own tokenizer: hpctrain prepare --model FOLDER ...")
    return None


def padding_trained(rows: Rows) -> Problem | None:
    """SFTTrainer does not read the attention_mask of a dataset."""
    if rows.facts.padded:
        share = rows.facts.padded / rows.facts.tokens
        what = f"{share:.0%} of the tokens are padding that would be trained on: the dataset's attention_mask is not read"
        return Problem(what, "save the rows without padding, or with labels of -100 there")
    return None


def rows_cut(rows: Rows) -> Problem | None:
    """max_length cuts, and packing with bfd too; what is beyond is never seen."""
    most = rows.options.max_length
    if most is None or (rows.options.packing and rows.options.packing_strategy != "bfd"):
        return None
    many, tokens = rows.facts.over(most)
    if not many:
        return None
    total = int(rows.facts.lengths.sum())
    what = f"{many} of {len(rows.facts.lengths)} rows are longer than max_length {most} and are cut: {tokens / total:.1%} of all tokens"
    return Problem(what, f"--max_length {rows.facts.longest}")


def little_trained(rows: Rows) -> Problem | None:
    """Nearly all is masked."""
    share = rows.facts.trained / max(rows.facts.tokens, 1)
    if 0 < share < FEW:
        return Problem(f"only {share:.2%} of the tokens are trained on", "hpctrain prepare --show 3 ... shows the mask")
    return None


def end_masked(rows: Rows) -> Problem | None:
    """The end is there and never trained on (pad == eos, masked away): the model does not learn to stop."""
    there = rows.eos & rows.facts.used
    if there and not there & rows.facts.trained_ids and rows.facts.trained:
        what = "the end of an answer (eos) is in the rows and never trained on: the model will not learn to stop"
        return Problem(what, "do not mask the pad token by its id where it is eos too; hpctrain prepare keeps the end")
    return None


def end_missing(rows: Rows) -> Problem | None:
    """No row holds the end at all."""
    if rows.eos and not rows.eos & rows.facts.used and not rows.prepared:
        what = f"none of {rows.facts.sampled} rows has the end of an answer (eos): the model will not learn to stop"
        return Problem(what, "add tokenizer.eos_token to each answer; hpctrain prepare does")
    return None


def packing_nothing(rows: Rows) -> Problem | None:
    """Rows that are as long as max_length already: one to a packed row."""
    opt, lengths = rows.options, rows.facts.lengths
    if opt.packing and opt.max_length and len(lengths) and (lengths > opt.max_length / 2).mean() > FULL:
        what = f"--packing true packs next to nothing: {(lengths > opt.max_length / 2).mean():.0%} of the rows fill more than half of"
        return Problem(f"{what} max_length {opt.max_length}", "--packing false, or a greater --max_length")
    return None


ERRORS: tuple[Rule, ...] = (nothing_trained, ids_beyond, padding_trained)
WARNINGS: tuple[Rule, ...] = (rows_cut, little_trained, end_masked, end_missing, packing_nothing)


def apply(rules: tuple[Rule, ...], rows: Rows) -> list[Problem]:
    """Return what the rules find."""
    return [found for rule in rules if (found := rule(rows)) is not None]
