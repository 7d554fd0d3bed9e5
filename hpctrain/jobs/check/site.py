"""Partition, QOS, constraint and directives: the names, and what the site wants or refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpctrain.jobs import directives
from hpctrain.jobs.check import accounts
from hpctrain.jobs.check.case import Case, Fact, closest, confirm, features, likely_partition
from hpctrain.jobs.finding import Finding

if TYPE_CHECKING:
    from hpctrain.clusters.profile import NodeShape

_PARTITION = ("resources", "partition")
_QOS = ("resources", "qos")
_CONSTRAINT = ("resources", "constraint")


def rules(case: Case) -> Iterator[Finding]:
    """Return what is wrong with the names that the job gives, and with its directives."""
    yield from _partition(case)
    yield from accounts.rules(case)
    yield from _qos(case)
    yield from _constraint(case)
    yield from _forbidden(case)
    yield from _discouraged(case)
    yield from _required(case)


# -- partition ----------------------------------------------------------------------------------------------------------


def _partition(case: Case) -> Iterator[Finding]:
    live = case.live.partitions if case.live is not None else None
    listed = tuple(each.name for each in live) if live is not None else tuple(case.profile.partitions) if case.profile is not None else ()
    for name in case.partition_names:
        if listed and name not in listed:
            # A profile need not know every partition of a site.
            source = "sinfo" if live is not None else case.cluster.evidence("partitions") if case.cluster is not None else ""
            yield case.finding(
                "partition-unknown", "error" if live is not None else "warning", f"there is no partition {name!r} here",
                evidence=f"{case.said(*_PARTITION, value=name)}; {source} lists {', '.join(listed)}",
                reason="Slurm refuses the job: Invalid partition name specified",
                fix=case.fix((_PARTITION, likely_partition(case, name, listed) or "NAME")),
            )  # fmt: skip
    found = case.live_partition
    if found is not None and found.up is False:
        others = tuple(each.name for each in live or () if each.up and (each.gpus_max or 0) >= case.spec.gpus_per_node)
        other = likely_partition(case, found.name, others) if others else None
        yield case.finding(
            "partition-down", "warning", f"partition {found.name} takes or starts no jobs now",
            evidence=f"{case.said(*_PARTITION, value=found.name)}; sinfo -p {found.name}: it is not up",
            reason="the job is refused, or waits until somebody brings the partition up",
            fix=case.fix((_PARTITION, other)) if other else f"sinfo -p {found.name}, and read the site's news",
        )  # fmt: skip
    if case.profile is not None and case.profile.partition_required and not case.partition_names:
        fact = case.fact(True, "partition_required")
        if fact is not None and (case.live is None or case.live_partition is None):
            yield case.finding(
                "partition-missing", fact.severity, "no partition is given, and this site wants one",
                evidence=f"{fact.source}{confirm(fact, 'sinfo -o %P')}",
                reason="Slurm refuses the job, or puts it where there are no GPUs",
                fix=case.fix((_PARTITION, case.profile.defaults.partition or likely_partition(case) or "NAME")),
            )  # fmt: skip


# -- QOS and constraint -------------------------------------------------------------------------------------------------


def _qos(case: Case) -> Iterator[Finding]:
    asked, live = case.spec.qos, case.live_partition
    if asked is None:
        fact = case.fact(True, "qos_required") if case.profile is not None and case.profile.qos_required else None
        names = _own_qos(case) or (tuple(case.profile.qos) if case.profile is not None else ())
        if fact is not None and case.profile is not None:
            yield case.finding(
                "qos-missing", fact.severity, "no QOS is given, and this site wants one",
                evidence=f"{fact.source}{confirm(fact, 'sacctmgr -nP show associations user=$USER format=account,qos')}",
                reason="Slurm refuses the job: Invalid qos specification",
                fix=case.fix((_QOS, case.profile.defaults.qos or (names[0] if names else "NAME"))),
            )  # fmt: skip
        return
    own = _own_qos(case)
    allowed = live.allow_qos if live is not None else None
    if own is not None and asked not in own:
        yield case.finding(
            "qos-unknown", "error", f"you may not use the QOS {asked!r}",
            evidence=f"{case.said(*_QOS, value=asked)}; sacctmgr lists for you: {', '.join(own) or 'none'}",
            reason="Slurm refuses the job: Invalid qos specification",
            fix=case.fix((_QOS, closest(asked, own) or "NAME")),
        )  # fmt: skip
    elif own is None and case.profile is not None and case.profile.qos and asked not in case.profile.qos and case.cluster is not None:
        yield case.finding(
            "qos-unknown", "warning", f"nobody here knows the QOS {asked!r}",
            evidence=f"{case.said(*_QOS, value=asked)}; {case.cluster.evidence('qos')} lists {', '.join(case.profile.qos)}",
            reason="Slurm refuses a job whose QOS does not exist",
            fix=case.fix((_QOS, closest(asked, tuple(case.profile.qos)))),
        )  # fmt: skip
    elif own is None:
        yield from _qos_and_nodes(case, asked)
    known = case.known_partition
    fact_allowed = Fact(allowed, "live", f"scontrol show partition {live.name}") if allowed is not None and live is not None else None
    if fact_allowed is None and live is None and known is not None and known.qos:
        fact_allowed = case.fact(known.qos, "partitions", case.partition_name or "", "qos")
    if fact_allowed is not None and asked not in fact_allowed.value:
        yield case.finding(
            "qos-not-allowed", fact_allowed.severity, f"partition {case.partition_name} does not take the QOS {asked!r}",
            evidence=f"{case.said(*_QOS, value=asked)}; {fact_allowed.source}: it takes {', '.join(fact_allowed.value)}",
            reason="Slurm refuses the job: Invalid qos specification",
            fix=case.fix((_QOS, closest(asked, fact_allowed.value))),
        )  # fmt: skip


def _qos_and_nodes(case: Case, asked: str) -> Iterator[Finding]:
    """The QOS against those that go with the job's nodes (IDRIS: each kind of GPU has its own)."""
    name = case.shape_name or ""
    fact = case.fact(case.shape.select.qos or None, "nodes", name, "select", "qos") if case.shape is not None else None
    if fact is not None and asked not in fact.value:
        yield case.finding(
            "qos-not-allowed", fact.severity, f"{name} nodes do not go with the QOS {asked!r}",
            evidence=f"{case.said(*_QOS, value=asked)}; {fact.source}: they go with {', '.join(fact.value)}",
            reason="Slurm refuses the job: Invalid qos specification",
            fix=case.fix((_QOS, closest(asked, fact.value))),
        )  # fmt: skip


def _own_qos(case: Case) -> tuple[str, ...] | None:
    """Return the QOS that go with the job's account; None where accounting did not say."""
    account = (case.spec.account or (case.live.default_account if case.live is not None else None) or "").lower()
    mine = [each for each in (case.live.associations or ()) if each.account.lower() == account] if case.live is not None else []
    names = tuple(dict.fromkeys(name for each in mine for name in each.qos))
    return names or None


def _constraint(case: Case) -> Iterator[Finding]:
    asked = case.spec.constraint
    there = case.landing or (case.live.partitions or () if case.live is not None and case.chosen_by_site else ())
    groups = tuple(group for each in there for group in each.nodes)
    known = tuple(dict.fromkeys(feature for group in groups for feature in group.features))
    if asked is None:
        return
    if not any(group.features for group in groups):
        yield from _constraint_and_partition(case, asked)
    if not groups:
        yield from _constraint_of_nodes(case, asked)
        return
    where = f"of partition {case.partition_name}" if case.partition_name else "here"
    for feature in sorted(features(asked) - set(known), key=asked.index):
        nearest = closest(feature, known)
        yield case.finding(
            "constraint-unknown", "error", f"no node {where} has the feature {feature!r}",
            evidence=f"{case.said(*_CONSTRAINT, value=asked)}; sinfo -o '%P %f' lists {', '.join(known) or 'no features'}",
            reason="Slurm refuses the job: Invalid feature specification, or Requested node configuration is not available",
            fix=case.fix((_CONSTRAINT, nearest)) if nearest else "leave the constraint out",
        )  # fmt: skip


def _constraint_of_nodes(case: Case, asked: str) -> Iterator[Finding]:
    """The constraint where Slurm shows no nodes, and each kind of node that the profile knows is had by a constraint only (NERSC)."""
    if case.profile is None or case.cluster is None or case.partition_names:
        return
    wanted = tuple(shape.select.constraint for shape in case.profile.nodes.values())
    known = tuple(each for each in wanted if each is not None)
    if not known or len(known) < len(wanted) or any(features(each) <= features(asked) for each in known):
        return
    yield case.finding(
        "constraint-unknown", "warning", f"no GPU node that is known here is had by the constraint {asked!r}",
        evidence=f"{case.said(*_CONSTRAINT, value=asked)}; {case.cluster.evidence('nodes')} lists {', '.join(known)}",
        reason="the site finds the nodes by the constraint: the job is refused, or gets nodes without GPUs",
        fix=case.fix((_CONSTRAINT, closest(asked, known))),
    )  # fmt: skip


def _constraint_and_partition(case: Case, asked: str) -> Iterator[Finding]:
    """The nodes that the constraint selects against those of the partition, both as the profile knows them (IDRIS)."""
    profile, name = case.profile, case.partition_name
    home = profile.partitions[name].nodes if profile is not None and case.partition_names and name in profile.partitions else None
    if profile is None or name is None or home is None:
        return
    chosen = {key: shape.select.constraint or "" for key, shape in profile.nodes.items() if shape.select.constraint}
    by_constraint = [key for key, wanted in chosen.items() if features(wanted) <= features(asked)]
    # Of alternatives, one that nobody knows may be had in this partition.
    open_ = "|" in asked and not features(asked) <= {each for wanted in chosen.values() for each in features(wanted)}
    if not by_constraint or open_ or any(_same_kind(profile.nodes[key], profile.nodes[home]) for key in by_constraint):
        return
    other = by_constraint[-1]
    facts = (case.fact(home, "partitions", name, "nodes"), case.fact(chosen[other], "nodes", other, "select", "constraint"))
    known = [fact for fact in facts if fact is not None]
    sources = "; ".join(dict.fromkeys(fact.source for fact in known))
    there = next((key for key, each in profile.partitions.items() if each.nodes == other), None)
    yield case.finding(
        "constraint-partition", "error" if all(fact.severity == "error" for fact in known) else "warning",
        f"the constraint {asked!r} selects {other} nodes, and partition {name} has {home} nodes",
        evidence=f"{case.said(*_CONSTRAINT, value=asked)}; {case.said(*_PARTITION, value=name)}; {sources}",
        reason="no node has both: Slurm refuses the job: Requested node configuration is not available",
        fix=case.fix((_PARTITION, there)) if there is not None else "leave the partition out, or the constraint",
    )  # fmt: skip


def _same_kind(one: NodeShape, other: NodeShape) -> bool:
    """Whether two shapes of a profile may be the same nodes: with the same GPUs, as far as anybody knows."""
    if one is other or (one.gpu is not None and one.gpu == other.gpu):
        return True
    wanted, has = features(one.select.constraint or ""), features(other.select.constraint or "")
    both = one.gpu is not None and other.gpu is not None
    return not both and not (has and not wanted & has)


# -- directives ---------------------------------------------------------------------------------------------------------


def _values(case: Case) -> dict[str, str | None]:
    return dict(case.written if case.written is not None else directives.values(case.spec))


def _forbidden(case: Case) -> Iterator[Finding]:
    written = _values(case)
    for name, why in (case.profile.directives.forbidden if case.profile is not None else {}).items():
        if name not in written:
            continue
        fact = case.fact(name, "directives", "forbidden", name)
        path = _path_of(name)
        if fact is None or (name in ("gres", "gpus-per-node", "gpus") and case.spec.gpu_directive == name):
            continue  # `gpu-dialect` says it
        yield case.finding(
            "directive-forbidden", fact.severity, f"this site does not take --{name}",
            evidence=f"{case.said(*path, value=written[name] or 'true')}; {fact.source}: {why}",
            reason=f"of --{name} the site says: {why}",
            fix=f"remove {path[-1]} from where it stands, then: {case.command(without=path)}",
        )  # fmt: skip


def _discouraged(case: Case) -> Iterator[Finding]:
    written = _values(case)
    for name, why in (case.profile.directives.discouraged if case.profile is not None else {}).items():
        fact = case.fact(name, "directives", "discouraged", name)
        if name in written and fact is not None:
            path = _path_of(name)
            yield case.finding(
                "directive-discouraged", "warning", f"this site asks to avoid --{name}",
                evidence=f"{case.said(*path, value=written[name] or 'true')}; {fact.source}",
                reason=f"of --{name} the site says: {why}",
                fix=f"remove {path[-1]} from where it stands, then: {case.command(without=path)}",
            )  # fmt: skip


def _path_of(directive: str) -> tuple[str, ...]:
    key = {"cpus-per-task": "cpus_per_task", "mem-per-cpu": "mem_per_cpu"}.get(directive, directive)
    modelled = {"nodes", "partition", "account", "qos", "time", "mem", "mem_per_cpu", "cpus_per_task", "constraint", "reservation"}
    return ("resources", key) if key in modelled else ("sbatch", directive)


def _required(case: Case) -> Iterator[Finding]:
    written = _values(case)
    # Those have findings of their own, with better words.
    own = {"account", "qos", "partition"}
    for name in case.profile.directives.required if case.profile is not None else ():
        if name in written or name in own or (name == "ntasks" and "ntasks-per-node" in written):
            continue
        fact = case.fact(name, "directives", "required")
        if fact is not None:
            yield case.finding(
                "directive-required", fact.severity, f"this site wants --{name} in every job, and this one has none",
                evidence=f"{fact.source}{confirm(fact, 'the documentation of the site')}",
                reason="the site refuses jobs without it",
                fix=case.command((f"--{name}", "VALUE") if _path_of(name)[0] == "resources" else ("--sbatch", f"{name}=VALUE")),
            )  # fmt: skip
