"""Faults injected into real jobs: each run must end with the weights of an uninterrupted one,
whatever was done to it.

    python tests/chaos/campaign.py [--short] [--minutes N] [--only NAME,...] [--out DIRECTORY]

Runs in the rough lab (HPCTRAIN_LAB_NUMBER=2 tests/lab/lab up), whose nodes may die. Exit status: 0
all is well, 1 findings or faults that were not reached in time, 3 the lab cannot run on this
machine.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import survival  # type: ignore[import-not-found]  # tests/training/survival.py
from faults import (
    FAULTS,
    MAX_STEPS,
    ON_SMALL_DISK,
    SAVE_STEPS,
    Fault,
    Verdict,
    judged,
    small_disk,
)
from rough_lab import LabError, RoughLab
from watched_run import GaveUpError, Run

#: Runs at the same time: they mostly sleep, and their starts take turns on the cores.
TOGETHER = 4
CONFIG = f"""\
job_name: chaos
resources: {{gpus_per_node: 1, time: 00:20:00, cpus_per_task: 2, mem: 1500M, partition: boost_usr_prod, account: proj_b}}
training:
  model_name_or_path: model
  dataset_name: dataset
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 2
  learning_rate: 0.01
  max_length: 32
  max_steps: {MAX_STEPS}
  logging_steps: 1
  eval_strategy: "no"
  save_strategy: steps
  save_steps: {SAVE_STEPS}
  save_total_limit: 2
  memory_every: 0
  warmup_steps: 3
  gradient_checkpointing: false
  ddp_find_unused_parameters: false
  report_to: none
  seed: 7
"""


class Campaign:
    """A project directory in a lab, its uninterrupted runs, and the faults.

    Args:
        directory: everything is made in it.
        seconds: when to stop beginning new faults.
        lab: the number of the lab.
    """

    def __init__(self, directory: Path, seconds: float, lab: int = 2) -> None:
        self.ends = time.monotonic() + seconds
        self.project = directory / "project"
        self.lab = RoughLab(directory / "state", lab)
        self.weights: dict[int, str] = {}
        self.tag = f"{int(time.time()):x}"

    def prepare(self) -> None:
        self.project.mkdir(parents=True)
        survival.make(self.project)
        (self.project / "config.yaml").write_text(CONFIG)

    def run(self, name: str, nodes: int, patience_s: float, **more: object) -> Run:
        deadline = time.monotonic() + patience_s
        return Run(self.lab, self.project, name, f"{name}-{self.tag}", deadline, nodes, **more)  # type: ignore[arg-type]

    def uninterrupted(self, nodes: int) -> str:
        """Train without any fault, and return the digest of the weights.

        Raises:
            GaveUpError: not even that works.
        """
        run = self.run(f"calm{nodes}", nodes, 420.0, pace_s=0.0)
        run.submit()
        run.carry(most=0)
        return run.weights()

    def suffer(self, fault: Fault) -> Verdict:
        began = time.monotonic()
        run = self.run(
            fault.name, fault.nodes, fault.patience_s, options=fault.options, pace_s=fault.pace_s
        )
        wrong: list[str] = []
        with ExitStack() as stack:
            if fault.name in ON_SMALL_DISK:
                small_disk(run)
                stack.callback(
                    subprocess.run, ["umount", "--lazy", str(run.checkpoints)], check=False
                )
            try:
                run.submit()
                fault.strike(run)
                run.carry()
            except (GaveUpError, LabError, KeyError, OSError, subprocess.SubprocessError) as error:
                wrong.append(f"{type(error).__name__}: {error}")
                self.lab.run("scancel", *run.jobs, check=False)
            left = run.leftovers()
        equal = run.weights() == self.weights[fault.nodes]
        attempts, lost = len(run.attempts()), run.steps_lost()
        wrong += judged(fault, run.humans, attempts, lost, equal=equal)
        wrong += [f"left behind: {thing}" for thing in left]
        return Verdict(
            fault=fault.name,
            attempts=attempts,
            humans=run.humans,
            lost=lost,
            seconds=round(time.monotonic() - began, 1),
            wrong=tuple(wrong),
            notes=tuple(run.notes),
        )

    def go(self, faults: list[Fault]) -> tuple[list[Verdict], list[str]]:
        """Inject the faults while there is time; return what came of them, and the names of those
        that were not reached.
        """
        with ThreadPoolExecutor(2) as pool:
            kinds = sorted({fault.nodes for fault in faults})
            self.weights = dict(zip(kinds, pool.map(self.uninterrupted, kinds), strict=True))
        verdicts: list[Verdict] = []
        skipped: list[str] = []

        def one(fault: Fault) -> None:
            if time.monotonic() > self.ends:
                skipped.append(fault.name)
                return
            verdict = self.suffer(fault)
            verdicts.append(verdict)
            say(
                f"{verdict.fault}: {'; '.join(verdict.wrong) or 'ok'} ({verdict.lost} steps lost,"
                f" {verdict.seconds:.0f} s){''.join(f'; {note}' for note in verdict.notes)}"
            )

        # The longest one first, so that the others fill the time that it takes.
        together = sorted(
            (fault for fault in faults if not fault.alone), key=lambda fault: -fault.patience_s
        )
        with ThreadPoolExecutor(TOGETHER) as pool:
            list(pool.map(one, together))
        for fault in faults:
            if fault.alone:
                one(fault)
        order = [fault.name for fault in faults]
        return sorted(verdicts, key=lambda verdict: order.index(verdict.fault)), skipped


def say(text: str) -> None:
    sys.stderr.write(f"chaos: {text}\n")
    sys.stderr.flush()


def chosen(options: argparse.Namespace) -> list[Fault]:
    """Return the faults to inject.

    Raises:
        SystemExit: a name that no fault has.
    """
    names = (
        set(options.only.split(","))
        if options.only
        else {fault.name for fault in FAULTS if fault.short or not options.short}
    )
    if unknown := names - {fault.name for fault in FAULTS}:
        raise SystemExit(
            f"error: no fault {', '.join(sorted(unknown))}; there are"
            f" {', '.join(fault.name for fault in FAULTS)}"
        )
    return [fault for fault in FAULTS if fault.name in names]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Inject faults into real Slurm jobs, and see what they cost."
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=40,
        help="begin no fault after this time (default: %(default)s)",
    )
    parser.add_argument("--short", action="store_true", help="a few of them, for CI")
    parser.add_argument("--only", help="names of faults, with commas")
    parser.add_argument(
        "--out",
        type=Path,
        help="directory of report.json and of the runs; default: a temporary one",
    )
    options = parser.parse_args()
    faults = chosen(options)
    directory = (options.out or Path(tempfile.mkdtemp(prefix="hpctrain-chaos-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(directory, options.minutes * 60)
    try:
        campaign.prepare()
        say(f"{len(faults)} faults, at most {options.minutes:g} minutes; {directory}")
        verdicts, skipped = campaign.go(faults)
    except (GaveUpError, LabError) as error:
        sys.stderr.write(f"error: not even a run without any fault ends as it should: {error}\n")
        return 1
    report = {"skipped": skipped, "faults": [asdict(verdict) for verdict in verdicts]}
    (directory / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    failed = [verdict.fault for verdict in verdicts if verdict.wrong]
    say(
        f"{len(verdicts)} faults; failed: {failed or 'none'}; no time left for: {skipped or 'none'}"
    )
    good = not skipped and not failed
    if good and options.out is None:
        shutil.rmtree(directory)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
