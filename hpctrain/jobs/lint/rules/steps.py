"""srun, sbatch, squeue and scontrol as the script calls them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.reader.model import Command, Part
from hpctrain.jobs.lint.rules.common import TALKERS, Edit, Hit, assignments, option_on, replace_part, within
from hpctrain.jobs.lint.rules.launchers import _harmless

_CUTTERS = frozenset({"awk", "cut", "grep", "egrep", "sed", "tr", "tail", "gawk", "rev"})
_ASKS = frozenset({"squeue", "sacct", "scontrol"})
_GUARDS = (":-", "-", ":=", "=", ":+", "+", ":?", "?")
#: Variables that Slurm sets only when the option was given; checked in the lab on 22.05.
_NEEDS = {
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",), "SLURM_CPUS_PER_TASK": ("cpus-per-task",), "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
    "SLURM_NTASKS": ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "gpus-per-task"),
    "SLURM_NPROCS": ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "gpus-per-task"),
    "SLURM_GPUS": ("gpus", "gpus-per-task", "gpus-per-socket"), "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_MEM_PER_NODE": ("mem",), "SLURM_MEM_PER_CPU": ("mem-per-cpu",),
}  # fmt: skip
_FORMAT = re.compile(r"(?:-[harlv]*O|--Format(?:=|\Z))(.*)\Z", re.DOTALL)


def cores(facts: Facts) -> Iterator[Hit]:
    """Srun without --cpus-per-task in a job that asks for it."""
    if "cpus-per-task" not in facts.options or any(assignment.name == "SRUN_CPUS_PER_TASK" for assignment, _ in assignments(facts)):
        return
    for command, call in facts.sruns:
        given = {"cpus-per-task", "overlap", "pty", "cpu-bind", "exclusive", "exact", "overcommit"} & set(call.given)
        if "cpus-per-task" in given or "overlap" in given or "pty" in given or _harmless(facts, command, call.command):
            continue
        end = call.at.end
        plain = command.shell.depth == 0 and facts.text[call.at.start : end] == call.at.text and not command.scope.inside("$(")
        edits = [Edit(end, end, ' --cpus-per-task="$SLURM_CPUS_PER_TASK"')] if plain else []
        yield Hit(
            "srun-cpus-per-task",
            call.at.start,
            "srun without --cpus-per-task",
            'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" …',
            edits=edits,
        )


def kill_on_bad_exit(facts: Facts) -> Iterator[Hit]:
    """The value of an option with an optional value, one blank too far."""
    for command, call in facts.sruns:
        word = call.words.get("kill-on-bad-exit")
        argv = facts.argv(command).words
        if (
            word is not None
            and call.given["kill-on-bad-exit"] is None
            and call.command < len(argv)
            and argv[call.command].text in ("0", "1")
        ):
            value = argv[call.command]
            good = f"--kill-on-bad-exit={value.text}"
            stands = facts.text[word.start : value.end] == f"{word.text} {value.text}" and word.text in ("-K", "--kill-on-bad-exit")
            edits = [Edit(word.start, value.end, good)] if stands else []
            yield Hit(
                "kill-on-bad-exit-value",
                word.start,
                f"srun takes {value.text!r} behind {word.text} for the program to run",
                f"write: {good}",
                edits=edits,
            )


def unbuffered(facts: Facts) -> Iterator[Hit]:
    """Srun --unbuffered."""
    for _, call in facts.sruns:
        if "unbuffered" in call.given:
            word = call.words["unbuffered"]
            yield Hit("srun-unbuffered", word.start, "srun --unbuffered gives the task a terminal", "export PYTHONUNBUFFERED=1")


def environment(facts: Facts) -> Iterator[Hit]:
    """--export without ALL."""
    option = facts.options.get("export")
    restored = "SLURM_EXPORT_ENV" in facts.text or any(_all(call.given.get("export")) for _, call in facts.sruns)
    if (
        option is not None
        and option.value
        and "ALL" not in option.value.split(",")
        and "$" not in option.value
        and facts.sruns
        and not restored
    ):
        what = (
            f"--export={option.value}: srun's tasks get no environment either"
            if option.value in ("NONE", "NIL")
            else f"--export={option.value} drops all other variables"
        )
        yield Hit("export-drops-environment", option.start, what, "add to the script: unset SLURM_EXPORT_ENV")
    for _, call in facts.sruns:
        value = call.given.get("export")
        if value is not None and value.text and not _all(value) and not value.text.startswith("$"):
            word = call.words["export"]
            yield Hit(
                "export-drops-environment",
                word.start,
                f"srun --export={value.text} drops all other variables",
                f"write: --export=ALL,{value.text}",
            )


def _all(word: object) -> bool:
    return "ALL" in str(getattr(word, "text", "")).split(",")


def submissions(facts: Facts) -> Iterator[Hit]:
    """The job id cut out of what sbatch prints for people."""
    ids: set[str] = set()
    for command in facts.named("sbatch"):
        if any(word.text == "--parsable" for word in command.words):
            continue
        following = command.pipe_next
        if isinstance(following, Command) and following.name in _CUTTERS:
            yield Hit(
                "sbatch-output-parsed",
                command.start,
                f"the job id is cut out of sbatch's words by {following.name}",
                "job=$(sbatch --parsable …)",
            )
        ids.update(_assigned_from(facts, command))
    for command in facts.commands if ids else ():
        for part in command.expansions():
            if part.kind == "var" and part.text in ids and part.operand[:1] in ("#", "%"):
                yield Hit(
                    "sbatch-output-parsed",
                    part.start,
                    f"the job id is cut out of sbatch's words in ${part.text}",
                    "job=$(sbatch --parsable …)",
                )
                return


def _assigned_from(facts: Facts, command: Command) -> Iterator[str]:
    scope = command.scope.inside("$(")
    if scope is None:
        return
    for assignment, _ in assignments(facts):
        if any(part.kind == "command" and command in part.commands for part in assignment.word.parts):
            yield assignment.name


def polling(facts: Facts) -> Iterator[Hit]:
    """The controller asked again and again."""
    for command in facts.named(*sorted(_ASKS)):
        loop = next((scope for scope in command.scope.chain() if scope.kind == "loop" and scope.name != "for"), None)
        if (command.name == "scontrol" and not any(word.text in ("show", "ping") for word in command.words)) or (
            command.name == "scontrol" and any(word.text.startswith("hostname") for word in command.words)
        ):
            continue
        if loop is not None and not any(within(sleep, loop) and _long(sleep) for sleep in facts.named("sleep")):
            yield Hit(
                "polling-loop",
                command.start,
                f"{command.name} in a loop that sleeps less than a minute",
                "sleep 60, or wait with: sbatch --dependency=afterany:JOB",
            )
    for command in facts.named("watch"):
        if any(word.text in _ASKS for word in command.words):
            yield Hit("polling-loop", command.start, "watch asks the controller every few seconds", "squeue --me --iterate=60")


def _long(command: Command) -> bool:
    text = command.words[1].text if len(command.words) > 1 else ""
    match = re.fullmatch(r"(\d+)([smhd]?)", text)
    return match is None or match[2] in ("m", "h", "d") or int(match[1][:9]) >= 60


def unset_variables(facts: Facts) -> Iterator[Hit]:
    """Variables that Slurm sets only with an option that is not there."""
    if not facts.block.options or facts.block.hetjobs:
        return
    lacking = {name for name, needs in _NEEDS.items() if name in facts.text and not any(option in facts.options for option in needs)}
    lacking -= {assignment.name for assignment, _ in assignments(facts)} if lacking else set()
    if not lacking:
        return
    guarded = set(re.findall(r"(?:-[zn]|-v)\s+[\"']?\$?\{?(SLURM_\w+)|\$\{(SLURM_\w+)(?::?[-=?+])", facts.text))
    lacking -= {name for pair in guarded for name in pair}
    seen: set[int] = set()
    for command in facts.commands:
        if command.name in TALKERS and not option_on(facts, "nounset", command.shell, command.start):
            continue
        for part in command.expansions():
            if part.kind != "var" or part.text not in lacking or part.start in seen:
                continue
            if facts.place_of(part, command) == "batch" and not part.operand.startswith(_GUARDS):
                seen.add(part.start)
                yield _unset_hit(facts, part)


def _unset_hit(facts: Facts, part: Part) -> Hit:
    wanted = f"--{_NEEDS[part.text][0]}"
    if part.text == "SLURM_GPUS_PER_NODE" and facts.gres_gpu:
        return Hit(
            "slurm-variable-unset",
            part.start,
            "$SLURM_GPUS_PER_NODE is empty: the GPUs are asked for with --gres",
            "write: $SLURM_GPUS_ON_NODE (Slurm 21.08 and later), or the number",
            level="error",
        )
    return Hit("slurm-variable-unset", part.start, f"${part.text} is empty: there is no {wanted}", f"add: #SBATCH {wanted}=N")


def node_list(facts: Facts) -> Iterator[Hit]:
    """$SLURM_JOB_NODELIST without quotes."""
    for command in facts.commands:
        if command.name in ("[[", "case", "for") or not command.words:
            continue
        for word in command.words:
            for part in word.parts:
                if part.kind == "var" and part.text in ("SLURM_JOB_NODELIST", "SLURM_NODELIST") and not part.quote and not part.operand:
                    if part.place or (command.assignments and word.text.partition("=")[1]):
                        continue
                    shown = facts.text[part.start : part.end]
                    edits = (
                        replace_part(facts, part, f'"{shown}"', command)
                        if len(word.parts) == 1 and "`" not in _line(facts, part.start)
                        else []
                    )
                    yield Hit("nodelist-unquoted", part.start, f"{shown} without quotes", f'write: "{shown}"', edits=edits)


def _line(facts: Facts, offset: int) -> str:
    return facts.text[facts.text.rfind("\n", 0, offset) + 1 : offset]


def widths(facts: Facts) -> Iterator[Hit]:
    """Fields of -O without a width."""
    for command in facts.named("sinfo", "squeue"):
        words = [word.text for word in command.words[1:]]
        for index, text in enumerate(words):
            match = _FORMAT.match(text)
            if match is None:
                continue
            value = match[1] or (words[index + 1] if index + 1 < len(words) else "")
            bare = [field for field in value.split(",") if field and ":" not in field and "$" not in field]
            if bare:
                fix = f"write: {','.join(field if ':' in field else field + ':60' for field in value.split(','))}"
                yield Hit("format-widths", command.words[index + 1].start, f"{command.name} cuts {bare[0]} at 20 characters", fix)


RULES = (cores, kill_on_bad_exit, unbuffered, environment, submissions, polling, unset_variables, node_list, widths)
