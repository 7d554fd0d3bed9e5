"""Probe of the cluster: is Slurm here, does it answer, which accounts are the user's, and which profile knows this machine."""

from __future__ import annotations

import os
import shutil
import socket

from hpctrain.clusters import load
from hpctrain.doctor import start
from hpctrain.doctor.facts import Case, SlurmFacts
from hpctrain.errors import HpctrainError

LIMIT_S = 60.0


def slurm(_case: Case) -> SlurmFacts:
    """Return version, partitions and accounts, as Slurm says them."""
    if shutil.which("sinfo") is None:
        return SlurmFacts(installed=False, detected=_detected(None))
    from hpctrain.scheduler import discover

    try:
        version = start.run(["sinfo", "--version"], timeout=10).stdout.strip() or None
        live = discover.discover(timeout=20.0)
    except HpctrainError as error:
        said = error.details[-1].strip() if error.details else error.what
        return SlurmFacts(installed=True, silent=said, detected=_detected(None))
    return SlurmFacts(
        installed=True,
        version=version,
        silent=None if live.partitions else (live.silent[0] if live.silent else "sinfo lists no partition"),
        partitions=tuple(partition.name for partition in live.partitions or ()),
        accounts=live.accounts,
        detected=_detected(live.cluster_name),
    )


def _detected(cluster_name: str | None) -> tuple[str, ...]:
    hosts = [socket.gethostname()]
    try:
        hosts.append(start.run(["hostname", "-f"], timeout=5).stdout.strip())
    except HpctrainError:  # a name service that does not answer
        pass
    return tuple(load.detect(os.environ, cluster_name=cluster_name, hosts=tuple(hosts)))
