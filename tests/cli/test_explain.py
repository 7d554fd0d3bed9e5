"""`hpctrain explain`: what it reads, what it says, and what somebody gets who has nothing to
explain.
"""

import json
import re
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hpctrain.cli.actions.explain import first_line
from hpctrain.explain import pages
from hpctrain.explain.model import JobContext
from hpctrain.jobs import explanation
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import installed
from tests.cli.conftest import Desk
from tests.runs import make

EVIDENCE = {
    "type": "object",
    "required": ["file", "line", "text"],
    "additionalProperties": False,
    "properties": {
        "file": {"type": "string"},
        "line": {"type": ["integer", "null"], "minimum": 1},
        "text": {"type": "string", "maxLength": 4000},
    },
}
#: The answer, as docs/explain.md has it.
SCHEMA = {
    "type": "object",
    "required": ["schema", "diagnoses"],
    "properties": {
        "schema": {"const": 1},
        "diagnoses": {
            "type": "array",
            "items": {
                "type": "object",
                "required": [
                    "id",
                    "certainty",
                    "cause",
                    "fix",
                    "evidence",
                    "rank",
                    "node",
                    "since",
                ],
                "properties": {
                    "id": {"type": "string", "pattern": "^[a-z0-9-]+$"},
                    "certainty": {"enum": ["certain", "likely"]},
                    "cause": {"type": "string", "minLength": 1},
                    "fix": {"type": "string", "minLength": 1},
                    "evidence": {"type": "array", "items": EVIDENCE, "minItems": 1},
                    "rank": {"type": ["integer", "null"]},
                    "node": {"type": ["string", "null"]},
                    "since": {
                        "type": ["string", "null"],
                        "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$",
                    },
                    "changes": {
                        "type": "array",
                        "items": {"type": "object", "required": ["key", "old", "new"]},
                    },
                },
            },
        },
        "consequences": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"evidence": EVIDENCE, "count": {"type": "integer"}},
            },
        },
        "unexplained": {"type": ["object", "null"]},
        "failed": {"type": "boolean"},
    },
}
OOM = """2026-03-21 02:00:00 INFO begin
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 3, in <module>
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 \
GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 38.26 GiB memory in use. Of the allocated \
memory 36.30 GiB is allocated by PyTorch, and 102.21 MiB is reserved by PyTorch but unallocated.
"""
WATCHDOG = (
    "[rank{0}]:[E321 02:10:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught"
    " collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=4, NumelOut=4,"
    " Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
)


def answer(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run("explain", *words, "--json")
    assert said.code == 0, said.err
    value: dict[str, Any] = json.loads(said.out)
    jsonschema.validate(value, SCHEMA)
    return value


def run_of(
    desk: Desk,
    run: str = "sft-1",
    *,
    outcome: str = "failed",
    status: int = 1,
    job: str = "4300000001",
) -> Path:
    """Make a run with one attempt and its logs."""
    at = int(time.time()) - 600
    folder = make.run(desk.directory / "runs", run, created=at)
    make.attempt(folder, job, at=at, outcome=outcome, status=status, reason="")
    (folder / "script.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --job-name=sft\n#SBATCH"
        f" --output={desk.directory}/logs/output_sft_%j.log\n#SBATCH"
        f" --error={desk.directory}/logs/error_sft_%j.log\n",
    )
    return folder


@pytest.mark.usefixtures("no_slurm")
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
    assert "read for slurm-77.out: 1 file" in said.err
    assert "more: hpctrain explain cuda-oom" in said.err
    value = answer(desk, "slurm-77.out")
    assert [(each["id"], each["rank"]) for each in value["diagnoses"]] == [("cuda-oom", 3)]
    assert value["diagnoses"][0]["evidence"][0]["line"] == 5


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.usefixtures("no_slurm")
def test_a_healthy_log_is_silent(desk: Desk) -> None:
    desk.write(
        "job.log", "UserWarning: errors may follow\n" + "{'loss': 1.0, 'grad_norm': 0.2}\n" * 30
    )
    assert desk.run("explain", "job.log").out == "no failure found\n"
    value = answer(desk, "job.log")
    assert (value["diagnoses"], value["unexplained"], value["failed"]) == ([], None, False)


@pytest.mark.usefixtures("no_slurm")
def test_what_no_rule_knows_is_shown_as_it_is(desk: Desk) -> None:
    desk.write("job.log", "reading\nERROR: \x1b[31mflux\x1b[0m\n")
    said = desk.run("explain", "job.log")
    assert said.out.splitlines()[0] == "the job failed, and no rule says why; its first error:"
    assert "    ERROR: flux" in said.out.splitlines()
    value = answer(desk, "job.log")
    assert value["diagnoses"] == []
    assert value["unexplained"]["lines"][-1] == "ERROR: flux"


@pytest.mark.usefixtures("no_slurm")
def test_tokens_do_not_get_out(desk: Desk) -> None:
    token = "hf_" + "aB3dE5fG7h" * 3 + "QwErT"
    desk.write(
        "job.log",
        'Traceback (most recent call last):\n  File "t.py", line 1\nacme.QuantumError: token'
        f" {token}\n",
    )
    said = desk.run("explain", "job.log")
    assert "acme.QuantumError" in said.out
    assert token not in said.out
    assert token not in json.dumps(answer(desk, "job.log"))


@pytest.mark.usefixtures("no_slurm")
def test_a_run_is_explained_by_its_name_and_by_nothing(desk: Desk) -> None:
    run_of(desk)
    desk.write("logs/error_sft_4300000001.log", OOM)
    desk.write("logs/output_sft_4300000001.log", "{'loss': 1.0}\n")
    for words in (("sft-1",), (), ("runs/sft-1",)):
        value = answer(desk, *words)
        assert [each["id"] for each in value["diagnoses"]] == ["cuda-oom"], words
        assert value["diagnoses"][0]["attempt"] == "4300000001.0"
    assert "read for run sft-1, job 4300000001: 2 files" in desk.run("explain").err


@pytest.mark.usefixtures("no_slurm")
def test_a_run_that_completed_has_nothing_to_explain(desk: Desk) -> None:
    run_of(desk, outcome="completed", status=0)
    desk.write("logs/error_sft_4300000001.log", OOM)
    assert desk.run("explain", "sft-1").out == "no failure found\n"


@pytest.mark.usefixtures("no_slurm")
def test_without_a_word_the_newest_run_is_meant(desk: Desk) -> None:
    run_of(desk)
    run_of(desk, "sft-2", outcome="completed", status=0, job="4300000002")
    started = desk.directory / "runs/sft-2/attempts/4300000002.0/start.json"
    started.write_text(started.read_text().replace('"at": ', '"at": 1'))
    desk.write("logs/error_sft_4300000001.log", OOM)
    assert answer(desk)["diagnoses"] == []
    said = " ".join(desk.run("explain").err.split())
    assert "run sft-2, job 4300000002" in said


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_without_a_word_the_newest_job_that_has_ended_is_meant(desk: Desk) -> None:
    jobs = []
    for name, last in (
        ("bad", "echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2; exit 1"),
        ("good", "true"),
        ("worse", "exit 3"),
    ):
        desk.write(f"{name}.sh", f"#!/bin/bash\n{last}\n")
        said = desk.run("submit", "--local", "--wait", f"{name}.sh")
        jobs += re.findall(r"submitted job (\d+)", said.out + said.err)[:1]
        value, words = answer(desk), " ".join(desk.run("explain").err.split())
        assert f"read for job {jobs[-1]} " in words
        assert [each["id"] for each in value["diagnoses"]] == (
            ["cuda-oom"] if name == "bad" else []
        )


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.parametrize(
    "words", [("nothing-here",), ("./no.log",), ("no/a.log", "no/b.log"), ("a.log", "b")]
)
def test_words_that_stand_for_nothing_are_refused(words: tuple[str, ...], desk: Desk) -> None:
    desk.refused("explain", *words)


@pytest.mark.usefixtures("no_slurm")
def test_with_nothing_here_it_says_what_to_give(desk: Desk) -> None:
    assert desk.refused("explain", code=1).lines[-1] == "hint: name a log: hpctrain explain FILE"


@pytest.mark.usefixtures("no_slurm")
def test_a_scheduler_that_is_down_keeps_nothing_from_being_read(desk: Desk) -> None:
    desk.program(
        PROGRAMS, 'echo "error: Unable to contact slurm controller (connect failure)" >&2; exit 1'
    )
    desk.write("slurm-77.out", OOM)
    said = desk.run("explain", "slurm-77.out")
    assert said.out.splitlines()[0] == "certain: cuda-oom"
    assert "note: " in said.err


@pytest.mark.usefixtures("no_slurm")
def test_a_record_of_another_time_is_left_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:

    now = time.time()
    young = JobRecord(
        job_id="77", scheduler="slurm", state="COMPLETED", started=now + 90_000, source="sacct"
    )
    notes: list[str] = []
    meant = explanation.ExplainedJob(files=(), title="x", job="77")
    monkeypatch.setattr(explanation.schedulers, "accounts", lambda *_args, **_more: [young])
    assert explanation._account(meant, explanation.JobContext(), [now], notes) is None
    assert "its record is left out" in notes[0]
    assert explanation._account(meant, explanation.JobContext(), [now + 95_000], notes) == young


# -- What explain knows of the config of a run that failed twice, of what was typed behind `-


CUDA_OOM = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been"
    " OOM Killed."
)
NEVER_ENOUGH = f"import sys\nsys.stderr.write({CUDA_OOM!r} + '\\n')\nsys.exit(137)\n"


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_a_second_failure_is_explained_with_the_numbers_of_the_second_start(desk: Desk) -> None:
    desk.write("train.py", NEVER_ENOUGH)
    desk.write(
        "config.yaml",
        "script: train.py\nlauncher: srun\nresources: {mem: 64G}\ntraining: {learning_rate:"
        " 1e-5}\n",
    )
    assert (
        desk.run(
            "submit",
            "--local",
            "--wait",
            "--run-id",
            "r1",
            "--",
            "--learning_rate=1e-3",
            "--max-steps",
            "7",
            "--bf16",
            "--lora_target_modules",
            "q_proj",
            "v_proj",
        ).code
        == 137
    )
    first = explanation.explained(["r1"])
    assert first.explanation.diagnoses[0].fix.text.startswith("--mem 64G -> 96G")
    assert first.case.config["training"] == {
        "learning_rate": "1e-3",
        "max_steps": "7",
        "bf16": "true",
        "lora_target_modules": ["q_proj", "v_proj"],
    }
    assert desk.run("resubmit", "r1", "--apply-fix", "--local", "--wait").code == 137
    second = explanation.explained(["r1"])
    assert second.explanation.diagnoses[0].fix.text.startswith("--mem 96G -> ")
    assert second.case.config["training"]["learning_rate"] == "1e-3"


def test_the_profile_that_the_config_names_says_what_the_partition_has() -> None:
    config = {"cluster": "leonardo", "resources": {"partition": "boost_usr_prod"}}
    known = explanation._with_profile(JobContext(config=config))
    assert known.extra["time_max_s"] == 24 * 3600
    assert known.gpu_memory_bytes is not None
    elsewhere = explanation._with_profile(JobContext(config={"cluster": "nowhere"}))
    assert elsewhere.extra == {"variables": {}}


# -- `hpctrain explain JOB` with the programs of Slurm 20.11, whose accounting does not know


RECORDED = Path(__file__).parents[1] / "scheduler" / "recorded" / "slurm-20.11"


def slurm(desk: Desk, *, remembers: bool = True) -> None:
    """Put the programs on PATH; a slurmctld that does not remember knows of no job any more,
    minutes after its end.
    """
    desk.program("sbatch sinfo sacctmgr", "exit 1")
    desk.program(
        "sacct",
        f'[ "$1" = --helpformat ] && exec cat {RECORDED}/helpformat.txt\nexec cat'
        f" {RECORDED}/sacct.txt",
    )
    shown = (
        f'[ "$1 $2" = "show job" ] && grep "^JobId=${{!#}} " {RECORDED}/scontrol.txt && exit 0'
        if remembers
        else ""
    )
    desk.program(
        "scontrol", f"{shown}\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1"
    )
    desk.program("squeue", f"exec cat {RECORDED}/squeue.txt" if remembers else "true")


def explained(desk: Desk, job: str) -> tuple[list[dict[str, Any]], str]:
    said = desk.run("explain", job, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)["diagnoses"], said.err


def test_a_log_that_could_not_be_opened(desk: Desk) -> None:
    """22.05 says 0:53 of it; 20.11 says 1:0, as of any script that fails."""
    slurm(desk)
    (only,), _ = explained(desk, "6009")
    assert (only["id"], only["certainty"]) == ("output-directory-missing", "likely")
    assert "/home/ada/train/nowhere" in only["cause"]


@pytest.mark.parametrize(
    "name",
    [
        "slurm-6010.out",
        "step-oom-6010.err",
        "logs/output_sft_6010.log",
    ],
)
def test_the_log_of_a_job_that_slurmctld_has_forgotten_is_looked_for_here(
    desk: Desk, name: str
) -> None:
    slurm(desk, remembers=False)
    for other in ("slurm-16010.out", "logs/output_sft_60101.log", "6010.py"):
        desk.write(
            other,
            "slurmstepd: error: *** JOB 16010 ON node13 CANCELLED AT 2026-11-22T08:16:56 DUE TO"
            " NODE FAILURE ***\n",
        )
    _, said = explained(desk, "6010")
    assert "where job 6010 writes is not known" in said
    desk.write(name, "srun: error: node13: task 0: Out Of Memory\n")
    (only,), said = explained(desk, "6010")
    assert (only["id"], only["evidence"][0]["line"]) == ("host-oom", 1)
    assert "is not known" not in said


# -- What `hpctrain explain` asks of Slurm: how long it waits where a log has been named, and


LOG = "ModuleNotFoundError: No module named 'flash_attn'\n"
PROGRAMS = "sbatch squeue sacct scontrol sinfo"


def test_a_log_is_read_soon_where_slurm_does_not_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's programs are installed, and there is no cluster, or a controller that is silent: what
    the log says does not wait for it.
    """
    monkeypatch.setattr(explanation, "_PATIENCE_S", 0.2)
    desk.program(PROGRAMS, "exec sleep 50")
    desk.write("slurm-77.out", LOG)
    said = desk.run("explain", "slurm-77.out")
    assert said.out.splitlines()[0] == "certain: python-module-missing"
    words = " ".join(said.err.split())
    assert "note: whether job 77 still runs, or how it ended, is not known" in words
    assert "did not answer within 0.2 s; hpctrain ps 77 asks again" in words
    assert all(len(line) <= 79 for line in said.err.splitlines()), (
        "a terminal would break the line in the middle of a word"
    )


# -- `hpctrain explain ID`: the list, a page, and a mistyped id


FINDINGS, DIAGNOSES = installed.findings(), pages.pages()
#: What is both has its two pages, one behind the other.
PAGES = {
    name: (
        "\n\n".join(page.rstrip() for pages in (FINDINGS, DIAGNOSES) if (page := pages.get(name)))
        + "\n"
    )
    for name in sorted({*FINDINGS, *DIAGNOSES})
}
#: One that is known to be there.
ID = "partition-unknown"


def test_a_run_of_that_name_comes_first(desk: Desk) -> None:
    (desk.directory / "runs" / ID).mkdir(parents=True)
    assert f"# {ID}" not in desk.run("explain", ID).out


def test_json(desk: Desk) -> None:
    assert json.loads(desk.run("explain", "--list", "--json").out) == {
        "schema": 1,
        "pages": [{"id": id_, "first_line": first_line(page)} for id_, page in PAGES.items()],
    }
    assert json.loads(desk.run("explain", "--json", ID).out) == {
        "schema": 1,
        "id": ID,
        "text": PAGES[ID],
    }
