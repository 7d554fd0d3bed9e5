"""Texts that a script hands to another shell: `bash -c '…'`, a heredoc fed to bash, a script written by `cat > FILE <<EOF`.

Each is read again, with the offsets of the outer text; what the outer shell had expanded in it stays marked as that.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace

from hpctrain.jobs.lint import srun
from hpctrain.jobs.lint.reader import commands as reader
from hpctrain.jobs.lint.reader.model import Command, Heredoc, Part, Place, Reading, Scope, Shell, Word
from hpctrain.jobs.lint.values import Argv, Values

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
MAX_DEPTH = 3
#: A character of a private plane stands for each expansion of the outer shell, while the inner shell's text is read.
_HOLE = 0xF0000
_MAX_HOLES = 60_000
_HOLES = re.compile("([\U000f0000-\U000ffffd])")
_FILE_WRITERS = frozenset({"cat", "tee"})
#: Commands that only handle a file.
_HANDLING = frozenset({"chmod", "rm", "cat", "tee", "ls", "cp", "mv", "echo", "head", "sbcast", "touch", "mkdir", "trap", "export", "["})
_SHELL_SHEBANG = re.compile(r"#!\s*\S*?(?:env\s+)?(?:bash|sh|zsh|dash|ksh)\b")
_BRACES = re.compile(r"\$\{(\w+)\}", re.ASCII)


class Text:
    """The text of an inner shell, with the offset in the file of each of its characters."""

    def __init__(self, parts: Iterable[Part], place: Place) -> None:
        pieces: list[str] = []
        self._from: list[int] = []
        self._to: list[int] = []
        self.holes: list[Part] = []
        length = 0
        for part in parts:
            self._from.append(length)
            self._to.append(part.start)
            # A script may hold the very characters that stand for holes; they become others, as long.
            piece = _HOLES.sub("\ufffd", part.text) if part.kind == "text" else self._hole(part, place)
            pieces.append(piece)
            length += len(piece)
        self.text = "".join(pieces)

    def _hole(self, part: Part, place: Place) -> str:
        if len(self.holes) >= _MAX_HOLES:
            return "?"
        self.holes.append(replace(part, place=part.place or place))
        return chr(_HOLE + len(self.holes) - 1)

    def at(self, position: int) -> int:
        """Return the offset in the file of the character at `position`."""
        index = bisect_right(self._from, position) - 1
        return position if index < 0 else self._to[index] + position - self._from[index]


class Relocator:
    """Moves a reading of an inner text to its place in the file, and puts the outer shell's expansions back."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._moved: set[int] = set()
        self._parts_of: dict[int, list[Part]] = {}
        self._keep: list[object] = []  # as long as these live, no id is used twice

    def move(self, reading: Reading) -> None:
        """Change `reading` in place."""
        for command in reading.commands:
            self._command(command)
        for scopes in reading.functions.values():
            for scope in scopes:
                self._scope(scope)

    def _first_time(self, thing: object) -> bool:
        if id(thing) in self._moved:
            return False
        self._moved.add(id(thing))
        self._keep.append(thing)
        return True

    def _command(self, command: Command) -> None:
        command.start, command.end = self._text.at(command.start), self._text.at(command.end)
        self._scope(command.scope)
        for word in command.words:
            self._word(word)
        for assignment in command.assignments:
            assignment.start = self._text.at(assignment.start)
            for word in [assignment.word, *(assignment.array or [])]:
                self._word(word)
        for redirect in command.redirects:
            self._word(redirect.target)
        for heredoc in command.heredocs:
            heredoc.start, heredoc.end = self._text.at(heredoc.start), self._text.at(heredoc.end)
            heredoc.parts = self._parts(heredoc.parts)

    def _scope(self, scope: Scope) -> None:
        for outer in scope.chain():
            if self._first_time(outer):
                outer.start = self._text.at(outer.start)

    def _word(self, word: Word) -> None:
        if not self._first_time(word):
            return
        start = word.start
        if self._text.holes and not word.parts and _HOLES.search(word.text):
            word.parts = (Part("text", word.text, "", start, word.end),)
        word.parts = self._parts(word.parts)
        if self._text.holes:
            word.text = _HOLES.sub(lambda match: _shown(self._text.holes[ord(match[0]) - _HOLE]), word.text)
        word.start, word.end = self._text.at(start), self._text.at(max(word.end - 1, start)) + 1

    def _parts(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        moved: list[Part] = []
        for part in parts:
            if self._first_time(part):  # a word and an assignment may share their parts
                self._parts_of[id(part)] = self._part(part)
            moved += self._parts_of.get(id(part), [part])
        return tuple(moved)

    def _part(self, part: Part) -> list[Part]:
        if part.kind == "text" and self._text.holes and _HOLES.search(part.text):
            pieces = self._split(part)
        else:
            part.start, part.end = self._text.at(part.start), self._text.at(max(part.end - 1, part.start)) + 1
            part.nested = self._parts(part.nested)
            pieces = [part]
        for piece in pieces:
            if self._first_time(piece):
                self._parts_of[id(piece)] = [piece]
        return pieces

    def _split(self, part: Part) -> list[Part]:
        pieces: list[Part] = []
        position = part.start
        for piece in _HOLES.split(part.text):
            if _HOLES.match(piece):
                pieces.append(self._text.holes[ord(piece) - _HOLE])
            elif piece:
                start = self._text.at(position)
                pieces.append(Part("text", piece, part.quote, start, start + len(piece)))
            position += len(piece)
        return pieces


def _shown(part: Part) -> str:
    return f"${part.text}" if part.kind == "var" else {"arith": f"$(({part.text}))"}.get(part.kind, f"$({part.text})")


class InnerShells:
    """Finds and reads the inner shells of a reading; `commands` grows by theirs."""

    def __init__(self, reading: Reading, numbers: dict[str, int]) -> None:
        self.readings = [reading]
        self._numbers = numbers
        self._source = reading.text
        self.values: dict[Shell, Values] = {reading.shell: Values(reading.commands, None, numbers)}
        self._argv: dict[Command, Argv] = {}
        self._users: dict[str, list[Command]] | None = None
        done = 0
        while done < len(self.readings):
            current = self.readings[done]
            done += 1
            if current.shell.depth < MAX_DEPTH:
                for command in list(current.commands):
                    self._inspect(command)

    def argv(self, command: Command) -> Argv:
        """Return the words of `command` with known variables put in."""
        found = self._argv.get(command)
        if found is None:
            found = self._argv[command] = self.values[command.shell].argv(command)
        return found

    def _inspect(self, command: Command) -> None:
        if not command.words:
            return
        if command.heredocs:
            self._heredoc(command)
        if not any(len(word.text) < 20 and word.text.rpartition("/")[2] in SHELLS for word in command.words):
            return
        argv = self.argv(command).words
        script = shell_script(argv)
        if script is None:
            return
        flat = self.values[command.shell].flatten(script.parts or (Part("text", script.text, "", script.start, script.end),))
        self._read(Text(flat, command.shell.place), self._place(command, argv), command)

    def _place(self, command: Command, argv: list[Word]) -> Place:
        """Return where a shell that `command` starts runs."""
        if srun.position(argv) is not None:
            return "task"
        name = argv[0].text.rpartition("/")[2] if argv else ""
        return command.shell.place if name in SHELLS or name in srun.WRAPPERS else "unknown"

    def _read(self, text: Text, place: Place, command: Command, user: Command | None = None) -> None:
        shell = Shell(place, user or command, command.shell.depth + 1, command)
        reading = reader.read(text.text, shell)
        Relocator(text).move(reading)
        self.values[shell] = Values(reading.commands, self.values[command.shell], self._numbers)
        self.readings.append(reading)

    def _heredoc(self, command: Command) -> None:
        heredoc = command.heredocs[-1]
        argv = self.argv(command).words
        place: Place | None = None
        user: Command | None = None
        if command.name in _FILE_WRITERS:
            place, user = self._file_place(command, self._body(heredoc))
        elif reads_script_from_stdin(argv):
            place = self._place(command, argv)
        if place is None:
            return
        parts: tuple[Part, ...] = heredoc.parts
        if not parts:
            body = self._body(heredoc)
            parts = (Part("text", body, "'", heredoc.start, heredoc.end),)
        self._read(Text(parts, command.shell.place), place, command, user)

    def _body(self, heredoc: Heredoc) -> str:
        return self._source[heredoc.start : heredoc.end]

    def _file_place(self, command: Command, body: str) -> tuple[Place | None, Command | None]:
        """Return where the script that `command` writes is run, and by what; None where it is none, or is never seen to run."""
        targets = [redirect.target for redirect in command.redirects if redirect.operator in (">", ">>", ">|")]
        targets += command.words[1:] if command.name == "tee" else []
        name = _plain(targets[0].text) if targets else ""
        if not name or not (_SHELL_SHEBANG.match(body) or (name.endswith((".sh", ".bash")) and not body.startswith("#!"))):
            return None, None
        places: dict[Place, Command] = {}
        for user in self._users_of(name.rpartition("/")[2]):
            if user is command or user.name in _HANDLING:
                continue
            argv = self.argv(user).words
            place: Place = "task" if srun.position(argv) is not None else "batch" if user.name != "sbatch" else "unknown"
            places.setdefault(place, user)
        return next(iter(places.items())) if len(places) == 1 else (None, None)

    def _users_of(self, name: str) -> list[Command]:
        if self._users is None:
            self._users = {}
            for command in self.readings[0].commands:
                for key in {_plain(word.text).rpartition("/")[2] for word in command.words}:
                    self._users.setdefault(key, []).append(command)
        return self._users.get(name, [])


def _plain(text: str) -> str:
    return _BRACES.sub(r"$\1", text)


def shell_script(argv: list[Word]) -> Word | None:
    """Return the text behind `bash -c`, wherever in `argv` that stands."""
    for index, word in enumerate(argv):
        if word.text.rpartition("/")[2] in SHELLS and word.is_literal:
            return _behind_c(argv, index + 1)
    return None


def _behind_c(argv: list[Word], index: int) -> Word | None:
    wants_text = False
    while index < len(argv) and argv[index].text[:1] in ("-", "+"):
        flags = argv[index].text
        index += 1
        if not flags.startswith("--"):
            wants_text = wants_text or ("c" in flags and flags.startswith("-"))
            index += flags[1:].count("o") + flags[1:].count("O")  # each takes a word
    return argv[index] if wants_text and index < len(argv) else None


def reads_script_from_stdin(argv: list[Word]) -> bool:
    """Whether the command ends with a shell that reads its commands from standard input."""
    for index, word in enumerate(argv):
        if word.text.rpartition("/")[2] in SHELLS and word.is_literal:
            rest = [item.text for item in argv[index + 1 :]]
            return all(item.startswith("-") for item in rest[:1]) and (not rest or rest[0] in ("-", "-s", "-l", "-e", "-x", "--login"))
    return False
