"""What slurmctld still shows of jobs, as accounts: scontrol and squeue, where there is no accounting, or where it is behind or silent.

Neither shows steps, nor what was used. Times are those that SLURM_TIME_FORMAT=%s makes, as in `accounting_sacct`.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpctrain.scheduler.parse import duration, states
from hpctrain.scheduler.parse.accounting import Account
from hpctrain.scheduler.parse.accounting_sacct import Epoch, exit_of, gpus_of, integer, seconds_since_epoch, size_of, tres_of
from hpctrain.scheduler.parse.records import SEPARATOR, known, rows

#: squeue -o: what can be written by users comes last: dependency, directory, name, comment.
SQUEUE_FORMAT = SEPARATOR.join(
    ("%i", "%A", "%T", "%r", "%u", "%a", "%P", "%q", "%V", "%S", "%e", "%M", "%l", "%N", "%D", "%C", "%b", "%E", "%Z", "%j", "%k")
)
_NOTHING = {"(null)", "None assigned", "n/a", "NULL"}


def from_scontrol(fields: Mapping[str, str], *, epoch: Epoch = seconds_since_epoch) -> Account:
    """Return the account in one job's fields of `scontrol show job -o` (`records.parse_scontrol_jobs`)."""
    array, task = fields.get("ArrayJobId"), fields.get("ArrayTaskId", "")
    number = fields["JobId"].split()[0]
    job_id = f"{array}_{task}" if array and task.isdigit() else f"{array}_[{task}]" if array and task else number
    exit_code, signal = exit_of(fields.get("ExitCode", ""))
    state = states.normalise(fields.get("JobState", ""))
    if state == "FAILED" and exit_of(fields.get("DerivedExitCode", "")) == (0, 125):
        state = "OUT_OF_MEMORY"
    nodes = integer(fields.get("NumNodes", "").split("-")[0])
    tres = tres_of(fields.get("AllocTRES", "").replace("(null)", "") or fields.get("ReqTRES", "") or fields.get("TRES", ""))
    memory = size_of(tres.get("mem", ""))
    return Account(
        job_id=job_id, scheduler="slurm", state=state, slurm_job_id=number if number != job_id else None, name=fields.get("JobName"),
        user=_said(fields.get("UserId", "").partition("(")[0]), account=_said(fields.get("Account", "")),
        partition=_said(fields.get("Partition", "")), qos=_said(fields.get("QOS", "")), reason=_said(fields.get("Reason", "")),
        exit_code=exit_code, signal=signal,
        submitted=epoch(fields.get("SubmitTime", "")), started=_past(fields, "StartTime", epoch),
        ended=epoch(fields.get("EndTime", "")) if states.is_final(state) else None,
        elapsed_s=duration.parse_reported(fields.get("RunTime", "")), time_limit_s=duration.parse_reported(fields.get("TimeLimit", "")),
        nodes=_said(fields.get("NodeList", "")), n_nodes=nodes, cpus=integer(fields.get("NumCPUs", "").split("-")[0]), gpus=gpus_of(tres),
        memory_bytes=memory // max(1, nodes or 1) if memory else None,
        restarts=integer(fields.get("Restarts", "")), dependency=_said(fields.get("Dependency", "")),
        comment=_said(fields.get("Comment", "")), work_dir=_said(fields.get("WorkDir", "")),
        output=_said(fields.get("StdOut", "")), error=_said(fields.get("StdErr", "")), source="scontrol",
    )  # fmt: skip


def from_squeue(output: str, *, epoch: Epoch = seconds_since_epoch) -> list[Account]:
    """Return the accounts in what `squeue -h -o SQUEUE_FORMAT` printed."""
    found = []
    for fields in rows(output, len(SQUEUE_FORMAT.split(SEPARATOR))):
        (job_id, number, state, reason, user, account, partition, qos, submitted, started, ended, elapsed, limit, nodes, n_nodes, cpus,
         tres_per_node, dependency, directory, name, comment) = fields  # fmt: skip
        state = states.normalise(state)
        count = integer(n_nodes)
        found.append(
            Account(
                job_id=job_id, scheduler="slurm", state=state, slurm_job_id=number if number != job_id else None, name=name,
                user=_said(user), account=_said(account), partition=_said(partition), qos=_said(qos), reason=_said(reason),
                submitted=epoch(submitted), started=epoch(started) if state not in states.WAITING else None,
                ended=epoch(ended) if states.is_final(state) else None,
                elapsed_s=duration.parse_reported(elapsed), time_limit_s=duration.parse_reported(limit),
                nodes=_said(nodes), n_nodes=count, cpus=integer(cpus), gpus=_gpus(tres_per_node, count),
                dependency=_said(dependency), comment=_said(comment), work_dir=_said(directory), source="squeue",
            )
        )  # fmt: skip
    return found


def _past(fields: Mapping[str, str], name: str, epoch: Epoch) -> float | None:
    """Return a time that has come: of a job that waits, Slurm writes the expected one in the same place."""
    return epoch(fields.get(name, "")) if states.normalise(fields.get("JobState", "")) not in states.WAITING else None


def _said(text: str) -> str | None:
    return None if text in _NOTHING else known(text)


def _gpus(tres_per_node: str, nodes: int | None) -> int | None:
    """Return the GPUs of `gres:gpu:a100:4`, `gres/gpu:4`, `gpu:2`: of a node, times its nodes."""
    for item in tres_per_node.split(","):
        words = item.replace("gres/", "").replace("gres:", "").partition("(")[0].replace("=", ":").split(":")
        if words[0] == "gpu" and nodes is not None:
            return (int(words[-1]) if words[-1].isdigit() else 1) * nodes
    return None
