"""Telling a webhook: against a real server on this machine."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import notify
from tests.runs import make

SECRET = "T000/B000/xyzzy-secret"


class Server:
    def __init__(self) -> None:
        self.answers: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.texts: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Content-Type"] == "application/json":
                    outer.bodies.append(json.loads(content))
                else:
                    outer.texts.append((content.decode(), dict(self.headers)))
                answer = outer.answers.pop(0) if outer.answers else 200
                self.send_response(answer)
                if answer == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/{SECRET}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def post(url: str) -> list[float]:
    slept: list[float] = []
    notify.post(url, {"text": "sft-1 failed"}, sleep=slept.append)
    return slept


def test_a_server_that_is_busy_is_asked_again(server: Server) -> None:
    server.answers = [503, 429, 200]
    assert post(server.url) == [1.0, 3.0]
    assert len(server.bodies) == 3


@pytest.mark.parametrize(("answer", "tries"), [(404, 1), (302, 1), (500, 3)])
def test_what_does_not_arrive_is_said_without_the_address(
    server: Server, answer: int, tries: int
) -> None:
    server.answers = [answer] * 3
    with pytest.raises(HpctrainError) as caught:
        post(server.url)
    said = caught.value.render()
    assert f"127.0.0.1 answers {answer}" in said
    assert SECRET not in said
    assert len(server.bodies) == tries


def holding(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_address_stands_in_a_file_of_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        notify.address(holding(tmp_path / "a", " https://example.org/x \n"))
        == "https://example.org/x"
    )
    monkeypatch.setenv("HPCTRAIN_WEBHOOK", "http://example.org/x")
    assert notify.address("environment") == "http://example.org/x"
    monkeypatch.delenv("HPCTRAIN_WEBHOOK")
    with pytest.raises(UsageError, match="others can read"):
        notify.address(holding(tmp_path / "b", "https://example.org/x\n", 0o644))
    with pytest.raises(UsageError, match="no such file"):
        notify.address(str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="HPCTRAIN_WEBHOOK does not hold the address"):
        notify.address("environment")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "file:///etc/passwd",
        "https://",
        "https://a b",
        "https://a\nhttps://b",
        "ftp://a/b",
        "https://[",
        "https://é",
    ],
)
def test_what_is_no_address_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        notify.address(holding(tmp_path / "a", text))
    assert "does not hold the address of a webhook" in caught.value.render()
    assert not text or text not in caught.value.render().replace("https://...", "").replace(
        "with https://", ""
    )


def test_the_job_script_s_call_says_how_far_the_run_came(server: Server, tmp_path: Path) -> None:
    run = make.run(tmp_path / "runs")
    attempt = make.attempt(run, outcome="failed", status=1, reason="nan")
    make.metrics(attempt, {"step": 120, "loss": 2.3456789})
    words = [
        holding(tmp_path / "hook", server.url + "\n"),
        "failed",
        "sft-1 failed: job 123 on n1, exit code 1, nan",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "hpctrain.runs.notify", *words],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "HPCTRAIN_RUN_DIR": str(run),
            "HPCTRAIN_RUN_ID": "sft-1",
        },
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = (
        "sft-1 failed: job 123 on n1, exit code 1, nan; step 120, loss 2.346; next: hpctrain"
        " explain sft-1"
    )
    assert server.bodies == [
        {
            "text": text,
            "content": text,
            "schema": 1,
            "outcome": "failed",
            "run": "sft-1",
            "job": "123",
            "status": 1,
            "reason": "nan",
            "step": 120,
            "loss": 2.3456789,
        }
    ]


@pytest.mark.parametrize(
    ("address", "service"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://ptb.discord.com/api/webhooks/1/x", "discord"),
        ("https://me.webhook.office.com/webhookb2/x", "teams"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/x?sig=y", "teams"),
        ("https://chat.googleapis.com/v1/spaces/x/messages?key=y", "google"),
        ("https://ntfy.sh/topic", "ntfy"),
        ("ntfy+https://push.example.org/topic", "ntfy"),
        ("slack+http://127.0.0.1/x", "slack"),
        ("https://hooks.slack.com.example.org/x", "json"),
        ("https://mattermost.example.org/hooks/x", "json"),
    ],
)
def test_the_service_is_known_by_its_address(address: str, service: str) -> None:
    found = notify.split(address)
    assert found[0] == service
    assert found[1].startswith("http")


MESSAGE = {
    "text": "sft-1 failed: a < b & c",
    "content": "x",
    "run": "sft-1",
    "outcome": "failed",
    "step": 1,
}


@pytest.mark.parametrize(
    ("service", "body"),
    [
        ("slack", {"text": "sft-1 failed: a &lt; b &amp; c"}),
        ("discord", {"content": "sft-1 failed: a < b & c", "allowed_mentions": {"parse": []}}),
        ("google", {"text": "sft-1 failed: a < b & c"}),
        ("json", MESSAGE),
    ],
)
def test_each_service_gets_what_it_understands(
    server: Server, service: str, body: dict[str, Any]
) -> None:
    notify.post(f"{service}+{server.url}", MESSAGE)
    assert server.bodies == [body]


def test_teams_gets_a_card(server: Server) -> None:
    notify.post(f"teams+{server.url}", MESSAGE)
    (card,) = (each["content"] for each in server.bodies[0]["attachments"])
    assert card["body"] == [{"type": "TextBlock", "text": MESSAGE["text"], "wrap": True}]


def test_ntfy_gets_words(server: Server) -> None:
    notify.post(f"ntfy+{server.url}", MESSAGE)
    ((text, headers),) = server.texts
    assert text == MESSAGE["text"]
    assert (headers["Title"], headers["Priority"]) == ("sft-1 failed", "high")
