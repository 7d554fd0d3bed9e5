"""The stand-in for `srun` in a local job: starts the tasks of every played node on this machine, and ends with the worst exit code.

Signals as with the real one (tried on Slurm 22.05): SIGUSR1, SIGUSR2 and others are forwarded to the tasks, and to nothing that these
have started; SIGTERM, SIGHUP and SIGQUIT end the step at once, by SIGKILL; of SIGINT, the second within a second reaches the tasks.
Understands the options that scripts use to lay out tasks. Options that only mean something on a cluster (binding, memory, network)
are taken and have no effect; an unknown one is an error, as with the real srun.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, NoReturn, TextIO

from hpctrain.scheduler.local import plan as planning
from hpctrain.scheduler.local import tree
from hpctrain.scheduler.state_dir import read_json

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
#: Options that take no value, or one behind `=` only.
_FLAGS = {"kill-on-bad-exit", "label", "unbuffered", "exact", "exclusive", "overlap", "verbose", "quiet", "pty"}
#: Options with a value that mean nothing on one machine.
_WITHOUT_EFFECT = {
    "chdir", "cpu-bind", "distribution", "export", "gpu-bind", "gpus", "gpus-per-node", "gpus-per-task", "gres", "gres-flags", "het-group",
    "hint", "job-name", "mem", "mem-bind", "mem-per-cpu", "mpi", "open-mode", "threads-per-core", "time", "wait",
}  # fmt: skip
#: Seconds that the other tasks get after one has failed and --kill-on-bad-exit is set.
_GRACE_S = 5.0


class Step:
    """The tasks of one srun call."""

    def __init__(self, plan: planning.Plan, options: dict[str, str]) -> None:
        self.plan = plan
        self.options = options
        self.tasks: list[subprocess.Popen[bytes]] = []
        self.threads: list[threading.Thread] = []
        self.forced = False
        self.interrupts = (float("-inf"), float("-inf"))  # when the last SIGINT came, and when one was last sent on

    def run(self, command: list[str]) -> int:
        """Start all tasks, wait for them, and return the exit code that srun would."""
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPIPE):
            signal.signal(number, self._forward)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._force)
        signal.signal(signal.SIGINT, self._interrupt)
        tree.adopt_orphans()
        nodes, per_node = self._layout()
        for node in range(nodes):
            for local in range(per_node):
                self._start(command, node, local, nodes, per_node)
        worst = self._wait(per_node)
        tree.kill_descendants()
        for thread in self.threads:
            thread.join(timeout=5)
        return worst

    def _layout(self) -> tuple[int, int]:
        plan = self.plan
        asked = {name: int(self.options[name]) for name in _NUMBERS & set(self.options)}
        tasks = asked.get("ntasks")
        nodes = asked.get("nodes", 1 if tasks == 1 else plan.nodes)
        if nodes > plan.nodes:
            _die(f"Requested {nodes} nodes, but the job has {plan.nodes}")
        if tasks is not None and tasks % nodes:
            _die(f"the local scheduler cannot spread {tasks} tasks evenly over {nodes} nodes")
        return nodes, asked.get("ntasks-per-node", plan.tasks_per_node if tasks is None else tasks // nodes)

    def _start(self, command: list[str], node: int, local: int, nodes: int, per_node: int) -> None:
        rank = node * per_node + local
        environment = {
            **os.environ, **planning.node_environment(self.plan, node), "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local), "SLURM_NTASKS": str(nodes * per_node), "SLURM_NPROCS": str(nodes * per_node),
            "SLURM_NNODES": str(nodes), "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        }  # fmt: skip
        if "cpus-per-task" in self.options:
            environment["SLURM_CPUS_PER_TASK"] = self.options["cpus-per-task"]
        labelled = "label" in self.options or os.environ.get("SLURM_LABELIO", "0") not in ("", "0")
        pipe = subprocess.PIPE if labelled else None
        try:
            task = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, process_group=0, cwd=self.options.get("chdir")
            )
        except OSError as error:
            _die(f"task {rank}: execve(): {command[0]}: {error.strerror}", 2)
        self.tasks.append(task)
        if task.stdout is not None and task.stderr is not None:
            for source, target in ((task.stdout, sys.stdout), (task.stderr, sys.stderr)):
                thread = threading.Thread(target=_label, args=(source, target, f"{rank}: "), daemon=True)
                thread.start()
                self.threads.append(thread)

    def _wait(self, per_node: int) -> int:
        worst, running, kill_at = 0, dict(enumerate(self.tasks)), float("inf")
        while running:
            for rank, task in list(running.items()):
                code = task.poll()
                if code is None:
                    continue
                del running[rank]
                worst = max(worst, _status(code))
                if code != 0:
                    _report(self.plan.hosts[rank // per_node], rank, code)
                    if self.options.get("kill-on-bad-exit", "0") != "0" and kill_at == float("inf"):
                        kill_at = time.monotonic() + _GRACE_S
                        self._signal_all(signal.SIGTERM)
            if self.forced or time.monotonic() > kill_at:
                self.forced, kill_at = False, float("inf")
                tree.send(tree.descendants(), signal.SIGKILL)  # collected above, where their codes are read
            time.sleep(0.02)
        return worst

    def _forward(self, number: int, _frame: object) -> None:
        self._signal_all(number)

    def _force(self, _number: int, _frame: object) -> None:
        _say("forcing job termination")
        self.forced = True

    def _interrupt(self, _number: int, _frame: object) -> None:
        now = time.monotonic()
        last, sent = self.interrupts
        if now - last > 1:
            _say("interrupt (one more within 1 sec to abort)")
            self.interrupts = (now, sent)
        elif now - sent < 1:
            self._force(signal.SIGINT, None)
        else:
            _say("sending Ctrl-C to the step")
            self.interrupts = (now, now)
            self._signal_all(signal.SIGINT)

    def _signal_all(self, number: int) -> None:
        for task in list(self.tasks):
            if task.returncode is None:
                task.send_signal(number)


def main() -> NoReturn:
    """Run the step of the local job around this process."""
    directory = os.environ.get("HPCTRAIN_LOCAL_JOB")
    job = read_json(Path(directory) / "job.json") if directory else None
    if job is None:
        _die("this is hpctrain's stand-in for srun, and there is no local job around it")
    options, command = parse(sys.argv[1:])
    if not command:
        _die("No command given to execute")
    sys.exit(Step(planning.Plan.from_json(job["plan"]), options).run(command))


def parse(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options before the command, long name to value ("" for a flag), and the command; as getopt_long would."""
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
        if name in _NUMBERS and not (value.isdigit() and int(value)):
            _die(f'Invalid numeric value "{value}" for --{name}.')
        options[name] = value
    return options, rest[1:] if rest[:1] == ["--"] else rest


def _status(code: int) -> int:
    return 128 - code if code < 0 else code


def _report(host: str, rank: int, code: int) -> None:
    what = signal.strsignal(-code) if code < 0 else f"Exited with exit code {code}"
    _say(f"error: {host}: task {rank}: {what}")


def _say(message: str) -> None:
    # In a signal handler, sys.stderr may be in the middle of another message.
    os.write(2, f"srun: {message}\n".encode())


def _label(source: IO[bytes], target: TextIO, prefix: str) -> None:
    for line in source:
        target.write(prefix + line.decode("utf-8", "replace"))
        target.flush()


def _die(message: str, code: int = 1) -> NoReturn:
    sys.stderr.write(f"srun: error: {message}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
