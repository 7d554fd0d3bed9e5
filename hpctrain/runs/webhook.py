"""Sends a message to a webhook, in the form that its service shows: Slack, Discord, Teams, Google Chat, ntfy, or JSON for all others.

The service is known by its host. A server of one's own has the service in front of its address: `ntfy+https://push.example.org/topic`.
The address is a secret, and no error names more of it than its host.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from hpctrain.errors import HpctrainError
from hpctrain.runs import layout

#: Seconds for one try, and between tries: a job that was told to end has 30 s in all before it is killed (KillWait).
TIMEOUT_S, PAUSES_S = 6.0, (1.0, 3.0)
#: Service → hosts, or what they end with.
_HOSTS = {
    "slack": ("hooks.slack.com", "hooks.slack-gov.com"),
    "discord": ("discord.com", "discordapp.com"),
    "teams": (".webhook.office.com", ".logic.azure.com", ".api.powerplatform.com", ".powerautomate.com"),
    "google": ("chat.googleapis.com",),
    "ntfy": ("ntfy.sh",),
}
_SERVICE = re.compile(rf"(?:({'|'.join((*_HOSTS, 'json'))})\+)?(https?://.*)\Z", re.IGNORECASE | re.DOTALL)
_DISCORD_LONGEST = 2000
_JSON = "application/json"


def split(address: str) -> tuple[str, str] | None:
    """Return the service and the URL of an address; None for what is none."""
    found = _SERVICE.match(address)
    try:
        parts = urlsplit(found[2]) if found is not None else None
        if found is None or parts is None or not parts.hostname or not address.isascii() or len(address.split()) != 1:
            return None
        host = parts.hostname.lower()
    except ValueError:
        return None
    of_host = next((service for service, hosts in _HOSTS.items() if any(_is_at(host, each) for each in hosts)), "json")
    return (found[1] or of_host).lower(), found[2]


def _is_at(host: str, known: str) -> bool:
    return host == known or host.endswith(known if known.startswith(".") else f".{known}")


def payload(service: str, message: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a message for a service.

    Sources: Slack, "Sending messages using incoming webhooks" (text, &<> escaped); Discord, "Execute Webhook" (content, 2000 characters
    at most); Microsoft, "Create incoming webhooks with Workflows" (an adaptive card); Google Chat, "Build a Google Chat app as a webhook"
    (text; other keys are refused); ntfy, "Publishing" (the body is the text; Title, Priority and Tags are headers).
    """
    text = str(message.get("text", ""))
    if service == "slack":
        said: Mapping[str, Any] = {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    elif service == "discord":
        said = {"content": text[:_DISCORD_LONGEST], "allowed_mentions": {"parse": []}}
    elif service == "google":
        said = {"text": text}
    elif service == "teams":
        block = {"type": "TextBlock", "text": text, "wrap": True}
        card = {"$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4", "body": [block]}
        said = {
            "type": "message",
            "text": text,
            "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}],
        }
    elif service == "ntfy":
        failed = message.get("outcome") == "failed"
        title = re.sub(r"[^\x20-\x7e]", "?", f"{message.get('run') or 'hpctrain'} {message.get('outcome') or ''}".strip())
        headers = {"Title": title, "Priority": "high" if failed else "default", "Tags": "x" if failed else "white_check_mark"}
        return text.encode(), {"Content-Type": "text/plain; charset=utf-8", **headers}
    else:
        said = message
    return json.dumps(said).encode(), {"Content-Type": _JSON}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message that is sent elsewhere becomes a GET without it, and would look as if it had arrived."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(address: str, message: Mapping[str, Any], *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Send a message; what a server or the network may mend by itself is tried again.

    Raises:
        HpctrainError: it did not arrive; the address is not named, only its host.
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
            said = f"{host} cannot be reached: {type(error).__name__ if not str(reason) else str(reason)}".replace(url, "...")
        if pause is not None:
            sleep(pause)
    run = os.environ.get(layout.TAG_VARIABLE if os.environ.get("SLURM_ARRAY_JOB_ID") else layout.RUN_ID_VARIABLE) or "RUN"
    raise HpctrainError(
        "the webhook was not told",
        details=(f"  {said}", "  compute nodes of many clusters reach no other machine; a login node does"),
        fix=f"hpctrain notify {run} --wait, on a login node",
    )
