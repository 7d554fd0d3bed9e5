"""Between words: blanks, comments, redirections, and heredocs with their bodies."""

from __future__ import annotations

import re

from hpctrain.jobs.lint.reader.model import Command, Heredoc, Part, Reading, Redirect, Scope, Word
from hpctrain.jobs.lint.reader.words import IN_BODY, WordReader

#: Heredocs of one line.
MAX_HEREDOCS = 1000
BLANK = re.compile(r"(?:[ \t]|\\\n)*+")
_COMMENT = re.compile(r"#[^\n]*+")
_REDIRECT = re.compile(r"(?:[0-9]+|\{[A-Za-z_]\w*\})?(&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\())", re.ASCII)


class RedirectReader(WordReader):
    """Reads what stands between words; see `hpctrain.jobs.lint.reader.commands`."""

    def __init__(self, reading: Reading, scope: Scope) -> None:
        super().__init__(reading, scope)
        self._heredocs: list[Heredoc] = []

    def comment(self) -> None:
        """Read a comment, and keep its place where it looks like a directive."""
        comment = _COMMENT.match(self.text, self.pos)
        assert comment is not None  # noqa: S101 - the caller saw `#`
        if comment[0][1:8].lstrip()[:2].lower() in ("sb", "sl"):
            self.reading.comments.append(self.pos)
        self.pos = comment.end()

    def blanks(self, *, newlines: bool = False) -> None:
        """Skip blanks and continued lines; with `newlines` also comments and line ends, where a word may go on behind them."""
        while True:
            blank = BLANK.match(self.text, self.pos)
            self.pos = blank.end() if blank else self.pos
            if not newlines or self.pos >= self.length:
                return
            if self.text[self.pos] == "#" and self.text[self.pos - 1] in " \t\n":
                self.comment()
            elif self.text[self.pos] == "\n":
                self.pos += 1
                self.bodies()
            else:
                return

    def redirects(self, command: Command | None) -> None:
        """Read redirections behind a compound command."""
        while True:
            self.blanks()
            if self.pos >= self.length or not self.redirect(command):
                return

    def redirect(self, command: Command | None) -> bool:
        """Read one redirection into `command`; whether there was one."""
        match = _REDIRECT.match(self.text, self.pos)
        if match is None:
            return False
        self.pos = match.end()
        self.blanks()
        target = self.word() or Word("", self.pos, self.pos)
        if match[1] in ("<<", "<<-"):
            heredoc = Heredoc(target.text, bool(target.parts), match[1] == "<<-", match.start())
            self._heredocs.append(heredoc)
            if len(self._heredocs) > MAX_HEREDOCS:
                self.problem(heredoc.start, f"one line has more than {MAX_HEREDOCS} heredocs; the rest was not read")
                self.pos, self._heredocs = self.length, []
            if command is not None:
                command.heredocs.append(heredoc)
        elif command is not None:
            command.redirects.append(Redirect(match[1], target))
        return True

    def bodies(self) -> None:
        """Read the bodies of the heredocs of the line that ended."""
        waiting, self._heredocs = self._heredocs, []
        for heredoc in waiting:
            self._body(heredoc)

    def _body(self, heredoc: Heredoc) -> None:
        operator, heredoc.start = heredoc.start, self.pos
        if heredoc.strip_tabs:
            found = re.compile(rf"^\t*{re.escape(heredoc.delimiter)}$", re.MULTILINE).search(self.text, self.pos, self.length)
            end, after = (found.start(), found.end()) if found else (-1, -1)
        else:
            end, after = self._plain_end(heredoc.delimiter)
        if end < 0:
            self.problem(operator, f"the heredoc <<{heredoc.delimiter} is not closed")
            end = after = self.length
        heredoc.end = end
        if not heredoc.quoted and ("$" in (body := self.text[heredoc.start : end]) or "`" in body):
            parts: list[Part] = []
            length, self.length = self.length, end
            known = len(self.reading.problems)
            self.quoted_parts(parts, IN_BODY, "")
            del self.reading.problems[known:]  # bash reads expansions in a body only when it gets there, and goes on
            self.length = length
            heredoc.parts = tuple(parts)
        self.pos = min(after + 1, self.length)

    def _plain_end(self, delimiter: str) -> tuple[int, int]:
        """Return where the line that is `delimiter` alone begins and ends, or -1."""
        begin = self.pos
        while True:
            line = self.text.find(f"{delimiter}\n", begin, self.length)
            if line < 0:
                break
            if line == self.pos or self.text[line - 1] == "\n":
                return line, line + len(delimiter)
            begin = line + 1
        line = self.length - len(delimiter)
        if line >= self.pos and self.text.startswith(delimiter, line) and (line == self.pos or self.text[line - 1] == "\n"):
            return line, self.length
        return -1, -1
