"""`hpctrain explain`: what it reads, what it says, and what somebody gets who has nothing to explain."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from hpctrain.cli import explain_case

if TYPE_CHECKING:
    from conftest import Desk

pytestmark = pytest.mark.usefixtures("no_slurm")

EVIDENCE = {
    "type": "object", "required": ["file", "line", "text"], "additionalProperties": False,
    "properties": {"file": {"type": "string"}, "line": {"type": ["integer", "null"], "minimum": 1},
                   "text": {"type": "string", "maxLength": 4000}},
}  # fmt: skip
#: The answer, as docs/explain.md has it.
SCHEMA = {
    "type": "object", "required": ["schema", "diagnoses"],
    "properties": {
        "schema": {"const": 1},
        "diagnoses": {
            "type": "array",
            "items": {
                "type": "object", "required": ["id", "certainty", "cause", "fix", "evidence", "rank", "node", "since"],
                "properties": {
                    "id": {"type": "string", "pattern": "^[a-z0-9-]+$"}, "certainty": {"enum": ["certain", "likely"]},
                    "cause": {"type": "string", "minLength": 1}, "fix": {"type": "string", "minLength": 1},
                    "evidence": {"type": "array", "items": EVIDENCE, "minItems": 1}, "rank": {"type": ["integer", "null"]},
                    "node": {"type": ["string", "null"]},
                    "since": {"type": ["string", "null"], "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$"},
                    "changes": {"type": "array", "items": {"type": "object", "required": ["key", "old", "new"]}},
                },
            },
        },
        "consequences": {"type": "array", "items": {"type": "object", "properties": {"evidence": EVIDENCE, "count": {"type": "integer"}}}},
        "unexplained": {"type": ["object", "null"]}, "failed": {"type": "boolean"},
    },
}  # fmt: skip
OOM = """2026-03-21 02:00:00 INFO begin
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 3, in <module>
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 \
GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 38.26 GiB memory in use. Of the allocated \
memory 36.30 GiB is allocated by PyTorch, and 102.21 MiB is reserved by PyTorch but unallocated.
"""
WATCHDOG = (
    "[rank{0}]:[E321 02:10:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
)


def answer(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run("explain", *words, "--json")
    assert said.code == 0, said.err
    value: dict[str, Any] = json.loads(said.out)
    jsonschema.validate(value, SCHEMA)
    return value


def run_of(desk: Desk, run: str = "sft-1", *, outcome: str = "failed", status: int = 1, job: str = "4300000001") -> Path:
    """Make a run with one attempt and its logs."""
    folder = f"runs/{run}"
    at = int(time.time()) - 600
    desk.write(f"{folder}/run.json", json.dumps({"schema": 1, "run_id": run, "tag": run, "name": "sft", "created": at}))
    desk.write(
        f"{folder}/attempts/{job}.0/start.json",
        json.dumps({"schema": 1, "job_id": job, "slurm_job_id": job, "restart": 0, "host": "n1", "at": at}),
    )
    desk.write(
        f"{folder}/attempts/{job}.0/end.json",
        json.dumps({"schema": 1, "at": at + 60, "status": status, "outcome": outcome, "reason": None}),
    )
    desk.write(f"{folder}/script.sbatch", f"#!/bin/bash\n#SBATCH --job-name=sft\n#SBATCH --output={desk.directory}/logs/output_sft_%j.log\n"
               f"#SBATCH --error={desk.directory}/logs/error_sft_%j.log\n")  # fmt: skip
    return Path(folder)


def test_a_bare_file_of_a_job_that_nobody_knows(desk: Desk) -> None:
    desk.write("slurm-77.out", OOM + "".join(WATCHDOG.format(rank) for rank in range(3)))
    said = desk.run("explain", "slurm-77.out")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == "certain: cuda-oom"
    assert "rank 3, since 2026-03-21 02:00:00" in said.out
    assert "  slurm-77.out:5:" in lines
    assert any(line.startswith("fix: ") for line in lines)
    assert "also seen, as a consequence: " in said.out
    assert "x3 (ranks 0-2)" in said.out
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in said.out
    assert "read for slurm-77.out: 1 file" in said.err
    assert "more: hpctrain docs cuda-oom" in said.err
    value = answer(desk, "slurm-77.out")
    assert [(each["id"], each["rank"]) for each in value["diagnoses"]] == [("cuda-oom", 3)]
    assert value["diagnoses"][0]["evidence"][0]["line"] == 5


def test_a_folder_of_rank_files_says_which_rank(desk: Desk) -> None:
    for rank in range(4):
        desk.write(f"ranks/rank-{rank}.log", OOM.replace("[rank3]: ", "") if rank == 2 else WATCHDOG.format(rank))
    value = answer(desk, "ranks")
    assert [(each["id"], each["rank"]) for each in value["diagnoses"]] == [("cuda-oom", 2)]
    assert sum(each["count"] for each in value["consequences"]) == 3


def test_the_standard_input_is_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OOM.encode())))
    value = answer(desk, "-")
    assert value["diagnoses"][0]["evidence"][0]["file"] == "<stdin>"


def test_a_healthy_log_is_silent(desk: Desk) -> None:
    desk.write("job.log", "UserWarning: errors may follow\n" + "{'loss': 1.0, 'grad_norm': 0.2}\n" * 30)
    assert desk.run("explain", "job.log").out == "nothing points to a failure\n"
    value = answer(desk, "job.log")
    assert (value["diagnoses"], value["unexplained"], value["failed"]) == ([], None, False)


def test_what_no_rule_knows_is_shown_as_it_is(desk: Desk) -> None:
    desk.write(
        "job.log",
        'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    f()\nacme.QuantumError: \x1b[31mflux\x1b[0m\n',
    )
    said = desk.run("explain", "job.log")
    assert said.out.splitlines()[0] == "the job failed, and no rule says why; its first error:"
    assert "    acme.QuantumError: flux" in said.out.splitlines()
    value = answer(desk, "job.log")
    assert value["diagnoses"] == []
    assert value["unexplained"]["lines"][-1] == "acme.QuantumError: flux"


def test_tokens_do_not_get_out(desk: Desk) -> None:
    token = "hf_" + "aB3dE5fG7h" * 3 + "QwErT"
    desk.write("job.log", f'Traceback (most recent call last):\n  File "t.py", line 1\nacme.QuantumError: token {token}\n')
    said = desk.run("explain", "job.log")
    assert "acme.QuantumError" in said.out
    assert token not in said.out
    assert token not in json.dumps(answer(desk, "job.log"))


def test_a_run_is_explained_by_its_name_and_by_nothing(desk: Desk) -> None:
    run_of(desk)
    desk.write("logs/error_sft_4300000001.log", OOM)
    desk.write("logs/output_sft_4300000001.log", "{'loss': 1.0}\n")
    for words in (("sft-1",), (), ("runs/sft-1",)):
        value = answer(desk, *words)
        assert [each["id"] for each in value["diagnoses"]] == ["cuda-oom"], words
        assert value["diagnoses"][0]["attempt"] == "4300000001.0"
    assert "read for run sft-1, job 4300000001: 2 files" in desk.run("explain").err


def test_a_run_that_completed_has_nothing_to_explain(desk: Desk) -> None:
    run_of(desk, outcome="completed", status=0)
    desk.write("logs/error_sft_4300000001.log", OOM)
    assert desk.run("explain", "sft-1").out == "nothing points to a failure\n"


def test_without_a_word_the_run_that_failed_is_meant_though_another_is_newer(desk: Desk) -> None:
    run_of(desk)
    run_of(desk, "sft-2", outcome="completed", status=0, job="4300000002")
    desk.write("logs/error_sft_4300000001.log", OOM)
    assert [each["id"] for each in answer(desk)["diagnoses"]] == ["cuda-oom"]


def test_report_and_resubmit_get_the_same_answer(desk: Desk) -> None:
    run_of(desk)
    desk.write("logs/error_sft_4300000001.log", OOM)
    found = explain_case.explanation("sft-1")
    assert [each.id for each in found.explanation.diagnoses] == ["cuda-oom"]
    assert (found.run, found.title) == ("sft-1", "run sft-1, job 4300000001")


@pytest.mark.parametrize("words", [("nothing-here",), ("./no.log",), ("no/a.log", "no/b.log"), ("a.log", "b")])
def test_words_that_stand_for_nothing_are_refused(words: tuple[str, ...], desk: Desk) -> None:
    desk.refused("explain", *words)


def test_with_nothing_here_it_says_what_to_give(desk: Desk) -> None:
    assert desk.refused("explain", code=1).lines[-1] == "fix: hpctrain explain FILE"


def test_a_scheduler_that_is_down_keeps_nothing_from_being_read(desk: Desk) -> None:
    for name in ("sbatch", "squeue", "sacct", "scontrol", "sinfo"):
        desk.program(name, 'echo "error: Unable to contact slurm controller (connect failure)" >&2; exit 1')
    desk.write("slurm-77.out", OOM)
    said = desk.run("explain", "slurm-77.out")
    assert said.out.splitlines()[0] == "certain: cuda-oom"
    assert "note: " in said.err


def test_a_record_of_another_time_is_left_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpctrain.scheduler.parse.accounting import Account

    now = time.time()
    young = Account(job_id="77", scheduler="slurm", state="COMPLETED", started=now + 90_000, source="sacct")
    notes: list[str] = []
    meant = explain_case.explain_words.Meant(files=(), title="x", job="77")
    monkeypatch.setattr(explain_case.schedulers, "accounts", lambda *_args, **_more: [young])
    assert explain_case._account(meant, explain_case.Case(), [now], notes) is None
    assert "its record is left out" in notes[0]
    assert explain_case._account(meant, explain_case.Case(), [now + 95_000], notes) == young


def test_a_pipe_that_closes_is_no_error(hpctrain: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OOM)
    piped = f"set -o pipefail; {hpctrain} explain a.log | head -n 1"
    done = subprocess.run(
        ["bash", "-c", piped], cwd=tmp_path, capture_output=True, text=True, env={**os.environ},
    )  # fmt: skip
    assert done.stdout == "certain: cuda-oom\n"
    assert "rror" not in done.stderr
