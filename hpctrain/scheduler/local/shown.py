"""Local jobs in the words of `scontrol show job` and `squeue -o`: what the stand-ins print."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from hpctrain.scheduler.local import book
from hpctrain.scheduler.local.job_directory import JobDirectory
from hpctrain.scheduler.local.plan import Plan
from hpctrain.scheduler.parse import duration, states
from hpctrain.scheduler.parse.records import JobRecord

#: squeue(1), --format: the letters that are known here.
_SHORT_STATES = {"PENDING": "PD", "RUNNING": "R", "COMPLETING": "CG", "COMPLETED": "CD", "CANCELLED": "CA", "FAILED": "F"}
_SHORT_STATES |= {"TIMEOUT": "TO", "NODE_FAIL": "NF", "OUT_OF_MEMORY": "OOM"}
_FIELD = re.compile(r"%(\.?)([0-9]*)([A-Za-z])")
#: squeue without -o.
DEFAULT_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_HEADINGS = {
    "i": "JOBID", "A": "JOBID", "F": "ARRAY_JOB_ID", "K": "ARRAY_TASK_ID", "j": "NAME", "u": "USER", "T": "STATE", "t": "ST", "r": "REASON",
    "R": "NODELIST(REASON)", "M": "TIME", "l": "TIME_LIMIT", "D": "NODES", "P": "PARTITION", "S": "START_TIME", "e": "END_TIME",
    "k": "COMMENT", "E": "DEPENDENCY", "N": "NODELIST", "C": "CPUS", "o": "COMMAND", "Z": "WORK_DIR",
}  # fmt: skip


def fields(record: JobRecord, job: JobDirectory, plan: Plan) -> dict[str, str]:
    """Return what `scontrol show job` says of a job or a task, in Slurm's order.

    Args:
        record: of the job, of a task, or of several tasks that wait (`123_[4-9%2]`).
        job: the directory of the job or, of a task, of the array.
        plan: of the job or, of one task, of that; else of the array.
    """
    number, _, tasks = record.job_id.partition("_")
    state = (job.task(plan.index) if plan.index is not None else job).state()
    waits = record.state == "PENDING"
    start, end = state.get("start"), state.get("end")
    if record.state == "RUNNING" and start is not None and plan.time_limit_s is not None:
        end = start + plan.time_limit_s
    cores = plan.nodes * plan.tasks_per_node * plan.cpus_per_task
    shown: dict[str, Any] = {"JobId": plan.job_id}
    if plan.array is not None:
        shown |= {"ArrayJobId": number, "ArrayTaskId": tasks.strip("[]") or plan.array}
        if plan.parallel is not None:
            shown["ArrayTaskThrottle"] = plan.parallel
    shown |= {
        "JobName": plan.name,
        "UserId": f"{plan.user}({os.getuid()})", "GroupId": f"{plan.user}({os.getgid()})",
        "JobState": record.state,
        "Reason": record.reason or "None",
        "Dependency": (state.get("dependency") if waits else None) or "(null)",
        "Requeue": int(plan.requeue), "Restarts": state.get("restarts") or 0, "BatchFlag": 1,
        "ExitCode": f"{record.exit_code or 0}:{record.signal or 0}",
        "RunTime": duration.format(record.elapsed_s or 0),
        "TimeLimit": "UNLIMITED" if plan.time_limit_s is None else duration.format(plan.time_limit_s),
        "SubmitTime": _time((job.job() or {}).get("submitted")), "StartTime": _time(start), "EndTime": _time(end),
        "Partition": "local",
        "NodeList": "(null)" if waits else plan.hosts[0] if plan.nodes == 1 else ",".join(plan.hosts),
        "BatchHost": plan.hosts[0], "NumNodes": plan.nodes, "NumCPUs": cores, "NumTasks": plan.nodes * plan.tasks_per_node,
        "CPUs/Task": plan.cpus_per_task,
        "Command": plan.command, "WorkDir": plan.chdir, "StdErr": plan.error, "StdIn": "/dev/null", "StdOut": plan.output,
    }  # fmt: skip
    return {name: str(value) for name, value in shown.items()}


def jobs(job_id: str | None) -> list[tuple[JobRecord, JobDirectory, Plan]]:
    """Return the jobs of an id, an array's as rows of squeue; without one, all. Each with its directory, or the array's, and its plan."""
    if job_id is None:
        meant = [found for record in book.all_records() if (found := book.find(record.job_id)) is not None]
        meant = list({found.job: found for found in meant}.values())
    else:
        found = book.find(job_id)
        meant = [] if found is None else [found]
    result = []
    for each in meant:
        whole = each.indices is None or job_id is None
        for record in book.rows(each.job) if whole else book.records(each):
            name = record.job_id.partition("_")[2]
            plan = each.plan.task(int(name)) if name.isdigit() else each.plan
            result.append((record, each.job, plan))
    return result


def line(form: str, record: JobRecord, job: JobDirectory, plan: Plan) -> str:
    """Return one line of `squeue -o form`.

    Raises:
        ValueError: a field that is not known here.
    """
    told = fields(record, job, plan)
    on = f"({record.reason or 'None'})" if record.state == "PENDING" else told["NodeList"]
    values = {
        "i": record.job_id, "A": plan.job_id, "F": told.get("ArrayJobId", plan.job_id), "K": told.get("ArrayTaskId", "N/A"), "j": plan.name,
        "u": plan.user, "T": record.state, "t": _SHORT_STATES.get(record.state, record.state), "r": record.reason or "None", "R": on,
        "M": _short(record.elapsed_s or 0), "l": "UNLIMITED" if plan.time_limit_s is None else _short(plan.time_limit_s),
        "D": str(plan.nodes), "P": "local", "S": record.start or "N/A", "e": told["EndTime"] if told["EndTime"] != "Unknown" else "N/A",
        "k": "(null)", "E": told["Dependency"], "N": told["NodeList"].replace("(null)", ""), "C": told["NumCPUs"], "o": plan.command,
        "Z": plan.chdir,
    }  # fmt: skip
    return _fill(form, values)


def heading(form: str) -> str:
    """Return the first line of `squeue -o form`.

    Raises:
        ValueError: a field that is not known here.
    """
    return _fill(form, _HEADINGS)


def _fill(form: str, values: Mapping[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        right, width, letter = match[1], match[2], match[3]
        if letter not in values:
            raise ValueError(f"Invalid job format specification: {letter}")
        value = values[letter][: int(width)] if width else values[letter]
        return value if not width else value.rjust(int(width)) if right else value.ljust(int(width))

    return _FIELD.sub(replace, form)


def is_listed(record: JobRecord, wanted: str | None) -> bool:
    """Whether squeue lists a job: without `wanted`, states by name or `all`, what waits or runs."""
    if wanted is None:
        return not states.is_final(record.state)
    words = {word.strip().upper() for word in wanted.split(",")}
    return bool(words & {"ALL", record.state, _SHORT_STATES.get(record.state, "")})


def _time(seconds: float | None) -> str:
    return "Unknown" if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def _short(seconds: int) -> str:
    """Return a time as squeue writes it: without leading zeros, `0:09`, `1:00:00`."""
    days, rest = divmod(seconds, duration.DAY)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
