"""Fixes of time: a limit that is long enough by the steps that were measured, or a run that goes on by itself. PURE."""

from __future__ import annotations

from hpctrain.explain.case import Case
from hpctrain.explain.facts_found import last_attempt, limit, setting, span, whole
from hpctrain.explain.facts_time import left_to_do, seconds_of_a_step
from hpctrain.explain.fixes_values import Groups, change, fix, is_ours, kept
from hpctrain.explain.model import Fix
from hpctrain.scheduler.parse import duration

#: What a run is longer than its steps say: evaluations, saves, a slower node.
_SPARE = 1.1
_QUARTER, _HOUR = 900, 3600
#: A save so often loses no more than that when a job dies, and costs little.
_SAVE_S = 900.0


def time_limit(case: Case, _: Groups) -> Fix | None:
    """Return the time that this start would have needed; beyond the partition's maximum, a run that goes on in further jobs."""
    had, left = _limit(case), left_to_do(case)
    if had is None:
        return None
    if left is None:
        return _twice(case, had)
    need = _rounded(int((had + left) * _SPARE))
    step_s = seconds_of_a_step(case) or 0.0
    why = f"step {case.step} of {case.max_steps} was done; {span(left)} are left at {step_s:.3g} s a step"
    most = whole(case.extra.get("time_max_s"))
    if most is not None and need > most:
        return _in_parts(case, had, most, f"{why}; the partition allows {limit(most)}")
    new = change(case, "resources.time", limit(need))
    return fix(f"--time {limit(had)} -> {new.new}", *kept(case, new), more=f"{why}; {_goes_on(case)}")


def _goes_on(case: Case) -> str:
    return "it goes on from the newest checkpoint" if is_ours(case) else "enough for all of it, should your script begin anew"


def _twice(case: Case, had: int) -> Fix | None:
    """Return twice the time, where nobody knows how much is left; the longest that there is, where that is less."""
    if case.account is None and case.config is None:
        return None
    most = whole(case.extra.get("time_max_s"))
    need = min(2 * had, most) if most is not None else 2 * had
    if need <= had:
        return None
    new = change(case, "resources.time", limit(need))
    run = case.extra.get("run")
    again = f"\nhpctrain submit --run-id {run} --time {limit(need)}" if run else ""
    doubt = "" if is_ours(case) else "; your script goes on only if it resumes by itself"
    more = f"twice the time, as nothing says how many steps are left{doubt}"
    return fix(f"--time {limit(had)} -> {new.new}", *kept(case, new), more=f"{more}{again}")


def hang(case: Case, groups: Groups) -> Fix | None:
    """Return how to see what a training waits for: in a new start, while it stands still. It is never done by itself."""
    run = case.extra.get("run")
    if run is None:
        return None
    who = f"rank {groups['rank']}" if groups.get("rank") else "the rank that falls silent first"
    causes = "a collective that not all ranks reach, a data loader or a file system that stalls"
    text = f"More time does not help. Look where {who} stands: {causes}."
    # From outside the job srun takes one node unless told; and 20.11 shares no GPUs, --overlap or not (both tried).
    nodes = case.account.n_nodes if case.account is not None and case.account.n_nodes else setting(case, "resources", "nodes") or "NODES"
    dump = "bash -c 'for pid in $(pgrep -f python); do py-spy dump --pid $pid; done'"
    look = f"srun --jobid NEW_JOB --overlap --gres none --nodes {nodes} --ntasks-per-node 1 {dump}"
    return fix(f"{text} Start it again, and while it stands still, look:", more=f"hpctrain resubmit {run}\n{look}")


def _in_parts(case: Case, had: int, most: int, why: str) -> Fix | None:
    """Return the longest time that there is, and restarts where there are none yet."""
    longer = change(case, "resources.time", limit(most))
    mode = setting(case, "restart", "mode")
    goes_on = mode in ("requeue", "chain") or (mode in (None, "auto") and is_ours(case))
    words = [f"--time {limit(had)} -> {limit(most)}"] if most > had else []
    if goes_on:
        if not words:
            return None  # it has all that there is, and goes on by itself
        return fix(words[0], *kept(case, longer), more=f"{why}; each job saves in time, and the next one goes on")
    if not is_ours(case):
        # A script of one's own may begin at its beginning: only who wrote it knows.
        text = ", ".join([*words, "--restart requeue, if your script resumes from its own checkpoint"])
        return fix(text, *(kept(case, longer) if words else ()), more=why)
    again = change(case, "restart.mode", "requeue")
    changes = kept(case, longer, again) if words else kept(case, again)
    return fix(", ".join([*words, f"--restart {mode or 'off'} -> requeue"]), *changes, more=why)


def time_max(case: Case, groups: Groups) -> Fix | None:
    """Return the longest time that the partition takes, where a job asks for more, with restarts to come to the end."""
    most = whole(case.extra.get("time_max_s")) or _seconds(groups.get("most"))
    had = whole(setting(case, "resources", "time")) or (case.account.time_limit_s if case.account is not None else None)
    if most is None or had is None or had <= most:
        return None
    shorter = change(case, "resources.time", limit(most))
    mode, changes, more = setting(case, "restart", "mode"), [shorter], f"the partition allows {limit(most)}"
    if mode == "off" and is_ours(case):
        changes.append(change(case, "restart.mode", "requeue"))
        more += "; what is left then goes on in the same job, requeued"
    return fix(f"--time {limit(had)} -> {limit(most)}", *kept(case, *changes), more=more)


def save_steps(case: Case, _: Groups) -> Fix | None:
    """Return saves about every 15 minutes, where more was lost: what is trained does not change."""
    step_s, now = seconds_of_a_step(case), whole(setting(case, "training", "save_steps"))
    if step_s is None or not is_ours(case) or setting(case, "training", "save_strategy") not in (None, "steps"):
        return None
    every = max(1, _even(int(_SAVE_S / step_s)))
    had = now or 500  # TrainingArguments.save_steps
    if every >= had:
        return None
    new = change(case, "training.save_steps", every)
    return fix(f"save_steps: {had} -> {every}", new, more=f"a checkpoint every {span(every * step_s)} in place of {span(had * step_s)}")


def _even(steps: int) -> int:
    """Return a number of steps that a person would write: 1, 2, 5, 10, 20 and so on."""
    sizes = [part * 10**power for power in range(6) for part in (1, 2, 5)]
    return max((size for size in sizes if size <= steps), default=1)


def _limit(case: Case) -> int | None:
    """Return the seconds that this start had."""
    account, last = case.account, last_attempt(case)
    if account is not None and account.time_limit_s:
        return account.time_limit_s
    asked = whole(setting(case, "resources", "time"))
    if asked:
        return asked
    if last is not None and last.started is not None and last.ended is not None:
        return max(1, round(last.ended - last.started))
    return None


def _rounded(seconds: int) -> int:
    """Return a limit that a person would ask for: quarters of an hour, from 12 hours on whole hours."""
    unit = _QUARTER if seconds <= 12 * _HOUR else _HOUR
    return -(-seconds // unit) * unit


def _seconds(text: str | None) -> int | None:
    try:
        return duration.parse(text) if text else None
    except ValueError:
        return None
