"""The stand-in for `scontrol` in a local job: `show hostnames`, `show job`, `requeue`. Messages are those of Slurm 22.05."""

from __future__ import annotations

import os
import sys

from hpctrain.scheduler.parse import hostlist

_ONE_LINE = {"-o", "--oneliner"}
_TAKEN = {"-d", "--details", "-dd", "-v", "--verbose", "-Q", "--quiet"}


def main() -> int:
    """Do what the words ask for, as the real scontrol does."""
    words = [word for word in sys.argv[1:] if word not in _ONE_LINE | _TAKEN]
    one_line = bool(_ONE_LINE & set(sys.argv[1:]))
    if words[:1] == ["show"] and words[1:2] in (["hostnames"], ["hostname"]) and len(words) <= 3:
        return _hostnames(words[2] if len(words) == 3 else os.environ.get("SLURM_JOB_NODELIST", ""))
    if words[:1] == ["show"] and words[1:2] in (["job"], ["jobs"]) and len(words) <= 3:
        return _jobs(words[2] if len(words) == 3 else None, one_line=one_line)
    if words[:1] == ["requeue"] and len(words) > 1:
        return _requeue([job for word in words[1:] for job in split_ids(word)])
    sys.stderr.write(f"scontrol: error: the local scheduler knows show hostnames, show job and requeue, not: {' '.join(words)}\n")
    return 1


def split_ids(word: str) -> list[str]:
    """Return the ids in `1,2_3,4_[5,6]`: a comma inside brackets is the array's."""
    found, depth = [""], 0
    for character in word:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return [each for each in found if each]


def _hostnames(text: str) -> int:
    """Print one host name on each line."""
    try:
        hosts = hostlist.expand(text)
    except ValueError as error:
        sys.stderr.write(f"scontrol: error: {error}\n")
        return 1
    sys.stdout.write("".join(f"{host}\n" for host in hosts))
    return 0


def _jobs(job_id: str | None, *, one_line: bool) -> int:
    from hpctrain.scheduler.local import shown

    found = shown.jobs(job_id)
    if not found:
        sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n" if job_id else "")
        sys.stdout.write("" if job_id else "No jobs in the system\n")
        return 1 if job_id else 0
    for record, job, plan in found:
        fields = shown.fields(record, job, plan)
        if one_line:
            sys.stdout.write(" ".join(f"{name}={value}" for name, value in fields.items()) + " \n")
        else:
            text = " ".join(f"{name}={value}" for name, value in fields.items())
            for name in ("UserId", "JobState", "Requeue", "RunTime", "SubmitTime", "Partition", "NodeList", "Command", "WorkDir", "StdErr"):
                text = text.replace(f" {name}=", f"\n   {name}=", 1)
            sys.stdout.write(text + "\n\n")
    return 0


def _requeue(job_ids: list[str]) -> int:
    from hpctrain.scheduler.local.scheduler import request_requeue

    problems = [problem for job_id in job_ids for problem in request_requeue(job_id)]
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
