"""Rows of sacct for tests: the fields that each version's sacct lists with --helpformat, and one job with a step in its forms."""

from __future__ import annotations

from collections.abc import Mapping

from hpctrain.scheduler.parse import accounting_sacct, records

OLD = tuple(name for name in accounting_sacct.FIELDS if name not in accounting_sacct.NEW_FIELDS)
#: Of FIELDS, what each version's sacct knows.
VERSIONS = {
    "20.11": OLD,
    "21.08": (*OLD, "SubmitLine"),
    "22.05": (*OLD, "SubmitLine"),
    "23.02": (*OLD, "SubmitLine", "FailedNode"),
    "24.05": (*OLD, "SubmitLine", "FailedNode", "StdOut", "StdErr"),
    "24.11": accounting_sacct.FIELDS,
    "25.11": accounting_sacct.FIELDS,
}
JOB = {
    "JobID": "27", "JobIDRaw": "27", "State": "COMPLETED", "User": "ada",
    "Account": "proj_b", "Partition": "boost_usr_prod", "QOS": "normal",
    "ExitCode": "0:0", "DerivedExitCode": "0:0", "Submit": "1695321621", "Start": "1695321637", "End": "1695321640", "ElapsedRaw": "3",
    "Timelimit": "00:02:00", "NNodes": "2", "NodeList": "node[1-2]", "NTasks": "", "NCPUS": "2", "ReqMem": "200M",
    "AllocTRES": "billing=2,cpu=2,gres/gpu=4,mem=200M,node=2", "ReqTRES": "billing=2,cpu=2,gres/gpu=4,mem=200M,node=2", "MaxRSS": "",
    "MaxRSSNode": "", "MaxRSSTask": "", "TotalCPU": "00:00.007", "Reason": "None", "JobName": "sft", "WorkDir": "/home/ada/p",
    "Comment": "", "SubmitLine": "sbatch job.sh", "FailedNode": "", "StdOut": "/home/ada/p/%j.out", "StdErr": "", "Restarts": "0",
}  # fmt: skip
STEP = JOB | {
    "JobID": "27.0", "JobIDRaw": "27.0", "NTasks": "2", "MaxRSS": "2708K", "MaxRSSNode": "node2", "MaxRSSTask": "1",
    "TotalCPU": "01:02.500", "JobName": "python", "ReqMem": "", "Timelimit": "",
}  # fmt: skip
#: The record of a start that a requeue ended, and of the one after it.
REQUEUED = JOB | {"State": "REQUEUED", "Start": "1695321622", "End": "1695321625"}
AGAIN = JOB | {"Submit": "1695321625", "Start": "1695321637", "Restarts": "1"}


def text(rows: list[Mapping[str, str]], fields: tuple[str, ...]) -> str:
    return "".join(records.SEPARATOR.join(row[name] for name in fields) + "\n" for row in rows)
