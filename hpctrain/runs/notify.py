"""Tells somebody's webhook how a run ended: from the job script, or from a login node.

    python -m hpctrain.runs.notify FILE OUTCOME TEXT                FILE holds the address, and is its owner's alone;
                                                                    `environment`: HPCTRAIN_WEBHOOK
    python -m hpctrain.runs.notify --point ON FILE OUTCOME TEXT     a task of an array has ended: writes OUTCOME, NAME and TEXT of each
                                                                    message that it is to tell, with tabs; sends them if FILE is not -

The address is a secret: whoever has it may write into the channel. No error and no log shows it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.runs import ends, layout, store, webhook
from hpctrain.runs.webhook import post

__all__ = ["ENVIRONMENT", "VARIABLE", "address", "body", "body_of_many", "post", "sentence"]

ENVIRONMENT, VARIABLE = "environment", "HPCTRAIN_WEBHOOK"
_LONGEST = 4096


def sentence(run: store.Run | None, outcome: str, text: str) -> str:
    """Return what is said: the sentence of the job script, and how far the training came."""
    if run is None or run.last_step is None:
        return text
    loss = "" if run.last_loss is None else f", loss {run.last_loss:.4g}"
    then = f"; next: hpctrain explain {run.id}" if outcome == "failed" else ""
    return f"{text}; step {run.last_step}{loss}{then}"


def body(run: store.Run | None, outcome: str, text: str) -> dict[str, Any]:
    """Return the message as JSON goes out."""
    said = sentence(run, outcome, text)
    last = run.last if run is not None else None
    return {
        "text": said, "content": said, "schema": 1, "outcome": outcome, "run": run.id if run is not None else None,
        "job": last.job if last is not None else None, "status": last.status if last is not None else None,
        "reason": last.reason if last is not None else None, "step": run.last_step if run is not None else None,
        "loss": run.last_loss if run is not None else None,
    }  # fmt: skip


def body_of_many(tag: str, outcome: str, text: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the message on the tasks of an array, or the runs of a launch; `counts`: how many ended how."""
    return body(None, outcome, text) | {"run": tag, "points": dict(counts)}


def address(source: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the address that a file, or the environment, holds.

    Raises:
        UsageError: it is not there, others can read it, or it is no address of the web.
    """
    if source == ENVIRONMENT:
        found, where, fix = environment.get(VARIABLE, ""), VARIABLE, f"export {VARIABLE}=https://... in the shell that submits"
    else:
        path = Path(source).expanduser()
        fix = f"printf '%s\\n' https://... > {shell.quote(path)}; chmod 600 {shell.quote(path)}"
        try:
            with path.open("rb") as stream:
                mode = os.fstat(stream.fileno()).st_mode
                found, where = stream.read(_LONGEST).decode("utf-8", "replace"), str(path)
        except OSError as error:
            raise UsageError(f"cannot read the webhook's address in {path}: {(error.strerror or str(error)).lower()}", fix=fix) from error
        if mode & 0o077:
            raise UsageError(f"others can read {path}, and the webhook's address is a secret", fix=f"chmod 600 {shell.quote(path)}")
    text = found.strip()
    if webhook.split(text) is None:
        raise UsageError(f"{where} holds no address of a webhook", details=("  one line that begins with https://",), fix=fix)
    return text


def run_here(environment: Mapping[str, str] = os.environ) -> store.Run | None:
    """Return the run of this job."""
    where = environment.get(layout.RUN_DIR_VARIABLE)
    if not where:
        return None
    path = Path(where)
    return store.read_run(path.parent, path.name)


def _point(on: str, source: str, outcome: str, text: str, environment: Mapping[str, str] = os.environ) -> None:
    """Note the end of an array's task, and tell what it is to tell: on standard output, and to the webhook."""
    run_id, tag = (environment.get(name, "") for name in (layout.RUN_ID_VARIABLE, layout.TAG_VARIABLE))
    index, count = run_id.rpartition("_")[2], environment.get("SLURM_ARRAY_TASK_COUNT", "")
    job, run_dir = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get(layout.RUN_DIR_VARIABLE, "")
    if not (index.isdecimal() and layout.NAME.match(tag) and job.isdecimal() and run_dir):
        raise UsageError("this is no task of an array", fix="python -m hpctrain.runs.notify FILE OUTCOME TEXT")
    run = run_here(environment)
    said, outcomes = sentence(run, outcome, " ".join(text.split())), on.split(",")
    try:
        tasks = ends.round_of(Path(run_dir).parent, tag, job, int(count) if count.isdecimal() else None)
        told = ends.ended(tasks, int(index), outcome, said, outcomes)
    except OSError as error:  # a full disk: a failure that is told once more than it should be is better than none
        sys.stderr.write(f"warning: the end of {run_id} cannot be noted: {error.strerror or error}\n")
        told = [ends.Message(outcome=outcome, about=run_id, text=said)] if outcome == "failed" and outcome in outcomes else []
    for each in told:
        sys.stdout.write(f"{each.outcome}\t{each.about}\t{each.text}\n")
    sys.stdout.flush()  # the job's own program need not wait for the network
    for each in told if source != "-" else ():
        of_point = body(run, each.outcome, text) | {"text": each.text, "content": each.text}
        send = of_point if each.counts is None else body_of_many(tag, each.outcome, each.text, each.counts)
        try:
            post(address(source), send)
        except HpctrainError as error:
            sys.stderr.write(error.render() + "\n")


def main(argv: list[str]) -> NoReturn:
    """Do what the words say, and exit; of a point 0 wherever it could be noted, whether somebody could be told or not."""
    try:
        if len(argv) == 5 and argv[0] == "--point":
            _, on, source, outcome, text = argv
            _point(on, source, outcome, text)
            sys.exit(0)
        if len(argv) != 3:
            raise UsageError(f"what is {' '.join(argv)!r}?", fix="python -m hpctrain.runs.notify FILE OUTCOME TEXT")
        source, outcome, text = argv
        post(address(source), body(run_here(), outcome, text))
    except (HpctrainError, OSError) as error:
        sys.stderr.write((error.render() if isinstance(error, HpctrainError) else f"error: {error}") + "\n")
        sys.exit(error.exit_code if isinstance(error, HpctrainError) else 1)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
