"""How many steps a training logged behind an error: one that it survived did not end it. Steps are counted behind errors only."""

from __future__ import annotations

import itertools
import re

from hpctrain.explain.hit import Done
from hpctrain.logs import text

#: So many steps are counted behind an error.
_COUNTED = 30
#: transformers, our own lines, and bars of tqdm, which Lightning and torchtune draw too; of a server, what it has answered.
_WORDS = (b"'loss':", b'"loss":', b"[speed] step=", b"it/s]", b"s/it]", b"it/s,", b"s/it,", b'HTTP/1.1" 200')
#: What such a word stands in, and is no step: other ranks still load while one has failed; a loss of 0 is what is left of NaN.
_NO_STEPS = re.compile(
    rb"(?:Loading|Fetching|Download|Generating|Tokeniz|Map\b|Filter\b|Materializing|Capturing|Saving)[^\r\n]{0,200}(?:it/s|s/it)[\],]"
    rb"|['\"]loss['\"]: ['\"]?0\.0+['\"]?,"
)
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
    rb"|shut|clos|clean|destroy|terminat|wait|Exception|File \""
)
_COUNT = re.compile(rb"\d+")
#: Bytes behind an error, and of a whole file, that are searched for such lines: a regex costs more than a word. A line that is looked at
#: costs as much as so many bytes.
_SEARCHED, _SEARCHED_OF_ALL, _LOOKED_AT = 16 << 20, 128 << 20, 1000
#: And for counts, which are searched for three times as long.
_SEARCHED_FOR_COUNTS = 256 << 10
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
        self._writer: tuple[int | None, int | None, str | None] | None = None
        self._number: bytes | None = None
        self._counted = -1

    @property
    def place(self) -> tuple[int, int, int]:
        """What is known up to here; `since` compares with it."""
        return self.count + self.others, self.completes, self.zeros

    def since(self, place: tuple[int, int, int]) -> tuple[int, Done]:
        """Return how many steps came since a place, and what says that it was got over there."""
        done: Done = "complete" if self.completes > place[1] else "zero" if self.zeros > place[2] else None
        return self.count + self.others - place[0], done

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
        self._at = 0

    def up_to(self, piece: bytes, until: int) -> None:
        """Count the steps up to a place, as long as there is an error that they may come after."""
        if self.count + self.others < self._stop_at and until > self._at:
            found = sum(piece.count(word, self._at, until) for word in _WORDS)
            if found:
                found = max(0, found - sum(1 for _ in _NO_STEPS.finditer(piece, self._at, until)))
            self.count += found
            if self.count + self.others < self._stop_at and min(self._left, self._left_of_all) > 0:
                self._search(piece, until)
        self._at = max(self._at, until)

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
            if any(word in line for word in _WORDS) or not (self._is_new(line) and (trains or self._goes_on(line, counter or b""))):
                if min(self._left, self._left_of_all) <= 0:
                    return
                continue
            self.count, self.others = self.count + trains, self.others + (not trains)
            if self.count + self.others >= self._stop_at:
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

    def _goes_on(self, line: bytes, counter: bytes) -> bool:
        """Whether a count of the work goes on, and does not begin: the first one may be of anything."""
        if _NO_COUNTER.search(line):
            return False
        said = _COUNT.search(counter)
        before, self._counted = self._counted, min(int(said[0]), 1 << 62) if said else -1
        return 0 <= before < self._counted
