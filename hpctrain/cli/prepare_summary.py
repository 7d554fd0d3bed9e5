"""What `hpctrain prepare` says at its end: the figures on stderr, the folder (or one JSON object) on stdout, and what to type next."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import click

from hpctrain.cli.prepare_progress import amount, duration
from hpctrain.jobs import shell
from hpctrain.preparation.manifest import Manifest, Split
from hpctrain.preparation.outcome import Summary

_BAR = 28
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def show(summary: Summary, *, as_json: bool) -> None:
    """Print the summary."""
    if as_json:
        click.echo(json.dumps(document(summary), ensure_ascii=False))
        return
    for line in lines(summary):
        click.echo(line, err=True)
    click.echo(str(summary.folder))
    for line in following(summary):
        click.echo(line, err=True)


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


def lines(summary: Summary) -> Iterator[str]:
    """Yield what is said about the dataset, in at most 80 columns where the data's own words allow it."""
    made = summary.manifest
    if summary.there:
        yield f"{summary.folder} was prepared by the same command before: nothing to do"
    for name, split in made.splits.items():
        yield from _split_lines(name, split, made)
    if made.truncated:
        total = sum(split.examples for split in made.splits.values())
        what = {"split": "split into several", "keep_start": "cut"}.get(str(made.settings.get("truncation")), "cut")
        yield f"{made.truncated:,} examples of {total:,} were longer than {made.max_length} tokens, and {what}"
    dropped = sum(made.dropped.values())
    if dropped:
        yield f"dropped: {dropped:,} of {made.rows:,} rows"
        for reason, count in sorted(made.dropped.items(), key=lambda item: -item[1]):
            yield f"  {count:,} x {reason}"
            if first := made.dropped_first.get(reason):
                yield f"    first: {first[:200]}"
    if summary.tokenising > 0 and summary.tokenised:
        speed = f"{amount(summary.tokenised / summary.tokenising)} tokens/s with {summary.workers} workers"
        memory = f", {summary.peak_mib / 1024:.1f} GiB of memory" if summary.peak_mib else ""
        yield f"{duration(summary.seconds)}, {speed}{memory}"
        if summary.reused:
            yield f"{summary.reused:,} of {summary.pieces:,} pieces were finished before"


def _split_lines(name: str, split: Split, made: Manifest) -> Iterator[str]:
    share = split.trained / split.tokens if split.tokens else 0.0
    yield f"{name}: {split.examples:,} examples, {split.tokens:,} tokens"
    yield f"  {share:.1%} of the tokens are trained on ({made.loss_on})"
    if made.packed:
        full = f"{1 / split.padded:.1%} full" if split.padded else ""
        rows = f"{split.rows:,} packed row{'s' * (split.rows != 1)}"
        yield f"  {rows} of {made.max_length} tokens, {split.examples / split.rows:.1f} examples each, {full}"
    else:
        yield f"  the longest has {split.longest:,} tokens; padding of random batches of 8: {split.padded - 1:.0%}"
    if name == next(iter(made.splits)):
        yield from _histogram(split)


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
    yield f"    model_name_or_path: {made.tokenizer_name}"
    yield f"    dataset_name: {summary.folder}"
    held_out = next((name for name in ("validation", "test") if name in made.splits), None)
    if held_out == "validation":
        yield "    dataset_test_split: validation"
    if held_out is not None:
        yield "    eval_strategy: epoch"
