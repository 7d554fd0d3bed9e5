"""Whether a `fix:` or `next:` line can be pasted: one command, whose words and options exist."""

import re
import shlex
import shutil
from collections.abc import Iterator

import click

from hpctrain.cli import VERBS, cli

#: A word that the reader would have to replace.
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]{2,}|<[a-z ]+>|…|\.\.\.")
#: What belongs to a shell, to Slurm and to a GPU node, whether or not this machine has it.
_ELSEWHERE = re.compile(
    r"(cd|export|unset|ulimit|module|source|sinfo|squeue|scontrol|sacct|sacctmgr|sbatch|scancel"
    r"|nvidia-smi|hf|ssh|rsync|sudo|brew|mlflow|tensorboard)$"
)


def commands(text: str) -> Iterator[str]:
    """Yield what follows `fix:` and `next:` at the start of a line, continuation lines joined; an
    indented `fix:` belongs to a finding, and may be an edit of config.yaml.
    """
    for match in re.finditer(r"^(?:fix|next): +(.*(?:\\\n.*|\n {5,}\S.*)*)$", text, re.MULTILINE):
        yield re.sub(r"\s*\\?\n\s*", " ", match[1])


def wrong(command: str) -> str | None:
    """Return why a command cannot be pasted; None where it can."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError as error:
        return str(error)
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "|", "||"):
            parts.append([])
        else:
            parts[-1].append(word)
    return next((why for part in parts if (why := _wrong(part)) is not None), None)


def _wrong(words: list[str]) -> str | None:
    while words and re.match(r"[A-Z_]+=", words[0]):  # set for this command
        words = words[1:]
    if not words:
        return "no command"
    name, *rest = words
    if name != "hpctrain":
        if not (_ELSEWHERE.match(name) or shutil.which(name)):
            return f"no program {name}"
        return next((f"placeholder {word}" for word in rest if _PLACEHOLDER.fullmatch(word)), None)
    group: click.Command = cli
    with click.Context(cli) as context:
        while isinstance(group, click.Group) and rest and not rest[0].startswith("-"):
            if group is cli and rest[0] not in VERBS:
                return f"no command {rest[0]}"
            found = group.get_command(context, rest[0])
            if found is None:
                break
            group, rest = found, rest[1:]
    ours = rest[: rest.index("--")] if "--" in rest else rest
    known = {
        option
        for parameter in group.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}
    for word in ours:
        if re.match(r"--?[a-zA-Z]", word) and word.partition("=")[0] not in known:
            return f"no option {word}"
        if _PLACEHOLDER.fullmatch(word):
            return f"placeholder {word}"
        if word in ("or", "or:", "then:") or word.endswith((",", ";")):
            return f"a sentence: {word}"
    return None
