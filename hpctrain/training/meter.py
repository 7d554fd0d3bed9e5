"""What passes between two lines of the speed: time, the wait for data, and tokens, of one process. The clock is the caller's.

`Tally` counts tokens where the batch is, on the GPU, and is read only when a line is due: nothing here waits for a GPU in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one process did in some steps.

    Attributes:
        seconds: of these steps, without evaluations and saves.
        wait: of these, how many it waited for its data loader.
        tokens: that went through the model, padding included.
        useful: of these, the ones that are no padding; None where that is not known.
        squares: the sum of the squared lengths of the examples, for the cost of attention; None likewise.
        trained: tokens that the loss looks at; None likewise.
    """

    steps: int = 0
    seconds: float = 0.0
    wait: float = 0.0
    tokens: int = 0
    useful: int | None = 0
    squares: int | None = 0
    trained: int | None = 0

    def __add__(self, other: Window) -> Window:
        return Window(
            steps=self.steps + other.steps,
            seconds=self.seconds + other.seconds,
            wait=self.wait + other.wait,
            tokens=self.tokens + other.tokens,
            useful=_sum(self.useful, other.useful),
            squares=_sum(self.squares, other.squares),
            trained=_sum(self.trained, other.trained),
        )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


class Tally:
    """Counts the tokens of batches; a batch that says nothing of its padding, or of its labels, leaves that unknown."""

    def __init__(self) -> None:
        self._tokens = 0
        self._sums: Any = None
        self._known = [True, True, True]

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count one batch, with `input_ids` of the shape (rows, length), wherever its tensors lie."""
        import torch

        ids = batch.get("input_ids")
        if ids is None or ids.dim() != 2:
            self._known = [False, False, False]
            return
        self._tokens += ids.numel()
        counts = [*_lengths(batch, ids), _trained(batch, ids)]
        self._known = [known and count is not None for known, count in zip(self._known, counts, strict=True)]
        zero = ids.new_zeros((), dtype=torch.int64)
        row = torch.stack([zero if count is None else count.to(device=ids.device, dtype=torch.int64) for count in counts])
        self._sums = row if self._sums is None else self._sums + row

    def take(self) -> tuple[int, int | None, int | None, int | None]:
        """Return tokens, useful tokens, squared lengths and trained tokens since the last call; this waits for the GPU."""
        sums = [0, 0, 0] if self._sums is None else [int(value) for value in self._sums.tolist()]
        useful, squares, trained = (value if known else None for value, known in zip(sums, self._known, strict=True))
        found = self._tokens, useful, squares, trained
        self._tokens, self._sums, self._known = 0, None, [True, True, True]
        return found


def _lengths(batch: Mapping[str, Any], ids: Any) -> tuple[Any, Any]:
    """Return the number of tokens that are no padding, and the sum of the squared lengths of the examples."""
    mask, ends, positions = (batch.get(name) for name in ("attention_mask", "cu_seq_lens_q", "position_ids"))
    if mask is not None and mask.dim() == 2:
        lengths = mask.sum(dim=1)
        return lengths.sum(), (lengths * lengths).sum()
    if ends is not None:
        lengths = ends.diff()
        return lengths.sum(), (lengths.long() * lengths.long()).sum()
    if positions is not None and positions.shape == ids.shape:  # examples laid end to end: each counts from 0
        return ids.new_full((), ids.numel()), (2 * positions + 1).sum()
    return None, None


def _trained(batch: Mapping[str, Any], ids: Any) -> Any:
    shifted, labels = batch.get("shift_labels"), batch.get("labels")
    if shifted is not None:
        return shifted.ne(-100).sum()
    if labels is None or labels.shape != ids.shape:
        return None
    return labels[..., 1:].ne(-100).sum()


class Meter:
    """Measures the time of steps.

    Args:
        clock: returns seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._mark: float | None = None
        self._left = False
        self._pause = 0.0
        self._wait = 0.0
        self._steps = 0
        self.tally = Tally()
        self.took: dict[str, float] = {}
        """Seconds of the last `evaluate` and the last `save`."""

    def begin(self) -> None:
        """Start anew: the next step is the first, which is not measured: it compiles, allocates and fills caches."""
        self._since = self._mark = None
        self._left = False
        self._clear()

    def timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the same batches; the time that they take to come counts as wait."""
        return _Timed(batches, self)

    def batches_asked(self) -> None:
        """The loop asks for the batches of the next step: what came since the last one was an evaluation or a save, if there was any."""
        if self._left and self._mark is not None:
            self._pause += self._clock() - self._stepped
        self._left = False

    def waited(self, seconds: float) -> None:
        """The loop waited so long for a batch."""
        self._wait += seconds

    @property
    def steps(self) -> int:
        """Steps that were measured since `take`."""
        return self._steps

    def step_ended(self) -> None:
        """A step has ended."""
        self._mark = self._stepped = self._clock()
        if self._since is not None:
            self._steps += 1

    def ended(self, what: str) -> None:
        """An evaluation (`evaluate`) or a save (`save`) has ended."""
        if self._mark is None:
            return
        now = self._clock()
        self.took[what] = now - self._mark
        self._mark, self._left = now, True

    @property
    def measuring(self) -> bool:
        """Whether the first step is over, so that time counts."""
        return self._since is not None

    def start(self) -> None:
        """Measure from here on: what was counted until now is forgotten."""
        self.tally.take()
        self._clear()
        self._since = self._mark = self._stepped = self._clock()

    def take(self) -> Window:
        """Return what was measured since the last call; this waits for the GPU, so that its work is in the time."""
        if self._since is None:
            return Window()
        tokens, useful, squares, trained = self.tally.take()
        now = self._clock()
        pause = self._pause + (now - self._stepped if self._left else 0.0)
        seconds = max(0.0, now - self._since - pause)
        found = Window(steps=self._steps, seconds=seconds, wait=self._wait, tokens=tokens, useful=useful, squares=squares, trained=trained)
        self._clear()
        # What is left of the pause belongs to it, and not to the next steps.
        self._since = self._stepped = now
        return found

    def _clear(self) -> None:
        self._pause = self._wait = 0.0
        self._steps = 0

    _stepped = 0.0


class _Timed:
    def __init__(self, batches: Iterator[Any], meter: Meter) -> None:
        self._batches = batches
        self._meter = meter

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Any:
        began = self._meter._clock()
        try:
            return next(self._batches)
        finally:
            self._meter.waited(self._meter._clock() - began)
