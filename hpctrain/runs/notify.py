"""Notifications of how a run ended, sent to a webhook.

The job script calls it:

    python -m hpctrain.runs.notify FILE OUTCOME TEXT

FILE contains the address, and only its owner can read it; `environment`: HPCTRAIN_WEBHOOK.

The address is a secret: anyone who has it can write to the channel. It never appears in errors or
logs. The host identifies the service; for other servers, prefix the address with it:
`ntfy+https://push.example.org/topic`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import layout, store
from hpctrain.util import shell, stored

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
        host = ""
    known = (
        service
        for service, hosts in _HOSTS.items()
        if any(f".{host}".endswith(f".{each.lstrip('.')}") for each in hosts)
    )
    return ((found[1] or next(known, "json")).lower(), found[2]) if host else None


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
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            said = f"{host} cannot be reached: {reason}".replace(url, "...")
        if pause is not None:
            sleep(pause)
    raise HpctrainError(
        "the notification was not sent",
        details=(f"  {said}", "  compute nodes of many clusters reach no other machine"),
        hint="let Slurm send mail instead: notify: {mail: me@example.org}",
    )


ENVIRONMENT, VARIABLE = "environment", "HPCTRAIN_WEBHOOK"
_LONGEST = 4096


def body(run: store.Run | None, outcome: str, text: str) -> dict[str, Any]:
    """Return the message as a JSON object; its text is the job script's sentence, and the
    training's progress.
    """
    run = run or store.Run(id="", tag="")
    last = run.last or store.Attempt(name="")
    if run.last_step is not None:
        text += f"; step {run.last_step}"
        text += "" if run.last_loss is None else f", loss {run.last_loss:.4g}"
        text += f"; next: hpctrain explain {run.id}" if outcome == "failed" else ""
    return {
        "text": text,
        "content": text,
        "schema": 1,
        "outcome": outcome,
        "run": run.id or None,
        "job": last.job,
        "status": last.status,
        "reason": last.reason,
        "step": run.last_step,
        "loss": run.last_loss,
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


def main(argv: list[str]) -> int:
    """Run the command line and return the exit code."""
    try:
        source, outcome, text = argv
        where = os.environ.get(layout.RUN_DIR_VARIABLE)
        run = store.read_run(Path(where).parent, Path(where).name) if where else None
        post(address(source), body(run, outcome, text))
    except HpctrainError as error:
        sys.stderr.write(f"{error.render()}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
