r"""Find commands in a text, and wrap them so that a copy is still a command. PURE.

A command that is too long for a line is broken only between the shell's words, with a backslash at
the end of the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: Programs whose names are not English words, and those whose names are: the latter are commands
#: only before something that looks like an argument.
_PROGRAMS = (
    r"(?:hpctrain|s(?:run|batch|alloc|queue|control|acct|acctmgr|info|cancel|share)|export|unset|module|python[0-9.]*|pip|uv|conda|bash"
    r"|grep|sed|ls|ldd|df|du|ps|mkdir|rm|cp|mv|cat|tail|chmod|namei|ulimit|umask|quota|nvidia-smi|py-spy|git|ssh|rsync|apptainer|echo|cd|env"
    r"|hf|jupyter|dmesg|munge|lfs|wc|awk|stat|lsof|getent|ping|nc|dig|curl|wget|tar|gzip|gunzip|od|xxd|jq|torchrun|singularity|ibstat"
    r"|bsub|qsub|ray (?:status|start|stop)|vllm serve|accelerate launch|julia|Rscript)(?![\w.:-])"
    r"|(?:find|head|kill|make|read|set|top|sort|file|host|id|diff|date|free)"
    r" (?=[-/.~$%'\"0-9]|\S*[/=])"
)
#: A directive, a program in a directory, a script with options, or a variable assignment for one
#: command or all that follow.
_COMMAND = re.compile(
    rf"\s*(?:\$ |#SBATCH -|(?:[A-Z_][A-Z0-9_]*=\S+ )*(?:{_PROGRAMS}|\S*/bin/[\w.-]+ |\.{{0,2}}/\S+(?="
    r" -|\Z))|[A-Z_][A-Z0-9_]*=\S+\Z)"
)
#: A sentence that begins like a command.
_PROSE = re.compile(r"\w[.:?]$")
#: A single word for the shell.
_WORD = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+")
#: A config key with its colon.
_KEY = re.compile(r"[a-z]+_[a-z_]+:\Z")
#: Text that follows a command in a sentence: `hpctrain logs JOB, and --err for …`; `hpctrain
#: render; or train …`; `… cu126 (AMD: rocm6.4)`.
_SENTENCE = re.compile(r"(?:or|and|then|until|which|under|if|for|shows|in)\b|\((?!\S*\$)")


def begins(line: str) -> bool:
    """Whether a line begins like a command."""
    return _COMMAND.match(line) is not None


def is_command(line: str) -> bool:
    """Whether a line is a command, and not a sentence that begins like one."""
    return begins(line) and _PROSE.search(line) is None


def cut(command: str, width: int, *, indent: int, hang: int) -> list[str]:
    """Break a command into lines of at most `width` characters, with continuation lines indented by
    `hang`; longer words are not broken.
    """
    words = _WORD.findall(command)
    if " ".join(words) != command.strip():
        return [" " * indent + command.strip()]
    found = [" " * indent + words[0]]
    for number, word in enumerate(words[1:], 2):
        room = 0 if number == len(words) else 2
        if len(found[-1]) + 1 + len(word) + room > width:
            found[-1] += " \\"
            found.append(" " * hang + word)
        else:
            found[-1] += f" {word}"
    return found


def units(text: str) -> Iterator[tuple[str, bool]]:
    """Yield single words and complete commands, each with whether it is a command."""
    words = _WORD.findall(text)
    if " ".join(words) != text.strip():  # a quote that is an apostrophe
        words = text.split()
    start = 0
    while start < len(words):
        first = start == 0 or words[start - 1].endswith(":")
        rest = " ".join(words[start:])
        if not (first and begins(rest)):
            if _KEY.match(words[start]) and start + 1 < len(
                words
            ):  # `dataset_name: chats` is one unit
                yield " ".join(words[start : start + 2]), False
                start += 2
                continue
            yield from ((word, False) for word in words[start].split())
            start += 1
            continue
        end = start + 1
        while end < len(words) and not _is_over(words, end):
            end += 1
        yield " ".join(words[start:end]), True
        start = end


def filled(label: str, text: str, width: int, *, hang: int) -> list[str]:
    """Wrap a text to lines of at most `width` characters; a command stays on one line, or is
    `cut`.
    """
    found, fresh = [label], True
    for unit, is_typed in units(text):
        if not fresh and len(found[-1]) + 1 + len(unit) > width:
            found.append(" " * hang)
            fresh = True
        gap = "" if fresh else " "
        if is_typed and len(found[-1]) + len(gap) + len(unit) > width:
            first, *rest = cut(unit, width, indent=len(found[-1]), hang=hang + 2)
            found[-1] += first.lstrip()
            found += rest
        else:
            found[-1] += gap + unit
        fresh = False
    return [line.rstrip() for line in found]


def _is_over(words: list[str], end: int) -> bool:
    """Whether the command ends before the word at `end`."""
    before = words[end - 1]
    if before.endswith(","):
        return True
    return (before.endswith(";") or words[end].startswith("(")) and _SENTENCE.match(
        words[end]
    ) is not None
