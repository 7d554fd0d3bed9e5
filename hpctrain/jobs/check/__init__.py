"""What would go wrong with a job, found before it queues.

Pure: the job, the site and everything around are values; `cli.surroundings` and `scheduler.discover` gather them. A rule says something
only about what is known, as an error only on facts that somebody stands for, and ends in something to type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpctrain.jobs.check import files, hardware, limits, network, python_environment, secrecy, site, storage, training, tune
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.check.surroundings import Surroundings
from hpctrain.jobs.finding import LEVELS, Finding
from hpctrain.jobs.spec import JobSpec

if TYPE_CHECKING:
    from hpctrain.clusters.live import LiveCluster
    from hpctrain.clusters.profile import Cluster

#: Every id that `check` can give, by topic; each has a page, docs/findings/ID.md.
IDS = (
    "partition-unknown", "partition-down", "partition-missing", "account-unknown", "account-form", "account-missing", "account-not-allowed",
    "account-nodes", "qos-unknown", "qos-missing", "qos-not-allowed", "constraint-unknown", "directive-forbidden", "directive-discouraged",
    "directive-required", "constraint-partition",
    "time-limit", "time-default", "nodes-limit", "gpus-limit", "array-limit",
    "gpu-dialect", "gpus-per-node", "gpus-unused", "gpus-spread", "single-process", "gpu-type-unknown", "gpu-memory",
    "cores-limit", "cores-few", "memory-limit", "memory-too-small", "memory-all",
    "model-folder", "dataset-folder", "dataset-tokenizer", "script-missing", "script-not-python", "script-syntax", "accelerate-config",
    "hook-missing",
    "chdir-missing", "chdir-not-writable", "output-not-writable", "output-space", "output-files",
    "path-not-shared", "path-not-mounted", "path-purged",
    "environment-missing", "environment-broken", "environment-lacks", "environment-architecture", "environment-slow",
    "launcher-missing", "torch-build", "module-purge", "container-missing", "container-bind", "container-gpu",
    "hub-name", "offline-switch", "tracker-online", "webhook-offline", "push-to-hub", "proxy-missing",
    "secret-in-config", "secret-missing", "secret-file-open", "shell-leaks",
    "argument-removed", "argument-unknown", "adapter-not-asked", "no-checkpoints", "signal-kills", "tune-no-evaluation",
    "slurm-refuses",
)  # fmt: skip
#: Rules about the site; a job on this machine has none.
_SITE = (site, limits, hardware)
_EVERYWHERE = (files, storage, python_environment, network, secrecy, training, tune)


def check(
    spec: JobSpec,
    *,
    cluster: Cluster | None,
    live: LiveCluster | None,
    around: Surroundings,
    origins: Mapping[tuple[str, ...], str],
    typed: tuple[tuple[str, str], ...] = (),
    arguments: tuple[str, ...] = (),
    local: bool = False,
) -> list[Finding]:
    """Return the findings on a job, errors first.

    Args:
        spec: the job, every layer resolved.
        cluster: the site's profile, with what Slurm says laid over it; None where nobody knows the site.
        live: what Slurm says; None where there is none.
        around: files, shell and environment.
        origins: config path to where its value was written.
        typed: options that the user typed, with their values: what we tell them to type keeps them.
        arguments: what they typed behind `--`.
        local: the job will run on this machine: nothing about the site is asked.
    """
    case = Case(spec, cluster, live, around, origins, typed, arguments, local)
    modules = _EVERYWHERE if local else (*_SITE, *_EVERYWHERE)
    found = [finding for module in modules for finding in module.rules(case)]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))
