"""Rules about partition, QOS, constraint, account and directives: valid names, and what the site
requires or refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.checks.job.context import (
    Case,
    Fact,
    closest,
    confirm,
    features,
    likely_partition,
    rule,
)
from hpctrain.finding import Finding, Level
from hpctrain.jobs import directives
from hpctrain.util.schema import KeyPath

_PARTITION = ("resources", "partition")
_QOS = ("resources", "qos")
_CONSTRAINT = ("resources", "constraint")
_ACCOUNT = ("resources", "account")
_ASK = "ask your project's leader, or the site, for an account"
_LISTING = "sacctmgr -nP show associations user=$USER format=account"
_NO_QOS = "Slurm refuses the job: Invalid qos specification"
_NO_ACCOUNT = "Slurm refuses the job: Invalid account or account/partition combination specified"


def _evidence(case: Case, *path: str) -> str:
    return case.cluster.evidence(*path) if case.cluster is not None else ""


# -- partition -------------------------------------------------------------------------------------


@rule("partition-unknown", on="site")
def _unknown_partition(case: Case) -> Iterator[Finding]:
    level: Level = "error"
    listed, source = tuple(each.name for each in case.partitions), "sinfo"
    if case.slurm.partitions is None:  # a profile need not list all partitions of a site
        listed, level = tuple(case.profile.partitions), "warning"
        source = _evidence(case, "partitions")
    for name in case.partition_names:
        if listed and name not in listed:
            yield case.finding(
                "partition-unknown",
                level,
                f"partition {name!r} does not exist here",
                evidence=(
                    f"{case.said(*_PARTITION, value=name)}; {source} lists {', '.join(listed)}"
                ),
                reason="Slurm refuses the job: Invalid partition name specified",
                fix=case.fix((_PARTITION, likely_partition(case, name, listed) or "NAME")),
            )


@rule("partition-missing", on="site")
def _no_partition(case: Case) -> Iterator[Finding]:
    fact = case.fact(case.profile.partition_required or None, "partition_required")
    if fact is not None and not case.partition_names and case.live_partition is None:
        likely = case.profile.defaults.partition or likely_partition(case) or "NAME"
        yield case.finding(
            "partition-missing",
            fact.severity,
            "no partition is given, and this site requires one",
            evidence=f"{fact.source}{confirm(fact, 'sinfo -o %P')}",
            reason="Slurm refuses the job, or puts it where there are no GPUs",
            fix=case.fix((_PARTITION, likely)),
        )


# -- QOS and constraint ----------------------------------------------------------------------------


@rule("qos-missing", on="site")
def _no_qos(case: Case) -> Iterator[Finding]:
    fact = case.fact(case.profile.qos_required or None, "qos_required")
    if case.spec.qos is None and fact is not None:
        names = (case.profile.defaults.qos, *_own_qos(case), *case.profile.qos, "NAME")
        listing = "sacctmgr -nP show associations user=$USER format=account,qos"
        yield case.finding(
            "qos-missing",
            fact.severity,
            "no QOS is given, and this site requires one",
            evidence=f"{fact.source}{confirm(fact, listing)}",
            reason=_NO_QOS,
            fix=case.fix((_QOS, next(filter(None, names)))),
        )


@rule("qos-unknown", on="site")
def _unknown_qos(case: Case) -> Iterator[Finding]:
    asked, own = case.spec.qos, _own_qos(case)
    if asked is not None and own and asked not in own:
        yield case.finding(
            "qos-unknown",
            "error",
            f"you may not use the QOS {asked!r}",
            evidence=f"{case.said(*_QOS, value=asked)}; sacctmgr lists for you: {', '.join(own)}",
            reason=_NO_QOS,
            fix=case.fix((_QOS, closest(asked, own) or "NAME")),
        )


@rule("qos-not-allowed", on="site")
def _qos_not_allowed(case: Case) -> Iterator[Finding]:
    """The QOS against those that the partition allows, and those for the job's nodes (IDRIS: one
    per kind of GPU).
    """
    asked, live, name = case.spec.qos, case.live_partition, case.partition_name
    # Where Slurm names no QOS, the partition accepts all, whatever the profile says.
    takes = None if live is not None and live.allow_qos is None else case.of_partition("qos")
    shape = case.shape_name or ""
    goes = case.shape.select.qos if case.shape is not None else ()
    unknown = bool(_own_qos(case)) or (case.profile.qos and asked not in case.profile.qos)
    with_nodes = None if unknown else case.fact(goes or None, "nodes", shape, "select", "qos")
    for fact, what, how in (
        (with_nodes, f"{shape} nodes do not go with", "they go with"),
        (takes, f"partition {name} does not accept", "it takes"),
    ):
        if asked is not None and fact is not None and fact.value and asked not in fact.value:
            yield case.finding(
                "qos-not-allowed",
                fact.severity,
                f"{what} the QOS {asked!r}",
                evidence=(
                    f"{case.said(*_QOS, value=asked)}; {fact.source}: {how} {', '.join(fact.value)}"
                ),
                reason=_NO_QOS,
                fix=case.fix((_QOS, closest(asked, fact.value))),
            )


def _own_qos(case: Case) -> tuple[str, ...]:
    mine = case.associations(case.spec.account or case.slurm.default_account)
    return tuple(dict.fromkeys(name for each in mine for name in each.qos))


# -- directives ------------------------------------------------------------------------------------


def _written(case: Case) -> dict[str, str | None]:
    return dict(case.written if case.written is not None else directives.values(case.spec))


@rule("directive-forbidden", "directive-discouraged", on="site")
def _unwanted(case: Case) -> Iterator[Finding]:
    policy, written = case.profile.directives, _written(case)
    for kind, listed in (("forbidden", policy.forbidden), ("discouraged", policy.discouraged)):
        for name, why in listed.items():
            fact, path = case.fact(name, "directives", kind, name), _path_of(name)
            refuses = kind == "forbidden"
            of_gpus = refuses and name in ("gres", "gpus-per-node", "gpus")
            if of_gpus and case.spec.gpu_directive == name:
                continue  # `gpu-dialect` reports it
            if fact is not None and name in written:
                said = case.said(*path, value=written[name] or "true")
                yield case.finding(
                    f"directive-{kind}",
                    fact.severity if refuses else "warning",
                    f"this site {'refuses' if refuses else 'asks you to avoid'} --{name}",
                    evidence=f"{said}; {fact.source}: {why}",
                    reason=f"the site's reason: {why}",
                    fix=f"remove {path[-1]} there, then: {case.command(without=path)}",
                )


_MODELLED = frozenset(
    [
        "nodes",
        "partition",
        "account",
        "qos",
        "time",
        "mem",
        "mem_per_cpu",
        "cpus_per_task",
        "constraint",
        "reservation",
    ]
)


def _path_of(directive: str) -> KeyPath:
    key = directive.replace("-", "_")
    return ("resources", key) if key in _MODELLED else ("sbatch", directive)


@rule("directive-required", on="site")
def _required(case: Case) -> Iterator[Finding]:
    # These have more specific findings.
    written = {*_written(case), "account", "qos", "partition"}
    written |= {"ntasks"} if "ntasks-per-node" in written else set()
    for name in case.profile.directives.required:
        fact = case.fact(name, "directives", "required")
        if name in written or fact is None:
            continue
        modelled = _path_of(name)[0] == "resources"
        yield case.finding(
            "directive-required",
            fact.severity,
            f"this site requires --{name} in every job, and this one has none",
            evidence=f"{fact.source}{confirm(fact, 'the documentation of the site')}",
            reason="the site refuses jobs without it",
            fix=case.command((f"--{name}", "VALUE") if modelled else ("--sbatch", f"{name}=VALUE")),
        )


# -- accounts --------------------------------------------------------------------------------------


def _lowered(names: tuple[str, ...] | None) -> set[str]:
    """Return names in lower case, in which Slurm compares and stores accounts and partitions."""
    return {name.lower() for name in names or ()}


@rule("account-unknown", on="site")
def _account(case: Case) -> Iterator[Finding]:
    account, own = case.spec.account, case.slurm.accounts
    if account is not None and own is not None and account.lower() not in _lowered(own):
        near = closest(account, own)
        yield case.finding(
            "account-unknown",
            "error",
            f"you may not use the account {account!r}",
            evidence=(
                f"{case.said(*_ACCOUNT, value=account)}; sacctmgr lists for you:"
                f" {', '.join(own) or 'none'}"
            ),
            reason=_NO_ACCOUNT,
            fix=case.fix((_ACCOUNT, near)) if near else _ASK,
        )


@rule("account-missing", on="site")
def _no_account(case: Case) -> Iterator[Finding]:
    own, default, known = case.slurm.accounts, case.slurm.default_account, case.profile.account
    fact = case.fact(known.required or None, "account", "required")
    if default is not None and own is not None and default.lower() not in _lowered(own):
        default = None  # an account of another cluster
    elif default is None and own == () and case.slurm.enforces_accounts:
        fact = Fact(True, "live", "sacctmgr lists no account for you")
    if case.spec.account is not None or fact is None:
        return
    here = [name for name in (default, *(own or ())) if name]
    listing = known.list_command or _LISTING
    note = f"your default account is {default}" if default else "this site requires one"
    yield case.finding(
        "account-missing",
        "warning" if default is not None else fact.severity,
        f"no account is given, and {note}",
        evidence=f"{fact.source}{confirm(fact, listing)}",
        reason="Slurm refuses the job, or charges your default account",
        fix=f"{listing}, then: {case.fix((_ACCOUNT, [*here, known.example or 'NAME'][0]))}",
    )


def _payer(case: Case) -> tuple[str | None, str]:
    if case.spec.account is not None:
        return case.spec.account, case.said(*_ACCOUNT, value=case.spec.account)
    default = case.slurm.default_account
    return default, f"sacctmgr: your default account is {default}"


@rule("account-nodes", on="site")
def _account_and_nodes(case: Case) -> Iterator[Finding]:
    """The account's suffix against the nodes: `abc@h100` needs `-C h100` (IDRIS), `…g` the GPU
    partitions (Deucalion).
    """
    account, said = _payer(case)
    suffixes = {name: each.select.account_suffix or "" for name, each in case.profile.nodes.items()}
    if account is None:
        return
    ends = (name for name, end in suffixes.items() if end and account.lower().endswith(end.lower()))
    named = next(ends, None)
    wanted = case.profile.nodes[named].select.constraint if named else None
    suffix = case.shape.select.account_suffix if case.shape is not None else None
    if named and wanted and not set(wanted.split("&")) <= features(case.spec.constraint or ""):
        fact = case.fact(wanted, "nodes", named, "select", "constraint")
        what = (
            f"the account {account!r} pays for {named} nodes, and the job does not request {wanted}"
        )
        reason = (
            "without this constraint, the site assigns another node type and rejects the account"
        )
        fix = case.fix((_CONSTRAINT, wanted))
    elif suffix and not account.lower().endswith(suffix.lower()):
        fact = case.fact(suffix, "nodes", case.shape_name or "", "select", "account_suffix")
        what = (
            f"{case.shape_name} nodes are paid by an account that ends in {suffix}, not {account!r}"
        )
        reason = "the site refuses the job, or charges hours of another kind"
        stem = account[: -len(suffixes[named])] if named else account
        fix = case.fix((_ACCOUNT, _with_suffix(case, stem, suffix)))
    else:
        return
    if fact is not None:
        source = f"{said}; {fact.source}"
        yield case.finding(
            "account-nodes", fact.severity, what, evidence=source, reason=reason, fix=fix
        )


def _with_suffix(case: Case, account: str, suffix: str) -> str:
    """Return the account with the suffix added, or replaced if the site's pattern requires it:
    abcd-delta-cpu, abcd-delta-gpu.
    """
    pattern = case.profile.account.pattern
    stem, mark, _ = account.rpartition(suffix[0])
    wished = [account + suffix, *([stem + suffix] if mark and not suffix[0].isalnum() else [])]
    fits = (each for each in wished if pattern and re.fullmatch(pattern, each))
    return next(fits, wished[0])
