"""Slurm itself as the oracle of our parsers and of how we quote: what it reads back is what counts."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpctrain.config.spec import JobSpec
from hpctrain.jobs import render
from hpctrain.slurm.notations import directives, hostlist, log_pattern, records, units
from hpctrain.util import installed
from tests.lab.conftest import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.extended]

#: Splits the answer of one scontrol into those of many questions.
SEPARATOR = "zzz-next-zzz"
HOSTILE = [
    "$(touch CANARY)",
    "`touch CANARY`",
    "'; touch CANARY; '",
    '"',
    "\\",
    "a\\",
    '\\"',
    "#x",
    "a #b",
    "%j %%",
    "a|b=c d",
    " lead",
    "é😀",
    "\u00a0x\u2003y",
    "--wrap=x",
    "x JobState=FAILED StdOut=/etc/passwd",
    "hetjob packjob",
    "()",
    "a" * 500,
]
printable = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=30
)


class Held:
    """Jobs that are submitted, asked about and cancelled, and never run."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder, self.ids = lab, folder, list[str]()

    def submit(
        self, *lines: str, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        script = self.folder / "job.sbatch"
        script.write_text("\n".join(["#!/bin/bash", *lines, ":", ""]))
        done = self.lab.run("sbatch", "--parsable", "--hold", *options, str(script), check=False)
        if done.returncode == 0:
            self.ids.append(records.parse_submission(done.stdout)[0])
        return done

    def records(self) -> dict[str, records.JobRecord]:
        asked = self.lab.run(
            "squeue", "-h", "-t", "all", "-j", ",".join(self.ids), "-o", records.SQUEUE_FORMAT
        )
        return {job.job_id: job for job in records.parse_squeue(asked.stdout)}


@pytest.fixture
def held(lab: Lab, tmp_path: Path) -> Iterator[Held]:
    jobs = Held(lab, tmp_path)
    yield jobs
    if jobs.ids:
        lab.run("scancel", *jobs.ids)


@pytest.mark.parametrize(
    "text",
    [
        "n[08-10]",
        "n[8-010]",
        "r[1-2]n[1-2]",
        "b,a,a",
        "n[1,1-2]",
        "[1-2]",
        "n[1-2][3-4]",
        "n[001-3]",
        "n[00-1]",
        " n1 , n2 ",
        "n[10-9]",
        "n[]",
        "n[a-b]",
    ],
)
def test_odd_hostlists(lab: Lab, text: str) -> None:
    asked = lab.run("scontrol", "show", "hostnames", text, check=False)
    if asked.returncode or "Invalid hostlist" in asked.stderr + asked.stdout:
        with pytest.raises(ValueError, match="hostlist"):
            hostlist.expand(text)
    else:
        assert hostlist.expand(text) == asked.stdout.split()


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.lists(printable, min_size=10, max_size=10))
def test_a_quoted_directive_is_read_back(held: Held, values: list[str]) -> None:
    expected = {}
    for value in [*values, *HOSTILE] if not held.ids else values:
        done = held.submit(
            f"#SBATCH --comment={directives.quote(value)}",
            f"#SBATCH --job-name={directives.quote(value[:60])} --time=5",
        )
        assert done.returncode == 0, (value, done.stderr)
        expected[held.ids[-1]] = value
    found = held.records()
    assert {job_id: found[job_id].comment for job_id in expected} == {
        job_id: value.strip() or None for job_id, value in expected.items()
    }
    assert {job_id: found[job_id].name for job_id in expected} == {
        job_id: value[:60].strip() for job_id, value in expected.items()
    }
    assert not (held.folder / "CANARY").exists()


# The same lines as in tests/scheduler/parse/test_directives.py, and what stands around them.
@pytest.mark.parametrize(
    "line",
    [
        " --comment=x",
        "--comment=glued",
        ' --comment="a b"',
        " --comment='a\\b'",
        ' --comment="a\\ b"',
        " --comment=a\\ b",
        ' --comment=a\\"b',
        " --comment=a#b",
        " --comment=a\\#b",
        ' --comment="a#b" #c',
        " --comment=a\u00a0b",
        " --comment=a\vb",
        ' --comment=""',
        "  # no option",
        ' --comment="open',
        " word",
        " -J x -t5 --comment two",
        " -HJ abc",
        "X --comment=x",
        " --comment=x\r",
        " -t",
    ],
)
@pytest.mark.parametrize(
    "before",
    ["", "\n \t\n# comment\n\t# indented", "echo", "\v"],
    ids=["first", "after-comments", "after-a-command", "after-vt"],
)
def test_directives_are_read_as_sbatch_reads_them(held: Held, before: str, line: str) -> None:
    done = held.submit(*before.split("\n"), f"#SBATCH{line}")
    script = (held.folder / "job.sbatch").read_bytes().decode()
    if done.returncode:
        with pytest.raises(ValueError, match=r"unmatched|not an option|DOS|needs a value"):
            directives.read(script)
        return
    values = directives.last_values(directives.read(script))
    job = held.records()[held.ids[-1]]
    assert job.name == values.get("job-name", "job.sbatch")
    assert (job.comment or "") == (values.get("comment") or "")
    assert values.get("time") is None or job.time_limit_s == units.parse_time(values["time"])


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "1:30:00",
        "90:30",
        "0-2:3",
        "0-2",
        "00:00:01",
        "1:90:00",
        "0-0:90:30",
        "UNLIMITED",
        "1h",
        "1:2:3:4",
        "-5:00",
    ],
)
def test_time_limits_are_what_slurm_makes_of_them(held: Held, text: str) -> None:
    """Slurm counts whole minutes, upwards."""
    done = held.submit(options=(f"--time={text}",))
    if "Invalid --time specification" in done.stderr:
        with pytest.raises(ValueError, match="not a time limit"):
            units.parse_time(text)
    elif done.returncode:
        assert "time limit" in done.stderr  # the partition's own limit: the form was understood
        units.parse_time(text)
    else:
        seconds = units.parse_time(text)
        assert seconds is not None
        assert held.records()[held.ids[-1]].time_limit_s == -(-seconds // 60) * 60


PATTERNS = [
    "out_%j.log",
    "%x-%A-%u.log",
    "x%%j_%5j_%q_%3x_%.log",
    "%%%j",
    "x%j%",
    r"\%j.log",
    r"\\r_%j.log",
    r"a\b_%j.log",
    "%10A",
]


def test_log_names_are_what_slurm_makes_of_them(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "p%j 'x'"
    folder.mkdir()
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/bash\n:\n")
    jobs = []
    for pattern in PATTERNS:
        # A backslash switches the replacements off for the directory too, so it stands outside.
        full = (
            f"{tmp_path}/{pattern}"
            if "\\" in pattern
            else f"{log_pattern.escape(str(folder))}/{pattern}"
        )
        options = (
            "--parsable",
            "--time=5",
            "--job-name=na.me",
            f"--chdir={tmp_path}",
            f"--output={full}",
        )
        jobs.append((lab.run("sbatch", *options, str(script)).stdout.strip(), full))
    for job_id, full in jobs:
        assert lab.finished(job_id)[job_id]["State"] == "COMPLETED"
        name = log_pattern.expand(full, {"j": job_id, "A": job_id, "x": "na.me", "u": "root"})
        assert Path(name).exists(), (
            full,
            name,
            sorted(path.name for path in [*folder.iterdir(), *tmp_path.iterdir()]),
        )


SPECS = [
    {
        "gpu_directive": directive,
        "launcher": launcher,
        "nodes": nodes,
        "gpus_per_node": gpus,
        "cpus_per_task": 2,
        **memory,
    }
    for directive, launcher, nodes, gpus, memory in [
        ("gres", "accelerate", 1, 1, {}),
        ("gpus-per-node", "torchrun", 2, 4, {"mem_bytes": 4 * 1024**3}),
        ("gpus", "srun", 2, 2, {"mem_bytes": 0}),
        ("none", "accelerate", 2, 4, {"mem_per_cpu_bytes": 100 * 1024**2}),
        ("gres", "srun", 1, 4, {"mem_bytes": 1024}),
    ]
]


@pytest.mark.parametrize("number", range(len(SPECS)))
def test_a_rendered_script_is_taken_and_shown_as_meant(held: Held, number: int) -> None:
    directory = held.folder / "$(touch CANARY); 'x' \"y\" #z %j a=b é"
    (directory / "logs").mkdir(parents=True)
    values = {
        "job_name": "pre-train_2.b",
        "chdir": str(directory),
        "time_s": 5400,
        "arguments": tuple(HOSTILE),
        "script": HOSTILE[0],
        "sbatch": (("comment", HOSTILE[2] + HOSTILE[4] + HOSTILE[8]), ("requeue", None)),
    }
    spec = JobSpec(**(values | SPECS[number]))  # type: ignore[arg-type]
    text = render.render(
        spec,
        installed.templates(),
        template=render.template_name(spec),
        version="1",
        directory=str(directory),
        arguments=tuple(HOSTILE),
    )
    script = held.folder / "job.sbatch"
    script.write_text(text)
    job_id = records.parse_submission(
        held.lab.run("sbatch", "--parsable", "--hold", str(script)).stdout
    )[0]
    held.ids.append(job_id)
    job = held.records()[job_id]
    assert (job.name, job.time_limit_s, job.n_nodes, job.comment) == (
        spec.job_name,
        5400,
        spec.nodes,
        dict(spec.sbatch)["comment"],
    )
    (fields,) = records.parse_scontrol_jobs(
        held.lab.run("scontrol", "show", "job", "-o", job_id).stdout
    )
    assert records.from_scontrol(fields).state == "PENDING"
    assert fields["WorkDir"] == str(directory)
    # scontrol itself reads %%j as %j here; slurmd does not
    # (test_log_names_are_what_slurm_makes_of_them).
    assert fields["StdOut"].endswith(f" a=b é/logs/output_pre-train_2.b_{job_id}.log")
    assert int(fields["NumTasks"]) == spec.nodes * spec.tasks_per_node
    asked = f"{fields.get('TresPerNode', '')} {fields.get('TresPerJob', '')}".split()
    assert [item.rpartition(":")[2] for item in asked] == {
        "none": [],
        "gpus": [str(spec.processes)],
    }.get(spec.gpu_directive, [str(spec.gpus_per_node)])
    assert not list(held.folder.rglob("CANARY"))
