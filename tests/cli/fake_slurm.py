"""A Slurm of programs: `queue` holds my jobs; each call of squeue is a line of
`calls`.
"""

from hpctrain.slurm.notations.records import SEPARATOR
from tests.cli.conftest import Desk


def queued(job_id: str, state: str = "PENDING", reason: str = "", **more: str) -> str:
    waits = state == "PENDING"
    fields = {
        "id": job_id,
        "name": "sft",
        "state": state,
        "reason": reason or ("Priority" if waits else "None"),
        "elapsed": "0:00" if waits else "0:30",
        "limit": "4:00:00",
        "nodes": "2",
        "partition": "gpu",
        "start": "N/A",
        "comment": "(null)",
    }
    return SEPARATOR.join((fields | more).values())


def show(desk: Desk, *queue: str) -> None:
    desk.write("../queue", "".join(f"{row}\n" for row in queue))


def put(desk: Desk) -> Desk:
    """Put it on PATH; sacct is silent, so that only the files say how a job ended."""
    at = desk.directory.parent
    desk.program("sacct scancel sbatch", f"echo ${{0##*/}} $* >> {at}/calls")
    desk.program("scontrol", "exit 1")
    desk.set(LOGNAME="ada")
    desk.program("squeue", f'echo squeue "$@" >> {at}/calls\ncat {at}/queue')
    show(desk)
    return desk
