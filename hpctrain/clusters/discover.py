"""Query Slurm about the cluster: five queries in parallel, whose output goes to the pure parsers.

Each query is sent once, never in a loop. A failed query leaves its part unknown, and adds a
sentence with the reason.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hpctrain.clusters import live
from hpctrain.clusters.live import LiveCluster
from hpctrain.errors import SchedulerError
from hpctrain.slurm.base import last_words
from hpctrain.util import process, shell

#: Short names for messages: these queries have a long format argument.
_NAMES = {
    "nodes": "sinfo",
    "partitions": "scontrol show partition",
    "users": "sacctmgr show user",
    "qos": "sacctmgr show qos",
}


def is_available() -> bool:
    """Whether sinfo or scontrol is on PATH."""
    return any(shutil.which(program) for program in ("sinfo", "scontrol"))


def queries(user: str, environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the argv of each query, by the name of its part.

    Args:
        user: the user whose accounts are queried.
        environment: if SLURM_CLUSTERS in it names another cluster, that one is queried, because
            sbatch submits to it.
    """
    # In a federation, sinfo may list the partitions of all clusters.
    here = () if environment.get("SLURM_CLUSTERS") else ("--local",)
    return {
        "nodes": ("sinfo", "-h", "-e", *here, "-o", live.SINFO_FORMAT),
        "partitions": ("scontrol", "show", "partition", "-o"),
        "config": ("scontrol", "show", "config"),
        "users": (
            "sacctmgr",
            "-nP",
            "show",
            "user",
            user,
            "withassoc",
            f"format={','.join(live.USER_FIELDS)}",
        ),
        "qos": ("sacctmgr", "-nP", "show", "qos", f"format={','.join(live.QOS_FIELDS)}"),
    }


def discover(*, timeout: float = 10.0) -> LiveCluster:
    """Return what Slurm reports. Nothing is raised: partial answers are useful too.

    Args:
        timeout: seconds for each query; all run at the same time.
    """
    asked = queries(getpass.getuser(), os.environ)
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = pool.map(lambda argv: _ask(argv, timeout), asked.values())
    texts: dict[str, str] = {}
    silent: dict[str, list[str]] = {}  # the reason → the programs; slurmctld's are often the same
    for (name, argv), (text, reason) in zip(asked.items(), answers, strict=True):
        if reason is None:
            texts[name] = text
        else:
            silent.setdefault(reason, []).append(_NAMES.get(name) or shell.join(argv))
    sentences = tuple(f"{', '.join(names)}: {reason}" for reason, names in silent.items())
    return from_texts(texts, silent=sentences)


def from_texts(texts: Mapping[str, str], *, silent: tuple[str, ...] = ()) -> LiveCluster:
    """Return the facts in the output of `queries`; a missing one leaves its part unknown."""
    found = live.parse_config(texts.get("config", ""))
    shown = {each.name: each for each in live.parse_sinfo(texts.get("nodes", ""))}
    # scontrol reports more fields, only sinfo lists the nodes.
    for each in live.parse_partitions(texts.get("partitions", "")):
        nodes = shown[each.name].nodes if each.name in shown else ()
        shown[each.name] = replace(each, nodes=nodes)
    # select/linear allocates whole nodes in every partition.
    if re.search(r"^SelectType\s*= ?select/linear", texts.get("config", ""), re.MULTILINE):
        shown = {name: replace(each, exclusive=True) for name, each in shown.items()}
    users = live.parse_users(texts.get("users", ""), cluster=found.cluster_name)
    silent += tuple(
        f"{program} answered in a format that hpctrain does not know"
        for part, program, understood in (
            ("nodes", "sinfo or scontrol show partition", shown),
            ("config", "scontrol show config", found != LiveCluster()),
        )
        if texts.get(part, "").strip() and not understood
    )
    return replace(
        found,
        partitions=tuple(shown.values()) if {"nodes", "partitions"} & texts.keys() else None,
        qos=live.parse_qos(texts["qos"]) if "qos" in texts else None,
        associations=users[0] if "users" in texts else None,
        default_account=users[1],
        silent=silent,
    )


def _ask(argv: tuple[str, ...], timeout: float) -> tuple[str, str | None]:
    """Return the output, and why there is none."""
    try:
        done = process.run(argv, timeout=timeout)
    except (SchedulerError, OSError) as error:
        return "", str(error).removeprefix(f"{argv[0]} ")
    # Some versions of sacctmgr exit with 0 after reporting that accounting is disabled.
    disabled = not done.stdout.strip() and "accounting_storage" in done.stderr
    return done.stdout, last_words(done) if done.returncode != 0 or disabled else None
