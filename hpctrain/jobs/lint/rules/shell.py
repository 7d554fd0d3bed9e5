"""The shell's own traps: exit codes that get lost, environments that are not activated, paths that are not what they seem."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.reader.model import Command, Part, Scope, Shell
from hpctrain.jobs.lint.rules.common import Edit, Hit, option_on, set_flags, within, works

_MANAGERS = frozenset({"conda", "mamba", "micromamba"})
_HOOKS = frozenset({"source", ".", "eval", "module", "ml"})
_BASH_WORDS = re.compile(r"\{\d+\.\.\d+\}")


def lost_exit_code(facts: Facts) -> Iterator[Hit]:
    """`training | tee log` without pipefail: the exit code is tee's."""
    for command in facts.named("tee"):
        before = command.pipe_prev
        if before is None or option_on(facts, "pipefail", command.shell, command.start) or "PIPESTATUS" in facts.text:
            continue
        worker = _worker(facts, before)
        if worker is not None:
            yield Hit(
                "pipefail-missing",
                command.start,
                f"the exit code of {worker.name or 'the training'} is lost in the pipe to tee",
                "write above it: set -o pipefail",
            )


def _worker(facts: Facts, element: Command | Scope) -> Command | None:
    while True:
        if isinstance(element, Command) and works(element):
            return element
        if isinstance(element, Scope):
            return next((command for command in facts.commands if within(command, element) and works(command)), None)
        if element.pipe_prev is None:
            return None
        element = element.pipe_prev


def strict_too_early(facts: Facts) -> Iterator[Hit]:
    """`set -u` in front of what uses unset variables."""
    strict: dict[Shell, bool] = {}
    told: set[Shell] = set()
    for command in facts.commands:
        if command.scope.inside("function", "$(") is not None:
            continue
        if command.name == "set":
            on, off = set_flags(command)
            strict[command.shell] = (strict.get(command.shell, False) or "nounset" in on) and "nounset" not in off
        elif strict.get(command.shell) and command.shell not in told and _activates(command):
            told.add(command.shell)
            shown = " ".join(word.text for word in command.words[:2])
            yield Hit(
                "nounset-before-activation", command.start, f"{shown} runs under set -u", "move `set -u` behind it, or: set +u; …; set -u"
            )


def _activates(command: Command) -> bool:
    second = command.words[1].text if len(command.words) > 1 else ""
    if command.name in _MANAGERS:
        return second in ("activate", "deactivate")
    return (command.name == "module" and second in ("load", "use", "purge", "swap", "restore", "add")) or (
        command.name == "ml" and bool(second)
    )


def bare_wait(facts: Facts) -> Iterator[Hit]:
    """`wait` for all: its exit code is 0 whatever happened."""
    for command in facts.named("wait"):
        if len(command.words) > 1 or "wait -n" in facts.text:
            continue
        started = [
            one for one in facts.commands if one.shell is command.shell and one.start < command.start and one.is_background and works(one)
        ]
        if started:
            yield Hit(
                "wait-without-pid",
                command.start,
                f"wait without a process id returns 0 even when {started[-1].name or 'the step'} failed",
                'pids+=($!) behind each &, then: for pid in "${pids[@]}"; do wait "$pid" || status=$?; done',
            )


def conda(facts: Facts) -> Iterator[Hit]:
    """Conda in a batch shell."""
    for command in facts.named("source", "."):
        if len(command.words) > 1 and command.words[1].text == "activate":
            begin, end = command.words[0].start, command.words[1].end
            plain = command.shell.depth == 0 and facts.text[begin:end] in ("source activate", ". activate")
            edits = [Edit(begin, end, 'source "$(conda info --base)/etc/profile.d/conda.sh" && conda activate')] if plain else []
            yield Hit(
                "source-activate",
                command.start,
                "`source activate` is no longer conda's way",
                'source "$(conda info --base)/etc/profile.d/conda.sh" && conda activate NAME',
                edits=edits,
            )
    if re.search(r"\s(?:-\w*[li]|--login)", facts.shell_flags) or not facts.is_batch or "get-user-env" in facts.options:
        return
    for command in facts.named(*sorted(_MANAGERS)):
        if len(command.words) < 2 or command.words[1].text != "activate" or command.name == "micromamba":
            continue
        if not _prepared(facts, command):
            yield Hit(
                "conda-not-initialised",
                command.start,
                f"{command.name} activate in a shell that was not prepared for it",
                'above it: source "$(conda info --base)/etc/profile.d/conda.sh"',
            )
            return


def _prepared(facts: Facts, command: Command) -> bool:
    """Whether anything in front of `command` could have made conda known; what a sourced file does cannot be seen."""
    via = command.shell.via
    if via is not None and any(re.fullmatch(r"-\w*[li]\w*|--login", word.text) for word in via.words[1:] if len(word.text) < 9):
        return True
    shells = [command.shell, *([via.shell] if via is not None else [])]
    hooks = (one for name in _HOOKS for one in facts.by_name.get(name, ()))
    return any(hook.shell in shells and hook.start < command.start for hook in hooks) or "conda" in facts.reading.functions


def posix_shell(facts: Facts) -> Iterator[Hit]:
    """#!/bin/sh with bash's syntax, or with modules."""
    if facts.shell_name not in ("sh", "dash") or not facts.is_batch:
        return
    for command in facts.commands:
        if command.shell.depth:
            continue
        what = _bash_only(command)
        if what:
            yield Hit("sh-shebang", command.start, f"{what} in a script that {facts.shebang} runs", "write as the first line: #!/bin/bash")
            return


def _bash_only(command: Command) -> str:
    if command.name in ("[[", "source", "shopt", "mapfile", "readarray", "pushd", "popd"):
        return command.name
    if command.name in ("module", "ml"):
        return f"{command.name}, which bash's start-up files define,"
    if any(assignment.array is not None and assignment.word.start and command.name != "for" for assignment in command.assignments):
        return "an array"
    if any(redirect.operator in ("<<<", "&>", "&>>") for redirect in command.redirects):
        return "a redirection of bash"
    if command.name == "set" and any(word.text == "pipefail" for word in command.words):
        return "set -o pipefail"
    if any(part.quote == "$" for word in command.words for part in word.parts):
        return "$'…'"
    return "a range {1..n}" if any(_BASH_WORDS.search(word.text) and not word.parts for word in command.words) else ""


def spool_copy(facts: Facts) -> Iterator[Hit]:
    """The directory of the script, which is a spool directory in a job."""
    if not facts.is_batch or re.search(r"Command=|SLURM_SUBMIT_DIR:-|SLURM_JOB_ID:-|SLURM_JOBID:-", facts.text):
        return
    for command in facts.commands:
        if facts.place(command) != "batch" or command.scope.inside("if") or command.conditional or command.after in ("||", "&&"):
            continue
        for part in command.expansions():
            if part.kind == "var" and part.text in ("0", "BASH_SOURCE") and not part.place and _takes_directory(command, part):
                yield Hit(
                    "script-directory",
                    part.start,
                    f"the directory of {facts.text[part.start : part.end]} is Slurm's spool directory",
                    'cd "$SLURM_SUBMIT_DIR", or write the path out',
                )
                return


def _takes_directory(command: Command, part: Part) -> bool:
    return command.name in ("dirname", "realpath", "readlink") or part.operand in ("%/*", "[0]%/*")


RULES = (lost_exit_code, strict_too_early, bare_wait, conda, posix_shell, spool_copy)
