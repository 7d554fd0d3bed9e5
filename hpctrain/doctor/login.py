"""The login node's probes, each in its own thread with a time limit, and their results."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hpctrain.clusters import discover, load
from hpctrain.doctor import environment
from hpctrain.doctor import login_evaluation as evaluate
from hpctrain.doctor.environment import run_limited
from hpctrain.doctor.facts import DoctorContext, PlaceFacts, ProbeResult, SlurmFacts
from hpctrain.errors import HpctrainError
from hpctrain.util.file_systems import file_system, quota_of


@dataclass(frozen=True, slots=True)
class Probe:
    """One check of this machine: `gather` may take `limit_s` seconds; `evaluate` turns its facts
    into results, in report order.
    """

    name: str
    limit_s: float
    gather: Callable[[DoctorContext], Any]
    evaluate: Callable[[Any, DoctorContext], list[ProbeResult]]


def run_probes(
    context: DoctorContext, probes: tuple[Probe, ...] | None = None
) -> Iterator[ProbeResult]:
    """Yield the results in the order of `probes`, each as soon as it and all earlier ones are
    available.

    All probes run concurrently, because most wait for a program or a file server. A probe that
    exceeds its limit is abandoned: a thread that waits for a dead file server cannot be stopped,
    but does not keep the process alive. If the caller stops early, all programs that the probes
    have started are killed.
    """
    began = time.monotonic()
    running = [(probe, _begin(probe, context)) for probe in probes or PROBES]
    try:
        for probe, answer in running:
            left = began + probe.limit_s - time.monotonic()
            try:
                facts = answer.result(max(0.0, left))
            except TimeoutError:
                sentence = f"did not end within {probe.limit_s:.0f} s"
                yield ProbeResult(probe=probe.name, sentence=sentence, unknown=True)
            except Exception as error:  # a failing probe must not hide the others
                sentence = f"failed: {str(error) or type(error).__name__}"
                yield ProbeResult(probe=probe.name, sentence=sentence, unknown=True)
            else:
                yield from probe.evaluate(facts, context)
    finally:
        if not all(answer.done() for _, answer in running):
            _kill_children()


def _begin(probe: Probe, context: DoctorContext) -> Future[Any]:
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(probe.gather(context))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=f"probe {probe.name}", daemon=True).start()
    return answer


def _kill_children() -> None:
    """Kill all descendants at once: while the parents live, none has been reparented."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.Error:
            continue


# -- probes ----------------------------------------------------------------------------------------


def python(_context: DoctorContext) -> str:
    """Return the interpreter that runs hpctrain."""
    source = sys.prefix
    if (Path(sys.prefix) / "conda-meta").is_dir():
        source = f"the conda environment {sys.prefix}"
    elif sys.prefix != sys.base_prefix:
        source = f"the virtual environment {sys.prefix}, made from {sys.base_prefix}"
    return f"hpctrain runs on Python {platform.python_version()} of {source}"


def slurm(_context: DoctorContext) -> SlurmFacts:
    """Return version, partitions and accounts from Slurm."""
    if shutil.which("sinfo") is None:
        return SlurmFacts(installed=False, detected=_detected(None))
    try:
        version = run_limited(["sinfo", "--version"], timeout=10).stdout.strip() or None
        live = discover.discover(timeout=20.0)
    except HpctrainError as error:
        said = error.details[-1].strip() if error.details else error.what
        return SlurmFacts(installed=True, silent=said, detected=_detected(None))
    return SlurmFacts(
        installed=True,
        version=version,
        silent=(
            None
            if live.partitions
            else (live.silent[0] if live.silent else "sinfo lists no partition")
        ),
        partitions=tuple(partition.name for partition in live.partitions or ()),
        accounts=live.accounts,
        detected=_detected(live.cluster_name),
    )


def _detected(cluster_name: str | None) -> tuple[str, ...]:
    hosts = (os.uname().nodename,)
    return tuple(load.detect(os.environ, cluster_name=cluster_name, hosts=hosts))


def quotas(context: DoctorContext) -> list[PlaceFacts]:
    """Return the space and quota available to the user where the job writes."""
    found = []
    for name, path in (("the job's directory", context.spec.chdir), ("home", str(Path.home()))):
        system = file_system(path)
        quota = quota_of(system) if system is not None else None
        found.append(PlaceFacts(name=name, path=path, system=system, quota=quota))
    return found


PROBES: tuple[Probe, ...] = (
    Probe(
        "python",
        10.0,
        python,
        lambda sentence, _context: [ProbeResult(probe="python", sentence=sentence)],
    ),
    Probe(
        "slurm",
        75.0,
        slurm,
        lambda facts, context: [
            evaluate.cluster(facts, context),
            evaluate.slurm(facts, context),
        ],
    ),
    Probe(
        "modules",
        environment.ENVIRONMENT_S + 15,
        environment.modules,
        lambda facts, context: [evaluate.modules(facts, context)],
    ),
    Probe(
        "environment",
        environment.ENVIRONMENT_S + 15,
        environment.environment,
        lambda facts, context: [
            evaluate.environment(facts, context),
            evaluate.packages(facts, context),
            evaluate.torch_build(facts, context),
        ],
    ),
    Probe("quotas", 30.0, quotas, lambda facts, _context: [evaluate.quotas(facts)]),
    Probe(
        "offline",
        environment.OFFLINE_S + 15,
        environment.offline,
        lambda facts, context: [evaluate.offline(facts, context)],
    ),
)
