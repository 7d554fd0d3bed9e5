"""How many steps a training logged behind an error: one that it survived did not end it. Steps are counted behind errors only."""

from __future__ import annotations

import re

from hpctrain.logs import text

#: So many steps are counted behind an error.
_COUNTED = 30
#: transformers, our own lines, and bars of tqdm, which Lightning and torchtune draw too; of a server, what it has answered.
_WORDS = (b"'loss':", b'"loss":', b"[speed] step=", b"it/s]", b"s/it]", b"it/s,", b"s/it,", b'HTTP/1.1" 200')
#: Megatron (`iteration 5/ 100 | … lm loss: 9.5E+00`), torchtune, torchtitan, torchvision (`Epoch: [0] … loss: 2.3 (2.4)`), plain loops.
#: To the end of the line, so that a line counts once. `loss_coef: 0.1` is of a config, `loss scale: 1.0` is no loss.
_LINE = re.compile(
    rb"(?:iteration {1,12}\d+/ {0,12}\d+ \||[Ll]oss(?:/[\w/]{1,30})?[\"']?\s{0,8}[:=]?\s{0,8}[\"']?-?\d+(?:\.\d|[eE][+-]?\d))[^\r\n]*"
)
_NUMBER = re.compile(rb"(?i)(?:step|iter(?:ation)?)[\s:=#\[]{0,12}(\d+)")
#: Bytes behind an error, and of a whole file, that are searched for such lines: a regex costs more than a word. A line that is looked at
#: costs as much as so many bytes.
_SEARCHED, _SEARCHED_OF_ALL, _LOOKED_AT = 16 << 20, 128 << 20, 1000
#: A line begins no more than that before its loss, as far as anybody looks.
_BEFORE = 2000


class Steps:
    """Counts the steps of one file.

    Attributes:
        count: of those behind errors, up to where the file was read.
    """

    def __init__(self) -> None:
        self.count = 0
        self._stop_at, self._left, self._at = 0, 0, 0
        self._left_of_all = _SEARCHED_OF_ALL
        self._writer: tuple[int | None, int | None, str | None] | None = None
        self._number: bytes | None = None

    def want(self) -> None:
        """Count from here on: here is an error, or an end."""
        self._stop_at, self._left = self.count + _COUNTED, _SEARCHED

    def done(self) -> None:
        """Count the word of a training that it is complete as many steps: it got over what stands before."""
        self.count += _COUNTED

    def begin(self) -> None:
        """Go on with the next piece."""
        self._at = 0

    def up_to(self, piece: bytes, until: int) -> None:
        """Count the steps up to a place, as long as there is an error that they may come after."""
        if self.count < self._stop_at and until > self._at:
            self.count += sum(piece.count(word, self._at, until) for word in _WORDS)
            if self.count < self._stop_at and min(self._left, self._left_of_all) > 0:
                self._search(piece, until)
        self._at = max(self._at, until)

    def _search(self, piece: bytes, until: int) -> None:
        end = min(until, self._at + self._left)
        self._pay(end - self._at)
        for match in _LINE.finditer(piece, self._at, end):
            self._pay(_LOOKED_AT)
            low = max(self._at, match.start() - _BEFORE)
            begin = max(piece.rfind(b"\n", low, match.start()), piece.rfind(b"\r", low, match.start())) + 1
            line = piece[begin or low : match.end()]
            if any(word in line for word in _WORDS) or not self._is_new(line):
                if min(self._left, self._left_of_all) <= 0:
                    return
                continue
            self.count += 1
            if self.count >= self._stop_at:
                return

    def _pay(self, cost: int) -> None:
        self._left -= cost
        self._left_of_all -= cost

    def _is_new(self, line: bytes) -> bool:
        """Whether a line is of another step: where all ranks write theirs, those of one rank count."""
        label = text.label(text.clean(line))
        writer = (label.rank, label.local_rank, label.node)
        self._writer = self._writer or writer
        number = said[1] if (said := _NUMBER.search(line)) else None
        if writer != self._writer or (number is not None and number == self._number):
            return False
        self._number = number
        return True
