"""What Slurm's programs say when they refuse or do not answer, for the user, with what to type next."""

from __future__ import annotations

import re

from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.jobs import shell
from hpctrain.scheduler import process

_PREFIX = re.compile(r"^(?:\w+: (?:(?:error|fatal): )?)?(?:slurm_load_\w+ error: )?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|could not establish a configuration source|connection refused"
    r"|slurmctld is not responding|unable to establish c|socket timed out|zero bytes were transmitted|connection (?:timed out|reset)"
    r"|authentication error|munge|connect failure",
    re.IGNORECASE,
)


def said(done: process.Finished) -> tuple[str, ...]:
    """Return what was run and what the program said, without the program's own `sbatch: error: ` in front of each line."""
    lines = [_PREFIX.sub("", _CONTROL.sub("?", line)) for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    if done.returncode < 0:
        lines.append(f"(nothing more: signal {-done.returncode} ended it)")
    return (f"  ran: {shell.join(done.argv)}", *(f"  {done.argv[0]} said: {line}" for line in lines))


def is_unreachable(words: str) -> bool:
    """Whether these words say that slurmctld could not be reached, or did not answer: then there is nothing to mend but Slurm."""
    return _UNREACHABLE.search(words) is not None and "configuration source" not in words


def refusal(done: process.Finished, script: str) -> HpctrainError:
    """Return the error for a script that sbatch did not take: Slurm cannot be reached, or refused it, in its own words."""
    if _UNREACHABLE.search(done.stderr):
        return SchedulerError("Slurm cannot be reached", details=said(done), fix="sinfo, or on this machine: hpctrain submit --local")
    return HpctrainError("Slurm refused the job", details=said(done), fix=_remedy(done.stderr, script))


def _remedy(words: str, script: str) -> str:
    """Return what to type after Slurm's words; the names it lists for this user come from sacctmgr and sinfo."""
    lowered = words.lower()
    option = re.search(r"invalid --([a-z][a-z-]*) specification", lowered)
    if option:
        return f"man sbatch, then: hpctrain render --sbatch {option[1]}=VALUE"
    if "account" in lowered:
        return "sacctmgr -nP show associations user=$USER format=account,partition,qos, then: hpctrain render --account NAME"
    if "partition" in lowered:
        return "sinfo -o '%P %l %D', then: hpctrain render --partition NAME"
    if "qos" in lowered:
        return "sacctmgr -nP show associations user=$USER format=account,qos, then: hpctrain render --qos NAME"
    if "time limit" in lowered:
        return "sinfo -o '%P %l', then: hpctrain render --time LIMIT"
    if "processors" in lowered or "feature" in lowered or "node configuration" in lowered or "memory" in lowered or "node count" in lowered:
        return "sinfo -o '%P %D %c %m %f %G', then: hpctrain render with --nodes, --gpus, --cpus-per-task or --mem that a node has"
    if "reservation" in lowered:
        return "scontrol show reservations, then: hpctrain render --reservation NAME"
    if "option" in lowered:
        return "man sbatch, then: hpctrain render with another --sbatch KEY=VALUE"
    return f"edit config.yaml, then: hpctrain render && hpctrain submit --test-only {script}"
