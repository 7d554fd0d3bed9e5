"""Rules about partition, QOS, constraint, account and directives: valid names, and what the site
requires or refuses.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.checks.job.context import Case, closest, confirm, features, rule
from hpctrain.config.fields import BY_PATH
from hpctrain.finding import Finding, Level
from hpctrain.jobs import directives
from hpctrain.util.schema import KeyPath

_PARTITION = ("resources", "partition")
_QOS = ("resources", "qos")
_CONSTRAINT = ("resources", "constraint")
_ACCOUNT = ("resources", "account")
_LISTING = "sacctmgr -nP show associations user=$USER format=account,qos"
_NO_QOS = "Slurm refuses the job: Invalid qos specification"
_NO_ACCOUNT = "Slurm refuses the job: Invalid account or account/partition combination specified"


# -- partition -------------------------------------------------------------------------------------


@rule("partition-unknown", on="site")
def _unknown_partition(case: Case) -> Iterator[Finding]:
    level: Level = "error"
    listed, source = tuple(each.name for each in case.partitions), "sinfo"
    if case.slurm.partitions is None:  # a profile need not list all partitions of a site
        listed, level = tuple(case.profile.partitions), "warning"
        source = f"profile {case.profile.name}"
    for name in case.partition_names:
        if listed and name not in listed:
            near = closest(name, listed, cutoff=0.6) or case.profile.defaults.partition
            yield case.finding(
                "partition-unknown",
                level,
                f"partition {name!r} does not exist here",
                evidence=(
                    f"{case.said(*_PARTITION, value=name)}; {source} lists {', '.join(listed)}"
                ),
                reason="Slurm refuses the job: Invalid partition name specified",
                fix=case.fix((_PARTITION, near or "NAME")),
            )


@rule("partition-missing", on="site")
def _no_partition(case: Case) -> Iterator[Finding]:
    fact = case.fact(case.profile.partition_required or None, "partition_required")
    if fact is not None and not case.partition_names and case.live_partition is None:
        yield case.finding(
            "partition-missing",
            fact.severity,
            "no partition is given, and this site requires one",
            evidence=f"{fact.source}{confirm(fact, 'sinfo -o %P')}",
            reason="Slurm refuses the job, or puts it where there are no GPUs",
            fix=case.fix((_PARTITION, case.profile.defaults.partition or "NAME")),
        )


# -- QOS -------------------------------------------------------------------------------------------


def _own_qos(case: Case) -> tuple[str, ...]:
    mine = case.associations(case.spec.account or case.slurm.default_account)
    return tuple(dict.fromkeys(name for each in mine for name in each.qos))


@rule("qos-missing", on="site")
def _no_qos(case: Case) -> Iterator[Finding]:
    fact = case.fact(case.profile.qos_required or None, "qos_required")
    if case.spec.qos is None and fact is not None:
        names = (case.profile.defaults.qos, *_own_qos(case), *case.profile.qos, "NAME")
        yield case.finding(
            "qos-missing",
            fact.severity,
            "no QOS is given, and this site requires one",
            evidence=f"{fact.source}{confirm(fact, _LISTING)}",
            reason=_NO_QOS,
            fix=case.fix((_QOS, next(filter(None, names)))),
        )


@rule("qos-unknown", "qos-not-allowed", on="site")
def _wrong_qos(case: Case) -> Iterator[Finding]:
    """The QOS against the user's, those that the partition allows, and those for the job's nodes
    (IDRIS: one per kind of GPU).
    """
    asked, own, live, shape = case.spec.qos, _own_qos(case), case.live_partition, case.shape
    if asked is None:
        return
    said = case.said(*_QOS, value=asked)
    if own and asked not in own:
        yield case.finding(
            "qos-unknown",
            "error",
            f"you may not use the QOS {asked!r}",
            evidence=f"{said}; sacctmgr lists for you: {', '.join(own)}",
            reason=_NO_QOS,
            fix=case.fix((_QOS, closest(asked, own) or "NAME")),
        )
    # Where Slurm names no QOS, the partition accepts all, whatever the profile says.
    of_partition = None if live is not None and live.allow_qos is None else case.of_partition("qos")
    of_nodes = None
    if shape is not None and not own and asked in case.profile.qos:
        path = ("nodes", case.shape_name or "", "select", "qos")
        of_nodes = case.fact(shape.select.qos or None, *path)
    for fact, who in (
        (of_nodes, f"{case.shape_name} nodes do"),
        (of_partition, f"partition {case.partition_name} does"),
    ):
        if fact is not None and fact.value and asked not in fact.value:
            yield case.finding(
                "qos-not-allowed",
                fact.severity,
                f"{who} not accept the QOS {asked!r}",
                evidence=f"{said}; {fact.source}: {', '.join(fact.value)}",
                reason=_NO_QOS,
                fix=case.fix((_QOS, closest(asked, fact.value))),
            )


# -- directives ------------------------------------------------------------------------------------


def _written(case: Case) -> dict[str, str | None]:
    return dict(case.written if case.written is not None else directives.values(case.spec))


def _path_of(directive: str) -> KeyPath:
    path = ("resources", directive.replace("-", "_"))
    return path if path in BY_PATH else ("sbatch", directive)


@rule("directive-forbidden", "directive-discouraged", on="site")
def _unwanted(case: Case) -> Iterator[Finding]:
    policy, written = case.profile.directives, _written(case)
    for kind, listed in (("forbidden", policy.forbidden), ("discouraged", policy.discouraged)):
        for name, why in listed.items():
            fact, path = case.fact(name, "directives", kind, name), _path_of(name)
            # `gpu-dialect` reports the GPU request.
            if fact is None or name not in written or case.spec.gpu_directive == name:
                continue
            yield case.finding(
                f"directive-{kind}",
                fact.severity if kind == "forbidden" else "warning",
                f"this site {'refuses' if kind == 'forbidden' else 'asks you to avoid'} --{name}",
                evidence=f"{case.said(*path, value=written[name] or 'true')}; {fact.source}: {why}",
                reason=f"the site's reason: {why}",
                fix=f"remove {path[-1]} there, then: {case.command(without=path)}",
            )


@rule("directive-required", on="site")
def _required(case: Case) -> Iterator[Finding]:
    # These have more specific findings.
    written = {*_written(case), "account", "qos", "partition"}
    written |= {"ntasks"} if "ntasks-per-node" in written else set()
    for name in case.profile.directives.required:
        fact = case.fact(name, "directives", "required")
        if name in written or fact is None:
            continue
        own_option = _path_of(name)[0] == "resources"
        change = (f"--{name}", "VALUE") if own_option else ("--sbatch", f"{name}=VALUE")
        yield case.finding(
            "directive-required",
            fact.severity,
            f"this site requires --{name} in every job, and this one has none",
            evidence=f"{fact.source}{confirm(fact, 'the documentation of the site')}",
            reason="the site refuses jobs without it",
            fix=case.command(change),
        )


# -- accounts --------------------------------------------------------------------------------------


@rule("account-unknown", "account-missing", on="site")
def _account(case: Case) -> Iterator[Finding]:
    account, own, known = case.spec.account, case.slurm.accounts, case.profile.account
    mine = {name.lower() for name in own or ()}  # Slurm compares and stores accounts so
    if account is not None and own is not None and account.lower() not in mine:
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
            fix=case.fix((_ACCOUNT, near)) if near else "ask your site for an account",
        )
    fact = case.fact(known.required or None, "account", "required")
    if account is None and fact is not None:
        default = case.slurm.default_account
        if default is not None and own is not None and default.lower() not in mine:
            default = None  # of another cluster
        listing = known.list_command or _LISTING
        names = (default, *(own or ()), known.example, "NAME")
        yield case.finding(
            "account-missing",
            "warning" if default is not None else fact.severity,
            "no account is given, and"
            f" {f'your default account is {default}' if default else 'this site requires one'}",
            evidence=f"{fact.source}{confirm(fact, listing)}",
            reason="Slurm refuses the job, or charges your default account",
            fix=f"{listing}, then: {case.fix((_ACCOUNT, next(filter(None, names))))}",
        )


@rule("account-nodes", on="site")
def _account_and_nodes(case: Case) -> Iterator[Finding]:
    """The account's suffix against the nodes: `abc@h100` needs `-C h100` (IDRIS), `…g` the GPU
    partitions (Deucalion).
    """
    account = case.spec.account or case.slurm.default_account
    if account is None:
        return
    said = f"sacctmgr: your default account is {account}"
    if case.spec.account is not None:
        said = case.said(*_ACCOUNT, value=account)
    paid = {
        name: shape.select.constraint
        for name, shape in case.profile.nodes.items()
        if shape.select.account_suffix
        and account.lower().endswith(shape.select.account_suffix.lower())
    }
    named, wanted = next(iter(paid.items()), ("", None))
    suffix = case.shape.select.account_suffix if case.shape is not None else None
    if wanted and not set(wanted.split("&")) <= features(case.spec.constraint or ""):
        fact = case.fact(wanted, "nodes", named, "select", "constraint")
        what = (
            f"the account {account!r} pays for {named} nodes, and the job does not request {wanted}"
        )
        reason = (
            "without this constraint, the site assigns another node type and rejects the account"
        )
        fix = case.fix((_CONSTRAINT, wanted))
    elif suffix and case.shape_name not in paid:
        fact = case.fact(suffix, "nodes", case.shape_name or "", "select", "account_suffix")
        what = (
            f"{case.shape_name} nodes are paid by an account that ends in {suffix}, not {account!r}"
        )
        reason = "the site refuses the job, or charges hours of another kind"
        fix = case.profile.account.list_command or _LISTING
    else:
        return
    if fact is not None:
        yield case.finding(
            "account-nodes",
            fact.severity,
            what,
            evidence=f"{said}; {fact.source}",
            reason=reason,
            fix=fix,
        )
