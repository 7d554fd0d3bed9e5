"""Values of options in words: `2` → `two nodes`, `gpu:a100:4` → `4 GPUs (a100) on each node`.

Each function returns None where it cannot read the value; the value itself is shown then.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hpctrain.jobs.explain_script.facts import Facts
from hpctrain.scheduler.parse import duration, memory_size

_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def read(name: str | None, value: str | None, facts: Facts) -> str:
    """Return `value` in words, as the reading `name` has them, or as it is."""
    if name is None:
        return value or ""
    words = _WITH_FACTS[name](value or "", facts) if name in _WITH_FACTS else _READINGS[name](value or "")
    return _AS_IT_IS.get(name, "{}").format(value or "") if words is None else words


def count(number: int, noun: str) -> str:
    """Return `two nodes`, `one core`, `32 cores`."""
    digits = _SMALL[number] if 0 <= number < len(_SMALL) else str(number)
    return f"{digits} {noun}{'' if number == 1 else 's'}"


def clock(seconds: int) -> str:
    """Return `24 hours`, `36 hours 30 minutes`, `90 seconds`, `5 days`."""
    days, rest = divmod(seconds, 86_400)
    if seconds <= 2 * 86_400:
        days, rest = 0, seconds
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    found = [
        f"{number} {noun}{'' if number == 1 else 's'}"
        for number, noun in ((days, "day"), (hours, "hour"), (minutes, "minute"), (left, "second"))
        if number
    ]
    return " ".join(found) or "no time"


def size(octets: int) -> str:
    """Return `480 GiB`, `1.5 TiB`, in the largest unit that leaves at least one."""
    number, unit = float(octets), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):  # noqa: B007 - the last unit is what is wanted
        if number < 1024:
            break
        number /= 1024
    return f"{number:.1f}".removesuffix(".0") + f" {unit}"


def _nodes(value: str) -> str | None:
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", value)
    if found is None:
        return None
    if found[2] and found[2] != found[1]:
        return f"{_small(int(found[1]))} to {count(int(found[2]), 'node')}, as many as are free (a training wants one number)"
    return count(int(found[1]), "node")


def _small(number: int) -> str:
    return _SMALL[number] if number < len(_SMALL) else str(number)


def _counted(noun: str) -> Callable[[str], str | None]:
    def reading(value: str) -> str | None:
        return count(int(value), noun) if re.fullmatch(r"\d{1,9}", value) else None

    return reading


def _cores(value: str) -> str | None:
    return f"{int(value)} core{'' if int(value) == 1 else 's'}" if re.fullmatch(r"\d{1,9}", value) else None


def _gpus(value: str) -> str | None:
    found = re.fullmatch(r"(?:([\w.-]+):)?(\d{1,9})", value)
    if found is None:
        return None
    return f"{int(found[2])} GPU{'' if int(found[2]) == 1 else 's'}" + (f" of type {found[1]}" if found[1] else "")


def _gres(value: str, facts: Facts) -> str | None:
    phrases = []
    for item in value.split(","):
        kind, *rest = item.partition("(")[0].split(":")
        number = rest[-1] if rest and re.fullmatch(r"\d{1,9}[KMGT]?", rest[-1]) else "1"
        type_ = rest[0] if len(rest) > 1 or (rest and rest[0] != number) else None
        if kind.removeprefix("gres/") != "gpu":
            phrases.append(f"{number} of `{kind}` on each node")
        elif number.isdigit():
            of = f"{number} GPU{'' if int(number) == 1 else 's'}" + (f" of type {type_}" if type_ else "")
            phrases.append(f"{of} on each node (per node, not in total{facts.product})")
    return ", and ".join(phrases) or None


def _memory(value: str) -> str | None:
    said = _size(value)
    return said if said is None else "all host memory" if said == "all" else f"{said} of host memory"


def _size(value: str) -> str | None:
    try:
        octets = memory_size.parse(value)
    except ValueError:
        return None
    return (size(octets) if octets < 1024**6 else None) if octets else "all"


def _time_limit(value: str) -> str | None:
    try:
        seconds = duration.parse(value)
    except ValueError:
        return None
    if seconds is None:
        return "no limit of its own, only the partition's"
    return f"at most {clock(seconds)}" if seconds else "no limit of its own, only the partition's"


def _partition(value: str) -> str:
    names = [f"`{name}`" for name in value.split(",")]
    kind = "the set of nodes (and the queue for them)"
    return f"{kind}: {names[0]}" if len(names) == 1 else f"{kind}: {' or '.join(names)}, whichever starts first"


def _features(value: str) -> str | None:
    if re.search(r"[\[\]*]", value):
        return None
    return value.replace("&", " and ").replace(",", " and ").replace("|", " or ").replace("!", "not ")


def _exclusive(value: str) -> str:
    return {"user": "only your own jobs share its nodes", "mcs": "only jobs of your group share its nodes"}.get(
        value, "no other job shares its nodes"
    )


_WHEN = {
    "after": "starts after {} has begun", "afterany": "starts when {} has ended, well or badly",
    "afterok": "starts when {} has ended well (exit code 0)", "afternotok": "starts only if {} has failed",
    "aftercorr": "each task of this array starts when the same task of {} has ended well", "afterburstbuffer": "starts after {}",
}  # fmt: skip


def _dependency(value: str) -> str | None:
    phrases = []
    for item in re.split(r"[,?]", value):
        kind, _, ids = item.partition(":")
        if kind == "singleton":
            phrases.append("waits for your other jobs of the same name: one at a time")
        elif kind in _WHEN and ids:
            phrases.append(_WHEN[kind].format("job " + ids.replace(":", " and ")))
        else:
            return None
    return (" and " if "," in value else " or ").join(phrases)


def _array(value: str) -> str | None:
    found = re.fullmatch(r"([\d,:-]+)(?:%(\d{1,9}))?", value)
    if found is None:
        return None
    number = 0
    for item in found[1].split(","):
        span = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", item)
        if span is None or span[3] == "0":
            return None
        number += len(range(int(span[1]), int(span[2] or span[1]) + 1, int(span[3] or 1)))
    limit = f", at most {found[2]} at a time" if found[2] else ""
    return f"an array: {number} job{'' if number == 1 else 's'} of this one script, with the numbers {found[1]}{limit}"


def _signal(value: str) -> str | None:
    found = re.fullmatch(r"(?:([BR]+):)?(\w+)(?:@(\d{1,5}))?", value)
    if found is None:
        return None
    whom = "this script's shell alone (B:)" if "B" in (found[1] or "") else "every task that srun has started, not to this script's shell"
    name = found[2] if found[2].isdigit() or found[2].upper().startswith("SIG") else f"SIG{found[2].upper()}"
    when = clock(int(found[3] or 60))
    return f"sends {name} to {whom}, {when} before the time limit (up to a minute earlier)"


_MAIL = {
    "BEGIN": "when the job starts", "END": "when it ends", "FAIL": "when it fails", "REQUEUE": "when it is requeued",
    "ALL": "when it starts, ends, fails or is requeued", "NONE": "nothing", "TIME_LIMIT": "when the time limit is reached",
    "TIME_LIMIT_90": "at 90 % of the time limit", "TIME_LIMIT_80": "at 80 % of the time limit", "TIME_LIMIT_50": "at half the time limit",
    "INVALID_DEPEND": "when its dependency can never come true", "STAGE_OUT": "when its burst buffer is written back",
    "ARRAY_TASKS": "for each task of the array",
}  # fmt: skip


def _mail_type(value: str) -> str | None:
    kinds = [kind.strip().upper() for kind in value.split(",")]
    return " and ".join(_MAIL[kind] for kind in kinds) if all(kind in _MAIL for kind in kinds) else None


_PATTERNS = {
    "%j": "the job's number", "%J": "job and step number", "%A": "the array's number", "%a": "the number in the array",
    "%x": "the job's name", "%u": "your user name", "%N": "the first node's name", "%n": "the node's number in the job",
    "%t": "the task's number",
    "%s": "the step", "%b": "the number in the array, modulo 10", "%r": "how often it was requeued (from Slurm 25.11)",
}  # fmt: skip


def _pattern(value: str) -> str:
    used = [f"%{letter}" for letter in re.findall(r"%\d*([A-Za-z])", value.replace("%%", ""))]
    known = [f"{mark} is {_PATTERNS[mark]}" for mark in dict.fromkeys(used) if mark in _PATTERNS]
    same = "" if used else "; with no %j, every job of this script writes to the same file"
    return f" ({', '.join(known)})" if known else same


def _open_mode(value: str) -> str | None:
    return {
        "append": "a job that is requeued writes on at the end of its log. Without it, it starts the file anew, "
        "and why the first run stopped is lost.",
        "truncate": "each start empties the log, also that after a requeue: why the first run stopped is lost then.",
    }.get(value)


def _export(value: str) -> str:
    if value == "NONE":
        return "none of your shell's variables come along, only SLURM_*; srun then needs --export=ALL to pass on what this script sets"
    if value == "ALL":
        return "all variables of the shell where sbatch was typed come along"
    if value.startswith("ALL,"):
        return f"all variables of your shell come along, and {value[4:]}"
    return f"of your shell's variables only these come along: {value}"


def _cores_of_task(value: str, facts: Facts) -> str | None:
    if "SLURM_CPUS_PER_TASK" in value:
        return facts.phrases["cores"] + (" for each task" if facts.cores else "")
    return _cores(value)


def _kill(value: str) -> str:
    if value == "0":
        return "when one task fails, the others go on, and mostly wait for it until the time limit"
    return "when one task fails, the others are ended too. Without it they wait for it until the time limit"


def _export_step(value: str) -> str:
    if value == "ALL" or value.startswith("ALL,"):
        return "this script's variables reach the tasks" + (f", and {value[4:]}" if value[4:] else "")
    if value == "NONE":
        return "no variables of this script reach the tasks"
    return f"of this script's variables only these reach the tasks: {value}"


def _hint(value: str) -> str | None:
    return {
        "nomultithread": "one thread on each core; hyper-threads stay idle", "multithread": "uses hyper-threads too",
        "compute_bound": "uses all cores, one thread on each", "memory_bound": "uses one core of each socket",
    }.get(value)  # fmt: skip


def _switches(value: str) -> str | None:
    number = value.partition("@")[0]
    return f"{number} switch{'' if number == '1' else 'es'}" if number.isdigit() else None


#: Those that need the numbers of the script too.
_WITH_FACTS: dict[str, Callable[[str, Facts], str | None]] = {"gres": _gres, "cores_of_task": _cores_of_task}
_READINGS: dict[str, Callable[[str], str | None]] = {
    "nodes": _nodes, "tasks": _counted("task"), "cores": _cores, "gpus": _gpus, "memory": _memory, "size": _size,
    "time_limit": _time_limit, "partition": _partition, "features": _features, "exclusive": _exclusive, "dependency": _dependency,
    "array": _array, "signal": _signal, "mail_type": _mail_type, "pattern": _pattern, "open_mode": _open_mode, "export": _export,
    "hint": _hint, "switches": _switches, "kill": _kill, "export_step": _export_step,
}  # fmt: skip
#: How a value is shown that its reading cannot read.
_AS_IT_IS = {
    "features": "the features `{}`", "nodes": "nodes: {}", "tasks": "tasks: {}", "cores": "cores: {}", "gpus": "GPUs: {}",
    "time_limit": "a time limit of `{}`", "dependency": "waits for `{}`", "array": "an array of jobs of this one script: {}",
    "signal": "sends the signal `{}`", "mail_type": "on: {}", "memory": "`{}` of host memory", "hint": "a hint on how cores are used: {}",
    "open_mode": "how log files are opened: `{}`.", "gres": "from each node: `{}`", "switches": "`{}` switches",
    "cores_of_task": "cores: {}",
}  # fmt: skip
