"""Failures made for real, on a real Slurm, and explained: each job is a rendered script that runs
into its trouble by itself.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.conftest import Lab
from tests.lab.typist import HPCTRAIN
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.torch]

GLOO = """\
import datetime, os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=%(timeout)d))
rank = dist.get_rank()
import torch
for step in range(1, 1000):
    %(body)s
    dist.all_reduce(torch.ones(1))
    print(f"step {step} of 1000, loss 2.5", flush=True)
"""
#: A worker of a data loader that takes more memory with each batch, until the kernel ends it.
WORKER = """\
import torch
from torch.utils.data import DataLoader, Dataset

class Grows(Dataset):
    held = []
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        self.held.append(bytearray(30_000_000))
        return index

if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Grows(), num_workers=1, batch_size=2)):
        print(f"step {step} of 5000, loss 2.5", flush=True)
"""


@dataclass(frozen=True)
class Trouble:
    """A job that fails.

    Attributes:
        script: of the training; config: further keys; expect: ids, of which the first diagnosis has
            to have one; rank, node: it has to name; fix: what its fix has to hold; runs: the file
            system on which its runs lie.
    """

    script: str
    expect: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    rank: int | None = None
    node: str | None = None
    fix: str = ""
    runs: str = ""
    training: dict[str, Any] = field(default_factory=dict)


TROUBLES: dict[str, Trouble] = {
    "host-memory": Trouble(
        "held = []\nwhile True:\n    held.append(bytearray(20_000_000))\n",
        ("host-oom",),
        {"resources": {"mem": "150M"}},
        fix="150M",
    ),
    "time-limit": Trouble(
        "import time\nfor step in range(1000):\n    print(f'step {step} of 1000', flush=True);"
        " time.sleep(0.5)\n",
        ("time-limit",),
        {"resources": {"time": "1"}},
        fix="time",
    ),
    "hang": Trouble(
        GLOO % {"timeout": 600, "body": "if step == 30 and rank == 1: time.sleep(900)"},
        ("hang",),
        {
            "launcher": "torchrun",
            # Half of it in silence is a hang, and the start takes a minute on a busy machine.
            "resources": {"gpus": 2, "time": "4", "cpus_per_task": 2, "mem": "1500M"},
        },
    ),
    "killed-rank": Trouble(
        GLOO % {"timeout": 600, "body": "if step == 3 and rank == 1: os.kill(os.getpid(), 9)"},
        ("exit-killed", "rank-killed"),
        {"launcher": "torchrun", "resources": {"gpus": 2, "cpus_per_task": 2, "mem": "1500M"}},
        rank=1,
    ),
    "missing-file": Trouble(
        "open('data/corpus/part-00017.jsonl')\n",
        ("file-missing", "dataset-missing"),
        fix="part-00017",
    ),
    "offline": Trouble(
        "from transformers import AutoConfig\nAutoConfig.from_pretrained('Qwen/Qwen3-8B')\n",
        ("offline-hub",),
        {"resources": {"mem": "2000M"}},
    ),
    "import-error": Trouble(
        "import flash_attn_of_another_world\n",
        ("python-module-missing",),
        fix="flash_attn_of_another_world",
    ),
    "bad-module": Trouble(
        "",
        ("module-unknown",),
        {"environment": {"modules": ["cuda/99.9"]}, "launch": {"shebang": "#!/bin/bash -l"}},
        fix="cuda/99.9",
    ),
    "full-disk": Trouble(
        "open('small/model.bin', 'wb').write(bytes(5_000_000))\n", ("disk-full", "local-disk-full")
    ),
    "port-taken": Trouble(
        "import torch.distributed as dist\ndist.init_process_group('gloo',"
        " init_method='tcp://127.0.0.1:%(port)d', rank=0, world_size=1)\n",
        ("address-in-use",),
        {"resources": {"mem": "1500M"}},
        fix="%(port)d",
    ),
    "unequal-world": Trouble(
        "import datetime, os\nimport torch.distributed as dist\nsize = 2 + (os.environ['RANK'] =="
        " '0')\ndist.init_process_group('gloo', init_method=f\"tcp://127.0.0.1:{21000 +"
        " int(os.environ['SLURM_JOB_ID']) % 9000}\", rank=int(os.environ['RANK']), world_size=size,"
        " timeout=datetime.timedelta(seconds=8))\n",
        ("world-size-unequal", "rendezvous-timeout"),
        {"resources": {"gpus": 2, "mem": "3000M"}},
    ),
    "killed-worker": Trouble(
        WORKER, ("host-oom",), {"resources": {"mem": "1200M", "cpus_per_task": 2}}, fix="1200M"
    ),
    "one-rank-too-big": Trouble(
        GLOO
        % {
            "timeout": 600,
            "body": "held = bytearray(2_000_000_000) if step == 3 and rank == 1 else b''",
        },
        ("host-oom",),
        {"launcher": "torchrun", "resources": {"gpus": 2, "cpus_per_task": 2, "mem": "1500M"}},
        rank=1,
        fix="1500M",
    ),
    "full-save": Trouble(
        "",
        ("disk-full", "checkpoint-disk-full"),
        {"script": None, "resources": {"mem": "2500M"}},
        training={"save_steps": 5, "save_strategy": "steps"},
        runs="tiny",
    ),
    "requeue-loop": Trouble(
        "import sys\nprint('saves and stops',"
        " flush=True)\nopen(__import__('os').environ['HPCTRAIN_RUN_DIR'] + '/attempts/' +"
        " __import__('os').environ['HPCTRAIN_ATTEMPT'] + '/exit', 'w').write('85"
        " deadline')\nsys.exit(85)\n",
        ("requeue-loop",),
        {"restart": {"mode": "requeue", "max": 2}},
    ),
    "nan": Trouble(
        "",
        ("nan-loss",),
        {"script": None, "resources": {"mem": "2500M"}},
        training={"learning_rate": 1e30},
    ),
}

#: What `hpctrain resubmit --apply-fix` makes work: the script goes on from where it was.
MENDED: dict[str, Trouble] = {
    "mended-memory": Trouble(
        "held = bytearray(250_000_000)\nheld[::4096] = b'x' * len(held[::4096])\nprint('enough')\n",
        ("host-oom",),
        {"resources": {"mem": "200M"}},
        fix="resources.mem",
    ),
    "mended-time": Trouble(
        "import os, time\nplace = os.environ['HPCTRAIN_RUN_DIR'] + '/step'\n"
        "done = int(open(place).read()) if os.path.exists(place) else 0\n"
        "for step in range(done + 1, 121):\n    print(f'step {step} of 120', flush=True)\n"
        "    time.sleep(1)\n    open(place + '.new', 'w').write(str(step))\n"
        "    os.replace(place + '.new', place)\n",
        ("time-limit",),
        {"resources": {"time": "1"}},
        fix="resources.time",
    ),
    # The lab has no GPU that could break: the job says of its first node what a broken one says.
    "mended-node": Trouble(
        "import os\nnode = os.environ['SLURMD_NODENAME']\n"
        "place = os.environ['HPCTRAIN_RUN_DIR'] + '/broken'\n"
        "if not os.path.exists(place):\n    open(place, 'w').write(node)\n"
        "if open(place).read() == node:\n"
        "    raise RuntimeError('CUDA error: uncorrectable ECC error encountered')\n"
        "print('enough')\n",
        ("ecc",),
        fix="sbatch.exclude",
    ),
}


@dataclass(frozen=True)
class Job:
    """A job that was submitted."""

    id: str
    project: Path
    environment: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [HPCTRAIN, *words],
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def explained(self) -> tuple[dict[str, Any], str]:
        """Return what is said, as JSON and as text; both are asked for at once."""
        asked = [
            subprocess.Popen(
                [HPCTRAIN, "explain", self.id, *more],
                cwd=self.project,
                env=self.environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for more in (["--json"], [])
        ]
        said, shown = (each.communicate(timeout=600)[0] for each in asked)
        assert [each.returncode for each in asked] == [0, 0], said + shown
        return json.loads(said), shown

    def logs(self) -> str:
        return "\n".join(
            f"--- {path}\n{path.read_text(errors='replace')}"
            for path in sorted((self.project / "logs").glob(f"*_{self.id}.log"))
        )


def submitted(
    name: str, trouble: Trouble, folder: Path, env: dict[str, str], values: dict[str, Any]
) -> Job:
    folder.mkdir()
    asked = {
        "cpus_per_task": 1,
        "mem": "500M",
        "time": "10",
        "partition": "boost_usr_prod",
        "account": "proj_b",
        "gpus": 1,
    }
    config = {
        "job_name": name,
        "launcher": "srun",
        "script": "train.py",
        "restart": {"mode": "off"},
        **trouble.config,
    }
    config["resources"] = asked | trouble.config.get("resources", {})
    config["training"] = trouble.training
    script = trouble.script % values if "%(" in trouble.script else trouble.script
    (folder / "train.py").write_text(script)
    if config["script"] is None:
        del config["script"]
        config["training"] |= {
            "model_name_or_path": values["model"],
            "dataset_name": values["dataset"],
            "max_steps": 20,
            "logging_steps": 1,
            "per_device_train_batch_size": 2,
            "max_length": 32,
            "eval_strategy": "no",
        }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "small").symlink_to(values["small"])
    if trouble.runs:
        (folder / "runs").symlink_to(values[trouble.runs])
    environment = {
        **env,
        "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    environment["ACCELERATE_USE_CPU"] = "true"
    environment["HPCTRAIN_STATE_DIR"] = str(folder.parent / "state")
    done = subprocess.run(
        [HPCTRAIN, "submit", "--no-check", "--parsable"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return Job(done.stdout.strip(), folder, environment)


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Return file systems: `small` with room for a megabyte, `tiny` for what a run writes, and not
    for a checkpoint.
    """
    places = {name: tmp_path_factory.mktemp(name) for name in ("small", "tiny")}
    for name, size in (("small", "1m"), ("tiny", "700k")):
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(places[name])], check=True
        )
    yield places
    for place in places.values():
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def jobs(
    lab: Lab,
    tmp_path_factory: pytest.TempPathFactory,
    disks: dict[str, Path],
    taken_port: int,
) -> dict[str, Job]:
    """Submit all at once: most of their time is a minute's limit, and the lab has room for several."""
    folder = tmp_path_factory.mktemp("explain")
    made = subprocess.run(
        [HPCTRAIN, "prepare", "--demo", str(folder / "demo")],
        env=lab.env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert made.returncode == 0, made.stderr
    values = {
        "port": taken_port,
        **disks,
        "model": str(folder / "demo/model"),
        "dataset": str(folder / "demo/dataset"),
    }
    return {
        name: submitted(name, trouble, folder / name, lab.env, values)
        for name, trouble in {**MENDED, **TROUBLES}.items()
    }


@pytest.fixture(scope="module")
def mended(jobs: dict[str, Job], lab: Lab) -> dict[str, tuple[dict[str, Any], Job]]:
    """Return what was changed, and the jobs that go on: they run while the others are explained."""
    found = {}
    for name, trouble in MENDED.items():
        job = jobs[name]
        lab.finished(job.id)
        first = job.explained()[0]["diagnoses"][0]
        assert first["id"] in trouble.expect, job.logs()
        (run,) = (
            path.name for path in (job.project / "runs").iterdir() if not path.name.startswith(".")
        )
        done = job.run("resubmit", run, "--apply-fix", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        said = json.loads(done.stdout)
        found[name] = (said, Job(said["jobs"][0], job.project, job.environment))
    return found


@pytest.mark.parametrize("name", MENDED)
def test_a_fix_is_applied(name: str, mended: dict[str, tuple[dict[str, Any], Job]]) -> None:
    (fixed,) = mended[name][0]["fixes"]
    assert [change["key"] for change in fixed["changes"]] == [MENDED[name].fix]


#: A hang is one only after minutes without a step.
EACH = [
    pytest.param(name, marks=pytest.mark.extended if name == "hang" else ()) for name in TROUBLES
]


@pytest.mark.parametrize("name", EACH)
def test_a_failure_is_explained(name: str, jobs: dict[str, Job], lab: Lab, taken_port: int) -> None:
    job, trouble = jobs[name], TROUBLES[name]
    lab.finished(job.id)
    answer, shown = job.explained()
    found = answer["diagnoses"]
    said = json.dumps(found, indent=1) + job.logs()
    assert found, said
    first = found[0]
    assert first["id"] in trouble.expect, said
    assert first["evidence"], said
    assert first["fix"].strip(), said
    wanted = trouble.fix % {"port": taken_port} if "%(" in trouble.fix else trouble.fix
    assert wanted in json.dumps(first), said
    if trouble.rank is not None:
        assert first["rank"] == trouble.rank, said
    assert first["id"] in shown
    typed = tuple(
        one["fix"].splitlines()[0 if one["changes"] else -1] for one in found if one["fix"]
    )
    # Neither what is typed nor a long path is broken.
    lines = (line for line in shown.splitlines() if " " in line.strip())
    assert all(len(line) <= 80 or line.endswith(typed) for line in lines), shown


def explained(lab: Lab, folder: Path, word: str) -> dict[str, Any]:
    """Return what is said of a job, or a file, of nobody's project."""
    environment = {**lab.env, "HPCTRAIN_STATE_DIR": str(folder / "state" / word)}
    done = subprocess.run(
        [HPCTRAIN, "explain", word, "--json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_a_job_that_somebody_cancelled(lab: Lab, tmp_path: Path) -> None:
    job = lab.submit("echo begins; sleep 500", tmp_path, "--mem=50", "--time=10")
    wait_until((tmp_path / f"{job}.out").exists)
    lab.run("scancel", job)
    lab.finished(job)
    said = explained(lab, tmp_path, job)
    assert [each["id"] for each in said["diagnoses"]] == ["cancelled-by-user"]


def test_jobs_that_would_wait_for_ever(lab: Lab, tmp_path: Path) -> None:
    """Why they wait is in the record alone: they have written nothing."""
    failed = lab.submit("exit 3", tmp_path, "--mem=50", "--time=10")
    lab.finished(failed)
    waiting = {
        "dependency-never": lab.submit(
            "true", tmp_path, "--mem=50", "--time=10", f"--dependency=afterok:{failed}"
        ),
        "held-by-user": lab.submit("true", tmp_path, "--mem=50", "--time=10", "--hold"),
    }
    try:
        for expected, job in waiting.items():
            reason = ("squeue", "-h", "-j", job, "-o", "%r")
            wait_until(
                lambda ask=reason: lab.run(*ask).stdout.strip() not in ("None", "Dependency")
            )
            said = explained(lab, tmp_path, job)
            found = said["diagnoses"]
            assert [each["id"] for each in found] == [expected], said
            assert job in found[0]["fix"], found
    finally:
        lab.run("scancel", *waiting.values())


def test_a_job_that_did_well_is_left_alone(lab: Lab, tmp_path: Path) -> None:
    body = (
        "echo 'UserWarning: this DataLoader will create 8 worker processes'; echo 'Killed the old"
        " server'; exit 0"
    )
    job = lab.submit(body, tmp_path, "--mem=50", "--time=10")
    lab.finished(job)
    said = explained(lab, tmp_path, job)
    assert said["diagnoses"] == []


@pytest.mark.parametrize("name", MENDED)
def test_with_its_fix_the_job_completes(
    name: str, mended: dict[str, tuple[dict[str, Any], Job]], lab: Lab
) -> None:
    again = mended[name][1]
    assert lab.finished(again.id)[again.id]["State"] == "COMPLETED", again.logs()
    assert again.explained()[0]["diagnoses"] == []
