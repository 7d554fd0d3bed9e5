"""What `hpctrain prepare` says at its end: the figures on stderr, the folder (or one JSON object) on stdout, and what to type next."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

import click

from hpctrain.cli.prepare_progress import amount, duration
from hpctrain.doctor.words import many
from hpctrain.errors import visible
from hpctrain.jobs import shell
from hpctrain.preparation.manifest import Manifest, Split
from hpctrain.preparation.outcome import Summary

_BAR = 28
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_YAML_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
_TOKENS_SAID = 5
_FEW_TRAINED = 0.05
"""Share of trained tokens below which the mask is more likely wrong than the answers short."""


def show(summary: Summary, *, as_json: bool, step: int | None = None) -> None:
    """Print the summary; `step`: rows of one optimizer step, as far as a config says."""
    if as_json:
        click.echo(json.dumps(document(summary), ensure_ascii=False))
        return
    for line in lines(summary, step=step):
        click.echo(visible(line), err=True)
    click.echo(str(summary.folder))
    for line in following(summary):
        click.echo(visible(line), err=True)


def document(summary: Summary) -> dict[str, object]:
    """Return the JSON object: the manifest, and how it went."""
    return {
        "schema": 1,
        "folder": str(summary.folder),
        "already_there": summary.there,
        "seconds": round(summary.seconds, 3),
        "working_seconds": round(summary.working, 3),
        "workers": summary.workers,
        "pieces": summary.pieces,
        "pieces_reused": summary.reused,
        "tokens_tokenised": summary.tokenised,
        "tokenising_seconds": round(summary.tokenising, 3),
        "peak_memory_mib": summary.peak_mib,
        "manifest": json.loads(summary.manifest.to_json()),
    }


def lines(summary: Summary, *, step: int | None = None) -> Iterator[str]:
    """Yield what is said about the dataset, in at most 80 columns where the data's own words allow it."""
    made = summary.manifest
    if summary.there:
        yield f"{summary.folder} was prepared by the same command before: nothing to do"
    for name, split in made.splits.items():
        yield from _split_lines(name, split, made)
    if made.truncated:
        total = sum(split.examples for split in made.splits.values())
        what = {"split": "split into several", "keep_start": "cut"}.get(str(made.settings.get("truncation")), "cut")
        was = "was" if made.truncated == 1 else "were"
        yield f"{many(made.truncated, 'example')} of {total:,} {was} longer than {made.max_length} tokens, and {what}"
    yield from _unexpected(made)
    yield from _warnings(made, step)
    dropped = sum(made.dropped.values())
    if dropped:
        yield f"dropped: {dropped:,} of {many(made.rows, 'row')}"
        for reason, count in sorted(made.dropped.items(), key=lambda item: -item[1]):
            yield f"  {count:,} x {reason}"
            if first := made.dropped_first.get(reason):
                yield f"    first: {first[:200]}"
    if summary.tokenising > 0 and summary.tokenised:
        speed = f"{amount(summary.tokenised / summary.tokenising)} tokens/s with {many(summary.workers, 'worker')}"
        memory = f", {summary.peak_mib / 1024:.1f} GiB of memory" if summary.peak_mib else ""
        yield f"{duration(summary.seconds)}, {speed}{memory}"
        if summary.reused:
            yield f"{summary.reused:,} of {many(summary.pieces, 'piece')} {'was' if summary.reused == 1 else 'were'} finished before"


def _split_lines(name: str, split: Split, made: Manifest) -> Iterator[str]:
    share = split.trained / split.tokens if split.tokens else 0.0
    yield f"{name}: {many(split.examples, 'example')}, {many(split.tokens, 'token')}"
    yield f"  {share:.1%} of the tokens are trained on ({made.loss_on})"
    if made.packed:
        full = f"{1 / split.padded:.1%} full" if split.padded else ""
        rows = f"{many(split.rows, 'packed row')}"
        yield f"  {rows} of {made.max_length} tokens, {split.examples / split.rows:.1f} examples each, {full}"
    else:
        yield f"  the longest has {many(split.longest, 'token')}; padding of random batches of 8: {split.padded - 1:.0%}"
    if name == next(iter(made.splits)):
        yield from _histogram(split)


def _unexpected(made: Manifest) -> Iterator[str]:
    """Yield what the rows themselves brought along."""
    if made.context_turns:
        are = "is" if made.context_turns == 1 else "are"
        yield f"{many(made.context_turns, 'turn')} {are} context only, because the template rewrites them"
    if made.specials:
        yield "warning: special tokens written in the text of rows become real ones:"
        for token, rows in sorted(made.specials.items(), key=lambda item: -item[1])[:_TOKENS_SAID]:
            yield f"  {many(rows, 'row')} with {token}"
            yield f"    first: {made.specials_first.get(token, '')[:200]}"
        if len(made.specials) > _TOKENS_SAID:
            yield f"  and {len(made.specials) - _TOKENS_SAID} other tokens"


def _warnings(made: Manifest, step: int | None) -> Iterator[str]:
    """Yield what a training would make little of."""
    for name, split in made.splits.items():
        if split.trained < _FEW_TRAINED * split.tokens:
            share = "none" if not split.trained else f"only {split.trained / split.tokens:.1%}"
            yield f"warning: {share} of the tokens in {name} {'are' if split.trained else 'is'} trained on"
            yield "  is the mask right? look at examples with --show, or name it: --loss-on"
    train = made.splits.get("train")
    if train is not None and step is not None and train.rows < step:
        yield f"warning: {many(train.rows, 'row')} to train on, and one step takes {step:,}:"
        yield "  fewer GPUs, a smaller per_device_train_batch_size" + (", or --no-pack" if made.packed else "")


def _histogram(split: Split) -> Iterator[str]:
    most = max((count for _, count in split.histogram), default=0)
    plain = not (sys.stderr.encoding or "").lower().startswith("utf")
    for bound, count in split.histogram:
        eighths = round(8 * _BAR * count / most) if most else 0
        bar = "#" * (eighths // 8) if plain else "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        yield f"  {'to ' + format(bound, ','):>12} tokens {count:>11,} {bar}".rstrip()


def following(summary: Summary) -> Iterator[str]:
    """Yield what to do next: how the folder's examples look, and what to put into config.yaml."""
    made = summary.manifest
    yield f"look: hpctrain prepare --show 3 {shell.quote(summary.folder)}"
    yield "next: in config.yaml, then: hpctrain check"
    yield "  training:"
    yield f"    model_name_or_path: {_yaml(made.tokenizer_name)}"
    yield f"    dataset_name: {_yaml(str(summary.folder))}"
    held_out = next((name for name in ("validation", "test") if name in made.splits), None)
    if held_out is not None:
        yield "    eval_strategy: epoch"


def _yaml(word: str) -> str:
    """Return a word as it can be put into a YAML file."""
    plain = re.fullmatch(r"[^\W\d][\w.-]*(/[\w.-]+)*|(/|\./|\.\./)[\w./-]+", word) and word.lower() not in _YAML_WORDS
    return word if plain else json.dumps(word, ensure_ascii=False)
