"""Signals before the time limit, traps, requeues."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.launch import Launch
from hpctrain.jobs.lint.reader.model import Command, Part
from hpctrain.jobs.lint.rules.common import Edit, Hit, assignments, option_on, works

_SIGNAL = re.compile(r"(?:([RB]{1,2}):)?(?:SIG)?(\w+)(?:@\d+)?\Z", re.IGNORECASE)
_NUMBERS = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP"}
_NUMERIC_TESTS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_SENDS = re.compile(r"\b(kill|scancel)\b[^;|&]*?(?:-s\s*|--signal[= ]|-)(?:SIG)?USR[12]\b(?![^;|&]*\$\$)")
_USR = r"-(?:s\s*|-signal[= ])?(?:SIG)?(?:USR[12]|1[02])\b"
_LOCAL_KILL = re.compile(rf"\bkill\s+{_USR}[^;|&]*(?:\$\(|`)\s*pgrep\b|\bpkill\b[^;|&]*\s{_USR}")
_OF_SRUN = re.compile(r"\bsrun\b|\s-\w*P")
_NO_SIGNALS = frozenset({"EXIT", "0", "ERR", "DEBUG", "RETURN"})
_REQUEUE = re.compile(r"\bscontrol\s+requeue\s+[\"']?+\$\{?+(?:SLURM_JOB_ID|SLURM_JOBID|SLURM_ARRAY_JOB_ID)\}?+[\"']?+(?![\w$])")
_CANCEL = re.compile(r"\bscancel\s+(?:-\S+\s+)*[\"']?+\$\{?+SLURM_ARRAY_JOB_ID\}?+[\"']?+(?![\w$])")


def _asked(facts: Facts) -> tuple[str, str] | None:
    """Return the flags and the name of the signal of --signal."""
    match = _SIGNAL.match(facts.value("signal") or "")
    if match is None:
        return None
    name = match[2].upper()
    return (match[1] or "").upper(), _NUMBERS.get(name, name)


def _traps(facts: Facts, signal: str) -> Iterator[Command]:
    """Yield the traps for `signal` in the batch shell."""
    for command in facts.named("trap"):
        names = {_NUMBERS.get(word.text.upper().removeprefix("SIG"), word.text.upper().removeprefix("SIG")) for word in command.words[2:]}
        if signal in names and facts.place(command) == "batch":
            yield command


def wrong_receiver(facts: Facts) -> Iterator[Hit]:
    """The batch shell waits for a signal that only the steps get."""
    asked = _asked(facts)
    if asked is None or "B" in asked[0]:
        return
    if next(_traps(facts, asked[1]), None) is not None and not _traps_in_tasks(facts, asked[1]):
        value = facts.value("signal") or ""
        option = facts.options["signal"]
        yield Hit(
            "signal-not-to-batch",
            option.start,
            f"--signal={value} does not reach the trap of the batch shell",
            f"write: --signal=B:{value.partition(':')[2] or value}",
        )


def _traps_in_tasks(facts: Facts, signal: str) -> bool:
    return any(
        facts.place(command) != "batch" and any(signal in word.text for word in command.words[2:]) for command in facts.named("trap")
    )


def foreground(facts: Facts) -> Iterator[Hit]:
    """Bash runs a trap only when the command in the foreground has ended."""
    asked = _asked(facts)
    if asked is None or "B" not in asked[0]:
        return
    trap = next(_traps(facts, asked[1]), None)
    if trap is None:
        return
    later = [command for command in facts.commands if command.start > trap.start and command.shell is trap.shell and works(command)]
    later = [command for command in later if command.scope.inside("$(", "function") is None]
    if later and not any(command.is_background for command in later):
        last = later[-1]
        yield Hit(
            "trap-in-foreground",
            last.start,
            f"{last.name} runs in the foreground, so the trap for {asked[1]} waits for its end",
            f'{last.name} … & then: wait "$!"',
        )


def kills_launcher(facts: Facts) -> Iterator[Hit]:
    """USR1 ends torchrun's and accelerate's agents."""
    launches = _unprotected(facts)
    if not launches:
        return
    asked = _asked(facts)
    kind = launches[0].kind
    fix = (
        "send TERM, or let the training poll $SLURM_JOB_END_TIME"
        if kind == "accelerate"
        else "torchrun --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 …"
    )
    if asked and "B" not in asked[0] and asked[1] in ("USR1", "USR2"):
        yield Hit(
            "usr1-kills-launcher", facts.options["signal"].start, f"--signal={facts.value('signal')} goes to {kind} in each task", fix
        )
        return
    for command in facts.commands:
        if command.name in ("kill", "scancel", "trap") and not command.shell.depth:
            shown = facts.text[command.start : command.end]
            if _SENDS.search(shown) and (command.name != "trap" or "kill" in shown or "scancel" in shown) and not _to_batch(shown):
                yield Hit("usr1-kills-launcher", command.start, f"this sends USR1 to {kind} in each task", fix)
                return


def _to_batch(text: str) -> bool:
    return re.search(r"scancel\b.*(?:--batch|-\w*b\w*\s)", text) is not None


def _unprotected(facts: Facts) -> list[Launch]:
    """Return the launchers, started by srun, that USR1 would end."""
    trapping = {trap.shell for trap in facts.named("trap") if any("USR" in word.text for word in trap.words[2:])}
    told = "SIGNALS_TO_HANDLE" in facts.text
    found = []
    for launch in facts.launches:
        handles = launch.kind == "torchrun" and (told or not launch.complete or launch.has("signals_to_handle"))
        if launch.call is not None and not handles and (launch.command.shell.via is None or launch.command.shell not in trapping):
            found.append(launch)
    return found


def arrays(facts: Facts) -> Iterator[Hit]:
    """One task of an array that requeues, or cancels, the whole array."""
    if "array" not in facts.options:
        return
    for command in facts.commands:
        if command.name not in ("scontrol", "scancel", "trap") or command.shell.depth:
            continue
        shown = facts.text[command.start : command.end]
        match = _REQUEUE.search(shown) or _CANCEL.search(shown)
        if match is not None:
            yield Hit(
                "requeue-whole-array",
                command.start,
                f"{match[0]!r} may mean the whole array",
                'write: "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
            )


def restart_count(facts: Facts) -> Iterator[Hit]:
    """SLURM_RESTART_COUNT does not exist in the first run."""
    if "SLURM_RESTART_COUNT" not in facts.text or any(assignment.name == "SLURM_RESTART_COUNT" for assignment, _ in assignments(facts)):
        return
    for command in facts.commands:
        for part in command.expansions():
            if part.kind != "var" or part.text != "SLURM_RESTART_COUNT" or part.operand:
                continue
            strict = option_on(facts, "nounset", command.shell, command.start)
            if strict:
                yield _restart_hit(facts, command, part, "ends the job under set -u")
            elif (
                command.name in ("[", "test") and any(word.text in _NUMERIC_TESTS for word in command.words) and _is_operand(command, part)
            ):
                yield _restart_hit(facts, command, part, "is no number in the first run", warning=True)


def _is_operand(command: Command, part: Part) -> bool:
    return any(part in word.parts and len(word.parts) == 1 for word in command.words)


def _restart_hit(facts: Facts, command: Command, part: Part, what: str, *, warning: bool = False) -> Hit:
    good = "${SLURM_RESTART_COUNT:-0}"
    stands = command.shell.depth == 0 and facts.text[part.start : part.end] in (
        "$SLURM_RESTART_COUNT",
        "${SLURM_RESTART_COUNT}",
        "SLURM_RESTART_COUNT",
    )
    return Hit(
        "restart-count-unset", part.start, f"$SLURM_RESTART_COUNT {what}", f"write: {good}", level="warning" if warning else None,
        edits=[Edit(part.start, part.end, good)] if stands else [],
    )  # fmt: skip


def ended_by_wait(facts: Facts) -> Iterator[Hit]:
    """One wait under `set -e`, which a trapped signal interrupts."""
    for command in facts.named("wait"):
        if len(command.words) < 2 or command.conditional or command.after in ("||", "&&"):
            continue
        if command.scope.inside("function", "$(", "loop", "if", "case") or not option_on(facts, "errexit", command.shell, command.start):
            continue
        traps = [trap for trap in facts.named("trap") if trap.shell is command.shell and trap.start < command.start]
        signals = [name for trap in traps if not _leaves(facts, trap) for name in (word.text for word in trap.words[2:])]
        signals = [name for name in signals if name.upper() not in _NO_SIGNALS]
        if signals:
            what = f"the trap for {signals[0]} interrupts wait, whose status then ends the script under set -e"
            yield Hit("wait-ends-script", command.start, what, 'wait "$pid" || status=$?, again while: kill -0 "$pid"')


def _leaves(facts: Facts, trap: Command) -> bool:
    """Whether the action of `trap` ends the script itself, or is empty: then the signal is ignored."""
    action = trap.words[1].text if len(trap.words) > 2 else ""
    if action in ("", "-") or re.search(r"\b(?:exit|requeue)\b", action):
        return True
    for command in facts.named("exit", "scontrol"):
        function = command.scope.inside("function")
        if function is not None and function.name in action:
            return True
    return False


def first_node_alone(facts: Facts) -> Iterator[Hit]:
    """A signal for the processes of one node, where there are several."""
    if not facts.many_nodes:
        return
    for command in facts.named("kill", "pkill", "trap"):
        shown = facts.text[command.start : command.end]
        if command.shell.depth == 0 and facts.place(command) != "task" and _LOCAL_KILL.search(shown) and not _OF_SRUN.search(shown):
            what = f"this signal reaches the first of {facts.value('nodes')} nodes alone"
            yield Hit("kill-first-node", command.start, what, 'kill -USR1 "$pid_of_srun", or: scancel --signal=USR1 "$SLURM_JOB_ID"')


RULES = (wrong_receiver, foreground, kills_launcher, arrays, restart_count, ended_by_wait, first_node_alone)
