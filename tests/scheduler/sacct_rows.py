"""Rows of sacct for tests: the fields that each version's sacct lists with --helpformat, and one
job with a step in its forms.
"""

from collections.abc import Mapping
from pathlib import Path

from hpctrain.slurm.notations import records

OLD = tuple(name for name in records.FIELDS if name not in records.NEW_FIELDS)
#: Of FIELDS, what each version's sacct knows.
VERSIONS = {
    "20.11": OLD,
    "21.08": (*OLD, "SubmitLine"),
    "22.05": (*OLD, "SubmitLine"),
    "23.02": (*OLD, "SubmitLine", "FailedNode"),
    "24.05": (*OLD, "SubmitLine", "FailedNode", "StdOut", "StdErr"),
    "24.11": records.FIELDS,
    "25.11": records.FIELDS,
}
JOB = {
    "JobID": "27",
    "JobIDRaw": "27",
    "State": "COMPLETED",
    "User": "ada",
    "Account": "proj_b",
    "Partition": "boost_usr_prod",
    "QOS": "normal",
    "ExitCode": "0:0",
    "DerivedExitCode": "0:0",
    "Submit": "1695321621",
    "Start": "1695321637",
    "End": "1695321640",
    "ElapsedRaw": "3",
    "Timelimit": "00:02:00",
    "NNodes": "2",
    "NodeList": "node[1-2]",
    "NTasks": "",
    "NCPUS": "2",
    "AllocTRES": "billing=2,cpu=2,gres/gpu=4,mem=200M,node=2",
    "ReqTRES": "billing=2,cpu=2,gres/gpu=4,mem=200M,node=2",
    "MaxRSS": "",
    "Reason": "None",
    "JobName": "sft",
    "WorkDir": "/home/ada/p",
    "Comment": "",
    "SubmitLine": "sbatch job.sh",
    "FailedNode": "",
    "StdOut": "/home/ada/p/%j.out",
    "StdErr": "",
    "Restarts": "0",
}
STEP = JOB | {
    "JobID": "27.0",
    "JobIDRaw": "27.0",
    "NTasks": "2",
    "MaxRSS": "2708K",
    "JobName": "python",
    "Timelimit": "",
}
#: The record of a start that a requeue ended, and of the one after it.
REQUEUED = JOB | {"State": "REQUEUED", "Start": "1695321622", "End": "1695321625"}
AGAIN = JOB | {"Submit": "1695321625", "Start": "1695321637", "Restarts": "1"}


def text(rows: list[Mapping[str, str]], fields: tuple[str, ...]) -> str:
    return "".join(records.SEPARATOR.join(row[name] for name in fields) + "\n" for row in rows)


def row(job_id: str, state: str, exit_code: str = "0:0", **more: str) -> str:
    """Return a line of the sacct that knows no more than 20.11's."""
    job = JOB | {"JobID": job_id, "JobIDRaw": job_id, "State": state, "ExitCode": exit_code} | more
    return text([job], OLD).rstrip("\n")


def calls(program: str) -> list[str]:
    """Return the calls of a program that the fixture `programs` has put on PATH; not those that
    only ask which fields it knows.
    """
    path = Path("calls.txt")
    lines = path.read_text().splitlines() if path.exists() else []
    found = [line for line in lines if line.startswith(f"{program} ")]
    return [line for line in found if "--helpformat" not in line]
