"""The same script submitted twice: not an error, but worth a line."""

from __future__ import annotations

from pathlib import Path

from hpctrain.cli.chosen_script import Choice
from hpctrain.runs import launch

#: Launches of the name that are looked at, the newest first.
_MOST = 10


def note(choice: Choice, runs: Path) -> str | None:
    """Return the line on an earlier job of the same script that still waits or runs; None where there is none, or nobody knows."""
    text, whole = choice.scripts[0].text, choice.whole
    name = (whole.job.spec.job_name if whole is not None else choice.scripts[0].values.get("job-name")) or "job"
    for tag in [each for each in launch.tags(runs) if each.startswith(f"{name}-")][: -_MOST - 1 : -1]:
        earlier = launch.load(runs, tag)
        kept = [launch.script_path(runs, tag, part.script) for part in earlier.parts] if earlier is not None else []
        if earlier is not None and any(_text(path) == text for path in kept) and (found := _living(runs, earlier)) is not None:
            job, word = found
            return f"note: job {job}, the run {tag} of the same script, is {word}; if one is enough: hpctrain cancel {job}"
    return None


def _living(runs: Path, earlier: launch.Launch) -> tuple[str, str] | None:
    """Return the first job of a launch that waits or runs, and which of the two."""
    from hpctrain.cli import remaining, runs_jobs

    found = runs_jobs.survey(runs, remaining.runs_of(runs, earlier)[0])
    return next(
        ((state.live[0], state.word) for state in found.states.values() if state.live and state.word in ("pending", "running")), None
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
