"""Query Slurm about the cluster: five queries in parallel, whose output goes to the pure parsers.

Each query is sent once, never in a loop. A failed query leaves its part unknown, and adds a
sentence with the reason.
"""

from __future__ import annotations

import getpass
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hpctrain.clusters import live as live_cluster
from hpctrain.clusters.live import LiveCluster
from hpctrain.errors import SchedulerError
from hpctrain.slurm.base import last_words
from hpctrain.util import process, shell

#: Short names for messages: these queries have a long format argument.
_NAMES = {"nodes": "sinfo", "users": "sacctmgr show user", "qos": "sacctmgr show qos"}


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
        "nodes": ("sinfo", "-h", "-e", *here, "-o", live_cluster.SINFO_FORMAT),
        "partitions": ("scontrol", "show", "partition", "-o"),
        "config": ("scontrol", "show", "config"),
        "users": (
            "sacctmgr",
            "-nP",
            "show",
            "user",
            user,
            "withassoc",
            f"format={','.join(live_cluster.USER_FIELDS)}",
        ),
        "qos": ("sacctmgr", "-nP", "show", "qos", f"format={','.join(live_cluster.QOS_FIELDS)}"),
    }


def discover(*, timeout: float = 10.0) -> LiveCluster:
    """Return what Slurm reports. Nothing is raised: partial answers are useful too.

    Args:
        timeout: seconds for each query; all run at the same time.
    """
    asked = queries(_user(), os.environ)
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = dict(
            zip(asked, pool.map(lambda argv: _ask(argv, timeout), asked.values()), strict=True)
        )
    texts = {name: text for name, (text, _) in answers.items() if text is not None}
    return from_texts(
        texts,
        silent=_silent(
            asked, {name: said for name, (_, said) in answers.items() if said is not None}
        ),
    )


def _silent(asked: Mapping[str, tuple[str, ...]], said: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each query without an answer; a single one for sinfo and scontrol if
    slurmctld is down; only that one if nothing answers.
    """
    sentences = {
        name: f"{_NAMES.get(name) or shell.join(asked[name])}: {words}"
        for name, words in said.items()
    }
    if {"nodes", "partitions", "config"} <= said.keys():
        words = said["nodes"]
        words = words if words.startswith("sinfo") else f"sinfo: {words}"
        others = () if len(said) == len(asked) else ("users", "qos")
        rest = (sentences[name] for name in others if name in sentences)
        return (f"it does not answer ({words})", *rest)
    return tuple(sentences.values())


def from_texts(texts: Mapping[str, str], *, silent: tuple[str, ...] = ()) -> LiveCluster:
    """Return the facts in the output of `queries`; a missing one leaves its part unknown."""
    live = live_cluster.parse_config(texts.get("config", ""))
    shown = live_cluster.parse_sinfo(texts["nodes"]) if "nodes" in texts else None
    configured = (
        live_cluster.parse_partitions(texts["partitions"]) if "partitions" in texts else None
    )
    users = (
        live_cluster.parse_users(texts["users"], cluster=live.cluster_name)
        if "users" in texts
        else (None, None)
    )
    silent += tuple(
        f"{program} answered in a format that hpctrain does not know"
        for part, program, understood in (
            ("nodes", "sinfo", shown),
            ("partitions", "scontrol show partition", configured),
            ("config", "scontrol show config", live != LiveCluster()),
        )
        if texts.get(part, "").strip() and not understood
    )
    return replace(
        live,
        partitions=live_cluster.joined(shown, configured),
        qos=live_cluster.parse_qos(texts["qos"]) if "qos" in texts else None,
        associations=users[0],
        default_account=users[1],
        silent=silent,
    )


def _ask(argv: tuple[str, ...], timeout: float) -> tuple[str | None, str | None]:
    try:
        done = process.run(argv, timeout=timeout)
    except SchedulerError as error:
        return None, error.what
    except OSError as error:
        return None, error.strerror or str(error)
    # Some versions of sacctmgr exit with 0 after reporting that accounting is disabled.
    disabled = not done.stdout.strip() and "accounting_storage" in done.stderr
    if done.returncode != 0 or disabled:
        return None, last_words(done)
    return done.stdout, None


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in some containers
        return str(os.getuid())
