"""Errors in a log, extracted while it is read: each as its program printed it (a complete Python
traceback, or the lines around the first error word), and the number of steps logged after it. An
error followed by steps did not end the training.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.explain.model import DEADLY, Done, ErrorExcerpt
from hpctrain.logs import text

# -- steps after an error --------------------------------------------------------------------------

#: Counts up to a position: steps, completion messages of a training, exit statuses of 0, bytes.
Place = tuple[int, int, int, int]
#: Maximum number of steps counted after an error.
_COUNTED = 30
#: Steps of transformers, hpctrain, and tqdm bars, which Lightning and torchtune draw too; requests
#: that a server answered.
_WORDS = (
    b"'loss':",
    b'"loss":',
    b"[speed] step=",
    b"it/s]",
    b"s/it]",
    b"it/s,",
    b"s/it,",
    b'HTTP/1.1" 200',
)
#: Lines with such a word that are not steps: other ranks still load after one failed; a loss of 0
#: results from NaN.
_LOADS = (
    b"Loading",
    b"Fetching",
    b"Download",
    b"Generating",
    b"Tokeniz",
    b"Map",
    b"Filter",
    b"Materializing",
    b"Capturing",
    b"Saving",
)
_NO_BAR = re.compile(
    rb"(?:Loading|Fetching|Download|Generating|Tokeniz|Map\b|Filter\b|Materializing|Capturing|Saving)[^\r\n]{0,200}(?:it/s|s/it)[\],]"
)
_NO_LOSS = re.compile(rb"loss['\"]: ['\"]?0\.0+['\"]?,")
#: Megatron (`iteration 5/ 100 | … lm loss: 9.5E+00`), torchtune, torchtitan, torchvision (`Epoch:
#: [0] … loss: 2.3 (2.4)`), plain loops. Matches to the end of the line, so that a line counts once.
#: `loss_coef: 0.1` is from a config, `loss scale: 1.0` is not a loss. Other programs count too:
#: `step 200, remaining…`, `boot 20 of 100`, `INFO prep: 100/812 shards`, `processed 2000
#: documents`.
_OF_TRAINING = (
    rb"iteration {1,12}\d+/ {0,12}\d+"
    rb" \||[Ll]oss(?:/[\w/]{1,30})?[\"']?\s{0,8}[:=]?\s{0,8}[\"']?-?\d+(?:\.\d|[eE][+-]?\d)"
)
_LOSS = re.compile(_OF_TRAINING)
_LINE = re.compile(
    rb"(?:"
    + _OF_TRAINING
    + rb"|(?P<counter>\b(?:[Ss]tep|[Ee]poch|[Ff]old|[Pp]rocessed|[Cc]ompleted|[Ii]teration|[Gg]eneration)s?"
    rb" {0,3}[:=#]? {0,6}\d+| \d+(?:/| of )\d+ ))[^\r\n]*"
)
_NUMBER = re.compile(rb"(?i)(?:step|iter(?:ation)?)[\s:=#\[]{0,12}(\d+)")
#: Counters that are not progress of the work: attempts, processes, and what remains of them.
_NO_COUNTER = re.compile(
    rb"(?i)err(?:or|no)|fail|retr|attempt|\btr(?:y|ies)|rank|gpu|node|host|task|proc(?!essed)|worker|kill|exit|abort|warn|time"
    rb" ?out|signal"
    rb"|shut|clos|clean|destroy|terminat|wait|Exception|File \"|NCCL|channel"
)
_COUNT = re.compile(rb"\d+")
#: Bytes after an error, and of a complete file, that are searched for such lines: a regex is slower
#: than a literal.
_SEARCHED, _SEARCHED_OF_ALL = 4 << 20, 16 << 20
#: Prefix of the summary that Weights & Biases prints at exit, even after an error: the last losses.
_SUMMARY = b"wandb: "
#: How far before its loss the start of a line is searched.
_BEFORE = 2000


class Steps:
    """Counts the steps of one file.

    Attributes:
        count: of a training, after errors, up to the current position; `others`: of other programs.
        completes: completion messages of a training: it survived all earlier errors; `zeros`: exit
            statuses of 0 that a script wrote. The scan counts both.
        at: the current position in the piece.
    """

    def __init__(self) -> None:
        self.count, self.others = 0, 0
        self.completes, self.zeros = 0, 0
        self._stop_at, self._left, self.at = 0, 0, 0
        self._left_of_all = _SEARCHED_OF_ALL
        self._passed = 0
        self._writers: dict[bool, tuple[int | None, int | None, str | None]] = {}
        self._number: bytes | None = None
        self._counted = -1

    @property
    def place(self) -> Place:
        """The counts up to here; pass it to `since`."""
        return self.count + self.others, self.completes, self.zeros, self._passed + self.at

    def steps_since(self, place: Place) -> int:
        """Return the steps since a place."""
        return self.count + self.others - place[0]

    def since(self, place: Place) -> dict[str, Any]:
        """Return what followed a place, as in an Occurrence: steps, the evidence that the program
        survived, and bytes.
        """
        done: Done = "zero" if self.zeros > place[2] else None
        return {
            "steps_after": self.steps_since(place),
            "done_after": "complete" if self.completes > place[1] else done,
            "bytes_after": self._passed + self.at - place[3],
        }

    def want(self) -> None:
        """Start counting: after an error, or an end."""
        self._stop_at, self._left = self.count + self.others + _COUNTED, _SEARCHED

    def begin(self) -> None:
        """Continue with the next piece."""
        self._passed, self.at = self._passed + self.at, 0

    def up_to(self, piece: bytes, until: int, *, least: int = 0) -> None:
        """Count the steps up to a position if an error precedes them; skip distances below
        `least`.
        """
        begin, self.at = self.at, max(self.at, until) if until - self.at >= least else self.at
        if self.at == begin or self._is_enough():
            return
        self.count += _counted_in(piece, begin, until)
        end = min(until, begin + self._left, begin + self._left_of_all)
        if self._is_enough() or end <= begin:
            return
        self._left -= end - begin
        self._left_of_all -= end - begin
        for match in _LINE.finditer(piece, begin, end):
            low = max(begin, match.start() - _BEFORE)
            head = max(piece.rfind(end, low, match.start()) for end in (b"\n", b"\r")) + 1
            line, counter = piece[head or low : match.end()], match["counter"]
            trains = counter is None or _LOSS.search(line) is not None
            if (
                not any(word in line for word in (*_WORDS, _SUMMARY))
                and self._is_new(line, trains)
                and (trains or self._goes_on(line, counter or b""))
            ):
                self.count, self.others = self.count + trains, self.others + (not trains)
                if self._is_enough():
                    return

    def _is_enough(self) -> bool:
        return self.count + self.others >= self._stop_at

    def _is_new(self, line: bytes, trains: bool) -> bool:
        """Whether a line reports a new step: if all ranks log, only one rank's count. Counters of
        scripts are separate.
        """
        label = text.label(text.clean(line))
        writer = (label.rank, label.local_rank, label.node)
        number = said[1] if (said := _NUMBER.search(line)) else None
        is_first = writer == self._writers.setdefault(trains, writer)
        if not is_first or (number is not None and number == self._number):
            return False
        self._number = number
        return True

    def _goes_on(self, line: bytes, counter: bytes) -> bool:
        """Whether a counter increased; its first value proves nothing."""
        if _NO_COUNTER.search(line):
            return False
        said = _COUNT.search(counter)
        before, self._counted = self._counted, min(int(said[0]), 1 << 62) if said else -1
        return 0 <= before < self._counted


def _counted_in(piece: bytes, begin: int, end: int) -> int:
    found = sum(piece.count(word, begin, end) for word in _WORDS)
    if found and piece.find(b"loss", begin, end) >= 0:
        found -= len(_NO_LOSS.findall(piece, begin, end))
    if found > 0 and any(piece.find(word, begin, end) >= 0 for word in _LOADS):
        found -= len(_NO_BAR.findall(piece, begin, end))
    return max(0, found)


# -- the error itself ------------------------------------------------------------------------------

#: Maximum number of errors per start of the job and file.
MOST = 4
#: With this many steps after an error, the next error is a new one.
_OVER = 3
#: An error word within this many lines after another belongs to it.
LINES, BYTES = 60, 48 * 1024
_SHOWN_HEAD, _SHOWN_TAIL, _AROUND = 12, 24, 6
#: Also behind words in its line: `[2025-03-01 10:00:00 TP0] Scheduler hit an exception: `, or a prompt.
_TRACEBACK = re.compile(
    r"(?:[^\"'`{}<>|]{1,100}(?:[:?\]] |\.\.\. ?))?[\s+|\u256d\u2500]*"
    r"(?:Exception Group |Original )?Traceback \(most recent call last\)"
)
#: Starts of lines inside a traceback, also one that rich draws a frame around.
_INNER = (" ", "\t", "\u2502", "\u2570", "\u256d")
#: The start of another process's line, or of another message.
_OTHER = re.compile(
    r"(?:srun|slurmstepd|hpctrain|wandb|salloc|mpirun|prterun|step\w*|epoch\w*|iter\w*)\b|[WEIF]\d{4}"
    r" |[\[{=*#<-]|Traceback"
    r"|\d{4}-\d\d|\d+[%/ ]|During handling|The above|Set the environment",
    re.IGNORECASE,
)
#: The first line of a traceback.
HEAD = "Traceback (most recent call last)"
_FRAME = re.compile(r"  +File \"")
#: A frame, and the files of libraries, of Python itself and of installed commands.
_PLACE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_LIBRARY = re.compile(
    r"(?:site|dist)-packages[\\/]|[\\/]lib(?:64)?[\\/]python\d|^<|__autograph_generated|[\\/](?:bin|Scripts)[\\/]"
    r"|(?i:[\\/](?:python|conda|envs[\\/])[^\\/]*[\\/]lib[\\/])"
)
_PACKAGE = re.compile(r"(?:site|dist)-packages[\\/](\w+)")
#: The error of a launcher: what its own frames do says nothing about the program that failed.
_OF_LAUNCHER = re.compile(r"(?:[\w.]+\.)?(?:CalledProcessError: Command |ChildFailedError:)")
#: Functions that raise an error of the code that called them.
_PASSES_ON = frozenset({"__getattr__", "__getattribute__", "__getitem__", "_call_impl", "reraise"})
_CODE_LENGTH = 160
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|NotFound|Iteration|Timeout|Failure|Failed|Child\w*)|[A-Za-z_]\w*(?:\.\w+)+|Exception)(?::|$)"
)
_CHAINED = re.compile(
    r"During handling of the above exception|Original Traceback|The above exception was the direct cause"
    r"|-- Process \d+ terminated with the following error"
)
#: Python prints this for an ignored error at exit, or in a logger, and continues.
_IGNORED = re.compile(
    rb"Exception ignored (?:in|while|on|due)|--- Logging error ---|Error in atexit\._run_exitfuncs:"
    rb"|Could not load bitsandbytes native library"
)


# -- the end of a file -----------------------------------------------------------------------------

#: Bytes at the end of a file that are searched for its last words.
_END = 1500
#: A line that begins with the word, perhaps behind a time, a level or a program's name.
#: `Error: 0.01` is a result.
_SAID = re.compile(
    r"[\s\W\d]{0,40}"
    r"(?:(?!wandb\b|libGL\b)[A-Za-z][\w./+-]{0,30}[:\]] |\w+ (?=ERROR)"
    r"|[A-Z]\w+(?: \w+)? (?=error: \D))?"
    r"(?:ERROR|FATAL|[Ee]rror|Fatal|fatal error|\[?ABORT)\b"
    r"(?!(?: \w+)?\W{0,30}[-+]?[\d.]+(?:[eE][-+]?\d+)?\W*$)"
    r"(?! (?:rate|norm|bar|budget|estimate|in|is|of)\b)"
    r"|.* [\[|(-] ?(?:ERROR|FATAL|CRITICAL) *[\])|-] "
    r"|Can't locate|Undefined (?:function|variable)|License checkout failed|GPUassert: "
    r"|.*Check failed: |\w*Exception in rule|\s*NF90_\w+ failed|\s*STOP |.*I REFUSE TO CONTINUE"
)
#: A program or launcher says that it, or another one, failed or gives up.
_FAILED = re.compile(
    r"(?i)exit(?:ed|ing|s)?\b.{0,24}\b(?:code|status)(?: is| of)?\W{1,12}-?(?!0+\b)\d{1,3}\b"
    r"|non-?zero (?:exit|status)|\bexited with (?:error|[1-9])|BAD TERMINATION|\bdied from signal"
    r"|(?:job|run|pipeline|workflow|command|program|execution|training)(?: '\d+')? (?:has )?failed\b"
    r"|^\W*[\u274c\u2717\u2718]\W*(?:[\w-]+ ){0,3}(?:error|failed|not found|could not|cannot|unable|no module)\b"
    r"|: line \d+: +\d+ (?:Aborted|Killed|Segmentation|Terminated|Bus error|Illegal|Floating)"
    r"|\bfailed, log is in |Detected \d+ failed runs in |^rsync error: |\(exit(?: code| status)?:? [1-9]\d{0,2}\)"
    r"|^\W*\[(?:FAIL(?:ED|URE)?|fail(?:ed)?)\]|^make(?:\[\d+\])?: \*\*\* |^Error in (?:user input|routine)\b"
    r"|\b(?:aborting|giving up|cannot continue)\b|mpirun noticed that process rank"
    r"|\bterminat(?:ed|ing) (?:abnormally|with error|by signal|on signal)\b|^exiting\W*$"
)
#: What the system, or a program, refuses; a Python exception whose traceback was cut off. Not
#: with more than so many lines behind it: the program continued.
_REST = 5
_REFUSED = re.compile(
    r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?::|$)"
    r"|(?:: not found|No such file or directory|[Pp]ermission denied|Operation not permitted"
    r"|Connection refused|Connection timed out|Cannot allocate memory|Input/output error"
    r"|disk I/O error|No space left on device|Disk quota exceeded|Exec format error"
    r"|Stale file handle)\W*$"
    r"|(?:^|: |\d\) )(?i:unable to|cannot|can't|could not|failed to) \w"
    r"|\b(?i:is not (?:permitted|allowed|installable|authorized to))\b"
    r"|points exceeded (?:v_)?cfl|^[Uu]sage: \S"
)
#: Lines of these forms after which a program continues; quoted text.
_HARMLESS = re.compile(
    r"(?i)warn|\b(?:info|debug)\b|^\[?W\d{4}|: W \w|\d: I \w|local_rendezvous|^\W*[{<]|\*\*\* (?:JOB|STEP) "
    r"|pip's dependency resolver does not|LD_PRELOAD cannot be preloaded|Unable to create TMPDIR"
    r"|slurmstepd: error: .*cgroup"
    r"|could not lock config file|Unclosed (?:client session|connector)|x11 forwarding|TIOCGWINSZ"
    r"|importing function definition|cannot find name for group|XDG_RUNTIME_DIR|dso_loader|^libGL|bitsandbytes"
    r"|(?:error|fatal)\"?: (?:none\b|null\b|\{\}|0 )|^(?:\S*/)?(?:rm|rmdir|mkdir|unlink|df): "
    r"|\b(?:no|0|without) (?:error|failure)s?\b"
    r"|\b(?:us(?:e|ing) (?:the )?default|skip(?:s|ped|ping)?|ignor(?:ed|ing)|retrying)\b"
)
_WELL = re.compile(
    r"(?i)^(?!.*\bnot (?:complet|finish|succe|done))"
    r".*?(?:(?<!un)\bsuccess(?:ful(?:ly)?)?\b|\b(?:completed|finished|done)\b|\d passed\b"
    r"|\b(?:written|saved) (?:to|in)\b|\bexit(?:ed)? (?:code|status)\W{1,3}0\b)"
)


def last_words(tail: bytes) -> int:
    """Return where the error begins with which a file ends, in its last bytes; -1 if it ends with
    success, steps, or neither.
    """
    at = tail.rfind(b"\n", 0, max(0, len(tail) - _END)) + 1
    first: int | None = None
    is_sure, rest = False, 0
    for raw in tail[at:].splitlines(keepends=True):
        line = text.label(text.clean(raw)).rest
        is_failure = _SAID.match(line) or _FAILED.search(line)
        is_error = (
            is_failure
            or _REFUSED.search(line)
            # The text is cut before its exception.
            or (at + len(raw) >= len(tail.rstrip()) and re.match(r"\s*assert [\w(]", line))
        )
        if is_error and not _HARMLESS.search(line):
            first = at if first is None else first
            is_sure, rest = is_sure or bool(is_failure), 0
        elif _WELL.search(line) and not is_error:
            first, is_sure = None, False
        elif line.strip():
            rest += 1
        at += len(raw)
    if (
        first is None
        or (
            rest > _REST
            and (
                not is_sure
                # The program says it of many items, and goes on.
                or re.search(
                    re.sub(rb"\d+", rb"\\d+", re.escape(tail[first:].partition(b"\n")[0])),
                    tail[: max(0, len(tail) - _END)],
                )
            )
        )
    ):
        return -1
    behind = Steps()
    behind.want()
    behind.up_to(tail, first)
    before = behind.place
    behind.up_to(tail, len(tail))
    return -1 if behind.steps_since(before) else first


@dataclass(slots=True)
class Open:
    """An error whose end may not have been read yet.

    Attributes:
        excerpt: what is known of it, without its lines.
        label: of its first line.
        steps: `place` of the file's steps.
        before: bytes before it; text: the error and the following text, at most BYTES.
    """

    excerpt: ErrorExcerpt
    label: text.Label
    steps: Place
    before: bytes
    text: bytes

    def add(self, piece: bytes) -> None:
        """Add the next piece."""
        if len(self.text) < BYTES:
            self.text += piece[: BYTES - len(self.text)]

    def close(self) -> ErrorExcerpt:
        """Return the excerpt to show."""
        labelled = [text.label(text.clean(raw)) for raw in self.text.split(b"\n")]
        mine = _own(labelled, self.label)
        raised: dict[str, str] = {}
        is_launcher = False
        is_ignored = _IGNORED.search(self.before.rstrip().rpartition(b"\n")[2])
        is_traceback = bool(mine and _TRACEBACK.match(mine[0]) and not is_ignored)
        if is_traceback:
            shown = [line for line in _traceback(mine) if line.strip()]
            if any(a == b and _FRAME.match(a) for a, b in itertools.pairwise(shown)):
                shown = list(dict.fromkeys(shown))  # unlabeled ranks wrote it line by line
            error = next((line for line in reversed(shown) if _EXCEPTION.match(line)), shown[-1])
            behind = shown[shown.index(error) + 1 :]
            # What a layer of Keras raised is on a line of its own, before the layer's arguments.
            error = re.sub(
                r"\A\S+: in user code:(?s:.*)\n\s+(?=\w+(?:Error|Exception): \S)|\A(.*:)\s*\n\s*"
                r"|(?<=: )Exception encountered when calling (?s:.*?)(?=[^\n]+\n(?:Call a|A)rguments)",
                lambda head: f"{head[1]} " if head[1] else "",
                "\n".join((error, *behind)),
            ).partition("\n")[0]
            # Three quotes close the traceback of another process: that is where it was raised.
            raised = _raised(list(itertools.takewhile('"""'.__ne__, shown)))
            is_launcher = bool(_OF_LAUNCHER.match(error)) and "frame" not in raised
            if is_launcher:
                shown = [*self._lines_before(), *shown[len(shown) - len(behind) - 1 :]]
        else:
            first, mine = "".join(mine[:1]), [line for line in mine if line.strip()]
            mine = mine if self.excerpt.ending else mine[: _AROUND + 1]
            shown = [*(self._frames_before() or self._lines_before()), *mine]
            raised = _raised(self._frames_before())
            error = next((line for line in mine if DEADLY.search(line)), first)
        left_out = len(shown) - _SHOWN_HEAD - _SHOWN_TAIL
        if left_out > 1:
            shown[_SHOWN_HEAD:-_SHOWN_TAIL] = [f"  … {left_out} lines left out …"]
        return replace(
            self.excerpt,
            lines=tuple(shown),
            error=error,
            # Frames without a head: the beginning of the excerpt was cut.
            traceback=is_traceback or bool(raised and _EXCEPTION.match(error)),
            raised=raised,
            launcher=is_launcher,
        )

    def _lines_before(self, most: int = 3) -> list[str]:
        before = map(text.label, map(text.clean, self.before.split(b"\n")[-most - 1 :]))
        own = (each.rest for each in before if each.rank in (None, self.label.rank))
        return [line for line in list(own)[-most:] if line.strip()]

    def _frames_before(self) -> list[str]:
        """Return the frames of a traceback whose first lines are missing."""
        lines = reversed(self._lines_before(LINES))
        return list(itertools.takewhile(lambda line: line.startswith(_INNER), lines))[::-1]


def _raised(lines: list[str]) -> dict[str, str]:
    frames = [(number, frame) for number, line in enumerate(lines) if (frame := _PLACE.match(line))]
    own = [(number, frame) for number, frame in frames if not _LIBRARY.search(frame["file"])]
    found: dict[str, str] = {}
    if own:
        number, frame = own[-1]
        inside = f", in {frame['function']}" if frame["function"] not in (None, "<module>") else ""
        found["frame"] = f"{frame['file']}:{frame['line']}{inside}"
        code = lines[number + 1].strip() if number + 1 < len(lines) else ""
        # A comment: the file was edited while the job ran.
        if code and code[0] != "#" and not _PLACE.match(code) and not _EXCEPTION.match(code):
            found["code"] = code[:_CODE_LENGTH]
    if frames and frames[-1] not in own and frames[-1][1]["function"] not in _PASSES_ON:
        package = _PACKAGE.search(frames[-1][1]["file"])
        found |= {"package": package[1]} if package else {}
    return found


def _own(labelled: list[text.Label], label: text.Label) -> list[str]:
    """Return the lines of one process; an empty line replaces those of others between them."""
    # In any other line, it may be a process that the line mentions.
    node = label.node if HEAD in label.rest else None
    found: list[str] = []
    for each in labelled:
        is_same = (each.rank, each.local_rank) == (label.rank, label.local_rank)
        if is_same and node in (None, each.node):
            found.append(each.rest or " ")
        elif found and found[-1]:
            found.append("")
    return found


class Errors:
    """The errors of one file; of each start of the job, few are kept.

    Attributes:
        found: of all starts.
        mine: of the current start.
    """

    def __init__(self, steps: Steps) -> None:
        self.found: list[Open] = []
        self.mine: list[Open] = []
        self._steps = steps

    def has_room(self) -> bool:
        """Whether another error can be stored: there are few, or one was recovered from and can be
        replaced.
        """
        return len(self.mine) < MOST or any(map(self._is_over, self.mine))

    def add(self, new: Open) -> None:
        """Add an error; if there are too many, it replaces the last one that was recovered from."""
        if len(self.mine) >= MOST:
            gone = [each for each in self.mine if self._is_over(each)][-1:]
            self.mine = [each for each in self.mine if each not in gone]
            self.found = [each for each in self.found if each not in gone]
        self.mine.append(new)
        self.found.append(new)

    def goes_on(self, line: int, label: text.Label) -> bool:
        """Whether a line belongs to a known error; a traceback after a line with an error word is a
        new one.
        """
        head = HEAD in label.rest
        return any(
            line < each.excerpt.line + LINES
            and not self._is_over(each)
            and (
                not head
                or (
                    HEAD in each.label.rest
                    # Behind an ignored error, another traceback is an error of its own.
                    and not _IGNORED.search(each.before.rstrip().rpartition(b"\n")[2])
                    and b", in _run_finalizers" not in each.text[:400]
                )
            )
            for each in self.mine
        )

    def is_in_traceback(self, line: int) -> bool:
        """Whether a line is so close behind the head of a known traceback that it belongs to it."""
        return any(
            _TRACEBACK.match(each.label.rest)
            and each.excerpt.line <= line < each.excerpt.line + LINES
            for each in self.mine
        )

    def _is_over(self, each: Open) -> bool:
        return self._steps.steps_since(each.steps) >= _OVER


def _traceback(lines: list[str]) -> list[str]:
    end = 1
    while end < len(lines):
        if (
            lines[end].startswith(_INNER)
            or not lines[end].strip()
            # Another process, or the program's output, may write between the frames.
            or (
                not _EXCEPTION.match(lines[end])
                and any(map(_FRAME.match, lines[end + 1 : end + 4]))
            )
        ):
            end += 1
            continue
        # The exception, perhaps of several lines; a chained traceback follows it.
        places = range(end + 1, min(end + 40, len(lines)))
        behind = next((n for n in places if _CHAINED.match(lines[n])), None)
        if behind is None or any(map(_TRACEBACK.match, lines[end + 1 : behind])):
            return [*lines[:end], *_exception(lines[end:])]
        places = range(behind, min(behind + 4, len(lines)))
        begin = next((n for n in places if _TRACEBACK.match(lines[n])), None)
        if begin is None:
            return lines[: behind + 1]
        end = begin + 1
    return lines


def _exception(lines: list[str]) -> list[str]:
    """Return the lines of an exception: its message may have more, up to three of them not
    indented.
    """
    found, plain = [lines[0]], 0
    for line in lines[1:20]:
        if not line.startswith((" ", "\t")):
            plain += 1
            if plain > 3 or not line or _OTHER.match(line):
                break
        found.append(line)
    return found
