"""Ranks: Slurm's rank variables are 0 in the batch shell, so where they are expanded decides what each task gets."""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.jobs.finding import Level
from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.launch import RANK_VARIABLES, Launch, rank_parts
from hpctrain.jobs.lint.reader.model import Command, Part, Word
from hpctrain.jobs.lint.rules.common import TALKERS, Edit, Hit, assignments
from hpctrain.jobs.lint.srun import Srun

_TESTS = frozenset({"[", "[[", "test", "case"})
_LITERAL = tuple(f"${name}" for name in RANK_VARIABLES) + tuple(f"${{{name}}}" for name in RANK_VARIABLES)
_RANK_OPTIONS = ("node_rank", "machine_rank")


def expanded_early(facts: Facts) -> Iterator[Hit]:
    """A rank that the batch shell puts in where a task should."""
    if not any(name in facts.text for name in RANK_VARIABLES) or not facts.is_batch:
        return
    seen: set[int] = set()
    for command in facts.commands:
        if command.name in TALKERS or command.name in _TESTS:
            continue
        call = facts.call_around(command)
        if call is None:
            continue
        for word in _consumed(facts, command, call):
            for part in rank_parts(word, facts.values(command)):
                if facts.place_of(part, command) == "batch" and part.start not in seen:
                    hit = _early(facts, command, call, part)
                    if hit is not None:
                        seen.add(part.start)
                        yield hit


def _consumed(facts: Facts, command: Command, call: Srun) -> Iterator[Word]:
    """Yield the words that the tasks get."""
    argv = facts.argv(command).words
    if command.shell.place == "batch" and command in facts._call_of:
        head = argv[call.command].text.rpartition("/")[2] if call.command < len(argv) else ""
        if head in TALKERS or head in _TESTS:
            return
        export = call.given.get("export")
        if export is not None:
            yield export
        # What stands behind `bash -c` is read as a shell of its own.
        yield from (word for word in argv[call.command :] if not _is_script(facts, command, word))
    elif command.shell.place == "task":
        yield from argv
        for assignment in command.assignments:
            if not command.words:
                yield from assignment.array if assignment.array is not None else [assignment.word]


def _is_script(facts: Facts, command: Command, word: Word) -> bool:
    return command in facts.starts_shell and any(character in word.text for character in " \n;")


def _early(facts: Facts, command: Command, call: Srun, part: Part) -> Hit | None:
    several = _several(facts, command, call, part.text)
    if several is False:
        return None
    level: Level | None = None if several else "warning"
    reason = None
    launch = next((one for one in facts.launches if one.command is command), None)
    if launch is not None and _only_node_rank(launch, part) and (launch.text("rdzv_backend") or "static") != "static":
        level, reason = "note", "the c10d rendezvous ignores the node rank, so this is harmless until the backend is static."
    line = facts.text[facts.text.rfind("\n", 0, part.start) + 1 : part.start]
    how = "srun … bash -c '… $" + part.text + " …' with single quotes" if not line.lstrip().startswith("#") else ""
    what = f"${part.text} is expanded in the batch shell, where it is 0, and not in each task"
    return Hit(
        "rank-expanded-early",
        part.start,
        what,
        f"write \\${part.text} inside double quotes or a heredoc, or {how}",
        level,
        reason,
        _escape(facts, command, part),
    )


def _only_node_rank(launch: Launch, part: Part) -> bool:
    for name in _RANK_OPTIONS:
        option = launch.options.get(name)
        if option is not None and any(item.start == part.start for item in option.expansions()):
            return True
    return False


def _several(facts: Facts, command: Command, call: Srun, name: str) -> bool | None:
    """Return whether the variable differs between the tasks of the step; None where the text does not say."""
    nodes, tasks = facts.call_nodes(command, call), facts.call_tasks(command, call)
    if name == "SLURM_NODEID":
        known = nodes
    elif name == "SLURM_LOCALID":
        known = facts.call_tasks_per_node(command, call)
    else:
        known = tasks
    if known is not None:
        return known > 1
    if name != "SLURM_LOCALID" and "nodes" not in call.given and facts.many_nodes:
        return True
    only_one = facts.value("nodes") is None and "nodes" not in call.given and "ntasks" not in facts.options and "ntasks" not in call.given
    return False if only_one and name == "SLURM_LOCALID" else None


def _escape(facts: Facts, command: Command, part: Part) -> list[Edit]:
    """A backslash in front of the dollar, where the text is a double-quoted one, or a heredoc, that a task's shell reads."""
    via = command.shell.holder
    if via is None or command.shell.depth != 1 or via.shell.depth or facts.text[part.start : part.start + 1] != "$" or part.quote != '"':
        return []
    bodies = [(heredoc.start, heredoc.end) for heredoc in via.heredocs] + [(item.start, item.end) for item in via.words]
    return [Edit(part.start, part.start, "\\")] if any(begin <= part.start < end for begin, end in bodies) else []


def exported_early(facts: Facts) -> Iterator[Hit]:
    """RANK and LOCAL_RANK set in the batch shell for all tasks at once."""
    if not facts.is_batch:
        return
    calls = [(command, call) for command, call in facts.sruns if facts.place(command) == "batch"]
    for assignment, command in assignments(facts):
        if (
            assignment.name not in ("RANK", "LOCAL_RANK")
            or facts.place(command) != "batch"
            or not _reaches(facts, assignment.name, command)
        ):
            continue
        if _set_in_task(facts, assignment.name):
            continue
        for part in assignment.word.expansions():
            if part.text in RANK_VARIABLES and any(
                _several(facts, one, call, part.text) and one.start >= command.start for one, call in calls
            ):
                what = f"{assignment.name} is set from ${part.text} in the batch shell, and so is 0 in every task"
                yield Hit(
                    "rank-expanded-early",
                    assignment.start,
                    what,
                    f"set it in each task: srun bash -c 'export {assignment.name}=${part.text}; …'",
                )


def _reaches(facts: Facts, name: str, command: Command) -> bool:
    if command.words and command.words[0].text != "export":
        return facts.call_around(command) is not None
    return bool(command.words) or any(word.text == name for export in facts.named("export") for word in export.words[1:])


def _set_in_task(facts: Facts, name: str) -> bool:
    return any(assignment.name == name and facts.place(command) != "batch" for assignment, command in assignments(facts))


def not_expanded(facts: Facts) -> Iterator[Hit]:
    """A rank that nobody expands: single quotes, and no shell to read them."""
    for launch in facts.launches:
        if launch.call is None:
            continue
        for name in _RANK_OPTIONS:
            word = launch.options.get(name)
            if word is not None and word.is_literal and word.text in _LITERAL:
                what = f"--{name} gets the characters {word.text}, which no shell expands"
                yield Hit("rank-not-expanded", word.start, what, f"start it in a shell: srun … bash -c '{launch.kind} … {word.text} …'")


RULES = (expanded_early, exported_early, not_expanded)
