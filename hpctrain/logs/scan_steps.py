"""How many steps a training logged behind an error: one that it survived did not end it. Steps are counted behind errors only."""

from __future__ import annotations

import itertools
import re
from collections import Counter

from hpctrain.explain.hit import Done
from hpctrain.logs import text

#: What is known up to a place: steps, words of a training that it is complete, exit statuses of 0, bytes.
Place = tuple[int, int, int, int]
#: So many steps are counted behind an error.
_COUNTED = 30
#: transformers, our own lines, and bars of tqdm, which Lightning and torchtune draw too; of a server, what it has answered.
_WORDS = (b"'loss':", b'"loss":', b"[speed] step=", b"it/s]", b"s/it]", b"it/s,", b"s/it,", b'HTTP/1.1" 200')
#: What such a word stands in, and is no step: other ranks still load while one has failed; a loss of 0 is what is left of NaN.
_LOADS = (b"Loading", b"Fetching", b"Download", b"Generating", b"Tokeniz", b"Map", b"Filter", b"Materializing", b"Capturing", b"Saving")
_NO_BAR = re.compile(
    rb"(?:Loading|Fetching|Download|Generating|Tokeniz|Map\b|Filter\b|Materializing|Capturing|Saving)[^\r\n]{0,200}(?:it/s|s/it)[\],]"
)
_NO_LOSS = re.compile(rb"loss['\"]: ['\"]?0\.0+['\"]?,")
#: Bytes that are counted in one go: mostly there are enough steps in the first of them.
_CHUNK = 64 << 10
#: A digit is a 0, and a state of a bar a line: lines that differ in their numbers only are looked at once.
_BLANK = bytes.maketrans(b"123456789\r", b"000000000\n")
_MOST_SHAPES = 16384
#: Megatron (`iteration 5/ 100 | … lm loss: 9.5E+00`), torchtune, torchtitan, torchvision (`Epoch: [0] … loss: 2.3 (2.4)`), plain loops.
#: To the end of the line, so that a line counts once. `loss_coef: 0.1` is of a config, `loss scale: 1.0` is no loss.
#: Programs that train nothing count too: `step 200, remaining…`, `boot 20 of 100`, `INFO prep: 100/812 shards`, `processed 2000 documents`.
_OF_TRAINING = rb"iteration {1,12}\d+/ {0,12}\d+ \||[Ll]oss(?:/[\w/]{1,30})?[\"']?\s{0,8}[:=]?\s{0,8}[\"']?-?\d+(?:\.\d|[eE][+-]?\d)"
_LOSS = re.compile(rb"(?:" + _OF_TRAINING + rb")[^\r\n]*")
_LINE = re.compile(
    rb"(?:" + _OF_TRAINING + rb"|(?P<counter>\b(?:[Ss]tep|[Ee]poch|[Ff]old|[Pp]rocessed|[Cc]ompleted|[Ii]teration|[Gg]eneration)s?"
    rb" {0,3}[:=#]? {0,6}\d+| \d+(?:/| of )\d+ ))[^\r\n]*"
)
_NUMBER = re.compile(rb"(?i)(?:step|iter(?:ation)?)[\s:=#\[]{0,12}(\d+)")
#: What counts in a line that tells of no step of the work: tries, processes, and what is left of them.
_NO_COUNTER = re.compile(
    rb"(?i)err(?:or|no)|fail|retr|attempt|\btr(?:y|ies)|rank|gpu|node|host|task|proc(?!essed)|worker|kill|exit|abort|warn|time ?out|signal"
    rb"|shut|clos|clean|destroy|terminat|wait|Exception|File \"|NCCL|channel"
)
_COUNT = re.compile(rb"\d+")
#: Bytes behind an error, and of a whole file, that are searched for such lines: a regex costs more than a word. A line that is looked at
#: costs as much as so many bytes.
_SEARCHED, _SEARCHED_OF_ALL, _LOOKED_AT = 16 << 20, 32 << 20, 1000
#: What is known to hold none costs a part of that.
_CHEAPER = 4
#: And for counts, which are searched for three times as long.
_SEARCHED_FOR_COUNTS = 256 << 10
#: What Weights & Biases writes when a program ends, however it does: the last loss of each kind.
_SUMMARY = b"wandb: "
#: A line begins no more than that before its loss, as far as anybody looks.
_BEFORE = 2000


class Steps:
    """Counts the steps of one file.

    Attributes:
        count: of a training's, behind errors, up to where the file was read; `others`: of programs that train nothing.
        completes: words of a training that it is complete; `zeros`: exit statuses of 0.
    """

    def __init__(self) -> None:
        self.count, self.others = 0, 0
        self.completes, self.zeros = 0, 0
        self._stop_at, self._left, self._left_for_counts, self._at = 0, 0, 0, 0
        self._left_of_all = _SEARCHED_OF_ALL
        self._passed = 0
        self._writers: dict[bool, tuple[int | None, int | None, str | None]] = {}
        self._number: bytes | None = None
        self._counted = -1
        self._silent: dict[re.Pattern[bytes], set[bytes]] = {_LINE: set(), _LOSS: set()}

    @property
    def at(self) -> int:
        """Up to where the piece was read."""
        return self._at

    @property
    def place(self) -> Place:
        """What is known up to here; `since` compares with it."""
        return self.count + self.others, self.completes, self.zeros, self._passed + self._at

    def since(self, place: Place) -> tuple[int, Done, int]:
        """Return how many steps came since a place, what says that it was got over there, and how many bytes came."""
        done: Done = "complete" if self.completes > place[1] else "zero" if self.zeros > place[2] else None
        return self.count + self.others - place[0], done, self._passed + self._at - place[3]

    def want(self) -> None:
        """Count from here on: here is an error, or an end."""
        self._stop_at, self._left = self.count + self.others + _COUNTED, _SEARCHED
        self._left_for_counts = _SEARCHED_FOR_COUNTS

    def done(self) -> None:
        """Take the word of a training that it is complete: it got over what stands before."""
        self.completes += 1

    def zero(self) -> None:
        """Take an exit status of 0 that a script wrote."""
        self.zeros += 1

    def begin(self) -> None:
        """Go on with the next piece."""
        self._passed, self._at = self._passed + self._at, 0

    def up_to(self, piece: bytes, until: int, *, least: int = 0) -> None:
        """Count the steps up to a place, as long as there is an error that they may come after; not where it is nearer than `least`."""
        if until - self._at < least:
            return
        while self.count + self.others < self._stop_at and until > self._at:
            end = until if until - self._at <= _CHUNK else _line_end(piece, self._at + _CHUNK, until)
            self.count += _counted_in(piece, self._at, end)
            if self.count + self.others < self._stop_at and min(self._left, self._left_of_all) > 0:
                self._look(piece, end)
            self._at = end
        self._at = max(self._at, until)

    def _look(self, piece: bytes, until: int) -> None:
        """Search for lines of steps, where a line is of a shape that may be one."""
        pattern = _LINE if self._left_for_counts > 0 else _LOSS
        shapes = set(piece[self._at : until].translate(_BLANK).split(b"\n"))
        shapes -= (silent := self._silent[pattern])
        new = {shape for shape in shapes if pattern.search(shape) is None}
        if len(silent) + len(new) > _MOST_SHAPES:
            silent.clear()
        silent.update(shape for shape in new if len(shape) < _BEFORE)
        if len(new) < len(shapes):
            self._search(piece, until)
        else:
            self._left_for_counts -= min(self._left_for_counts, until - self._at)
            self._pay((until - self._at) // _CHEAPER)

    def _search(self, piece: bytes, until: int) -> None:
        end = min(until, self._at + self._left)
        middle = min(end, self._at + self._left_for_counts)
        self._left_for_counts -= middle - self._at
        self._pay(end - self._at)
        for match in itertools.chain(_LINE.finditer(piece, self._at, middle), _LOSS.finditer(piece, middle, end)):
            self._pay(_LOOKED_AT)
            low = max(self._at, match.start() - _BEFORE)
            begin = max(piece.rfind(b"\n", low, match.start()), piece.rfind(b"\r", low, match.start())) + 1
            line = piece[begin or low : match.end()]
            counter = match["counter"] if match.re is _LINE else None
            trains = counter is None or _LOSS.search(line) is not None
            counted = any(word in line for word in (*_WORDS, _SUMMARY))
            if counted or not self._is_new(line, trains) or not (trains or self._goes_on(line, counter or b"")):
                if min(self._left, self._left_of_all) <= 0:
                    return
                continue
            self.count, self.others = self.count + trains, self.others + (not trains)
            if self.count + self.others >= self._stop_at:
                return

    def _pay(self, cost: int) -> None:
        self._left -= cost
        self._left_of_all -= cost

    def _is_new(self, line: bytes, trains: bool) -> bool:
        """Whether a line is of another step: where all ranks write theirs, those of one rank count; a script's counts are another's."""
        label = text.label(text.clean(line))
        writer = (label.rank, label.local_rank, label.node)
        first = self._writers.setdefault(trains, writer)
        number = said[1] if (said := _NUMBER.search(line)) else None
        if writer != first or (number is not None and number == self._number):
            return False
        self._number = number
        return True

    def _goes_on(self, line: bytes, counter: bytes) -> bool:
        """Whether a count of the work goes on, and does not begin: the first one may be of anything."""
        if _NO_COUNTER.search(line):
            return False
        said = _COUNT.search(counter)
        before, self._counted = self._counted, min(int(said[0]), 1 << 62) if said else -1
        return 0 <= before < self._counted


def _line_end(piece: bytes, at: int, until: int) -> int:
    """Return where a line ends, at a place or behind it."""
    ends = [end for end in (piece.find(b"\n", at, until), piece.find(b"\r", at, until)) if end >= 0]
    return min(ends) + 1 if ends else until


def _counted_in(piece: bytes, begin: int, end: int) -> int:
    """Return the steps that their words tell of."""
    found = sum(piece.count(word, begin, end) for word in _WORDS)
    if found and piece.find(b"loss", begin, end) >= 0:
        found -= sum(1 for _ in _NO_LOSS.finditer(piece, begin, end))
    if found > 0 and any(piece.find(word, begin, end) >= 0 for word in _LOADS):
        shapes = Counter(piece[begin:end].translate(_BLANK).split(b"\n"))
        found -= sum(count * len(_NO_BAR.findall(shape)) for shape, count in shapes.items() if b"it" in shape)
    return max(0, found)
