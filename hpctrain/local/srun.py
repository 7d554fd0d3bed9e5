"""The `srun` shim of a local job: starts the tasks of all simulated nodes and exits with the
highest exit code.

Signals work as in Slurm (tested on 22.05): SIGUSR1, SIGUSR2 and others are forwarded to the tasks,
but not to their children; SIGTERM, SIGHUP and SIGQUIT end the step at once, by SIGKILL. SIGINT is
forwarded too, while the real srun waits for a second one. The options that lay out tasks are
supported. Options that only matter on a cluster (binding, memory, network) are accepted and have no
effect; an unknown option is an error, as in the real srun.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from hpctrain.local import processes
from hpctrain.local.jobs import LocalJob
from hpctrain.local.plan import Plan, node_environment
from hpctrain.util.text import is_number

#: Options that shape the step, with their short letters (srun(1)).
_SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "D": "chdir",
    "K": "kill-on-bad-exit",
    "l": "label",
    "u": "unbuffered",
    "W": "wait",
}
_NUMBERS = {"nodes", "ntasks", "ntasks-per-node", "cpus-per-task"}
#: Options that take no value, or one after `=` only.
_FLAGS = {
    "kill-on-bad-exit",
    "label",
    "unbuffered",
    "exact",
    "exclusive",
    "overlap",
    "verbose",
    "quiet",
    "pty",
}
#: Options with a value that have no effect on one machine.
_WITHOUT_EFFECT = {
    "chdir",
    "cpu-bind",
    "distribution",
    "export",
    "gpu-bind",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "het-group",
    "hint",
    "job-name",
    "mem",
    "mem-bind",
    "mem-per-cpu",
    "mpi",
    "open-mode",
    "threads-per-core",
    "time",
    "wait",
}
#: With --kill-on-bad-exit, seconds that the other tasks get after one has failed.
_GRACE_S = 5.0


class JobStep:
    """The tasks of one srun call."""

    def __init__(self, plan: Plan, options: dict[str, str]) -> None:
        self.plan, self.options = plan, options
        self.tasks: list[subprocess.Popen[bytes]] = []
        self.forced = False

    def run(self, command: list[str]) -> int:
        """Start all tasks, wait for them, and return srun's exit code."""
        for number in (
            signal.SIGUSR1,
            signal.SIGUSR2,
            signal.SIGALRM,
            signal.SIGPIPE,
            signal.SIGINT,
        ):
            signal.signal(number, self._forward)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._force)
        processes.adopt_orphans()
        plan = self.plan
        asked = {name: int(self.options[name]) for name in _NUMBERS & set(self.options)}
        tasks = asked.get("ntasks")
        nodes = asked.get("nodes", 1 if tasks == 1 else plan.nodes)
        if nodes > plan.nodes:
            _die(f"Requested {nodes} nodes, but the job has {plan.nodes}")
        if tasks is not None and tasks % nodes:
            _die(f"the local scheduler cannot spread {tasks} tasks evenly over {nodes} nodes")
        per_node = plan.tasks_per_node if tasks is None else tasks // nodes
        per_node = asked.get("ntasks-per-node", per_node)
        for rank in range(nodes * per_node):
            self._start(command, rank, nodes, per_node)
        worst = self._wait(per_node)
        processes.kill_descendants()
        return worst

    def _start(self, command: list[str], rank: int, nodes: int, per_node: int) -> None:
        node, local = divmod(rank, per_node)
        environment = {
            **os.environ,
            **node_environment(self.plan, node),
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NTASKS": str(nodes * per_node),
            "SLURM_NPROCS": str(nodes * per_node),
            "SLURM_NNODES": str(nodes),
            "SLURM_STEP_NUM_NODES": str(nodes),
            "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        }
        if "cpus-per-task" in self.options:
            environment["SLURM_CPUS_PER_TASK"] = self.options["cpus-per-task"]
        try:
            task = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                process_group=0,
                cwd=self.options.get("chdir"),
            )
        except OSError as error:
            _die(f"task {rank}: execve(): {command[0]}: {error.strerror}", 2)
        self.tasks.append(task)

    def _wait(self, per_node: int) -> int:
        worst, running, kill_at = 0, dict(enumerate(self.tasks)), float("inf")
        kills_others = self.options.get("kill-on-bad-exit", "0") != "0"
        while running:
            for rank, task in list(running.items()):
                code = task.poll()
                if code is None:
                    continue
                del running[rank]
                worst = max(worst, 128 - code if code < 0 else code)
                if code != 0:
                    what = signal.strsignal(-code) if code < 0 else f"Exited with exit code {code}"
                    _say(f"error: {self.plan.hosts[rank // per_node]}: task {rank}: {what}")
                    if kills_others and kill_at == float("inf"):
                        kill_at = time.monotonic() + _GRACE_S
                        self._forward(signal.SIGTERM)
            if self.forced or time.monotonic() > kill_at:
                self.forced, kill_at = False, float("inf")
                # Reaped above, where their exit codes are read.
                processes.send(processes.descendants(), signal.SIGKILL)
            time.sleep(0.02)
        return worst

    def _force(self, *_: object) -> None:
        _say("forcing job termination")
        self.forced = True

    def _forward(self, number: int, *_: object) -> None:
        for task in list(self.tasks):
            if task.returncode is None:
                task.send_signal(number)


def main() -> NoReturn:
    """Run a step of the local job that this process belongs to."""
    directory = os.environ.get("HPCTRAIN_LOCAL_JOB")
    plan = LocalJob(Path(directory)).plan() if directory else None
    if plan is None:
        _die("this is hpctrain's srun, and it only works inside a local job")
    options, command = parse(sys.argv[1:])
    if not command:
        _die("No command given to execute")
    sys.exit(JobStep(plan, options).run(command))


def parse(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options before the command, as long name to value ("" for a flag), and the
    command; parsed as by getopt_long.
    """
    options: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        else:
            name, value = _SHORT.get(word[1:2], word), word[2:].removeprefix("=")
            equals = value
        if name not in _FLAGS | _NUMBERS | _WITHOUT_EFFECT:
            _die(f"unrecognized option '{word}': the local scheduler does not know it")
        if not equals and name not in _FLAGS:
            if not rest:
                _die(f"option '{word}' requires an argument")
            value = rest.pop(0)
        if name in _NUMBERS and not (is_number(value) and int(value)):
            _die(f'Invalid numeric value "{value}" for --{name}.')
        options[name] = value
    return options, rest[1:] if rest[:1] == ["--"] else rest


def _say(message: str) -> None:
    # This may run in a signal handler that interrupted a write to sys.stderr.
    os.write(2, f"srun: {message}\n".encode())


def _die(message: str, code: int = 1) -> NoReturn:
    _say(f"error: {message}")
    sys.exit(code)


if __name__ == "__main__":
    main()
