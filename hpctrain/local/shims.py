"""The shims of `scontrol` and `scancel` in a local job: `python -m hpctrain.local.shims scontrol …`,
with the messages of Slurm 22.05.

They support what job scripts use: `scontrol show hostnames`, `show job JOB` and `requeue JOB`;
`scancel JOB`, also with `--signal=NAME`, which reaches the tasks of the job's steps, and not their
child processes; with `--batch`, only the shell of the batch script. Anything else is an error. Like
the real one, `scancel` does not wait, because a job may cancel itself.
"""

from __future__ import annotations

import os
import signal
import sys

import psutil

from hpctrain.local import jobs, processes
from hpctrain.local.plan import Plan
from hpctrain.local.scheduler import ask_to_end, request_requeue
from hpctrain.slurm.notations import hostlist, units

#: Options of `scontrol show` without an effect here: a job is always one line.
_WITHOUT_EFFECT = {"-o", "--oneliner", "-d", "--details", "-dd", "-v", "--verbose", "-Q", "--quiet"}


def scontrol(arguments: list[str]) -> int:
    """Run `scontrol ARGUMENTS` and return the exit code."""
    match [word for word in arguments if word not in _WITHOUT_EFFECT]:
        case ["show", "hostnames" | "hostname", *text] if len(text) < 2:
            hosts = hostlist.expand(text[0] if text else os.environ.get("SLURM_JOB_NODELIST", ""))
            sys.stdout.write("".join(f"{host}\n" for host in hosts))
            return 0
        case ["show", "job", job_id]:
            return _show_job(job_id)
        case ["requeue", first, *others]:
            problems = [problem for job in (first, *others) for problem in request_requeue(job)]
            sys.stderr.write("".join(f"{problem}\n" for problem in problems))
            return 1 if problems else 0
    known = "the local scheduler knows show hostnames, show job JOB and requeue JOB"
    raise ValueError(f"{known}, not: {' '.join(arguments)}")


def _show_job(job_id: str) -> int:
    selection = jobs.find(job_id)
    if selection is None:
        sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n")
        return 1
    for job in selection.directories():
        plan = job.plan()
        fields = _fields(job, plan) if plan is not None else {}
        sys.stdout.write(" ".join(f"{name}={value}" for name, value in fields.items()) + " \n")
    return 0


def _fields(job: jobs.LocalJob, plan: Plan) -> dict[str, object]:
    """Return what job scripts, and hpctrain's own reader, look for."""
    record, state = job.record(), job.state()
    limit, end = plan.time_limit_s, state.end
    if record.state == "RUNNING" and state.start is not None and limit is not None:
        end = state.start + limit
    start_time, end_time = (
        "Unknown" if at is None else jobs.timestamp(at) for at in (state.start, end)
    )
    return {
        "JobId": plan.job_id,
        **({} if plan.index is None else {"ArrayTaskId": plan.index}),
        "JobName": plan.name,
        "UserId": f"{plan.user}({os.getuid()})",
        "GroupId": f"{plan.user}({os.getgid()})",
        "JobState": record.state,
        "Reason": record.reason or "None",
        "Dependency": plan.dependency if record.state == "PENDING" else "(null)",
        "Requeue": int(plan.requeue),
        "Restarts": state.restarts or 0,
        "ExitCode": f"{record.exit_code or 0}:{record.signal or 0}",
        "RunTime": units.format_time(record.elapsed_s or 0),
        "TimeLimit": "UNLIMITED" if limit is None else units.format_time(limit),
        "StartTime": start_time,
        "EndTime": end_time,
        "NodeList": ",".join(plan.hosts),
        "NumNodes": plan.nodes,
        "Command": plan.command,
        "WorkDir": plan.chdir,
        "StdErr": plan.error,
        "StdOut": plan.output,
    }


def scancel(arguments: list[str]) -> int:
    """Run `scancel [--batch] [--signal=NAME] JOB…` and return the exit code."""
    is_batch = "--batch" in arguments
    arguments = [word for word in arguments if word != "--batch"]
    names = {each.name.removeprefix("SIG"): each for each in signal.Signals}
    option, _, name = arguments[0].partition("=") if arguments else ("", "", "")
    number = names.get(name.removeprefix("SIG")) if option == "--signal" else None
    job_ids = arguments[1:] if number is not None else arguments
    if not job_ids or any(word.startswith("-") for word in job_ids):
        known = "the local scheduler knows scancel [--batch] [--signal=NAME] JOB"
        raise ValueError(f"{known}, not: {' '.join(arguments)}")
    unknown = []
    for job_id in job_ids:
        selection = jobs.find(job_id)
        if selection is None:
            unknown.append(f"scancel: error: Kill job error on job id {job_id}")
        elif number is None:
            ask_to_end(selection)
        else:
            holders = [*filter(None, (job.holder() for job in selection.running()))]
            processes.send(_shells(holders) if is_batch else processes.step_tasks(holders), number)
    sys.stderr.write("".join(f"{problem}: Invalid job id specified\n" for problem in unknown))
    return 1 if unknown else 0


def _shells(holders: list[psutil.Process]) -> list[psutil.Process]:
    children = [processes.descendants(holder, recursive=False) for holder in holders]
    # The batch script is the first child; others were adopted.
    return [min(each, key=psutil.Process.create_time) for each in children if each]


def main() -> int:
    """Run the program that the first argument names."""
    name, *arguments = sys.argv[1:]
    try:
        return {"scontrol": scontrol, "scancel": scancel}[name](arguments)
    except (ValueError, psutil.Error) as error:
        sys.stderr.write(f"{name}: error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
