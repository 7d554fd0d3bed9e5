"""The shells of a script: values of their variables, if the text determines them, and the texts
that one shell passes to another (`bash -c '…'`, a heredoc as input of bash).

An inner text is read again with the offsets of the outer one; the outer shell's expansions stay
marked.
"""

from __future__ import annotations

import re

from hpctrain.checks.script.calls import CONTAINERS, WRAPPERS, srun_call
from hpctrain.checks.script.model import (
    Place,
    Shell,
    ShellWord,
    SimpleCommand,
    Variables,
    WordPiece,
)
from hpctrain.checks.script.reader import SourceText, read_shell

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_MAX_SHELLS = 200
_SHELL_SHEBANG = re.compile(r"#!\s*\S*?(?:env\s+)?(?:bash|sh|zsh|dash|ksh)\b")


def read_shells(batch: Shell, numbers: dict[str, int]) -> list[Shell]:
    """Read the texts that the shell of a script passes to others, and these to others, and
    substitute the variables in the commands of all; return all.
    """
    shells = [batch]
    steps: dict[str, SimpleCommand] = {}
    for shell in shells:  # grows during the loop
        outer = shell.via.shell.variables if shell.via is not None else None
        shell.variables = Variables(shell.commands, numbers, outer)
        for command in shell.commands:
            command.argv = shell.variables.expanded(command.words)
            command.call = srun_call(command)
            if command.call is not None and shell is batch:
                steps |= {word.program: command for word in command.words}
        for command in shell.commands if len(shells) < _MAX_SHELLS else ():
            inner = _shell_of(command, steps)
            shells += [inner] if inner is not None else []
    return shells


def _shell_of(command: SimpleCommand, steps: dict[str, SimpleCommand]) -> Shell | None:
    """Return the shell that reads a text in `command`."""
    argv, via = command.argv, command
    at = next((at for at, word in enumerate(argv) if word.program in SHELLS), len(argv))
    script, stdin = _script_of(argv[at + 1 :]) if argv[at:] else (None, False)
    if script is not None:
        pieces = command.shell.variables.flatten(script.parts)
    elif command.heredocs:
        written = command if stdin else _step_of_written(command, steps)
        if written is None:
            return None
        heredoc, via = command.heredocs[-1], written
        body = WordPiece("text", heredoc.text, heredoc.start, heredoc.end)
        pieces = list(heredoc.parts) or [body]
    else:
        return None
    place: Place = "task"
    if via.call is None:
        known = via.argv[0].program in SHELLS | WRAPPERS | CONTAINERS
        place = via.shell.place if known else "unknown"
    shell = Shell(place, via)
    return read_shell(SourceText.of_pieces(pieces, via.shell.place), shell)


def _step_of_written(
    command: SimpleCommand, steps: dict[str, SimpleCommand]
) -> SimpleCommand | None:
    """Return the srun call that runs the script written by `cat > FILE <<EOF`."""
    names = {target.program for operator, target in command.redirects if operator == ">"}
    shell = command.heredocs and _SHELL_SHEBANG.match(command.heredocs[-1].text)
    if command.name != "cat" or not (shell or any(name.endswith(".sh") for name in names)):
        return None
    return next((steps[name] for name in names if name in steps), None)


def _script_of(words: list[ShellWord]) -> tuple[ShellWord | None, bool]:
    """Return the text after `-c` in a shell's arguments, and whether the shell reads stdin."""
    wants_text = False
    while words and words[0].text[:1] in ("-", "+"):
        flags = words[0].text
        takes = 0 if flags.startswith("--") else flags.lower().count("o")  # each takes an argument
        wants_text = wants_text or bool(re.match(r"-\w*c", flags))
        words = words[1 + takes :]
    return (words[0], False) if wants_text and words else (None, not words)
