"""Notifications of how a run ended, sent to a webhook.

The job script calls it:

    python -m hpctrain.runs.notify FILE OUTCOME TEXT              FILE contains the address, and
                                                                  only its owner can read it;
                                                                  `environment`: HPCTRAIN_WEBHOOK
    python -m hpctrain.runs.notify --point ON FILE OUTCOME TEXT   a task of an array has ended: prints
                                                                  OUTCOME, NAME and TEXT of each
                                                                  message, with tabs; sends them
                                                                  unless FILE is -

The address is a secret: anyone who has it can write to the channel. It never appears in errors or
logs. The host identifies the service; for other servers, prefix the address with it:
`ntfy+https://push.example.org/topic`.

An array does not send a message per task: the first failures are sent one by one, then one message
that more have failed, and one when all tasks have ended. Because tasks end on many nodes at the
same time, each leaves a file, and the task that creates a directory sends the message:

    runs/.launches/TAG/ends/JOB/INDEX.OUTCOME     how a task of array JOB ended
    runs/.launches/TAG/ends/JOB/told-1, ...       what was sent

The directory is created before the message is sent: if the job is killed in between, a message is
lost, but none is sent twice. A task that is killed, or whose node fails, leaves no file, so the end
is never sent; `hpctrain watch TAG --notify` queries the scheduler instead.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import layout, store
from hpctrain.util import shell, stored
from hpctrain.util.text import count, is_number

#: Seconds for one try, and between tries: a job has 30 s between SIGTERM and SIGKILL (KillWait).
TIMEOUT_S, PAUSES_S = 6.0, (1.0, 3.0)
#: Service → hosts, or host suffixes.
_HOSTS = {
    "slack": ("hooks.slack.com", "hooks.slack-gov.com"),
    "discord": ("discord.com", "discordapp.com"),
    "teams": (
        ".webhook.office.com",
        ".logic.azure.com",
        ".api.powerplatform.com",
        ".powerautomate.com",
    ),
    "google": ("chat.googleapis.com",),
    "ntfy": ("ntfy.sh",),
}
_SERVICE = re.compile(
    rf"(?:({'|'.join((*_HOSTS, 'json'))})\+)?(https?://.*)\Z", re.IGNORECASE | re.DOTALL
)
_DISCORD_LONGEST = 2000


def split(address: str) -> tuple[str, str] | None:
    """Return the service and the URL of an address; None for an invalid one."""
    found = _SERVICE.match(address)
    if found is None or not address.isascii() or len(address.split()) != 1:
        return None
    try:
        host = (urlsplit(found[2]).hostname or "").lower()
    except ValueError:
        return None
    if not host:
        return None
    known = [
        service
        for service, hosts in _HOSTS.items()
        if any(f".{host}".endswith(f".{each.lstrip('.')}") for each in hosts)
    ]
    return (found[1] or next(iter(known), "json")).lower(), found[2]


def payload(service: str, message: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a message for a service.

    Sources: Slack, "Sending messages using incoming webhooks" (text, &<> escaped); Discord,
    "Execute Webhook" (content, 2000 characters at most); Microsoft, "Create incoming webhooks with
    Workflows" (an adaptive card); Google Chat, "Build a Google Chat app as a webhook" (text; other
    keys are refused); ntfy, "Publishing" (the body is the text; Title and Priority are headers).
    """
    text = str(message.get("text", ""))
    if service == "ntfy":
        title = f"{message.get('run') or 'hpctrain'} {message.get('outcome') or ''}".strip()
        priority = "high" if message.get("outcome") == "failed" else "default"
        headers = {"Title": title, "Priority": priority}
        return text.encode(), {"Content-Type": "text/plain; charset=utf-8", **headers}
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [{"type": "TextBlock", "text": text, "wrap": True}],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    bodies: dict[str, Mapping[str, Any]] = {
        "slack": {"text": escaped},
        "google": {"text": text},
        "discord": {"content": text[:_DISCORD_LONGEST], "allowed_mentions": {"parse": []}},
        "teams": {"type": "message", "text": text, "attachments": [attachment]},
    }
    return json.dumps(bodies.get(service, message)).encode(), {"Content-Type": "application/json"}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they turn the POST into a GET without the message, which looks like a
    success.
    """

    def redirect_request(self, *_: Any) -> None:
        return None


def post(
    address: str, message: Mapping[str, Any], *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Send a message; possibly temporary server or network errors are retried.

    Raises:
        HpctrainError: it was not delivered; the error has only the address's host.
    """
    service, url = split(address) or ("json", address)
    host = urlsplit(url).hostname or ""
    content, headers = payload(service, message)
    request = urllib.request.Request(  # noqa: S310  # `split` lets http and https through
        url, data=content, method="POST", headers={"User-Agent": "hpctrain", **headers}
    )
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
            said = (
                f"{host} cannot be reached:"
                f" {type(error).__name__ if not str(reason) else str(reason)}".replace(url, "...")
            )
        if pause is not None:
            sleep(pause)
    run = (
        os.environ.get(
            layout.TAG_VARIABLE if os.environ.get("SLURM_ARRAY_JOB_ID") else layout.RUN_ID_VARIABLE
        )
        or "RUN"
    )
    raise HpctrainError(
        "the notification was not sent",
        details=(
            f"  {said}",
            "  compute nodes of many clusters reach no other machine; a login node does",
        ),
        hint=f"on a login node: hpctrain watch {run} --notify",
    )


#: Failures of an array that are sent individually.
FIRST = 3
INTERRUPTED = "interrupted"
OUTCOMES = ("completed", "failed", "stopped", INTERRUPTED)
_MARK = re.compile(r"(\d+)\.(" + "|".join(OUTCOMES) + r")\Z")
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message; `counts` has the number of tasks by outcome, None in a message about one task."""

    outcome: str
    about: str
    text: str
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayEnds:
    """The ends of an array's tasks.

    Attributes:
        folder: the directory in which they are recorded.
        tag: the launch's tag.
        count: number of tasks; None if Slurm does not report it.
    """

    folder: Path
    tag: str
    count: int | None

    def record(self, point: int, outcome: str, said: str, on: Collection[str]) -> list[Message]:
        """Record that a task has ended, and return the messages that its job has to send, mostly
        none.

        Args:
            point: the task's index.
            outcome: one of OUTCOMES.
            said: the text about this task.
            on: the outcomes to send: completed, failed, stopped.

        Raises:
            OSError: the end cannot be recorded, so sending only once is impossible.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{point}.{outcome}").touch()
        for other in OUTCOMES:
            if other != outcome:
                (self.folder / f"{point}.{other}").unlink(missing_ok=True)
        found = (_MARK.match(each.name) for each in self.folder.iterdir())
        marks = {int(mark[1]): mark[2] for mark in found if mark}
        counts = Counter(marks.values())
        is_wanted = outcome == "failed" and "failed" in on
        is_first = is_wanted and any(self._claim(f"told-{number + 1}") for number in range(FIRST))
        messages = []
        if is_first:
            messages.append(Message(outcome=outcome, about=f"{self.tag}_{point}", text=said))
        elif is_wanted and self._claim("told-more"):
            text = f"{self.tag}: more than {FIRST} combinations have failed; see: hpctrain report {self.tag}"
            messages.append(
                Message(outcome=outcome, about=self.tag, text=text, counts=dict(counts))
            )
        ends = {"stopped" if each == INTERRUPTED else each for each in counts}
        is_end = len(marks) == self.count and bool(ends & set(on))
        # An interrupted task that Slurm requeues ends again, and with it the array.
        if is_end and self._claim(f"told-end-{counts[INTERRUPTED]}"):
            messages.append(self._end(marks, counts))
        return messages

    def _end(self, marks: Mapping[int, str], counts: Counter[str]) -> Message:
        failed = [f"{self.tag}_{each}" for each in sorted(marks) if marks[each] == "failed"]
        names = f" ({', '.join(failed[:_NAMED])}{', ...' if len(failed) > _NAMED else ''})"
        said = ", ".join(
            f"{counts[each]} {each}{names if each == 'failed' else ''}"
            for each in OUTCOMES
            if counts[each]
        )
        ended = f"{count(len(marks), 'combination')} ended"
        worst = next(each for each in ("failed", "stopped", INTERRUPTED, *OUTCOMES) if counts[each])
        return Message(
            outcome="stopped" if worst == INTERRUPTED else worst,
            about=self.tag,
            text=f"{self.tag}: {ended}: {said}; next: hpctrain report {self.tag}",
            counts=dict(counts),
        )

    def _claim(self, name: str) -> bool:
        """Return whether this process created the directory `name`, and so sends the message."""
        try:
            (self.folder / name).mkdir()
        except FileExistsError:
            return False
        return True


ENVIRONMENT, VARIABLE = "environment", "HPCTRAIN_WEBHOOK"
_LONGEST = 4096


def sentence(run: store.Run | None, outcome: str, text: str) -> str:
    """Return the message text: the job script's sentence, and the training's progress."""
    if run is None or run.last_step is None:
        return text
    loss = "" if run.last_loss is None else f", loss {run.last_loss:.4g}"
    then = f"; next: hpctrain explain {run.id}" if outcome == "failed" else ""
    return f"{text}; step {run.last_step}{loss}{then}"


def body(run: store.Run | None, outcome: str, text: str) -> dict[str, Any]:
    """Return the message as a JSON object."""
    said = sentence(run, outcome, text)
    last = run.last if run is not None else None
    return {
        "text": said,
        "content": said,
        "schema": 1,
        "outcome": outcome,
        "run": run.id if run is not None else None,
        "job": last.job if last is not None else None,
        "status": last.status if last is not None else None,
        "reason": last.reason if last is not None else None,
        "step": run.last_step if run is not None else None,
        "loss": run.last_loss if run is not None else None,
    }


def address(source: str) -> str:
    """Return the address in a file or in the environment.

    Raises:
        UsageError: it is missing, others can read it, or it is not an http(s) address.
    """
    if source == ENVIRONMENT:
        found, where = os.environ.get(VARIABLE, ""), VARIABLE
        hint = f"in the shell that submits: export {VARIABLE}=https://..."
    else:
        path = stored.expanded(source)
        hint = f"write it there: printf '%s\\n' https://... > {shell.quote(path)}; chmod 600 {shell.quote(path)}"
        try:
            with stored.open_regular(path) as stream:
                mode = os.fstat(stream.fileno()).st_mode
                found, where = stream.read(_LONGEST).decode("utf-8", "replace"), str(path)
        except OSError as error:
            raise UsageError(
                f"cannot read the webhook's address in {path}:"
                f" {(error.strerror or str(error)).lower()}",
                hint=hint,
            ) from error
        if mode & 0o077:
            raise UsageError(
                f"others can read {path}, and the webhook's address is a secret",
                fix=f"chmod 600 {shell.quote(path)}",
            )
    text = found.strip()
    if split(text) is None:
        raise UsageError(
            f"{where} does not hold the address of a webhook",
            details=("  one line that begins with https://",),
            hint=hint,
        )
    return text


def _run_here() -> store.Run | None:
    """Return the run of this job."""
    where = os.environ.get(layout.RUN_DIR_VARIABLE)
    return store.read_run(Path(where).parent, Path(where).name) if where else None


def _point(on: str, source: str, outcome: str, text: str) -> None:
    """Record the end of an array task, and send its messages to standard output and to the webhook."""
    runs = Path(os.environ[layout.RUN_DIR_VARIABLE]).parent
    run_id, tag = os.environ[layout.RUN_ID_VARIABLE], os.environ[layout.TAG_VARIABLE]
    job, tasks = os.environ["SLURM_ARRAY_JOB_ID"], os.environ.get("SLURM_ARRAY_TASK_COUNT", "")
    run = _run_here()
    said = sentence(run, outcome, " ".join(text.split()))
    ends = ArrayEnds(
        folder=runs / layout.LAUNCHES / tag / "ends" / job,
        tag=tag,
        count=int(tasks) if is_number(tasks) else None,
    )
    try:
        messages = ends.record(int(run_id.rpartition("_")[2]), outcome, said, on.split(","))
    except OSError as error:
        # On a full disk, a duplicate failure message is better than none.
        why = error.strerror or error
        sys.stderr.write(f"warning: the end of {run_id} cannot be recorded: {why}\n")
        wanted = outcome == "failed" and outcome in on.split(",")
        messages = [Message(outcome=outcome, about=run_id, text=said)] if wanted else []
    for each in messages:
        sys.stdout.write(f"{each.outcome}\t{each.about}\t{each.text}\n")
    sys.stdout.flush()  # the job's own program need not wait for the network
    for each in messages if source != "-" else ():
        value = body(run if each.counts is None else None, each.outcome, text)
        value |= {"text": each.text, "content": each.text}
        if each.counts is not None:
            value |= {"run": tag, "points": dict(each.counts)}
        try:
            post(address(source), value)
        except HpctrainError as error:
            sys.stderr.write(f"{error.render()}\n")


def main(argv: list[str]) -> int:
    """Run the command line and return the exit code; for an array task 0 if its end was recorded,
    even if sending failed.
    """
    try:
        if argv[0] == "--point":
            _point(*argv[1:])
        else:
            source, outcome, text = argv
            post(address(source), body(_run_here(), outcome, text))
    except HpctrainError as error:
        sys.stderr.write(f"{error.render()}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
