"""Tells somebody's webhook how a run ended: from the job script, or from a login node.

    python -m hpctrain.runs.notify FILE OUTCOME TEXT      FILE holds the address, and is its owner's alone; `environment`: HPCTRAIN_WEBHOOK

The body is JSON that Slack, Mattermost, Discord, Rocket.Chat and a program of one's own can read: `text` and `content` hold the sentence,
the other keys what it is made of. The address is a secret: whoever has it may write into the channel. No error and no log shows it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell
from hpctrain.runs import layout, store

ENVIRONMENT, VARIABLE = "environment", "HPCTRAIN_WEBHOOK"
#: Seconds for one try, and between tries: a job that was told to end has 30 s in all before it is killed (KillWait).
TIMEOUT_S, PAUSES_S = 6.0, (1.0, 3.0)
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
    try:
        parts = urlsplit(text)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isascii() and len(text.split()) == 1
    except ValueError:
        fine = False
    if not fine:
        raise UsageError(f"{where} holds no address of a webhook", details=("  one line that begins with https://",), fix=fix)
    return text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message that is sent elsewhere becomes a GET without it, and would look as if it had arrived."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(url: str, message: Mapping[str, Any], *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Send a message; what a server or the network may mend by itself is tried again.

    Raises:
        HpctrainError: it did not arrive; the address is not named, only its host.
    """
    host = urlsplit(url).hostname or ""
    request = urllib.request.Request(  # noqa: S310  # `address` lets http and https through
        url, data=json.dumps(message).encode(), method="POST",
        headers={"Content-Type": "application/json", "User-Agent": "hpctrain"},
    )  # fmt: skip
    opener = urllib.request.build_opener(_NoRedirect)
    said = ""
    for pause in (*PAUSES_S, None):
        try:
            with opener.open(request, timeout=TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            said = f"{host} answers {error.code} {error.reason}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            said = f"{host} cannot be reached: {type(error).__name__ if not str(reason) else str(reason)}".replace(url, "...")
        if pause is not None:
            sleep(pause)
    raise HpctrainError(
        "the webhook was not told",
        details=(f"  {said}", "  compute nodes of many clusters reach no other machine; a login node does"),
        fix=f"hpctrain notify {os.environ.get(layout.RUN_ID_VARIABLE, 'RUN')} --wait, on a login node",
    )


def run_here(environment: Mapping[str, str] = os.environ) -> store.Run | None:
    """Return the run of this job."""
    where = environment.get(layout.RUN_DIR_VARIABLE)
    if not where:
        return None
    path = Path(where)
    return store.read_run(path.parent, path.name)


def main(argv: list[str]) -> NoReturn:
    """Do what the words say, and exit."""
    try:
        if len(argv) != 3:
            raise UsageError(f"what is {' '.join(argv)!r}?", fix="python -m hpctrain.runs.notify FILE OUTCOME TEXT")
        source, outcome, text = argv
        post(address(source), body(run_here(), outcome, text))
    except HpctrainError as error:
        sys.stderr.write(error.render() + "\n")
        sys.exit(error.exit_code)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
