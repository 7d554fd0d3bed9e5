"""What the cluster says about itself: one call each of five queries, all at once, their text handed to the pure parsers.

Asks politely: each query is sent once, never in a loop. One that fails leaves its part unknown, and a sentence that says why.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hpctrain.clusters import slurm_text
from hpctrain.clusters.live import LiveCluster
from hpctrain.errors import SchedulerError
from hpctrain.jobs import shell
from hpctrain.scheduler import process

#: Of the queries that carry a format, which nobody wants to read.
_NAMES = {"nodes": "sinfo", "users": "sacctmgr show user", "qos": "sacctmgr show qos"}
#: What the programs put in front of each line.
_PREFIX = re.compile(r"^(sinfo|scontrol|sacctmgr): ((error|fatal): )?")
#: Characters of a program's own words in a sentence.
_MAX_WORDS = 300


def is_available() -> bool:
    """Whether sinfo or scontrol is on PATH."""
    return any(shutil.which(program) for program in ("sinfo", "scontrol"))


def queries(user: str, environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the argv of each query, by the name of its part.

    Args:
        user: whose accounts are asked for.
        environment: SLURM_CLUSTERS in it names another cluster, which sbatch then submits to, so that one is asked.
    """
    # In a federation sinfo may show the partitions of all clusters.
    here = () if environment.get("SLURM_CLUSTERS") else ("--local",)
    return {
        "nodes": ("sinfo", "-h", "-e", *here, "-o", slurm_text.SINFO_FORMAT),
        "partitions": ("scontrol", "show", "partition", "-o"),
        "config": ("scontrol", "show", "config"),
        "users": ("sacctmgr", "-nP", "show", "user", user, "withassoc", f"format={','.join(slurm_text.USER_FIELDS)}"),
        "qos": ("sacctmgr", "-nP", "show", "qos", f"format={','.join(slurm_text.QOS_FIELDS)}"),
    }


def discover(*, timeout: float = 10.0) -> LiveCluster:
    """Return what Slurm says; nothing is raised, as a cluster that says half of it is still worth asking.

    Args:
        timeout: seconds for each query; they all wait at the same time.
    """
    asked = queries(_user(), os.environ)
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = dict(zip(asked, pool.map(lambda argv: _ask(argv, timeout), asked.values()), strict=True))
    texts = {name: text for name, (text, _) in answers.items() if text is not None}
    return from_texts(texts, silent=_silent(asked, {name: said for name, (_, said) in answers.items() if said is not None}))


def _silent(asked: Mapping[str, tuple[str, ...]], said: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each query without an answer; of a slurmctld that is not there, one for all."""
    rest = dict(said)
    sentences = []
    if {"nodes", "partitions", "config"} <= said.keys():
        # All programs read the same configuration, and those three ask the same daemon: what they say is one failure.
        words = said["nodes"]
        sentences.append(f"it does not answer ({words if words.startswith('sinfo') else f'sinfo: {words}'})")
        everything = len(said) == len(asked)
        rest = {} if everything else {name: each for name, each in said.items() if name in ("users", "qos")}
    sentences += [f"{_NAMES.get(name) or shell.join(asked[name])}: {words}" for name, words in rest.items()]
    return tuple(sentences)


def from_texts(texts: Mapping[str, str], *, silent: tuple[str, ...] = ()) -> LiveCluster:
    """Return the facts in the answers to `queries`; a missing one leaves its part unknown."""
    silent += tuple(
        f"{name} answered in words that hpctrain does not know"
        for part, name in (("nodes", "sinfo"), ("partitions", "scontrol show partition"), ("config", "scontrol show config"))
        if texts.get(part, "").strip() and not _understood(part, texts[part])
    )
    live = slurm_text.parse_config(texts.get("config", ""))
    shown = slurm_text.parse_sinfo(texts["nodes"]) if "nodes" in texts else None
    configured = slurm_text.parse_partitions(texts["partitions"]) if "partitions" in texts else None
    users = slurm_text.parse_users(texts["users"], cluster=live.cluster_name) if "users" in texts else (None, None)
    return replace(
        live,
        partitions=slurm_text.joined(shown, configured),
        qos=slurm_text.parse_qos(texts["qos"]) if "qos" in texts else None,
        associations=users[0],
        default_account=users[1],
        silent=silent,
    )


def _understood(part: str, text: str) -> bool:
    if part == "config":
        return slurm_text.parse_config(text) != LiveCluster()
    return bool(slurm_text.parse_sinfo(text) if part == "nodes" else slurm_text.parse_partitions(text))


def _ask(argv: tuple[str, ...], timeout: float) -> tuple[str | None, str | None]:
    """Return what a query printed, or None and why there is no answer: the last thing that the program said."""
    try:
        done = process.run(argv, timeout=timeout)
    except (SchedulerError, OSError) as error:
        return None, _short(error.what if isinstance(error, SchedulerError) else error.strerror or str(error))
    said = [_PREFIX.sub("", line.strip()) for line in (done.stderr.strip() or done.stdout.strip()).splitlines() if line.strip()]
    # sacctmgr ends with 0 in some versions that have just said that there is no accounting.
    if done.returncode != 0 or (not done.stdout.strip() and any("accounting_storage" in line for line in said)):
        return None, _short(said[-1]) if said else f"exit status {done.returncode}"
    return done.stdout, _short(said[-1]) if done.cut else None


def _short(words: str) -> str:
    """Return what fits into a sentence of Slurm's words, which may hold anything."""
    clean = slurm_text.printable(words).replace(slurm_text.SEPARATOR, "")
    return clean if len(clean) <= _MAX_WORDS else f"{clean[: _MAX_WORDS - 3]}..."


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in some containers
        return str(os.getuid())
