"""Where a training stands by the lines of its log, where it leaves no files: hpctrain's, and those of any transformers Trainer. PURE.

    [speed] step=20/1000 tokens/s=14210 …            hpctrain.runs.speed
    [memory] 2026-11-20T21:08:03.123Z step=10 …      hpctrain.memory.sample
    [train] step=10/1000 loss=8.2448 grad_norm=3.9 … hpctrain.training.train_log
    {'loss': '2.345', 'learning_rate': '1e-05', 'epoch': '0.12'}      the Trainer's own; versions before 5 write numbers without quotes
     12%|█▏        | 120/1000 [03:20<24:30,  1.67s/it]                 its progress bar

A bar of another loop (loading, mapping) has words in front and is passed over; of two bars without, as during an evaluation, the longer one
is the training's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from hpctrain.memory import sample as memory
from hpctrain.memory.sample import Sample
from hpctrain.runs import speed
from hpctrain.runs.progress import Progress, of_ranks, thinned
from hpctrain.runs.speed import Speed

_NUMBER = r"-?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|nan|inf)"
_TRAIN = re.compile(r"\[train\] step=(?P<step>[0-9]{1,15})/(?P<most>[0-9]{1,15}) ")
_BEGIN = re.compile(r"\[train\] begin: step=(?P<step>[0-9]{1,15})/(?P<most>[0-9]{1,15})\b")
_PAIR = re.compile(rf"\b(?P<name>loss|eval_loss|epoch)=(?P<value>{_NUMBER})(?=\s|$)")
_HF = re.compile(r"\{'(?:loss|eval_loss|train_runtime)': .*\}")
_HF_PAIR = re.compile(rf"'(?P<name>loss|eval_loss|epoch)': '?(?P<value>{_NUMBER})'?(?=[,}}])")
_BAR = re.compile(
    r"(?:^|\r)\s*[0-9]{1,3}%\|[^|]*\| (?P<step>[0-9]{1,15})/(?P<most>[0-9]{1,15})"
    r" \[[0-9:]+<(?P<left>[0-9:]+|\?),\s+(?P<rate>[0-9.]+|\?)(?P<unit>s/it|it/s)"
)
_KEPT = 10
"""Samples of a rank that are kept."""


@dataclass(slots=True)
class Lines:
    """What the lines have said so far; `add` them in the order of the log, as it grows."""

    bar: tuple[int, int] | None = None
    bar_left: float | None = None
    bar_step_s: float | None = None
    step: int | None = None
    most: int | None = None
    epoch: float | None = None
    eval_loss: float | None = None
    measured: Speed | None = None
    losses: list[tuple[int, float]] = field(default_factory=list)
    samples: dict[int, list[Sample]] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Take one line, cleaned; of a line with several states of a bar, all."""
        for bar in _BAR.finditer(line) if "%|" in line else ():
            self._bar(bar)
        if memory.MARK in line:
            self._memory(line)
        elif (found := speed.parse_line(line)) is not None:
            self.measured, self.step, self.most = found, found.step, found.max_steps
        elif match := _TRAIN.search(line) or _BEGIN.search(line):
            self.step, self.most = int(match["step"]), int(match["most"])
            self._values(_PAIR.findall(line[match.end() :]))
        elif match := _HF.search(line):
            self._values(_HF_PAIR.findall(match[0]))

    def _memory(self, line: str) -> None:
        found = memory.parse_line(line)
        if found is not None:
            self.samples.setdefault(found.rank, []).append(found)
            del self.samples[found.rank][:-_KEPT]

    def _bar(self, bar: re.Match[str]) -> None:
        step, most = int(bar["step"]), int(bar["most"])
        if self.bar is not None and most < self.bar[1]:
            return
        self.bar = (step, most)
        self.bar_left = None if bar["left"] == "?" else _seconds(bar["left"])
        rate = 0.0 if bar["rate"] == "?" else float(bar["rate"])
        self.bar_step_s = (rate if bar["unit"] == "s/it" else 1 / rate) if rate else None

    def _values(self, pairs: list[tuple[str, str]]) -> None:
        for name, text in pairs:
            value = float(text)
            if name == "loss":
                self._loss(value)
            elif name == "eval_loss":
                self.eval_loss = value
            elif math.isfinite(value):
                self.epoch = value

    def _loss(self, value: float) -> None:
        step = self.step if self.step is not None else self.bar[0] if self.bar else len(self.losses)
        while self.losses and self.losses[-1][0] >= step > 0:  # a later start does steps again
            self.losses.pop()
        self.losses.append((step, value))
        if len(self.losses) > 4000:
            self.losses[:] = thinned(self.losses)

    def progress(self) -> Progress:
        """Return where the training stands; `at` is not known: lines have no time."""
        newest, recent = of_ranks(self.samples.values())
        step, most = (self.step, self.most) if self.step is not None else self.bar or (None, None)
        known = self.measured
        return Progress(
            step=step, max_steps=most, epoch=self.epoch, eval_loss=self.eval_loss, samples=newest, recent=recent,
            loss=self.losses[-1][1] if self.losses else None, losses=thinned(self.losses),
            tokens_per_s=(known.tokens_per_s if known.useful_tokens_per_s is None else known.useful_tokens_per_s) if known else None,
            mfu=known.mfu if known else None, data_wait=known.data_wait if known else None,
            step_s=known.step_s if known else self.bar_step_s, eta_s=known.eta_s if known else self.bar_left,
        )  # fmt: skip


def read(lines: Iterable[str]) -> Progress:
    """Return where a training stands by these lines of its log, in their order."""
    said = Lines()
    for line in lines:
        said.add(line)
    return said.progress()


def _seconds(text: str) -> float:
    """Return the seconds in tqdm's `01:02:03` or `02:03`."""
    seconds = 0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part or 0)
    return float(seconds)
