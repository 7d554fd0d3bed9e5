"""Fixes of what a job asks for, where it runs and what its processes see: nodes, accounts, networks. PURE."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpctrain.explain.case import Case
from hpctrain.explain.facts_found import number, processes_asked, setting, some, whole
from hpctrain.explain.fixes_values import Groups, change, fix, is_ours, kept, told
from hpctrain.explain.model import Fix
from hpctrain.scheduler.parse import hostlist

#: RFC 1123 names, and Slurm's own: what stands in a log must not become anything else on a command line.
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?\Z", re.ASCII)
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def exclude_node(case: Case, groups: Groups) -> Fix | None:
    """Return the node left out; those that are left out already stay so."""
    node = groups.get("node") or (case.account.failed_node if case.account is not None else None)
    if node is None or not _NODE.match(node):
        return None
    before = setting(case, "sbatch", "exclude")
    try:
        out = hostlist.expand(str(before)) if before else []
    except ValueError:
        out = [str(before)]
    if node in out or node.partition(".")[0] in out:
        return None
    short = node.partition(".")[0]  # Slurm's NodeName is the short one nearly everywhere
    new = change(case, "sbatch.exclude", f"{before},{short}" if before else short)
    return fix(f"--exclude={new.new}", *kept(case, new), more=f"the next start takes other nodes than {short}; tell your support of it")


def world_size(case: Case, groups: Groups) -> Fix | None:
    """Return what starts as many processes as the job has GPUs, where the config says what is in the way."""
    asked = processes_asked(case)
    own = setting(case, "accelerate_config")
    if asked is None or own in (None, "multi_gpu.yaml") or setting(case, "launcher") not in (None, "accelerate"):
        return None
    seen = groups.get("world_size")
    new = change(case, "accelerate_config", "multi_gpu.yaml")
    more = f"{own} starts {seen or 'another number of'} processes, and the job has GPUs for {asked}"
    return fix(told(new), *(kept(case, new) if is_ours(case) else ()), more=more)


def offline(case: Case, groups: Groups) -> Fix | None:
    """Return the offline switches on, and how to fetch what was missing on a login node."""
    named = groups.get("repo") or groups.get("name") or ""
    fetch = f"on a login node: hf download {named}" if _REPOSITORY.match(named) else ""
    if str(setting(case, "offline")).lower() == "false":
        new = change(case, "offline", True)
        more = f"{fetch}; with the same HF_HOME as the job" if fetch else "what the training needs has to be there before: hpctrain prepare"
        return fix("offline: false -> true, so that it fails at once, not after minutes of waiting", *kept(case, new), more=more)
    if not fetch:
        return None
    return fix(fetch, more="with the same HF_HOME as the job, or a folder of your own as model_name_or_path")


def port(case: Case, groups: Groups) -> Fix | None:
    """Return another port: that of a job is counted from its id, so the next submission has another one."""
    busy = f"port {groups['port']} was taken; " if whole(groups.get("port")) else ""
    if case.config is None:
        text = "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 9000))"
        return fix(text, more=f"{busy}in the script, before srun: another one for each job")
    return fix(f"hpctrain resubmit {case.extra.get('run') or 'RUN'}", more=f"{busy}the next job has another id, so another port")


# -- who pays, and where -----------------------------------------------------------------------------------------------


def account(case: Case, groups: Groups) -> Fix | None:
    """Return the account that Slurm lists; where it lists several, all of them."""
    return _allowed(case, groups, "account", "accounts")


def partition(case: Case, groups: Groups) -> Fix | None:
    """Return the partition, likewise."""
    return _allowed(case, groups, "partition", "partitions")


def qos(case: Case, groups: Groups) -> Fix | None:
    """Return the QOS, likewise."""
    return _allowed(case, groups, "qos", "qos")


def _allowed(case: Case, groups: Groups, key: str, known: str) -> Fix | None:
    """Return the value that is allowed; one of several is a person's to choose, as each charges, or runs, somewhere else."""
    said = case.extra.get(known) or ()
    names = [str(name) for name in said if re.fullmatch(r"[A-Za-z0-9_][\w.,:+@-]{0,127}", str(name), re.ASCII)]
    now = setting(case, "resources", key) or groups.get(key)
    names = [name for name in dict.fromkeys(names) if name != now]
    if not names:
        return None
    if len(names) > 1:
        return fix(f"--{key} one of: {some(names, 12)}", more=f"Slurm lists these for you; the job asked for {now or 'none'}")
    new = change(case, f"resources.{key}", names[0])
    return fix(told(new), *kept(case, new), more=f"it is the only one that Slurm lists for you; the job asked for {now or 'none'}")


# -- network, and numbers ----------------------------------------------------------------------------------------------


def nccl(case: Case, _: Groups) -> Fix | None:
    """Return the variables of the network as the cluster's profile has them; without a profile, a wrong interface goes."""
    profile = case.extra.get("profile")
    network, held = _section(profile, "network"), _section(setting(case, "environment"), "env")
    wanted = {str(name): str(value) for name, value in _section(network, "variables").items()}
    if network.get("interface"):
        wanted = {name: str(network["interface"]) for name in _INTERFACES} | wanted
    changes = [change(case, f"environment.env.{name}", value) for name, value in wanted.items() if str(held.get(name)) != value]
    if wanted and changes:
        words = ", ".join(f"{each.key.removeprefix('environment.env.')}={each.new}" for each in changes)
        name = profile.get("name") if isinstance(profile, Mapping) else None
        return fix(words, *kept(case, *changes), more=f"as the profile {name or 'of the cluster'} has it")
    gone = [change(case, f"environment.env.{name}", None) for name in _INTERFACES if name in held and name not in wanted]
    if not gone:
        return None
    words = ", ".join(f"{each.key}: {each.old} -> removed" for each in gone)
    return fix(words, *kept(case, *gone), more="NCCL and gloo then look for the interface themselves")


def _section(value: object, name: str) -> Mapping[str, Any]:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def learning_rate(case: Case, _: Groups) -> Fix | None:
    """Return a third of the learning rate as a run of its own: it is another training, so it is never done by itself."""
    now = number(setting(case, "training", "learning_rate"))
    if not now:
        return None
    lower = f"{now / 3:.0e}".replace("e-0", "e-")
    text = f"hpctrain submit --run-id NEW_NAME -- --learning_rate {lower}"
    more = f"learning_rate: {now:g} -> {lower}; another training, so another run: a checkpoint would bring its own learning rate along"
    return fix(f"{more}\n{text}")
