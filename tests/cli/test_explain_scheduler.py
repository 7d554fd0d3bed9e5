"""What `hpctrain explain` asks of Slurm: how long it waits where a log has been named, and what squeue said before a job was submitted."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from hpctrain.cli import explain_case

if TYPE_CHECKING:
    from conftest import Desk

LOG = "ModuleNotFoundError: No module named 'flash_attn'\n"
PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "sinfo")


def test_a_log_is_read_soon_where_slurm_does_not_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's programs are installed, and there is no cluster, or a controller that is silent: what the log says does not wait for it."""
    monkeypatch.setattr(explain_case, "_PATIENCE_S", 0.2)
    for name in PROGRAMS:
        desk.program(name, "exec sleep 50")
    desk.write("slurm-77.out", LOG)
    said = desk.run("explain", "slurm-77.out")
    assert said.out.splitlines()[0] == "certain: python-module-missing"
    words = " ".join(said.err.split())
    assert "note: whether job 77 still runs, or how it ended, is not known" in words
    assert "did not answer within 0.2 s; hpctrain ps 77 asks again" in words
    assert all(len(line) <= 79 for line in said.err.splitlines()), "a terminal would break the line in the middle of a word"


SACCT = r"""
[ "$1" = --helpformat ] && { echo 'JobID JobName State Reason Submit Start End ExitCode Elapsed ElapsedRaw Timelimit NNodes User'; exit 0; }
while [ $# -gt 0 ]; do [ "$1" = -o ] && fields=$2; shift; done
for field in $(echo "$fields" | tr , ' '); do
    case $field in
        JobID|JobIDRaw) printf 202;; JobName) printf sft;; State) printf PENDING;; Reason) printf None;; Submit) printf SUBMITTED;; *) ;;
    esac
    printf '\x1f'
done | sed 's/.$//'
echo
"""
SQUEUE = r"""
line() { printf '%s\x1f' "$1" sft "$2" "$3" 0:00 10:00 2 gpu 2026-11-22T14:20:00; printf '\n'; }
while read -r job state reason; do line $job $state $reason; done < STATE
"""


def test_the_reason_of_a_job_that_was_submitted_a_moment_ago(desk: Desk) -> None:
    """By a plain sbatch, right after another explain, whose answer of squeue is kept for 15 s and knows nothing of the job."""
    desk.program("sbatch", "exit 1")
    desk.program("scontrol", "exit 1")
    desk.program("sacct", SACCT.replace("SUBMITTED", str(int(time.time()))))
    desk.program("squeue", SQUEUE.replace("STATE", os.fspath(desk.directory / "state")))
    desk.write("state", "201 RUNNING None\n")
    desk.run("explain", "201", "--json")
    desk.write("state", "201 RUNNING None\n202 PENDING InvalidQOS\n")
    said = desk.run("explain", "202", "--json")
    assert [each["id"] for each in json.loads(said.out)["diagnoses"]] == ["qos-invalid"], said.err
