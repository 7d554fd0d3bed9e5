"""The login node's probes, each in its own thread with a time limit: Slurm, disks, modules, the
job's environment, and the training's start without a network.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import psutil

from hpctrain.clusters import discover, load
from hpctrain.clusters.live import LiveCluster
from hpctrain.config.arguments import Arguments
from hpctrain.doctor import environment
from hpctrain.doctor.environment import last_lines, run_limited
from hpctrain.doctor.environment_evaluation import problem, result
from hpctrain.doctor.facts import DoctorContext, ProbeResult
from hpctrain.errors import SchedulerError
from hpctrain.finding import Finding
from hpctrain.util import process, shell
from hpctrain.util.file_systems import file_system, quota_of
from hpctrain.util.text import count, size

#: Name → how long it may take, in seconds, and the check of this machine.
Probes = dict[str, tuple[float, Callable[[DoctorContext], list[ProbeResult]]]]


def run_probes(context: DoctorContext, probes: Probes | None = None) -> Iterator[ProbeResult]:
    """Yield the results in the order of `probes`, each as soon as it and all earlier ones are
    available.

    All probes run concurrently, because most wait for a program or a file server. A probe that
    exceeds its limit is abandoned: a thread that waits for a dead file server cannot be stopped,
    but does not keep the process alive. If the caller stops early, all programs that the probes
    have started are killed.
    """
    began, chosen = time.monotonic(), probes or PROBES
    answers = {name: Future[list[ProbeResult]]() for name in chosen}

    def run(name: str) -> None:
        try:
            answers[name].set_result(chosen[name][1](context))
        except Exception as error:
            answers[name].set_exception(error)

    for name in chosen:
        threading.Thread(target=run, args=(name,), name=f"probe {name}", daemon=True).start()
    try:
        for name, answer in answers.items():
            limit = chosen[name][0]
            try:
                yield from answer.result(max(0.0, began + limit - time.monotonic()))
            except TimeoutError:
                yield result(name, f"did not end within {limit:.0f} s", unknown=True)
            except Exception as error:  # a failing probe must not hide the others
                yield result(name, f"failed: {str(error) or type(error).__name__}", unknown=True)
    finally:
        if not all(answer.done() for answer in answers.values()):
            # All descendants at once: while the parents live, none has been reparented.
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()


# -- Slurm and disks -------------------------------------------------------------------------------


def slurm(context: DoctorContext) -> list[ProbeResult]:
    """Report the cluster profile, and check whether Slurm answers and the user has an account."""
    live, words, found = LiveCluster(), "sinfo is not on PATH: jobs run locally", list[Finding]()
    is_there = shutil.which("sinfo") is not None
    if is_there:
        live = discover.discover(timeout=20.0)
        version = "Slurm {}.{:02}".format(*live.version) if live.version else "Slurm"
        accounts = "unknown" if live.accounts is None else ", ".join(live.accounts) or "none"
        words = f"{version}, {count(len(live.partitions or ()), 'partition')}"
        words += f"; your accounts: {accounts}"
    if is_there and not live.partitions:
        words = "Slurm does not answer"
        no_answer = problem(
            "doctor-slurm-silent",
            "Slurm does not answer",
            evidence=f"its output: {[*live.silent, 'sinfo lists no partition'][0]}",
            reason="no job can be submitted",
            fix="sinfo",
        )
        found.append(no_answer)
    elif live.accounts == ():
        no_account = problem(
            "doctor-no-account",
            "you have no Slurm account",
            level="warning",
            evidence="sacctmgr show user withassoc",
            reason="where accounts are enforced, sbatch refuses every job",
            fix=context.profile.account.list_command or "sacctmgr show user $USER withassoc",
        )
        found.append(no_account)
    shape, profile = context.shape, context.profile
    if context.cluster is None:
        hosts = (os.uname().nodename,)
        names = load.detect(os.environ, cluster_name=live.cluster_name, hosts=hosts)
        of_profile = (
            f"no profile is named; this machine looks like: {', '.join(names) or 'no known one'}"
        )
        of_profile += f": --cluster {names[0]}" if names else ""
    else:
        of_profile = f"{profile.name}: {profile.title}"
        nodes = f"; nodes with {count(shape.gpus, 'GPU')} {shape.gpu or ''}" if shape else ""
        of_profile += nodes.rstrip()
    return [
        result("cluster", of_profile, unknown=context.cluster is None),
        result("slurm", words, found, unknown=not is_there),
    ]


#: Free space below this does not fit the next checkpoint of a small model.
_LITTLE_BYTES = 5 << 30
#: Fraction of a quota above which a job may exceed it.
_NEAR = 0.9


def quotas(context: DoctorContext) -> list[ProbeResult]:
    """Check free space and quotas where the job writes."""
    found, parts = dict[Finding, None](), list[str]()
    for name, path in (("the job's directory", context.spec.chdir), ("home", str(Path.home()))):
        system = file_system(path)
        parts.append(
            f"{name}: {size(system.free) if system else 'an unknown number of bytes'} free"
        )
        if system is not None and system.free < _LITTLE_BYTES and system.kind != "ramfs":
            little = problem(
                "doctor-disk-full",
                f"only {size(system.free)} are free in {name} ({path})",
                level="warning",
                evidence="statvfs",
                reason="a checkpoint or a cache that does not fit ends the job",
                fix=f"df -h {shell.quote(path)}",
            )
            found[little] = None
        quota = quota_of(system) if system is not None else None
        if system is None or quota is None:
            continue
        for used, limit, words in (
            (quota.used, quota.limit, f"{size(quota.used)} of {size(quota.limit)}"),
            (quota.files, quota.files_limit, f"{quota.files:,} of {quota.files_limit:,} files"),
        ):
            parts += [f"quota of {name}: {words}"] if limit else []
            if limit and used >= _NEAR * limit:
                near = problem(
                    "doctor-quota",
                    f"the quota of {system.mount} is at {words}",
                    level="error" if used >= limit else "warning",
                    evidence=quota.command,
                    reason="at the limit every write of the job fails",
                    fix="du -sh ~/.cache ~/.conda",
                )
                found[near] = None
    return [result("quotas", "; ".join(parts), found)]


# -- modules ---------------------------------------------------------------------------------------

_MODULE_MARK = "HPCTRAIN-MODULE"
#: Environment Modules 3 and 4 exit with 0 even if a module was not loaded; only stderr reports the
#: failure.
_FAILED = re.compile(
    r"\berror\b|unable to locate|unknown module|cannot be loaded|not found|does not exist|cannot"
    r" load",
    re.IGNORECASE,
)


def modules(context: DoctorContext) -> list[ProbeResult]:
    """Load the job's modules in the job's shell, and report which one fails and why."""
    spec = context.spec
    if not spec.modules:
        return [result("modules", "the job loads none")]
    if context.profile.modules.on_login_nodes is False:
        words = f"not tried: on {context.profile.name} modules load on compute nodes only"
        return [result("modules", words, unknown=True)]
    start = f"module {spec.module_start}" if spec.module_start else ":"
    use = [f"module use {shell.quote(folder)}" for folder in spec.module_use]
    lines = ["type module >/dev/null 2>&1 || exit 77"]
    lines += [f"{line} </dev/null >/dev/null 2>&1" for line in (start, *use)]
    for module in spec.modules:
        load_it = f"module load {shell.quote(module)} 2>&1 >/dev/null </dev/null"
        lines.append(f"echo {_MODULE_MARK}; {load_it} || echo error: exit status $?")
    try:
        argv = [*environment.shell_of(spec), "\n".join([*lines, "echo the end"])]
        done = run_limited(argv, timeout=environment.ENVIRONMENT_S)
    except process.NoAnswerError:
        words = "`module load` did not end within a minute"
        return [result("modules", words, unknown=True)]
    if done.returncode == 77:
        missing = problem(
            "doctor-module-command",
            f"the job's shell ({spec.shebang.removeprefix('#!')}) has no `module` command; the job"
            f" loads {', '.join(spec.modules)}",
            evidence="type module",
            reason="the job would stop with `module: command not found`",
            fix="set launch.shebang: '#!/bin/bash -l' in config.yaml",
        )
        return [result("modules", "the job's shell has no `module` command", [missing])]
    said, end, _ = done.stdout.partition("the end\n")
    told = f"{said}{'' if end else 'error: it ended the shell'}".split(f"{_MODULE_MARK}\n")[1:]
    failed = [
        problem(
            "doctor-module-unknown",
            f"the module {name} does not load here",
            evidence=f"module load printed: {' '.join(last_lines(messages, 3))[:300]}",
            reason="the job stops there, before the training",
            fix=f"module avail {shell.quote(name.partition('/')[0])}",
        )
        for name, messages in zip(spec.modules, told, strict=False)
        if _FAILED.search(messages)
    ]
    words = f"{', '.join(spec.modules)} load here"
    if failed:
        words = f"{len(failed)} of {len(spec.modules)} do not load"
    return [result("modules", words, failed)]


# -- the environment -------------------------------------------------------------------------------


_OFFLINE_S = 180.0
_OFFLINE_MARK = "HPCTRAIN-OFFLINE "  # printed by training.offline_check, which is not imported here
_OFFLINE_WAY = "with offline libraries and unreachable proxies"
_NOWHERE = "http://127.0.0.1:9"  # the discard port
_INPUTS = {"model": "model_name_or_path", "dataset": "dataset_name"}
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
#: Offline mode for the libraries, and one thread: login nodes are shared.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    **dict.fromkeys(_PROXIES, _NOWHERE),
    "no_proxy": "",
    "NO_PROXY": "",
}
#: Messages of programs about a missing network.
_NETWORK = re.compile(
    r"network|offline|connect|unreachable|resol(?:ve|ution)|name or service|timed?"
    r" ?out|proxy|https?:|huggingface\.co|LocalEntryNotFound",
    re.IGNORECASE,
)


def offline(context: DoctorContext) -> list[ProbeResult]:
    """Start the training's first steps without a network: libraries in offline mode, and all
    proxies set to an unreachable address.
    """
    spec = context.spec
    if (reason := _nothing_to_try(context)) is not None:
        return [result("offline", f"not tried: {reason}", unknown=True)]
    script = (
        f'{environment.activation(spec)}\ncd "$1" && shift && exec python -m'
        ' hpctrain.training.preflight.offline_check "$@"'
    )
    began = time.monotonic()
    directory = environment.directory(spec.chdir)
    argv = [*environment.shell_of(spec), script, "doctor", directory, "--task", spec.task]
    argv += spec.arguments
    try:
        clean = process.clean(os.environ) | _OFFLINE
        done = run_limited(argv, timeout=_OFFLINE_S - 10, environment=clean)
    except process.NoAnswerError:
        return [result("offline", "the start had not ended after three minutes", unknown=True)]
    except SchedulerError as error:
        return [result("offline", f"not tried: {error.what}", unknown=True)]
    mark = f"{_OFFLINE_MARK}failed "
    failed = [line.removeprefix(mark) for line in done.stdout.splitlines() if line.startswith(mark)]
    if not failed and not done.returncode:
        seconds = time.monotonic() - began
        return [result("offline", f"the training starts {_OFFLINE_WAY}, in {seconds:.0f} s")]
    step = failed[0] if failed else "the start of Python"
    found = _not_started(step, last_lines(done.stderr, 4), context)
    return [result("offline", f"the start fails at: {step}", [found])]


def _not_started(step: str, said: tuple[str, ...], context: DoctorContext) -> Finding:
    fixes = [line.removeprefix("fix: ") for line in said if line.startswith("fix: ")]
    messages = " / ".join(line for line in said if not line.startswith("fix: "))
    evidence = f"tried {_OFFLINE_WAY}: {messages or 'no output'}"
    if _NETWORK.search(messages) is None:
        return problem(
            "doctor-start",
            f"the start fails at: {step}",
            evidence=evidence,
            reason="the message does not mention the network, so the job would stop there too",
            fix=[*fixes, "hpctrain doctor"][0],
        )
    return problem(
        "doctor-offline",
        f"without a network the start fails at: {step}",
        level="warning" if context.profile.internet.compute in ("yes", "proxy") else "error",
        evidence=evidence,
        reason="most compute nodes have no internet: there the job waits for timeouts, then fails",
        fix="download what it needs on the login node, and name local directories in the job",
    )


def _nothing_to_try(context: DoctorContext) -> str | None:
    spec, named = context.spec, Arguments(context.spec)
    missing = [what for what, option in _INPUTS.items() if named.get(option) is None]
    if context.quick:
        return "--quick"
    if spec.container is not None:
        return "the training runs in a container"
    if not named.ours:
        return f"only hpctrain's own training is, not {spec.script or spec.template}"
    if missing and not named.incomplete:
        return f"the job names {' and '.join(f'no {what}' for what in missing)} yet"
    return None


PROBES: Probes = {
    "slurm": (75.0, slurm),
    "modules": (environment.ENVIRONMENT_S + 15, modules),
    "environment": (environment.ENVIRONMENT_S + 15, environment.job_environment),
    "quotas": (30.0, quotas),
    "offline": (_OFFLINE_S + 15, offline),
}
