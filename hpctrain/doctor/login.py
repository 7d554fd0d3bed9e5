"""The probes of a login node, each in a thread of its own with its own time limit, and what they come to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from hpctrain.doctor.facts import Case
from hpctrain.doctor.judge import environment as judge_environment
from hpctrain.doctor.judge import surroundings as judge
from hpctrain.doctor.probes import cluster, environment, modules, offline, storage
from hpctrain.doctor.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Probe:
    """One look at this machine: `gather` may take `limit_s` seconds; `judge` turns facts and case into verdicts, in order of the report."""

    name: str
    limit_s: float
    gather: Callable[[Case], Any]
    judge: Callable[[Any, Case], list[Verdict]]


PROBES: tuple[Probe, ...] = (
    Probe("python", 10.0, environment.python, lambda facts, _case: [judge_environment.python(facts)]),
    Probe("slurm", cluster.LIMIT_S + 15, cluster.slurm, lambda facts, case: [judge.cluster(facts, case), judge.slurm(facts, case)]),
    Probe("modules", modules.LIMIT_S + 15, modules.modules, lambda facts, case: [judge.modules(facts, case)]),
    Probe(
        "environment",
        environment.LIMIT_S + 15,
        environment.environment,
        lambda facts, case: [
            judge_environment.environment(facts, case),
            judge_environment.packages(facts, case),
            judge_environment.torch_build(facts, case),
            judge_environment.inputs(facts, case),
        ],
    ),
    Probe("caches", storage.LIMIT_S, storage.caches, lambda facts, _case: [judge.caches(facts)]),
    Probe("quotas", storage.LIMIT_S, storage.quotas, lambda facts, _case: [judge.quotas(facts)]),
    Probe("offline", offline.LIMIT_S + 15, offline.offline, lambda facts, case: [judge.offline(facts, case)]),
)


def look(case: Case, probes: tuple[Probe, ...] = PROBES) -> Iterator[Verdict]:
    """Yield the verdicts in the order of `probes`, each as soon as it and those before it are known.

    All probes run at once: most of them wait for a program or a file server. One that is not done at its limit is given up (a thread that
    waits for a dead file server cannot be stopped, and does not keep the process alive). When the caller stops early, all programs
    that the probes have started are killed.
    """
    running = [_Running(probe, case) for probe in probes]
    finished = False
    try:
        for each in running:
            yield from each.verdicts()
        finished = True
    finally:
        if not finished or any(each.is_alive() for each in running):
            _kill_children()


class _Running(threading.Thread):
    """One probe under way."""

    def __init__(self, probe: Probe, case: Case) -> None:
        super().__init__(name=f"probe {probe.name}", daemon=True)
        self._probe, self._case = probe, case
        self._facts: Any = None
        self._error: Exception | None = None
        self._end = time.monotonic() + probe.limit_s
        self.start()

    def run(self) -> None:
        try:
            self._facts = self._probe.gather(self._case)
        except Exception as error:  # a probe that breaks on an odd machine must not hide the others
            self._error = error

    def verdicts(self) -> list[Verdict]:
        """Wait for the facts, no longer than the limit, and judge them."""
        while self.is_alive() and (left := self._end - time.monotonic()) > 0:
            self.join(min(left, 0.2))  # short, so that Ctrl-C is heard
        if self.is_alive():
            return [Verdict(probe=self._probe.name, sentence=f"did not end within {self._probe.limit_s:.0f} s", unknown=True)]
        if self._error is not None:
            words = str(self._error) or type(self._error).__name__
            return [Verdict(probe=self._probe.name, sentence=f"could not look: {words}", unknown=True)]
        return self._probe.judge(self._facts, self._case)


def _kill_children() -> None:
    """Kill what the probes have started, and what that has started: while its parents live, nothing has been reparented yet."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.Error:
            continue
